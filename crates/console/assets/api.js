// Calls of the admin API (openapi.json). Answers are parsed JSON; everything else is an ApiError.

import { learnTime } from "./clock.js";
import { isIdle } from "./idle.js";
import { csrfToken, sessionEnded } from "./session.js";

const ROOT = "api/v1";
// A server that does not answer must not stop the refreshes. Changes such as a rewrap may take long.
const READ_MS = 30000;
const CHANGE_MS = 300000;
// Items in one part of a long list.
const PART = 10000;

/** What went wrong, why, and what to do about it. */
export class ApiError extends Error {
    constructor(status, code, message, action) {
        super(message);
        Object.assign(this, { status, code, action });
    }
}

/** Escapes what is put into a path: at`/images/${name}/resize`. */
export function at(parts, ...names) {
    return parts.reduce((path, part, index) => path + encodeURIComponent(names[index - 1]) + part);
}

/** Reads. Parameters that are null or empty are left out; those with several values are repeated. */
export function get(path, parameters = {}, signal = undefined) {
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(parameters)) {
        for (const one of Array.isArray(value) ? value : [value]) {
            if (one !== null && one !== undefined && one !== "") query.append(name, one);
        }
    }
    return call("GET", query.size ? `${path}?${query}` : path, undefined, signal);
}

/** Reads a whole list, which comes in parts; `key` is what an item is called by. */
export async function getAll(path, parameters, key, signal) {
    const all = [];
    for (;;) {
        const after = all.at(-1)?.[key];
        const items = await get(path, { ...parameters, after, limit: PART }, signal);
        all.push(...items);
        if (items.length < PART) return all;
    }
}

/** Changes something. */
export function change(method, path, body = undefined) {
    return call(method, path, body);
}

export async function call(method, path, body, signal) {
    const headers = { Accept: "application/json" };
    if (method !== "GET") headers["X-Atoll-CSRF"] = csrfToken() ?? "login";
    // Refreshes go on while nobody is there, and are to keep no session from ending.
    if (isIdle()) headers["X-Atoll-Idle"] = "true";
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const limit = AbortSignal.timeout(method === "GET" ? READ_MS : CHANGE_MS);
    const either = signal ? AbortSignal.any([signal, limit]) : limit;
    const options = {
        method,
        headers,
        signal: either,
        credentials: "same-origin",
        cache: "no-store",
        redirect: "error",
    };
    if (body !== undefined) options.body = JSON.stringify(body);
    const answer = await fetch(ROOT + path, options).catch((error) => {
        if (error.name === "AbortError") throw error;
        const isLate = error.name === "TimeoutError";
        throw new ApiError(
            0,
            "UNREACHABLE",
            isLate ? "The server took too long to answer." : "The server does not answer.",
            "Check that it runs and that this computer reaches it; the console retries by itself.",
        );
    });
    learnTime(answer.headers.get("Date"));
    const document = await answer.json().catch(() => null);
    if (answer.ok) return document;
    const error = new ApiError(
        answer.status,
        document?.code ?? "UNKNOWN",
        document?.message ?? `The server answered with status ${answer.status}.`,
        document?.action ?? "Try again; if it stays, look into the server's log.",
    );
    if (answer.status === 401 && error.code === "SESSION_MISSING") sessionEnded();
    throw error;
}
