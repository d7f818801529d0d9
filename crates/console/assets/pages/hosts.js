// Hosts with their OSDs.

import { get } from "../api.js";
import { count } from "../format.js";
import { badge, heading, link, list, osdLink, quiet, space } from "../parts.js";
import { table } from "../table.js";

export function title() {
    return "Hosts";
}

export function load(route, signal) {
    return get("/failure-domains", {}, signal);
}

const sum = (osds, name) => osds.reduce((all, osd) => all + (osd[name] ?? 0), 0);
const up = (host) => host.osds.filter((osd) => osd.state === "up").length;

export function view(hosts) {
    return [
        heading("Hosts"),
        quiet("Where OSDs are. ", link("#/osds", "The map of OSDs"), " shows zones and racks."),
        table({
            id: "hosts",
            caption: "Hosts",
            search: "hosts",
            rows: hosts,
            first: "Host",
            key: (host) => `${host.zone}/${host.rack}/${host.host}`,
            empty: "There are no OSDs yet.",
            columns: [
                { label: "Host", value: (host) => host.host },
                { label: "Rack", value: (host) => host.rack },
                { label: "Zone", value: (host) => host.zone },
                {
                    label: "OSDs up",
                    value: up,
                    cell: (host) =>
                        badge(
                            up(host) === host.osds.length ? "good" : up(host) ? "warn" : "bad",
                            `${up(host)} of ${host.osds.length}`,
                        ),
                },
                {
                    label: "Space",
                    value: (host) => sum(host.osds, "used_bytes") / (sum(host.osds, "total_bytes") || 1),
                    cell: (host) => space(sum(host.osds, "used_bytes"), sum(host.osds, "total_bytes")),
                },
                {
                    label: "Weight",
                    numeric: true,
                    value: (host) => host.weight,
                    cell: (host) => host.weight.toFixed(3),
                },
                {
                    label: "PGs",
                    numeric: true,
                    value: (host) => sum(host.osds, "pgs"),
                    cell: (host) => count(sum(host.osds, "pgs")),
                },
                { label: "OSDs", cell: (host) => list(host.osds.map((osd) => osdLink(osd.id))) },
            ],
        }),
    ];
}
