// Secrets that the server says once.

import { tell } from "./dialog.js";
import { h } from "./dom.js";
import { say } from "./messages.js";
import { button } from "./parts.js";

/** Shows a secret, and names with values beside it, until somebody says that it is kept. */
export function tellOnce(title, secretLabel, secret, ...facts) {
    const copy = async () => {
        try {
            await navigator.clipboard.writeText(secret);
            say("The secret is copied");
        } catch {
            say("The browser did not allow that; select the secret and copy it");
        }
    };
    const shown = (id, label, value) =>
        h(
            "div",
            { class: "field" },
            h("label", { for: id }, label),
            h("input", { id, readonly: true, value }),
        );
    tell(
        title,
        [
            h("p", { class: "box warn" }, "The secret is shown only now. Keep it where it is needed."),
            facts.map(([label, value], index) => shown(`shown-${index}`, label, value)),
            shown("shown-secret", secretLabel, secret),
            h("p", {}, button("Copy the secret", copy)),
        ],
        "I have kept it",
    );
}
