// Who writes to images.

import { get } from "../api.js";
import { askBreakLock } from "../image_use_actions.js";
import { action, heading, link, path, quiet, time } from "../parts.js";
import { address } from "../router.js";
import { may } from "../session.js";
import { table } from "../table.js";
import { writerText } from "./images.js";

export function title() {
    return "Image locks";
}

export function load(route, signal) {
    return get("/image-locks", {}, signal);
}

export function view(locks) {
    return [
        path(["Images", "#/images"], ["Image locks"]),
        heading("Image locks"),
        quiet("An image has one writer at most, which holds its lock. A lock ends by itself when its writer is gone."),
        table({
            id: "locks",
            caption: "Images with a writer",
            search: "locks",
            rows: locks,
            key: ({ image }) => image,
            first: "Image",
            empty: "No image has a writer.",
            columns: [
                {
                    label: "Image",
                    value: ({ image }) => image,
                    cell: ({ image }) => link(address(["images", image]), image),
                },
                { label: "Writer", value: ({ writer }) => writerText(writer) },
                { label: "Process", numeric: true, value: ({ writer }) => writer.process_id },
                {
                    label: "Since",
                    value: ({ writer }) => writer.taken_unix_ms,
                    cell: ({ writer }) => time(writer.taken_unix_ms),
                },
                may("breakImageLock")
                    ? {
                          label: "Actions",
                          actions: true,
                          cell: ({ image, writer }) =>
                              action("breakImageLock", "Take away", () => askBreakLock(image, writer), {
                                  class: "danger",
                                  "aria-label": `Take ${image} away`,
                              }),
                      }
                    : null,
            ],
        }),
    ];
}
