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
    label: "Copy at most so much per second",
    type: "size",
    hint: "Such as 50M. Empty: as fast as it goes",
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
            poolField(pools, "Pool for what the clone writes", image.pool_name),
            {
                name: "sealed",
                label: "Seal the blocks that the clone writes (AES-256-GCM)",
                type: "truth",
                value: true,
                hint: "This cannot be changed later.",
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
        title: goesOn ? `Go on flattening ${image.name}` : `Flatten ${image.name}`,
        label: goesOn ? "Go on" : "Flatten",
        text:
            `Everything that it shows of ${image.parent} is copied, ${bytes(image.overlap_bytes)} at most, so that it ` +
            "needs its parent no more. It can be in use meanwhile.",
        fields: [RATE],
        submit: (values) => change("POST", at`/images/${image.name}/flatten`, values),
        done: `${image.name} is being flattened`,
    });
}

export function askStopFlattening(image) {
    ask({
        title: `Stop flattening ${image.name}`,
        label: "Stop",
        text: "What was copied stays. Flattening again goes on from there.",
        submit: () => change("POST", at`/images/${image.name}/flatten/stop`),
        done: `${image.name} is not flattened any more`,
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

/** The same move again: it goes on if it was interrupted. */
export function askGoOnMoving(image) {
    ask({
        title: `Go on moving ${image.name}`,
        label: "Go on",
        text: `What is not in the pool ${image.pool_name} yet is copied while nobody writes to the image, too.`,
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

/** Also when it goes back already: the same again changes the rate. */
export function askCancelMoving(image) {
    const goesOn = image.flattening.moving.goes_back;
    ask({
        title: goesOn ? `Go on going back with ${image.name}` : `Cancel the move of ${image.name}`,
        label: goesOn ? "Go on" : "Cancel the move",
        text: goesOn
            ? "What was written while it was being moved is brought back while nobody writes to the image, too."
            : `It stays in use, and is at once in the pool that it came from. What was written since in ${image.pool_name} ` +
              "is brought back, and then the data there is removed.",
        fields: [RATE],
        submit: (values) => change("POST", at`/images/${image.name}/migrate/cancel`, values),
        done: (answer) =>
            answer.cancelled ? `${image.name} is in ${answer.pool} as before` : `${image.name} goes back to ${answer.pool}`,
    });
}

export function askAccess(image) {
    ask({
        title: `Change who may use ${image.name}`,
        label: "Change",
        text: "This is about NBD clients. Those that are connected stay.",
        fields: [
            {
                name: "access",
                label: "Use",
                type: "choice",
                value: image.export.access,
                options: Object.entries(ACCESS),
                hint: "Several clients at once have to agree who writes where, as cluster file systems do.",
            },
            {
                name: "clients",
                label: "Over TCP only these clients",
                value: image.export.clients.join(", "),
                hint: "Names in certificates, addresses, networks, or * for everybody. Empty: all with a certificate",
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
        warning: "The writer can change nothing any more, and what it has not written yet is lost to it.",
        submit: ({ confirm }) => change("POST", at`/images/${name}/lock/break`, { confirm }),
        done: ({ writer: was }) => (was ? `${name} was taken away from its writer` : `${name} had no writer`),
    });
}
