// What can be done with images and snapshots.

import { at, change } from "./api.js";
import { ask } from "./dialog.js";
import { bytes, span } from "./format.js";
import { goTo } from "./router.js";

const NAME_HINT = "Letters, digits, '-', '_' and '.', not beginning with '-' or '.'";
const DAY_SECONDS = 86400;

export function askCreateImage(pools) {
    ask({
        title: "Create an image",
        label: "Create",
        text: "It takes no space until it is written.",
        fields: [
            { name: "name", label: "Name", required: true, hint: NAME_HINT },
            {
                name: "size_bytes",
                label: "Size",
                type: "size",
                required: true,
                hint: "Such as 512M, 4G or 1T; powers of 1024",
            },
            {
                name: "pool",
                label: "Pool",
                type: "choice",
                value: "images",
                options: pools.map(({ name }) => [name, name]),
            },
            {
                name: "sealed",
                label: "Seal its blocks (AES-256-GCM)",
                type: "truth",
                value: true,
                hint: "Without it, the holder of a device can read the image. Moving the image can change this later.",
            },
        ],
        submit: (values) => change("POST", "/images", values),
        done: (image) => `Image ${image.name} is created`,
        after: (image) => goTo(["images", image.name]),
    });
}

export function askResize(image) {
    ask({
        title: `Resize ${image.name}`,
        label: "Resize",
        text: `It has ${bytes(image.size_bytes)}. NBD clients see the new size when they reconnect.`,
        fields: [
            {
                name: "size_bytes",
                label: "New size",
                type: "size",
                required: true,
                hint: "To make it smaller, use Shrink",
                check: (size) =>
                    size < image.size_bytes
                        ? "This is smaller than the image. Use Shrink, which destroys data."
                        : null,
            },
        ],
        submit: (values) => change("POST", at`/images/${image.name}/resize`, values),
        done: (changed) => `${changed.name} has ${bytes(changed.size_bytes)} now`,
    });
}

export function askShrink(image) {
    ask({
        title: `Shrink ${image.name}`,
        label: "Shrink",
        confirm: image.name,
        text: `It has ${bytes(image.size_bytes)}.`,
        warning: "The data beyond the new size is destroyed.",
        fields: [
            {
                name: "size_bytes",
                label: "New size",
                type: "size",
                required: true,
                check: (size) => (size >= image.size_bytes ? "This is not smaller than the image." : null),
            },
        ],
        submit: (values) => change("POST", at`/images/${image.name}/resize`, { ...values, allow_shrink: true }),
        done: (changed) => `${changed.name} has ${bytes(changed.size_bytes)} now`,
    });
}

export function askRename(image) {
    ask({
        title: `Rename ${image.name}`,
        label: "Rename",
        fields: [{ name: "new_name", label: "New name", required: true, value: image.name, hint: NAME_HINT }],
        submit: (values) => change("POST", at`/images/${image.name}/rename`, values),
        done: (changed) => `${image.name} is now ${changed.name}`,
        after: (changed) => goTo(["images", changed.name]),
    });
}

export function askTrash(image) {
    ask({
        title: `Move ${image.name} to the trash`,
        label: "Move to the trash",
        confirm: image.name,
        text: "It cannot be used there, and keeps its space. It can be restored until its time is over.",
        fields: [
            {
                name: "days",
                label: "Days until it is removed for good",
                type: "number",
                value: 7,
                required: true,
                check: (days) => (days > 0 ? null : "This must be more than 0."),
            },
        ],
        submit: ({ days, confirm }) =>
            change("POST", at`/images/${image.name}/trash`, {
                keep_seconds: Math.round(days * DAY_SECONDS),
                confirm,
            }),
        done: (trashed, { days }) => `${trashed.name} is in the trash for ${span(days * DAY_SECONDS)}`,
        after: () => goTo(["images"]),
    });
}

export function askSnapshot(image) {
    ask({
        title: `Take a snapshot of ${image.name}`,
        label: "Take snapshot",
        text: "It has all writes acknowledged before. Writes continue meanwhile.",
        fields: [{ name: "name", label: "Name of the snapshot", required: true, hint: NAME_HINT }],
        submit: (values) => change("POST", at`/images/${image.name}/snapshots`, values),
        done: (snapshot) => `Snapshot ${image.name}@${snapshot.name} is taken`,
    });
}

export function askRollBack(image, snapshot) {
    const name = `${image.name}@${snapshot.name}`;
    ask({
        title: `Roll ${image.name} back to ${snapshot.name}`,
        label: "Roll back",
        confirm: name,
        text: "No client may write to the image meanwhile.",
        warning: "Later writes are lost unless a later snapshot has them.",
        submit: ({ confirm }) =>
            change("POST", at`/images/${image.name}/snapshots/${snapshot.name}/rollback`, { confirm }),
        done: `${image.name} has the data of ${snapshot.name} again`,
    });
}

export function askRemoveSnapshot(image, snapshot) {
    const name = `${image.name}@${snapshot.name}`;
    ask({
        title: `Remove snapshot ${name}`,
        label: "Remove",
        confirm: name,
        warning: "Data that only this snapshot has is lost. A snapshot with clones is not removed.",
        submit: ({ confirm }) =>
            change("POST", at`/images/${image.name}/snapshots/${snapshot.name}/remove`, { confirm }),
        done: `Snapshot ${name} is removed`,
    });
}

export function askRestore(trashed) {
    ask({
        title: `Restore ${trashed.name}`,
        label: "Restore",
        fields: [{ name: "name", label: "Another name for it", hint: "Empty: the name that it had" }],
        submit: (values) => change("POST", at`/trash/${trashed.id}/restore`, values),
        done: (image) => `Image ${image.name} is back`,
    });
}
