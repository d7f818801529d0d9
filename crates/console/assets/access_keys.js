// Access keys of a user or of an account's root.

import { at, change } from "./api.js";
import { ask, tell } from "./dialog.js";
import { h } from "./dom.js";
import { say } from "./messages.js";
import { action, badge, button, time } from "./parts.js";
import { may } from "./session.js";
import { table } from "./table.js";

export function accessKeys(account, keys, owner) {
    return table({
        id: "access-keys",
        caption: `Access keys of ${owner}`,
        rows: keys,
        key: (key) => key.AccessKeyId,
        empty: "There are none.",
        columns: [
            {
                label: "Access key",
                value: (key) => key.AccessKeyId,
                cell: (key) => h("code", {}, key.AccessKeyId),
            },
            {
                label: "State",
                value: (key) => key.Status,
                cell: (key) => (key.Status === "Active" ? badge("good", "active") : badge("note", "disabled")),
            },
            { label: "Created", value: (key) => key.CreateDate, cell: (key) => time(key.CreateDate) },
            may("disableAccessKey", "enableAccessKey", "removeAccessKey") ? { label: "Actions", actions: true, cell: (key) => keyActions(account, key) } : null,
        ],
    });
}

function keyActions(account, { AccessKeyId: id, Status: status }) {
    const isActive = status === "Active";
    const verb = isActive ? "Disable" : "Enable";
    return [
        action(
            isActive ? "disableAccessKey" : "enableAccessKey",
            verb,
            () =>
                ask({
                    title: `${verb} access key ${id}`,
                    label: verb,
                    text: isActive
                        ? "Every gateway refuses requests that are signed with it, within a second."
                        : "Requests that are signed with it are let in again.",
                    submit: () =>
                        change(
                            "POST",
                            isActive
                                ? at`/accounts/${account}/access-keys/${id}/disable`
                                : at`/accounts/${account}/access-keys/${id}/enable`,
                        ),
                    done: `Access key ${id} is ${isActive ? "disabled" : "enabled"}`,
                }),
            { "aria-label": `${verb} ${id}` },
        ),
        action(
            "removeAccessKey",
            "Remove",
            () =>
                ask({
                    title: `Remove access key ${id}`,
                    label: "Remove",
                    confirm: id,
                    warning: "Requests that are signed with it are refused for good.",
                    submit: ({ confirm }) =>
                        change("POST", at`/accounts/${account}/access-keys/${id}/remove`, { confirm }),
                    done: `Access key ${id} is removed`,
                }),
            { "aria-label": `Remove ${id}`, class: "danger" },
        ),
    ];
}

/** Makes a key of a user, or without one of the account's root, and shows its secret once. */
export function askCreateKey(account, user = undefined) {
    ask({
        title: user ? `Create an access key of ${user}` : "Create an access key of the root",
        label: "Create",
        warning: user ? null : "A root key may do everything in the account. Programs should not sign with it.",
        fields: [
            { name: "description", label: "Description", hint: "For people" },
            {
                name: "policy",
                label: "Policy that narrows it (JSON)",
                type: "json",
                hint: "Empty: all rights of its owner",
            },
        ],
        submit: (values) => change("POST", at`/accounts/${account}/access-keys`, { ...values, user }),
        after: ({ AccessKey }) => tellSecret(AccessKey),
    });
}

/** Shows a secret, which the server does not say again. */
export function tellSecret({ AccessKeyId: id, SecretAccessKey: secret }) {
    const copy = async () => {
        try {
            await navigator.clipboard.writeText(secret);
            say("The secret is copied");
        } catch {
            say("The browser did not allow that; select the secret and copy it");
        }
    };
    tell(
        "The new access key",
        [
            h("p", { class: "box warn" }, "The secret is shown only now. Keep it where the program finds it."),
            h(
                "div",
                { class: "field" },
                h("label", { for: "shown-key" }, "Access key"),
                h("input", { id: "shown-key", readonly: true, value: id }),
            ),
            h(
                "div",
                { class: "field" },
                h("label", { for: "shown-secret" }, "Secret"),
                h("input", { id: "shown-secret", readonly: true, value: secret }),
            ),
            h("p", {}, button("Copy the secret", copy)),
        ],
        "I have kept it",
    );
}
