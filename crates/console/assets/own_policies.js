// Policies of a user's, group's or role's own. A holder is {user}, {group} or {role}.

import { at, change } from "./api.js";
import { ask } from "./dialog.js";
import { askRemove } from "./identities.js";
import { action, link } from "./parts.js";
import { address } from "./router.js";
import { may } from "./session.js";
import { table } from "./table.js";

const EXAMPLE = {
    Version: "2012-10-17",
    Statement: [{ Effect: "Allow", Action: ["s3:GetObject"], Resource: ["arn:aws:s3:::BUCKET/*"] }],
};

/** An example of a policy, as text. */
export function examplePolicy() {
    return JSON.stringify(EXAMPLE, null, 2);
}

/** The path of a policy in the API. */
export function ownPolicyPath(account, holder, policy) {
    const [[kind, name]] = Object.entries(holder);
    return `${at`/accounts/${account}`}/${kind}s${at`/${name}/policies/${policy}`}`;
}

export function askOwnPolicy(account, holder, names) {
    const [[kind, name]] = Object.entries(holder);
    ask({
        title: `Give ${name} a policy of its own`,
        label: "Add",
        text: `Only this ${kind} has it, and it holds at once.`,
        fields: [
            {
                name: "policy",
                label: "Name",
                required: true,
                check: (policy) =>
                    names.includes(policy) ? `${name} has a policy ${policy}. Open it to change it.` : null,
            },
            {
                name: "document",
                label: "Document (JSON)",
                type: "json",
                required: true,
                value: examplePolicy(),
            },
        ],
        submit: ({ policy, document }) => change("PUT", ownPolicyPath(account, holder, policy), { document }),
        done: (answer, { policy }) => `${name} has the policy ${policy}`,
    });
}

export function askRemoveOwn(account, holder, policy, after) {
    askRemove(
        "policy",
        policy,
        ownPolicyPath(account, holder, policy),
        "Requests that only this policy allows are refused at once.",
        after,
    );
}

/** The call that gets, puts or removes a policy of a user, group or role alone. */
export function ownPolicyCall(verb, kind) {
    return `${verb}${kind[0].toUpperCase()}${kind.slice(1)}Policy`;
}

export function ownPolicies(account, holder, names) {
    const [[kind, name]] = Object.entries(holder);
    const page = (policy) => address(["accounts", account, `${kind}s`, name, "policies", policy]);
    return table({
        id: "own",
        caption: `Policies of ${name} alone`,
        rows: names,
        key: (policy) => policy,
        empty: "There are none.",
        columns: [
            { label: "Policy", value: (policy) => policy, cell: (policy) => link(page(policy), policy) },
            may(ownPolicyCall("remove", kind))
                ? {
                      label: "Actions",
                      actions: true,
                      cell: (policy) =>
                          action(
                              ownPolicyCall("remove", kind),
                              "Remove",
                              () => askRemoveOwn(account, holder, policy),
                              { class: "danger", "aria-label": `Remove ${policy}` },
                          ),
                  }
                : null,
        ],
    });
}
