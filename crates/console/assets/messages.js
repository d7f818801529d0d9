// What is said to people: errors where they happen, and short messages that screen readers read out.

import { h, show } from "./dom.js";
import { icon } from "./parts.js";

const SHOWN_MS = 10000;
let messages = [];
let last = 0;

/** What went wrong, why, and what to do. */
export function errorBox(error) {
    return h(
        "div",
        { class: "box bad", role: "alert" },
        icon("bad"),
        h(
            "div",
            {},
            h("strong", {}, error.message),
            error.action ? h("p", {}, error.action) : null,
            error.code ? h("p", { class: "quiet small" }, error.code) : null,
        ),
    );
}

/** Says that something was done. */
export function say(text) {
    const message = { number: ++last, text };
    messages = [...messages.slice(-2), message];
    draw();
    setTimeout(() => dismiss(message), SHOWN_MS);
}

function dismiss(message) {
    messages = messages.filter((other) => other !== message);
    draw();
}

function draw() {
    const close = (message) =>
        h(
            "button",
            {
                type: "button",
                class: "plain",
                "aria-label": "Close message",
                on: { click: () => dismiss(message) },
            },
            "×",
        );
    show(
        document.getElementById("messages"),
        messages.map((message) =>
            h(
                "div",
                { key: message.number, class: "message" },
                icon("good"),
                h("span", {}, message.text),
                close(message),
            ),
        ),
    );
}
