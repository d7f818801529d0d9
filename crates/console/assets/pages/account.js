// One account: its users, groups, roles, policies and root keys.

import { accessKeys, askCreateKey } from "../access_keys.js";
import { ApiError, at, change, get } from "../api.js";
import { ask } from "../dialog.js";
import { h } from "../dom.js";
import { askNew, askRemove, groupLink, policyLink, roleLink, userLink } from "../identities.js";
import { examplePolicy } from "../own_policies.js";
import { action, facts, heading, path, section, time } from "../parts.js";
import { goTo } from "../router.js";
import { table } from "../table.js";

const trustPolicy = (account) => ({
    Version: "2012-10-17",
    Statement: [
        {
            Effect: "Allow",
            Action: "sts:AssumeRole",
            Principal: { AWS: `arn:aws:iam::${account}:user/USER` },
        },
    ],
});

export function title({ names }) {
    return `Account ${names.account}`;
}

export async function load({ names }, signal) {
    const { account } = names;
    const { Accounts } = await get("/accounts", {}, signal);
    const found = Accounts.find(({ Id, Name }) => Id === account || Name === account);
    if (!found)
        throw new ApiError(404, "NOT_FOUND", `There is no account ${account}.`, "See the list of accounts.");
    const [users, groups, roles, policies, keys] = await Promise.all([
        get(at`/accounts/${account}/users`, {}, signal),
        get(at`/accounts/${account}/groups`, {}, signal),
        get(at`/accounts/${account}/roles`, {}, signal),
        get(at`/accounts/${account}/policies`, {}, signal),
        get(at`/accounts/${account}/access-keys`, {}, signal),
    ]);
    return {
        account: found,
        users: users.Users,
        groups: groups.Groups,
        roles: roles.Roles,
        policies: policies.Policies,
        keys: keys.AccessKeyMetadata,
    };
}

export function view({ account, users, groups, roles, policies, keys }) {
    const { Id: id, Name: name } = account;
    const created = { label: "Created", value: (one) => one.CreateDate, cell: (one) => time(one.CreateDate) };
    const arn = { label: "ARN", value: (one) => one.Arn, cell: (one) => h("code", {}, one.Arn) };
    const bar = (...actions) => h("div", { class: "actions" }, actions);
    return [
        path(["Accounts", "#/accounts"], [name]),
        heading(
            `Account ${name}`,
            action("setAccount", "Change", () => askChange(account)),
            action("removeAccount", "Remove", () => removeAccount(account), {
                class: "danger",
            }),
        ),
        facts(["Number", id], ["Address", account.Email ?? "-"], ["Created", time(account.CreateDate)]),
        section(
            "Users",
            bar(
                action("createUser", "Create user", () =>
                    askNew(id, "user", "A user may do nothing until a policy allows it."),
                ),
            ),
            table({
                id: "users",
                caption: "Users",
                search: "users",
                rows: users,
                key: (user) => user.UserId,
                first: "User",
                empty: "There are no users.",
                columns: [
                    { label: "User", value: (user) => user.UserName, cell: (user) => userLink(id, user.UserName) },
                    arn,
                    created,
                ],
            }),
        ),
        section(
            "Groups",
            bar(
                action("createGroup", "Create group", () =>
                    askNew(id, "group", "Its policies apply to all its users."),
                ),
            ),
            table({
                id: "groups",
                caption: "Groups",
                search: "groups",
                rows: groups,
                key: (group) => group.GroupId,
                first: "Group",
                empty: "There are no groups.",
                columns: [
                    {
                        label: "Group",
                        value: (group) => group.GroupName,
                        cell: (group) => groupLink(id, group.GroupName),
                    },
                    arn,
                    created,
                ],
            }),
        ),
        section(
            "Roles",
            bar(action("createRole", "Create role", () => askRole(id))),
            table({
                id: "roles",
                caption: "Roles",
                search: "roles",
                rows: roles,
                key: (role) => role.RoleId,
                first: "Role",
                empty: "There are no roles.",
                columns: [
                    { label: "Role", value: (role) => role.RoleName, cell: (role) => roleLink(id, role.RoleName) },
                    { label: "Description", value: (role) => role.Description ?? "-" },
                    arn,
                    created,
                ],
            }),
        ),
        section(
            "Policies",
            bar(action("createPolicy", "Create policy", () => askPolicy(id))),
            table({
                id: "policies",
                caption: "Policies",
                search: "policies",
                rows: policies,
                key: (policy) => policy.Arn,
                first: "Policy",
                columns: [
                    {
                        label: "Policy",
                        value: (policy) => policy.PolicyName,
                        cell: (policy) => policyLink(id, policy.PolicyName),
                    },
                    { label: "Attached to", numeric: true, value: (policy) => Number(policy.AttachmentCount) },
                    { label: "Version", value: (policy) => policy.DefaultVersionId },
                    arn,
                    {
                        label: "Changed",
                        value: (policy) => policy.UpdateDate,
                        cell: (policy) => time(policy.UpdateDate),
                    },
                ],
            }),
        ),
        section(
            "Access keys of the root",
            bar(action("createAccessKey", "Create root key", () => askCreateKey(id))),
            accessKeys(id, keys, `the root of ${name}`),
        ),
    ];
}

function askChange(account) {
    ask({
        title: `Change account ${account.Name}`,
        label: "Change",
        fields: [
            { name: "name", label: "Name", value: account.Name, required: true },
            { name: "email", label: "Address", value: account.Email ?? "" },
        ],
        submit: (values) => change("PATCH", at`/accounts/${account.Id}`, values),
        done: ({ Account }) => `Account ${Account.Name} is changed`,
    });
}

function removeAccount({ Id: id, Name: name }) {
    askRemove("account", name, at`/accounts/${id}`, "An account with users, keys or buckets is not removed.", () =>
        goTo(["accounts"]),
    );
}

function askRole(account) {
    ask({
        title: "Create a role",
        label: "Create",
        text: "A session of the role has the rights of its policies while it lasts.",
        fields: [
            { name: "name", label: "Name", required: true },
            { name: "description", label: "Description" },
            {
                name: "document",
                label: "Trust policy (JSON)",
                type: "json",
                required: true,
                value: JSON.stringify(trustPolicy(account), null, 2),
            },
        ],
        submit: (values) => change("POST", at`/accounts/${account}/roles`, values),
        done: (answer, { name }) => `The role ${name} is created`,
    });
}

function askPolicy(account) {
    ask({
        title: "Create a policy",
        label: "Create",
        fields: [
            { name: "name", label: "Name", required: true },
            {
                name: "document",
                label: "Document (JSON)",
                type: "json",
                required: true,
                value: examplePolicy(),
            },
        ],
        submit: (values) => change("POST", at`/accounts/${account}/policies`, values),
        done: (answer, { name }) => `The policy ${name} is created`,
    });
}
