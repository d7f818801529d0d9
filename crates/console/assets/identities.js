// What the pages of accounts, users, groups, roles and policies share.

import { at, change } from "./api.js";
import { ask } from "./dialog.js";
import { action, link } from "./parts.js";
import { address } from "./router.js";

/** Asks for the name of something new, such as a user. */
export function askNew(account, kind, text) {
    ask({
        title: `Create a ${kind}`,
        label: "Create",
        text,
        fields: [{ name: "name", label: "Name", required: true }],
        submit: (values) => change("POST", at`/accounts/${account}/${kind}s`, values),
        done: (answer, { name }) => `The ${kind} ${name} is created`,
    });
}

/** Asks whether a user, group, role or policy shall be removed; `path` is its path, `after` where to go then. */
export function askRemove(kind, name, path, text, after) {
    ask({
        title: `Remove the ${kind} ${name}`,
        label: "Remove",
        confirm: name,
        warning: text,
        submit: ({ confirm }) => change("POST", `${path}/remove`, { confirm }),
        done: `The ${kind} ${name} is removed`,
        after,
    });
}

/** Gives a user, group or role a policy; `holder` is {user}, {group} or {role}. */
export function askAttach(account, holder, policies) {
    const [name] = Object.values(holder);
    ask({
        title: `Attach a policy to ${name}`,
        label: "Attach",
        text: "Its permissions apply at once.",
        fields: [
            {
                name: "policy",
                label: "Policy",
                type: "choice",
                value: policies[0]?.PolicyName,
                options: policies.map(({ PolicyName }) => [PolicyName, PolicyName]),
            },
        ],
        submit: ({ policy }) => change("POST", at`/accounts/${account}/policies/${policy}/attach`, holder),
        done: (answer, { policy }) => `${policy} is attached to ${name}`,
    });
}

export function detachAction(account, holder, policy) {
    const [name] = Object.values(holder);
    return action(
        "detachPolicy",
        "Detach",
        () =>
            ask({
                title: `Detach ${policy} from ${name}`,
                label: "Detach",
                text: "Requests that only this policy allows are refused at once.",
                submit: () => change("POST", at`/accounts/${account}/policies/${policy}/detach`, holder),
                done: `${policy} is detached from ${name}`,
            }),
        { "aria-label": `Detach ${policy}` },
    );
}

export function policyLink(account, name) {
    return link(address(["accounts", account, "policies", name]), name);
}

export function groupLink(account, name) {
    return link(address(["accounts", account, "groups", name]), name);
}

export function roleLink(account, name) {
    return link(address(["accounts", account, "roles", name]), name);
}

export function userLink(account, name) {
    return link(address(["accounts", account, "users", name]), name);
}
