// Removed images whose data is still there.

import { get } from "../api.js";
import { bytes, count } from "../format.js";
import { askRestore } from "../image_actions.js";
import { action, badge, heading, path, quiet, time } from "../parts.js";
import { may } from "../session.js";
import { table } from "../table.js";

export function title() {
    return "Trash";
}

export function load(route, signal) {
    return get("/trash", {}, signal);
}

export function view(trash) {
    return [
        path(["Images", "#/images"], ["Trash"]),
        heading("Trash"),
        quiet(
            "Images in the trash cannot be used and keep their space. They are removed when their time is over.",
        ),
        table({
            id: "trash",
            caption: "Images in the trash",
            rows: trash,
            key: (image) => image.id,
            first: "Removed for good",
            empty: "The trash is empty.",
            columns: [
                { label: "Image", value: (image) => image.name },
                {
                    label: "Size",
                    numeric: true,
                    value: (image) => image.size_bytes,
                    cell: (image) => bytes(image.size_bytes),
                },
                {
                    label: "Snapshots",
                    numeric: true,
                    value: (image) => image.snapshots,
                    cell: (image) => count(image.snapshots),
                },
                {
                    label: "Put there",
                    value: (image) => image.removed_unix_ms,
                    cell: (image) => time(image.removed_unix_ms),
                },
                {
                    label: "Removed for good",
                    value: (image) => image.purge_unix_ms ?? 0,
                    cell: (image) =>
                        image.is_purging ? badge("warn", "being removed") : time(image.purge_unix_ms),
                },
                may("restoreImage")
                    ? {
                          label: "Actions",
                          actions: true,
                          cell: (image) =>
                              image.is_purging
                                  ? null
                                  : action("restoreImage", "Restore", () => askRestore(image), {
                                        "aria-label": `Restore ${image.name}`,
                                    }),
                      }
                    : null,
            ],
        }),
    ];
}
