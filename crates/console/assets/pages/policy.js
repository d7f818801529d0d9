// What a managed policy says.

import { at, change, get } from "../api.js";
import { ask } from "../dialog.js";
import { h } from "../dom.js";
import { askRemove } from "../identities.js";
import { action, heading, path, quiet, section } from "../parts.js";
import { address, goTo } from "../router.js";

export function title({ names }) {
    return `Policy ${names.policy}`;
}

export async function load({ names }, signal) {
    const { account, policy } = names;
    const [document, { Policies }] = await Promise.all([
        get(at`/accounts/${account}/policies/${policy}`, {}, signal),
        get(at`/accounts/${account}/policies`, {}, signal),
    ]);
    return { document, listed: Policies.find(({ PolicyName }) => PolicyName === policy) };
}

export function view({ document, listed }, { names: { account, policy } }) {
    const text = JSON.stringify(document, null, 2);
    const isFixed = listed?.Arn.startsWith("arn:aws:iam::aws:");
    const where = at`/accounts/${account}/policies/${policy}`;
    return [
        path(["Accounts", "#/accounts"], [account, address(["accounts", account])], [policy]),
        heading(
            `Policy ${policy}`,
            isFixed
                ? null
                : [
                      action("updatePolicy", "Change", () => askChange(where, policy, text)),
                      action(
                          "removePolicy",
                          "Remove",
                          () =>
                              askRemove(
                                  "policy",
                                  policy,
                                  where,
                                  "A policy that is attached to something is not removed.",
                                  () => goTo(["accounts", account]),
                              ),
                          { class: "danger" },
                      ),
                  ],
        ),
        isFixed ? quiet("This policy is always there and cannot be changed.") : null,
        listed
            ? quiet(`${listed.Arn}, version ${listed.DefaultVersionId}, attached to ${listed.AttachmentCount}`)
            : null,
        section("Document", h("pre", { tabindex: "0", "aria-label": "The policy" }, text)),
    ];
}

function askChange(where, policy, text) {
    ask({
        title: `Change the policy ${policy}`,
        label: "Change",
        text: "It applies at once to everyone who has it.",
        fields: [{ name: "document", label: "Document (JSON)", type: "json", required: true, value: text }],
        submit: (values) => change("PUT", where, values),
        done: `The policy ${policy} is changed`,
    });
}
