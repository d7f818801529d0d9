// The choice between the system's colours, light and dark.

import { h } from "./dom.js";

const CHOICES = [
    ["", "System colours"],
    ["light", "Light"],
    ["dark", "Dark"],
];

export function themeSwitch() {
    return h(
        "label",
        { class: "theme" },
        h("span", { class: "hidden" }, "Colours"),
        h(
            "select",
            { id: "theme", value: document.documentElement.dataset.theme ?? "", on: { change: choose } },
            CHOICES.map(([value, text]) => h("option", { value }, text)),
        ),
    );
}

function choose(event) {
    const { value } = event.target;
    if (value) document.documentElement.dataset.theme = value;
    else delete document.documentElement.dataset.theme;
    try {
        if (value) localStorage.setItem("atoll-colours", value);
        else localStorage.removeItem("atoll-colours");
    } catch {
        // Without storage the choice lasts as long as the page.
    }
}
