"""An older copy of an OSD's device is put back: what was acknowledged since stays, and the others backfill that OSD."""

import random
import shutil

import pytest
from lib.cluster import MIB
from lib.verdicts import intact
from lib.waiting import wait_for

SIZE, BLOCK = 16 * MIB, 4096


class Written:
    """An image in each kind of pool, and what it must hold."""

    def __init__(self, cluster):
        self.cluster, self.rng, self.images = cluster, random.Random(3), {}
        for name, options in (
            ("pair", ("--size", 2, "--min-size", 1)),
            ("coded", ("--ec", "2+1")),
            ("copies", ("--size", 3)),
        ):
            cluster.cli("pool", "create", name, "--pg-num", 8, *options)
            cluster.create_image(name, SIZE, "--pool", name)
            self.images[name] = bytearray(SIZE)

    def write(self, count):
        for name, content in self.images.items():
            with self.cluster.nbd(name) as disk:
                for _ in range(count):
                    at, data = self.rng.randrange(SIZE // BLOCK) * BLOCK, self.rng.randbytes(BLOCK)
                    disk.write(at, data)
                    content[at : at + BLOCK] = data
                disk.flush()

    def check(self):
        for name, content in self.images.items():
            with self.cluster.nbd(name) as disk:
                for at in range(0, SIZE, MIB):
                    found = disk.read(at, MIB)
                    intact(found == content[at : at + MIB], f"WRONG DATA in the MiB at {at} of {name}")


@pytest.fixture(scope="module")
def put_back(scenario):
    cluster = scenario.cluster("old", osds=4, osd_size="1G")
    cluster.up()
    written = Written(cluster)
    written.write(200)
    cluster.down()
    device, copy = cluster.data / "osd-2" / "device", scenario.directory / "older-device"
    # A plain copy keeps the holes.
    scenario.run("cp", "--sparse=always", device, copy)
    cluster.up()
    written.write(200)
    cluster.down()
    shutil.move(copy, device)
    cluster.up()
    return written


def test_what_was_acknowledged_since_is_read(put_back):
    """Images in pools of two and three copies and of shards read what was written after the copy was made."""
    put_back.check()


def test_the_osd_says_that_its_device_is_old_and_is_backfilled(put_back):
    """The log names the older copy; in the end all PGs are whole, and deep scrubs find nothing."""
    assert "the device of osd.2 is an older copy" in put_back.cluster.log_text()
    cluster = put_back.cluster

    def are_whole():
        return all(pg["state"] == "active" for pg in cluster.json("pg", "ls"))

    wait_for("all PGs are whole", are_whole, 120)
    cluster.cli("pg", "scrub", "all", "--deep", "--wait", timeout=300)
    put_back.check()


def test_a_later_start_takes_the_device_for_what_it_is(put_back):
    """After a restart nothing is old any more, and everything is read."""
    cluster = put_back.cluster
    before = cluster.log_text().count("is an older copy")
    cluster.down()
    cluster.up()
    assert cluster.log_text().count("is an older copy") == before
    put_back.check()
