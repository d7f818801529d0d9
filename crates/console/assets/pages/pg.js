// One PG.

import { at, get } from "../api.js";
import { count, plural } from "../format.js";
import { osdList, pgBadge } from "../pg_state.js";
import { badge, facts, heading, link, osdLink, path, quiet, section, time } from "../parts.js";
import { address } from "../router.js";
import { scrubActions } from "./pgs.js";

export function title({ names }) {
    return `PG ${names.pg}`;
}

export async function load({ names }, signal) {
    const [pg, { scrub }] = await Promise.all([
        get(at`/pgs/${names.pg}`, {}, signal),
        get(at`/pgs/${names.pg}/scrub`, {}, signal),
    ]);
    return { pg, scrub };
}

export function view({ pg, scrub }) {
    return [
        path(["PGs", "#/pgs"], [pg.pg]),
        heading(`PG ${pg.pg}`, scrubActions(pg)),
        section(
            "State",
            facts(
                ["State", pgBadge(pg)],
                ["Pool", pg.pool === null ? "removed" : link(address(["pgs"], { pool: pg.pool }), pg.pool)],
                ["Primary", osdLink(pg.primary)],
                ["Acting", osdList(pg.members, pg.shards)],
                ["Down", osdList(pg.members_down)],
                ["Target", osdList(pg.target)],
                ["Balancer wants", pg.balancer_members ? osdList(pg.balancer_members) : "-"],
                ["Last active", osdList(pg.last_active_members, pg.last_active_shards)],
                ["Epoch", `${count(pg.epoch)}, activated ${count(pg.activated_epoch)}`],
            ),
        ),
        section("Last scrub", scrub ? result(scrub) : quiet("There was none yet.")),
    ];
}

function result(scrub) {
    const outcome = scrub.unrepaired
        ? badge("bad", plural(scrub.unrepaired, "object is", "objects are") + " still bad")
        : scrub.errors
          ? badge("warn", `${count(scrub.repaired)} repaired`)
          : badge("good", "no errors");
    return facts(
        ["Outcome", outcome],
        ["Kind", scrub.is_deep ? "deep scrub" : "scrub"],
        ["Scrub", time(scrub.light_unix_ms)],
        ["Deep scrub", time(scrub.deep_unix_ms)],
        ["By", osdLink(scrub.osd)],
        ["Objects", count(scrub.objects)],
        ["With a bad copy", count(scrub.errors)],
    );
}
