// Tokens with which programs call the admin API.

import { at, change } from "./api.js";
import { ask } from "./dialog.js";
import { h } from "./dom.js";
import { chosenRoles, roleFields } from "./operator_roles.js";
import { action, badge, list, quiet, section, time } from "./parts.js";
import { tellOnce } from "./secrets.js";
import { may } from "./session.js";
import { table } from "./table.js";

const DAY_SECONDS = 86400;

export function apiTokens(tokens) {
    return section(
        "API tokens",
        quiet("Programs call the admin API with them. No token makes operators or tokens."),
        h("div", { class: "actions" }, action("createApiToken", "Create token", askCreate)),
        table({
            id: "api-tokens",
            caption: "API tokens",
            search: "tokens",
            rows: tokens,
            key: (token) => token.name,
            first: "Token",
            empty: "There are none.",
            columns: [
                { label: "Token", value: (token) => token.name },
                {
                    label: "May",
                    value: ({ roles, calls }) => [...roles, ...calls].join(" "),
                    cell: ({ roles, calls }) => list([...roles, ...calls]),
                },
                { label: "Made by", value: (token) => token.maker ?? "a host" },
                {
                    label: "Counts until",
                    value: (token) => token.expires_unix_ms,
                    cell: (token) => (token.is_live ? time(token.expires_unix_ms) : badge("note", "worthless")),
                },
                {
                    label: "Used",
                    value: (token) => token.used_unix_ms ?? 0,
                    cell: (token) => (token.used_unix_ms ? time(token.used_unix_ms) : "never"),
                },
                { label: "From", value: (token) => token.used_address ?? "-" },
                may("revokeApiToken") ? { label: "Actions", actions: true, cell: revokeAction } : null,
            ],
        }),
    );
}

function askCreate() {
    ask({
        title: "Create an API token",
        label: "Create",
        fields: [
            { name: "name", label: "Name", required: true, hint: "Such as the program that uses it" },
            { name: "days", label: "Days", type: "number", hint: "Empty: as long as a token may last" },
            ...roleFields(["read-only"]),
        ],
        submit: (values) => {
            const body = { name: values.name, roles: chosenRoles(values) };
            if (values.days !== undefined) body.expires_seconds = Math.round(values.days * DAY_SECONDS);
            return change("POST", "/api-tokens", body);
        },
        after: ({ name, token }) => tellOnce("The new API token", "Token", token, ["Name", name]),
    });
}

function revokeAction({ name }) {
    return action(
        "revokeApiToken",
        "Revoke",
        () =>
            ask({
                title: `Revoke the token ${name}`,
                label: "Revoke",
                text: "Its next call is refused, on all hosts.",
                submit: () => change("POST", at`/api-tokens/${name}/revoke`),
                done: `The token ${name} is revoked`,
            }),
        { class: "danger", "aria-label": `Revoke ${name}` },
    );
}
