// Accounts, which own buckets.

import { change, get } from "../api.js";
import { tellSecret } from "../access_keys.js";
import { ask } from "../dialog.js";
import { h } from "../dom.js";
import { action, heading, link, quiet, time } from "../parts.js";
import { address } from "../router.js";
import { table } from "../table.js";

export function title() {
    return "Accounts";
}

export function load(route, signal) {
    return get("/accounts", {}, signal);
}

export function view({ Accounts }) {
    return [
        heading("Accounts", action("createAccount", "Create account", askCreate)),
        quiet("An account owns buckets. Its root may do everything in it; its users have the rights that policies grant."),
        table({
            id: "accounts",
            caption: "Accounts",
            search: "accounts",
            rows: Accounts,
            key: (account) => account.Id,
            first: "Account",
            columns: [
                {
                    label: "Account",
                    value: (account) => account.Name,
                    cell: (account) => link(address(["accounts", account.Id]), account.Name),
                },
                { label: "Number", value: (account) => account.Id },
                { label: "Address", value: (account) => account.Email ?? "-" },
                {
                    label: "Canonical id",
                    value: (account) => account.CanonicalId,
                    cell: (account) => h("code", {}, account.CanonicalId),
                },
                {
                    label: "Created",
                    value: (account) => account.CreateDate,
                    cell: (account) => time(account.CreateDate),
                },
            ],
        }),
    ];
}

function askCreate() {
    ask({
        title: "Create an account",
        label: "Create",
        text: "It gets an access key for its root, whose secret is shown once.",
        fields: [
            { name: "name", label: "Name", required: true },
            { name: "email", label: "Address", hint: "By which ACLs may name it; may be left out" },
        ],
        submit: (values) => change("POST", "/accounts", values),
        done: ({ Account }) => `Account ${Account.Name} is created`,
        after: ({ AccessKey }) => tellSecret(AccessKey),
    });
}
