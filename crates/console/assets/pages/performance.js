// Charts per OSD, pool, image or gateway.

import { h } from "../dom.js";
import { newest } from "../charts.js";
import { chartsOf, loadFigures } from "../figures.js";
import { byteRate, microseconds, rate } from "../format.js";
import { redraw } from "../page.js";
import { address } from "../router.js";
import { heading, quiet, section, unansweredNote } from "../parts.js";
import { table } from "../table.js";

const KINDS = [
    ["osd", "OSDs"],
    ["pool", "Pools"],
    ["image", "Images"],
    ["gateway", "Gateways"],
];

export function title() {
    return "Performance";
}

const kindOf = (route) => route.query.get("kind") ?? "osd";

export function load(route, signal) {
    return loadFigures(kindOf(route), null, signal);
}

export function view(figures, route, state) {
    const kind = kindOf(route);
    const series = figures.series.filter((one) => one.kind === kind);
    const chosen = series.find(({ name }) => name === state.name) ?? series[0];
    const choose = (name) => () => {
        state.name = name;
        redraw();
    };
    return [
        heading("Performance"),
        h(
            "nav",
            { class: "tabs", "aria-label": "Shown figures" },
            KINDS.map(([value, text]) =>
                h(
                    "a",
                    {
                        href: address(["performance"], { kind: value }),
                        "aria-current": value === kind ? "page" : null,
                    },
                    text,
                ),
            ),
        ),
        unansweredNote(figures.unanswered),
        chosen
            ? [
                  section(
                      `${chosen.name}, last 10 minutes`,
                      h("div", { class: "charts" }, chartsOf(figures, chosen, "performance")),
                  ),
                  section("Now", nowTable(kind, series, chosen, choose)),
              ]
            : quiet("There are no figures of this kind."),
    ];
}

function nowTable(kind, series, chosen, choose) {
    const column = (label, values, format) => ({
        label,
        numeric: true,
        value: (one) => newest(one[values]) ?? 0,
        cell: (one) => format(newest(one[values])),
    });
    return table({
        id: `performance-${kind}`,
        caption: "Newest figures",
        rows: series,
        key: (one) => one.name,
        search: "names",
        first: "Name",
        columns: [
            {
                label: "Name",
                value: (one) => one.name,
                cell: (one) =>
                    h(
                        "button",
                        {
                            type: "button",
                            class: "plain",
                            "aria-pressed": String(one === chosen),
                            on: { click: choose(one.name) },
                        },
                        one.name,
                    ),
            },
            column("Reads", "reads_per_second", rate),
            column("Writes", "writes_per_second", rate),
            column("Read bytes", "read_bytes_per_second", byteRate),
            column("Written bytes", "write_bytes_per_second", byteRate),
            column("Read median", "read_p50_us", microseconds),
            column("Read 99 %", "read_p99_us", microseconds),
            column("Write median", "write_p50_us", microseconds),
            column("Write 99 %", "write_p99_us", microseconds),
        ],
    });
}
