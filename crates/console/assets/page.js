// Runs one page at a time: loads its data, shows it, and does so again every few seconds.
//
// A page is a module with `title(route)`, `load(route, signal)`, `view(data, route, state)` and perhaps
// `seconds`, the pause between two loads. `state` is the page's own until another page is opened.

import { now } from "./clock.js";
import { h, show } from "./dom.js";
import { errorBox } from "./messages.js";
import { relative } from "./format.js";
import { heading } from "./parts.js";

const SECONDS = 5;
let running = null;

/**
 * Opens a page. With `takesFocus` its heading gets the focus, so that a screen reader says where one is. Where
 * only the query of the address is another, such as a filter, what is shown stays until there is more.
 */
export function openPage(page, route, takesFocus) {
    const isSame = running?.page === page && running.route.parts.join("/") === route.parts.join("/");
    closePage();
    running = { page, route, state: {}, data: null, error: null, loadedMs: 0, abort: new AbortController() };
    running.focus = isSame ? "if lost" : takesFocus ? "take" : "leave";
    running.isWaiting = isSame;
    document.title = `${page.title(route)} - Atoll`;
    const main = document.getElementById("main");
    main.setAttribute("aria-busy", "true");
    if (!isSame) {
        main.replaceChildren();
        window.scrollTo(0, 0);
        draw();
    }
    return load(running);
}

export function closePage() {
    if (!running) return;
    running.abort.abort();
    clearTimeout(running.timer);
    running = null;
}

/** Shows the page again with the data that is loaded. */
export function redraw() {
    if (running && !running.isWaiting) draw();
}

/** Loads the page's data at once, after a change. */
export function refresh() {
    return running ? load(running) : Promise.resolve();
}

async function load(mine) {
    clearTimeout(mine.timer);
    const turn = (mine.turn = (mine.turn ?? 0) + 1);
    const isCurrent = () => mine === running && mine.turn === turn;
    try {
        const data = await mine.page.load(mine.route, mine.abort.signal);
        if (!isCurrent()) return;
        Object.assign(mine, { data, error: null, loadedMs: now() });
    } catch (error) {
        if (!isCurrent()) return;
        if (error.name === "TypeError") console.error(error);
        mine.error = error;
    }
    mine.isWaiting = false;
    draw();
    mine.timer = setTimeout(() => (document.hidden ? (mine.isLate = true) : load(mine)), seconds(mine) * 1000);
}

function seconds(mine) {
    return mine.page.seconds ?? SECONDS;
}

// Nothing is loaded while nobody looks.
document.addEventListener("visibilitychange", () => {
    if (document.hidden || !running?.isLate) return;
    running.isLate = false;
    load(running);
});

// Data that a page did not expect must not end its refreshes.
function viewed(page, data, route, state) {
    try {
        return page.view(data, route, state);
    } catch (error) {
        console.error(error);
        const action = "Reload the console; if this remains, report it with the output of the browser's console.";
        const box = errorBox({ message: "The console cannot show this page.", action, code: String(error) });
        return [heading(page.title(route)), box];
    }
}

// The heading is the same node before and after the data are there, so that it keeps the focus.
function draw() {
    const { page, route, state, data, error, loadedMs } = running;
    const main = document.getElementById("main");
    const content =
        data === null
            ? [heading(page.title(route)), error ? null : h("p", { class: "quiet" }, "Loading…")]
            : viewed(page, data, route, state);
    const trouble =
        error &&
        h(
            "div",
            { key: "trouble" },
            errorBox(error),
            loadedMs ? h("p", { class: "quiet" }, `This page was loaded ${relative(loadedMs)}.`) : null,
        );
    main.setAttribute("aria-busy", String(data === null && !error));
    show(main, trouble, h("div", { key: "content", class: "content" }, content));
    const isLost = document.activeElement === document.body;
    if (running.focus === "take" || (running.focus === "if lost" && isLost)) {
        main.querySelector("h1")?.focus({ preventScroll: true });
    }
    running.focus = "leave";
}
