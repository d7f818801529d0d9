#!/usr/bin/env python3
"""Says which deliberate bugs of pg_mutations.py and store_mutations.py have no place in the code any
more, so that a change of the code is followed there at once and not at the next campaign."""

import sys

import pg_mutations
import store_mutations


def main():
    stale = 0
    for tool in (pg_mutations, store_mutations):
        for name, file, pattern, _ in tool.MUTATIONS:
            path = tool.SOURCE / file
            count = (tool.ROOT / path).read_text().count(pattern)
            if count != 1:
                stale += 1
                print(f"{tool.__name__}: '{name}': {path} has {count} places like this: {pattern}", file=sys.stderr)
    sys.exit(stale > 0)


if __name__ == "__main__":
    main()
