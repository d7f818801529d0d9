"""Counts phrases of documents that CONTRIBUTING.md ("Words") asks to avoid, and long sentences."""

import re

WORDS_MAX = 25

# A relative clause in place of a term, a person in place of a program, a homely verb, a number without its figure.
PHRASES = {
    "what": r"\bwhat\b",
    "who without a noun": r"(?:^|[.;:(|,] |\b(?:by|of|to|or|and|for|says?|that|with) )who\b",
    "somebody, nobody": r"\b(?:some|no|every|any)body\b",
    "of which": r"\b(?:of|by|to) (?:which|whom)\b",
    "so many": r"\bso (?:many|much|long|few|often)\b(?! (?:as|that)\b)",
    "tell, told": r"\b(?:tells?|told|telling)\b",
    "anew": r"\banew\b",
    "go on": r"\b(?:go|goes|went|gone|going) on\b",
    "none of, nothing of": r"\b(?:is|are|was|were) none of\b|\bnothing of (?:it|them|this|that)\b",
    "let in": r"\blet (?:him|it|them|who|what|in|through)\b|\blets? [a-z]+ in\b",
    "besides": r"\bbesides\b",
    "in turns": r"\bin turns\b",
}
PATTERN = re.compile("|".join(PHRASES.values()), re.IGNORECASE)
ABBREVIATIONS = re.compile(r"\b(?:e\.g|i\.e|etc|vs|No)\.")

# Phrases and long sentences that each page has at most. A page that is not here has none. Numbers only shrink.
MOST = {
    "CONTRIBUTING.md": (2, 2),
    "docs/benchmarks.md": (2, 2),
    "docs/reports.md": (2, 2),
    "docs/guide/benchmarks.md": (2, 2),
    "docs/guide/console.md": (3, 2),
    "docs/guide/monitoring.md": (2, 2),
    "docs/guide/nvme.md": (2, 2),
    "docs/guide/running.md": (3, 2),
    "docs/guide/s3.md": (4, 2),
    "docs/guide/troubleshooting.md": (2, 2),
    "docs/internals/performance.md": (2, 2),
    "docs/internals/testing.md": (2, 2),
    "docs/reference/formats.md": (5, 5),
    "docs/reference/iam.md": (2, 3),
    "docs/reference/metrics.md": (2, 2),
    "docs/reference/nvme.md": (2, 2),
    "docs/reference/protocol.md": (2, 3),
    "docs/reference/rights.md": (6, 4),
    "docs/reference/s3.md": (4, 2),
    "docs/reference/settings.md": (2, 2),
}


def blocks(page):
    """Yields (first line, text) of each paragraph, list item and row of a table, without code and headings."""
    first, lines, last = 0, [], 0
    for number, line in [*page.prose, (0, "")]:
        is_row = line.lstrip().startswith("|")
        begins = not line.strip() or is_row or line.startswith("#") or re.match(r"\s*(?:[-*]|\d+\.) ", line)
        if lines and (begins or number != last + 1):
            yield first, " ".join(lines)
            lines = []
        last = number
        if line.strip() and not line.startswith("#"):
            first = first if lines else number
            lines.append(re.sub(r"^(?:[-*]|\d+\.) ", "", line.strip()))
            if is_row:
                yield first, lines.pop()


def plain(text):
    """Returns a text with code spans as one word each and links as their text."""
    text = re.sub(r"`[^`]*`", "code", text)
    return ABBREVIATIONS.sub("abbreviation", re.sub(r"\]\([^)]*\)", "]", text))


def phrases(page):
    """Yields (line number, phrase)."""
    for number, text in blocks(page):
        for match in PATTERN.finditer(plain(text)):
            yield number, match[0]


def long_sentences(page):
    """Yields (line number, words) of each sentence of more than WORDS_MAX words; tables are excepted."""
    for number, text in blocks(page):
        if text.startswith("|"):
            continue
        for sentence in re.split(r"[.?!:]+[)*\"']*(?:\s|$)", plain(text)):
            words = len(re.findall(r"\w[\w'/.,-]*", sentence))
            if words > WORDS_MAX:
                yield number, words


def count(page):
    """Returns (phrases, long sentences) of a page."""
    return len([*phrases(page)]), len([*long_sentences(page)])


def check(page, most=None):
    """Yields the phrases, or the long sentences, of a page that has more than its number of them."""
    allowed = (MOST if most is None else most).get(page.name, (0, 0))
    for found, limit, kind in (
        ([*phrases(page)], allowed[0], "phrases"),
        ([*long_sentences(page)], allowed[1], f"sentences of more than {WORDS_MAX} words"),
    ):
        if len(found) > limit:
            yield 1, f"{len(found)} {kind}, at most {limit} (CONTRIBUTING.md, 'Words'):"
            for number, what in found:
                yield number, f"  '{what}'" if kind == "phrases" else f"  {what} words"


def table(pages):
    """Returns the numbers of all pages, as MOST has them."""
    counts = {page.name: count(page) for page in pages}
    lines = [f'    "{name}": {numbers},' for name, numbers in sorted(counts.items()) if numbers != (0, 0)]
    totals = [sum(numbers) for numbers in zip(*counts.values())]
    return "\n".join([*lines, f"    # {totals[0]} phrases and {totals[1]} long sentences in all"])
