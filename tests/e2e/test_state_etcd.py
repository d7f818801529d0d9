"""A cluster whose etcd is lost and restored from an older snapshot, with the tools of etcd: 'atoll state raise' has it
give no number again that OSDs know already."""

import json

import pytest
from lib.cluster import MIB
from lib.etcd import PlainEtcd
from lib.s3 import read
from lib.verdicts import intact
from lib.waiting import wait_for

pytestmark = [pytest.mark.needs("etcd", "etcdctl")]

BUCKET, IMAGE = "kept-bucket", "kept-image"


def body(number):
    return f"object {number} ".encode() * 20_000


def problems(cluster):
    found = json.loads(cluster.cli("health", "--json", ok=(0, 1, 2)).stdout)
    return {problem["code"] for problem in found["problems"] if problem["severity"] != "note"}


def is_well(cluster):
    # This etcd asks for no password, as health says.
    return problems(cluster) == {"STATE_WITHOUT_LOGIN"}


class Restored:
    def __init__(self, scenario):
        self.etcd = etcd = PlainEtcd(scenario)
        etcd.start("first")
        self.cluster = cluster = scenario.cluster(osds=4, osd_size="4G")
        cluster.options += ["--etcd", etcd.url]
        cluster.up()
        self.s3 = cluster.s3()
        self.s3.create_bucket(Bucket=BUCKET)
        cluster.create_image(IMAGE, "64M")
        self.write(b"1")
        self.put(0)
        file = scenario.directory / "state.snapshot"
        cluster.cli("state", "snapshot", file)
        self.pools_before = {pool["id"] for pool in cluster.json("pool", "ls")}
        self.running_refused = cluster.cli("state", "raise", ok=(1,)).stderr
        # What the snapshot does not know: members of all PGs without each OSD in turn, and more.
        for number, osd in enumerate(("osd.0", "osd.1", "osd.2", "osd.3"), 1):
            before = cluster.kill(osd)
            self.put(number)
            cluster.restarted(osd, before)
            wait_for("all is well", lambda: is_well(cluster), 60)
        cluster.cli("image", "snap", "create", f"{IMAGE}@forgotten")
        self.write(b"2")
        cluster.cli("pool", "create", "forgotten", "--pg-num", "8")
        cluster.down()
        etcd.stop()
        etcd.restore(file, "second")
        etcd.start("second")
        self.raised = cluster.json("state", "raise")
        cluster.up()
        wait_for("all is well", lambda: is_well(cluster), 60)
        self.s3 = cluster.s3()

    def put(self, number):
        self.s3.put_object(Bucket=BUCKET, Key=str(number), Body=body(number))

    def write(self, byte):
        with self.cluster.nbd(IMAGE) as connection:
            connection.write(0, byte * MIB)

    def whole(self, export):
        with self.cluster.nbd(export) as connection:
            return connection.read(0, MIB)


@pytest.fixture(scope="module")
def restored(scenario):
    return Restored(scenario)


@pytest.mark.nightly
def test_a_cluster_that_runs_is_left_alone(restored):
    assert "is running" in restored.running_refused


@pytest.mark.nightly
def test_it_says_what_it_has_raised(restored):
    assert restored.raised["images"] == 1 and restored.raised["pgs"] > 0


@pytest.mark.nightly
def test_what_was_acknowledged_since_is_there(restored):
    for number in range(5):
        intact(read(restored.s3, BUCKET, str(number)) == body(number), number)


@pytest.mark.nightly
def test_a_new_pool_does_not_get_the_number_of_a_forgotten_one(restored):
    restored.cluster.cli("pool", "create", "later", "--pg-num", "8")
    new = {pool["id"] for pool in restored.cluster.json("pool", "ls")} - restored.pools_before
    assert min(new) > max(restored.pools_before) + 1


@pytest.mark.nightly
def test_an_image_has_writers_and_snapshots_again(restored):
    restored.write(b"3")
    restored.cluster.cli("image", "snap", "create", f"{IMAGE}@new")
    restored.write(b"4")
    assert [restored.whole(export)[:1] for export in (f"{IMAGE}@new", IMAGE)] == [b"3", b"4"]


def test_the_embedded_state_is_restored_otherwise(scenario):
    other = scenario.cluster("other", osds=1, osd_size="4G")
    other.up()
    assert "atoll state restore" in other.cli("state", "raise", ok=(1,)).stderr
    other.down()
