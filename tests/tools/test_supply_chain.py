"""The checks of actions and of bills of materials pass on what is right, and fail on a planted error."""

import copy

import check_actions
import pytest
import sbom

COMMIT = "0123456789abcdef0123456789abcdef01234567"
BILL = {
    "bomFormat": "CycloneDX",
    "components": [
        {"bom-ref": "pkg:cargo/bytes@1.0.0", "name": "bytes", "licenses": [{"expression": "MIT"}], "hashes": ["x"]},
        {"bom-ref": "pkg:cargo/atoll-types@0.1.0", "name": "atoll-types", "licenses": [{"expression": "MIT"}]},
    ],
}


@pytest.mark.parametrize("line", [f"- uses: a/b@{COMMIT} # v4.4.0", f"  uses: a/b/c@{COMMIT} # v2", "uses: ./local"])
def test_actions_that_are_pinned_pass(line):
    assert [*check_actions.faults("test.yml", line)] == []


@pytest.mark.parametrize(
    "line", ["- uses: a/b@v4", f"- uses: a/b@{COMMIT}", f"- uses: a/b@{COMMIT[:12]} # v4", "- uses: a/b@main # v4"]
)
def test_actions_that_can_move_are_errors(line):
    [fault] = check_actions.faults("test.yml", f"jobs:\n{line}")
    assert fault.startswith("test.yml:2: ")


def test_a_bill_that_is_right_passes():
    assert [*sbom.faults(BILL, BILL)] == []


def test_what_is_wrong_with_a_bill_is_named():
    def faults(change):
        bill = copy.deepcopy(BILL)
        change(bill)
        return [*sbom.faults(bill, BILL)]

    assert faults(lambda bill: bill.pop("bomFormat")) == ["it is no bill of CycloneDX"]
    assert faults(lambda bill: bill["components"].pop()) == ["pkg:cargo/atoll-types@0.1.0 is missing"]
    more = {"bom-ref": "pkg:cargo/other@1.0.0", "name": "other", "licenses": ["x"], "hashes": ["x"]}
    assert faults(lambda bill: bill["components"].append(more)) == ["pkg:cargo/other@1.0.0 is not in the program"]
    assert faults(lambda bill: bill["components"][0].pop("licenses")) == ["pkg:cargo/bytes@1.0.0 has no licence"]
    assert faults(lambda bill: bill["components"][0].pop("hashes")) == ["pkg:cargo/bytes@1.0.0 has no checksum"]


def test_this_program_has_a_bill_without_faults():
    made = sbom.bill("x86_64-unknown-linux-gnu")
    assert [*sbom.faults(made, made)] == []
    names = {one["name"] for one in made["components"]}
    assert {"aws-lc-rs", "tokio", "atoll-outgoing"} <= names and "proptest" not in names
