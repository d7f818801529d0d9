"""A primary whose copy was rebuilt, while the other member is full: small overwrites that stay in place here need space
there, of its reserve."""

import itertools

import pytest
from lib.cluster import MIB
from lib.nbd import ENOSPC, NbdError
from lib.verdicts import intact
from lib.waiting import Failed, wait_for

SIZE, OBJECT, SMALL = 64 * MIB, 4 * MIB, 64 << 10
# Of the 96 MiB that a small device keeps from clients, its store tells before more is gone (crates/store/src/space.rs).
FOR_CLIENTS = 36 * MIB


def is_taken(disk, at, data):
    try:
        disk.write(at, data)
    except NbdError as error:
        if error.number == ENOSPC:
            return False
        raise
    return True


def taken_until_full(disk, places, data):
    """The bytes that were taken before the first write was refused for want of space."""
    for count, at in enumerate(places):
        if not is_taken(disk, at, data):
            return count * len(data)
    raise Failed("everything was taken")


class Pair:
    """A pool of one PG with two copies, of which the primary's was rebuilt after a snapshot."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.pool("pair", 2)
        cluster.create_image("disk", SIZE, "--pool", "pair")
        with cluster.nbd("disk") as disk:
            for at in range(0, SIZE, OBJECT):
                disk.write(at, b"then" * (OBJECT // 4))
            cluster.cli("image", "snap", "create", "disk@then")
            # The first write to each object keeps what it was, which shares its blocks.
            for at in range(0, SIZE, OBJECT):
                disk.write(at, b"now." * 1024)
        self.primary, self.member = (f"osd.{osd}" for osd in self.pg()["members"])
        used = self.used(self.primary)
        cluster.cli("osd", "out", self.primary)
        wait_for("its copy is gone", lambda: self.used(self.primary) < used - SIZE // 2, 60)
        cluster.cli("osd", "in", self.primary)
        wait_for("it leads with a copy that shares nothing", self.is_rebuilt, 60)

    def pool(self, name, size):
        self.cluster.cli("pool", "create", name, "--size", size, "--min-size", 1, "--pg-num", 1, ok=(0, 3))

    def pg(self, pool="pair"):
        return self.cluster.json("pg", "ls", "--pool", pool)[0]

    def is_rebuilt(self):
        names = [f"osd.{osd}" for osd in self.pg()["members"]]
        return names == [self.primary, self.member] and self.used(self.primary) > self.used(self.member) + SIZE // 2

    def used(self, name):
        return next(osd["used_bytes"] for osd in self.cluster.json("df") if osd["name"] == name)

    def fill_member(self):
        """Fills the other member alone, with an image of its own."""
        self.cluster.cli("flag", "set", "norebalance")
        for number in itertools.count():
            self.pool(f"alone-{number}", 1)
            if self.pg(f"alone-{number}")["members"] == [int(self.member.removeprefix("osd."))]:
                break
        self.cluster.create_image("filler", "1G", "--pool", f"alone-{number}")
        with self.cluster.nbd("filler") as filler:
            taken_until_full(filler, range(0, 1 << 30, OBJECT), b"full" * (OBJECT // 4))


@pytest.fixture(scope="module")
def pair(scenario):
    cluster = scenario.cluster(osd_size="1G")
    cluster.options = ["--copies", 2]
    cluster.up()
    return Pair(cluster)


@pytest.mark.nightly
def test_overwrites_of_a_rebuilt_primary_do_not_take_its_members_reserve(pair, note):
    """They are refused when the member has said that it takes only deletes, and go on when it has space again."""
    pair.fill_member()
    before = pair.cluster.process_ids()
    with pair.cluster.nbd("disk", timeout=30) as disk:
        taken = taken_until_full(disk, range(SMALL, SIZE, SMALL), b"more" * (SMALL // 4))
        note(f"{taken / MIB:.0f} MiB were taken of the reserve")
        assert MIB < taken < FOR_CLIENTS + 4 * MIB, f"{taken / MIB} MiB"
        intact(disk.read(SMALL, SMALL) == b"more" * (SMALL // 4), "other bytes")
        disk.trim(SIZE - OBJECT, OBJECT)
        pair.cluster.cli("image", "rm", "filler")
        wait_for("there is room", lambda: is_taken(disk, SMALL, b"room" * (SMALL // 4)), 30)
    assert pair.cluster.process_ids() == before
