#!/usr/bin/env python3
"""Runs ceph/s3-tests against a cluster, and writes what passes into docs/reference/s3-tests.md.

    tools/s3_tests.py --suite PATH                      # all selected tests, into the page and the list
    tools/s3_tests.py --suite PATH --check              # the tests of the list; fails if one of them fails
    tools/s3_tests.py --suite PATH -- -k versioning -x  # some of them, with options of pytest; no page

The suite is a checkout of https://github.com/ceph/s3-tests. It runs from .venv-s3-tests with what
tests/s3_tests_requirements.txt names. Each user of the suite is the root of an account of its own, and ACLs
count in new buckets, as with RGW.
"""

import argparse
import collections
import pathlib
import re
import subprocess
import sys
import textwrap
import tomllib
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "e2e"))
from lib.scenario import Scenario, add_arguments

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "s3-tests.md"
REASONS = ROOT / "tests" / "s3_tests_reasons.toml"
PASSING = ROOT / "tests" / "s3_tests_passing.txt"
PYTHON = ROOT / ".venv-s3-tests" / "bin" / "python"
MODULES = ["s3tests/functional/test_s3.py", "s3tests/functional/test_headers.py"]
SELECTED = (
    "not lifecycle_expiration and not lifecycle_transition and not cloud_transition and not cloud_restore"
    " and not webidentity_test"
)
KEYS = ("testkey-1", "testkey-2")
USERS = ("s3 main", "s3 alt", "s3 tenant", "iam", "iam root", "iam alt root")


def user_of(cluster, section):
    """An account for a section of the suite's configuration, with what the suite wants to know of it."""
    name = section.replace(" ", "-")
    made = cluster.json("account", "create", name, "--email", f"{name}@example.com")
    account, key = made["Account"], made["AccessKey"]
    return {
        "display_name": account["Name"],
        "user_id": account["CanonicalId"],
        "email": account["Email"],
        "api_name": "us-east-1",
        "access_key": key["AccessKeyId"],
        "secret_key": key["SecretAccessKey"],
        "kms_keyid": KEYS[0],
        "kms_keyid2": KEYS[1],
    }


def write_configuration(path, cluster):
    users = {section: user_of(cluster, section) for section in USERS}
    sections = {
        "DEFAULT": {"host": "127.0.0.1", "port": cluster.s3_tls_port, "is_secure": True, "ssl_verify": False},
        "fixtures": {
            "bucket prefix": "atoll-{random}-",
            "iam name prefix": "s3-tests-",
            "iam path prefix": "/s3-tests/",
        },
    }
    users["s3 tenant"]["tenant"] = "testx"
    sections |= users
    lines = []
    for name, values in sections.items():
        lines += [f"[{name}]", *(f"{key} = {value}" for key, value in values.items())]
    path.write_text("\n".join(lines) + "\n")


def listed_tests(suite):
    """The tests that have to pass, as pytest takes them."""
    found = []
    for module in MODULES:
        defined = set(re.findall(r"^def (test_\w+)\(", (suite / module).read_text(), re.MULTILINE))
        listed = (name for name in PASSING.read_text().split() if name.partition("[")[0] in defined)
        found += [f"{module}::{name}" for name in listed]
    return found


def run_suite(scenario, suite, tests, options):
    """Runs tests; returns the file of their results."""
    results = scenario.directory / "results.xml"
    configuration = scenario.directory / "s3tests.conf"
    cluster = scenario.cluster()
    cluster.variables["ATOLL_S3_OBJECT_OWNERSHIP"] = "object-writer"
    cluster.up()
    for key in KEYS:
        cluster.cli("key", "create", key)
    write_configuration(configuration, cluster)
    environment = scenario.environment | {"S3TEST_CONF": str(configuration)}
    # The certificate of the cluster, for those tests that do not ask the configuration.
    for name in ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"):
        environment[name] = str(cluster.data / "tls" / "ca.crt")
    command = [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", "--timeout=120"]
    command += ["--disable-warnings", "-n", "3", f"--junitxml={results}", "-m", SELECTED, *tests, *options]
    subprocess.run([str(part) for part in command], cwd=suite, env=environment, check=False)
    cluster.down()
    return results


class Outcome:
    """What became of one test."""

    def __init__(self, case):
        self.name = case.get("name")
        trouble = case.find("failure") if case.find("failure") is not None else case.find("error")
        self.has_passed = trouble is None and case.find("skipped") is None
        self.is_skipped = case.find("skipped") is not None
        lines = re.findall(r"^E  +(.*)$", trouble.text or "", re.MULTILINE) if trouble is not None else []
        self.error = lines[-1] if lines else ""


def read_outcomes(path):
    cases = xml.etree.ElementTree.parse(path).iter("testcase")
    # A test that fails once more when it cleans up counts once, and as failed.
    outcomes = {}
    for outcome in map(Outcome, cases):
        if outcome.name not in outcomes or not outcome.has_passed:
            outcomes[outcome.name] = outcome
    return list(outcomes.values())


def find(rules, text):
    return next((rule for rule in rules if re.search(rule["pattern"], text)), None)


def explain(rules, outcome):
    rule = find(rules["reason"], f"{outcome.name} {outcome.error}")
    return rule["text"] if rule else f"not explained: {outcome.error[:120]}"


def page(outcomes, rules, commit):
    """The text of the page."""
    ran = [outcome for outcome in outcomes if not outcome.is_skipped]
    passed = sum(outcome.has_passed for outcome in ran)
    by_feature, failed = collections.defaultdict(lambda: [0, 0]), collections.defaultdict(list)
    for outcome in ran:
        feature = (find(rules["feature"], outcome.name) or {"name": "objects and buckets"})["name"]
        by_feature[feature][0] += outcome.has_passed
        by_feature[feature][1] += 1
        if not outcome.has_passed:
            failed[explain(rules, outcome)].append(outcome.name)
    lines = [
        "# ceph/s3-tests",
        "",
        "Written by `make s3-tests` (`tools/s3_tests.py`): the tests of `test_s3.py` and",
        f"`test_headers.py` of [ceph/s3-tests](https://github.com/ceph/s3-tests) at {commit}, but",
        "for those with these marks, against a cluster of three OSDs over TLS. Each user of the suite is an",
        "account, and ACLs count in new buckets as with RGW (`ATOLL_S3_OBJECT_OWNERSHIP=object-writer`).",
        "",
        *(f"    {mark.removeprefix('not ')}" for mark in SELECTED.split(" and ")),
        "",
        f"**{passed} of {len(outcomes)} pass**, {len(ran) - passed} fail, {len(outcomes) - len(ran)} are",
        "skipped by the suite itself.",
        "",
        "| feature | pass | of |",
        "|---|---|---|",
        *(f"| {name} | {good} | {count} |" for name, (good, count) in sorted(by_feature.items())),
        "",
        "## What fails, and why",
        "",
    ]
    for reason, names in sorted(failed.items(), key=lambda item: -len(item[1])):
        lines += [
            *textwrap.wrap(f"**{reason}** ({len(names)})", 100),
            "",
            *(f"- `{name}`" for name in sorted(names)),
            "",
        ]
    return "\n".join(lines)


def passing(outcomes):
    return {outcome.name for outcome in outcomes if outcome.has_passed}


def check(outcomes):
    """Fails if a test that has to pass did not."""
    errors = {outcome.name: outcome.error for outcome in outcomes}
    listed = set(PASSING.read_text().split())
    broken = sorted(listed - passing(outcomes))
    for name in broken:
        print(f"{name}: {errors.get(name, 'it did not run')}")
    print(f"{len(listed) - len(broken)} passed, {len(broken)} failed")
    sys.exit(1 if broken else 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--suite", type=pathlib.Path, required=True, help="a checkout of ceph/s3-tests")
    parser.add_argument("--commit", help="the suite's commit, where it is no git checkout")
    parser.add_argument("--check", action="store_true", help="only the tests of the list that passes; no page")
    parser.add_argument("options", nargs="*", help="options of pytest, behind --")
    arguments = parser.parse_args()
    if not (arguments.suite / MODULES[0]).exists():
        sys.exit(f"{arguments.suite} is no checkout of ceph/s3-tests: it has no {MODULES[0]}")
    rules = tomllib.loads(REASONS.read_text())
    scenario = Scenario("s3-tests", arguments.atoll, arguments.scale)
    try:
        tests = listed_tests(arguments.suite) if arguments.check else MODULES
        outcomes = read_outcomes(run_suite(scenario, arguments.suite, tests, arguments.options))
    finally:
        scenario.clean_up(keep=False)
    if arguments.check:
        check(outcomes)
    if arguments.check or arguments.options:
        return
    show = ["git", "-C", str(arguments.suite), "log", "-1", "--format=%h of %cs"]
    commit = arguments.commit or subprocess.run(show, capture_output=True, text=True, check=True).stdout.strip()
    PAGE.write_text(page(outcomes, rules, commit))
    PASSING.write_text("".join(f"{name}\n" for name in sorted(passing(outcomes))))
    print(f"{sum(outcome.has_passed for outcome in outcomes)} of {len(outcomes)} pass; see {PAGE}")


if __name__ == "__main__":
    main()
