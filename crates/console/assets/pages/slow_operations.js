// Operations that took long, or still run.

import { get } from "../api.js";
import { h } from "../dom.js";
import { count, microseconds } from "../format.js";
import { badge, heading, link, osdLink, quiet, time, unansweredNote } from "../parts.js";
import { table } from "../table.js";

export function title() {
    return "Slow operations";
}

export function load(route, signal) {
    return get("/slow-operations", { limit: 1000 }, signal);
}

export function view({ slower_than_us: limit, operations, unanswered }) {
    return [
        heading("Slow operations"),
        quiet(
            `Operations that take longer than ${microseconds(limit)}, slowest first, with the reason for waiting.`,
        ),
        unansweredNote(unanswered),
        table({
            id: "slow",
            caption: "Slow operations",
            search: "operations",
            rows: operations,
            key: (one) => one.id,
            empty: "No operation was slow.",
            columns: [
                { label: "Operation", value: (one) => `${one.kind} ${one.object ?? ""}`, cell: operation },
                {
                    label: "Took",
                    numeric: true,
                    value: (one) => one.duration_us,
                    cell: (one) => microseconds(one.duration_us),
                },
                {
                    label: "State",
                    value: (one) => String(one.has_ended),
                    cell: (one) => (one.has_ended ? badge("good", "ended") : badge("warn", "still runs")),
                },
                { label: "Begun", value: (one) => one.begun_unix_ms, cell: (one) => time(one.begun_unix_ms) },
                { label: "Process", value: (one) => `${one.process} on ${one.host}` },
                { label: "Client", value: (one) => one.client },
                {
                    label: "PG",
                    value: (one) => one.pg ?? "-",
                    cell: (one) => (one.pg ? link(`#/pgs/${one.pg}`, one.pg) : "-"),
                },
                {
                    label: "Primary",
                    value: (one) => one.osd ?? -1,
                    cell: (one) => (one.osd === null ? "-" : osdLink(one.osd)),
                },
                { label: "Steps", cell: steps },
            ],
        }),
    ];
}

function operation({ kind, object, pool }) {
    return [
        h("strong", {}, kind),
        object ? [" ", h("code", {}, object)] : null,
        pool ? h("span", { class: "quiet" }, ` in ${pool}`) : null,
    ];
}

function steps({ steps: all }) {
    return h(
        "details",
        {},
        h("summary", {}, `${count(all.length)} steps`),
        h(
            "ol",
            { class: "steps" },
            all.map(({ name, after_us: after }) =>
                h("li", {}, h("span", { class: "quiet" }, microseconds(after)), " ", name),
            ),
        ),
    );
}
