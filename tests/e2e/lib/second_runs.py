"""Second runs: tests that failed run again after all others, each alone, in a pytest of its own.

With --second-runs a test that passes then is unstable: the run passes, and ends with a table of such tests. More than
UNSTABLE_MAX of them fail the run. Final failures (`lib/verdicts.py`) are not run again. Tests of a module that failed
because the same fixture of it did are one failure, and run again together: they have not run at all.
"""

import os
import subprocess
import sys
from dataclasses import dataclass, field

import pytest

from lib.verdicts import is_final

UNSTABLE_MAX = 3
# More failures than this are no matter of a slow moment: nothing is run again.
AGAIN_MAX = 8
AGAIN_SECONDS_MAX = 1800
OUTPUT_LINES = 60
# In the environment of a second run: it starts none itself, and leaves what the first one has left.
SECOND_RUN = "ATOLL_E2E_SECOND_RUN"


@dataclass
class Failure:
    """What is run again together, and what came of it."""

    reason: str
    names: list = field(default_factory=list)
    is_final: bool = False
    is_unstable: bool = False
    reports: list = field(default_factory=list)
    output: str = ""


class SecondRuns:
    """The part of the process that the run was started with. Workers only mark reports."""

    def __init__(self, config):
        self.config, self.failures, self.is_whole = config, {}, True
        self.unstable = []

    def pytest_runtest_logreport(self, report):
        if not report.failed:
            return
        reason, module = reason_of(report), report.nodeid.split("::")[0]
        is_of_fixture = report.when == "setup"
        # Also in a later phase of the same test: what it says first counts.
        known = next((failure for failure in self.failures.values() if report.nodeid in failure.names), None)
        failure = known or self.failures.setdefault(
            (module, reason) if is_of_fixture else report.nodeid, Failure(reason)
        )
        if not known:
            failure.names.append(report.nodeid)
        failure.reports.append(report)
        failure.is_final |= getattr(report, "is_final", False)

    def pytest_collectreport(self, report):
        self.is_whole &= not report.failed

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session, exitstatus):
        """By now all workers have ended."""
        failures = list(self.failures.values())
        has_stopped = session.shouldstop or session.shouldfail
        if exitstatus != pytest.ExitCode.TESTS_FAILED or not self.is_whole or has_stopped or not failures:
            return
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if len(failures) > AGAIN_MAX:
            terminal.write_line(f"\n{len(failures)} failures: none is run again")
            return
        for failure in failures:
            if not failure.is_final:
                terminal.write_line(f"\nagain, alone: {' '.join(failure.names)}")
                self.run_again(failure)
        self.unstable = [failure for failure in failures if failure.is_unstable]
        if len(self.unstable) == len(failures) <= UNSTABLE_MAX:
            set_apart(terminal, {name for failure in self.unstable for name in failure.names})
            session.exitstatus = pytest.ExitCode.OK

    def run_again(self, failure):
        options = [f"--{name}={self.config.getoption(name)}" for name in ("atoll", "scale")]
        environment = os.environ | {SECOND_RUN: "1"}
        command = [sys.executable, "-m", "pytest", "-m", "", *options, *failure.names]
        try:
            done = subprocess.run(
                command,
                env=environment,
                cwd=self.config.rootpath,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=AGAIN_SECONDS_MAX,
                text=True,
                errors="replace",
            )
        except subprocess.TimeoutExpired:
            failure.output = f"had not ended after {AGAIN_SECONDS_MAX} s"
            return
        failure.is_unstable = done.returncode == 0
        failure.output = "" if failure.is_unstable else "\n".join(done.stdout.splitlines()[-OUTPUT_LINES:])

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter):
        """The table is the last that is said, after what unstable tests said in their first run."""
        yield
        for failure in self.failures.values():
            if failure.output:
                terminalreporter.section(f"failed again: {failure.names[0]}")
                terminalreporter.write_line(failure.output)
        if not self.unstable:
            return
        for report in (failure.reports[0] for failure in self.unstable):
            terminalreporter.section(f"failed at first: {report.nodeid}")
            for text in (report.longreprtext, *(f"{title}:\n{content}" for title, content in report.sections)):
                terminalreporter.write_line(text)
        terminalreporter.section("unstable tests: each is to be mended or moved within the next change")
        for name, reason in ((name, failure.reason) for failure in self.unstable for name in failure.names):
            terminalreporter.write_line(f"UNSTABLE: {name}, {reason}")
        if len(self.unstable) > UNSTABLE_MAX:
            terminalreporter.write_line(f"{len(self.unstable)} are too many: the run has failed")


def mark(report, error):
    """Has a report say, also to the process that the run was started with, that it is of a final failure."""
    if report.failed and is_final(error):
        report.is_final = True


def reason_of(report):
    """What a failed test said first, on one line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr)
    return " ".join(text.split())[:200]


def set_apart(terminal, names):
    """Counts reports of unstable tests as such, so that the last line tells no failure."""
    for kind in ("failed", "error"):
        reports = terminal.stats.pop(kind, [])
        others = [report for report in reports if report.nodeid not in names]
        terminal.stats.setdefault("unstable", []).extend(report for report in reports if report.nodeid in names)
        if others:
            terminal.stats[kind] = others
