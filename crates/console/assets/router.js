// Which page the address names: #/images/disk1?tab=x. The address is all there is to know where one is.

/** The parts and the query of an address after its '#'. */
export function parseAddress(hash) {
    const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
    const parts = path.split("/").filter(Boolean).map(decode);
    return { parts, query: new URLSearchParams(query) };
}

function decode(text) {
    try {
        return decodeURIComponent(text);
    } catch {
        return text;
    }
}

/** The address of a page: address(["images", name], {after: "x"}). */
export function address(parts, query = {}) {
    const entries = Object.entries(query).filter(
        ([, value]) => value !== null && value !== undefined && value !== "",
    );
    const text = new URLSearchParams(entries).toString();
    return `#/${parts.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

/** The first route that fits, with what its ':names' stand for. */
export function findRoute(routes, { parts, query }) {
    for (const route of routes) {
        const pattern = route.path.split("/");
        if (pattern.length !== parts.length) continue;
        if (!pattern.every((part, index) => part.startsWith(":") || part === parts[index])) continue;
        const names = Object.fromEntries(
            pattern
                .map((part, index) => [part, parts[index]])
                .filter(([part]) => part.startsWith(":"))
                .map(([part, value]) => [part.slice(1), value]),
        );
        return { page: route.page, parts, names, query };
    }
    return null;
}

export function goTo(parts, query = {}) {
    location.hash = address(parts, query);
}
