// Numbers, sizes and times as people read them.

import { now } from "./clock.js";

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const whole = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });
const exactTime = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

/** 1,234 */
export function count(value) {
    return value === null || value === undefined ? "-" : whole.format(value);
}

/** Three digits that matter. */
function short(value) {
    if (value >= 100 || Number.isInteger(value)) return whole.format(value);
    return value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

/** 1.86 GiB */
export function bytes(value) {
    if (value === null || value === undefined) return "-";
    let unit = 0;
    while (Math.abs(value) >= 1000 && unit < UNITS.length - 1) {
        value /= 1024;
        unit += 1;
    }
    return `${unit === 0 ? whole.format(value) : short(value)} ${UNITS[unit]}`;
}

/** 12.3k operations */
export function rate(value) {
    if (value === null || value === undefined) return "-";
    if (value >= 1e6) return `${short(value / 1e6)}M/s`;
    return value >= 1e4 ? `${short(value / 1e3)}k/s` : `${whole.format(value)}/s`;
}

export function byteRate(value) {
    return value === null || value === undefined ? "-" : `${bytes(value)}/s`;
}

/** 850 µs, 1.24 ms, 3.5 s */
export function microseconds(value) {
    if (value === null || value === undefined) return "-";
    if (value < 1000) return `${whole.format(value)} µs`;
    return value < 1e6 ? `${short(value / 1e3)} ms` : `${short(value / 1e6)} s`;
}

export function percent(part, all) {
    return all ? Math.min(100, (100 * part) / all) : 0;
}

export function percentText(part, all) {
    const value = percent(part, all);
    return value > 0 && value < 1 ? "< 1 %" : `${Math.round(value)} %`;
}

/** 1 OSD, 3 OSDs */
export function plural(number, one, many = `${one}s`) {
    return `${count(number)} ${number === 1 ? one : many}`;
}

/** "3 min ago", or "in 2 d" of what is to come. */
export function relative(unixMs) {
    const seconds = Math.round((now() - unixMs) / 1000);
    if (Math.abs(seconds) < 2) return "now";
    const text = span(Math.abs(seconds));
    return seconds > 0 ? `${text} ago` : `in ${text}`;
}

/** 45 s, 12 min, 5 h, 3 d, 2 y */
export function span(seconds) {
    if (seconds < 120) return `${seconds} s`;
    if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
    if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
    const days = Math.round(seconds / 86400);
    return days < 730 ? `${days} d` : `${Math.round(days / 365)} y`;
}

export function exact(unixMs) {
    return exactTime.format(new Date(unixMs));
}

/** The bytes of "4G", "512 MiB" or "4096"; null if it is no size. Units are powers of 1024. */
export function parseSize(text) {
    const found = /^\s*([0-9]+(?:\.[0-9]+)?)\s*(?:([KMGTP])(?:iB)?|B)?\s*$/i.exec(text);
    if (!found) return null;
    const power = found[2] ? "KMGTP".indexOf(found[2].toUpperCase()) + 1 : 0;
    const value = Number(found[1]) * 1024 ** power;
    return Number.isSafeInteger(value) ? value : null;
}
