// What is said of a PG.

import { badge, list, osdLink } from "./parts.js";

/** Its state with what is wrong with it, such as active+degraded. */
export function pgState(pg) {
    const marks = ["undersized", "degraded", "misplaced"].filter((mark) => pg[`is_${mark}`]);
    return [pg.state, ...marks].join("+");
}

export function pgBadge(pg) {
    const isBad = pg.state !== "active";
    const tone = isBad ? "bad" : pg.is_undersized || pg.is_degraded ? "warn" : pg.is_misplaced ? "note" : "good";
    return badge(tone, pgState(pg));
}

/** OSDs in their order; in an erasure-coded pool each with its shard. */
export function osdList(osds, shards = []) {
    return list(
        osds.map((osd, index) => (shards.length ? [osdLink(osd), ` (shard ${shards[index]})`] : osdLink(osd))),
    );
}
