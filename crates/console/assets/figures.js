// Figures for charts: the last 10 minutes are kept here, and the server is asked for what is new.

import { get } from "./api.js";
import { now } from "./clock.js";
import { chart } from "./charts.js";
import { byteRate, microseconds, rate } from "./format.js";

const COUNT = 600;
// By kind and name that were asked for.
const kept = new Map();

/** The figures of a kind, all or those with one name. */
export async function loadFigures(kind, name = null, signal = undefined) {
    const id = `${kind} ${name ?? ""}`;
    const old = kept.get(id);
    const isFresh = old && now() - old.endMs < COUNT * old.step_ms;
    const since = isFresh ? old.endMs : null;
    const answer = await get("/figures", { kind, name, since_unix_ms: since }, signal);
    const joined = isFresh ? join(old, answer) : answer;
    joined.endMs = joined.from_unix_ms + (joined.count - 1) * joined.step_ms;
    if (joined.count > 0) kept.set(id, joined);
    return joined;
}

/** What was known, followed by what is new; seconds between the two are not known. */
function join(old, fresh) {
    if (fresh.count === 0) return { ...old, unanswered: fresh.unanswered };
    const missing = Math.max(0, (fresh.from_unix_ms - old.endMs) / old.step_ms - 1);
    const drop = Math.max(0, old.count + missing + fresh.count - COUNT);
    const count = old.count + missing + fresh.count - drop;
    const before = new Map(old.series.map((series) => [`${series.kind} ${series.name}`, series]));
    const series = fresh.series.map((one) => {
        const earlier = before.get(`${one.kind} ${one.name}`);
        return Object.fromEntries(
            Object.entries(one).map(([name, values]) => {
                if (!Array.isArray(values)) return [name, values];
                const first = earlier?.[name] ?? Array(old.count).fill(null);
                return [name, [...first, ...Array(missing).fill(null), ...values].slice(drop)];
            }),
        );
    });
    return { ...fresh, from_unix_ms: old.from_unix_ms + drop * old.step_ms, count, series };
}

/** Charts of one series: operations, bytes and latencies, and recovery if there is any. */
export function chartsOf(figures, series, id) {
    const shared = { fromMs: figures.from_unix_ms, stepMs: figures.step_ms };
    const charts = [
        chart({
            ...shared,
            id: `${id}-operations`,
            title: "Operations",
            format: rate,
            lines: [
                { name: "read", values: series.reads_per_second },
                { name: "write", values: series.writes_per_second },
            ],
        }),
        chart({
            ...shared,
            id: `${id}-bytes`,
            title: "Bytes",
            format: byteRate,
            base: 1024,
            lines: [
                { name: "read", values: series.read_bytes_per_second },
                { name: "write", values: series.write_bytes_per_second },
            ],
        }),
        chart({
            ...shared,
            id: `${id}-latency`,
            title: "Latency",
            format: microseconds,
            lines: [
                { name: "read, median", values: series.read_p50_us },
                { name: "write, median", values: series.write_p50_us },
                { name: "read, 99 %", values: series.read_p99_us },
                { name: "write, 99 %", values: series.write_p99_us },
            ],
        }),
    ];
    const recovery = series.recovery_bytes_per_second ?? [];
    if (recovery.some((value) => value > 0)) {
        charts.push(
            chart({
                ...shared,
                id: `${id}-recovery`,
                title: "Recovery",
                format: byteRate,
                base: 1024,
                lines: [{ name: "backfill and repair", values: recovery }],
            }),
        );
    }
    return charts;
}
