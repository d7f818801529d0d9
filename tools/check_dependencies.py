#!/usr/bin/env python3
"""Checks which crate uses which: arrows go one way, and some must not be there however many crates lie
between. A new crate of the workspace has to be put in its layer here."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLATFORM = "x86_64-unknown-linux-gnu"

# A crate may use crates of the layers above its own line, and none of its own layer or below.
LAYERS = [
    ["buffers", "codec", "connection-limits", "files", "outgoing", "pending"],
    ["fabric", "types"],
    ["metrics"],
    [
        "admin-socket",
        "audit",
        "ec",
        "iam",
        "keys",
        "luks2",
        "md5",
        "objects",
        "placement",
        "reactor",
        "security-log",
        "tls",
        "traces",
    ],
    ["credentials", "terminal", "wire"],
    ["cluster", "seal"],
    ["authority", "coordinator", "identities", "pg", "store"],
    ["storage"],
    ["client", "osd", "preflight", "sim"],
    ["image", "s3"],
    ["exports"],
    ["gateway", "nbd", "nvme"],
    ["admin"],
    ["node"],
    ["bench"],
    ["console", "lab"],
    ["atoll"],
]

# What does I/O or waits. Sans-IO crates take events and give back actions.
IO = ["atoll-cluster", "atoll-reactor", "etcd-client", "hyper", "io-uring", "mio", "reqwest", "socket2", "tokio"]

# Crates, what they may not reach, and why.
FORBIDDEN = [
    (["osd"], ["atoll-seal"], "OSDs hold no data keys"),
    (
        [
            "types",
            "buffers",
            "codec",
            "connection-limits",
            "pending",
            "metrics",
            "objects",
            "ec",
            "iam",
            "placement",
            "luks2",
        ],
        IO,
        "it is pure",
    ),
    (["wire", "pg", "store", "storage", "sim"], IO, "it is sans-IO"),
    (
        ["s3", "credentials", "tls"],
        ["atoll-cluster", "atoll-client", "etcd-client"],
        "cluster state is known by a trait, or not at all",
    ),
    (["admin", "node", "console"], ["atoll-s3", "atoll-gateway"], "they operate a cluster and serve no objects"),
    (["admin", "node", "console"], ["atoll-nbd", "atoll-nvme"], "they operate a cluster and serve no images"),
    (["keys"], ["atoll-seal"], "key services do not know what their keys protect"),
    (["image", "exports"], ["atoll-nbd", "atoll-nvme"], "images know none of their servers"),
]


def short(name):
    return name.removeprefix("atoll-")


def read_metadata():
    # Without a platform, cargo downloads what only others need.
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", PLATFORM]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)


def wrong_arrows(packages):
    """Arrows between crates of the workspace that do not go up the layers; tests count, too."""
    layer_of = {crate: number for number, layer in enumerate(LAYERS) for crate in layer}
    for package in packages:
        user = short(package["name"])
        if user not in layer_of:
            yield f"{user} has no layer: add it to LAYERS in tools/check_dependencies.py"
            continue
        # A dependency with a path is one of the workspace.
        for used in sorted({short(used["name"]) for used in package["dependencies"] if used.get("path")}):
            if used in layer_of and layer_of[used] >= layer_of[user]:
                yield f"{user} may not use {used}, which is in the same layer or in a later one"


def unknown_layers(packages):
    """Crates that LAYERS names and that the workspace does not have."""
    crates = {short(package["name"]) for package in packages}
    for crate in sorted({crate for layer in LAYERS for crate in layer} - crates):
        yield f"LAYERS in tools/check_dependencies.py names {crate}, which is no crate"


def path_to(goals, start, nodes, names):
    """The way from a crate to one of the names, as names. Tests count for the crate itself only."""
    ways = [[start]]
    seen = {start}
    for way in ways:
        for used in nodes[way[-1]]["deps"]:
            kinds = {kind["kind"] for kind in used["dep_kinds"]}
            if used["pkg"] in seen or (kinds == {"dev"} and len(way) > 1):
                continue
            seen.add(used["pkg"])
            ways.append([*way, used["pkg"]])
            if names[used["pkg"]] in goals:
                return [names[package] for package in ways[-1]]
    return None


def forbidden_paths(packages, nodes, names):
    by_crate = {short(package["name"]): package["id"] for package in packages}
    for crates, goals, reason in FORBIDDEN:
        for crate in crates:
            path = crate in by_crate and path_to(goals, by_crate[crate], nodes, names)
            if path:
                yield f"{' -> '.join(path)}: {reason}"


def main():
    metadata = read_metadata()
    names = {package["id"]: package["name"] for package in metadata["packages"]}
    members = set(metadata["workspace_members"])
    packages = [package for package in metadata["packages"] if package["id"] in members]
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    complaints = [*wrong_arrows(packages), *unknown_layers(packages), *forbidden_paths(packages, nodes, names)]
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    sys.exit(bool(complaints))


if __name__ == "__main__":
    main()
