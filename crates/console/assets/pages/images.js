// Images.

import { get, getAll } from "../api.js";
import { bytes, count } from "../format.js";
import { askCreateImage } from "../image_actions.js";
import { action, badge, heading, link, quiet, space, time } from "../parts.js";
import { address } from "../router.js";
import { table } from "../table.js";

// Counting the space in use takes longer the more was written.
export const seconds = 30;

export function title() {
    return "Images";
}

export async function load(route, signal) {
    const [images, pools] = await Promise.all([getAll("/images", {}, "name", signal), get("/pools", {}, signal)]);
    return { images, pools };
}

export function view({ images, pools }) {
    return [
        heading(
            "Images",
            action("createImage", "Create image", () => askCreateImage(pools)),
        ),
        table({
            id: "images",
            caption: "Images",
            search: "images",
            rows: images,
            key: (image) => image.id,
            first: "Image",
            empty: "There are no images yet.",
            columns: [
                {
                    label: "Image",
                    value: (image) => image.name,
                    cell: (image) => link(address(["images", image.name]), image.name),
                },
                {
                    label: "Size",
                    numeric: true,
                    value: (image) => image.size_bytes,
                    cell: (image) => bytes(image.size_bytes),
                },
                {
                    label: "In use",
                    value: (image) => image.used_bytes ?? 0,
                    cell: (image) => space(image.used_bytes, image.size_bytes),
                },
                { label: "Pool", value: (image) => image.pool_name },
                { label: "Sealed", value: (image) => (image.sealed ? "sealed" : "in clear"), cell: sealedBadge },
                {
                    label: "Snapshots",
                    numeric: true,
                    value: (image) => image.snapshots,
                    cell: (image) => count(image.snapshots),
                },
                { label: "Clone of", value: (image) => image.parent ?? "-" },
                { label: "Writer", value: (image) => (image.writer ? writerText(image.writer) : "none") },
                {
                    label: "Created",
                    value: (image) => image.created_unix_ms,
                    cell: (image) => time(image.created_unix_ms),
                },
            ],
        }),
        quiet(
            "Removed images are in the ",
            link("#/trash", "trash"),
            " for a while. All writers are in the list of ",
            link("#/locks", "locks"),
            ".",
        ),
    ];
}

export function sealedBadge({ sealed }) {
    return sealed ? badge("good", "sealed") : badge("warn", "in clear");
}

export function writerText({ purpose, host }) {
    return `${purpose} on ${host}`;
}
