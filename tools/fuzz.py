#!/usr/bin/env python3
"""Fuzzes one target for so many minutes: rounds of its tests, each with another seed. A failing round prints its seed,
by which `cargo test` repeats it.

    tools/fuzz.py s3 --minutes 30
"""

import argparse
import os
import subprocess
import sys
import time

# Target -> arguments of `cargo test`, inputs of a round, what is fuzzed.
TARGETS = {
    "s3": (["-p", "atoll-s3", "--lib", "--", "fuzz"], 50_000, "policies, documents, forms and requests of S3 clients"),
    "store": (
        ["-p", "atoll-store", "--test", "store", "--", "fuzz"],
        500_000,
        "superblocks, records and pages of devices",
    ),
    "images": (["-p", "atoll-image", "--lib", "--", "fuzz"], 50_000, "streams of changes of images"),
    "nvme": (["-p", "atoll-nvme", "--lib", "--", "properties"], 20_000, "what NVMe hosts send"),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--profile", default="ci")
    parser.add_argument(
        "--seed", type=int, default=None, help="of the first round; the time in seconds if it is not given"
    )
    arguments = parser.parse_args()
    test, runs, what = TARGETS[arguments.target]
    seed = int(time.time()) if arguments.seed is None else arguments.seed
    end, rounds = time.monotonic() + arguments.minutes * 60, 0
    while rounds == 0 or time.monotonic() < end:
        variables = {"ATOLL_FUZZ_RUNS": str(runs), "ATOLL_FUZZ_SEED": str(seed + rounds * runs)}
        command = ["cargo", "test", "--profile", arguments.profile, "-q", *test]
        if subprocess.run(command, env=os.environ | variables).returncode:
            print(f"{what}: " + " ".join(f"{name}={value}" for name, value in variables.items()), " ".join(command))
            sys.exit(1)
        rounds += 1
    print(f"{what}: {rounds} rounds of {runs} inputs of each kind, from seed {seed}")


if __name__ == "__main__":
    main()
