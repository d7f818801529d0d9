#!/usr/bin/env python3
"""Puts one deliberate bug after the other into a copy of the store and says which tests notice.

    tools/store_mutations.py            # all of them
    tools/store_mutations.py fence log  # those whose names contain one of the words

The tests must pass without a bug and fail with each of them. The bugs are in store_mutations.toml;
copy and builds are in CARGO_TARGET_DIR/mutations/store or ./target/mutations/store.
"""

import re

from mutations import Campaign


def failed_tests(output):
    # Tests that hang are never listed at the end; what panics says so at once.
    panicked = re.findall(r"thread '([\w:]+)' .*panicked", output)
    listed = re.findall(r"^    ([\w:]+)$", output, re.MULTILINE) + re.findall(r"^test (\S+) .*FAILED", output, re.MULTILINE)
    return sorted({name for name in panicked + listed if "::" in name})


CAMPAIGN = Campaign(
    "store",
    "crates/store/src",
    "cargo test --profile ci -q -p atoll-store --lib --test store --no-fail-fast",
    failed_tests,
    # Short histories first: what they notice need not be looked for by the random ones.
    stages=(
        ("--", "directed::", "regressions::", "little_memory::", "metadata::", "full_of_metadata_pages"),
        (),
    ),
    run_seconds=900,
    memory_bytes=14 << 30,
)

if __name__ == "__main__":
    CAMPAIGN.main()
