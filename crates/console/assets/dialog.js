// Dialogs that ask before something is changed. One is open at a time; the focus goes back to where it was.

import { h, show } from "./dom.js";
import { readFields, fieldsOf } from "./fields.js";
import { errorBox, say } from "./messages.js";
import { refresh } from "./page.js";

let isOpen = null;

/**
 * Asks. `fields` are inputs (fields.js); with `confirm` its text must be typed; `submit(values)` does it, and what
 * it throws is shown in the dialog. `done(answer, values)` is the text shown then; `after(answer)` runs next.
 */
export function ask({ title, text, warning, fields = [], confirm = null, label, submit, done, after = null }) {
    closeDialog();
    const opener = document.activeElement;
    const dialog = document.createElement("dialog");
    const all = confirm === null ? fields : [...fields, confirmField(confirm)];
    const state = { error: null, isBusy: false };
    const draw = () => show(dialog, form({ title, text, warning, all, confirm, label, state, dialog, onSubmit }));
    const onSubmit = async (event) => {
        event.preventDefault();
        if (state.isBusy) return;
        Object.assign(state, { isBusy: true, error: null });
        draw();
        try {
            const values = readFields(event.target, all);
            const answer = await submit(values);
            if (done) say(typeof done === "function" ? done(answer, values) : done);
            dialog.close();
            const place = location.hash;
            after?.(answer, values);
            if (location.hash === place) refresh();
        } catch (error) {
            Object.assign(state, { isBusy: false, error });
            draw();
            if (error.field) dialog.querySelector(`[name="${error.field}"]`)?.focus();
        }
    };
    draw();
    openDialog(dialog, opener);
}

/** Shows something that must be read before it is gone, such as a secret. */
export function tell(title, content, label = "Close") {
    closeDialog();
    const dialog = document.createElement("dialog");
    const close = h("button", { type: "button", class: "primary", on: { click: () => dialog.close() } }, label);
    show(dialog, h("h2", { id: "dialog-title" }, title), content, h("div", { class: "actions" }, close));
    // Escape alone does not lose what is shown.
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    openDialog(dialog, document.activeElement);
}

export function closeDialog() {
    isOpen?.close();
}

function openDialog(dialog, opener) {
    dialog.setAttribute("aria-labelledby", "dialog-title");
    dialog.addEventListener("close", () => {
        dialog.remove();
        if (isOpen === dialog) isOpen = null;
        const back = opener?.isConnected ? opener : document.querySelector("main h1");
        if (!isOpen) back?.focus({ preventScroll: true });
    });
    document.body.append(dialog);
    isOpen = dialog;
    dialog.showModal();
    dialog.querySelector("input, select, textarea, button.primary, button.danger")?.focus();
}

function form({ title, text, warning, all, confirm, label, state, dialog, onSubmit }) {
    const kind = confirm === null ? "primary" : "danger";
    return h(
        "form",
        { novalidate: true, autocomplete: "off", on: { submit: onSubmit } },
        h("h2", { id: "dialog-title" }, title),
        text ? h("p", {}, text) : null,
        warning ? h("p", { class: "box warn" }, warning) : null,
        fieldsOf(all, state.error?.field),
        state.error ? errorBox(state.error) : null,
        h(
            "div",
            { class: "actions" },
            h("button", { type: "button", on: { click: () => dialog.close() } }, "Cancel"),
            h(
                "button",
                { type: "submit", class: kind, disabled: state.isBusy },
                state.isBusy ? "Working…" : label,
            ),
        ),
    );
}

function confirmField(name) {
    return {
        name: "confirm",
        label: `Type ${name} to confirm`,
        required: true,
        spellcheck: "false",
        check: (value) => (value === name ? null : `This is not ${name}. Type the name exactly as it is shown.`),
    };
}
