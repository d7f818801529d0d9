// One image with its snapshots.

import { at, get } from "../api.js";
import { h } from "../dom.js";
import { chartsOf, loadFigures } from "../figures.js";
import { bytes, count, plural } from "../format.js";
import * as act from "../image_actions.js";
import { action, badge, bar, facts, heading, link, list, path, quiet, section, time } from "../parts.js";
import { address } from "../router.js";
import { isAdmin } from "../session.js";
import { table } from "../table.js";
import { sealedBadge, writerText } from "./images.js";

const ACCESS = {
    exclusive: "one client at a time",
    multi_attach: "several clients at once",
    read_only: "read-only",
};

export function title({ names }) {
    return `Image ${names.image}`;
}

export async function load({ names }, signal) {
    const [image, figures] = await Promise.all([
        get(at`/images/${names.image}`, {}, signal),
        loadFigures("image", names.image, signal),
    ]);
    return { image, figures };
}

export function view({ image, figures }) {
    const series = figures.series[0];
    return [
        path(["Images", "#/images"], [image.name]),
        heading(
            `Image ${image.name}`,
            action("Take snapshot", () => act.askSnapshot(image)),
            action("Resize", () => act.askResize(image)),
            action("Rename", () => act.askRename(image)),
            action("Shrink", () => act.askShrink(image), { class: "danger" }),
            action("Move to the trash", () => act.askTrash(image), { class: "danger" }),
        ),
        image.unfinished ? h("p", { class: "box warn", role: "status" }, image.unfinished) : null,
        section("Image", details(image)),
        section("Snapshots", snapshots(image)),
        section(
            "Last 10 minutes",
            series
                ? h("div", { class: "charts" }, chartsOf(figures, series, "image"))
                : quiet("Nobody uses it: there are no figures."),
        ),
    ];
}

function details(image) {
    const { flattening } = image;
    const clients = image.export.clients;
    return facts(
        ["Size", `${bytes(image.size_bytes)} (${count(image.size_bytes)} bytes)`],
        ["Pool", image.pool_name],
        ["Sealed", sealedBadge(image), image.sealed ? ` ${plural(image.attach_count, "attachment")} so far` : ""],
        ["Created", time(image.created_unix_ms)],
        ["Objects", `${bytes(image.object_bytes)} each, named img.${image.id}.*`],
        image.parent ? ["Clone of", imageLink(image.parent), `, for ${bytes(image.overlap_bytes)}`] : null,
        flattening
            ? [
                  flattening.moving ? "Moving" : "Flattening",
                  flattening.all_bytes
                      ? bar(flattening.done_bytes, flattening.all_bytes)
                      : "when somebody writes to it",
              ]
            : null,
        [
            "Access",
            `${ACCESS[image.export.access]}; over TCP `,
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
        ...Object.entries(image.metadata).map(([key, value]) => [`Metadata: ${key}`, value]),
    );
}

function imageLink(snapshot) {
    const [name] = snapshot.split("@");
    return link(address(["images", name]), snapshot);
}

function snapshots(image) {
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
            isAdmin()
                ? {
                      label: "Actions",
                      actions: true,
                      cell: (snapshot) => [
                          action("Roll back", () => act.askRollBack(image, snapshot), {
                              class: "danger",
                              "aria-label": `Roll back to ${snapshot.name}`,
                          }),
                          action("Remove", () => act.askRemoveSnapshot(image, snapshot), {
                              class: "danger",
                              "aria-label": `Remove snapshot ${snapshot.name}`,
                          }),
                      ],
                  }
                : null,
        ],
    });
}
