// Operators of the console, and their sessions.

import { at, change, get } from "../api.js";
import { apiTokens } from "../api_tokens.js";
import { ask } from "../dialog.js";
import { h } from "../dom.js";
import { chosenRoles, roleFields } from "../operator_roles.js";
import { action, heading, list, quiet, section, time } from "../parts.js";
import { tellOnce } from "../secrets.js";
import { currentSession, may } from "../session.js";
import { table } from "../table.js";

export function title() {
    return "Operators";
}

export async function load(route, signal) {
    const [operators, sessions, tokens] = await Promise.all([
        get("/operators", {}, signal),
        get("/operator-sessions", {}, signal),
        get("/api-tokens", {}, signal),
    ]);
    return { operators, sessions, tokens };
}

export function view({ operators, sessions, tokens }) {
    return [
        heading("Operators", action("createOperator", "Create operator", askCreate)),
        section(
            "Operators of the console",
            table({
                id: "operators",
                caption: "Operators",
                search: "operators",
                rows: operators,
                key: (operator) => operator.name,
                first: "Operator",
                empty: "There are none.",
                columns: [
                    { label: "Operator", value: (operator) => operator.name },
                    { label: "Roles", value: (operator) => operator.role, cell: ({ roles }) => list(roles) },
                    {
                        label: "Second factor",
                        value: (operator) => (operator.has_second_factor ? "yes" : "no"),
                    },
                    {
                        label: "Created",
                        value: (operator) => operator.created_unix_ms,
                        cell: (operator) => time(operator.created_unix_ms),
                    },
                    may("setOperator", "removeOperator")
                        ? { label: "Actions", actions: true, cell: operatorActions }
                        : null,
                ],
            }),
        ),
        sessionsSection(sessions),
        apiTokens(tokens),
    ];
}

function sessionsSection(sessions) {
    return section(
        "Sessions",
        quiet("On all hosts but those with OSDs only, whose sessions end with all of their operator."),
        h("div", { class: "actions" }, action("endAllSessions", "End all sessions", askEndAll, { class: "danger" })),
        table({
            id: "sessions",
            caption: "Sessions",
            search: "sessions",
            rows: sessions,
            key: (session) => session.id,
            empty: "There are none.",
            columns: [
                { label: "Operator", value: (session) => session.user },
                { label: "Session", value: ({ id }) => id, cell: ({ id }) => h("code", {}, id.slice(0, 12)) },
                { label: "From", value: (session) => session.address },
                { label: "Console of", value: (session) => session.host },
                { label: "Began", value: (session) => session.created_unix_ms, cell: (s) => time(s.created_unix_ms) },
                { label: "Used", value: (session) => session.used_unix_ms, cell: (s) => time(s.used_unix_ms) },
                may("endOperatorSession") ? { label: "Actions", actions: true, cell: endAction } : null,
            ],
        }),
    );
}

function operatorActions(operator) {
    const { name, has_second_factor: hasFactor } = operator;
    // Nobody changes or removes himself.
    if (name === currentSession().user) return null;
    return [
        action("setOperator", "Change roles", () => askRoles(operator), { "aria-label": `Change roles of ${name}` }),
        action("setOperator", "New password", () => askNewPassword(name), {
            "aria-label": `New password for ${name}`,
        }),
        hasFactor
            ? action("resetTotp", "Reset second factor", () => askResetTotp(name), {
                  "aria-label": `Reset the second factor of ${name}`,
              })
            : null,
        action("endAllSessions", "Log out", () => askLogOut(name), { "aria-label": `Log ${name} out` }),
        action("removeOperator", "Remove", () => askRemove(name), {
            class: "danger",
            "aria-label": `Remove ${name}`,
        }),
    ];
}

function endAction({ id, user }) {
    const isOwn = id === currentSession().id;
    return isOwn
        ? "This one"
        : action(
              "endOperatorSession",
              "End",
              () =>
                  ask({
                      title: `End a session of ${user}`,
                      label: "End",
                      text: "Its next call is refused, on all hosts.",
                      submit: () => change("POST", at`/operator-sessions/${id}/end`),
                      done: `A session of ${user} has ended`,
                  }),
              { "aria-label": `End session ${id.slice(0, 12)} of ${user}` },
          );
}

function askCreate() {
    ask({
        title: "Create an operator",
        label: "Create",
        fields: [{ name: "name", label: "Name", required: true }, ...roleFields(["read-only"])],
        submit: (values) => change("POST", "/operators", { name: values.name, roles: chosenRoles(values) }),
        after: tellPassword,
    });
}

function tellPassword({ name, password }) {
    tellOnce(`The password of ${name}`, "Password", password, ["Operator", name]);
}

function askRoles({ name, roles }) {
    ask({
        title: `Change the roles of ${name}`,
        label: "Change",
        text: `Sessions of ${name} end.`,
        fields: roleFields(roles),
        submit: (values) => change("PATCH", at`/operators/${name}`, { roles: chosenRoles(values) }),
        done: `${name} has other roles`,
    });
}

function askNewPassword(name) {
    ask({
        title: `Make a new password for ${name}`,
        label: "Make",
        text: `Sessions of ${name} end, and the old password is worthless.`,
        submit: () => change("PATCH", at`/operators/${name}`, { new_password: true }),
        after: tellPassword,
    });
}

function askResetTotp(name) {
    ask({
        title: `Take the second factor of ${name} away`,
        label: "Take away",
        confirm: name,
        warning: "Verify the identity of the requester: the password is then enough to log in.",
        submit: () => change("POST", at`/operators/${name}/totp/reset`),
        done: `${name} has no second factor any more`,
    });
}

function askLogOut(name) {
    ask({
        title: `End all sessions of ${name}`,
        label: "End",
        text: "Their next calls are refused, on all hosts.",
        submit: () => change("POST", "/operator-sessions/end", { user: name }),
        done: `All sessions of ${name} have ended`,
    });
}

function askEndAll() {
    ask({
        title: "End all sessions",
        label: "End all",
        confirm: "all",
        warning: "All operators are logged out on all hosts, and so are you.",
        submit: () => change("POST", "/operator-sessions/end", {}),
        done: "All sessions have ended",
    });
}

function askRemove(name) {
    ask({
        title: `Remove ${name}`,
        label: "Remove",
        confirm: name,
        warning: "Sessions of the operator end. Accounts and keys of S3 stay.",
        submit: ({ confirm }) => change("POST", at`/operators/${name}/remove`, { confirm }),
        done: `${name} is removed`,
    });
}
