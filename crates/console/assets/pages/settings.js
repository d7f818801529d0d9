// Settings of the whole cluster, and flags that hold automatic actions back.

import { at, change, get } from "../api.js";
import { ask } from "../dialog.js";
import { h } from "../dom.js";
import { action, badge, heading, quiet, section, time } from "../parts.js";
import { may, maySet } from "../session.js";
import { table } from "../table.js";

const FLAGS = [
    ["noout", "marking OSDs out that are down for long"],
    ["nobackfill", "copying to OSDs that are not members yet"],
    ["norebalance", "the balancer"],
    ["noscrub", "scheduled scrubs"],
    ["nodeepscrub", "scheduled deep scrubs"],
];
const MODES = ["secure", "secure-128", "crc"].map((mode) => [mode, mode]);
const SETTINGS = [
    ["osd_down_out_seconds", "Seconds until an OSD that is down is marked out; 0: never"],
    ["osds_in_percent_min", "No OSD is marked out by itself if less than this share would be left in"],
    ["balance_seconds", "Pause between two rounds of the balancer"],
    ["near_full_percent", "An OSD with more of its space in use is near full"],
    ["full_percent", "An OSD with more of its space in use takes no new data: 50 to 97"],
    ["busy_poll_us", "Microseconds, 0 to 1000, that an OSD polls before it sleeps; 0: none"],
    ["trace_endpoint", "URL of the trace collector, such as https://collector.example:4318; empty: none"],
    ["trace_one_in", "Trace one of N operations; 0: none"],
    ["trace_slow", "Trace also all operations that take 100 ms or more"],
    ["frame_mode_cluster", "Protection of frames among OSDs", MODES],
    ["frame_mode_client", "Between OSDs and NBD servers, benchmarks and the command line", MODES],
    ["frame_mode_gateway", "Between OSDs and gateways", MODES],
    ["frame_rekey_seconds", "Seconds until a connection replaces its key"],
    ["session_idle_seconds", "Seconds, 60 to 604800, until an unused session of an operator ends"],
    ["api_token_days_max", "Longest validity of a token for the admin API, in days: 1 to 366"],
    ["totp_required_roles", "Roles of operators who need a second factor, with commas between them; empty: none"],
    ["session_seconds", "Seconds, 60 to 604800, until a session of an operator ends"],
];

export function title() {
    return "Settings and flags";
}

export async function load(route, signal) {
    const [settings, flags] = await Promise.all([get("/settings", {}, signal), get("/flags", {}, signal)]);
    return { settings, flags };
}

export function view({ settings, flags }) {
    const since = new Map(flags.map((flag) => [flag.flag, flag.since_unix_ms]));
    return [
        heading("Settings and flags"),
        section(
            "Flags",
            quiet("A flag holds something back. Health warns while any is set."),
            table({
                id: "flags",
                caption: "Flags",
                rows: FLAGS,
                key: ([flag]) => flag,
                columns: [
                    { label: "Flag", value: ([flag]) => flag, cell: ([flag]) => h("code", {}, flag) },
                    {
                        label: "State",
                        value: ([flag]) => String(since.has(flag)),
                        cell: ([flag]) => (since.has(flag) ? badge("warn", "set") : badge("good", "not set")),
                    },
                    {
                        label: "Since",
                        value: ([flag]) => since.get(flag) ?? 0,
                        cell: ([flag]) => time(since.get(flag)),
                    },
                    { label: "Holds back", value: ([, text]) => text },
                    may("setFlag", "unsetFlag")
                        ? { label: "Actions", actions: true, cell: (row) => flagAction(row, since.has(row[0])) }
                        : null,
                ],
            }),
        ),
        section(
            "Settings",
            quiet("In force within seconds, on all hosts."),
            table({
                id: "settings",
                caption: "Settings",
                rows: SETTINGS,
                key: ([name]) => name,
                columns: [
                    { label: "Setting", value: ([name]) => name, cell: ([name]) => h("code", {}, name) },
                    {
                        label: "Value",
                        value: ([name]) => settings[name],
                        cell: ([name]) => h("strong", {}, String(settings[name])),
                    },
                    { label: "Meaning", value: ([, text]) => text },
                    may("setSetting")
                        ? { label: "Actions", actions: true, cell: (row) => settingAction(row, settings[row[0]]) }
                        : null,
                ],
            }),
        ),
    ];
}

function flagAction([flag, text], isSet) {
    const verb = isSet ? "Unset" : "Set";
    return action(
        isSet ? "unsetFlag" : "setFlag",
        verb,
        () =>
            ask({
                title: `${verb} the flag ${flag}`,
                label: verb,
                text: isSet ? `The cluster resumes ${text}.` : `The cluster pauses ${text}.`,
                submit: () => change(isSet ? "DELETE" : "PUT", at`/flags/${flag}`),
                done: `${flag} is ${isSet ? "not set any more" : "set"}`,
            }),
        { "aria-label": `${verb} ${flag}` },
    );
}

/** The type of a setting's field, and whether it needs a value: a text may be empty. */
function typeOf(value, options) {
    if (options) return { type: "choice", options, required: true };
    if (typeof value === "boolean") return { type: "truth" };
    return typeof value === "number" ? { type: "number", required: true } : { type: "text" };
}

function settingAction([name, text, options], value) {
    if (!maySet(name)) return null;
    const field = { name, label: name, hint: text, value, ...typeOf(value, options) };
    return action(
        "setSetting",
        "Change",
        () =>
            ask({
                title: `Change ${name}`,
                label: "Change",
                warning: options
                    ? "The mode crc lets an attacker on the network read object names and forge requests."
                    : null,
                fields: [field],
                submit: (values) => change("PATCH", "/settings", { [name]: values[name] ?? "" }),
                done: (changed) => `${name} is ${changed[name]}`,
            }),
        { "aria-label": `Change ${name}` },
    );
}
