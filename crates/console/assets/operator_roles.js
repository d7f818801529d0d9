// Roles of operators, and of tokens for the admin API.

const ROLES = [
    ["read-only", "Looks at everything but secrets"],
    ["storage", "Runs OSDs, pools, PGs, and images without reading them"],
    ["s3-accounts", "Manages accounts, users, policies and access keys of S3"],
    ["security", "Manages operators, sessions, keys and the protection of data"],
    ["admin", "Does all of it"],
];

export function roleFields(roles) {
    return ROLES.map(([role, hint]) => ({
        name: role,
        label: role,
        type: "truth",
        value: roles.includes(role),
        hint,
    }));
}

export function chosenRoles(values) {
    return ROLES.map(([role]) => role).filter((role) => values[role]);
}
