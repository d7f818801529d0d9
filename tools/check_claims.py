#!/usr/bin/env python3
"""Checks that docs/reference/threat-model.md says only what a test shows.

A claim has a mark behind its sentence, such as [T7]. The table under "Claims and tests" has a row for each mark: the
claim in a few words, and the tests that show it, as `path::function`; or "not shown" and why.

- each mark has one row, and each row one mark, in the same order;
- each test of a row is in that file, and is a test;
- each section and each item of a list has a mark, but for those of what is not covered, and of the table itself.

Exit codes: 0 no errors, 1 errors, which are listed.
"""

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "threat-model.md"
TABLE = "Claims and tests"
# Sections without claims of their own: what is not protected, and what tables of the page sum up.
WITHOUT_CLAIMS = {"Not covered", "By attacker", "What each setting protects", TABLE}

MARK = re.compile(r"\[T(\d+)\]")
ROW = re.compile(r"^\| T(?P<number>\d+) \| (?P<claim>[^|]+) \| (?P<shown>[^|]+) \|$")
TEST = re.compile(r"`(?P<path>[\w./-]+)::(?P<function>\w+)`")
NOT_SHOWN = re.compile(r"^not shown: \S")
HEADING = re.compile(r"^#{2,4} (?P<name>.+)$")
ITEM = re.compile(r"^- ")
# What stands before a test: at most so many lines.
ATTRIBUTE_LINES_MAX = 6
RUST_TEST = re.compile(r"#\[(\w+::)*test\b")
# The macro of the conformance suite makes a test of each `path as name`, on each server.
MADE_TEST = re.compile(r"^ +(?:crate|super)(?:::\w+)+ as (?P<function>\w+),$", re.MULTILINE)


def is_test(text, path, function):
    """Whether a file has a test of this name."""
    lines = text.splitlines()
    keyword = "fn" if path.endswith(".rs") else "def"
    if keyword == "fn" and any(made["function"] == function for made in MADE_TEST.finditer(text)):
        return True
    pattern = re.compile(rf"^\s*(?:pub )?(?:async )?{keyword} {function}\b")
    for number, line in enumerate(lines):
        if not pattern.match(line):
            continue
        before = lines[max(0, number - ATTRIBUTE_LINES_MAX) : number]
        if keyword == "fn":
            return any(RUST_TEST.search(line) for line in before)
        # Functions of pytest, and checks of the programs that tests of crates run.
        return function.startswith("test_") or "@check" in before
    return False


def check_test(root, path, function):
    """What is wrong with a test that a row names; nothing, if it is there."""
    file = root / path
    if not file.is_file():
        return f"there is no file {path}"
    if not is_test(file.read_text(), path, function):
        return f"{path} has no test {function}"
    return None


def sections(lines):
    """Yields (number of its line, name, its lines with their numbers) of each section."""
    name, start, body, is_code = "", 1, [], False
    for number, line in enumerate(lines, 1):
        is_code ^= line.startswith("```")
        if (heading := HEADING.match(line)) and not is_code:
            yield start, name, body
            name, start, body = heading["name"], number, []
        else:
            body.append((number, line))
    yield start, name, body


def items(body):
    """Yields (number of its first line, its text) of each item of lists."""
    first, text = None, ""
    for number, line in [*body, (0, "")]:
        if first is not None and not (line.startswith("  ") and line.strip()):
            yield first, text
            first = None
        if ITEM.match(line):
            first, text = number, line
        elif first is not None:
            text += f" {line.strip()}"


def check_rows(root, body):
    """Yields what is wrong with rows, and at last the numbers of their marks."""
    numbers = []
    for line_number, line in body:
        if not line.startswith("|") or line.startswith(("| |", "|---", "| mark ")):
            continue
        row = ROW.match(line)
        if not row:
            yield line_number, "is no row of a mark, a claim and its tests"
            continue
        numbers.append(int(row["number"]))
        tests = list(TEST.finditer(row["shown"]))
        if not tests and not NOT_SHOWN.match(row["shown"]):
            yield line_number, f"T{row['number']} names no test; write 'not shown:' and why"
        for test in tests:
            if problem := check_test(root, test["path"], test["function"]):
                yield line_number, f"T{row['number']}: {problem}"
    yield None, numbers


def check(text, root=ROOT):
    """Returns (line, problem) of all that is wrong with the page."""
    problems, marks, rows = [], [], None
    for start, name, body in sections(text.splitlines()):
        if name == TABLE:
            *found, (_, rows) = check_rows(root, body)
            problems += found
            continue
        here = [int(mark) for _, line in body for mark in MARK.findall(line)]
        marks += here
        if name in WITHOUT_CLAIMS or not name:
            continue
        if not here:
            problems.append((start, f"the section '{name}' has no mark of a claim"))
        problems += [(line, "an item has no mark") for line, item in items(body) if not MARK.search(item)]
    if rows is None:
        return [*problems, (1, f"there is no section '{TABLE}'")]
    for number in sorted({mark for mark in marks if marks.count(mark) > 1}):
        problems.append((1, f"T{number} stands twice in the text"))
    for number in sorted(set(marks) - set(rows)):
        problems.append((1, f"T{number} has no row"))
    for number in sorted(set(rows) - set(marks)):
        problems.append((1, f"the row T{number} has no mark in the text"))
    if sorted(set(marks)) == sorted(set(rows)) and rows != marks:
        problems.append((1, "marks and rows are not in the same order"))
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    problems = check(PAGE.read_text())
    for line, text in problems:
        print(f"{PAGE.relative_to(ROOT)}:{line}: error: {text}", file=sys.stderr)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
