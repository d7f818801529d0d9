// What is said of an OSD: its state, and how full it is.

import { percent } from "./format.js";
import { badge, space } from "./parts.js";

/** What there is to say of an OSD in a few words, and its tone. */
export function osdState(osd, settings) {
    const place = placeState(osd);
    const full = fullTone(osd, settings);
    if (full === "bad") return { tone: "bad", text: `${place.text}, full` };
    if (full === "warn") return { tone: place.tone === "bad" ? "bad" : "warn", text: `${place.text}, near full` };
    return place;
}

function placeState(osd) {
    if (osd.state === "down") return { tone: "bad", text: osd.is_out ? "down, out" : "down" };
    if (osd.is_out) return { tone: "note", text: osd.is_out_by_coordinator ? "out by coordinator" : "out" };
    if (osd.pgs !== osd.pgs_target) return { tone: "warn", text: "up, moving PGs" };
    return { tone: "good", text: "up" };
}

export function osdBadge(osd, settings) {
    const { tone, text } = osdState(osd, settings);
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
