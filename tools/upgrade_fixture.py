#!/usr/bin/env python3
"""Makes a data directory as a release writes it, for the end-to-end scenario `upgrade`.

    tools/upgrade_fixture.py --atoll PATH NAME    # tests/e2e/fixtures/NAME.tar.xz

Make one whenever a format has changed, with the binary of the last commit that has the old one, and
name it after that commit. The keys in it are of that directory alone.
"""
import argparse, pathlib, sys

E2E = pathlib.Path(__file__).resolve().parent.parent / "tests" / "e2e"
sys.path.insert(0, str(E2E))
import harness, upgrade  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--atoll", required=True, help="the binary that writes it")
    parser.add_argument("name", help="the commit that the binary is built of")
    arguments = parser.parse_args()
    arguments.scale = 1
    test = harness.Test("upgrade-fixture", arguments)
    upgrade.FIXTURES.mkdir(exist_ok=True)
    path = upgrade.FIXTURES / f"{arguments.name}.tar.xz"
    try:
        upgrade.make(test, path)
    finally:
        test.clean_up()
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
