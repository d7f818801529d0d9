// Tables that can be sorted and searched. What was chosen stays while the page is refreshed, and when one comes
// back.
// On narrow screens each row is a card (styles/table.css); the roles say that it is a table all the same.

import { h } from "./dom.js";
import { count } from "./format.js";
import { redraw } from "./page.js";

const ROWS = 200;
// So few rows need no search.
const FEW = 8;
const chosen = new Map();

/**
 * `columns`: {label, value(row) to search and sort by, order(row) to sort by instead, cell(row) to show, numeric,
 * actions}. `key(row)` tells rows apart. With `search`, a name for what is looked for, one can search in them.
 */
export function table({
    id,
    caption,
    columns,
    rows,
    key,
    search = null,
    empty = "There is nothing.",
    first = null,
}) {
    const choice = chosen.get(id) ?? { column: first, isDescending: false, text: "", shown: ROWS };
    chosen.set(id, choice);
    const visible = columns.filter(Boolean);
    const found = sorted(matching(rows, visible, choice.text), visible, choice);
    const row = (one) =>
        h(
            "tr",
            { key: key(one), role: "row" },
            visible.map((column, index) => cell(column, one, index)),
        );
    const none = h(
        "tr",
        { key: "none", role: "row" },
        h(
            "td",
            { colspan: visible.length, class: "quiet", role: "cell" },
            rows.length ? "Nothing is like that." : empty,
        ),
    );
    const head = h(
        "tr",
        { role: "row" },
        visible.map((column) => header(column, choice)),
    );
    return h(
        "div",
        { key: id, class: "table" },
        search && (rows.length > FEW || choice.text)
            ? searchField(id, search, choice, found.length, rows.length)
            : null,
        h(
            "div",
            { class: "table-scroll", tabindex: "0", role: "group", "aria-label": caption },
            h(
                "table",
                { class: "cards", role: "table" },
                h("caption", { class: "hidden" }, caption),
                h("thead", { role: "rowgroup" }, head),
                h("tbody", { role: "rowgroup" }, found.length ? found.slice(0, choice.shown).map(row) : none),
            ),
        ),
        found.length > choice.shown ? more(choice, found.length) : null,
    );
}

function cell(column, row, index) {
    const content = column.cell ? column.cell(row) : (column.value(row) ?? "-");
    const attributes = {
        class: column.numeric ? "numeric" : column.actions ? "row-actions" : null,
        "data-label": column.actions ? null : column.label,
    };
    // One box, so that a card has a label and what it labels.
    const box = h("div", {}, content);
    return index === 0
        ? h("th", { ...attributes, scope: "row", role: "rowheader" }, box)
        : h("td", { ...attributes, role: "cell" }, box);
}

function header(column, choice) {
    const kind = column.numeric ? "numeric" : null;
    const plain = { scope: "col", role: "columnheader", class: `plain ${kind ?? ""}` };
    if (column.actions) return h("th", plain, h("span", { class: "hidden" }, "Actions"));
    if (!column.value) return h("th", plain, column.label);
    const isChosen = choice.column === column.label;
    const order = isChosen ? (choice.isDescending ? "descending" : "ascending") : null;
    const click = () => {
        Object.assign(choice, { column: column.label, isDescending: isChosen && !choice.isDescending });
        redraw();
    };
    return h(
        "th",
        { scope: "col", role: "columnheader", class: kind, "aria-sort": order },
        h(
            "button",
            { type: "button", class: "sort", on: { click } },
            column.label,
            h(
                "span",
                { class: "arrow", "aria-hidden": "true" },
                isChosen ? (choice.isDescending ? "▼" : "▲") : "",
            ),
        ),
    );
}

function searchField(id, name, choice, found, all) {
    const input = (event) => {
        choice.text = event.target.value;
        redraw();
    };
    return h(
        "div",
        { class: "search" },
        h("label", { for: `search-${id}` }, `Search ${name}`),
        h("input", { id: `search-${id}`, type: "search", value: choice.text, on: { input } }),
        h(
            "span",
            { class: "quiet", role: "status" },
            choice.text ? `${count(found)} of ${count(all)}` : count(all),
        ),
    );
}

function more(choice, all) {
    const click = () => {
        choice.shown += ROWS;
        redraw();
    };
    return h(
        "p",
        {},
        `${count(choice.shown)} of ${count(all)} are shown. `,
        h("button", { type: "button", on: { click } }, "Show more"),
    );
}

function matching(rows, columns, text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) return rows;
    return rows.filter((row) => {
        const all = columns
            .map((column) => column.value?.(row) ?? "")
            .join(" ")
            .toLowerCase();
        return words.every((word) => all.includes(word));
    });
}

function sorted(rows, columns, { column, isDescending }) {
    const chosenColumn = columns.find(({ label }) => label === column);
    const value = chosenColumn?.order ?? chosenColumn?.value;
    if (!value) return rows;
    const compare = (left, right) =>
        typeof left === "number" && typeof right === "number"
            ? left - right
            : String(left ?? "").localeCompare(String(right ?? ""), "en", { numeric: true });
    const turn = isDescending ? -1 : 1;
    return [...rows].sort((left, right) => turn * compare(value(left), value(right)));
}
