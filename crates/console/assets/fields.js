// Inputs of dialogs, and what was put in.
//
// A field is {name, label, type, value, hint, required, options, check(value)}. Types: text, number, size (bytes,
// such as 4G), choice, truth, json (several lines). What is empty is left out of the values.

import { h } from "./dom.js";
import { parseSize } from "./format.js";

/** An input that does not fit. */
class FieldError extends Error {
    constructor(field, message) {
        super(message);
        this.field = field;
    }
}

/** Inputs with their labels; `wrong` names the one whose value does not fit. */
export function fieldsOf(fields, wrong = null) {
    return fields.map((field) => {
        const id = `field-${field.name}`;
        const hint = field.hint ? h("small", { id: `${id}-hint`, class: "quiet" }, field.hint) : null;
        const described = hint ? `${id}-hint` : null;
        if (field.type === "truth") {
            return h(
                "div",
                { class: "field truth" },
                h("input", {
                    id,
                    name: field.name,
                    type: "checkbox",
                    checked: field.value,
                    "aria-describedby": described,
                }),
                h("label", { for: id }, field.label),
                hint,
            );
        }
        return h(
            "div",
            { class: "field" },
            h("label", { for: id }, field.label),
            input(field, id, described, field.name === wrong),
            hint,
        );
    });
}

function input(field, id, described, isWrong) {
    const shared = {
        id,
        name: field.name,
        required: field.required,
        "aria-describedby": described,
        "aria-invalid": isWrong ? "true" : null,
    };
    if (field.type === "choice") {
        return h(
            "select",
            { ...shared, value: field.value },
            field.options.map(([value, text]) => h("option", { value, selected: value === field.value }, text)),
        );
    }
    if (field.type === "json") {
        return h("textarea", { ...shared, rows: 14, spellcheck: "false", value: field.value });
    }
    return h("input", {
        ...shared,
        type: field.type === "password" ? "password" : "text",
        value: field.value ?? "",
        inputmode: field.type === "number" ? "decimal" : null,
        spellcheck: "false",
        autocapitalize: "none",
        autocomplete: field.autocomplete ?? "off",
    });
}

/** The values of a form; the first that does not fit is thrown. */
export function readFields(form, fields) {
    const values = {};
    for (const field of fields) {
        const node = form.elements[field.name];
        const value = field.type === "truth" ? node.checked : read(field, node.value);
        const problem = value === undefined ? null : field.check?.(value);
        if (problem) throw new FieldError(field.name, problem);
        if (value !== undefined) values[field.name] = value;
    }
    return values;
}

function read(field, text) {
    const trimmed = field.type === "password" ? text : text.trim();
    if (trimmed === "") {
        if (field.required) throw new FieldError(field.name, `${field.label}: this is needed.`);
        return undefined;
    }
    if (field.type === "number") {
        const number = Number(trimmed);
        if (!Number.isFinite(number))
            throw new FieldError(field.name, `${field.label}: '${trimmed}' is not a number.`);
        return number;
    }
    if (field.type === "size") {
        const bytes = parseSize(trimmed);
        if (bytes === null) {
            throw new FieldError(
                field.name,
                `${field.label}: '${trimmed}' is not a size. Write it like 512M, 4G or 1T.`,
            );
        }
        return bytes;
    }
    return field.type === "json" ? readJson(field, trimmed) : trimmed;
}

function readJson(field, text) {
    try {
        return JSON.parse(text);
    } catch (error) {
        throw new FieldError(field.name, `${field.label}: this is not JSON (${error.message}).`);
    }
}
