// One image with its snapshots.

import { at, get } from "../api.js";
import { h } from "../dom.js";
import { chartsOf, loadFigures } from "../figures.js";
import { bytes, count, plural } from "../format.js";
import * as act from "../image_actions.js";
import * as use from "../image_use_actions.js";
import {
    action,
    badge,
    bar,
    facts,
    heading,
    link,
    list,
    path,
    quiet,
    section,
    time,
    unansweredNote,
} from "../parts.js";
import { address } from "../router.js";
import { may } from "../session.js";
import { table } from "../table.js";
import { sealedBadge, writerText } from "./images.js";

export function title({ names }) {
    return `Image ${names.image}`;
}

export async function load({ names }, signal) {
    const [image, pools, figures] = await Promise.all([
        get(at`/images/${names.image}`, {}, signal),
        get("/pools", {}, signal),
        loadFigures("image", names.image, signal),
    ]);
    return { image, pools, figures };
}

export function view({ image, pools, figures }) {
    const series = figures.series[0];
    return [
        path(["Images", "#/images"], [image.name]),
        heading(
            `Image ${image.name}`,
            action("createSnapshot", "Take snapshot", () => act.askSnapshot(image)),
            action("resizeImage", "Resize", () => act.askResize(image)),
            action("renameImage", "Rename", () => act.askRename(image)),
            action("resizeImage", "Shrink", () => act.askShrink(image), { class: "danger" }),
            action("trashImage", "Move to the trash", () => act.askTrash(image), { class: "danger" }),
        ),
        image.unfinished ? h("p", { class: "box warn", role: "status" }, image.unfinished) : null,
        section("Image", h("div", { class: "actions" }, placeActions(image, pools)), details(image)),
        section("Use", h("div", { class: "actions" }, useActions(image)), usage(image)),
        section("Snapshots", snapshots(image, pools)),
        section(
            "Last 10 minutes",
            unansweredNote(figures.unanswered),
            series
                ? h("div", { class: "charts" }, chartsOf(figures, series, "image"))
                : quiet("It is not in use: there are no figures."),
        ),
    ];
}

function placeActions(image, pools) {
    const { flattening } = image;
    if (flattening?.moving?.goes_back) {
        return action("cancelMigration", "Resume cancelling the move", () => use.askCancelMoving(image));
    }
    if (flattening?.moving) {
        return [
            action("migrateImage", "Resume the move", () => use.askGoOnMoving(image)),
            action("cancelMigration", "Cancel the move", () => use.askCancelMoving(image)),
        ];
    }
    return [
        action("migrateImage", "Move to a pool", () => use.askMigrate(image, pools)),
        image.parent && image.overlap_bytes
            ? action("flattenImage", flattening ? "Resume flattening" : "Flatten", () => use.askFlatten(image))
            : null,
        flattening ? action("stopFlattening", "Stop flattening", () => use.askStopFlattening(image)) : null,
    ];
}

function useActions(image) {
    return [
        action("setImageAccess", "Change access", () => use.askAccess(image)),
        image.writer
            ? action(
                  "breakImageLock",
                  "Take away from its writer",
                  () => use.askBreakLock(image.name, image.writer),
                  { class: "danger" },
              )
            : null,
    ];
}

function details(image) {
    const { flattening } = image;
    return facts(
        ["Size", `${bytes(image.size_bytes)} (${count(image.size_bytes)} bytes)`],
        ["Pool", image.pool_name],
        ["Sealed", sealedBadge(image), image.sealed ? ` ${plural(image.attach_count, "attachment")} so far` : ""],
        ["Created", time(image.created_unix_ms)],
        ["Objects", `${bytes(image.object_bytes)} each, named img.${image.id}.*`],
        image.parent ? ["Clone of", imageLink(image.parent), `, for ${bytes(image.overlap_bytes)}`] : null,
        flattening
            ? [
                  copyingText(flattening),
                  flattening.all_bytes
                      ? bar(flattening.done_bytes, flattening.all_bytes)
                      : "begins",
              ]
            : null,
        ...Object.entries(image.metadata).map(([key, value]) => [`Metadata: ${key}`, value]),
    );
}

function copyingText({ moving }) {
    if (moving?.goes_back) return "Going back";
    return moving ? "Moving" : "Flattening";
}

function usage(image) {
    const clients = image.export.clients;
    return facts(
        [
            "Access",
            `${use.ACCESS[image.export.access]}; over TCP `,
            clients.length ? clients.join(", ") : "those with a certificate",
        ],
        [
            "Writer",
            image.writer
                ? [
                      `${writerText(image.writer)}, process ${image.writer.process_id}, since `,
                      time(image.writer.taken_unix_ms),
                  ]
                : "none",
        ],
        [
            "Readers",
            image.watchers.length
                ? h(
                      "ul",
                      {},
                      image.watchers.map((reader) =>
                          h(
                              "li",
                              {},
                              `${writerText(reader)}, process ${reader.process_id}, since `,
                              time(reader.since_unix_ms),
                          ),
                      ),
                  )
                : "none",
        ],
    );
}

function imageLink(snapshot) {
    const [name] = snapshot.split("@");
    return link(address(["images", name]), snapshot);
}

function snapshots(image, pools) {
    const clones = (snapshot) => image.clones.filter(([of]) => of === snapshot.name).map(([, clone]) => clone);
    return table({
        id: "snapshots",
        caption: `Snapshots of ${image.name}`,
        rows: image.snapshots,
        key: (snapshot) => snapshot.number,
        empty: "There are no snapshots.",
        columns: [
            {
                label: "Snapshot",
                value: (snapshot) => snapshot.name,
                cell: (snapshot) => [
                    snapshot.name,
                    snapshot.is_pending ? [" ", badge("note", "being taken")] : null,
                ],
            },
            {
                label: "Taken",
                value: (snapshot) => snapshot.created_unix_ms,
                cell: (snapshot) => time(snapshot.created_unix_ms),
            },
            {
                label: "Size",
                numeric: true,
                value: (snapshot) => snapshot.size_bytes,
                cell: (snapshot) => bytes(snapshot.size_bytes),
            },
            {
                label: "Clones",
                value: (snapshot) => clones(snapshot).join(" "),
                cell: (snapshot) => list(clones(snapshot).map((name) => link(address(["images", name]), name))),
            },
            may("cloneSnapshot", "rollBackImage", "removeSnapshot")
                ? {
                      label: "Actions",
                      actions: true,
                      cell: (snapshot) => [
                          action("cloneSnapshot", "Clone", () => use.askClone(image, snapshot, pools), {
                              "aria-label": `Clone ${snapshot.name}`,
                          }),
                          action("rollBackImage", "Roll back", () => act.askRollBack(image, snapshot), {
                              class: "danger",
                              "aria-label": `Roll back to ${snapshot.name}`,
                          }),
                          action("removeSnapshot", "Remove", () => act.askRemoveSnapshot(image, snapshot), {
                              class: "danger",
                              "aria-label": `Remove snapshot ${snapshot.name}`,
                          }),
                      ],
                  }
                : null,
        ],
    });
}
