#!/usr/bin/env python3
"""Checks that each action of the workflows is pinned by the hash of a commit, with its release in a comment: a tag can
be moved to other code, a hash cannot."""

import re
import sys
from pathlib import Path

WORKFLOWS = Path(__file__).resolve().parent.parent / ".github" / "workflows"
USES = re.compile(r"^\s*(?:- )?uses:\s*(.*)$")
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+(\.\d+)*$")


def faults(name, text):
    for number, line in enumerate(text.splitlines(), 1):
        found = USES.match(line)
        if found and not found[1].startswith("./") and not PINNED.match(found[1].strip()):
            yield f"{name}:{number}: {found[1]}: pin it as OWNER/NAME@COMMIT # vRELEASE"


def main():
    complaints = [fault for path in sorted(WORKFLOWS.glob("*.y*ml")) for fault in faults(path.name, path.read_text())]
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    sys.exit(bool(complaints))


if __name__ == "__main__":
    main()
