// Describes nodes with `h` and makes the document fit: what is there already stays, with its focus, its selection,
// what was typed and how far it is scrolled. All text goes in as text, never as HTML.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "path", "rect", "line", "circle", "g", "title", "pattern", "defs", "polyline"]);
// What each node was made from.
const described = new WeakMap();

/** Describes a node. `key` tells it from its siblings; `on` has its event handlers; all else are attributes. */
export function h(tag, attributes, ...children) {
    const { key = null, on = {}, ...rest } = attributes ?? {};
    return { tag, key, on, attributes: rest, children: flat(children) };
}

function flat(children) {
    return children
        .flat(Infinity)
        .filter((child) => child !== null && child !== undefined && child !== false && child !== true)
        .map((child) => (typeof child === "object" ? child : { tag: null, key: null, text: String(child) }));
}

/** Makes the children of a node those that are described. */
export function show(parent, ...children) {
    const focused = document.activeElement;
    reconcile(parent, flat(children));
    // A node that was moved among its siblings has lost the focus.
    if (focused && focused !== document.activeElement && focused.isConnected && parent.contains(focused)) {
        focused.focus({ preventScroll: true });
    }
}

function reconcile(parent, wanted) {
    const old = [...parent.childNodes];
    const keyed = new Map(),
        free = new Map();
    for (const node of old) {
        const made = described.get(node);
        const name = made && made.key === null ? kind(made) : null;
        if (made && made.key !== null) keyed.set(`${kind(made)} ${made.key}`, node);
        else if (name !== null) free.set(name, [...(free.get(name) ?? []), node]);
    }
    const nodes = wanted.map((description) => {
        const found =
            description.key === null
                ? free.get(kind(description))?.shift()
                : take(keyed, `${kind(description)} ${description.key}`);
        return found ? update(found, description) : create(description, parent);
    });
    const kept = new Set(nodes);
    for (const node of old) if (!kept.has(node)) node.remove();
    let next = parent.firstChild;
    for (const node of nodes) {
        if (node === next) next = next.nextSibling;
        else parent.insertBefore(node, next);
    }
}

function kind(description) {
    return description.tag ?? "#text";
}

function take(map, name) {
    const found = map.get(name);
    map.delete(name);
    return found;
}

function create(description, parent) {
    if (description.tag === null) {
        const text = document.createTextNode(description.text);
        described.set(text, description);
        return text;
    }
    const isSvg = description.tag === "svg" || (parent.namespaceURI === SVG && SVG_TAGS.has(description.tag));
    const node = isSvg ? document.createElementNS(SVG, description.tag) : document.createElement(description.tag);
    return update(node, description);
}

function update(node, description) {
    const before = described.get(node);
    described.set(node, description);
    if (description.tag === null) {
        if (node.data !== description.text) node.data = description.text;
        return node;
    }
    reconcile(node, description.children);
    setAttributes(node, before?.attributes ?? {}, description.attributes);
    listen(node, before?.on ?? {}, description.on);
    return node;
}

// Only what is described otherwise than before is touched: what a person has changed since stays.
function setAttributes(node, before, after) {
    for (const name of Object.keys({ ...before, ...after })) {
        const value = after[name] ?? false;
        if (value === (before[name] ?? false)) continue;
        if (name === "value" && "value" in node) node.value = value === false ? "" : value;
        else if (value === false) node.removeAttribute(name);
        else node.setAttribute(name, value === true ? "" : value);
    }
}

// The handlers are looked up when something happens, so that they always see the newest data.
function listen(node, before, after) {
    for (const type of Object.keys(after)) {
        if (type in before) continue;
        node.addEventListener(type, (event) => described.get(node).on[type]?.(event));
    }
}
