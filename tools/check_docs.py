#!/usr/bin/env python3
"""Checks the documents: README.md, the other pages at the top, and everything under docs/.

- relative links lead to files that exist, and their anchors to headings;
- docs/SUMMARY.md lists every page under docs/, and no page twice;
- prose is at most 100 columns wide (code, tables, headings, links and reports are excepted);
- no sentence tells who worked on what when: a document describes the system as it is;
- commands and options of `atoll` that a page names are in docs/reference/commands.md;
- files, programs with their options, crates, tests, targets of make, variables and messages that a page names
  exist, and so do documents that a source file names (tools/doc_facts.py);
- tables of crates agree with Cargo.toml and LAYERS, figures beside Ceph with their record, and the
  page about testing with the Makefile and the workflow of CI (tools/doc_facts.py);
- no page has more of the phrases that CONTRIBUTING.md asks to avoid than its number (tools/doc_words.py).
  `--counts` prints the numbers of all pages.

Exit codes: 0 no errors, 1 errors, which are listed.
"""

import argparse
import re
import subprocess
import sys
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path

import doc_facts
import doc_words
import plot_compared

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
COLUMNS_MAX = 100
# Pages whose capitalised words in code are types of the sources.
TYPES = ("docs/internals/", "CONTRIBUTING.md")

# Written by `atoll bench report` and by tools: not prose of ours.
GENERATED = (
    "docs/reference/commands.md",
    "docs/reference/api.md",
    "docs/reference/s3-tests.md",
)

# Words of a diary, and names that the project no longer uses. CHANGELOG.md may tell what changed.
DIARY = {
    r"\bissues? #?\d+": "number of an issue",
    r"\b(this|that|last|next|earlier|first|second|third|fourth|fifth|sixth) sessions?\b(?! (key|ticket))": "diary",
    r"\bbefore this (change|work|commit)\b": "tells when it changed",
    r"\b(as it was|than it was) before\b": "tells when it changed",
    r"\bsince then\b": "tells when it changed",
    r"\bthe day before\b": "tells when it changed",
    r"\b(was|were|is|are) mended\b|\bmended since\b": "tells when it changed",
    r"\bas of now\b|\bnot yet\b(?= (there|supported|done|built))": "say what is",
    r"\bdeviations? from the design\b": "the page says what is",
    r"\blater issues?\b": "a plan",
    r"\bfor now\b": "say what is",
    r"\bDESIGN\b": "a page outside the repository",
    r"\btak(e|es|ing) back (the|a|that|which) writes?\b": "roll back",
    r"\bgroups? at rest\b": "idle PGs",
    r"\b(this|only|each|every|which|the) rooms?\b(?! (for|left|in)\b)": "crate",
    r"\bwhoever\b": "name who it is",
    r"\bTODO\b|\bTBD\b|\bFIXME\b": "unfinished",
}

LINK = re.compile(
    r"(?<!!)\[(?P<text>[^\]\[]*(?:\[[^\]]*\])?[^\]\[]*)\]\((?P<target>[^()\s]+)(?:\s+\"[^\"]*\")?\)"
    r"|!\[[^\]]*\]\((?P<image>[^()\s]+)\)"
)
HTML_LINK = re.compile(r"\b(?:src|srcset|href)=\"(?P<target>[^\"]+)\"")
OPTION = re.compile(r"(?<![\w-])--[a-z0-9][a-z0-9-]*")
COMMAND = re.compile(r"(?:^|[`$ ])atoll (?P<words>[a-z][\w-]*(?: [a-z][\w-]*)*)(?P<rest>[^`|&#]*)")
DOCUMENT = re.compile(r"(?<!--markdown )\bdocs/[\w/-]+\.(?:md|json)\b")
CODE = ("*.rs", "*.py", "*.toml", "*.sh", "*.yml", "Makefile")
TABLE = re.compile(r"^\s*\|")
FENCE = re.compile(r"^\s*(```|~~~)")


@dataclass
class Page:
    """One Markdown file, without its code blocks."""

    path: Path
    prose: list = field(default_factory=list)  # (line number, text)
    code: list = field(default_factory=list)  # the same, of code blocks and code spans
    anchors: set = field(default_factory=set)

    @property
    def name(self):
        return self.path.relative_to(ROOT).as_posix()


def slug(heading, seen):
    """The anchor that mdBook and GitHub give a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    text = unicodedata.normalize("NFKD", text).lower().replace("`", "")
    text = re.sub(r"[^\w\- ]", "", text).strip().replace(" ", "-")
    count = seen.get(text, 0)
    seen[text] = count + 1
    return text if count == 0 else f"{text}-{count}"


def read_page(path):
    """Splits a page into prose and code, and collects the anchors of its headings."""
    page, in_fence, seen, is_blank = Page(path), False, {}, True
    in_list = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if FENCE.match(line):
            in_fence = not in_fence
            continue
        if in_fence:
            page.code.append((number, line))
            continue
        is_indented = line.startswith("    ") and not in_list
        if is_indented and (is_blank or not page.prose or page.prose[-1][0] != number - 1):
            page.code.append((number, line))
            continue
        is_blank = not line.strip()
        if re.match(r"\s*([-*]|\d+\.) ", line):
            in_list = True
        elif line and not line.startswith(" "):
            in_list = False
        if heading := re.match(r"#{1,6} +(.*?)\s*#*$", line):
            page.anchors.add(slug(heading[1], seen))
        page.anchors |= set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", line))
        page.prose.append((number, line))
    for first, text in paragraphs(page):
        for span in re.finditer(r"`([^`\n]+(?:\n[^`\n]+)?)`", text):
            page.code.append((first + text.count("\n", 0, span.start()), span[1].replace("\n", " ")))
    return page


def is_generated(page):
    return any(page.path.match(pattern) for pattern in GENERATED)


def paragraphs(page):
    """Yields (number of the first line, text) of lines that follow each other; a link may span lines."""
    start, lines = 0, []
    for number, line in [*page.prose, (0, "")]:
        if lines and number != start + len(lines):
            yield start, "\n".join(lines)
            lines = []
        if not lines:
            start = number
        lines.append(line)


def check_links(page, pages):
    """Yields what is wrong with the links of a page."""
    for first, text in paragraphs(page):
        text = re.sub(r"`[^`]*`", lambda code: re.sub(r"[^\n]", "x", code[0]), text)
        found = [(match.start(), match["target"] or match["image"]) for match in LINK.finditer(text)]
        found += [(match.start(), match["target"]) for match in HTML_LINK.finditer(text)]
        for position, target in found:
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            number = first + text.count("\n", 0, position)
            file, _, anchor = target.partition("#")
            path = (page.path.parent / file).resolve() if file else page.path
            if not path.exists():
                yield number, f"link to {target}: there is no such file"
            elif anchor and path.suffix == ".md":
                other = pages.get(path) or read_page(path)
                if anchor not in other.anchors:
                    yield number, f"link to {target}: that page has no such heading"


def check_width(page):
    """Yields lines of prose that are too wide."""
    for number, line in page.prose:
        if len(line) <= COLUMNS_MAX or TABLE.match(line) or line.startswith(("#", "[", "<")):
            continue
        without_links = re.sub(r"\]\([^)]*\)", "]", line)
        longest_word = max(map(len, line.split()))
        if len(without_links) > COLUMNS_MAX and longest_word < COLUMNS_MAX - 10:
            yield number, f"{len(line)} columns, at most {COLUMNS_MAX}"


def check_words(page):
    """Yields words of a diary."""
    for number, line in page.prose:
        text = re.sub(r"`[^`]*`", "``", line)
        for pattern, reason in DIARY.items():
            if match := re.search(pattern, text, re.IGNORECASE if pattern.islower() else 0):
                yield number, f"'{match[0]}': {reason}"


def read_commands():
    """Returns {command: its options} of docs/reference/commands.md."""
    commands, name = {}, None
    for line in (DOCS / "reference" / "commands.md").read_text().splitlines():
        if heading := re.match(r"#+ (atoll.*)", line):
            name = heading[1].strip()
            commands[name] = set()
        elif name:
            commands[name] |= set(OPTION.findall(line))
    return commands


def check_commands(page, commands):
    """Yields commands and options that the program does not have."""
    for number, line in page.code:
        for match in COMMAND.finditer(line):
            name = "atoll"
            for word in match["words"].split():
                if f"{name} {word}" not in commands:
                    break
                name += f" {word}"
            if name == "atoll":
                yield number, f"there is no command 'atoll {match['words'].split()[0]}'"
                continue
            for option in sorted(set(OPTION.findall(match["rest"])) - commands[name]):
                yield number, f"'{name}' has no option {option}"


def check_code():
    """Yields documents that source files name and that do not exist. It needs git's list of files."""
    if not (ROOT / ".git").exists():
        return
    listed = subprocess.run(["git", "ls-files", "-z", *CODE], cwd=ROOT, check=True, capture_output=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        if name == "tools/check_docs.py" or not (ROOT / name).exists():
            continue
        for number, line in enumerate((ROOT / name).read_text(errors="replace").splitlines(), 1):
            for match in DOCUMENT.finditer(line):
                if not (ROOT / match[0]).exists():
                    yield name, number, f"names {match[0]}, which does not exist"


def check_summary(pages):
    """Yields pages that docs/SUMMARY.md lacks, or has twice."""
    summary = DOCS / "SUMMARY.md"
    if not summary.exists():
        yield 1, "there is no docs/SUMMARY.md"
        return
    listed = {}
    for number, line in enumerate(summary.read_text().splitlines(), 1):
        for match in LINK.finditer(line):
            path = (DOCS / match["target"]).resolve()
            if path in listed:
                yield number, f"{match['target']} is listed twice"
            listed[path] = number
    for path in sorted(set(pages) - set(listed) - {summary}):
        if path.is_relative_to(DOCS):
            yield 1, f"{path.relative_to(DOCS)} is not listed"


def page_errors(pages):
    """Yields (page, line number, text) of every error in one page."""
    commands, files = read_commands(), doc_facts.listed_files()
    manifest = (ROOT / "Cargo.toml").read_text()
    names, crates = doc_facts.short_names(files), doc_facts.crates_of_workspace()
    identifiers, messages = doc_facts.identifiers_of(files), doc_facts.messages_of(files)
    all_options = set().union(doc_facts.options_of_scripts(files), *commands.values())
    variables, targets = doc_facts.variables_of(files), doc_facts.targets_of((ROOT / "Makefile").read_text())

    def read(name):
        return (ROOT / name).read_text()

    for page in pages.values():
        found = [*check_links(page, pages)]
        if not is_generated(page):
            found += [*check_width(page), *check_commands(page, commands)]
            if files:
                found += doc_facts.check_names(page, names, read)
                found += doc_facts.check_variables(page, variables)
                found += doc_facts.check_items(page, identifiers)
                found += doc_facts.check_messages(page, messages)
                found += doc_facts.check_types(page, identifiers) if page.name.startswith(TYPES) else ()
                found += doc_facts.check_options(page, all_options)
                found += doc_facts.check_cargo(page, crates, names)
            found += doc_facts.check_make(page, targets)
            found += doc_facts.check_rust(page, manifest)
            if page.path.name != "CHANGELOG.md":
                found += [*check_words(page), *doc_words.check(page)]
        yield from ((page.name, *error) for error in found)


def fact_errors(pages):
    """Yields (file, line number, text) where documents differ from crates, records and the workflow."""
    makefile = (ROOT / "Makefile").read_text()
    contributing, testing = pages[ROOT / "CONTRIBUTING.md"], pages[DOCS / "internals" / "testing.md"]
    architecture = pages[DOCS / "internals" / "architecture.md"]
    layers = doc_facts.LAYERS
    figures, days = plot_compared.read_records()
    workflow = ROOT / ".github" / "workflows" / "nightly.yml"
    files = doc_facts.listed_files()
    options = doc_facts.options_of_help((DOCS / "reference" / "commands.md").read_text())
    settings = pages[DOCS / "reference" / "settings.md"]
    protocol, invariants = pages[DOCS / "reference" / "protocol.md"], pages[DOCS / "internals" / "invariants.md"]
    checks = {
        "tools/check_dependencies.py": doc_facts.check_layers(doc_facts.crates_of_workspace()),
        contributing.name: doc_facts.check_crate_rows(
            doc_facts.rows_of(contributing, ["crate", "purpose"]), layers, has_layer=False
        ),
        architecture.name: [
            *doc_facts.check_crate_rows(doc_facts.rows_of(architecture, ["layer", "crate"]), layers, has_layer=True),
            *(doc_facts.check_unsafe(architecture, doc_facts.crates_with_unsafe(files)) if files else ()),
        ],
        testing.name: [
            *doc_facts.check_workflow(testing, makefile, workflow.read_text()),
            *doc_facts.check_ci(
                testing, (ROOT / ".ci" / "run").read_text(), workflow.with_name("test.yml").read_text()
            ),
            *doc_facts.check_campaign(testing, makefile),
            *doc_facts.check_scenarios(testing, files),
        ],
        settings.name: doc_facts.check_settings(doc_facts.rows_of(settings, ["variable"]), options),
        protocol.name: doc_facts.check_rules(protocol, invariants),
        "README.md": doc_facts.check_share(pages[ROOT / "README.md"], figures),
        "docs/images/ceph-cpu.svg": doc_facts.check_plot(plot_compared.OUTPUT.read_text(), figures, days),
        "docs/benchmarks.md": doc_facts.check_table((DOCS / "benchmarks.md").read_text(), figures),
    }
    records = {path.stem: plot_compared.read_runs(path) for path in sorted((ROOT / "records").glob("*.jsonl"))}
    page = pages[DOCS / "reports.md"]
    checks[page.name] = doc_facts.check_reports(page, records)
    for path in sorted(workflow.parent.glob("*.yml")):
        text = path.read_text()
        checks[path.relative_to(ROOT).as_posix()] = [
            *doc_facts.check_workflow_targets(text, doc_facts.targets_of(makefile)),
            *doc_facts.check_images(text, (ROOT / "rust-toolchain.toml").read_text()),
        ]
    limits = (ROOT / "crates" / "types" / "src" / "limits.rs").read_text()
    for name, ranges in doc_facts.RANGES.items():
        checks[name] = [*checks.get(name, []), *doc_facts.check_ranges(pages[ROOT / name], limits, ranges)]
    for kind, (name, pattern, *names) in doc_facts.LISTS.items() if files else ():
        sources = doc_facts.sources_of(pattern, files)
        checks[name] = [*checks.get(name, []), *doc_facts.check_list(pages[ROOT / name], sources, kind, *names)]
    for name, found in checks.items():
        yield from ((name, *error) for error in found)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", action="store_true", help="print the phrases and long sentences of each page")
    options = parser.parse_args()
    paths = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
    paths = [path for path in paths if "book" not in path.relative_to(ROOT).parts]
    pages = {path: read_page(path) for path in paths}
    if options.counts:
        print(doc_words.table(page for page in pages.values() if not is_generated(page)))
        return
    errors = [*page_errors(pages), *fact_errors(pages), *check_code()]
    errors += [("docs/SUMMARY.md", *found) for found in check_summary(pages)]
    for name, number, text in errors:
        print(f"{name}:{number}: error: {text}", file=sys.stderr)
    if errors:
        print(f"{len(errors)} errors in {len(pages)} documents", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
