#!/usr/bin/env python3
"""Makes a data directory as a release writes it, for tests/e2e/test_upgrade.py.

    tools/upgrade_fixture.py --atoll PATH NAME    # tests/e2e/fixtures/NAME.tar.xz

Make one whenever a format has changed, with the binary of the last commit that has the old one, and
name it after that commit. The keys in it are of that directory alone.
"""

import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "e2e"))
from lib import releases
from lib.scenario import Scenario


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--atoll", required=True, help="the binary that writes it")
    parser.add_argument("name", help="the commit that the binary is built of")
    arguments = parser.parse_args()
    releases.FIXTURES.mkdir(exist_ok=True)
    path = releases.FIXTURES / f"{arguments.name}.tar.xz"
    scenario = Scenario("upgrade-fixture", arguments.atoll)
    try:
        releases.make(scenario, path)
    finally:
        scenario.clean_up(keep=False)
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
