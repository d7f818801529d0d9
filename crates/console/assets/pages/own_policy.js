// What a policy of a user's, group's or role's own says.

import { change, get } from "../api.js";
import { ask } from "../dialog.js";
import { h } from "../dom.js";
import { askRemoveOwn, ownPolicyCall, ownPolicyPath } from "../own_policies.js";
import { action, heading, path, quiet, section } from "../parts.js";
import { address, goTo } from "../router.js";

export function title({ names }) {
    return `Policy ${names.policy}`;
}

function holderOf({ user, group, role }) {
    if (user !== undefined) return { user };
    return group === undefined ? { role } : { group };
}

export function load({ names }, signal) {
    return get(ownPolicyPath(names.account, holderOf(names), names.policy), {}, signal);
}

export function view(document, { names }) {
    const { account, policy } = names;
    const holder = holderOf(names);
    const [[kind, name]] = Object.entries(holder);
    const text = JSON.stringify(document, null, 2);
    const place = ["accounts", account, `${kind}s`, name];
    return [
        path(
            ["Accounts", "#/accounts"],
            [account, address(["accounts", account])],
            [name, address(place)],
            [policy],
        ),
        heading(
            `Policy ${policy}`,
            action(ownPolicyCall("put", kind), "Change", () => askChange(account, holder, policy, text)),
            action(
                ownPolicyCall("remove", kind),
                "Remove",
                () => askRemoveOwn(account, holder, policy, () => goTo(place)),
                { class: "danger" },
            ),
        ),
        quiet(`Only the ${kind} ${name} has this policy.`),
        section("Document", h("pre", { tabindex: "0", "aria-label": "The policy" }, text)),
    ];
}

function askChange(account, holder, policy, text) {
    const [name] = Object.values(holder);
    ask({
        title: `Change the policy ${policy} of ${name}`,
        label: "Change",
        text: "It holds at once.",
        fields: [{ name: "document", label: "Document (JSON)", type: "json", required: true, value: text }],
        submit: (values) => change("PUT", ownPolicyPath(account, holder, policy), values),
        done: `The policy ${policy} of ${name} is changed`,
    });
}
