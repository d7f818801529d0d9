#!/usr/bin/env python3
"""Prints docs/reference/api.md: which call of the admin API is which command, and which commands have no call.

- tools/api_reference.py > docs/reference/api.md
- tools/api_reference.py --check: exit code 1 if the page differs

It ends with an error if a call names a command that there is not, or if it is not said why a command has no call.
"""

import argparse
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "crates" / "console" / "openapi.json"
COMMANDS = ROOT / "docs" / "reference" / "commands.md"
PAGE = ROOT / "docs" / "reference" / "api.md"

# Why commands have no call. A name stands for all commands that begin with it.
REASONS = {
    "It works on the data directory, the devices or the programs of its host, or stops what would answer.": [
        "up",
        "down",
        "join",
        "osd create",
        "osd add",
        "osd run",
        "store",
        "key use-transit",
        "key ages",
        "key restore",
        "admin run",
        "state",
        "gateway run",
        "nbd run",
        "nvme run",
        "preflight",
        "audit verify",
        "metrics ls",
        "metrics config",
        "completion",
    ],
    "It hands out secrets or rights; an operator's session shall not be enough for that.": [
        "cluster sign",
        "credentials",
        "host",
        "key backup",
        "key rotate-sts",
        "cluster token",
        "cluster key",
        "metrics token",
        "nvme host",
        "operator oidc",
    ],
    "It destroys for good what the call puts into the trash, or keys without which data is lost.": [
        "image rm",
        "image trash rm",
        "key destroy",
        "key forget",
    ],
    "It gives up what was acknowledged; an operator's session shall not be enough for that.": ["pg accept"],
    "It carries data, or reads all of it, and runs for as long as that takes.": [
        "image export",
        "image import",
        "image cp",
        "image sparsify",
        "image du",
        "bench",
        "sim",
    ],
    "The call is `atoll user key` or `atoll account key`; for one key both are the same.": [
        "account key disable",
        "account key enable",
        "account key rm",
        "user key create",
        "user key ls",
    ],
    "Operators set up their own second factor, by the calls `enrolTotp` and `confirmTotp`.": [
        "operator totp enrol",
        "operator totp confirm",
    ],
    "Prometheus asks `/metrics` of the admin server for it, with a token.": ["metrics show"],
    "Nothing speaks against a call: there is none, and no page of the console needs it.": [
        "audit heads",
        "image meta",
        "pg why",
        "policy simulate",
    ],
}

HEAD = """\
# The admin API and commands

Made by `tools/api_reference.py`. How to log in and call: [the API](../guide/console.md#the-api). What
a call takes and gives is in `/api/openapi.json` of each admin server.

A call is a command. The admin server runs it in its own process, with the same checks, and answers
with what the command prints with `--json`; so there is one function for both, in `crates/admin`,
`crates/image` or `crates/iam`. A few calls look for themselves, with the same functions:
`getPgScrub` (a part of `atoll pg query`), `listEvents`, `approveRequest` and `denyRequest`, in
which a session stands for the operator's password. `getFigures` and `listSlowOperations`
ask the same processes in the same way as `atoll top` and `atoll slow`, and tell it in the form that
charts and the page need. What the console calls an access key of an account is that of a user if
the call names one: then it is `atoll user key`.

Tests see to it: each call runs the command that the document names (`crates/console/src/api`), the
command is there, and this page has all of both.

## Calls

"""


def calls():
    """Yields (method, path, call), in the order of the document."""
    for path, methods in json.loads(DOCUMENT.read_text())["paths"].items():
        for method, call in methods.items():
            if method != "parameters":
                yield method.upper(), path, call


def leaves():
    """The commands that have none below them."""
    names = re.findall(r"^##+ atoll (.+)$", COMMANDS.read_text(), re.MULTILINE)
    return [name for name in names if not any(other.startswith(f"{name} ") for other in names)]


def reason_of(command, used):
    """Why a command has no call; what says so is added to `used`."""
    for reason, names in REASONS.items():
        for name in names:
            if command == name or command.startswith(f"{name} "):
                used.add(name)
                return reason
    sys.exit(f"no call of {DOCUMENT.name} is the command '{command}', and REASONS do not say why")


def table(heads, rows):
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def render():
    """The page."""
    commands, rows, called = leaves(), [], set()
    for method, path, call in calls():
        command = call.get("x-atoll-command")
        if command is not None and command not in commands:
            sys.exit(f"{call['operationId']} is 'atoll {command}', and there is no such command")
        called.add(command)
        what = f"`atoll {command}`" if command else f"none: {call['x-atoll-no-command']}"
        rows.append([f"`{call['operationId']}`", f"{method} `{path.removeprefix('/api/v1')}`", what])
    used, without = set(), {}
    for command in commands:
        if command not in called:
            without.setdefault(reason_of(command, used), []).append(f"`{command}`")
    stale = [name for names in REASONS.values() for name in names if name not in used]
    if stale:
        sys.exit(f"REASONS are for commands that have calls or are gone: {', '.join(stale)}")
    reasons = [[reason, ", ".join(names)] for reason, names in without.items()]
    return (
        HEAD
        + table(["call", "below `/api/v1`", "command"], rows)
        + "\n## Commands without a call\n\n"
        + table(["why", "commands"], reasons)
    )


def main():
    """Prints the page, or compares it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with docs/reference/api.md")
    page = render()
    if not parser.parse_args().check:
        sys.stdout.write(page)
    elif not PAGE.exists() or page != PAGE.read_text():
        sys.exit(f"{PAGE.relative_to(ROOT)} is not what the document says: run tools/api_reference.py")


if __name__ == "__main__":
    main()
