// What is said of an OSD: its state, and how full it is.

import { percent } from "./format.js";
import { badge, space } from "./parts.js";

/** One word for an OSD and its tone: what matters most comes first. */
export function osdState(osd) {
    if (osd.state === "down") return { tone: "bad", text: osd.is_out ? "down, out" : "down" };
    if (osd.is_out) return { tone: "note", text: osd.is_out_by_coordinator ? "out by coordinator" : "out" };
    if (osd.pgs !== osd.pgs_target) return { tone: "warn", text: "moving PGs" };
    return { tone: "good", text: "up" };
}

export function osdBadge(osd) {
    const { tone, text } = osdState(osd);
    return badge(tone, text);
}

/** The tone of how full it is. */
export function fullTone(osd, settings) {
    const full = percent(osd.used_bytes, osd.total_bytes);
    if (full >= settings.full_percent) return "bad";
    return full >= settings.near_full_percent ? "warn" : "accent";
}

/** Its space, with marks where it counts as near full and full. */
export function osdSpace(osd, settings) {
    return space(osd.used_bytes, osd.total_bytes, {
        tone: fullTone(osd, settings),
        marks: [settings.near_full_percent, settings.full_percent],
    });
}
