"""A host without the key service accepts records of the key that it has remembered.

When the cluster's keys were lost and made again, an operator has to name the right one there.
"""

import json

import pytest


class Other:
    """Another host of the cluster, which has OSDs only: its data directory, as far as commands need it."""

    def __init__(self, cluster, scenario):
        self.cluster, self.scenario = cluster, scenario
        self.data = scenario.directory / "other"
        self.data.mkdir(mode=0o700)

    @property
    def file(self):
        return self.data / "cluster.json"

    def remember(self):
        """It has joined, and knows what the first host knows."""
        settings = json.loads((self.cluster.data / "cluster.json").read_text())
        settings |= {"state_listen": None, "host": "other", "role": "osd", "osd_ids": [], "is_signed": False}
        self.file.write_text(json.dumps(settings))
        self.file.chmod(0o600)

    def pinned(self):
        return json.loads(self.file.read_text())["signing_key"]

    def cli(self, *arguments, ok=(0,)):
        return self.scenario.run(self.scenario.atoll, *arguments, "--data", self.data, ok=ok)


@pytest.fixture(scope="module")
def lost(scenario):
    """A cluster in which nothing is sealed yet, and whose key file was lost and made again."""
    cluster = scenario.cluster(osds=1, osd_size="1G")
    cluster.up()
    other = Other(cluster, scenario)
    other.remember()
    before = fingerprints(other)
    assert before["pinned"] == before["signs"] and before["is_accepted"] and not before["is_verified"]
    other.cli("pool", "ls")
    cluster.down()
    (cluster.data / "keys/kms.json").unlink()
    cluster.options += ["--new-key", "kms"]
    cluster.up()
    return other, before


def fingerprints(host, *more, ok=(0,)):
    return json.loads(host.cli("host", "pin", "--json", *more, ok=ok).stdout)


def test_records_of_the_other_key_are_refused(lost):
    other, before = lost
    said = other.cli("pool", "ls", ok=None)
    assert said.returncode != 0 or "left out" in said.stderr, said.stdout
    found = fingerprints(other, ok=(1,))
    assert found["pinned"] == before["pinned"] != found["signs"]
    assert not found["is_accepted"]


def test_a_host_with_the_key_service_follows_by_itself(lost):
    other, before = lost
    found = fingerprints(other.cluster)
    assert found["pinned"] == found["signs"] != before["signs"]
    assert found["is_verified"] and found["is_accepted"]


def test_an_operator_names_the_key_of_a_cluster_whose_keys_were_lost(lost):
    other, before = lost
    known = other.pinned()
    shown = other.cli("host", "pin", ok=(1,))
    assert before["pinned"] in shown.stdout and "--yes" in shown.stderr
    wrong = other.cli("host", "pin", "--yes", "--fingerprint", before["pinned"], ok=(1,))
    assert "nothing was changed" in wrong.stderr
    assert other.pinned() == known
    right = fingerprints(other.cluster)["signs"]
    done = other.cli("host", "pin", "--yes", "--fingerprint", right)
    assert "restart" in done.stderr and other.pinned() != known
    assert fingerprints(other)["pinned"] == right
    assert "left out" not in other.cli("pool", "ls").stderr
