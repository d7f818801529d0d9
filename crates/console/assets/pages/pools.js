// Pools.

import { at, change, get } from "../api.js";
import { ask } from "../dialog.js";
import { bytes, count } from "../format.js";
import { action, heading, link, quiet } from "../parts.js";
import { address } from "../router.js";
import { may } from "../session.js";
import { table } from "../table.js";

const LEVELS = ["osd", "host", "rack", "zone"].map((level) => [level, level]);
// Found by their names: they can neither be renamed nor removed.
const FIRST = ["images", "objects"];

export function title() {
    return "Pools";
}

export function load(route, signal) {
    return get("/pools", {}, signal);
}

export function redundancy({ redundancy: { kind, ...how } }) {
    if (kind === "replicated") return `${how.size} copies`;
    return `${how.data}+${how.parity}, chunks of ${bytes(how.chunk_bytes)}`;
}

export function view(pools) {
    return [
        heading(
            "Pools",
            action("createPool", "Create replicated pool", () => askCreate(false)),
            action("createPool", "Create erasure-coded pool", () => askCreate(true)),
        ),
        table({
            id: "pools",
            caption: "Pools",
            rows: pools,
            key: (pool) => pool.id,
            first: "Number",
            columns: [
                { label: "Pool", value: (pool) => pool.name },
                { label: "Number", numeric: true, value: (pool) => pool.id },
                { label: "Redundancy", value: redundancy },
                { label: "min_size", numeric: true, value: (pool) => pool.redundancy.min_size },
                { label: "Spread over", value: (pool) => `${pool.failure_domain}s` },
                { label: "Class", value: (pool) => pool.device_class ?? "any" },
                {
                    label: "PGs",
                    numeric: true,
                    value: (pool) => pool.pg_num,
                    cell: (pool) => link(address(["pgs"], { pool: pool.name }), count(pool.pg_num)),
                },
                {
                    label: "Space factor",
                    numeric: true,
                    value: (pool) => pool.space_factor,
                    cell: (pool) => pool.space_factor.toFixed(2),
                },
                size("Stored", "stored_bytes"),
                size("Used", "used_bytes"),
                may("setPool", "removePool") ? { label: "Actions", actions: true, cell: poolActions } : null,
            ],
        }),
        quiet(
            "The space factor is how many bytes each stored byte takes on all devices together; used is what all of ",
            "it takes there. With fewer than min_size copies or shards up, I/O waits.",
        ),
    ];
}

function size(label, field) {
    return {
        label,
        numeric: true,
        value: (pool) => pool[field] ?? -1,
        cell: (pool) => (pool[field] === null ? "-" : bytes(pool[field])),
    };
}

function poolActions(pool) {
    return [
        action("setPool", "Change", () => askChange(pool), { "aria-label": `Change pool ${pool.name}` }),
        FIRST.includes(pool.name)
            ? null
            : action("removePool", "Remove", () => askRemove(pool), {
                  "aria-label": `Remove pool ${pool.name}`,
                  class: "danger",
              }),
    ];
}

function askCreate(isErasure) {
    const number = (name, label, more = {}) => ({ name, label, type: "number", ...more });
    const kind = isErasure
        ? [
              number("data", "Data shards", { value: 4, required: true, hint: "2 to 16" }),
              number("parity", "Parity shards", { value: 2, required: true, hint: "1 to 4: as many may be lost" }),
              {
                  name: "chunk_bytes",
                  label: "Chunk",
                  type: "size",
                  hint: "4K to 1M, 64K by default; S3 data needs 64K or more",
              },
          ]
        : [number("size", "Copies", { value: 3, required: true, hint: "1 to 8" })];
    ask({
        title: isErasure ? "Create an erasure-coded pool" : "Create a replicated pool",
        label: "Create",
        fields: [
            { name: "name", label: "Name", required: true, hint: "Letters, digits, '-', '_' and '.'" },
            ...kind,
            number("pg_num", "PGs", {
                value: 32,
                hint: "A power of two; about 100 copies or shards for each OSD in all pools",
            }),
            number("min_size", "min_size", { hint: "Empty: the default for this redundancy" }),
            {
                name: "failure_domain",
                label: "Spread over",
                type: "choice",
                value: "",
                options: [["", "hosts if there are enough, else OSDs"], ...LEVELS],
            },
            { name: "device_class", label: "Device class", hint: "Such as ssd or hdd; empty: any" },
        ],
        submit: ({ data, parity, chunk_bytes, ...rest }) =>
            change("POST", "/pools", isErasure ? { ...rest, erasure_code: { data, parity, chunk_bytes } } : rest),
        done: (pool) => `Pool ${pool.name} is created`,
    });
}

const CHANGES = [
    ["size", "Copies"],
    ["min_size", "min_size"],
    ["pg_num", "PGs (can only grow)"],
    ["failure_domain", "Spread over"],
    ["device_class", "Device class ('any' for all)"],
    ["name", "Name"],
];

function askChange(pool) {
    const isErasure = pool.redundancy.kind === "erasure";
    const options = CHANGES.filter(
        ([key]) => !(key === "size" && isErasure) && !(key === "name" && FIRST.includes(pool.name)),
    );
    ask({
        title: `Change pool ${pool.name}`,
        label: "Change",
        text: "One thing at a time. Data moves by itself where it must.",
        fields: [
            { name: "what", label: "What", type: "choice", options, value: options[0][0] },
            { name: "value", label: "New value", required: true },
        ],
        submit: ({ what, value }) => change("PATCH", at`/pools/${pool.name}`, { [what]: newValue(what, value) }),
        done: (changed) => `Pool ${changed.name} is changed`,
    });
}

function newValue(what, value) {
    if (what === "device_class") return value === "any" ? null : value;
    return ["size", "min_size", "pg_num"].includes(what) ? Number(value) : value;
}

function askRemove(pool) {
    ask({
        title: `Remove pool ${pool.name}`,
        label: "Remove",
        confirm: pool.name,
        warning: "Its data is destroyed. A pool with images or buckets is not removed.",
        submit: ({ confirm }) => change("POST", at`/pools/${pool.name}/remove`, { confirm }),
        done: `Pool ${pool.name} is removed`,
    });
}
