"""The check of docs/reference/threat-model.md finds claims without tests, and tests that are not there."""

import check_claims
import pytest

PAGE = """\
# Page

## By attacker

### A stranger

He cannot enter [T1]. He is told nothing [T2].

- He may look [T3].

## Claims and tests

| mark | claim | shown by |
|---|---|---|
| T1 | he cannot enter | `tests/one.py::test_enter`, `src/two.rs::nobody_enters` |
| T2 | he is told nothing | `src/two.rs::nobody_is_told` |
| T3 | he may look | not shown: it is what he can do |
"""
FILES = {
    "tests/one.py": "def helper():\n    pass\n\ndef test_enter(cluster):\n    pass\n\n@check\ndef told():\n    pass\n",
    "src/two.rs": 'fn helper() {}\n\n#[test]\nfn nobody_enters() {}\n\n#[tokio::test(flavor = "x")]\n'
    "async fn nobody_is_told() {}\n",
}


@pytest.fixture
def problems(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return lambda text: [problem for _, problem in check_claims.check(text, tmp_path)]


def test_a_page_that_is_right_passes(problems):
    assert problems(PAGE) == []
    assert problems(PAGE.replace("tests/one.py::test_enter", "tests/one.py::told")) == []


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("one.py::test_enter", "one.py::test_leave", "tests/one.py has no test test_leave"),
        ("one.py::test_enter", "one.py::helper", "has no test helper"),
        ("two.rs::nobody_enters", "two.rs::helper", "src/two.rs has no test helper"),
        ("two.rs::nobody_enters", "two.rs::nobody", "src/two.rs has no test nobody"),
        ("tests/one.py::", "tests/three.py::", "there is no file tests/three.py"),
        ("enter [T1].", "enter.", "the row T1 has no mark"),
        ("look [T3].", "look.", "an item has no mark"),
        ("enter [T1]. He is told nothing [T2].", "enter.", "T2 has no mark"),
        ("| T2 | he is told nothing | `src/two.rs::nobody_is_told` |\n", "", "T2 has no row"),
        ("nothing [T2].", "nothing [T1].", "T1 stands twice"),
        ("not shown: it is what he can do", "nothing", "T3 names no test"),
        ("not shown: it is what he can do", "not shown", "T3 names no test"),
        ("| T1 | he cannot enter |", "| he cannot enter |", "is no row"),
        ("## Claims and tests", "## Other", "there is no section"),
        ("### A stranger", "### Somebody\n\nHe sees it all.\n\n### A stranger", "'Somebody' has no mark"),
    ],
)
def test_what_is_wrong_is_said(problems, before, after, said):
    assert PAGE.count(before) == 1
    found = problems(PAGE.replace(before, after))
    assert any(said in problem for problem in found), found
