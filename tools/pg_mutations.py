#!/usr/bin/env python3
"""Puts one deliberate bug after the other into a copy of the placement-group protocol and says
which seed of the simulator notices it first.

    tools/pg_mutations.py             # all of them
    tools/pg_mutations.py lease tail  # those whose names contain one of the words

All seeds must pass without a bug, and one of them must fail with each. Scenarios that notice a bug
are named too. The bugs are in pg_mutations.toml; copy and builds are in CARGO_TARGET_DIR/mutations/pg
or ./target/mutations/pg. ATOLL_SIM_RUNS sets the number of seeds.
"""

import os
import re

from mutations import Campaign

SEEDS = int(os.environ.get("ATOLL_SIM_RUNS", "20000"))


def failed_seeds(output):
    seeds = [f"seed {seed} ({cause[:60]})" for seed, cause in re.findall(r"^seed (\d+): (.*)$", output, re.MULTILINE)]
    scenarios = {name for name in re.findall(r"thread '(?:\w+::)*(\w+)' .*panicked", output)
                 if not name.startswith(("histories", "erasure_coded"))}
    return seeds + [f"scenario {name}" for name in sorted(scenarios)]


CAMPAIGN = Campaign(
    "pg",
    "crates/pg/src",
    "cargo test --profile ci -q -p atoll-sim --test seeds --test scenarios --test erasure --no-fail-fast",
    failed_seeds,
    stages=(("--", "--nocapture"),),
    run_seconds=1800,
    environment={"ATOLL_SIM_RUNS": str(SEEDS), "ATOLL_SIM_ONCE": "1", "ATOLL_SIM_FAILURES": "1",
                 "RUST_BACKTRACE": "0"},
    baseline={"ATOLL_SIM_RUNS": "400"},
)

if __name__ == "__main__":
    CAMPAIGN.main()
