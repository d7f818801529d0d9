// Who is logged in. The session itself is in a cookie that scripts cannot read.

import { now } from "./clock.js";

// Says until when somebody is logged in here, so that the server is not asked in vain.
const KEY = "atoll-session-until";
// Where one was in this tab when one left for the provider.
const LEFT_AT_KEY = "atoll-left-at";
let session = null;
let whenEnded = () => {};
let endTimer = null;

export function currentSession() {
    return session;
}

export function csrfToken() {
    return session?.csrf_token ?? null;
}

/** Whether the roles of who is logged in allow any of these calls, which are named as in openapi.json. */
export function may(...calls) {
    return calls.some((call) => session?.calls.includes(call));
}

/** Whether they allow to change this setting. */
export function maySet(setting) {
    return Boolean(session?.settings.includes(setting));
}

/** Whether it makes sense to ask the server who is logged in. */
export function mayHaveSession() {
    try {
        return Number(localStorage.getItem(KEY) ?? 0) > Date.now();
    } catch {
        return true;
    }
}

function remember(untilMs) {
    try {
        if (untilMs === null) localStorage.removeItem(KEY);
        else localStorage.setItem(KEY, String(untilMs));
    } catch {
        // Without storage the server is asked each time.
    }
}

/** Goes to the provider of log-ins; the page comes back to where one is. */
export function leaveForProvider(address) {
    try {
        sessionStorage.setItem(LEFT_AT_KEY, location.hash || "#/");
    } catch {
        // Without storage one comes back to the start.
    }
    location.assign(address);
}

/** Where one was when one left for the provider; null if one comes from elsewhere. */
export function takeLeftAt() {
    try {
        const leftAt = sessionStorage.getItem(LEFT_AT_KEY);
        sessionStorage.removeItem(LEFT_AT_KEY);
        return leftAt?.startsWith("#") ? leftAt : null;
    } catch {
        return null;
    }
}

/** Notes who has logged in. */
export function sessionBegan(document) {
    session = document;
    // By this computer's clock, which is what there is at the next start.
    remember(Date.now() + document.expires_unix_ms - now());
    clearTimeout(endTimer);
    // Timers cannot wait for longer than 2^31 - 1 ms.
    const left = Math.min(document.expires_unix_ms - now(), 2147483647);
    endTimer = setTimeout(() => document.expires_unix_ms <= now() && sessionEnded(), Math.max(0, left) + 500);
}

/** Forgets the session, which the server has ended, and says so. */
export function sessionEnded() {
    if (!session) return;
    forgetSession();
    whenEnded();
}

export function forgetSession() {
    clearTimeout(endTimer);
    remember(null);
    session = null;
}

/** Has a function called when the session ends without a log-out. */
export function onSessionEnd(then) {
    whenEnded = then;
}
