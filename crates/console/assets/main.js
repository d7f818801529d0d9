// Starts the console: asks who is logged in, and opens the page that the address names.

import { change, get } from "./api.js";
import { closeDialog } from "./dialog.js";
import { errorBox, say } from "./messages.js";
import { h, show } from "./dom.js";
import { showLogin } from "./login.js";
import { closeMenu, drawNavigation } from "./navigation.js";
import { closePage, openPage } from "./page.js";
import { findRoute, parseAddress } from "./router.js";
import { ROUTES } from "./routes.js";
import { currentSession, forgetSession, mayHaveSession, onSessionEnd, sessionBegan, takeLeftAt } from "./session.js";

const RETRY_MS = 3000;
let isFirst = true;

function openAddress() {
    if (!currentSession()) return;
    const found = parseAddress(location.hash);
    if (!found.parts.length) found.parts = ["overview"];
    if (currentSession().needs_second_factor) found.parts = ["own-login"];
    const route = findRoute(ROUTES, found);
    closeDialog();
    closeMenu();
    drawNavigation(found.parts[0], logOut);
    if (route) openPage(route.page, route, !isFirst);
    else showMissing();
    isFirst = false;
}

function showMissing() {
    closePage();
    document.title = "Not found - Atoll";
    show(
        document.getElementById("main"),
        h(
            "div",
            { class: "content" },
            h("h1", { tabindex: "-1" }, "There is no such page"),
            h(
                "p",
                {},
                "The address may have been cut off. ",
                h("a", { href: "#/overview" }, "Go to the overview"),
            ),
        ),
    );
}

function begin(session) {
    sessionBegan(session);
    openAddress();
}

function logIn(hasEnded) {
    closePage();
    closeDialog();
    drawNavigation(null, logOut);
    isFirst = false;
    showLogin(begin, hasEnded);
}

async function logOut() {
    try {
        await change("DELETE", "/session");
    } catch (error) {
        if (error.status !== 401) {
            say(`${error.message} ${error.action}`);
            return;
        }
    }
    forgetSession();
    logIn(false);
}

async function start() {
    const leftAt = takeLeftAt();
    if (leftAt) history.replaceState(null, "", leftAt);
    if (!leftAt && !mayHaveSession()) {
        logIn(false);
        return;
    }
    try {
        begin(await get("/session"));
    } catch (error) {
        if (error.status === 401) {
            forgetSession();
            logIn(!leftAt);
            return;
        }
        drawNavigation(null, logOut);
        show(document.getElementById("main"), h("h1", {}, "Atoll"), errorBox(error));
        setTimeout(start, RETRY_MS);
    }
}

document.getElementById("skip").addEventListener("click", (event) => {
    // The address names the page, so a fragment of it cannot name a place in the page.
    event.preventDefault();
    document.getElementById("main").focus();
});
window.addEventListener("hashchange", openAddress);
onSessionEnd(() => logIn(true));
start();
