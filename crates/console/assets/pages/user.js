// One user: groups, policies and access keys.

import { accessKeys, askCreateKey } from "../access_keys.js";
import { at, change, get } from "../api.js";
import { ask } from "../dialog.js";
import { h } from "../dom.js";
import { askAttach, askRemove, detachAction, groupLink, policyLink } from "../identities.js";
import { askOwnPolicy, ownPolicies } from "../own_policies.js";
import { action, facts, heading, list, path, quiet, section, time } from "../parts.js";
import { address, goTo } from "../router.js";
import { attachedTable } from "../attached.js";

export function title({ names }) {
    return `User ${names.user}`;
}

export async function load({ names }, signal) {
    const { account, user } = names;
    const [details, groups, policies] = await Promise.all([
        get(at`/accounts/${account}/users/${user}`, {}, signal),
        get(at`/accounts/${account}/groups`, {}, signal),
        get(at`/accounts/${account}/policies`, {}, signal),
    ]);
    return { details, groups: groups.Groups, policies: policies.Policies };
}

export function view({ details, groups, policies }, { names: { account } }) {
    const { User, Groups, AttachedPolicies, PolicyNames, AccessKeyMetadata } = details;
    const user = User.UserName;
    const other = groups.filter(({ GroupName }) => !Groups.some((group) => group.GroupName === GroupName));
    return [
        path(["Accounts", "#/accounts"], [account, address(["accounts", account])], [user]),
        heading(
            `User ${user}`,
            other.length ? action("addUserToGroup", "Add to group", () => askGroup(account, user, other)) : null,
            action("attachPolicy", "Attach policy", () => askAttach(account, { user }, policies)),
            action("putUserPolicy", "Add policy of its own", () => askOwnPolicy(account, { user }, PolicyNames)),
            action("createAccessKey", "Create access key", () => askCreateKey(account, user)),
            action(
                "removeUser",
                "Remove",
                () =>
                    askRemove(
                        "user",
                        user,
                        at`/accounts/${account}/users/${user}`,
                        "A user with keys, groups or policies is not removed.",
                        () => goTo(["accounts", account]),
                    ),
                { class: "danger" },
            ),
        ),
        section(
            "User",
            facts(
                ["ARN", h("code", {}, User.Arn)],
                ["Created", time(User.CreateDate)],
                ["Groups", list(Groups.map((group) => groupLink(account, group.GroupName)))],
            ),
        ),
        section(
            "Attached policies",
            attachedTable(AttachedPolicies, {
                name: (policy) => policyLink(account, policy),
                actions: (policy) => detachAction(account, { user }, policy),
            }),
        ),
        section("Policies of its own", ownPolicies(account, { user }, PolicyNames)),
        section(
            "Access keys",
            accessKeys(account, AccessKeyMetadata, user),
            quiet("To give a program less than the user may do, create a key with a policy that narrows it."),
        ),
    ];
}

function askGroup(account, user, groups) {
    ask({
        title: `Add ${user} to a group`,
        label: "Add",
        fields: [
            {
                name: "group",
                label: "Group",
                type: "choice",
                value: groups[0].GroupName,
                options: groups.map(({ GroupName }) => [GroupName, GroupName]),
            },
        ],
        submit: ({ group }) => change("PUT", at`/accounts/${account}/groups/${group}/users/${user}`),
        done: (answer, { group }) => `${user} is in ${group}`,
    });
}
