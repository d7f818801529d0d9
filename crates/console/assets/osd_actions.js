// What can be done with an OSD.

import { at, change } from "./api.js";
import { ask } from "./dialog.js";
import { plural } from "./format.js";
import { action } from "./parts.js";
import { goTo } from "./router.js";

export function osdActions(osd) {
    const name = `osd.${osd.id}`;
    return [
        osd.is_out
            ? action("markOsdIn", "Mark in", () => askIn(osd, name), { "aria-label": `Mark in ${name}` })
            : action("markOsdOut", "Mark out", () => askOut(osd, name), { "aria-label": `Mark out ${name}` }),
        action("reweightOsd", "Reweight", () => askWeight(osd, name), { "aria-label": `Reweight ${name}` }),
    ];
}

/** Only on the page of the OSD: what holds its PGs should be looked at first. */
export function removeAction(osd) {
    const name = `osd.${osd.id}`;
    return action("removeOsd", "Remove", () => askRemove(osd, name), {
        class: "danger",
        "aria-label": `Remove ${name}`,
    });
}

function askOut(osd, name) {
    ask({
        title: `Mark ${name} out`,
        label: "Mark out",
        confirm: name,
        text: "Its data moves to other OSDs. Until that is done it serves the data that it still has.",
        warning: osd.state === "down" ? "It is down: its data is copied from the other members." : null,
        submit: ({ confirm }) => change("POST", at`/osds/${osd.id}/out`, { confirm }),
        done: `${name} is marked out`,
    });
}

function askRemove(osd, name) {
    const isLost = {
        name: "lost",
        label: "It is lost for good",
        type: "truth",
        value: false,
        hint: "Removes it although PGs have it as a member. Data that only it held is lost.",
    };
    ask({
        title: `Remove ${name} from the cluster`,
        label: "Remove",
        confirm: name,
        text:
            "If it runs on this console's host it is stopped first; on another host it must not run. Its device is not " +
            "touched, and its number is not given again.",
        warning: osd.pgs
            ? `${plural(osd.pgs, "PG")} still have it as a member, so it is refused. Mark it out, and wait until they ` +
              "have moved."
            : null,
        fields: osd.pgs && osd.state === "down" ? [isLost] : [],
        submit: (values) => change("POST", at`/osds/${osd.id}/remove`, values),
        done: `${name} is removed`,
        after: () => goTo(["osds"]),
    });
}

function askIn(osd, name) {
    ask({
        title: `Mark ${name} in`,
        label: "Mark in",
        text: "PGs move back to it by its weight.",
        submit: () => change("POST", at`/osds/${osd.id}/in`),
        done: `${name} is marked in`,
    });
}

function askWeight(osd, name) {
    ask({
        title: `Reweight ${name}`,
        label: "Reweight",
        text: "The weight is its share of the data, by convention its size in TiB. Data moves by itself.",
        fields: [
            {
                name: "weight",
                label: "Weight",
                type: "number",
                value: osd.weight,
                required: true,
                hint: "0: it holds no data, but stays in the cluster.",
                check: (weight) => (weight < 0 ? "A weight is 0 or more." : null),
            },
        ],
        submit: ({ weight }) => change("POST", at`/osds/${osd.id}/reweight`, { weight }),
        done: (answer, { weight }) => `${name} has weight ${weight}`,
    });
}
