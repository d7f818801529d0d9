"""Each check of tools/check_docs.py passes on a right text, and fails on one with a planted error."""

import check_dependencies
import check_docs
import doc_facts
import doc_words
import plot_compared
import pytest

FILES = {
    "tools/made.py",
    "crates/store/src/log.rs",
    "crates/store/tests/store/main.rs",
    "crates/store/examples/fragmentation.rs",
    "tests/e2e/test_nbd.py",
    "tests/e2e/lib/waiting.py",
    "crates/lab/tools/growth.py",
}
NAMES = doc_facts.short_names(FILES)


@pytest.fixture
def page(tmp_path, monkeypatch):
    """Returns a function that makes a page of a text."""
    monkeypatch.setattr(check_docs, "ROOT", tmp_path)

    def make(text):
        path = tmp_path / "page.md"
        path.write_text(text)
        return check_docs.read_page(path)

    return make


def errors(found):
    return [text for _, text in found]


def names_errors(page):
    return errors(doc_facts.check_names(page, NAMES, lambda _: 'add_argument("--size")'))


@pytest.mark.parametrize(
    "right",
    [
        "`tools/made.py --size 4`",
        "`store/src/log.rs`",
        "`crates/store`",
        "`tests/e2e/test_*.py`",
        "`tests/e2e/test_NAME.py`",
        "`lib/waiting.py`",
        "`.venv/bin/python -m pytest --shuffle=1 'tests/e2e/test_nbd.py::test_it'`",
        "    X=1 .venv/bin/python tools/made.py --size 4   # --not-an-option",
    ],
)
def test_files_that_exist_may_be_named(page, right):
    assert names_errors(page(right)) == []


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ("`tools/growth.py --only depths`", "names tools/growth.py, which does not exist"),
        ("`tools/gone.py --atoll\n--rounds 3`", "names tools/gone.py, which does not exist"),
        ("    echo x | tools/gone.py", "names tools/gone.py, which does not exist"),
        ("`store/src/gone.rs`", "names store/src/gone.rs, which does not exist"),
        ("`gone.rs`", "names gone.rs, which does not exist"),
        ("`tests/e2e/run_*.py`", "names tests/e2e/run_*.py, which fits no file"),
        ("`tools/made.py --groups 4`", "tools/made.py has no option --groups"),
        ("`.venv/bin/python -m pytest -k x tests/e2e/gone.py`", "names tests/e2e/gone.py, which does not exist"),
        ("`gone.py`", "names gone.py, which does not exist"),
        ("`python3 tools/made.py tests/gone.txt`", "names tests/gone.txt, which does not exist"),
    ],
)
def test_files_and_options_that_do_not_exist_are_refused(page, wrong, complaint):
    assert names_errors(page(wrong)) == [complaint]


def test_options_without_their_program_are_known(page):
    text = page("`--size 4G` and `--gone`, and `fio --direct`, and `--sync=dsync`")
    assert errors(doc_facts.check_options(text, {"--size", "--gone"})) == []
    assert errors(doc_facts.check_options(text, {"--size"})) == ["no program has the option --gone"]


def test_unknown_items_of_rust_are_refused(page):
    text, known = page("`Log::append`, as `atoll_store::Log` does, and `log::append`"), {"Log", "atoll_store"}
    assert errors(doc_facts.check_items(text, known | {"append", "log"})) == []
    assert errors(doc_facts.check_items(text, known | {"log"})) == [
        "names Log::append, and no source has append",
        "names log::append, and no source has append",
    ]


def test_unknown_variables_are_refused(page):
    text = "`ATOLL_SEED` and `ATOLL_GONE`"
    assert errors(doc_facts.check_variables(page(text), {"ATOLL_SEED"}))[0] == "no source file knows ATOLL_GONE"
    assert not errors(doc_facts.check_variables(page(text), {"ATOLL_SEED", "ATOLL_GONE"}))


HELP = """\
      --threads <N>  Threads
                     [default: 4] [env: ATOLL_THREADS=]
      --data <DIR>   A directory [env: ATOLL_DATA=]
"""


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ("| `ATOLL_THREADS` | `run` | `4` |\n| `ATOLL_DATA` | all | `./data` |", None),
        ("| `ATOLL_THREADS` | `run` | 8 |\n| `ATOLL_DATA` | all | |", "the default of ATOLL_THREADS is 4, not 8"),
        ("| `ATOLL_THREADS` | `run` | 4 |", "the table of settings lacks ATOLL_DATA"),
    ],
)
def test_settings_are_those_of_the_help(page, table, complaint):
    rows = doc_facts.rows_of(page(f"| variable | option of | default |\n|---|---|---|\n{table}\n"), ["variable"])
    found = errors(doc_facts.check_settings(rows, doc_facts.options_of_help(HELP)))
    assert found == ([complaint] if complaint else [])


def test_unknown_targets_of_make_are_refused(page):
    text = page("`make test` or `make gone`, and nothing else will make sense")
    assert errors(doc_facts.check_make(text, {"test"})) == ["the Makefile has no target gone"]
    assert not errors(doc_facts.check_make(text, {"test", "gone"}))


@pytest.mark.parametrize(
    ("command", "complaints"),
    [
        ("cargo test --profile ci -p atoll-store --test store crash", []),
        ("cargo run --release -p atoll-store --example fragmentation", []),
        ("cargo test -p atoll-gone", ["there is no crate gone"]),
        ("cargo test -p atoll-store --test gone", ["store has no test gone"]),
        ("cargo run -p atoll-store --example gone", ["store has no example gone"]),
    ],
)
def test_cargo_commands_name_what_exists(page, command, complaints):
    assert errors(doc_facts.check_cargo(page(f"`{command}`"), {"store"}, NAMES)) == complaints


LAYERS = [["codec", "files"], ["store"]]
ROWS = ["| 1 | `codec` |", "| 1 | `files` |", "| 2 | `store` |"]


def table_errors(page, rows):
    text = "\n".join(["| layer | crate |", "|---|---|", *rows])
    return errors(doc_facts.check_crate_rows(doc_facts.rows_of(page(text), ["layer", "crate"]), LAYERS, has_layer=True))


def test_a_table_of_all_crates_in_order_passes(page):
    assert table_errors(page, ROWS) == []


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        (ROWS[:2], "the table lacks the crate store"),
        ([*ROWS, "| 2 | `gone` |"], "the table names the crate gone, which is in no layer"),
        ([*ROWS, ROWS[2]], "the table has the crate store twice"),
        ([ROWS[0], ROWS[2], ROWS[1]], "the crate files is in layer 1, after one of layer 2"),
        ([*ROWS[:2], "| 1 | `store` |"], "the crate store is in layer 2, not 1"),
        ([], "the table lacks the crate codec"),
    ],
)
def test_a_table_that_differs_from_the_layers_is_refused(page, rows, complaint):
    assert complaint in table_errors(page, rows)


def test_layers_are_the_crates_of_the_workspace(monkeypatch):
    monkeypatch.setattr(doc_facts, "LAYERS", LAYERS)
    assert not errors(doc_facts.check_layers({"codec", "files", "store"}))
    assert errors(doc_facts.check_layers({"codec", "files"})) == ["LAYERS names the crate store, which does not exist"]
    assert errors(doc_facts.check_layers({"codec", "files", "store", "wire"})) == ["LAYERS lacks the crate wire"]


def test_check_dependencies_refuses_a_layer_without_its_crate(monkeypatch):
    monkeypatch.setattr(check_dependencies, "LAYERS", LAYERS)
    packages = [{"name": "atoll-codec"}, {"name": "atoll-files"}, {"name": "atoll-store"}]
    assert [*check_dependencies.unknown_layers(packages)] == []
    assert "store, which is no crate" in [*check_dependencies.unknown_layers(packages[:2])][0]


def test_versions_of_rust_are_those_of_the_manifest_and_the_toolchain(page):
    manifest, toolchain = 'rust-version = "1.92"', 'channel = "1.95.0"'
    assert not errors(doc_facts.check_rust(page("Rust 1.92 or newer; a Rust toolchain (1.92 or newer)"), manifest))
    assert errors(doc_facts.check_rust(page("Rust 1.85 or newer"), manifest))
    assert errors(doc_facts.check_rust(page("a Rust toolchain (1.85 or newer)"), manifest))
    assert not errors(doc_facts.check_images("      image: rust:1.95-bookworm", toolchain))
    assert errors(doc_facts.check_images("      image: rust:1.96-bookworm", toolchain))


def test_crates_with_unsafe_are_named(page):
    text = page("`unsafe` is in `reactor`, and in\n`nvme` (FFI).\n\n`store` has none.\n")
    assert errors(doc_facts.check_unsafe(text, {"reactor", "nvme"})) == []
    assert errors(doc_facts.check_unsafe(text, {"reactor", "nvme", "keys"}))
    assert errors(doc_facts.check_unsafe(text, {"reactor"}))


MAKEFILE = """\
test: unit

nightly: test nightly-packages
\t$(PYTEST) -m nightly
\t$(PYTEST) -m any_order --shuffle=1
\t@$(MAKE) --no-print-directory chaos
\t@$(MAKE) --no-print-directory campaign

campaign:
\tATOLL_RUNS=50000 ATOLL_ONCE=1 cargo test
"""
WORKFLOW = "    steps:\n      - run: make nightly\n"
TESTING = """\
    make nightly    # make test, slow end-to-end tests, a random order, chaos, the campaign

`make campaign` runs 50,000 of
them.
"""


def nightly_errors(page, testing=TESTING, makefile=MAKEFILE, workflow=WORKFLOW):
    read = page(testing)
    return errors([*doc_facts.check_workflow(read, makefile, workflow), *doc_facts.check_campaign(read, makefile)])


def test_the_page_the_makefile_and_the_workflow_agree(page):
    assert nightly_errors(page) == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"workflow": WORKFLOW.replace("nightly", "campaign")}, "the nightly workflow does not run 'make nightly'"),
        ({"makefile": MAKEFILE.replace("-m nightly", "-m all")}, "slow end-to-end tests is only in the page"),
        ({"makefile": MAKEFILE.replace("directory chaos", "directory test")}, "chaos is only in the page"),
        ({"testing": TESTING.replace("a random order, ", "")}, "random order is only in the Makefile"),
        ({"testing": TESTING.replace("make nightly ", "make night ")}, "not described in a line of its own"),
        ({"makefile": MAKEFILE.replace("50000", "5000")}, "'make campaign' sets ATOLL_RUNS=5000"),
        ({"testing": TESTING.replace("`make campaign` runs", "It runs")}, "no paragraph begins with"),
    ],
)
def test_a_difference_between_page_makefile_and_workflow_is_refused(page, change, complaint):
    assert complaint in "\n".join(nightly_errors(page, **change))


@pytest.mark.parametrize(
    ("text", "complaints"),
    [
        ("`A_B` and `C_D`", []),
        ("`A_B`", ["lacks a code: C_D"]),
        ("nothing", ["lacks a code: A_B", "lacks a code: C_D"]),
    ],
)
def test_a_page_lists_all_names_of_a_kind(page, text, complaints):
    names = (r'"([A-Z]_[A-Z])"', r"`([A-Z]_[A-Z])`")
    assert errors(doc_facts.check_list(page(text), ['x("A_B")', '"C_D"'], "a code", *names)) == complaints
    assert errors(doc_facts.check_list(page(text), ["x"], "a code", *names)) == ["no source defines a code"]


def test_the_table_of_scenarios_has_each_module(page):
    files = {"tests/e2e/test_nbd.py", "tests/e2e/test_waiting.py"}
    right = "`test_waiting.py` shows it.\n\n| scenario | shows |\n|---|---|\n| `nbd` | x |\n"
    assert not errors(doc_facts.check_scenarios(page(right), files))
    gone = errors(doc_facts.check_scenarios(page(right), {"tests/e2e/test_waiting.py"}))
    assert gone == ["there is no scenario tests/e2e/test_nbd.py"]
    new = errors(doc_facts.check_scenarios(page(right), files | {"tests/e2e/test_new.py"}))
    assert new == ["names no scenario new"]


@pytest.mark.parametrize(
    ("text", "script", "workflow", "is_right"),
    [
        ("    make test    # what CI runs (.ci/run)", "exec make test", "      - run: .ci/run", True),
        ("    make test    # what CI runs (.ci/run)", "exec make lint", "      - run: .ci/run", False),
        ("    make test    # what CI runs (.ci/run)", "exec make test", "      - run: make test", False),
        ("    make test    # nothing", "exec make test", "      - run: .ci/run", False),
    ],
)
def test_the_page_says_what_ci_runs(page, text, script, workflow, is_right):
    assert (errors(doc_facts.check_ci(page(text), script, workflow)) == []) == is_right


def test_a_workflow_runs_targets_that_exist():
    targets = doc_facts.targets_of(MAKEFILE)
    assert not errors(doc_facts.check_workflow_targets(WORKFLOW, targets))
    gone = errors(doc_facts.check_workflow_targets("- run: make gone", targets))
    assert gone == ["runs 'make gone', which the Makefile lacks"]


def figures(cheapest_us=50.0, dearest_us=460.0):
    loads = list(plot_compared.LOADS)
    atoll = {("atoll", load, "all"): cheapest_us for load in loads[1:]}
    ceph = {("ceph", load, "all"): 1000.0 for load in loads}
    return ceph | atoll | {("atoll", loads[0], "all"): dearest_us}


def test_the_share_of_cephs_cpu_time_is_that_of_the_record(page):
    right, wrong = "at 5 to 46 % of the CPU time", "at 6 to 42 % of\nthe CPU time"
    assert not errors(doc_facts.check_share(page(right), figures()))
    assert errors(doc_facts.check_share(page(wrong), figures())) == [
        "says 6 to 42 % of Ceph's CPU time, the record 5 to 46 %"
    ]
    assert errors(doc_facts.check_share(page("at a fraction"), figures()))


INVARIANTS = "| RP-1 | `x` |\n\n## Rules without a check\n\nCN-1 says who connects.\n"


@pytest.mark.parametrize(
    ("protocol", "complaint"),
    [
        ("- **CN-1.** A.\n- **RP-1.** B.\n  `[x]`\n", None),
        ("- **CN-1.** A.\n| **RP-1** | B `[x]` |\n", None),
        ("- **CN-1.** A.\n- **CN-1.** C.\n- **RP-1.** B. `[x]`\n", "the rule CN-1 is there 2 times"),
        ("- **CN-1.** A.\n- **RP-1.** B.\n", "RP-1 has no check, and is not in the list"),
        ("- **CN-1.** A. `[y]`\n- **RP-1.** B. `[x]`\n", "CN-1 has a check, and is in the list"),
        ("- **CN-1.** A.\n", "names the rule RP-1, which is not there"),
    ],
)
def test_rules_have_one_name_and_a_check(page, protocol, complaint):
    read, invariants = page(protocol), page(INVARIANTS)
    found = errors(doc_facts.check_rules(read, invariants))
    assert (complaint in "\n".join(found)) if complaint else found == []


@pytest.mark.parametrize(
    ("text", "complaints"),
    [
        ("1 to 8 copies", []),
        ("1 to 9 copies", ["says 1 to 9 for COPIES, which is 1 to 8"]),
        ("copies", ["says nothing for COPIES, which is 1 to 8"]),
    ],
)
def test_ranges_are_those_of_the_limits(page, text, complaints):
    limits, ranges = "pub const COPIES: RangeInclusive<u32> = 1..=8;", {"COPIES": r"(\d+) to (\d+) copies"}
    assert errors(doc_facts.check_ranges(page(text), limits, ranges)) == complaints


def test_a_report_has_its_day_and_its_runs(page):
    text = "## A\n\n`records/a-short.jsonl`. 2026-11-27, 138 runs.\n"
    record = {"a-short": ({}, "2026-11-27", 138)}
    assert not errors(doc_facts.check_reports(page(text), record))
    assert errors(doc_facts.check_reports(page(text), {"a-short": ({}, "2026-11-22", 138)})) == [
        "does not say that a-short was measured on 2026-11-22"
    ]
    assert errors(doc_facts.check_reports(page(text), {"a-short": ({}, "2026-11-27", 137)})) == [
        "says that a-short has 138 runs, the record has 137"
    ]


def test_the_table_beside_ceph_is_that_of_the_records():
    text = f"# A\n\n{plot_compared.table(figures())}\n"
    assert "| write 4 KiB, depth 1 | 460 | - | - | 1,000 |" in text
    assert not errors(doc_facts.check_table(text, figures()))
    assert errors(doc_facts.check_table(text, figures(dearest_us=461.0)))
    assert errors(doc_facts.check_table("# A\n", figures()))


def test_the_plot_beside_ceph_is_drawn_from_the_records():
    plot = plot_compared.draw(figures(), ["2026-11-27"])
    assert not errors(doc_facts.check_plot(plot, figures(), ["2026-11-27"]))
    assert errors(doc_facts.check_plot(plot, figures(), ["2026-11-28"]))
    assert errors(doc_facts.check_plot(plot, figures(cheapest_us=51.0), ["2026-11-27"]))


@pytest.mark.parametrize(
    "text",
    [
        "It shows what was written.",
        "Who has a key may read.",
        "The one of which nothing is left.",
        "It waits so many seconds.",
        "The OSD is told.",
        "The key is made anew.",
        "The command goes\non after that.",
        "That is none of its business.",
    ],
)
def test_phrases_to_avoid_are_counted(page, text):
    read = page(text)
    assert len([*doc_words.phrases(read)]) >= 1
    assert errors(doc_words.check(read, {"page.md": (0, 0)}))
    assert not errors(doc_words.check(read, {"page.md": doc_words.count(read)}))


def test_code_and_headings_are_not_counted(page):
    read = page("# What it does\n\n`told anew`\n\n```\nwhat goes on\n```\n")
    assert doc_words.count(read) == (0, 0)


def test_long_sentences_are_counted(page):
    words = " ".join(["word"] * doc_words.WORDS_MAX)
    assert doc_words.count(page(f"{words}. {words}.\n- {words}\n- {words}")) == (0, 0)
    assert doc_words.count(page(f"{words} more. {words}.")) == (0, 1)
    assert doc_words.count(page(f"| {words} {words} |")) == (0, 0)
    assert errors(doc_words.check(page(f"{words}\nmore."), {}))


@pytest.mark.parametrize(
    ("text", "count"), [("`Links` has `TracedCopies`.", 0), ("`TracedCopy`", 1), ("`a/TracedCopy`", 0)]
)
def test_types_that_no_source_has_are_errors(page, text, count):
    assert len(errors(doc_facts.check_types(page(text), {"TracedCopies"}))) == count


MESSAGES = 'the key of \0 was revoked by {\0}; "all" \0 PGs that \0 leads serve, after \0 ms; another host has it'


@pytest.mark.parametrize(
    "message",
    [
        "the key of osd.N was revoked",
        "PGs that osd.K leads serve, after T ms",
        "... another host has it",
        "No such file or directory",
    ],
)
def test_messages_of_the_sources_may_be_quoted(page, message):
    text = f"| message | remedy |\n|---|---|\n| `{message}` | wait |\n\n| word | |\n|---|---|\n| `not a message` | |\n"
    assert errors(doc_facts.check_messages(page(text), MESSAGES)) == []


def test_messages_that_no_source_has_are_errors(page):
    text = "| message | remedy |\n|---|---|\n| `the key of osd.N was removed`, `another host has it` | wait |\n"
    assert errors(doc_facts.check_messages(page(text), MESSAGES)) == ["no source has the message 'was removed'"]
    quoted = page(
        'It says "... another\nhost has it ...", or "... another\nhost lost it ...", in "other words than these".'
    )
    assert [*doc_facts.check_messages(quoted, MESSAGES)] == [(2, "no source has the message 'another host lost it'")]


def test_the_pages_of_the_repository_pass():
    paths = [*check_docs.ROOT.glob("*.md"), *check_docs.DOCS.rglob("*.md")]
    pages = {path: check_docs.read_page(path) for path in paths if "book" not in path.parts}
    assert [*check_docs.page_errors(pages), *check_docs.fact_errors(pages)] == []
