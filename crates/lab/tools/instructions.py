#!/usr/bin/env python3
"""Instructions per operation of the store, by function, as callgrind counts them: the same figures
beside any load (with the same compiler, C library and kind of processor), so that one per cent more or
less can be seen.

    crates/lab/tools/instructions.py                    # writes and reads: totals, and the dearest functions
    crates/lab/tools/instructions.py --top 60           # more functions
    crates/lab/tools/instructions.py --calls page::     # who calls functions of this name, and what they call

valgrind has no AVX-512, so that CRCs, ciphers and long copies count more than they cost.
"""

import argparse
import collections
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
OPERATIONS = 2000


class Profile:
    """A callgrind file: instructions of each function itself, and of each pair of caller and callee."""

    def __init__(self, path):
        self.own, self.edges = collections.Counter(), collections.Counter()
        names, function, callee, is_call = {}, None, None, False
        for line in open(path, errors="replace"):
            if line.startswith(("fn=", "cfn=")):
                number, name = re.match(r"c?fn=\((\d+)\)(?: (.*))?", line).groups()
                # A function that calls itself is one function.
                name = names.setdefault(number, re.sub(r"'\d+$", "", name or ""))
                if line.startswith("fn="):
                    function = name
                else:
                    callee = name
            elif line.startswith("calls="):
                # How many is not used: callgrind counts calls outside of what is measured, too.
                is_call = True
            elif re.match(r"[0-9+*-]\S* \d+$", line.rstrip()):
                cost = int(line.split()[1])
                if not is_call:
                    self.own[function] += cost
                elif callee != function:
                    self.edges[function, callee] += cost
                is_call = False

    def inclusive(self):
        total = collections.Counter(self.own)
        for (caller, _), cost in self.edges.items():
            total[caller] += cost
        return total


def measure(function):
    build = ["cargo", "build", "--release", "-q", "-p", "atoll-store", "--example", "instructions"]
    subprocess.run(build, cwd=ROOT, check=True)
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "callgrind.out"
        program = ROOT / "target/release/examples/instructions"
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={output}", "--compress-strings=yes",
                   "--collect-atstart=no", f"--toggle-collect=*{function}*", str(program), str(OPERATIONS)]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            sys.exit(run.stderr)
        return Profile(output)


def print_top(profile, count, operations):
    print(f"{sum(profile.own.values()) / operations:.0f} instructions per operation")
    print("      own   with callees")
    inclusive = profile.inclusive()
    for name, cost in profile.own.most_common(count):
        print(f"{cost / operations:9.0f} {inclusive[name] / operations:10.0f}  {name[:110]}")


def print_calls(profile, part, operations):
    for (caller, callee), cost in profile.edges.most_common():
        if part in caller or part in callee:
            print(f"{cost / operations:9.0f}  {caller[:80]} -> {callee[:80]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--top", type=int, default=25, help="functions to show [25]")
    parser.add_argument("--calls", help="show callers and callees of functions whose name contains this")
    arguments = parser.parse_args()
    if not shutil.which("valgrind"):
        sys.exit("valgrind, which counts the instructions, is not installed; 'apt install valgrind' does it")
    for function in ("measured_writes", "measured_reads"):
        print(function)
        profile = measure(function)
        if arguments.calls:
            print_calls(profile, arguments.calls, OPERATIONS)
        else:
            print_top(profile, arguments.top, OPERATIONS)


if __name__ == "__main__":
    main()
