#!/usr/bin/env python3
"""Counts phrases that CONTRIBUTING.md ("Words") asks to avoid in the doc comments and texts of the Rust sources.

Three numbers per crate, which only shrink:
- doc comments that begin with a question word or "Of", instead of a noun or a verb;
- phrases in doc comments (`///`, `//!`), which are also the help of commands;
- phrases in string literals outside of tests: errors, log lines, health texts.

`--counts` prints the numbers of all crates, as MOST has them; `--list CRATE` prints each place of a crate.

Exit codes: 0 no errors, 1 errors, which are listed.
"""

import argparse
import re
import sys
from collections import Counter
from pathlib import Path

import doc_words

ROOT = Path(__file__).resolve().parent.parent
BEGINNING = re.compile(r"(?:What|Whether|Whose|Whom?|Of|So)\b")
DOC = re.compile(r"//[/!](?!/) ?(.*)")
PLACEHOLDER = re.compile(r"\{[^{}\n]*\}")
# Comments, raw strings, strings, and characters, which may be a quotation mark.
TOKEN = re.compile(
    r"//[^\n]*|/\*.*?\*/|\br(?P<hashes>#*)\".*?\"(?P=hashes)|\"(?:\\.|[^\"\\])*\"|'(?:\\.[^']*|[^\\'])'", re.DOTALL
)

# (beginnings, phrases in doc comments, phrases in texts) that each crate has at most. A crate that is not here has
# none. Numbers only shrink.
MOST = {
    "admin": (0, 1, 1),
    "admin-socket": (0, 1, 0),
    "atoll": (0, 2, 2),
    "client": (0, 1, 0),
    "cluster": (0, 4, 1),
    "files": (0, 1, 0),
    "iam": (0, 4, 0),
    "image": (0, 4, 0),
    "lab": (0, 2, 0),
    "nbd": (0, 1, 0),
    "node": (0, 1, 0),
    "nvme": (0, 2, 0),
    "osd": (0, 2, 0),
    "pg": (0, 3, 0),
    "reactor": (0, 2, 1),
    "s3": (0, 11, 4),
    "sim": (0, 2, 0),
    "storage": (0, 0, 1),
    "store": (0, 3, 0),
    "types": (0, 3, 0),
}


def sources():
    """Yields (crate, path) of each Rust file."""
    for directory in [ROOT / "atoll", *sorted((ROOT / "crates").iterdir())]:
        for path in sorted(directory.rglob("*.rs")):
            if "target" not in path.relative_to(directory).parts:
                yield directory.name, path


def doc_comments(text):
    """Yields (first line, lines) of each doc comment, without code blocks."""
    first, lines, in_fence = 0, [], False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        match = DOC.fullmatch(line.strip())
        if not match:
            if lines:
                yield first, lines
            lines, in_fence = [], False
            continue
        first = first if lines else number
        is_fence = match[1].lstrip().startswith("```")
        lines.append("" if in_fence or is_fence else match[1])
        in_fence ^= is_fence


def paragraphs(first, lines):
    """Yields (first line, text) of each paragraph and list item of a doc comment."""
    start, gathered = first, []
    for number, line in enumerate([*lines, ""], first):
        if gathered and (not line.strip() or re.match(r"\s*(?:[-*#|]|\d+\.) ?", line)):
            yield start, " ".join(gathered)
            gathered = []
        if line.strip():
            start = start if gathered else number
            gathered.append(line.strip())


def texts(text):
    """Yields (line number, text) of each string literal of more than one word."""
    for match in TOKEN.finditer(text):
        if not match[0].startswith(("/", "'")) and " " in match[0]:
            yield text.count("\n", 0, match.start()) + 1, re.sub(r"\\\n\s*", "", match[0])


def is_test(path):
    """Says if a file has nothing but tests."""
    return bool({"tests", "benches"} & set(path.relative_to(ROOT).parts)) or path.name in ("tests.rs", "testing.rs")


def found_in(path):
    """Yields (kind, line number, phrase, text) of a file; kinds are 0 to 2, in the order of MOST."""
    text = path.read_text()
    for first, lines in doc_comments(text):
        if match := BEGINNING.match(lines[0]):
            yield 0, first, match[0], lines[0]
        for number, paragraph in paragraphs(first, lines):
            for match in doc_words.PATTERN.finditer(doc_words.plain(paragraph)):
                yield 1, number, match[0], paragraph
    if not is_test(path):
        code = re.split(r"(?:^|\n)#\[cfg\(test\)\]\nmod \w+ \{", text)[0]
        for number, string in texts(code):
            for match in doc_words.PATTERN.finditer(doc_words.plain(PLACEHOLDER.sub("{}", string))):
                yield 2, number, match[0], string


def counts():
    """Returns {crate: (beginnings, phrases in doc comments, phrases in texts)}."""
    numbers = {crate: [0, 0, 0] for crate, _ in sources()}
    for crate, path in sources():
        for kind, *_ in found_in(path):
            numbers[crate][kind] += 1
    return {crate: tuple(three) for crate, three in numbers.items()}


def check(numbers, most):
    """Yields an error for each crate that has more of a kind than its number."""
    kinds = ("doc comments that begin with What, Whether, Who, Of or So", "phrases in doc comments", "phrases in texts")
    for crate, found in numbers.items():
        for kind, number, limit in zip(kinds, found, most.get(crate, (0, 0, 0)), strict=True):
            if number > limit:
                yield (
                    f"{crate}: {number} {kind}, at most {limit} (CONTRIBUTING.md, 'Words'); "
                    f"tools/source_words.py --list {crate}"
                )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", action="store_true", help="print the numbers of each crate")
    parser.add_argument("--phrases", action="store_true", help="print the numbers of each phrase")
    parser.add_argument("--list", metavar="CRATE", help="print each place of a crate")
    options = parser.parse_args()
    if options.list:
        for path in (path for crate, path in sources() if crate == options.list):
            for _, number, phrase, text in found_in(path):
                print(f"{path.relative_to(ROOT)}:{number}: '{phrase}': {text}")
        return
    if options.phrases:
        phrases = Counter((kind, phrase.lower()) for _, path in sources() for kind, _, phrase, _ in found_in(path))
        print("\n".join(f"{number:5} {kind} {phrase}" for (kind, phrase), number in phrases.most_common()))
        return
    numbers = counts()
    if options.counts:
        print("\n".join(f'    "{crate}": {three},' for crate, three in sorted(numbers.items()) if any(three)))
        print(f"    # {tuple(map(sum, zip(*numbers.values(), strict=True)))} in all")
        return
    errors = [*check(numbers, MOST)]
    print("\n".join(errors), end="\n" if errors else "", file=sys.stderr)
    sys.exit(bool(errors))


if __name__ == "__main__":
    main()
