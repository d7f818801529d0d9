#!/usr/bin/env python3
"""Fails if functions of Rust grow past a screen, or parameters hide in tuples, more often than LIMITS allows.

    tools/rust_shapes.py           # check against LIMITS
    tools/rust_shapes.py --show    # print each place

Tests do not count. The numbers only shrink.
"""

import argparse
import re
import sys
from pathlib import Path

import module_circles

ROOT = Path(__file__).resolve().parent.parent
LINES_MAX = 60
# Places of each kind that are there.
LIMITS = {"long functions": 30, "tuple parameters": 36}

FUNCTION = re.compile(r"\bfn\s+(\w+)")
TUPLE = re.compile(r"^\s*(?:mut\s+)?\(")


def parameters(text, start):
    """Returns the texts of a function's parameters, of which the parenthesis opens at or behind `start`."""
    depth, begin, found = 0, None, []
    angles = 0
    for index in range(start, len(text)):
        letter = text[index]
        if begin is None:
            # The parenthesis of the parameters is behind those of generics.
            angles += (letter == "<") - (letter == ">" and text[index - 1] != "-")
            if letter == "(" and angles == 0:
                begin, depth = index + 1, 1
            continue
        depth += (letter in "([{") - (letter in ")]}")
        # A comma between the arguments of a type ends no parameter.
        angles += (letter == "<") - (letter == ">" and text[index - 1] not in "-=")
        if depth == 0 or (depth == 1 and angles == 0 and letter == ","):
            found.append(text[begin:index])
            begin = index + 1
        if depth == 0:
            return found, index
    return found, len(text)


def body_lines(text, start):
    """Returns the number of lines of a function whose signature ends at `start`; 0 without a body."""
    for index in range(start, len(text)):
        if text[index] == ";":
            return 0
        if text[index] == "{":
            return text.count("\n", start, module_circles.item_end(text, index)) + 1
    return 0


def shapes_of(text):
    """Yields (kind, name of the function) for each place of Rust code."""
    for match in FUNCTION.finditer(text):
        found, end = parameters(text, match.end())
        if any(TUPLE.match(parameter) for parameter in found):
            yield "tuple parameters", match[1]
        if text.count("\n", match.start(), end) + body_lines(text, end) > LINES_MAX:
            yield "long functions", match[1]


def sources():
    for path in sorted([*ROOT.glob("crates/*/src/**/*.rs"), *ROOT.glob("atoll/src/**/*.rs")]):
        if "tests" not in path.parts and not path.stem.endswith("tests"):
            yield path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    places = {}
    for path in sources():
        for kind, name in shapes_of(module_circles.without_tests(path.read_text())):
            places.setdefault(kind, []).append(f"{path.relative_to(ROOT)}: {name}")
    counts = {kind: len(found) for kind, found in places.items()}
    if options.show:
        for kind, found in places.items():
            print(kind, *found, sep="\n    ")
    for kind in sorted({*counts, *LIMITS}):
        now, most = counts.get(kind, 0), LIMITS.get(kind, 0)
        if now > most:
            print(f"tools/rust_shapes.py: error: {now} {kind}, at most {most}: --show lists them")
        elif now < most:
            print(f"tools/rust_shapes.py: error: {now} {kind} are left: write the number into LIMITS")
    sys.exit(counts != LIMITS)


if __name__ == "__main__":
    main()
