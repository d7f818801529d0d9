// OSDs on a map of failure domains, and as a table.

import { get } from "../api.js";
import { h } from "../dom.js";
import { count, percentText } from "../format.js";
import { osdActions } from "../osd_actions.js";
import { fullTone, osdBadge, osdSpace, osdState } from "../osd_state.js";
import { bar, heading, icon, osdLink, section } from "../parts.js";
import { may } from "../session.js";
import { table } from "../table.js";

export function title() {
    return "OSDs";
}

export async function load(route, signal) {
    const [hosts, settings] = await Promise.all([
        get("/failure-domains", {}, signal),
        get("/settings", {}, signal),
    ]);
    return { hosts, settings };
}

export function view({ hosts, settings }) {
    return [
        heading("OSDs"),
        section("Map of failure domains", legend(), map(hosts, settings)),
        section(
            "All OSDs",
            osdTable(
                hosts.flatMap((host) => host.osds),
                settings,
            ),
        ),
    ];
}

function legend() {
    const items = [
        ["good", "up"],
        ["warn", "gains or loses PGs, or is near full"],
        ["bad", "down or full"],
        ["note", "out"],
    ];
    return h(
        "ul",
        { class: "map-legend", "aria-label": "Signs" },
        items.map(([tone, text]) => h("li", { key: tone }, icon(tone), h("span", {}, text))),
    );
}

function groupBy(items, name) {
    const groups = new Map();
    for (const item of items) groups.set(item[name], [...(groups.get(item[name]) ?? []), item]);
    return [...groups].sort(([left], [right]) => left.localeCompare(right, "en", { numeric: true }));
}

function domain(kind, name, content) {
    return h(
        "li",
        { key: name, class: `domain ${kind}` },
        h("span", { class: "domain-name" }, h("span", { class: "quiet" }, `${kind} `), name),
        h("ul", {}, content),
    );
}

function map(hosts, settings) {
    return h(
        "ul",
        { class: "osd-map" },
        groupBy(hosts, "zone").map(([zone, inZone]) =>
            domain(
                "zone",
                zone,
                groupBy(inZone, "rack").map(([rack, inRack]) =>
                    domain(
                        "rack",
                        rack,
                        groupBy(inRack, "host").map(([host, same]) =>
                            domain(
                                "host",
                                host,
                                same.flatMap(({ osds }) => osds).map((osd) => tile(osd, settings)),
                            ),
                        ),
                    ),
                ),
            ),
        ),
    );
}

function tile(osd, settings) {
    const { tone, text } = osdState(osd, settings);
    const use = osd.total_bytes ? percentText(osd.used_bytes, osd.total_bytes) : "?";
    return h(
        "li",
        { key: osd.id, class: `tile ${tone}` },
        h(
            "a",
            { href: `#/osds/${osd.id}` },
            h(
                "span",
                { class: "tile-head" },
                icon(tone),
                h("strong", {}, `osd.${osd.id}`),
                " ",
                h("span", {}, text),
            ),
            " ",
            bar(osd.used_bytes ?? 0, osd.total_bytes ?? 0, { tone: fullTone(osd, settings), text: use }),
        ),
    );
}

function osdTable(osds, settings) {
    return table({
        id: "osds",
        caption: "OSDs",
        search: "OSDs",
        rows: osds,
        key: (osd) => osd.id,
        first: "OSD",
        empty: "There are no OSDs yet.",
        columns: [
            { label: "OSD", value: (osd) => `osd.${osd.id}`, cell: (osd) => osdLink(osd.id) },
            {
                label: "State",
                value: (osd) => osdState(osd, settings).text,
                cell: (osd) => osdBadge(osd, settings),
            },
            {
                label: "Space",
                value: (osd) => (osd.total_bytes ? osd.used_bytes / osd.total_bytes : 0),
                cell: (osd) => osdSpace(osd, settings),
            },
            { label: "PGs", numeric: true, value: (osd) => osd.pgs, cell: (osd) => count(osd.pgs) },
            {
                label: "Target",
                numeric: true,
                value: (osd) => osd.pgs_target,
                cell: (osd) => count(osd.pgs_target),
            },
            {
                label: "Primary",
                numeric: true,
                value: (osd) => osd.pgs_primary,
                cell: (osd) => count(osd.pgs_primary),
            },
            { label: "Weight", numeric: true, value: (osd) => osd.weight, cell: (osd) => osd.weight.toFixed(3) },
            { label: "Class", value: (osd) => osd.device_class },
            { label: "Host", value: (osd) => osd.host },
            may("markOsdOut", "markOsdIn", "reweightOsd") ? { label: "Actions", actions: true, cell: osdActions } : null,
        ],
    });
}
