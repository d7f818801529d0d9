// What can be done with an OSD.

import { at, change } from "./api.js";
import { ask } from "./dialog.js";
import { action } from "./parts.js";

export function osdActions(osd) {
    const name = `osd.${osd.id}`;
    return [
        osd.is_out
            ? action("Mark in", () => askIn(osd, name), { "aria-label": `Mark in ${name}` })
            : action("Mark out", () => askOut(osd, name), { "aria-label": `Mark out ${name}` }),
        action("Reweight", () => askWeight(osd, name), { "aria-label": `Reweight ${name}` }),
    ];
}

function askOut(osd, name) {
    ask({
        title: `Mark ${name} out`,
        label: "Mark out",
        confirm: name,
        text: "Its data moves to other OSDs. It goes on serving what it holds until that is done.",
        warning: osd.state === "down" ? "It is down: what it holds is copied from the other members." : null,
        submit: ({ confirm }) => change("POST", at`/osds/${osd.id}/out`, { confirm }),
        done: `${name} is marked out`,
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
