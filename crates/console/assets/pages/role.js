// One role: who may assume it, and its policies.

import { at, change, get } from "../api.js";
import { attachedTable } from "../attached.js";
import { ask } from "../dialog.js";
import { h } from "../dom.js";
import { span } from "../format.js";
import { askAttach, askRemove, detachAction, policyLink } from "../identities.js";
import { askOwnPolicy, ownPolicies } from "../own_policies.js";
import { action, facts, heading, path, section, time } from "../parts.js";
import { address, goTo } from "../router.js";

export function title({ names }) {
    return `Role ${names.role}`;
}

export async function load({ names }, signal) {
    const { account, role } = names;
    const [details, policies] = await Promise.all([
        get(at`/accounts/${account}/roles/${role}`, {}, signal),
        get(at`/accounts/${account}/policies`, {}, signal),
    ]);
    return { details, policies: policies.Policies };
}

export function view({ details, policies }, { names: { account } }) {
    const { Role, AttachedPolicies, PolicyNames } = details;
    const role = Role.RoleName;
    return [
        path(["Accounts", "#/accounts"], [account, address(["accounts", account])], [role]),
        heading(
            `Role ${role}`,
            action("attachPolicy", "Attach policy", () => askAttach(account, { role }, policies)),
            action("putRolePolicy", "Add policy of its own", () => askOwnPolicy(account, { role }, PolicyNames)),
            action("updateTrustPolicy", "Change trust policy", () =>
                askTrust(account, role, indented(Role.AssumeRolePolicyDocument)),
            ),
            action(
                "removeRole",
                "Remove",
                () =>
                    askRemove(
                        "role",
                        role,
                        at`/accounts/${account}/roles/${role}`,
                        "Its sessions end. A role with policies is not removed.",
                        () => goTo(["accounts", account]),
                    ),
                { class: "danger" },
            ),
        ),
        section(
            "Role",
            facts(
                ["ARN", h("code", {}, Role.Arn)],
                ["Description", Role.Description ?? "-"],
                ["Created", time(Role.CreateDate)],
                ["Longest session", span(Number(Role.MaxSessionDuration))],
            ),
        ),
        section(
            "Trust policy",
            h("pre", { tabindex: "0", "aria-label": "The trust policy" }, indented(Role.AssumeRolePolicyDocument)),
        ),
        section(
            "Attached policies",
            attachedTable(AttachedPolicies, {
                name: (policy) => policyLink(account, policy),
                actions: (policy) => detachAction(account, { role }, policy),
            }),
        ),
        section("Policies of its own", ownPolicies(account, { role }, PolicyNames)),
    ];
}

function askTrust(account, role, text) {
    ask({
        title: `Change the trust policy of the role ${role}`,
        label: "Change",
        text: "It applies to new sessions at once; existing ones continue.",
        fields: [
            { name: "document", label: "Trust policy (JSON)", type: "json", required: true, value: text },
        ],
        submit: (values) => change("PUT", at`/accounts/${account}/roles/${role}/trust-policy`, values),
        done: `The trust policy of the role ${role} is changed`,
    });
}

function indented(document) {
    return JSON.stringify(JSON.parse(document), null, 2);
}
