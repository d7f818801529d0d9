// Charts of figures over time: lines that differ in colour and dashes, a legend with the newest values, a readout
// where one points, and the same as a table.

import { h } from "./dom.js";
import { exact } from "./format.js";
import { redraw } from "./page.js";

const HEIGHT = 100;
// Where one points: the name of the chart and which second.
let pointed = { chart: null, index: 0 };

/** `lines`: {name, values}, one value a step, null where nothing is known; `format` writes a value. */
export function chart({ id, title, lines, fromMs, stepMs, format, base = 1000 }) {
    const length = Math.max(1, ...lines.map(({ values }) => values.length));
    const highest = Math.max(...lines.flatMap(({ values }) => values.map((value) => value ?? 0)), 0);
    const top = niceTop(highest, base);
    const index = pointed.chart === id ? Math.min(pointed.index, length - 1) : null;
    return h(
        "figure",
        { key: id, class: "chart" },
        h("figcaption", {}, h("h3", {}, title), readout(lines, index, fromMs, stepMs)),
        h(
            "div",
            { class: "plot" },
            h("span", { class: "top", "aria-hidden": "true" }, highest ? format(top) : ""),
            h(
                "svg",
                {
                    viewBox: `0 0 ${length - 1 || 1} ${HEIGHT}`,
                    preserveAspectRatio: "none",
                    role: "img",
                    "aria-label": summary(title, lines, format),
                    on: { pointermove: (event) => point(id, event, length), pointerleave: () => point(null) },
                },
                [0, 0.5, 1].map((part) => line(0, length - 1 || 1, part * HEIGHT, part * HEIGHT, "rule")),
                lines.map(({ values }, number) =>
                    h("path", { class: `line line-${number}`, d: curve(values, top) }),
                ),
                index === null ? null : line(index, index, 0, HEIGHT, "pointer"),
            ),
        ),
        h(
            "div",
            { class: "scale", "aria-hidden": "true" },
            h("span", {}, `${Math.round((length * stepMs) / 60000)} min ago`),
            h("span", {}, "now"),
        ),
        legend(lines, index, format),
        asTable(title, lines, fromMs, stepMs, format),
    );
}

function line(x1, x2, y1, y2, name) {
    return h("line", { class: name, x1, x2, y1, y2 });
}

// A round number: of thousands, or of KiB, MiB and so on with base 1024.
function niceTop(highest, base) {
    if (highest <= 0) return 1;
    const unit = base ** Math.floor(Math.log(highest) / Math.log(base));
    const steps = [1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, base];
    return unit * (steps.find((step) => step * unit >= highest) ?? base);
}

// A gap where values are missing.
function curve(values, top) {
    let pen = "M";
    let path = "";
    values.forEach((value, index) => {
        if (value === null) {
            pen = "M";
            return;
        }
        path += `${pen}${index} ${(HEIGHT - (value / top) * HEIGHT).toFixed(1)}`;
        pen = "L";
    });
    return path;
}

function point(id, event, length) {
    if (id === null) {
        pointed = { chart: null, index: 0 };
    } else {
        const box = event.currentTarget.getBoundingClientRect();
        const part = (event.clientX - box.left) / Math.max(1, box.width);
        pointed = { chart: id, index: Math.round(Math.min(1, Math.max(0, part)) * (length - 1)) };
    }
    redraw();
}

function readout(lines, index, fromMs, stepMs) {
    return h("span", { class: "quiet small" }, index === null ? "" : exact(fromMs + index * stepMs));
}

/** The newest value that is known. */
export function newest(values) {
    return values.findLast((value) => value !== null) ?? null;
}

function legend(lines, index, format) {
    return h(
        "ul",
        { class: "legend" },
        lines.map(({ name, values }, number) =>
            h(
                "li",
                { key: name },
                h(
                    "svg",
                    { class: "sample", viewBox: "0 0 24 6", "aria-hidden": "true" },
                    h("line", { class: `line line-${number}`, x1: 0, x2: 24, y1: 3, y2: 3 }),
                ),
                h("span", {}, name),
                h("strong", {}, format(index === null ? newest(values) : values[index])),
            ),
        ),
    );
}

function summary(title, lines, format) {
    const said = lines.map(({ name, values }) => {
        const known = values.filter((value) => value !== null);
        const highest = known.length ? Math.max(...known) : null;
        return `${name} now ${format(newest(values))}, at most ${format(highest)}`;
    });
    return `${title}: ${said.join("; ")}`;
}

/** The mean of each minute. */
function asTable(title, lines, fromMs, stepMs, format) {
    const perRow = Math.round(60000 / stepMs);
    const length = Math.max(0, ...lines.map(({ values }) => values.length));
    const rows = [];
    for (let start = 0; start < length; start += perRow) rows.push(start);
    const mean = (values) => {
        const known = values.filter((value) => value !== null);
        return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
    };
    return h(
        "details",
        {},
        h("summary", {}, "As a table"),
        h(
            "div",
            { class: "table-scroll", tabindex: "0", role: "group", "aria-label": `${title}, as a table` },
            h(
                "table",
                {},
                h("caption", { class: "hidden" }, `${title}, the mean of each minute`),
                h(
                    "thead",
                    {},
                    h(
                        "tr",
                        {},
                        h("th", { scope: "col" }, "From"),
                        lines.map(({ name }) => h("th", { scope: "col", class: "numeric" }, name)),
                    ),
                ),
                h(
                    "tbody",
                    {},
                    rows.map((start) =>
                        h(
                            "tr",
                            {},
                            h("th", { scope: "row" }, exact(fromMs + start * stepMs)),
                            lines.map(({ values }) =>
                                h("td", { class: "numeric" }, format(mean(values.slice(start, start + perRow)))),
                            ),
                        ),
                    ),
                ),
            ),
        ),
    );
}
