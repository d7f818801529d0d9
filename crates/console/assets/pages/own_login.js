// Who is logged in here, and his password.

import { change, get } from "../api.js";
import { ask } from "../dialog.js";
import { h } from "../dom.js";
import { button, facts, heading, list, section, time } from "../parts.js";
import { sessionBegan } from "../session.js";
import { askTotp } from "../totp.js";

export function title() {
    return "Your log-in";
}

export function load(route, signal) {
    return get("/session", {}, signal).then((session) => {
        sessionBegan(session);
        return session;
    });
}

export function view(session) {
    return [
        heading(
            `Operator ${session.user}`,
            session.has_second_factor ? null : button("Set up a second factor", askTotp),
            button("Change password", askPassword),
        ),
        session.needs_second_factor
            ? h(
                  "p",
                  { class: "box warn", role: "status" },
                  "Your role needs a second factor. Set it up: until then nothing else is allowed.",
              )
            : null,
        section(
            "This session",
            facts(
                ["Roles", list(session.roles)],
                ["Second factor", session.has_second_factor ? "yes" : "no"],
                ["Ends", time(session.expires_unix_ms)],
                ["Ends before, if nobody is here for", `${Math.round(session.idle_seconds / 60)} min`],
            ),
        ),
    ];
}

function askPassword() {
    ask({
        title: "Change your password",
        label: "Change",
        text: "Your other sessions end.",
        fields: [
            {
                name: "password",
                label: "Password now",
                type: "password",
                required: true,
                autocomplete: "current-password",
            },
            {
                name: "new_password",
                label: "New password",
                type: "password",
                required: true,
                autocomplete: "new-password",
                hint: "At least 12 characters",
            },
        ],
        submit: (values) => change("PUT", "/session/password", values),
        done: "Your password is changed",
    });
}
