#!/usr/bin/env python3
"""Prints docs/reference/commands.md: what `--help` of every command says.

- tools/command_reference.py target/release/atoll > docs/reference/commands.md
- tools/command_reference.py target/release/atoll --check: exit code 1 if the page differs
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "commands.md"
HEAD = """\
# Commands

What `atoll COMMAND --help` says; made by `tools/command_reference.py`. Exit codes, unless a command
says otherwise: 0 done, 1 failed (the reason is on stderr), 2 wrong usage. Most commands take
`--json`.
"""


def read_help(program, words):
    """The help of one command, as a terminal of 100 columns shows it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ATOLL_")}
    environment |= {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    command = [program, *words, "--help"]
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed: {done.stderr}")
    return "\n".join(line.rstrip() for line in done.stdout.splitlines()).strip()


def subcommands(text):
    """The names under the heading 'Commands:'."""
    section = re.search(r"^Commands:\n((?:[ \t].*\n?|\n(?=[ \t]))*)", text, re.MULTILINE)
    if not section:
        return []
    names = re.findall(r"^  ([a-z][\w-]*)(?:\s|$)", section[1], re.MULTILINE)
    return [name for name in names if name != "help"]


def sections(program, words=()):
    """Yields (words of the command, its help), parents first."""
    text = read_help(program, words)
    yield words, text
    for name in subcommands(text):
        yield from sections(program, (*words, name))


def render(program):
    """The page."""
    parts = [HEAD]
    for words, text in sections(program):
        title = " ".join(("atoll", *words))
        level = "##" if len(words) < 2 else "###"
        parts.append(f"{level} {title}\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path, help="the built program")
    parser.add_argument("--check", action="store_true", help=f"compare with {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    page = render(options.program.resolve())
    if not options.check:
        sys.stdout.write(page)
    elif PAGE.read_text() != page:
        sys.exit(f"{PAGE.relative_to(ROOT)} is not what --help says: run tools/command_reference.py")


if __name__ == "__main__":
    main()
