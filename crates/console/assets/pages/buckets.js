// Buckets.

import { at, change, get, getAll } from "../api.js";
import { ask } from "../dialog.js";
import { action, badge, heading, link, quiet, time } from "../parts.js";
import { address } from "../router.js";
import { may } from "../session.js";
import { table } from "../table.js";

export function title() {
    return "Buckets";
}

export async function load(route, signal) {
    const [buckets, pools] = await Promise.all([
        getAll("/buckets", {}, "name", signal),
        get("/pools", {}, signal),
    ]);
    return { buckets, pools: new Map(pools.map(({ id, name }) => [id, name])) };
}

export function view({ buckets, pools }) {
    const poolName = (id) => pools.get(id) ?? `pool ${id}`;
    return [
        heading("Buckets"),
        quiet("S3 clients make and remove buckets."),
        table({
            id: "buckets",
            caption: "Buckets",
            search: "buckets",
            rows: buckets,
            key: (bucket) => bucket.id,
            first: "Bucket",
            empty: "There are no buckets yet.",
            columns: [
                {
                    label: "Bucket",
                    value: (bucket) => bucket.name,
                    cell: (bucket) => link(address(["buckets", bucket.name]), bucket.name),
                },
                { label: "Owner", value: (bucket) => bucket.owner_name ?? bucket.owner },
                { label: "New objects", value: sealing, cell: sealingBadge },
                { label: "Index", value: (bucket) => poolName(bucket.pool) },
                { label: "Data", value: (bucket) => poolName(bucket.data_pool) },
                { label: "Default encryption", value: encryption },
                {
                    label: "Created",
                    value: (bucket) => bucket.created_unix_ms,
                    cell: (bucket) => time(bucket.created_unix_ms),
                },
                may("setBucket") ? { label: "Actions", actions: true, cell: sealingAction } : null,
            ],
        }),
    ];
}

function sealing({ new_objects_sealed: sealed }) {
    return sealed ? "sealed" : "in clear";
}

export function sealingBadge(bucket) {
    return badge(bucket.new_objects_sealed ? "good" : "warn", sealing(bucket));
}

function encryption({ default_encryption: set }) {
    if (!set) return "-";
    const kind = set.is_kms ? "SSE-KMS" : "SSE-S3";
    return set.key_name ? `${kind}, key ${set.key_name}` : kind;
}

/** The button that turns sealing on or off. */
export function sealingAction(bucket) {
    const { name, new_objects_sealed: sealed } = bucket;
    const text = sealed ? "Stop sealing" : "Seal new objects";
    return action(
        "setBucket",
        text,
        () =>
            ask({
                title: `${text}: ${name}`,
                label: text,
                text: "Gateways follow within 2 s. Objects that are there stay as they are.",
                warning: sealed
                    ? "The holder of a device, or root on its host, can then read new objects and change them unnoticed."
                    : null,
                submit: () => change("PATCH", at`/buckets/${name}`, { new_objects_sealed: !sealed }),
                done: `New objects in ${name} are ${sealed ? "not sealed" : "sealed"}`,
            }),
        { "aria-label": `${text}: ${name}` },
    );
}
