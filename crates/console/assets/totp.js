// Setting up one's own second factor: the password, a QR code, a code of it, and recovery codes.

import { change } from "./api.js";
import { ask, tell } from "./dialog.js";
import { h } from "./dom.js";
import { refresh } from "./page.js";

export function askTotp() {
    ask({
        title: "Set up a second factor",
        label: "Continue",
        text: "An authenticator on another device makes a code for each log-in.",
        fields: [
            {
                name: "password",
                label: "Password",
                type: "password",
                required: true,
                autocomplete: "current-password",
            },
        ],
        submit: (values) => change("POST", "/session/totp", values),
        after: askCode,
    });
}

function askCode({ secret, qr_rows: rows }) {
    ask({
        title: "Confirm the second factor",
        label: "Confirm",
        text: [
            h("span", {}, "Scan this with the authenticator, or type the secret, then give the code that it shows."),
            picture(rows),
            h("code", { id: "totp-secret" }, secret),
        ],
        fields: [{ name: "code", label: "Code", required: true, autocomplete: "one-time-code" }],
        submit: (values) => change("POST", "/session/totp/confirm", values),
        after: tellCodes,
    });
}

/** Dark on light, whatever the colours of the page: readers want that. */
function picture(rows) {
    const dark = rows.flatMap((row, y) => [...row].flatMap((one, x) => (one === "1" ? [`M${x} ${y}h1v1h-1z`] : [])));
    return h(
        "svg",
        {
            class: "qr",
            viewBox: `0 0 ${rows.length} ${rows.length}`,
            role: "img",
            "aria-label": "QR code of the secret",
        },
        h("rect", { width: rows.length, height: rows.length, fill: "#fff" }),
        h("path", { d: dark.join(""), fill: "#000" }),
    );
}

function tellCodes({ recovery_codes: codes }) {
    tell(
        "Recovery codes",
        [
            h("p", { class: "box warn" }, "Each is good for one log-in without the authenticator. Shown only now."),
            h("pre", { id: "recovery-codes", tabindex: "0", "aria-label": "Recovery codes" }, codes.join("\n")),
        ],
        "I have kept them",
    );
    refresh();
}
