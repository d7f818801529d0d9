"""Bytes changed on the devices of two OSDs, one after the other: found, told, never given out, and repaired."""

import json
import random
import re

import pytest
from lib.cluster import MIB
from lib.devices import data_offsets, flip_bits
from lib.nbd import NbdError, connect_patiently
from lib.s3 import Uploader
from lib.verdicts import DataFailure, intact
from lib.waiting import wait_for

IMAGE_BYTES = 96 * MIB


class Content:
    """An image and objects, and what they must hold."""

    def __init__(self, cluster):
        self.cluster, self.image = cluster, bytearray(IMAGE_BYTES)
        cluster.create_image("rot", str(IMAGE_BYTES))
        rng = random.Random(4)
        with cluster.nbd("rot") as connection:
            for place in range(0, 64 * MIB, 4 * MIB):
                self.write(connection, place, rng.randbytes(4 * MIB))
            for _ in range(500):
                self.write(connection, 64 * MIB + rng.randrange(32 * 256) * 4096, rng.randbytes(4096))
        s3 = cluster.s3()
        s3.create_bucket(Bucket="rot")
        self.uploader = Uploader(s3, "rot")
        for number in range(80):
            self.uploader.put(f"o/{number}", rng.randbytes((100, 5000, 65536, 300_000, 2 * MIB)[number % 5]))
        assert not self.uploader.errors, f"{self.uploader.errors[:3]}"

    def write(self, connection, place, data):
        connection.write(place, data)
        self.image[place : place + len(data)] = data

    def check(self):
        with connect_patiently(lambda: self.cluster.nbd("rot")) as connection:
            for place in range(0, len(self.image), MIB):
                try:
                    found = connection.read(place, MIB)
                except NbdError as error:
                    raise DataFailure(f"what was written cannot be read: {error}") from None
                self.compare(place, found)
        problems = self.uploader.problems(self.cluster.s3(attempts=2))
        assert not problems, f"{len(problems)}: {problems[:5]}"

    def compare(self, place, found):
        wanted = self.image[place : place + MIB]
        wrong = [at for at in range(0, MIB, 4096) if found[at : at + 4096] != wanted[at : at + 4096]]
        intact(not wrong, f"WRONG DATA in the MiB at {place} of the image: blocks at {wrong[:3]}")


class Damage:
    """A twentieth of the blocks with data of one OSD are changed while nothing runs; then all starts again."""

    def __init__(self, content, osd):
        self.content, self.osd, self.cluster = content, osd, content.cluster
        scenario, device = self.cluster.scenario, self.cluster.data / f"osd-{osd}" / "device"
        self.cluster.down()
        rng = random.Random(osd)
        # Damage of metadata is another matter: it makes the OSD refuse to serve.
        self.used = data_offsets(scenario, device, rng)
        self.chosen = rng.sample(self.used, len(self.used) // 20)
        flip_bits(device, [offset + rng.randrange(4096) for offset in self.chosen])
        self.checked = scenario.run(scenario.atoll, "store", "check", "--device", device, "--data", "--json", ok=(1,))
        self.seconds = self.cluster.up()


@pytest.fixture(scope="module")
def content(scenario):
    cluster = scenario.cluster("rot", osd_size="4G")
    cluster.up()
    return Content(cluster)


@pytest.fixture(
    scope="module", params=[pytest.param(1, id="osd.1"), pytest.param(0, id="osd.0", marks=pytest.mark.nightly)]
)
def damage(content, request):
    return Damage(content, request.param)


def test_store_check_finds_the_damage_and_says_where_it_is(damage, note):
    """'atoll store check --data' finds every changed block."""
    assert len(damage.used) > 1000, f"only {len(damage.used)} blocks with data were found"
    count = json.loads(damage.checked.stdout)["problem_count"]
    assert count == len(damage.chosen), f"{count} problems, {len(damage.chosen)} blocks were damaged"
    note(f"{len(damage.chosen)} of {len(damage.used)} blocks, healthy after {damage.seconds:.1f} s")


def test_everything_is_read_as_it_was_written(damage):
    """Everything is read as it was written, from the damaged device and from the others."""
    damage.content.check()


def test_the_damage_is_told_in_the_log_and_by_status(damage, note):
    """The damage is told in the log and by status."""
    damage.content.check()
    cluster = damage.cluster
    lines = [
        line for line in cluster.log_text().splitlines() if re.search(r"corrupt|damaged|checksum", line, re.IGNORECASE)
    ]
    assert lines, "no line in any log tells it"
    count = wait_for("status counts damaged blocks", lambda: cluster.json("status")["corrupt_block_count"], 30, 1)
    assert cluster.json("status")["health"] != "ok", "health is 'ok' all the same"
    note(f"{len(lines)} lines in the logs, {count} blocks in status")


def test_writes_over_damaged_blocks_work(damage):
    """Writes over damaged blocks work, also of parts of blocks; everything else stays as it is."""
    rng = random.Random(50 + damage.osd)
    with damage.cluster.nbd("rot") as connection:
        for _ in range(300):
            # Also such as cover blocks in part, for which the rest has to be read.
            length = rng.choice((512, 4096, 5000, 65536))
            damage.content.write(connection, rng.randrange(IMAGE_BYTES - length), rng.randbytes(length))
    damage.content.check()


def test_repaired_copies_serve_after_a_restart(content):
    """Repaired copies serve after a restart, also when a second OSD was damaged after the first."""
    content.cluster.down()
    content.cluster.up()
    content.check()
