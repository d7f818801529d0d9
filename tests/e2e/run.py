#!/usr/bin/env python3
"""Runs all end-to-end scenarios, some side by side, and sums up.

    tests/e2e/run.py --atoll target/release/atoll [--quick] [--scale N] [--jobs N] [SCENARIO ...]
"""
import argparse, concurrent.futures, pathlib, re, signal, subprocess, sys, threading, time

from harness import add_arguments

SCENARIOS = [
    "restart", "sealed", "wire", "nbd_fio", "nbd_tls", "s3_files", "osd_killed", "hostile", "overload", "devices", "at_rest", "administration", "splits", "hosts",
    "partitions", "erasure", "upgrade", "tls", "ingress", "keys", "preflight", "bench",
]


class Runner:
    """Runs scenarios. Each prints as it goes when it is alone, and at its end when others are beside it."""

    def __init__(self, arguments):
        self.arguments, self.lock, self.processes, self.stopped = arguments, threading.Lock(), set(), False

    def run(self, name):
        """A scenario's passed, failed and not run, and its seconds; None if it was not to begin any more."""
        command = [sys.executable, str(pathlib.Path(__file__).with_name(f"{name}.py")), "--atoll", self.arguments.atoll, "--scale", str(self.arguments.scale)]
        with self.lock:
            if self.stopped:
                return None
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
            self.processes.add(process)
        started, counts, lines = time.monotonic(), None, []
        for line in process.stdout:
            found = re.fullmatch(r"(\d+) passed, (\d+) failed(?:, (\d+) not run)?\n", line)
            if found:
                counts = int(found[1]), int(found[2]), int(found[3] or 0)
            elif self.arguments.jobs == 1:
                print(line, end="", flush=True)
            else:
                lines.append(line)
        code = process.wait()
        with self.lock:
            self.processes.remove(process)
            print("".join(lines), end="", flush=True)
        passed, failed, not_run = counts or (0, 1, 0)
        return passed, failed or int(code != 0), not_run, time.monotonic() - started

    def stop(self, *_signal):
        """Begins no more scenarios. Those that run end their processes themselves."""
        # Only the threads that run scenarios have the lock otherwise, so the one that gets signals may wait for it.
        with self.lock:
            self.stopped = True
            for process in self.processes:
                process.send_signal(signal.SIGTERM)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--jobs", type=int, default=1, help="scenarios that run at the same time")
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"some of {', '.join(SCENARIOS)}; otherwise all")
    arguments = parser.parse_args()
    names = [name.removesuffix(".py") for name in arguments.scenarios] or SCENARIOS
    if arguments.jobs < 1:
        parser.error(f"--jobs {arguments.jobs}: one scenario at least must run")
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        parser.error(f"no such scenario: {', '.join(unknown)}")
    runner, started = Runner(arguments), time.monotonic()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, runner.stop)
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        results = list(pool.map(runner.run, names))
    print("----  all")
    for name, result in zip(names, results):
        if result:
            print(f"      {name:<14}{result[0]:>4} passed {result[1]:>3} failed {result[2]:>3} not run {result[3]:>5.0f} s")
    print(f"      {time.monotonic() - started:.0f} s in all")
    passed, failed, not_run = (sum(result[at] for result in results if result) for at in range(3))
    print(f"{passed} passed, {failed} failed" + (f", {not_run} not run" if not_run else "") + (", stopped early" if runner.stopped else ""))
    return 1 if failed or runner.stopped else 0


if __name__ == "__main__":
    sys.exit(main())
