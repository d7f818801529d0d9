"""A snapshot of cluster state that was taken while the cluster ran brings a cluster back whose state is lost, although
PGs have had other members, images other writers and snapshots since."""

import json
import os
import shutil
import stat

import pytest
from lib.cluster import MIB
from lib.operator import told
from lib.s3 import read
from lib.verdicts import intact
from lib.waiting import NotYet, wait_for

BUCKET, IMAGE = "kept-bucket", "kept-image"


def body(number):
    return f"object {number} ".encode() * 20_000


def is_well(cluster):
    found = json.loads(cluster.cli("health", "--json", ok=(0, 1, 2)).stdout)
    if any(problem["severity"] != "note" for problem in found["problems"]):
        raise NotYet(told(found))
    return True


def whole(cluster, export):
    with cluster.nbd(export) as connection:
        return connection.read(0, MIB)


def write(cluster, byte):
    with cluster.nbd(IMAGE) as connection:
        connection.write(0, byte * MIB)


class Restored:
    """A cluster that has lost its state and got it back from a snapshot that was older."""

    def __init__(self, scenario):
        self.cluster = cluster = scenario.cluster(osds=4, osd_size="4G")
        cluster.up()
        self.s3 = cluster.s3()
        self.s3.create_bucket(Bucket=BUCKET)
        cluster.create_image(IMAGE, "64M")
        write(cluster, b"1")
        cluster.cli("image", "snap", "create", f"{IMAGE}@first")
        self.put(0)
        self.file = scenario.directory / "state.snapshot"
        self.said = cluster.json("state", "snapshot", self.file)
        self.pools_before = {pool["id"] for pool in cluster.json("pool", "ls")}
        self.change(cluster)
        cluster.down()
        self.refused = cluster.cli("state", "restore", self.file, ok=(1,)).stderr
        shutil.rmtree(cluster.data / "state")
        self.up_refused = scenario.run(*cluster.up_command(), "--detach", env=cluster.environment(), ok=(1,)).stderr
        self.restored = cluster.json("state", "restore", self.file)
        cluster.up()
        self.s3 = cluster.s3()
        wait_for("all is well", lambda: is_well(cluster), 60)

    def put(self, number):
        self.s3.put_object(Bucket=BUCKET, Key=str(number), Body=body(number))

    def change(self, cluster):
        """What the snapshot does not know: members of all PGs without each OSD in turn, and more."""
        for number, osd in enumerate(("osd.0", "osd.1", "osd.2", "osd.3"), 1):
            before = cluster.kill(osd)
            self.put(number)
            cluster.restarted(osd, before)
            wait_for("all is well", lambda: is_well(cluster), 60)
        for name in ("second", "third"):
            cluster.cli("image", "snap", "create", f"{IMAGE}@{name}")
        cluster.cli("pool", "create", "forgotten", "--pg-num", "8")
        self.s3.create_bucket(Bucket="forgotten-bucket")


@pytest.fixture(scope="module")
def restored(scenario):
    return Restored(scenario)


def test_a_snapshot_is_a_new_file_of_its_owner(restored):
    assert stat.S_IMODE(os.stat(restored.file).st_mode) == 0o600
    # The digest of 32 bytes is behind it.
    assert restored.file.stat().st_size == restored.said["state_bytes"] + 32
    assert "exists already" in restored.cluster.cli("state", "snapshot", restored.file, ok=(1,)).stderr


def test_state_that_is_there_is_not_replaced_unless_told(restored):
    assert "--replace" in restored.refused


def test_a_cluster_without_its_state_is_not_made_anew(restored):
    assert "state.redb is missing" in restored.up_refused and "atoll state restore" in restored.up_refused


def test_it_says_what_it_has_put_back(restored):
    assert restored.restored["images"] == 1 and restored.restored["pgs"] > 0 and restored.restored["before"] is None


def test_what_was_acknowledged_since_is_there(restored):
    for number in range(5):
        intact(read(restored.s3, BUCKET, str(number)) == body(number), number)


def test_what_was_made_since_is_forgotten(restored):
    assert [bucket["Name"] for bucket in restored.s3.list_buckets()["Buckets"]] == [BUCKET]
    assert [one["name"] for one in restored.cluster.json("image", "snap", "ls", IMAGE)] == ["first"]


@pytest.mark.nightly
def test_a_new_pool_does_not_get_the_number_of_a_forgotten_one(restored):
    restored.cluster.cli("pool", "create", "later", "--pg-num", "8")
    new = {pool["id"] for pool in restored.cluster.json("pool", "ls")} - restored.pools_before
    assert min(new) > max(restored.pools_before) + 1


def test_an_image_has_its_writers_and_snapshots_again(restored):
    cluster = restored.cluster
    intact(whole(cluster, f"{IMAGE}@first") == b"1" * MIB, "other bytes")
    write(cluster, b"2")
    cluster.cli("image", "snap", "create", f"{IMAGE}@new")
    write(cluster, b"3")
    assert [whole(cluster, export)[:1] for export in (f"{IMAGE}@first", f"{IMAGE}@new", IMAGE)] == [b"1", b"2", b"3"]


@pytest.fixture(scope="module")
def other(scenario):
    """Another cluster, which is stopped."""
    cluster = scenario.cluster("other", osds=1, osd_size="4G")
    cluster.up()
    cluster.down()
    return cluster


@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_a_snapshot_that_is_not_whole_is_refused(restored, other, scenario, damage):
    bytes_ = restored.file.read_bytes()
    changed = bytes_[:9000] + bytes([bytes_[9000] ^ 1]) + bytes_[9001:]
    wrong = {"cut": bytes_[:-512], "changed": changed, "empty": b""}[damage]
    file = scenario.directory / f"{damage}.snapshot"
    file.write_bytes(wrong)
    done = other.cli("state", "restore", file, "--replace", ok=(1,))
    assert "digest is wrong" in done.stderr
    # The state that was there is still the cluster's.
    other.up()
    other.down()


def test_the_snapshot_of_another_cluster_is_refused(restored, other):
    other.up()
    assert "is running" in other.cli("state", "restore", restored.file, "--replace", ok=(1,)).stderr
    other.down()
    assert "another cluster" in other.cli("state", "restore", restored.file, "--replace", ok=(1,)).stderr
    assert not (other.data / "state.restored").exists()


def test_with_replace_the_state_before_is_kept(restored):
    """Goes last: it takes the cluster back again."""
    cluster = restored.cluster
    cluster.down()
    before = cluster.json("state", "restore", restored.file, "--replace")["before"]
    assert os.path.exists(f"{before}/state.redb")
    cluster.up()
    wait_for("all is well", lambda: is_well(cluster), 60)
    intact(read(cluster.s3(), BUCKET, "4") == body(4), "other bytes")
    # What was given since the first restore is not given again either.
    write(cluster, b"4")
    cluster.cli("image", "snap", "create", f"{IMAGE}@newer")
    write(cluster, b"5")
    assert [whole(cluster, export)[:1] for export in (f"{IMAGE}@first", f"{IMAGE}@newer", IMAGE)] == [b"1", b"4", b"5"]
