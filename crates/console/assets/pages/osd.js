// One OSD.

import { get } from "../api.js";
import { ApiError } from "../api.js";
import { h } from "../dom.js";
import { chartsOf, loadFigures } from "../figures.js";
import { bytes, count } from "../format.js";
import { osdActions, removeAction } from "../osd_actions.js";
import { osdBadge, osdSpace } from "../osd_state.js";
import { facts, heading, link, path, quiet, section, unansweredNote } from "../parts.js";

export function title({ names }) {
    return `osd.${names.osd}`;
}

export async function load({ names }, signal) {
    const [osds, settings, figures] = await Promise.all([
        get("/osds", {}, signal),
        get("/settings", {}, signal),
        loadFigures("osd", `osd.${names.osd}`, signal),
    ]);
    const osd = osds.find(({ id }) => String(id) === names.osd);
    if (!osd) {
        throw new ApiError(
            404,
            "NOT_FOUND",
            `There is no osd.${names.osd}.`,
            "See the list of OSDs; it may have been removed.",
        );
    }
    return { osd, settings, figures };
}

export function view({ osd, settings, figures }) {
    const series = figures.series[0];
    return [
        path(["OSDs", "#/osds"], [`osd.${osd.id}`]),
        heading(`osd.${osd.id}`, osdActions(osd), removeAction(osd)),
        section(
            "State",
            facts(
                ["State", osdBadge(osd, settings)],
                ["Space", osdSpace(osd, settings)],
                ["Place", `zone ${osd.zone}, rack ${osd.rack}, host ${osd.host}`],
                ["Address", osd.address ?? "-"],
                ["Process", osd.process_id ?? "-"],
                ["Device", `${bytes(osd.device_bytes)}, class ${osd.device_class}`],
                ["Weight", String(osd.weight)],
                ["PGs", link(`#/pgs?osd=${osd.id}`, count(osd.pgs)), `; it should have ${count(osd.pgs_target)}`],
                ["Primary of", `${count(osd.pgs_primary)} PGs`],
            ),
        ),
        section(
            "Last 10 minutes",
            unansweredNote(figures.unanswered),
            series
                ? h("div", { class: "charts" }, chartsOf(figures, series, "osd"))
                : quiet("There are no figures yet."),
        ),
    ];
}
