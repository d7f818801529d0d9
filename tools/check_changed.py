#!/usr/bin/env python3
"""Formatting, clippy and unit tests of the packages whose files have changed, and of nothing else.

    tools/check_changed.py [--base COMMIT]    against the last commit, or BASE

Changed are files that differ from the commit, and files that git does not know yet. Packages that depend on them
are left to `make test`.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# What every package is built with: a change of these is left to `make lint` and `make test`.
OF_ALL = {"Cargo.toml", "Cargo.lock", "clippy.toml", "rustfmt.toml", "rust-toolchain.toml"}


def lines(*command):
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return [line for line in done.stdout.splitlines() if line]


def changed_files(base):
    """Paths that differ from a commit, relative to the root; also those that are gone."""
    known = lines("git", "diff", "--name-only", "--no-renames", base)
    return sorted({*known, *lines("git", "ls-files", "--others", "--exclude-standard")})


def package_directories():
    """{directory relative to the root: name of the package}, the longest first."""
    [metadata] = lines("cargo", "metadata", "--no-deps", "--format-version", "1")
    found = {
        pathlib.Path(package["manifest_path"]).parent.relative_to(ROOT).as_posix(): package["name"]
        for package in json.loads(metadata)["packages"]
    }
    return dict(sorted(found.items(), key=lambda item: -len(item[0])))


def packages_of(files, directories):
    """Names of the packages that the files are in."""
    found = set()
    for file in files:
        found.update([name for directory, name in directories.items() if file.startswith(f"{directory}/")][:1])
    return sorted(found)


def run(*command):
    """Runs a command and says how long it took; returns whether it succeeded."""
    print("+ " + " ".join(command), flush=True)
    started = time.monotonic()
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    print(f"  {time.monotonic() - started:.0f} s" + ("" if code == 0 else f", exit code {code}"), flush=True)
    return code == 0


def commands(files):
    """What is to be run for these files, the quickest first."""
    python = [file for file in files if file.endswith(".py") and (ROOT / file).exists()]
    if python:
        yield [".venv/bin/ruff", "format", "--check", "--force-exclude", "-q", *python]
        yield [".venv/bin/ruff", "check", "--force-exclude", "-q", *python]
        yield [".venv/bin/python", "tools/function_lengths.py", *python]
    if any(file.startswith("tests/transit/") for file in files):
        yield [".venv/bin/python", "-m", "pytest", "-q", "tests/transit"]
    if any(file.startswith("tests/e2e/lib/") for file in files):
        yield [".venv/bin/python", "-m", "pytest", "-q", "--collect-only", "-qq", "tests/e2e"]
    packages = [f"-p={name}" for name in packages_of(files, package_directories())]
    if packages:
        yield ["cargo", "fmt", "--check", *packages]
        yield ["cargo", "clippy", "-q", "--all-targets", *packages, "--", "-D", "warnings"]
        yield ["cargo", "test", "-q", *packages]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default=os.environ.get("BASE") or "HEAD", help="the commit to compare with (HEAD)")
    files = changed_files(parser.parse_args().base)
    for file in OF_ALL & set(files):
        print(f"{file} is for all packages: 'make lint' and 'make test' check what comes of it")
    if not files:
        print("nothing has changed")
    sys.exit(0 if all([run(*command) for command in commands(files)]) else 1)


if __name__ == "__main__":
    main()
