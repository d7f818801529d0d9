// The objects of a bucket, folder by folder, page by page.

import { at, get } from "../api.js";
import { h } from "../dom.js";
import { bytes, count } from "../format.js";
import { heading, link, path, quiet, time } from "../parts.js";
import { address, goTo } from "../router.js";
import { table } from "../table.js";

// Somebody reads the list: it changes rarely, and the audit log has each time that it is loaded.
export const seconds = 60;
const LIMIT = 200;

export function title({ names }) {
    return `Bucket ${names.bucket}`;
}

export function load({ names, query }, signal) {
    return get(
        at`/buckets/${names.bucket}/objects`,
        {
            prefix: query.get("prefix"),
            delimiter: "/",
            continuation: query.get("continuation"),
            limit: LIMIT,
        },
        signal,
    );
}

export function view(objects, { names, query }) {
    const prefix = query.get("prefix") ?? "";
    const rows = [...objects.common_prefixes.map((key) => ({ key, isFolder: true })), ...objects.objects];
    return [
        path(["Buckets", "#/buckets"], ...steps(names.bucket, prefix)),
        heading(`Bucket ${names.bucket}`),
        quiet("Keys are shown, contents are not. The audit log records each look."),
        prefixField(names.bucket, prefix),
        table({
            id: "objects",
            caption: `Objects of ${names.bucket}`,
            rows,
            key: (row) => row.key,
            empty: "There are no objects whose keys begin like that.",
            columns: [
                {
                    label: "Key",
                    value: (row) => row.key,
                    cell: (row) =>
                        row.isFolder
                            ? folder(names.bucket, row.key, prefix)
                            : row.key.slice(prefix.length) || row.key,
                },
                {
                    label: "Size",
                    numeric: true,
                    value: (row) => row.size_bytes ?? -1,
                    cell: (row) => bytes(row.size_bytes),
                },
                {
                    label: "Changed",
                    value: (row) => row.modified_unix_ms ?? 0,
                    cell: (row) => time(row.modified_unix_ms),
                },
                { label: "ETag", cell: (row) => (row.etag ? h("code", {}, row.etag) : "-") },
            ],
        }),
        pages(names.bucket, prefix, query.get("continuation"), objects),
    ];
}

// A key may begin with a slash, or have two of them side by side.
function steps(bucket, prefix) {
    const parts = prefix.split("/");
    const rest = parts.pop();
    const names = [[bucket, address(["buckets", bucket])]];
    let begun = "";
    for (const part of parts) {
        begun += `${part}/`;
        names.push([part || "/", address(["buckets", bucket], { prefix: begun })]);
    }
    if (rest) names.push([rest]);
    const [last] = names.pop();
    return [...names, [last]];
}

function folder(bucket, key, prefix) {
    return link(address(["buckets", bucket], { prefix: key }), key.slice(prefix.length));
}

function prefixField(bucket, prefix) {
    const submit = (event) => {
        event.preventDefault();
        goTo(["buckets", bucket], { prefix: event.target.elements.prefix.value });
    };
    return h(
        "form",
        { class: "filters", on: { submit } },
        h("label", { for: "prefix" }, "Keys that begin with"),
        h("input", { id: "prefix", name: "prefix", value: prefix, spellcheck: "false" }),
        h("button", { type: "submit" }, "Show"),
    );
}

function pages(bucket, prefix, continuation, { objects, common_prefixes: prefixes, next_continuation: next }) {
    const to = (key, text, more) => h("a", { key, href: address(["buckets", bucket], { prefix, ...more }) }, text);
    return h(
        "p",
        { class: "pages" },
        h("span", { class: "quiet" }, `${count(objects.length + prefixes.length)} on this page. `),
        continuation ? [to("first", "First page"), " "] : null,
        next ? to("next", "Next page", { continuation: next }) : null,
        continuation && !next ? h("span", { key: "last", class: "quiet" }, "This is the last page.") : null,
    );
}
