#!/usr/bin/env python3
"""Says which deliberate bugs of pg_mutations.toml and store_mutations.toml have no place in the code any
more, so that a change of the code is followed there at once and not at the next campaign."""

import sys

import pg_mutations
import store_mutations


def main():
    stale = [line for module in (pg_mutations, store_mutations) for line in module.CAMPAIGN.stale()]
    print("\n".join(stale), end="\n" if stale else "", file=sys.stderr)
    sys.exit(bool(stale))


if __name__ == "__main__":
    main()
