"""Snapshots of images in real use: ext4, XFS and PostgreSQL recover in a clone of each as after a crash at that moment,
with all that was made durable before, and nothing that was begun after."""

import concurrent.futures
import contextlib
import dataclasses
import pathlib
import random
import re
import time

import pytest
from lib.cluster import GIB, MIB
from lib.ext4 import Ext4Load
from lib.files import FileLoad
from lib.load import longest_pause
from lib.mounted import attached, mounted, why_not, why_not_of
from lib.net import stopped
from lib.postgresql import Inserts, PostgreSQL
from lib.verdicts import DataFailure, intact
from lib.waiting import under_load, wait_for

pytestmark = pytest.mark.needs("mke2fs", "debugfs", "e2fsck")

SECONDS_APART = 2
DATABASE_SECONDS, FILES_SECONDS = 30, 16


@pytest.fixture(scope="module")
def cluster(scenario):
    cluster = scenario.cluster(osd_size="8G")
    cluster.up()
    return cluster


@pytest.fixture(scope="module")
def block_devices(scenario):
    if reason := why_not(scenario):
        pytest.skip(reason)


# --- snapshots and clones


@dataclasses.dataclass
class Snapshot:
    """A snapshot, and of each number that a load counts up the least and the most that it may have."""

    image: str
    name: str
    least: dict
    most: dict
    seconds: float

    def __str__(self):
        return f"{self.image}@{self.name}"


def snapshot(cluster, image, number, load):
    # Copied before and after the command: what was acknowledged, and what was begun.
    least, started = dict(load.acked), time.monotonic()
    cluster.cli("image", "snap", "create", f"{image}@s{number}", timeout=120)
    seconds = time.monotonic() - started
    return Snapshot(image, f"s{number}", least, dict(load.begun), seconds)


def snapshots_while(cluster, image, load, goes_on, before_each=lambda number: None):
    """A snapshot every two seconds."""
    wait_for("the load has begun", lambda: load.errors or sum(load.acked.values()) > 20, 60)
    found, started = [], time.monotonic()
    while goes_on():
        before_each(len(found))
        found.append(snapshot(cluster, image, len(found), load))
        under_load(max(0, started + len(found) * SECONDS_APART - time.monotonic()))
    return found


@contextlib.contextmanager
def cloned(cluster, of):
    """A clone of a snapshot; afterwards both are removed."""
    name = f"{of.image}-{of.name}"
    cluster.cli("image", "clone", of, name)
    yield name
    cluster.cli("image", "rm", name)
    cluster.cli("image", "snap", "rm", of)


def in_any_order(snapshots):
    """Those that are looked at later stand between others that are gone."""
    return random.Random(7).sample(snapshots, len(snapshots))


def totals(snapshots):
    least = [sum(one.least.values()) for one in snapshots]
    slowest = max(one.seconds for one in snapshots)
    return f"{len(snapshots)} snapshots, acked before them {least}, the slowest took {slowest:.2f} s"


def killed_and_restarted(cluster, name, seconds):
    """kill -9 of a process, which is started again only after so long."""
    with stopped(cluster.process_ids()["supervisor"]):
        pid = cluster.kill(name)
        under_load(seconds)
    cluster.restarted(name, pid)


# --- ext4, in the quick tier: without the kernel, as any user


@pytest.mark.nightly
def test_ext4_recovers_in_clones(cluster, scenario, note):
    """ext4, written block by block: with the journal replayed e2fsck finds nothing, and the right files are there."""
    cluster.create_image("ext4", "256M")
    snapshots = []
    with Ext4Load(scenario, cluster.nbd("ext4", timeout=120), 256 * MIB) as load:
        for number in range(3):
            acked = load.acked["file"]
            wait_for("more files", lambda acked=acked: load.errors or load.acked["file"] > acked + 4, 60, 0.01)
            # Anywhere between two acknowledgements.
            under_load(random.random() / 3)
            snapshots.append(snapshot(cluster, "ext4", number, load))
    assert not load.errors, load.errors
    in_journal = 0
    for one in in_any_order(snapshots):
        with cloned(cluster, one) as clone:
            raw, files = scenario.directory / f"{clone}.raw", scenario.directory / f"{clone}.files"
            cluster.cli("image", "export", clone, raw)
            # The journal and nothing else makes it clean.
            in_journal += "Journal start:            0" not in scenario.run("dumpe2fs", "-h", raw).stdout
            scenario.run("e2fsck", "-f", "-y", "-E", "journal_only", raw, ok=(0, 1))
            scenario.run("e2fsck", "-f", "-n", raw, failure=DataFailure)
            files.mkdir()
            scenario.run("debugfs", "-R", f"rdump / {files}", raw)
            found = {path.name: path.read_bytes() for path in files.iterdir() if path.is_file()}
            may_be = range(one.least["file"], one.most["file"] + 1)
            assert any(found == load.files(number) for number in may_be), f"{one}: {sorted(found)}, may be {may_be}"
    assert in_journal > 0, "no clone had anything to replay"
    note(f"{totals(snapshots)}, {in_journal} had something to replay")


def features(scenario, device):
    said = scenario.run("dumpe2fs", "-h", device).stdout
    return re.search("^Filesystem features: *(.*)$", said, re.M).group(1).split()


# --- PostgreSQL on ext4


@dataclasses.dataclass
class Database:
    """What a database has gone through."""

    inserts: Inserts
    snapshots: list


@pytest.fixture(scope="module")
def database(cluster, scenario, block_devices):
    """pgbench and inserts for 30 s with snapshots; an OSD is killed, and started again 6 s later."""
    cluster.create_image("database", 2 * GIB)
    with attached(cluster, "database") as device:
        scenario.run("mkfs.ext4", "-q", device)
        with mounted(scenario, device) as point:
            server = PostgreSQL(scenario, "original", point / "pg")
            server.create()
            with server.running():
                server.run("pgbench", "-i", "-q", "-s", "5")
                server.sql(Inserts.TABLE)
                found = used(cluster, server)
        scenario.run("e2fsck", "-f", "-n", device, failure=DataFailure)
    return found


def used(cluster, server):
    bench = server.start("pgbench", "-n", "-c", "4", "-j", "2", "-T", DATABASE_SECONDS)
    with concurrent.futures.ThreadPoolExecutor(1) as faults, Inserts(server) as inserts:
        killed = []

        def before_each(number):
            if number == 4:
                killed.append(faults.submit(killed_and_restarted, cluster, "osd.1", 6))

        found = snapshots_while(cluster, "database", inserts, lambda: bench.poll() is None, before_each)
        for fault in killed:
            fault.result()
        acked = len(inserts.ack_times)
        wait_for("inserts go on", lambda: len(inserts.ack_times) > acked + 20, 60)
    output, errors = bench.communicate(timeout=60)
    assert bench.returncode == 0, f"pgbench ended with {bench.returncode}: {errors[-1000:]}"
    assert "number of failed transactions: 0 " in output, output
    assert not inserts.errors, inserts.errors
    assert killed, f"no OSD was killed: {totals(found)}"
    return Database(inserts, found)


def check_database(cluster, image, name, database, least, most):
    """An image that was in use at a moment: its file system and its database recover, and have what they must."""
    scenario = cluster.scenario
    with attached(cluster, image) as device:
        if "needs_recovery" in features(scenario, device):
            with mounted(scenario, device):
                pass
        assert "needs_recovery" not in features(scenario, device)
        scenario.run("e2fsck", "-f", "-n", device, failure=DataFailure)
        with mounted(scenario, device) as point:
            server = PostgreSQL(scenario, name, point / "pg")
            with server.running():
                numbers = database.inserts.check(server, least, most)
                transfers = server.accounts()
                server.check_tables()
                # It can be worked with.
                server.run("pgbench", "-n", "-c", "2", "-t", "50")
                assert server.accounts() == transfers + 100
            server.check_pages()
        scenario.run("e2fsck", "-f", "-n", device, failure=DataFailure)
    return numbers, transfers, server.log.read_text()


@pytest.mark.nightly
@pytest.mark.limit(900)
@pytest.mark.needs("nbdfuse", "losetup", "mount", "mkfs.ext4")
def test_postgresql_recovers_in_a_clone_of_each_snapshot(cluster, scenario, database, note):
    """The journal is replayed and e2fsck finds nothing. PostgreSQL recovers: every number that was committed before the
    snapshot is there and none that was begun after it, sums of pgbench agree, pg_amcheck and checksums find nothing."""
    inserts, snapshots = database.inserts, database.snapshots
    assert len(snapshots) >= 10, totals(snapshots)
    note(f"{len(inserts.ack_times)} inserts acked, the longest pause {longest_pause(inserts.ack_times):.1f} s")
    note(totals(snapshots))
    transfers = {}
    for one in in_any_order(snapshots):
        with cloned(cluster, one) as clone:
            _, transfers[one.name], log = check_database(cluster, clone, clone, database, one.least, one.most)
            assert "automatic recovery in progress" in log, log[-2000:]
    in_turn = [transfers[one.name] for one in snapshots]
    assert in_turn == sorted(in_turn) and in_turn[0] < in_turn[-1], f"transfers in the snapshots: {in_turn}"
    note(f"transfers in them {in_turn}")


@pytest.mark.nightly
@pytest.mark.limit(900)
def test_postgresql_has_everything_when_the_snapshots_are_gone(cluster, scenario, database, note):
    """Clones and snapshots that are removed take nothing from the image that they are of."""
    for one in cluster.json("image", "snap", "ls", "database"):
        cluster.cli("image", "snap", "rm", f"database@{one['name']}")
    acked = database.inserts.acked
    numbers, transfers, log = check_database(cluster, "database", "original", database, acked, database.inserts.begun)
    assert numbers == sum(acked.values())
    note(f"{numbers} numbers, {transfers} transfers")
    cluster.cli("image", "rm", "database")


# --- XFS


@pytest.mark.nightly
@pytest.mark.limit(600)
@pytest.mark.needs("nbdfuse", "losetup", "mount", "mkfs.xfs", "xfs_repair", "fstrim")
def test_xfs_recovers_in_a_clone_of_each_snapshot(cluster, scenario, block_devices, note):
    """Files that are replaced and made durable, with discards, snapshots, and an OSD killed: the log is replayed,
    xfs_repair finds nothing, also after a discard in the clone, and files have what was made durable."""
    if reason := why_not_of("xfs"):
        pytest.skip(reason)
    cluster.create_image("xfs", "512M")
    trimmed = []
    with attached(cluster, "xfs") as device:
        scenario.run("mkfs.xfs", "-q", device)
        with mounted(scenario, device) as point, FileLoad(point) as load:
            ends = time.monotonic() + FILES_SECONDS

            def before_each(number):
                if number == 3:
                    cluster.restarted("osd.2", cluster.kill("osd.2"))
                trimmed.append(fstrim(scenario, device, point))

            snapshots = snapshots_while(cluster, "xfs", load, lambda: time.monotonic() < ends, before_each)
        scenario.run("xfs_repair", "-n", device)
    assert not load.errors, load.errors
    assert len(snapshots) >= 6 and min(trimmed) > 0, f"{totals(snapshots)}; {trimmed}"
    for one in in_any_order(snapshots):
        with cloned(cluster, one) as clone, attached(cluster, clone) as device:
            check_xfs(scenario, device, load, one)
    note(f"{len(load.ack_times)} files acked, the longest pause {longest_pause(load.ack_times):.1f} s")
    note(f"discarded before the snapshots: {[size // MIB for size in trimmed]} MiB")
    note(totals(snapshots))
    assert not cluster.json("image", "snap", "ls", "xfs")
    with attached(cluster, "xfs") as device, mounted(scenario, device) as point:
        intact(not (problems := load.problems(point, load.acked, load.acked)), problems[:5])
    cluster.cli("image", "rm", "xfs")


def fstrim(scenario, device, point):
    """Discards all free space; returns the bytes that went down, as fstrim says only what it was asked for."""

    def discarded():
        return int(pathlib.Path("/sys/block", pathlib.Path(device).name, "stat").read_text().split()[13]) * 512

    before = discarded()
    scenario.run("fstrim", point)
    return discarded() - before


def check_xfs(scenario, device, load, one):
    assert "<DIRTY>" in scenario.run("xfs_logprint", "-t", device).stdout, "there is nothing to replay"
    # The snapshot's file system has the identity of the original one.
    with mounted(scenario, device, "-o", "nouuid"):
        pass
    scenario.run("xfs_repair", "-n", device)
    for _ in range(2):
        with mounted(scenario, device, "-o", "nouuid") as point:
            intact(not (problems := load.problems(point, one.least, one.most)), problems[:5])
            assert fstrim(scenario, device, point) > 0
        scenario.run("xfs_repair", "-n", device)


def test_nothing_went_wrong_in_the_servers(cluster):
    assert "panic" not in cluster.log_text()
