// Whether somebody is at the page.

// Who only reads moves something now and then.
const IDLE_MS = 60000;
let usedAt = Date.now();

for (const event of ["keydown", "pointerdown", "pointermove", "wheel", "focus"]) {
    window.addEventListener(event, () => (usedAt = Date.now()), { capture: true, passive: true });
}

export function isIdle() {
    return Date.now() - usedAt > IDLE_MS;
}
