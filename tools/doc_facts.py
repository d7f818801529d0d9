"""Compares documents with what they name: files, programs and their options, targets of the Makefile, crates,
the workflow of CI, and the record of a measurement.

Each check takes texts or pages and yields (number of the line, text of the error); tools/check_docs.py runs them,
tests/tools shows that each of them fails.
"""

import fnmatch
import re
import subprocess
import tomllib
from pathlib import Path

import doc_words
import plot_compared
from check_dependencies import LAYERS

ROOT = Path(__file__).resolve().parent.parent
SOURCE_ROOTS = ("crates/", "atoll/", "tests/", "tools/", "docs/", ".ci/", ".github/")
PLACEHOLDER = re.compile(r"[A-Z]{2,}|[<>{}$]")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
ITEM = re.compile(r"\b(?:[A-Za-z_]\w*::)+[A-Za-z_]\w*")
TYPE = re.compile(r"(?<![\w/.:-])[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]+)+\b(?![/.:-])")
PARITY = r"(\d+) to (\d+) parity shards"
RULE = re.compile(r"(?:\| )?\*\*([A-Z]{2}-\d+)(?:\.| \|)?")
VARIABLE = re.compile(r"\bATOLL_[A-Z0-9_]+\b")
CARGO = re.compile(r"\bcargo (?:\+\w+ )?(?:test|run|build|doc|bench) (?P<arguments>[^`|&#;]*)")
# Options of fio and nvme-cli that pages name without the program.
FOREIGN_OPTIONS = {"--import", "--reconnect-delay", "--sync"}
# What stands for an argument in a quoted message.
MESSAGE_ARGUMENT = re.compile(r"\.\.\.|'?\b(?:osd\.)?[A-Z]\b'?|\be[A-Z]\b|\b[A-Z]{3,}\b|\d+\.\d+\.\d+\.\d+|\b\d+\b")
# Messages of the operating system.
FOREIGN_MESSAGES = {"No such file or directory"}
# Options that scripts take from a function of tests/e2e/lib/scenario.py.
SHARED_OPTIONS = "tests/e2e/lib/scenario.py"

# Columns of the table in docs/benchmarks.md beside Ceph, and subjects of the record; rows of erasure-coded pools have
# subjects with this ending.
# Parts of `make nightly`: what its recipe has, and what docs/internals/testing.md calls it.
NIGHTLY = {
    "make test": r"^nightly:.*\btest\b",
    "slow end-to-end tests": r"-m nightly\b",
    "random order": r"--shuffle\b",
    "chaos": r"MAKE\) .*\bchaos\b",
    "campaign": r"MAKE\) .*\bcampaign\b",
}


def listed_files():
    """Returns all files of git. Without git nothing is known, and no name can be wrong."""
    if not (ROOT / ".git").exists():
        return set()
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    return set(filter(None, listed.stdout.split("\0")))


def short_names(files):
    """Returns all names that a document may give files and folders: whole paths, and ends of paths with or without
    `src` that do not look like whole ones."""
    names = set()
    for file in files:
        for path in {file, file.replace("/src/", "/")}:
            parts = path.split("/")
            for start in range(len(parts)):
                ends = {"/".join(parts[start:end]) for end in range(start + 1, len(parts) + 1)}
                is_whole = start == 0 and path == file
                names |= {name for name in ends if is_whole or not name.startswith(SOURCE_ROOTS)}
    return names | {name.removesuffix(".rs") for name in names}


def is_source_name(word):
    """Whether a word is to be a file of the repository, rather than one of a user."""
    return word.startswith(SOURCE_ROOTS) or bool(re.fullmatch(r"[\w./*<>-]+\.(?:rs|py|sh)", word))


def check_word(word, names):
    """Returns what is wrong with a word that is to be a file, or None."""
    if not is_source_name(word) or "{" in word or "://" in word:
        return None
    if "*" in word:
        return None if any(fnmatch.fnmatch(name, word) for name in names) else f"names {word}, which fits no file"
    is_there = PLACEHOLDER.search(word) or word in names
    return None if is_there else f"names {word}, which does not exist"


def check_names(page, names, read):
    """Yields programs and files that are not there, and options that a script does not know."""
    for number, line in page.code:
        for command in re.split(r"[|;&]+", line.split(" #")[0]):
            words = [word.strip("\"'").rstrip("/.,:") for word in command.split()]
            words = [word.partition("::")[0] if ".py::" in word or ".rs::" in word else word for word in words]
            wrong = [text for text in (check_word(word, names) for word in words) if text]
            yield from ((number, text) for text in wrong)
            scripts = [
                word for word in words if word in names and word.endswith(".py") and word.startswith(SOURCE_ROOTS)
            ]
            if scripts and not wrong and "pytest" not in words:
                known = read(scripts[0]) + read(SHARED_OPTIONS)
                for option in sorted(set(OPTION.findall(command[command.index(scripts[0]) :]))):
                    if f'"{option}"' not in known:
                        yield number, f"{scripts[0]} has no option {option}"


def variables_of(files):
    """Returns the variables of the environment that source files know."""
    known = set()
    for file in files:
        if not file.endswith(".md") and (ROOT / file).is_file():
            known |= set(VARIABLE.findall((ROOT / file).read_text(errors="ignore")))
    return known


def identifiers_of(files):
    """Returns all identifiers of Rust and Python sources."""
    found = set()
    for file in files:
        if file.endswith((".rs", ".py")) and (ROOT / file).is_file():
            found |= set(re.findall(r"[A-Za-z_]\w*", (ROOT / file).read_text(errors="ignore")))
    return found


def options_of_scripts(files):
    """Returns the options that scripts of the repository know."""
    found = set()
    for file in files:
        if file.startswith(("tools/", "tests/", "crates/lab/tools/")) and (ROOT / file).is_file():
            text = (ROOT / file).read_text(errors="ignore")
            found |= set(re.findall(r"[\"'](--[a-z][a-z0-9-]*)[\"']", text))
    return found


def check_options(page, known):
    """Yields options without their program, such as `--size 4G`, that no program has."""
    for number, line in page.code:
        for option in sorted(set(OPTION.findall(line)) - known - FOREIGN_OPTIONS) if line.startswith("--") else ():
            yield number, f"no program has the option {option}"


def check_items(page, identifiers):
    """Yields items of Rust, such as `Log::append`, whose type or name no source has."""
    for number, line in page.code:
        # Functions of scripts are for tools/check_claims.py.
        for path in ITEM.findall(re.sub(r"\.py::\w+", "", line)):
            if missing := [part for part in path.split("::") if part not in identifiers]:
                yield number, f"names {path}, and no source has {missing[0]}"


def check_types(page, identifiers):
    """Yields types, such as `TracedCopies`, that no source has."""
    for number, line in page.code:
        for name in sorted(set(TYPE.findall(line)) - identifiers):
            yield number, f"no source has {name}"


def messages_of(files):
    """Returns the text of all Rust sources with whole strings, and a zero byte for each argument of a format."""
    texts = [(ROOT / file).read_text() for file in sorted(files) if file.endswith(".rs")]
    text = re.sub(r"\\\n\s*", "", "\n".join(texts))
    return re.sub(r"\{[^{}\n]{0,80}\}", "\0", text)


def quoted_messages(page):
    """Yields (line number, message): in tables with the header `message`, and in prose with `...` in quotes."""
    is_table = False
    for number, line in page.prose:
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        is_table = line.startswith("|") and (is_table or cells[0] == "message")
        yield from ((number, message) for message in re.findall(r"`([^`]+)`", cells[0]) if is_table)
    text = "\n".join(line for _, line in page.prose)
    for quote in re.finditer(r'"([^"`|]*\.\.\.[^"`|]*)"', text):
        yield page.prose[text.count("\n", 0, quote.start())][0], " ".join(quote[1].split())


def check_messages(page, messages):
    """Yields quoted messages that no Rust source has."""
    for number, message in quoted_messages(page):
        for part in MESSAGE_ARGUMENT.split(message):
            part = part.strip(" :,;.'\"()/")
            if len(part) >= 7 and part not in messages and part not in FOREIGN_MESSAGES:
                yield number, f"no source has the message '{part}'"


def check_variables(page, known):
    """Yields variables of the environment that no source file knows."""
    for number, line in [*page.prose, *page.code]:
        for variable in sorted(set(VARIABLE.findall(line)) - known):
            yield number, f"no source file knows {variable}"


def options_of_help(text):
    """Returns {variable: its default, or None} of all options with a variable in docs/reference/commands.md."""
    options = {}
    for entry in re.split(r"\n(?=\s{2,}-|#|\n)", text):
        entry = " ".join(entry.split())
        if variable := re.search(r"\[env: (ATOLL_[A-Z0-9_]+)=\]", entry):
            default = re.search(r"\[default: ([^\]]*)\]", entry)
            options[variable[1]] = default[1] if default else None
    return options


def check_settings(rows, options):
    """Yields variables that the table of settings lacks, and defaults of one word that are not those of the help."""
    defaults = {name: (line, cells[2]) for line, cells in rows for name in VARIABLE.findall(cells[0])}
    for name in sorted(set(options) - set(defaults)):
        yield rows[0][0] if rows else 1, f"the table of settings lacks {name}"
    for name, (line, text) in defaults.items():
        said, default = text.strip("`"), options.get(name)
        if default and re.fullmatch(r"[\w./-]+", said) and re.fullmatch(r"[\w./-]+", default) and said != default:
            yield line, f"the default of {name} is {default}, not {said}"


def targets_of(makefile):
    """Returns the targets of a Makefile."""
    return set(re.findall(r"^([a-z][\w-]*):(?!=)", makefile, re.MULTILINE))


def check_make(page, targets):
    """Yields targets of make that the Makefile lacks."""
    for number, line in page.code:
        for words in re.findall(r"(?:^|[\s&;(])make ((?:[a-z][\w-]*)(?: [a-z][\w-]*)*)", line.split("#")[0]):
            for word in words.split():
                if word not in targets:
                    yield number, f"the Makefile has no target {word}"


def check_cargo(page, crates, names):
    """Yields crates, tests and examples in commands of cargo that are not there."""
    for number, line in page.code:
        for match in CARGO.finditer(line):
            arguments = match["arguments"]
            packages = [package.removeprefix("atoll-") for package in re.findall(r"-p ([a-z0-9-]+)", arguments)]
            for package in packages:
                if package not in crates:
                    yield number, f"there is no crate {package}"
            for kind, name in re.findall(r"--(test|example) ([a-z0-9_]+)", arguments):
                folder = "tests" if kind == "test" else "examples"
                if packages and not any(f"crates/{package}/{folder}/{name}" in names for package in packages):
                    yield number, f"{', '.join(packages)} has no {kind} {name}"


def crates_of_workspace():
    """Returns the names of all crates, without `atoll-`."""
    manifests = [*(ROOT / "crates").glob("*/Cargo.toml"), ROOT / "atoll" / "Cargo.toml"]
    return {tomllib.loads(path.read_text())["package"]["name"].removeprefix("atoll-") for path in manifests}


def rows_of(page, header):
    """Returns (line number, cells) of each row of the first table whose first cells are these."""
    rows, inside = [], False
    for number, line in page.prose:
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if inside and not line.startswith("|"):
            break
        if inside and not set(line) <= set("|-: "):
            rows.append((number, cells))
        inside = inside or (line.startswith("|") and cells[: len(header)] == header)
    return rows


def check_layers(crates):
    """Yields crates that LAYERS names and that do not exist, and those that it lacks."""
    layered = [crate for layer in LAYERS for crate in layer]
    for crate in sorted(set(layered) - crates):
        yield 1, f"LAYERS names the crate {crate}, which does not exist"
    for crate in sorted(crates - set(layered)):
        yield 1, f"LAYERS lacks the crate {crate}"
    for crate in sorted({crate for crate in layered if layered.count(crate) > 1}):
        yield 1, f"LAYERS has the crate {crate} twice"


def check_crate_rows(rows, layers, has_layer):
    """Yields where a table of crates differs from LAYERS: a crate per row or several, in the order of the layers."""
    number_of = {crate: number for number, layer in enumerate(layers, 1) for crate in layer}
    seen, highest = [], 0
    for line, cells in rows:
        for crate in re.findall(r"`([a-z0-9-]+)`", cells[1 if has_layer else 0]):
            if crate not in number_of:
                yield line, f"the table names the crate {crate}, which is in no layer"
                continue
            if crate in seen:
                yield line, f"the table has the crate {crate} twice"
            seen.append(crate)
            if has_layer and cells[0] != str(number_of[crate]):
                yield line, f"the crate {crate} is in layer {number_of[crate]}, not {cells[0]}"
            if number_of[crate] < highest:
                yield line, f"the crate {crate} is in layer {number_of[crate]}, after one of layer {highest}"
            highest = max(highest, number_of[crate])
    line = rows[0][0] if rows else 1
    for crate in sorted(set(number_of) - set(seen)):
        yield line, f"the table lacks the crate {crate}"


def check_workflow(page, makefile, workflow):
    """Yields where `make nightly`, the nightly workflow and docs/internals/testing.md disagree."""
    if not re.search(r"^\s*- run: make nightly$", workflow, re.MULTILINE):
        yield 1, "the nightly workflow does not run 'make nightly'"
    recipe = re.search(r"^nightly:.*(?:\n\t.*)*", makefile, re.MULTILINE)
    named = [(number, line) for number, line in page.code if line.strip().startswith("make nightly ")]
    if not recipe or not named:
        yield 1, "'make nightly' is not in the Makefile, or not described in a line of its own"
        return
    number, line = named[0]
    for part, pattern in NIGHTLY.items():
        in_recipe, in_page = bool(re.search(pattern, recipe[0], re.MULTILINE)), part in line
        if in_recipe != in_page:
            yield number, f"'make nightly': {part} is only in the {'Makefile' if in_recipe else 'page'}"


def check_ci(page, script, workflow):
    """Yields where docs/internals/testing.md, .ci/run and the workflow of tests disagree about what CI runs."""
    says_so = any(line.strip().startswith("make test ") and "(.ci/run)" in line for _, line in page.code)
    if says_so != bool(re.search(r"^\s*- run: \.ci/run$", workflow, re.MULTILINE)):
        yield 1, "the workflow of tests and the line about 'make test' do not both name .ci/run"
    if not re.search(r"^(?:exec )?make test$", script, re.MULTILINE):
        yield 1, ".ci/run does not run 'make test'"


def check_workflow_targets(workflow, targets):
    """Yields targets that a workflow runs and the Makefile lacks."""
    for number, line in enumerate(workflow.splitlines(), 1):
        for target in re.findall(r"run: make ([\w-]+)", line):
            if target not in targets:
                yield number, f"runs 'make {target}', which the Makefile lacks"


def check_scenarios(page, files):
    """Yields rows of the table of end-to-end scenarios without a module, and modules without a row."""
    if not files:
        return
    rows = rows_of(page, ["scenario", "shows"])
    named = [(line, name) for line, cells in rows for name in re.findall(r"`([a-z0-9_]+)`", cells[0])]
    modules = {match[1] for file in files if (match := re.fullmatch(r"tests/e2e/test_([a-z0-9_]+)\.py", file))}
    for line, name in named:
        if name not in modules:
            yield line, f"there is no scenario tests/e2e/test_{name}.py"
    text = "\n".join(line for _, line in page.prose)
    for module in sorted(modules - {name for _, name in named}):
        if f"test_{module}.py" not in text:
            yield 1, f"names no scenario {module}"


def rules_of(page):
    """Yields (line number, name, whether it has a check) of each rule of docs/reference/protocol.md."""
    for number, text in doc_words.blocks(page):
        if match := RULE.match(text):
            yield number, match[1], bool(re.search(r"`\[\w+\]`", text))


def check_rules(protocol, invariants):
    """Yields names of rules that the protocol has twice, and differences from the page of invariants."""
    rules = [*rules_of(protocol)]
    names = [name for _, name, _ in rules]
    for number, name, _ in rules:
        if names.count(name) > 1:
            yield number, f"the rule {name} is there {names.count(name)} times"
    text = "\n".join(line for _, line in invariants.prose)
    _, _, unchecked = text.partition("## Rules without a check")
    for number, name, has_check in rules:
        if has_check == bool(re.search(rf"\b{name}\b", unchecked)):
            state = "has a check, and is" if has_check else "has no check, and is not"
            yield number, f"{name} {state} in the list of {invariants.name} of rules without a check"
    for name in sorted(set(re.findall(r"\b[A-Z]{2}-\d+\b", text)) - set(names)):
        yield 1, f"{invariants.name} names the rule {name}, which is not there"


# Lists of names that a page gives and sources define: the page, the sources, the names there, and those on the page.
LISTS = {
    "a check of preflight": (
        "docs/guide/preflight.md",
        "crates/preflight/src/*.rs",
        r'"((?:cpu|memory|clock|io_uring|rdma|drive|network)\.[a-z_]+)"',
        r"`((?:cpu|memory|clock|io_uring|rdma|drive|network)\.[a-z_]+)`",
    ),
    "a code of health": (
        "docs/guide/running.md",
        "crates/coordinator/src/health.rs",
        r'^\s+"([A-Z]+(?:_[A-Z]+)+)",$',
        r"`([A-Z]+(?:_[A-Z]+)+)`",
    ),
}


def check_list(page, sources, kind, in_source, on_page):
    """Yields names of a kind that the sources define and the page lacks."""
    defined = set(re.findall(in_source, "\n".join(sources), re.MULTILINE))
    text = "\n".join(line for _, line in page.prose)
    for name in sorted(defined - set(re.findall(on_page, text))):
        yield 1, f"lacks {kind}: {name}"
    if not defined:
        yield 1, f"no source defines {kind}"


def sources_of(pattern, files):
    """Returns the texts of all files whose names fit a pattern."""
    return [(ROOT / file).read_text() for file in sorted(files) if fnmatch.fnmatch(file, pattern)]


# Ranges that pages give, by the constants of crates/types/src/limits.rs.
RANGES = {
    "README.md": {
        "COPIES": r"(\d+) to (\d+) copies",
        "EC_DATA_SHARDS": r"(\d+) to (\d+) data",
        "EC_PARITY_SHARDS": PARITY,
    },
    "docs/reference/settings.md": {"EC_DATA_SHARDS": r"(\d+) to (\d+) data", "EC_PARITY_SHARDS": PARITY},
}


def check_ranges(page, limits, ranges):
    """Yields ranges that a page lacks, or gives otherwise than the constants."""
    text = "\n".join(line for _, line in page.prose)
    for name, pattern in ranges.items():
        constant = re.search(rf"\b{name}: RangeInclusive<u32> = (\d+)\.\.=(\d+);", limits)
        found = re.search(pattern, text)
        if not constant or not found or constant.groups() != found.groups():
            said = " to ".join(found.groups()) if found else "nothing"
            yield 1, f"says {said} for {name}, which is {' to '.join(constant.groups()) if constant else 'not there'}"


def check_rust(page, manifest):
    """Yields versions of Rust that a page calls sufficient, and that are not the one of Cargo.toml."""
    oldest = re.search(r'^rust-version = "([\d.]+)"$', manifest, re.MULTILINE)[1]
    for number, line in page.prose:
        for version in re.findall(r"\bRust (?:toolchain \()?(\d+\.\d+) or newer", line):
            if version != oldest:
                yield number, f"calls Rust {version} sufficient, Cargo.toml {oldest}"


def check_images(workflow, toolchain):
    """Yields images of a workflow whose Rust is not that of rust-toolchain.toml."""
    channel = re.search(r'^channel = "(\d+\.\d+)', toolchain, re.MULTILINE)[1]
    for number, line in enumerate(workflow.splitlines(), 1):
        for version in re.findall(r"image: rust:(\d+\.\d+)", line):
            if version != channel:
                yield number, f"uses Rust {version}, rust-toolchain.toml {channel}"


def crates_with_unsafe(files):
    """Returns the crates whose sources have `unsafe` code, tests excepted."""
    sources = [file for file in files if re.fullmatch(r"crates/[\w-]+/src/.+\.rs", file) and (ROOT / file).is_file()]
    pattern = re.compile(r"\bunsafe (?:fn|impl|extern|\{)")
    return {file.split("/")[1] for file in sources if pattern.search((ROOT / file).read_text())}


def check_unsafe(page, crates):
    """Yields crates that the sentence about `unsafe` names and that have none, and the other way round."""
    text = "\n".join(line for _, line in page.prose)
    paragraph = re.search(r"^`unsafe` is in.*(?:\n.+)*", text, re.MULTILINE)
    named = set(re.findall(r"`([a-z0-9-]+)`", paragraph[0])) - {"unsafe"} if paragraph else set()
    if named != crates:
        yield 1, f"names {sorted(named)} as crates with `unsafe`, which are {sorted(crates)}"


def check_campaign(page, makefile):
    """Yields numbers of `make campaign` that the paragraph about it lacks."""
    recipe = re.search(r"^campaign:.*(?:\n\t.*)*", makefile, re.MULTILINE)
    text = "\n".join(line for _, line in page.prose)
    paragraph = re.search(r"^`make campaign` runs.*(?:\n.+)*", text, re.MULTILINE)
    if not recipe or not paragraph:
        yield 1, "no paragraph begins with '`make campaign` runs'"
        return
    for variable, value in re.findall(r"\b(ATOLL_\w+)=(\d+)", recipe[0]):
        if value != "1" and not re.search(rf"(?<![\d,]){int(value):,}(?![\d,])", paragraph[0]):
            yield 1, f"'make campaign' sets {variable}={value}, which its paragraph does not say"


def check_share(page, figures):
    """Yields a share of Ceph's CPU time that README.md gives and the record does not."""
    shares = [100 * figures["atoll", load, "all"] / figures["ceph", load, "all"] for load in plot_compared.LOADS]
    expected = f"{min(shares):.0f} to {max(shares):.0f} %"
    sentence = re.compile(r"(\d+ to \d+ %) of\s+the\s+CPU\s+time")
    text = "\n".join(line for _, line in page.prose)
    found = sentence.search(text)
    if not found:
        yield 1, f"does not say 'N to M % of the CPU time' (the record gives {expected})"
    elif found[1] != expected:
        yield text.count("\n", 0, found.start()) + 1, f"says {found[1]} of Ceph's CPU time, the record {expected}"


def check_plot(shown, figures, days):
    """Yields that the plot beside Ceph is not the one of the records."""
    if shown != plot_compared.draw(figures, days):
        yield 1, "is not drawn from the records: tools/plot_compared.py"


def check_reports(page, records):
    """Yields sections about reports without the day, or with another number of runs than the record."""
    text = "\n".join(line for _, line in page.prose)
    for section in re.split(r"^(?=## )", text, flags=re.MULTILINE):
        if match := re.search(r"`records/([\w-]+)\.jsonl`", section):
            name, said = match[1], re.search(r"([\d,]+) runs\b", section)
            _, day, runs = records[name]
            if day not in section:
                yield 1, f"does not say that {name} was measured on {day}"
            if said and int(said[1].replace(",", "")) != runs:
                yield 1, f"says that {name} has {said[1]} runs, the record has {runs}"


def check_table(text, figures):
    """Yields that the table beside Ceph is not the one of the records."""
    if plot_compared.table(figures) not in text:
        yield 1, "has not the table beside Ceph that tools/plot_compared.py prints"
