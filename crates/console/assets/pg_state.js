// What is said of a PG.

import { badge, list, osdLink } from "./parts.js";

/** Its state with what is wrong with it, such as active+degraded. */
export function pgState(pg) {
    const marks = ["undersized", "degraded", "misplaced"].filter((mark) => pg[`is_${mark}`]);
    return [pg.state, ...marks].join("+");
}

/** A number to sort by: the pool, then the PG in it, which is written in hexadecimal. */
export function pgOrder({ pg }) {
    const [pool, number] = pg.split(".");
    return Number(pool) * 2 ** 17 + parseInt(number, 16);
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
