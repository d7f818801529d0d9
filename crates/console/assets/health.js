// What is wrong, since when, and what to do.

import { h } from "./dom.js";
import { plural } from "./format.js";
import { badge, icon, time, toneOf } from "./parts.js";

const SUBJECTS = 12;
const WORDS = {
    ok: "All is well",
    warning: "All is served, but less safely or not for long",
    error: "Something is not served",
};

/** The status in words. */
export function healthStatus(health) {
    return h(
        "p",
        { class: `box health ${toneOf(health.status)}` },
        icon(toneOf(health.status)),
        h("strong", {}, WORDS[health.status]),
        h("span", { class: "quiet" }, `Health: ${health.status}`),
    );
}

export function problemList(problems) {
    if (!problems.length) return h("p", { class: "quiet" }, "There are no problems.");
    return h(
        "ul",
        { class: "problems" },
        problems.map((problem) =>
            h(
                "li",
                { key: problem.code, class: toneOf(problem.severity) },
                h(
                    "div",
                    { class: "problem-head" },
                    badge(toneOf(problem.severity), problem.severity),
                    h("strong", {}, problem.summary),
                    h("span", { class: "quiet" }, problem.code),
                    problem.since_unix_ms
                        ? h("span", { class: "quiet" }, "began ", time(problem.since_unix_ms))
                        : null,
                ),
                subjects(problem),
                h("p", { class: "remedy" }, h("span", { class: "quiet" }, "Remedy: "), problem.action),
            ),
        ),
    );
}

function subjects({ subjects: names, code }) {
    if (!names.length) return null;
    const links = (some) =>
        h(
            "ul",
            { class: "chips" },
            some.map((name) => h("li", { key: name }, subject(name, code))),
        );
    if (names.length <= SUBJECTS) return links(names);
    return h("details", {}, h("summary", {}, plural(names.length, "subject")), links(names));
}

/** A subject of a problem or an event, as a link to its page if it has one. */
export function subject(name, code = "") {
    if (/^osd\.[0-9]+$/.test(name)) return h("a", { href: `#/osds/${name.slice(4)}` }, name);
    if (/^[0-9]+\.[0-9a-f]+$/.test(name)) return h("a", { href: `#/pgs/${name}` }, name);
    if (code === "FLAGS_SET") return h("a", { href: "#/settings" }, name);
    return h("span", {}, name);
}
