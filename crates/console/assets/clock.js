// The server's time: this computer's clock may be wrong.

let aheadMs = 0;

/** Learns how late it is from the header Date of an answer, which is exact to a second. */
export function learnTime(header) {
    const serverMs = Date.parse(header ?? "");
    if (Number.isNaN(serverMs)) return;
    const difference = serverMs - Date.now();
    aheadMs = Math.abs(difference) > 2000 ? difference : 0;
}

export function now() {
    return Date.now() + aheadMs;
}
