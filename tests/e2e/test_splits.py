"""Pools get more PGs under load, while an OSD dies too; then a pool is removed and its space comes back."""

import time

import pytest
from lib.cluster import MIB
from lib.load import BlockAndObjectLoad
from lib.net import stopped
from lib.verdicts import DataFailure, intact
from lib.waiting import wait_for

IDLE_BYTES = 32 * MIB


def pgs(cluster, pool):
    return cluster.json("pg", "ls", "--pool", pool)


def all_serve(cluster, pool, count):
    found = pgs(cluster, pool)
    return len(found) == count and all(pg["state"] == "active" and not pg["is_degraded"] for pg in found)


def used_bytes(cluster):
    return [osd["used_bytes"] for osd in cluster.json("osd", "ls")]


@pytest.fixture(scope="module")
def cluster(scenario):
    """With an image that nobody writes to."""
    cluster = scenario.cluster(osd_size="8G")
    cluster.up()
    cluster.create_image("load", "64M")
    cluster.create_image("idle", "64M")
    with cluster.nbd("idle") as connection:
        connection.write(0, b"\x5a" * IDLE_BYTES)
    return cluster


@pytest.fixture(scope="module")
def load(cluster):
    """A load on NBD and S3."""
    load = BlockAndObjectLoad(cluster)
    load.goes_on(1000, 20)
    yield load
    load.finish()


@pytest.fixture(scope="module")
def ended(load):
    load.finish()
    return load


@pytest.fixture(scope="module")
def restarted(scenario, cluster, ended):
    """The cluster stopped, its stores checked, and started."""
    ended.pgs = len(pgs(cluster, "images"))
    cluster.down()
    for number in range(3):
        scenario.run(
            scenario.atoll,
            "store",
            "check",
            "--device",
            cluster.data / f"osd-{number}" / "device",
            timeout=120,
            failure=DataFailure,
        )
    cluster.up()
    return ended


@pytest.mark.parametrize(("pool", "factor"), [("images", 2), ("objects", 2), ("images", 4)])
def test_all_pgs_split_nothing_moves_and_io_goes_on(cluster, load, pool, factor, note):
    """'pool set pg_num': all PGs split, nothing moves, I/O goes on."""
    count = len(pgs(cluster, pool)) * factor
    began = time.monotonic()
    done = cluster.cli("pool", "set", pool, "pg_num", count)
    assert f"{count} PGs" in done.stdout, done.stdout
    wait_for("all PGs serve", lambda: all_serve(cluster, pool, count), 60)
    took = time.monotonic() - began
    load.goes_on()
    load.no_wrong_byte()
    moved = [pg["pg"] for pg in pgs(cluster, pool) if pg["is_misplaced"]]
    note(f"{took:.1f} s; {load.stalls(began)}")
    assert not moved, f"these are to move: {moved}"


@pytest.mark.parametrize(("value", "words"), [("16", "do not merge"), ("1000", "power of two"), ("many", "many")])
def test_fewer_pgs_or_a_number_that_is_none_is_refused(cluster, value, words):
    """Fewer PGs, or a number that is none: refused with a reason."""
    done = cluster.cli("pool", "set", "images", "pg_num", value, ok=None)
    assert done.returncode == 1 and words in done.stderr, done.stderr


def test_an_osd_is_killed_while_all_pgs_split(scenario, cluster, load, note):
    """An OSD is killed while all PGs split."""
    count = len(pgs(cluster, "objects")) * 4
    began = time.monotonic()
    setting = scenario.start(scenario.atoll, "pool", "set", "objects", "pg_num", str(count), "--data", cluster.data)
    time.sleep(0.1)
    cluster.restarted("osd.1", cluster.kill("osd.1"))
    setting.communicate(timeout=60)
    assert setting.returncode == 0, "'atoll pool set' failed"
    wait_for("all PGs serve", lambda: all_serve(cluster, "objects", count), 60)
    load.goes_on()
    note(f"{time.monotonic() - began:.1f} s; {load.stalls(began)}")


def test_the_load_ends_without_an_error(ended, note):
    """The load ends without an error."""
    ended.no_error()
    ended.no_wrong_byte()
    note(ended.counts())


def test_every_acked_write_is_there(cluster, ended, note):
    """Every acked block write and object is there, no byte is wrong."""
    note(f"{ended.check_blocks(cluster)} blocks, {ended.check_objects(cluster)} objects")


def test_a_deep_scrub_finds_nothing(cluster, ended):
    """A deep scrub finds nothing."""
    done = cluster.cli("pg", "scrub", "all", "--deep", "--wait", "--json", timeout=120, ok=None)
    intact(done.returncode == 0, f"{done.stdout} {done.stderr}")


def test_every_store_checks_and_after_a_restart_all_is_there(cluster, restarted, note):
    """Every store checks, and after a restart all is there."""
    intact(cluster.read_image("idle", 0, IDLE_BYTES) == b"\x5a" * IDLE_BYTES, "other bytes")
    assert len(pgs(cluster, "images")) == restarted.pgs, "it has forgotten its PGs"
    note(f"{restarted.check_blocks(cluster)} blocks, {restarted.check_objects(cluster)} objects")


@pytest.mark.nightly
def test_a_pool_is_removed_while_an_osd_is_away(cluster, restarted, note):
    """A pool is removed while an OSD is away: what that one holds of it goes when it is back."""
    before = used_bytes(cluster)
    cluster.cli("pool", "create", "short", "--pg-num", "8", "--failure-domain", "osd")
    cluster.cli("image", "create", "gone", "--size", "256M", "--pool", "short")
    with cluster.nbd("gone") as connection:
        for offset in range(0, 256 * MIB, 8 * MIB):
            connection.write(offset, b"\xa5" * (8 * MIB))
    wait_for("it is in use", lambda: min(used_bytes(cluster)) > max(before) + 200 * MIB, 30)
    with stopped(cluster.process_ids()["supervisor"]):
        pid = cluster.kill("osd.1")
        cluster.cli("image", "rm", "gone", timeout=60)
        cluster.cli("pool", "rm", "short", "--yes-destroy", "short")
    cluster.restarted("osd.1", pid)
    wait_for("it is free again", lambda: max(used_bytes(cluster)) < max(before) + 64 * MIB, 60)
    note(f"{max(before) / MIB:.0f} MiB before, {max(used_bytes(cluster)) / MIB:.0f} MiB now")
    cluster.down()
