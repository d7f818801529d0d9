// The cluster at a glance: health, capacity, PGs, recovery, and charts.

import { get } from "../api.js";
import { h } from "../dom.js";
import { chartsOf, loadFigures } from "../figures.js";
import { byteRate, bytes, count, percent, plural } from "../format.js";
import { newest } from "../charts.js";
import { healthStatus, problemList } from "../health.js";
import { fullTone } from "../osd_state.js";
import { badge, bar, facts, heading, link, osdLink, quiet, section, space, unansweredNote } from "../parts.js";

// As many PGs there were to recover when it began, to tell how far it is.
let mostToRecover = 0;

export function title() {
    return "Overview";
}

export async function load(route, signal) {
    const [status, health, osds, settings, figures] = await Promise.all([
        get("/status", {}, signal),
        get("/health", {}, signal),
        get("/osds", {}, signal),
        get("/settings", {}, signal),
        loadFigures("cluster", null, signal),
    ]);
    return { status, health, osds, settings, figures };
}

export function view({ status, health, osds, settings, figures }) {
    const series = figures.series[0];
    return [
        heading("Overview"),
        healthStatus(health),
        h(
            "div",
            { class: "grid" },
            section("Capacity", capacity(status, osds, settings)),
            section("Placement groups", pgStates(status)),
            section("Recovery", recovery(status, osds, series)),
            section("Cluster", cluster(status)),
        ),
        section("Problems", problemList(health.problems)),
        section(
            "Last 10 minutes",
            unansweredNote(figures.unanswered),
            series
                ? h("div", { class: "charts" }, chartsOf(figures, series, "cluster"))
                : quiet("There are no figures yet."),
        ),
    ];
}

function capacity(status, osds, settings) {
    const known = osds.filter((osd) => osd.total_bytes);
    const fullest = known.sort(
        (left, right) => right.used_bytes / right.total_bytes - left.used_bytes / left.total_bytes,
    )[0];
    const tone = fullest ? fullTone(fullest, settings) : "accent";
    return [
        space(status.used_bytes, status.total_bytes, {
            marks: [settings.near_full_percent, settings.full_percent],
        }),
        facts(
            ["Free", bytes(status.total_bytes - status.used_bytes)],
            ["Objects", count(status.object_count)],
            fullest
                ? ["Fullest OSD", osdLink(fullest.id), " ", bar(fullest.used_bytes, fullest.total_bytes, { tone })]
                : null,
        ),
        quiet(
            "Space on all devices, with all copies and parity. ",
            link("#/pools", "Pools"),
            " say how much a byte takes.",
        ),
    ];
}

function pgTone(state) {
    if (!state.startsWith("active")) return "bad";
    return /undersized|degraded/.test(state) ? "warn" : state === "active" ? "good" : "note";
}

// Long states may go on in the next line after a '+'.
function breakable(state) {
    return state.split("+").flatMap((part, index) => (index ? ["+", h("wbr", {}), part] : [part]));
}

function pgStates(status) {
    const states = Object.entries(status.placement_groups_by_state).sort((left, right) => right[1] - left[1]);
    return [
        h(
            "ul",
            { class: "plain-list" },
            states.map(([state, number]) =>
                h(
                    "li",
                    { key: state, class: "state-row" },
                    badge(pgTone(state), breakable(state)),
                    bar(number, status.placement_groups, { tone: pgTone(state), text: count(number) }),
                ),
            ),
        ),
        quiet(
            link("#/pgs", plural(status.placement_groups, "PG")),
            ", ",
            link("#/pgs?not_clean=true", "those that are not clean"),
        ),
    ];
}

function recovery(status, osds, series) {
    const toRecover = Object.entries(status.placement_groups_by_state)
        .filter(([state]) => state !== "active")
        .reduce((sum, [, number]) => sum + number, 0);
    mostToRecover = toRecover === 0 ? 0 : Math.max(mostToRecover, toRecover);
    if (toRecover === 0)
        return quiet("Nothing is to be recovered: every PG is active, complete and in its place.");
    const recovered = mostToRecover - toRecover;
    const speed = newest(series?.recovery_bytes_per_second ?? []);
    const moving = osds.filter((osd) => osd.pgs !== osd.pgs_target);
    return [
        bar(recovered, mostToRecover, {
            text: `${count(recovered)} of ${plural(mostToRecover, "PG")} recovered while the console looked on`,
        }),
        facts(
            [
                "PGs to recover",
                `${count(toRecover)} (${Math.round(percent(toRecover, status.placement_groups))} %)`,
            ],
            ["Backfill and repair", byteRate(speed)],
            ["OSDs that gain or lose PGs", count(moving.length)],
        ),
    ];
}

function cluster(status) {
    const modes = Object.entries(status.frame_modes)
        .map(([role, mode]) => `${role} ${mode}`)
        .join(", ");
    const links = Object.entries(status.links_by_transport)
        .map(([transport, number]) => `${count(number)} ${transport}`)
        .join(", ");
    const providers = Object.keys(status.rdma_providers).join(", ");
    return facts(
        ["OSDs up", badge(status.osds_up < status.osds ? "bad" : "good", `${status.osds_up} of ${status.osds}`)],
        ["Coordinator", status.coordinator === null ? badge("note", "none") : osdLink(status.coordinator)],
        [
            "Damaged blocks found",
            status.corrupt_block_count ? badge("warn", count(status.corrupt_block_count)) : badge("good", "none"),
        ],
        ["Frames", modes],
        ["Links", links || "none"],
        providers ? ["RDMA by libfabric's provider", providers] : null,
        status.links_in_other_mode
            ? ["Links in the old mode", badge("warn", count(status.links_in_other_mode))]
            : null,
        ["S3", status.s3_tls_endpoint ?? status.s3_endpoint ?? "-"],
        ["Cluster id", h("code", {}, status.cluster_id)],
    );
}
