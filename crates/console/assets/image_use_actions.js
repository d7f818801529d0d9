// What can be done about who uses an image, and where its data is.

import { at, change } from "./api.js";
import { ask } from "./dialog.js";
import { bytes } from "./format.js";
import { goTo } from "./router.js";

export const ACCESS = {
    exclusive: "one client at a time",
    multi_attach: "several clients at once",
    read_only: "read-only",
};
const RATE = {
    name: "rate_bytes",
    label: "Limit of bytes copied per second",
    type: "size",
    hint: "Such as 50M. Empty: no limit",
    check: (rate) => (rate > 0 ? null : "This must be more than 0."),
};

const poolField = (pools, label, value) => ({
    name: "pool",
    label,
    type: "choice",
    value,
    options: pools.map(({ name }) => [name, name]),
});

export function askClone(image, snapshot, pools) {
    ask({
        title: `Clone ${image.name}@${snapshot.name}`,
        label: "Clone",
        text: "The clone is there at once and shares the snapshot's data. The snapshot stays as long as it has clones.",
        fields: [
            {
                name: "name",
                label: "Name of the clone",
                required: true,
                hint: "Letters, digits, '-', '_' and '.', not beginning with '-' or '.'",
            },
            poolField(pools, "Pool for the clone's own blocks", image.pool_name),
            {
                name: "sealed",
                label: "Seal the blocks that the clone writes (AES-256-GCM)",
                type: "truth",
                value: true,
                hint: "Moving the clone can change this later.",
            },
        ],
        submit: (values) =>
            change("POST", at`/images/${image.name}/snapshots/${snapshot.name}/clone`, values),
        done: (clone) => `Image ${clone.name} is a clone of ${image.name}@${snapshot.name}`,
        after: (clone) => goTo(["images", clone.name]),
    });
}

export function askFlatten(image) {
    const goesOn = Boolean(image.flattening);
    ask({
        title: goesOn ? `Resume flattening ${image.name}` : `Flatten ${image.name}`,
        label: goesOn ? "Resume" : "Flatten",
        text:
            `All data that it shares with ${image.parent} is copied, ${bytes(image.overlap_bytes)} at most; then it no longer ` +
            "needs its parent. It can stay in use meanwhile.",
        fields: [RATE],
        submit: (values) => change("POST", at`/images/${image.name}/flatten`, values),
        done: `${image.name} is being flattened`,
    });
}

export function askStopFlattening(image) {
    ask({
        title: `Stop flattening ${image.name}`,
        label: "Stop",
        text: "Copied data stays. Flattening again resumes from there.",
        submit: () => change("POST", at`/images/${image.name}/flatten/stop`),
        done: `${image.name} is no longer being flattened`,
    });
}

export function askMigrate(image, pools) {
    const sealing = image.sealed
        ? [["", "As it is: sealed"], ["false", "In clear"]]
        : [["", "As it is: in clear"], ["true", "Sealed (AES-256-GCM)"]];
    ask({
        title: `Move ${image.name} to another pool`,
        label: "Move",
        text:
            "It stays in use, and its data follows. Until everything is there it cannot be snapshotted, shrunk, renamed " +
            "or removed. Its snapshots come with it; if one has clones, flatten these first.",
        fields: [
            poolField(pools, "Pool", image.pool_name),
            { name: "sealed", label: "Its blocks", type: "choice", value: "", options: sealing },
            RATE,
        ],
        submit: ({ sealed, ...values }) =>
            change(
                "POST",
                at`/images/${image.name}/migrate`,
                sealed === undefined ? values : { ...values, sealed: sealed === "true" },
            ),
        done: (answer, { pool }) => `${image.name} moves to ${pool}`,
    });
}

/** Repeats the same move: an interrupted one resumes. */
export function askGoOnMoving(image) {
    ask({
        title: `Resume the move of ${image.name}`,
        label: "Resume",
        text: `Data that is not yet in the pool ${image.pool_name} is copied, also while the image is idle.`,
        fields: [RATE],
        submit: (values) =>
            change("POST", at`/images/${image.name}/migrate`, {
                ...values,
                pool: image.pool_name,
                sealed: image.sealed,
            }),
        done: `${image.name} moves to ${image.pool_name}`,
    });
}

/** Also for a move that is already being cancelled: repeating it changes the rate. */
export function askCancelMoving(image) {
    const goesOn = image.flattening.moving.goes_back;
    ask({
        title: goesOn ? `Resume cancelling the move of ${image.name}` : `Cancel the move of ${image.name}`,
        label: goesOn ? "Resume" : "Cancel the move",
        text: goesOn
            ? "Data written during the move is copied back, also while the image is idle."
            : `It stays in use, and is in its old pool at once. Data written since then in ${image.pool_name} is copied ` +
              "back, and is then removed there.",
        fields: [RATE],
        submit: (values) => change("POST", at`/images/${image.name}/migrate/cancel`, values),
        done: (answer) =>
            answer.cancelled ? `${image.name} is in ${answer.pool} as before` : `${image.name} goes back to ${answer.pool}`,
    });
}

export function askAccess(image) {
    ask({
        title: `Change access to ${image.name}`,
        label: "Change",
        text: "Applies to NBD clients. Connected ones stay.",
        fields: [
            {
                name: "access",
                label: "Use",
                type: "choice",
                value: image.export.access,
                options: Object.entries(ACCESS),
                hint: "Several clients at once have to coordinate their writes, as cluster file systems do.",
            },
            {
                name: "clients",
                label: "Over TCP only these clients",
                value: image.export.clients.join(", "),
                hint: "Names in certificates, addresses, networks, or * for all. Empty: all with a certificate",
            },
        ],
        submit: ({ access, clients = "" }) =>
            change("PUT", at`/images/${image.name}/access`, {
                access,
                clients: clients.split(/[\s,]+/).filter(Boolean),
            }),
        done: ({ access }) => `${image.name}: ${ACCESS[access]}`,
    });
}

export function askBreakLock(name, writer) {
    ask({
        title: `Take ${name} away from its writer`,
        label: "Take away",
        confirm: name,
        text: `Its writer is ${writer.purpose} on ${writer.host}, process ${writer.process_id}.`,
        warning: "The writer can no longer change anything, and its pending writes are lost.",
        submit: ({ confirm }) => change("POST", at`/images/${name}/lock/break`, { confirm }),
        done: ({ writer: was }) => (was ? `${name} was taken away from its writer` : `${name} had no writer`),
    });
}
