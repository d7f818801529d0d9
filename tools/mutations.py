"""Puts one deliberate bug after the other into a copy of the tree and says which tests notice: the loop
of store_mutations.py and pg_mutations.py. The bugs are in TOML files beside them."""

import fcntl
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Bug:
    """What stands somewhere in a crate, and what is put there instead."""

    name: str
    find: str
    put: str
    file: str | None = None
    # Why nothing notices it, if nothing does.
    survives: str | None = None

    def places(self, source: Path):
        """The files below `source` that have what is looked for, each with where it is. However the
        formatter breaks lines, the place is found."""
        words = r"\s+".join(re.escape(word) for word in self.find.split())
        files = [source / self.file] if self.file else sorted(source.rglob("*.rs"))
        return [
            (path, match.span()) for path in files if path.is_file() for match in re.finditer(words, path.read_text())
        ]


class Campaign:
    """A list of bugs in one crate, and what has to notice them.

    `test` is the cargo command whose tests must pass without a bug; `stages` are arguments of it that
    are tried one after the other until one fails; `noticed` makes names out of the output of a run that
    failed. A run is limited in time and memory: a bug may make it loop. `environment` is that of all runs,
    `baseline` what is different in the one without a bug.
    """

    def __init__(
        self,
        name,
        source,
        test,
        noticed,
        *,
        stages=((),),
        run_seconds,
        memory_bytes=None,
        environment=None,
        baseline=None,
    ):
        self.name, self.source = name, Path(source)
        self.test, self.stages, self.noticed = test.split(), stages, noticed
        self.run_seconds, self.memory_bytes = run_seconds, memory_bytes
        self.environment, self.baseline = environment or {}, baseline or {}

    def bugs(self):
        text = (ROOT / "tools" / f"{self.name}_mutations.toml").read_text()
        return [Bug(**bug) for bug in tomllib.loads(text)["bug"]]

    def stale(self):
        """What must be said of bugs that have no place in the code any more, or several."""
        for bug in self.bugs():
            places = bug.places(ROOT / self.source)
            if len(places) != 1:
                where = ", ".join(sorted({str(path.relative_to(ROOT)) for path, _ in places})) or "nowhere"
                yield f"{self.name}: '{bug.name}' has {len(places)} places ({where}): {' '.join(bug.find.split())}"

    def main(self):
        words = sys.argv[1:]
        chosen = [bug for bug in self.bugs() if not words or any(word in bug.name for word in words)]
        stale = list(self.stale())
        if stale:
            sys.exit("\n".join(stale))
        place = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "mutations" / self.name
        place.mkdir(parents=True, exist_ok=True)
        # The lock is held to the end: two campaigns in one copy would see each other's bugs.
        lock = open(place / "lock", "w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        tree = place / "tree"
        copy_of_the_tree(tree)
        # Apart, so that nobody takes a crate with a bug for the one that was built last.
        environment = dict(os.environ, CARGO_TARGET_DIR=str(place / "build"), CARGO_INCREMENTAL="1", **self.environment)
        if not words:
            _, noticed = self.run(tree, environment | self.baseline)
            if noticed:
                sys.exit(f"the tests fail without a bug: {noticed}")
        survivors = [bug.name for bug in chosen if self.survives(bug, tree, environment) and not bug.survives]
        print(f"{len(chosen)} bugs, {len(survivors)} not noticed{''.join(f'{chr(10)}  {name}' for name in survivors)}")
        sys.exit(bool(survivors))

    def survives(self, bug, tree, environment):
        [(path, (start, end))] = bug.places(tree / self.source)
        sound = path.read_text()
        path.write_text(sound[:start] + bug.put.strip("\n") + sound[end:])
        started = time.monotonic()
        passed, noticed = self.run(tree, environment)
        path.write_text(sound)
        outcome = ", ".join(noticed) or (f"not noticed: {bug.survives}" if bug.survives else "NOT NOTICED")
        print(f"{bug.name} ({time.monotonic() - started:.0f} s): {outcome}", flush=True)
        return passed

    def run(self, tree, environment):
        """Whether the tests passed, and what noticed if they did not."""
        build = subprocess.run([*self.test, "--no-run"], cwd=tree, env=environment, capture_output=True, text=True)
        if build.returncode:
            return True, [f"IT DOES NOT BUILD\n{build.stderr}"]
        for stage in self.stages:
            passed, noticed = self.run_stage(stage, tree, environment)
            if not passed:
                return False, noticed
        return True, []

    def run_stage(self, stage, tree, environment):
        process = subprocess.Popen(
            [*self.test, *stage],
            cwd=tree,
            env=environment,
            text=True,
            start_new_session=True,
            preexec_fn=self.limit_memory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            output, _ = process.communicate(timeout=self.run_seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return False, [f"no end after {self.run_seconds} s", *self.noticed(output)]
        if process.returncode == 0:
            return True, []
        return False, self.noticed(output) or [f"exit code {process.returncode}"]

    def limit_memory(self):
        if self.memory_bytes:
            resource.setrlimit(resource.RLIMIT_AS, (self.memory_bytes, self.memory_bytes))


def copy_of_the_tree(target: Path):
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    listing = "git ls-files -z --cached --others --exclude-standard"
    # With fresh times (-m): cargo takes what an earlier copy left built for this one otherwise.
    subprocess.run(f"{listing} | tar --null -cf - -T - | tar -xmf - -C '{target}'", shell=True, cwd=ROOT, check=True)
