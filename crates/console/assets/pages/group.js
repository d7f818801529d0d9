// One group: its users and policies.

import { at, change, get } from "../api.js";
import { attachedTable } from "../attached.js";
import { ask } from "../dialog.js";
import { h } from "../dom.js";
import { askAttach, askRemove, detachAction, policyLink, userLink } from "../identities.js";
import { askOwnPolicy, ownPolicies } from "../own_policies.js";
import { action, facts, heading, path, section, time } from "../parts.js";
import { address, goTo } from "../router.js";
import { may } from "../session.js";
import { table } from "../table.js";

export function title({ names }) {
    return `Group ${names.group}`;
}

export async function load({ names }, signal) {
    const { account, group } = names;
    const [details, users, policies] = await Promise.all([
        get(at`/accounts/${account}/groups/${group}`, {}, signal),
        get(at`/accounts/${account}/users`, {}, signal),
        get(at`/accounts/${account}/policies`, {}, signal),
    ]);
    return { details, users: users.Users, policies: policies.Policies };
}

export function view({ details, users, policies }, { names: { account } }) {
    const { Group, Users, AttachedPolicies, PolicyNames } = details;
    const group = Group.GroupName;
    const other = users.filter(({ UserId }) => !Users.some((member) => member.UserId === UserId));
    return [
        path(["Accounts", "#/accounts"], [account, address(["accounts", account])], [group]),
        heading(
            `Group ${group}`,
            other.length ? action("addUserToGroup", "Add user", () => askUser(account, group, other)) : null,
            action("attachPolicy", "Attach policy", () => askAttach(account, { group }, policies)),
            action("putGroupPolicy", "Add policy of its own", () => askOwnPolicy(account, { group }, PolicyNames)),
            action(
                "removeGroup",
                "Remove",
                () =>
                    askRemove(
                        "group",
                        group,
                        at`/accounts/${account}/groups/${group}`,
                        "A group with users or policies is not removed.",
                        () => goTo(["accounts", account]),
                    ),
                { class: "danger" },
            ),
        ),
        section(
            "Group",
            facts(
                ["ARN", h("code", {}, Group.Arn)],
                ["Created", time(Group.CreateDate)],
            ),
        ),
        section(
            "Attached policies",
            attachedTable(AttachedPolicies, {
                name: (policy) => policyLink(account, policy),
                actions: (policy) => detachAction(account, { group }, policy),
            }),
        ),
        section("Policies of its own", ownPolicies(account, { group }, PolicyNames)),
        section(
            "Users",
            table({
                id: "members",
                caption: `Users of ${group}`,
                search: "users",
                rows: Users,
                key: (user) => user.UserId,
                first: "User",
                empty: "It has no users.",
                columns: [
                    {
                        label: "User",
                        value: (user) => user.UserName,
                        cell: (user) => userLink(account, user.UserName),
                    },
                    { label: "ARN", value: (user) => user.Arn },
                    may("removeUserFromGroup")
                        ? { label: "Actions", actions: true, cell: (user) => leave(account, group, user.UserName) }
                        : null,
                ],
            }),
        ),
    ];
}

function askUser(account, group, users) {
    ask({
        title: `Add a user to ${group}`,
        label: "Add",
        fields: [
            {
                name: "user",
                label: "User",
                type: "choice",
                value: users[0].UserName,
                options: users.map(({ UserName }) => [UserName, UserName]),
            },
        ],
        submit: ({ user }) => change("PUT", at`/accounts/${account}/groups/${group}/users/${user}`),
        done: (answer, { user }) => `${user} is in ${group}`,
    });
}

function leave(account, group, user) {
    return action(
        "removeUserFromGroup",
        "Take out",
        () =>
            ask({
                title: `Take ${user} out of ${group}`,
                label: "Take out",
                text: "Requests that only the group allows are refused at once.",
                submit: () => change("DELETE", at`/accounts/${account}/groups/${group}/users/${user}`),
                done: `${user} is not in ${group} any more`,
            }),
        { "aria-label": `Take out ${user}` },
    );
}
