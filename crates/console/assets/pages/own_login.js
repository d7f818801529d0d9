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
            session.has_password && !session.has_second_factor ? button("Set up a second factor", askTotp) : null,
            session.has_password ? button("Change password", () => askPassword(session.has_second_factor)) : null,
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
                ["Log-in by", session.has_password ? "password" : "OpenID Connect"],
                ["Second factor", session.has_password ? (session.has_second_factor ? "yes" : "no") : "of the provider"],
                ["Ends", time(session.expires_unix_ms)],
                ["Ends earlier after idling for", `${Math.round(session.idle_seconds / 60)} min`],
            ),
        ),
    ];
}

function askPassword(hasSecondFactor) {
    const code = {
        name: "code",
        label: "Code of the authenticator, or a recovery code",
        required: true,
        autocomplete: "one-time-code",
    };
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
            ...(hasSecondFactor ? [code] : []),
        ],
        submit: (values) => change("PUT", "/session/password", values),
        done: "Your password is changed",
    });
}
