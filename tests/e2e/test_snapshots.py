"""Snapshots and clones through real processes: under load, with an OSD killed, in both kinds of pools."""

import random
import threading
import time

import pytest
from lib.cluster import MIB
from lib.load import BlockLoad
from lib.nbd import NbdError
from lib.tiers import nightly_but
from lib.verdicts import intact
from lib.waiting import wait_for

pytestmark = pytest.mark.any_order

BLOCK = 4096
POOLS = ["images", "coded"]


@pytest.fixture(scope="module")
def cluster(scenario):
    cluster = scenario.cluster(osds=4, osd_size="4G")
    cluster.up()
    cluster.cli("pool", "create", "coded", "--ec", "2+1", "--pg-num", "8")
    return cluster


def read_all(cluster, export, size):
    with cluster.nbd(export, timeout=120) as connection:
        return b"".join(connection.read(at, MIB) for at in range(0, size, MIB))


def let_go(cluster, image):
    wait_for("the NBD server lets go", lambda: not cluster.json("image", "info", image)["writer"], 30)


@pytest.mark.parametrize("pool", POOLS)
def test_snapshots_under_load_have_all_that_was_acked_before(cluster, pool, note):
    """Snapshots while blocks are written, with an OSD killed in between: each has what was acked before its command,
    and nothing that was sent after it."""
    name = f"load-{pool}"
    cluster.create_image(name, "64M", "--pool", pool)
    load = BlockLoad(lambda: cluster.nbd(name, timeout=120), threads=4, blocks_per_thread=64).start()
    wait_for("some acks", lambda: load.acked > 200, 60, 0.01)
    before, after, slowest = {}, {}, 0
    for number in range(6):
        if number == 3:
            cluster.kill("osd.1")
        # What is acked before is the least that a snapshot may have of each block.
        before[number] = {block: may_be[0] for block, may_be in list(load.may_be.items())}
        started = time.monotonic()
        cluster.cli("image", "snap", "create", f"{name}@s{number}", timeout=120)
        slowest = max(slowest, time.monotonic() - started)
        after[number] = {block: may_be[-1] for block, may_be in list(load.may_be.items())}
        acked = load.acked
        wait_for("more acks", lambda acked=acked: load.acked > acked + 100, 120, 0.01)
    assert load.stop(), "a load thread hangs"
    intact(not load.wrong, load.wrong[:3])
    note(f"{load.acked} acks, 6 snapshots, the slowest took {slowest:.2f} s")
    for number, least in before.items():
        found = read_all(cluster, f"{name}@s{number}", 64 * MIB)
        for block, sequence in least.items():
            content = found[block * BLOCK : (block + 1) * BLOCK]
            allowed = range(sequence, after[number][block] + 1)
            intact(any(content == load.content(block, one) for one in allowed), f"block {block} of snapshot {number}")


@pytest.mark.parametrize("pool", POOLS)
def test_du_tells_what_removing_a_snapshot_gives_back(cluster, pool):
    name = f"du-{pool}"

    def write(at, length):
        with cluster.nbd(name) as connection:
            for part in range(at, at + length, MIB):
                connection.write(part, random.randbytes(MIB))

    def taken():
        usage = cluster.json("image", "du", name)
        snapshots = {one["name"]: one["exclusive_bytes"] // MIB for one in usage["snapshots"]}
        return usage["used_bytes"] // MIB, usage["exclusive_bytes"] // MIB, snapshots

    def will_take(what, *expected):
        wait_for(what, lambda: taken() == expected, 30)

    cluster.create_image(name, "64M", "--pool", pool)
    write(0, 16 * MIB)
    will_take("all is the image's own", 16, 16, {})
    cluster.cli("image", "snap", "create", f"{name}@first")
    write(0, 4 * MIB)
    write(8 * MIB, 2 * MIB)
    # The object from 8 MiB on shares its other half with its state at the snapshot. In an erasure-coded pool the
    # pre-images of the last writes share blocks too, until all OSDs know that nobody lacks these writes.
    will_take("the snapshot keeps what was overwritten", 16, 14, {"first": 6})
    cluster.cli("image", "snap", "create", f"{name}@second")
    write(0, 4 * MIB)
    will_take("each snapshot keeps its own", 16, 14, {"first": 6, "second": 4})
    cluster.cli("image", "snap", "rm", f"{name}@second")
    will_take("what the second kept is gone", 16, 14, {"first": 6})
    cluster.cli("image", "snap", "rm", f"{name}@first")
    will_take("what the first kept is gone", 16, 16, {})


class History:
    """Images, snapshots and clones, and byte arrays that say what must be in them."""

    SIZE = 24 * MIB

    def __init__(self, cluster, pool):
        self.cluster, self.pool, self.rng, self.counter = cluster, pool, random.Random(f"histories/{pool}"), 0
        self.first = f"h0-{pool}"
        cluster.create_image(self.first, self.SIZE, "--pool", pool)
        self.images, self.snapshots = {self.first: bytearray(self.SIZE)}, {}

    def step(self):
        image = self.rng.choice(sorted(self.images))
        own = sorted(of for of in self.snapshots if of[0] == image)
        kinds = [self.write, self.snapshot] + [self.roll_back, self.clone, self.remove] * bool(own) + [self.flatten]
        weights = [50, 20] + [8, 12, 6] * bool(own) + [6]
        kind = self.rng.choices(kinds, weights)[0]
        kind(image, *self.rng.choice(own)) if kind in (self.roll_back, self.clone, self.remove) else kind(image)

    def write(self, image):
        model, blocks = self.images[image], self.SIZE // BLOCK
        with self.cluster.nbd(image) as connection:
            for _ in range(6):
                first, count = self.rng.randrange(blocks), self.rng.choice([1, 2, 5, 40, 700])
                at, length = first * BLOCK, min(count, blocks - first) * BLOCK
                data = self.rng.randbytes(BLOCK) * (length // BLOCK) if self.rng.random() < 0.7 else bytes(length)
                if any(data[:BLOCK]):
                    connection.write(at, data)
                else:
                    self.rng.choice([connection.zero, connection.trim])(at, length)
                model[at : at + length] = data

    def snapshot(self, image):
        self.counter += 1
        self.cluster.cli("image", "snap", "create", f"{image}@n{self.counter}")
        self.snapshots[image, f"n{self.counter}"] = bytes(self.images[image])

    def roll_back(self, image, of, snapshot):
        let_go(self.cluster, image)
        self.cluster.cli("image", "snap", "rollback", f"{of}@{snapshot}")
        self.images[image] = bytearray(self.snapshots[of, snapshot])

    def clone(self, _, of, snapshot):
        if len(self.images) < 4:
            self.counter += 1
            clone, sealing = f"h{self.counter}-{self.pool}", self.rng.choice(["on", "off"])
            self.cluster.cli("image", "clone", f"{of}@{snapshot}", clone, "--sealing", sealing)
            self.images[clone] = bytearray(self.snapshots[of, snapshot])

    def remove(self, _, of, snapshot):
        done = self.cluster.cli("image", "snap", "rm", f"{of}@{snapshot}", ok=None)
        if done.returncode == 0:
            del self.snapshots[of, snapshot]
        else:
            assert "has clones" in done.stderr, done.stderr

    def flatten(self, image):
        if image != self.first:
            let_go(self.cluster, image)
            done = self.cluster.cli("image", "flatten", image, ok=None, timeout=120)
            assert done.returncode == 0 or "no clone" in done.stderr, done.stderr

    def verify(self):
        for image, model in self.images.items():
            intact(read_all(self.cluster, image, self.SIZE) == model, f"{image} differs")
        for (image, snapshot), model in self.snapshots.items():
            intact(read_all(self.cluster, f"{image}@{snapshot}", self.SIZE) == model, f"{image}@{snapshot} differs")


@pytest.mark.parametrize("pool", nightly_but(["images"], POOLS))
def test_random_histories_against_a_model(cluster, scenario, pool, note):
    """Writes, trims, snapshots, roll backs, clones, flattening and removal through the command line and NBD."""
    history = History(cluster, pool)
    for _ in range(int(40 * scenario.scale)):
        history.step()
    history.verify()
    note(f"{len(history.images)} images, {len(history.snapshots)} snapshots")


def test_images_snapshotted_together_are_of_one_instant(cluster, note):
    """One after the other, numbers are written to three images: at an instant the first is at most one ahead."""
    names, stopping, waits = ["tog-a", "tog-b", "tog-c"], threading.Event(), []
    for name in names:
        cluster.create_image(name, "16M")

    def write():
        connections = [cluster.nbd(name, timeout=120) for name in names]
        number = 0
        while not stopping.is_set():
            number += 1
            for connection in connections:
                started = time.monotonic()
                connection.write(0, number.to_bytes(8, "big") * 512)
                waits.append(time.monotonic() - started)
        for connection in connections:
            connection.close()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        wait_for("some writes", lambda: len(waits) > 100, 30)
        for round_number in range(5):
            cluster.cli("image", "snap", "create", *(f"{name}@r{round_number}" for name in names))
    finally:
        stopping.set()
        thread.join()
    for round_number in range(5):
        found = [int.from_bytes(read_block(cluster, f"{name}@r{round_number}"), "big") for name in names]
        assert found[0] > 0 and found == sorted(found, reverse=True) and found[0] - found[-1] <= 1, found
    let_go(cluster, names[0])
    cluster.cli("image", "snap", "create", *(f"{name}@idle" for name in names))
    assert len({read_block(cluster, f"{name}@idle") for name in names}) == 1
    longest = ", ".join(f"{wait * 1000:.0f}" for wait in sorted(waits)[-6:])
    note(f"{len(waits)} writes; the longest, about one for each snapshot, took {longest} ms")


def read_block(cluster, export):
    with cluster.nbd(export) as connection:
        return connection.read(0, 8)


def test_a_clone_outlives_its_siblings_keys(cluster):
    """Destroying the key of one clone leaves its parent and its siblings alive."""
    cluster.create_image("family", "16M")
    with cluster.nbd("family") as connection:
        connection.write(0, b"of the parent   " * 256)
    cluster.cli("image", "snap", "create", "family@s")
    for clone in ("ann", "bob"):
        cluster.cli("image", "clone", "family@s", clone)
        with cluster.nbd(clone) as connection:
            connection.write(BLOCK, clone.encode().ljust(16) * 256)
        let_go(cluster, clone)
    cluster.cli("key", "destroy", "--image", "ann", "--force")
    with pytest.raises(NbdError, match="key of image 'ann' was destroyed"):
        cluster.nbd("ann").close()
    with cluster.nbd("bob") as connection:
        intact(connection.read(0, BLOCK) == b"of the parent   " * 256, "other bytes")
        intact(connection.read(BLOCK, BLOCK) == b"bob".ljust(16) * 256, "other bytes")
    intact(cluster.read_image("family", 0, BLOCK) == b"of the parent   " * 256, "other bytes")


@pytest.mark.nightly
def test_a_flattened_clone_lets_its_parent_go_with_its_snapshots(cluster):
    cluster.create_image("shown", "8M")
    with cluster.nbd("shown") as connection:
        connection.write(0, b"1" * BLOCK)
    let_go(cluster, "shown")
    cluster.cli("image", "snap", "create", "shown@s")
    cluster.cli("image", "clone", "shown@s", "clone")
    cluster.cli("image", "snap", "create", "clone@early")
    flattened = cluster.json("image", "flatten", "clone")
    assert flattened["has_parent"]
    assert "has clones" in cluster.cli("image", "snap", "rm", "shown@s", ok=(1,)).stderr
    for snapshot in ["clone@early", "clone"]:
        intact(read_block(cluster, snapshot) == b"11111111", "other bytes")
    let_go(cluster, "clone")
    cluster.cli("image", "snap", "rollback", "clone@early")
    intact(read_block(cluster, "clone") == b"11111111", "other bytes")
    let_go(cluster, "clone")
    cluster.cli("image", "flatten", "clone")
    cluster.cli("image", "snap", "rm", "clone@early")
    assert "no clone" in cluster.cli("image", "flatten", "clone", ok=(1,)).stderr
    cluster.cli("image", "snap", "rm", "shown@s")
    cluster.cli("image", "rm", "shown")
    intact(read_block(cluster, "clone") == b"11111111", "other bytes")


def test_snapshots_cannot_be_written(cluster):
    cluster.create_image("fixed", "16M")
    cluster.cli("image", "snap", "create", "fixed@s")
    with cluster.nbd("fixed@s") as connection, pytest.raises(NbdError):
        connection.write(0, bytes(BLOCK))


def test_a_snapshot_does_not_stall_its_writer(cluster, note):
    """The longest wait of one write while snapshots are taken."""
    cluster.create_image("steady", "64M")
    waits, stopping = [], threading.Event()

    def write():
        with cluster.nbd("steady") as connection:
            number = 0
            while not stopping.is_set():
                started = time.monotonic()
                connection.write(number % 64 * BLOCK, bytes([number % 255 + 1]) * BLOCK)
                waits.append(time.monotonic() - started)
                number += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        wait_for("some writes", lambda: len(waits) > 100, 30)
        for number in range(10):
            before = len(waits)
            cluster.cli("image", "snap", "create", f"steady@s{number}")
            assert len(waits) > before, "no write was acknowledged while the snapshot was taken"
    finally:
        stopping.set()
        thread.join()
    note(f"{len(waits)} writes, the longest took {max(waits) * 1000:.0f} ms")


def test_the_servers_have_said_nothing_bad(cluster):
    assert "panic" not in cluster.log_text()
