"""What becomes of tests that fail once, always, or by losing data: small runs of pytest with --second-runs."""

import os
import pathlib
import subprocess
import sys

import pytest
from lib.second_runs import SECOND_RUN

HEAD = """
import pathlib
import pytest
from lib.verdicts import DataFailure, intact
from lib.waiting import Failed

PLACE = pathlib.Path(__file__).parent

def times(name):
    with open(PLACE / "said", "a") as file:
        file.write(f"{name}\\n")
    return (PLACE / "said").read_text().split().count(name)

def once(name):
    if times(name) == 1:
        raise Failed("not after 60 s: it is slow")
"""
FLAKY = "def test_{0}():\n    once('{0}')\n"
BROKEN = "def test_broken():\n    assert times('broken') == 0, 'always'\n"

HERE = pathlib.Path(__file__).parent


class Run:
    """One run, what it said, and the names that its tests noted in their order."""

    def __init__(self, directory, *options, **modules):
        for name, text in modules.items():
            (directory / f"test_{name}.py").write_text(HEAD + text)
        (directory / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\nmarkers = nightly: slow\n")
        environment = os.environ | {"PYTHONPATH": f"{HERE.parent}:{HERE}", "PYTEST_ADDOPTS": "-p conftest"}
        # As in a first run, also when these tests run for the second time.
        environment.pop(SECOND_RUN, None)
        command = [sys.executable, "-m", "pytest", "--second-runs", "-m", "", *options, str(directory)]
        done = subprocess.run(
            command, env=environment, cwd=directory, capture_output=True, text=True, check=False, timeout=120
        )
        self.code, self.output = done.returncode, done.stdout + done.stderr
        said = directory / "said"
        self.said = said.read_text().split() if said.exists() else []
        self.unstable = [line.split(" ")[1].rstrip(",") for line in self.output.splitlines() if line[:9] == "UNSTABLE:"]


@pytest.fixture
def run(tmp_path):
    return lambda *options, **modules: Run(tmp_path, *options, **modules)


# How 'make e2e' runs.
WORKERS = ("--numprocesses=2", "--dist=loadfile")


@pytest.mark.parametrize("options", [(), WORKERS], ids=["alone", "workers"])
def test_what_fails_once_is_unstable_and_the_run_passes(run, options):
    found = run(
        *options, a=FLAKY.format("slow") + "def test_good():\n    times('good')\n", b="def test_b():\n    times('b')\n"
    )
    assert found.code == 0, found.output
    assert "UNSTABLE: test_a.py::test_slow, lib.waiting.Failed: not after 60 s: it is slow" in found.output
    assert " failed" not in found.output.splitlines()[-1], found.output
    # Alone, after all others.
    assert found.said[-1] == "slow" and sorted(found.said) == ["b", "good", "slow", "slow"]


def test_three_unstable_tests_pass_and_a_fourth_fails_the_run(run):
    three = "".join(FLAKY.format(name) for name in ("one", "two", "three"))
    found = run(a=three + FLAKY.format("four"))
    assert found.code == 1 and len(found.unstable) == 4, found.output
    assert "4 are too many" in found.output


def test_three_unstable_tests_pass(run):
    found = run(a="".join(FLAKY.format(name) for name in ("one", "two", "three")))
    assert found.code == 0 and len(found.unstable) == 3, found.output


@pytest.mark.parametrize("options", [(), WORKERS], ids=["alone", "workers"])
def test_what_fails_again_fails_the_run(run, options):
    found = run(*options, a=BROKEN + FLAKY.format("slow"))
    assert found.code == 1 and found.unstable == ["test_a.py::test_slow"], found.output
    assert found.said.count("broken") == 2 and "failed again: test_a.py::test_broken" in found.output


@pytest.mark.parametrize(
    "failure",
    [
        "intact(times('data') > 1, 'lost: k001')",
        "once_is_wrong = times('data')\n    if once_is_wrong == 1:\n        raise DataFailure('wrong')",
        "try:\n        intact(times('data') > 1, 'lost')\n    finally:\n        assert times('other') > 1",
    ],
    ids=["comparison", "raised", "covered-by-another"],
)
def test_a_failure_of_data_is_not_run_again(run, failure):
    found = run(*WORKERS, a=f"def test_data():\n    {failure}\n" + FLAKY.format("slow"))
    assert found.code == 1 and found.said.count("data") == 1, found.output
    assert found.unstable == ["test_a.py::test_slow"]


@pytest.mark.parametrize("options", [(), WORKERS], ids=["alone", "workers"])
def test_fixtures_are_made_anew_and_their_failure_counts_once(run, options):
    """A fixture of a module that fails once takes all five tests with it: they run, and are one unstable failure."""
    tests = "".join(f"def test_{number}(cluster):\n    times('t{number}')\n" for number in range(5))
    found = run(*options, a="@pytest.fixture(scope='module')\ndef cluster():\n    once('cluster')\n" + tests)
    assert found.code == 0 and len(found.unstable) == 5, found.output
    assert found.said == ["cluster", "cluster", "t0", "t1", "t2", "t3", "t4"]


def test_a_fixture_of_a_module_is_another_in_the_second_run(run):
    found = run(
        a="@pytest.fixture(scope='module')\ndef cluster():\n    times('made')\n    yield\n    times('ended')\n"
        "def test_first(cluster):\n    times('first')\n"
        "def test_slow(cluster):\n    once('slow')\n"
    )
    assert found.code == 0, found.output
    assert found.said == ["made", "first", "slow", "ended", "made", "slow", "ended"]


def test_a_failure_while_a_fixture_ends_is_one_too(run):
    found = run(a="@pytest.fixture\ndef ends():\n    yield\n    once('end')\ndef test_ends(ends):\n    pass\n")
    assert found.code == 0 and found.unstable == ["test_a.py::test_ends"], found.output


def test_what_was_not_run_or_not_collected_is_not_excused(run):
    found = run("-x", a=FLAKY.format("slow"), b=FLAKY.format("other"))
    assert found.code != 0 and not found.unstable, found.output


def test_a_module_that_cannot_be_imported_fails_the_run(run):
    found = run("--continue-on-collection-errors", a=FLAKY.format("slow"), b="import nothing_of_this_name\n")
    assert found.code == 1 and not found.unstable, found.output


def test_many_failures_are_not_run_again(run):
    found = run(a="".join(FLAKY.format(f"slow{number}") for number in range(9)))
    assert found.code == 1 and len(found.said) == 9 and "none is run again" in found.output, found.output


def test_without_the_option_nothing_is_run_again(tmp_path):
    (tmp_path / "test_a.py").write_text(HEAD + FLAKY.format("slow"))
    environment = os.environ | {"PYTHONPATH": f"{HERE.parent}:{HERE}"}
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 1 and (tmp_path / "said").read_text() == "slow\n", done.stdout
