// The keys that wrap all other keys.

import { at, change, get } from "../api.js";
import { ask } from "../dialog.js";
import { h } from "../dom.js";
import { count, plural } from "../format.js";
import { action, badge, heading, quiet, time } from "../parts.js";
import { may } from "../session.js";
import { table } from "../table.js";

const KINDS = [
    ["images", "Images"],
    ["buckets", "Buckets"],
    ["users", "Users"],
    ["sts_keys", "STS keys"],
    ["nvme_secrets", "NVMe secrets"],
    ["signing_keys", "Signing keys"],
    ["second_factors", "Second factors"],
    ["oidc_secrets", "Secrets of OpenID Connect"],
];

export function title() {
    return "Encryption keys";
}

export function load(route, signal) {
    return get("/keys", {}, signal);
}

export function view(keys) {
    const rows = keys.flatMap((key) =>
        key.versions.map((version, index) => ({ key, version, isFirst: index === 0 })),
    );
    return [
        heading("Encryption keys", action("rewrapKeys", "Rewrap", askRewrap)),
        quiet(
            "These keys wrap those of images, buckets and users. A new version touches small records and no data.",
        ),
        table({
            id: "keys",
            caption: "Encryption keys and their versions",
            rows,
            key: ({ key, version }) => `${key.name} ${version.id}`,
            columns: [
                { label: "Key", value: ({ key }) => key.name },
                { label: "Service", value: ({ key }) => key.service },
                {
                    label: "Version",
                    value: ({ version }) => version.id,
                    cell: ({ version }) => h("code", {}, version.id),
                },
                {
                    label: "Use",
                    value: ({ version }) => String(version.wraps),
                    cell: ({ version }) =>
                        version.wraps ? badge("good", "wraps") : badge("note", "unwraps only"),
                },
                {
                    label: "Created",
                    value: ({ version }) => version.created_unix_ms ?? 0,
                    cell: ({ version }) => time(version.created_unix_ms),
                },
                ...KINDS.map(([name, label]) => ({
                    label,
                    numeric: true,
                    value: ({ version }) => version.has_wrapped[name],
                    cell: ({ version }) => count(version.has_wrapped[name]),
                })),
                may("rotateKey")
                    ? {
                          label: "Actions",
                          actions: true,
                          cell: ({ key, isFirst }) =>
                              isFirst
                                  ? action("rotateKey", "Rotate", () => askRotate(key), {
                                        "aria-label": `Rotate ${key.name}`,
                                    })
                                  : null,
                      }
                    : null,
            ],
        }),
    ];
}

function askRotate({ name, service }) {
    ask({
        title: `Rotate ${name}`,
        label: "Rotate",
        text: "The key gets a new version, which wraps from now on.",
        fields: [
            {
                name: "rewrap",
                label: "Rewrap keys that older versions have wrapped",
                type: "truth",
                value: true,
                hint:
                    service === "local"
                        ? "With several hosts: leave this out, copy keys/kms.json to all hosts, then use Rewrap."
                        : null,
            },
        ],
        submit: (values) => change("POST", at`/keys/${name}/rotate`, values),
        done: (answer) =>
            answer.rewrapped === undefined
                ? `${name} has a new version`
                : `${name} has a new version; ${outcome(answer)}`,
    });
}

function askRewrap() {
    ask({
        title: "Rewrap all keys",
        label: "Rewrap",
        text: "Wraps the keys of images and buckets, and users' secrets, with the newest versions of their keys.",
        submit: () => change("POST", "/keys/rewrap"),
        done: outcome,
    });
}

function outcome({ rewrapped, unchanged, failed }) {
    const bad = failed.length ? `; failed: ${failed.join(", ")}` : "";
    return `${plural(rewrapped, "record")} rewrapped, ${count(unchanged)} unchanged${bad}`;
}
