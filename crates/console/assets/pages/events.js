// What has happened, newest first. Only what is new is asked for.

import { get } from "../api.js";
import { h } from "../dom.js";
import { subject } from "../health.js";
import { badge, heading, quiet, time, toneOf } from "../parts.js";
import { table } from "../table.js";

const LIMIT = 1000;
const KEPT = 5000;
let known = [];

export function title() {
    return "Events";
}

export async function load(route, signal) {
    const newest = known.at(-1)?.number ?? null;
    const {
        events,
        first_number: first,
        last_number: last,
    } = await get("/events", { after: newest, limit: LIMIT }, signal);
    // After a restart of its count, a server has other events.
    const isSame = newest === null || (last ?? 0) >= newest;
    if (!isSame) known = [];
    else known = [...known, ...events.filter(({ number }) => newest === null || number > newest)].slice(-KEPT);
    return { events: [...known].reverse(), first };
}

const subjects = (event) => event.subjects ?? [];
const summary = (event) => (event.cause ? `${event.summary}, because ${event.cause}` : event.summary);

export function view({ events, first }) {
    const oldest = events.at(-1)?.number;
    return [
        heading("Events"),
        table({
            id: "events",
            caption: "Events, newest first",
            search: "events",
            rows: events,
            key: (event) => event.number,
            empty: "Nothing has happened yet.",
            columns: [
                { label: "When", value: (event) => event.number, cell: (event) => time(event.unix_ms) },
                {
                    label: "Severity",
                    value: (event) => event.severity,
                    cell: (event) => badge(toneOf(event.severity), event.severity),
                },
                { label: "Event", value: summary },
                {
                    label: "Subjects",
                    value: (event) => subjects(event).join(" "),
                    cell: (event) =>
                        h(
                            "ul",
                            { class: "chips" },
                            subjects(event).map((name) => h("li", {}, subject(name, event.code))),
                        ),
                },
                { label: "By", value: (event) => event.user ?? "-" },
                { label: "Host", value: (event) => event.host ?? "-" },
                { label: "Code", value: (event) => event.code, cell: (event) => h("code", {}, event.code) },
            ],
        }),
        oldest !== undefined && oldest > (first ?? 0)
            ? quiet("Older events are kept by the server and not shown here.")
            : null,
    ];
}
