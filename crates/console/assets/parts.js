// Small pieces that all pages are made of. What a colour says is always said by a shape or a word as well.

import { h } from "./dom.js";
import { bytes, exact, percent, percentText, relative } from "./format.js";
import { may } from "./session.js";

const SHAPES = {
    good: ["M8 1a7 7 0 1 0 0 14A7 7 0 0 0 8 1z", "M4.5 8.2l2.4 2.4 4.6-5"],
    warn: ["M8 1.2L15.5 14.5H.5z", "M8 6v4M8 11.7v1"],
    bad: ["M5 1h6l4 4v6l-4 4H5l-4-4V5z", "M5.3 5.3l5.4 5.4M10.7 5.3l-5.4 5.4"],
    note: ["M2 2h12v12H2z", "M8 7v4.5M8 4.2v1"],
};
const TONES = { ok: "good", error: "bad", warning: "warn", note: "note" };

/** The shape of a tone: a disc, a triangle, an octagon or a square. */
export function icon(tone) {
    const [outline, sign] = SHAPES[tone];
    return h(
        "svg",
        { class: `icon ${tone}`, viewBox: "0 0 16 16", "aria-hidden": "true", focusable: "false" },
        h("path", { class: "outline", d: outline }),
        h("path", { class: "sign", d: sign }),
    );
}

/** A word with the shape of its tone. */
export function badge(tone, text, title = null) {
    return h("span", { class: `badge ${tone}`, title }, icon(tone), h("span", {}, text));
}

/** The tone of a severity or of the status of health. */
export function toneOf(severity) {
    return TONES[severity] ?? "note";
}

/** The heading of a page, with its actions beside it. */
export function heading(title, ...actions) {
    return h(
        "div",
        { class: "heading", key: "heading" },
        h("h1", { tabindex: "-1" }, title),
        h("div", { class: "actions" }, actions),
    );
}

/** A part of a page with a heading of its own. */
export function section(title, ...content) {
    const id = `part-${title.toLowerCase().replace(/[^a-z0-9]+/g, "-")}`;
    return h("section", { key: id, class: "panel", "aria-labelledby": id }, h("h2", { id }, title), content);
}

/** Names the hosts and processes that did not answer, if any: the page lacks their data. */
export function unansweredNote(unanswered) {
    if (unanswered.length === 0) return null;
    const name = ({ host, process }) => [process, host].filter((part) => part !== null).join(" on ");
    return h(
        "div",
        { key: "unanswered", class: "box warn", role: "status" },
        "This list is incomplete, because these do not answer:",
        h(
            "ul",
            { class: "plain-list" },
            unanswered.map((one) => h("li", {}, [name(one), one.reason].filter((text) => text).join(": "))),
        ),
    );
}

export function button(text, click, attributes = {}) {
    return h("button", { type: "button", ...attributes, on: { click } }, text);
}

/** A button that only those see who may make the call that it is for. */
export function action(call, text, click, attributes = {}) {
    return may(call) ? button(text, click, attributes) : null;
}

export function link(href, ...content) {
    return h("a", { href }, content);
}

/** How long ago, with the exact time when pointed at. */
export function time(unixMs) {
    if (unixMs === null || unixMs === undefined) return "-";
    return h("time", { datetime: new Date(unixMs).toISOString(), title: exact(unixMs) }, relative(unixMs));
}

/** A bar with what it says in words; `tone` colours it, `marks` are limits in percent. */
export function bar(value, all, { tone = "accent", text = percentText(value, all), marks = [] } = {}) {
    return h(
        "span",
        { class: "bar" },
        h(
            "svg",
            { class: tone, "aria-hidden": "true", focusable: "false" },
            h("rect", { class: "ground", width: "100%", height: "100%" }),
            h("rect", { class: "filled", width: `${percent(value, all).toFixed(1)}%`, height: "100%" }),
            marks.map((mark) => h("line", { class: "mark", x1: `${mark}%`, x2: `${mark}%`, y1: "0", y2: "100%" })),
        ),
        h("span", { class: "bar-text" }, text),
    );
}

/** Space in use, of how much. */
export function space(used, total, options = {}) {
    if (total === null || total === undefined || used === null || used === undefined) return "-";
    return bar(used, total, {
        text: `${bytes(used)} of ${bytes(total)} (${percentText(used, total)})`,
        ...options,
    });
}

/** Names with what they are. */
export function facts(...pairs) {
    return h(
        "dl",
        { class: "facts" },
        pairs
            .filter(Boolean)
            .map(([name, ...value]) => h("div", { key: name }, h("dt", {}, name), h("dd", {}, value))),
    );
}

/** The way to a page: links to what is above it. */
export function path(...steps) {
    return h(
        "nav",
        { class: "path", "aria-label": "Path", key: "path" },
        h(
            "ol",
            {},
            steps.map(([text, href]) =>
                h("li", {}, href ? h("a", { href }, text) : h("span", { "aria-current": "page" }, text)),
            ),
        ),
    );
}

export function quiet(...content) {
    return h("p", { class: "quiet" }, content);
}

export function osdLink(id) {
    return h("a", { href: `#/osds/${id}` }, `osd.${id}`);
}

/** Several links with commas between them. */
export function list(items) {
    return items.length ? items.flatMap((item, index) => (index ? [", ", item] : [item])) : "-";
}
