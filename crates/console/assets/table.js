// Tables that can be sorted and searched. What was chosen stays while the page is refreshed and when one comes back.

import { h } from "./dom.js";
import { count } from "./format.js";
import { redraw } from "./page.js";

const ROWS = 200;
const chosen = new Map();

/**
 * `columns`: {label, value(row) to sort and search by, cell(row) to show, numeric, actions}. `key(row)` tells rows apart.
 * With `search`, a name for what is looked for, there is a field to search in.
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
    return h(
        "div",
        { key: id, class: "table" },
        search ? searchField(id, search, choice, found.length, rows.length) : null,
        h(
            "div",
            { class: "table-scroll", tabindex: "0", role: "group", "aria-label": caption },
            h(
                "table",
                {},
                h("caption", { class: "hidden" }, caption),
                h(
                    "thead",
                    {},
                    h(
                        "tr",
                        {},
                        visible.map((column) => header(column, choice)),
                    ),
                ),
                h(
                    "tbody",
                    {},
                    found.slice(0, choice.shown).map((row) =>
                        h(
                            "tr",
                            { key: key(row) },
                            visible.map((column, index) => cell(column, row, index)),
                        ),
                    ),
                    found.length
                        ? null
                        : h(
                              "tr",
                              { key: "empty" },
                              h(
                                  "td",
                                  { colspan: visible.length, class: "quiet" },
                                  rows.length ? "Nothing is like that." : empty,
                              ),
                          ),
                ),
            ),
        ),
        found.length > choice.shown ? more(choice, found.length) : null,
    );
}

function cell(column, row, index) {
    const content = column.cell ? column.cell(row) : (column.value(row) ?? "-");
    const kind = column.numeric ? "numeric" : column.actions ? "row-actions" : null;
    return index === 0 ? h("th", { scope: "row", class: kind }, content) : h("td", { class: kind }, content);
}

function header(column, choice) {
    const kind = column.numeric ? "numeric" : null;
    if (column.actions) return h("td", { class: "row-actions" }, h("span", { class: "hidden" }, "Actions"));
    if (!column.value) return h("th", { scope: "col", class: kind }, column.label);
    const isChosen = choice.column === column.label;
    const order = isChosen ? (choice.isDescending ? "descending" : "ascending") : null;
    const click = () => {
        Object.assign(choice, { column: column.label, isDescending: isChosen && !choice.isDescending });
        redraw();
    };
    return h(
        "th",
        { scope: "col", class: kind, "aria-sort": order },
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
    const value = columns.find(({ label }) => label === column)?.value;
    if (!value) return rows;
    const compare = (left, right) =>
        typeof left === "number" && typeof right === "number"
            ? left - right
            : String(left ?? "").localeCompare(String(right ?? ""), "en", { numeric: true });
    const turn = isDescending ? -1 : 1;
    return [...rows].sort((left, right) => turn * compare(value(left), value(right)));
}
