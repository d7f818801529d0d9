#!/usr/bin/env python3
"""Runs all end-to-end scenarios, one after the other, and sums up.

    tests/e2e/run.py --atoll target/release/atoll [--quick] [--scale N] [SCENARIO ...]
"""
import argparse, pathlib, re, signal, subprocess, sys, time

from harness import add_arguments

SCENARIOS = [
    "restart", "sealed", "wire", "nbd_fio", "nbd_tls", "s3_files", "osd_killed", "hostile", "overload", "devices", "at_rest", "administration", "splits", "hosts",
    "partitions", "erasure", "upgrade", "tls", "ingress", "keys", "preflight", "bench",
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"some of {', '.join(SCENARIOS)}; otherwise all")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.scenarios if name.removesuffix(".py") not in SCENARIOS]
    if unknown:
        parser.error(f"no such scenario: {', '.join(unknown)}")
    passed, failed, not_run, started, summary = 0, 0, 0, time.monotonic(), []
    for name in [name.removesuffix(".py") for name in arguments.scenarios] or SCENARIOS:
        command = [sys.executable, str(pathlib.Path(__file__).with_name(f"{name}.py")), "--atoll", arguments.atoll, "--scale", str(arguments.scale)]
        before = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace")
        # The scenario itself ends its processes.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _frame, process=process: process.send_signal(signal.SIGTERM))
        counts = None
        for line in process.stdout:
            found = re.fullmatch(r"(\d+) passed, (\d+) failed(?:, (\d+) not run)?\n", line)
            if found:
                counts = int(found[1]), int(found[2]), int(found[3] or 0)
            else:
                print(line, end="", flush=True)
        code = process.wait()
        counts = counts or (0, 1, 0)
        if code != 0 and counts[1] == 0:
            counts = counts[0], 1, counts[2]
        passed, failed, not_run = passed + counts[0], failed + counts[1], not_run + counts[2]
        summary.append(f"      {name:<12}{counts[0]:>4} passed {counts[1]:>3} failed {counts[2]:>3} not run {time.monotonic() - before:>5.0f} s")
        if code in (-signal.SIGTERM, -signal.SIGINT):
            break
    print("\n".join(["----  all", *summary, f"      {time.monotonic() - started:.0f} s in all"]))
    print(f"{passed} passed, {failed} failed" + (f", {not_run} not run" if not_run else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
