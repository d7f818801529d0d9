// PGs, with filters that are part of the address.

import { at, change, get } from "../api.js";
import { ask } from "../dialog.js";
import { h } from "../dom.js";
import { osdList, pgBadge, pgOrder, pgState } from "../pg_state.js";
import { count } from "../format.js";
import { action, heading, link, osdLink, quiet } from "../parts.js";
import { goTo } from "../router.js";
import { may } from "../session.js";
import { table } from "../table.js";

// More would take long to load every few seconds.
const LIMIT = 10000;

export function title() {
    return "PGs";
}

export async function load({ query }, signal) {
    const [pgs, pools] = await Promise.all([
        get(
            "/pgs",
            { pool: query.get("pool"), osd: query.get("osd"), not_clean: query.get("not_clean"), limit: LIMIT },
            signal,
        ),
        get("/pools", {}, signal),
    ]);
    return { pgs, pools };
}

export function view({ pgs, pools }, route) {
    return [
        heading("PGs"),
        filters(pools, route.query),
        pgs.length === LIMIT ? quiet(`Only the first ${count(LIMIT)} are shown. Choose a pool or an OSD.`) : null,
        table({
            id: "pgs",
            caption: "Placement groups",
            search: "PGs",
            rows: pgs,
            key: (pg) => pg.pg,
            first: "PG",
            empty: "No PG is like that.",
            columns: [
                { label: "PG", value: (pg) => pg.pg, order: pgOrder, cell: (pg) => link(`#/pgs/${pg.pg}`, pg.pg) },
                { label: "State", value: pgState, cell: pgBadge },
                {
                    label: "Primary",
                    value: (pg) => pg.primary,
                    cell: (pg) => osdLink(pg.primary),
                },
                {
                    label: "Acting",
                    value: (pg) => pg.members.join(" "),
                    cell: (pg) => osdList(pg.members, pg.shards),
                },
                {
                    label: "Down",
                    value: (pg) => pg.members_down.join(" "),
                    cell: (pg) => osdList(pg.members_down),
                },
                { label: "Target", value: (pg) => pg.target.join(" "), cell: (pg) => osdList(pg.target) },
                { label: "Epoch", numeric: true, value: (pg) => pg.epoch },
                may("scrubPg") ? { label: "Actions", actions: true, cell: scrubActions } : null,
            ],
        }),
    ];
}

function filters(pools, query) {
    const set = (name) => (event) => {
        const { type, checked, value } = event.target;
        goTo(["pgs"], {
            ...Object.fromEntries(query),
            [name]: type === "checkbox" ? checked || "" : value.trim(),
        });
    };
    return h(
        "form",
        { class: "filters", "aria-label": "Filters", on: { submit: (event) => event.preventDefault() } },
        h("label", { for: "filter-pool" }, "Pool"),
        h(
            "select",
            { id: "filter-pool", value: query.get("pool") ?? "", on: { change: set("pool") } },
            h("option", { value: "" }, "all"),
            pools.map(({ name }) => h("option", { value: name }, name)),
        ),
        h("label", { for: "filter-osd" }, "OSD"),
        h("input", {
            id: "filter-osd",
            inputmode: "numeric",
            size: 4,
            value: query.get("osd") ?? "",
            on: { change: set("osd") },
        }),
        h(
            "span",
            { class: "truth" },
            h("input", {
                id: "filter-clean",
                type: "checkbox",
                checked: query.get("not_clean") === "true",
                on: { change: set("not_clean") },
            }),
            h("label", { for: "filter-clean" }, "Only those that are not clean"),
        ),
    );
}

/** Buttons that ask for a scrub. */
export function scrubActions({ pg }) {
    const scrub = (deep) => () =>
        ask({
            title: `${deep ? "Deep scrub" : "Scrub"} of PG ${pg}`,
            label: deep ? "Deep scrub" : "Scrub",
            text: deep
                ? "Compares all copies of its objects, reads all data, and repairs bad copies."
                : "Compares objects, versions, sizes and checksums of all copies, and repairs bad ones.",
            submit: () => change("POST", at`/pgs/${pg}/scrub`, { deep }),
            done: `The ${deep ? "deep scrub" : "scrub"} of PG ${pg} is asked for`,
        });
    return [
        action("scrubPg", "Scrub", scrub(false), { "aria-label": `Scrub PG ${pg}` }),
        action("scrubPg", "Deep scrub", scrub(true), { "aria-label": `Deep scrub of PG ${pg}` }),
    ];
}
