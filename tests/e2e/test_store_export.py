"""The device with the only copy of some PGs is damaged and goes: what is readable is exported, and put back."""

import json
import random

import pytest
from lib.cluster import MIB
from lib.devices import dump, flip_bits
from lib.verdicts import intact
from lib.waiting import wait_for

SIZE, BLOCK = 64 * MIB, 4096


class Exported:
    """An image in a pool of one copy. A block on osd.1 is damaged, and its readable data is in a file."""

    def __init__(self, scenario):
        self.cluster, rng = scenario.cluster("export", osds=3, osd_size="1G"), random.Random(7)
        cluster = self.cluster
        cluster.up()
        cluster.cli("pool", "create", "single", "--pg-num", 8, "--size", 1)
        cluster.create_image("disk", SIZE, "--pool", "single")
        self.content = bytearray(rng.randbytes(SIZE))
        with cluster.nbd("disk") as disk:
            for at in range(0, SIZE, MIB):
                disk.write(at, bytes(self.content[at : at + MIB]))
            disk.flush()
        self.pgs = [pg["pg"] for pg in cluster.json("pg", "ls", "--pool", "single") if pg["members"] == [1]]
        cluster.down()
        device = cluster.data / "osd-1" / "device"
        self.flip_one(scenario, device)
        self.file = scenario.directory / "pgs.export"
        wanted = [part for pg in self.pgs for part in ("--pg", pg)]
        export = ("store", "export", "--device", device, *wanted, "--keep-gaps", "--json", self.file)
        self.told = scenario.run(scenario.atoll, *export, ok=(1,))
        # The device is gone for good.
        device.unlink()
        cluster.options += ["--new-device", "1"]
        cluster.up()
        del cluster.options[-2:]

    def flip_one(self, scenario, device):
        """Damages one block of an object of the image."""
        objects = [record for record in dump(scenario, device) if record["record"] == "object"]
        objects = [record for record in objects if record["pg"] in self.pgs]
        of = max(objects, key=lambda record: record["blocks"])
        records = dump(scenario, device, "--pg", of["pg"], "--object", of["object"])
        [found] = [record for record in records if record.get("extents")]
        flip_bits(device, [found["extents"][0]["device_block"] * BLOCK + 99])


@pytest.fixture(scope="module")
def exported(scenario):
    return Exported(scenario)


def test_what_is_lost_is_said(exported):
    """One block is lost, which is said with its object; the rest is in the file."""
    told = json.loads(exported.told.stdout)
    assert exported.pgs and told["objects"] > 0, told
    assert told["loss_count"] == 1 and "1 of its blocks" in told["losses"][0], told


def test_what_was_exported_is_read_again(exported):
    """The PGs go on from empty copies, and get their objects back: all is read but the damaged block."""
    cluster = exported.cluster
    waiting = lambda: {pg["pg"]: pg for pg in cluster.json("pg", "why")}
    wait_for("only these PGs wait", lambda: waiting().keys() == set(exported.pgs), 60)
    for pg in waiting().values():
        cluster.json(*pg["accept_command"].split()[1:], "--yes", timeout=90)
    told = cluster.json("store", "import", exported.file)
    assert told["objects"] > 0 and told["loss_count"] == 1, told
    again = cluster.json("store", "import", exported.file)
    assert again["objects"] == again["entries"] == 0 and again["left"] >= told["objects"], again
    with cluster.nbd("disk") as disk:
        found = b"".join(disk.read(at, MIB) for at in range(0, SIZE, MIB))
    content, none = exported.content, bytes(BLOCK)
    wrong = [at for at in range(0, SIZE, BLOCK) if found[at : at + BLOCK] != content[at : at + BLOCK]]
    intact(len(wrong) == 1 and found[wrong[0] : wrong[0] + BLOCK] == none, f"WRONG DATA at {wrong[:5]}")
