// The header and the list of pages.

import { h, show } from "./dom.js";
import { button } from "./parts.js";
import { currentSession, may } from "./session.js";
import { themeSwitch } from "./theme_switch.js";

const GROUPS = [
    [
        "Cluster",
        [
            ["overview", "Overview"],
            ["hosts", "Hosts"],
            ["osds", "OSDs"],
            ["pools", "Pools"],
            ["pgs", "PGs"],
            ["performance", "Performance"],
        ],
    ],
    [
        "Data",
        [
            ["images", "Images"],
            ["locks", "Image locks"],
            ["trash", "Trash"],
            ["buckets", "Buckets"],
        ],
    ],
    [
        "Access",
        [
            ["accounts", "Accounts"],
            ["keys", "Encryption keys"],
            ["operators", "Operators", "listOperators"],
        ],
    ],
    [
        "Operation",
        [
            ["events", "Events"],
            ["slow-operations", "Slow operations"],
            ["settings", "Settings and flags"],
        ],
    ],
];
let isMenuOpen = false;

/** Draws both; `current` is the first part of the address, null at the log-in page. */
export function drawNavigation(current, logOut) {
    const session = currentSession();
    const toggle = () => {
        isMenuOpen = !isMenuOpen;
        drawNavigation(current, logOut);
    };
    show(
        document.getElementById("header"),
        session
            ? h(
                  "button",
                  {
                      type: "button",
                      class: "menu",
                      "aria-expanded": String(isMenuOpen),
                      "aria-controls": "navigation",
                      on: { click: toggle },
                  },
                  "Menu",
              )
            : null,
        h(
            "a",
            { class: "brand", href: "#/overview", "aria-label": "Atoll, overview" },
            h("img", { src: "favicon.svg", alt: "", width: 22, height: 22 }),
            h("span", {}, "Atoll"),
        ),
        h("div", { class: "spring" }),
        themeSwitch(),
        session
            ? [
                  h(
                      "span",
                      { class: "who" },
                      h("a", { class: "name", href: "#/own-login", title: "Your log-in" }, session.user),
                      " ",
                      h("span", { class: "quiet" }, session.role),
                  ),
                  button("Log out", logOut),
              ]
            : null,
    );
    const navigation = document.getElementById("navigation");
    navigation.hidden = !session;
    navigation.className = isMenuOpen ? "open" : "";
    show(navigation, session ? GROUPS.map(([name, pages]) => group(name, pages, current)) : null);
}

function group(name, pages, current) {
    const id = `pages-${name.toLowerCase()}`;
    return h(
        "div",
        { class: "group" },
        h("h2", { id }, name),
        h(
            "ul",
            { "aria-labelledby": id },
            pages.filter(([, , call]) => !call || may(call)).map(([part, text]) =>
                h("li", {}, h("a", { href: `#/${part}`, "aria-current": part === current ? "page" : null }, text)),
            ),
        ),
    );
}

export function closeMenu() {
    isMenuOpen = false;
}
