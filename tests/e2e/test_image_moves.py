"""Images move to other pools, and clones are flattened, while they are written."""

import random
import signal
import subprocess
import time

import pytest
from lib.cluster import MIB
from lib.load import BlockLoad
from lib.net import stopped
from lib.verdicts import intact
from lib.waiting import under_load, wait_for

BLOCK = 4096
NOISE = random.Random(4).randbytes(MIB)
SIZE = 48 * MIB


@pytest.fixture(scope="module")
def cluster(scenario):
    cluster = scenario.cluster(osds=3, osd_size="4G")
    cluster.up()
    cluster.cli("pool", "create", "coded", "--ec", "2+1", "--pg-num", "8")
    return cluster


def fill(cluster, name, *more):
    """An image whose second half is full; loads write to the first."""
    cluster.create_image(name, SIZE, *more)
    with cluster.nbd(name) as connection:
        for at in range(SIZE // 2, SIZE, MIB):
            connection.write(at, NOISE)


def check(cluster, load, name):
    with cluster.nbd(name, timeout=120) as connection:
        count = load.verify(connection)
        for at in range(SIZE // 2, SIZE, MIB):
            intact(connection.read(at, MIB) == NOISE, f"{at} of {name} differs")
    intact(not load.wrong, load.wrong[:3])
    return count


def pool_of(cluster, name):
    return cluster.json("image", "info", name)["pool_name"]


def leftovers(cluster, name):
    images = [image["name"] for image in cluster.json("image", "ls", "--fast")]
    return [image for image in images if image.startswith(f"{name}.")] + cluster.json("image", "trash", "ls")


def loaded(cluster, name):
    load = BlockLoad(lambda: cluster.nbd(name, timeout=120), threads=4, blocks_per_thread=512).start()
    wait_for("some acks", lambda: load.acked > 200, 60, 0.01)
    return load


def migrating(cluster, name, *more):
    command = [cluster.scenario.atoll, "image", "migrate", name, *more, "--data", cluster.data]
    return subprocess.Popen(command, env=cluster.environment(), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def migrating_slowly(cluster, name):
    return migrating(cluster, name, "--pool", "coded", "--rate", "512K")


def test_an_image_moves_while_it_is_written(cluster, note):
    """To an erasure-coded pool and back, with sealing taken away and given again, and an OSD killed on the way."""
    fill(cluster, "live")
    load = loaded(cluster, "live")
    ways = [("coded", "on"), ("images", "off"), ("coded", "off"), ("images", "on")]
    silences = []
    for number, (pool, sealing) in enumerate(ways):
        begun = time.monotonic()
        if number == 2:
            cluster.kill("osd.1")
        moved = cluster.json("image", "migrate", "live", "--pool", pool, "--sealing", sealing, timeout=180)
        assert moved == {"moved": "live", "pool": pool, "left": None}
        if number != 2:
            silences.append(load.longest_silence(begun))
        info = cluster.json("image", "info", "live")
        assert (info["pool_name"], info["sealed"], info["parent"]) == (pool, sealing == "on", None)
        acked = load.acked
        wait_for("more acks", lambda acked=acked: load.acked > acked + 100, 60, 0.01)
    assert load.stop(), "a load thread hangs"
    assert not load.error_texts, load.error_texts[:3]
    count = check(cluster, load, "live")
    assert not leftovers(cluster, "live")
    note(f"{load.acked} acks, {count} blocks; silences {', '.join(f'{s * 1000:.0f} ms' for s in silences)}")


@pytest.mark.nightly
def test_a_killed_server_and_a_killed_command_lose_nothing(cluster, note):
    """The NBD server is killed while an image moves, and so is the command; both go on."""
    fill(cluster, "killed")
    load = loaded(cluster, "killed")
    moving = migrating_slowly(cluster, "killed")
    wait_for("it moves", lambda: pool_of(cluster, "killed") == "coded", 30, 0.01)
    for pause in [0, 1]:
        time.sleep(pause)
        cluster.kill("nbd")
        acked = load.acked
        wait_for("more acks", lambda acked=acked: load.acked > acked + 100, 60, 0.01)
    moving.send_signal(signal.SIGKILL)
    moving.wait()
    for refusing in [["rm", "killed"], ["snap", "create", "killed@s"], ["rename", "killed", "other"]]:
        refused = cluster.cli("image", *refusing, ok=(1,)).stderr
        assert "is being moved" in refused, refused
    cluster.cli("image", "migrate", "killed", "--pool", "coded", timeout=180)
    assert load.stop(), "a load thread hangs"
    check(cluster, load, "killed")
    wait_for("the old data goes", lambda: not leftovers(cluster, "killed"), 30)
    note(f"{load.acked} acks, {load.open_ended} without an answer")


def test_a_cancelled_move_loses_nothing(cluster, note):
    """The command that cancels is killed at many moments, and so is the NBD server, while the image is written."""
    fill(cluster, "undone")
    load = loaded(cluster, "undone")
    begun = time.monotonic()
    moving = migrating_slowly(cluster, "undone")
    wait_for("it moves", lambda: pool_of(cluster, "undone") == "coded", 30, 0.01)
    acked = load.acked
    wait_for("acks in the new place", lambda: load.acked > acked + 200, 60, 0.01)
    for pause in [0.02, 0.05, 0.1, 0.15, 0.2, 0.3]:
        cancelling = migrating(cluster, "undone", "--cancel", "--rate", "100K")
        time.sleep(pause)
        cancelling.send_signal(signal.SIGKILL)
        cancelling.wait()
    cluster.cli("image", "migrate", "undone", "--cancel", "--rate", "100K", "--no-wait")
    silence = load.longest_silence(begun)
    assert pool_of(cluster, "undone") == "images"
    # The command that moved it sees that it is over only when everything is back.
    assert moving.poll() is None
    moving.send_signal(signal.SIGKILL)
    moving.wait()
    cluster.kill("nbd")
    acked = load.acked
    wait_for("more acks", lambda: load.acked > acked + 100, 60, 0.01)
    assert "is being moved" in cluster.cli("image", "rm", "undone", ok=(1,)).stderr
    left = leftovers(cluster, "undone")
    assert len(left) == 1 and left[0].startswith("undone.after-"), left
    for refusing in [["rm", left[0]], ["migrate", left[0], "--pool", "images"], ["flatten", left[0]]]:
        assert "not done" in (refused := cluster.cli("image", *refusing, ok=(1,)).stderr) or "is being moved" in refused
    back = cluster.json("image", "migrate", "undone", "--cancel", timeout=180)
    assert back == {"cancelled": "undone", "pool": "images"}
    assert load.stop(), "a load thread hangs"
    check(cluster, load, "undone")
    info = cluster.json("image", "info", "undone")
    assert (info["pool_name"], info["parent"], info["snapshots"]) == ("images", None, [])
    wait_for("the new place goes", lambda: not leftovers(cluster, "undone"), 30)
    note(f"{load.acked} acks, {load.open_ended} without an answer; silence {silence * 1000:.0f} ms")


@pytest.mark.nightly
def test_a_move_is_cancelled_when_the_new_pool_does_not_answer(cluster):
    """Nobody has written to the image since: it is back at once, and what the pool holds goes when it answers again."""
    cluster.cli("pool", "create", "fragile", "--size", "1", "--min-size", "1", "--pg-num", "1")
    fill(cluster, "stranded")
    wait_for("the NBD server lets go", lambda: not cluster.json("image", "info", "stranded")["writer"], 20)
    moving = migrating(cluster, "stranded", "--pool", "fragile", "--rate", "1M")
    writer = lambda: cluster.json("image", "info", "stranded")["writer"]
    wait_for("it is copied", lambda: pool_of(cluster, "stranded") == "fragile" and writer(), 30)
    under_load(1)
    primary = cluster.json("pg", "ls", "--pool", "fragile")[0]["primary"]
    with stopped(cluster.process_ids()[f"osd.{primary}"]):
        back = cluster.json("image", "migrate", "stranded", "--cancel")
        assert back == {"cancelled": "stranded", "pool": "images"}
        assert moving.wait(60) == 1, "the command that moves it says that it is where it was"
        assert cluster.json("image", "info", "stranded")["flattening"] is None
        with cluster.nbd("stranded") as connection:
            connection.write(0, NOISE)
            for at in [0, *range(SIZE // 2, SIZE, MIB)]:
                intact(connection.read(at, MIB) == NOISE, f"{at} differs")
    wait_for("what was copied goes", lambda: not leftovers(cluster, "stranded"), 60)
    intact(cluster.read_image("stranded", 0, MIB) == NOISE, "other bytes")


@pytest.mark.nightly
def test_a_move_cannot_be_cancelled_when_its_old_place_was_changed(cluster):
    refused = lambda name: cluster.cli("image", "migrate", name, "--cancel", ok=(1,)).stderr
    cluster.create_image("forked", "8M")
    assert "is not being moved" in refused("forked")
    with cluster.nbd("forked") as connection:
        connection.write(0, NOISE)
    cluster.cli("image", "migrate", "forked", "--pool", "coded", "--rate", "10K", "--no-wait")
    (old,) = leftovers(cluster, "forked")
    with cluster.nbd(old) as connection:
        connection.write(0, NOISE[:BLOCK])
    wait_for("nobody writes to it", lambda: not cluster.json("image", "info", old)["writer"], 30)
    assert "was changed since" in refused("forked")
    cluster.cli("image", "migrate", "forked", "--pool", "coded")
    assert "is not being moved" in refused("forked")
    with cluster.nbd("forked") as connection:
        intact(connection.read(0, MIB) == NOISE, "other bytes")


def test_an_idle_image_moves_and_gives_way_to_a_writer(cluster):
    fill(cluster, "idle")
    wait_for("nobody writes", lambda: not cluster.json("image", "info", "idle")["writer"], 30)
    moving = migrating_slowly(cluster, "idle")
    wait_for("it copies", lambda: cluster.json("image", "info", "idle")["writer"], 30, 0.05)
    with cluster.nbd("idle") as connection:
        connection.write(0, NOISE)
        writer = cluster.json("image", "info", "idle")["writer"]
        assert writer["purpose"] == "NBD server" and writer["process_id"] != moving.pid
        intact(connection.read(SIZE // 2, MIB) == NOISE, "other bytes")
    # Again, without a rate: both commands see the end.
    cluster.cli("image", "migrate", "idle", "--pool", "coded")
    assert moving.wait(30) == 0
    with cluster.nbd("idle") as connection:
        intact(all(connection.read(at, MIB) == NOISE for at in [0, *range(SIZE // 2, SIZE, MIB)]), "other bytes")
    assert pool_of(cluster, "idle") == "coded" and not leftovers(cluster, "idle")


@pytest.mark.nightly
@pytest.mark.nightly
def test_a_clone_is_flattened_while_it_is_written(cluster):
    fill(cluster, "golden")
    wait_for("nobody writes", lambda: not cluster.json("image", "info", "golden")["writer"], 30)
    cluster.cli("image", "snap", "create", "golden@s")
    cluster.cli("image", "clone", "golden@s", "vm")
    load = loaded(cluster, "vm")
    cluster.cli("image", "flatten", "vm", "--no-wait", "--rate", "1M")
    cluster.cli("image", "flatten", "vm", "--stop")
    assert cluster.json("image", "info", "vm")["flattening"] is None
    assert cluster.json("image", "flatten", "vm", timeout=120) == {"flattened": "vm", "has_parent": False}
    cluster.cli("image", "snap", "rm", "golden@s")
    cluster.cli("image", "rm", "golden")
    assert load.stop(), "a load thread hangs"
    assert not load.error_texts, load.error_texts[:3]
    check(cluster, load, "vm")


def test_what_cannot_be_moved_is_refused(cluster):
    cluster.create_image("fixed", "8M")
    refused = lambda *arguments: cluster.cli("image", *arguments, ok=(1,)).stderr
    assert "in that pool already" in refused("migrate", "fixed", "--pool", "images")
    assert "no pool 'nowhere'" in refused("migrate", "fixed", "--pool", "nowhere")
    assert "not being flattened" in refused("flatten", "fixed", "--stop")
    cluster.cli("image", "snap", "create", "fixed@s")
    cluster.cli("image", "clone", "fixed@s", "twig")
    assert "has clones" in refused("migrate", "fixed", "--pool", "coded")


@pytest.mark.nightly
def test_who_reads_a_read_only_clone_goes_on_while_it_is_flattened(cluster):
    """What is copied is sealed by an attachment that the reader, who came before, does not know of."""
    fill(cluster, "base")
    wait_for("nobody writes", lambda: not cluster.json("image", "info", "base")["writer"], 30)
    cluster.cli("image", "snap", "create", "base@s")
    cluster.cli("image", "clone", "base@s", "fixed-clone")
    with cluster.nbd("fixed-clone") as connection:
        # So each object of the clone is there and lacks the rest.
        for at in range(SIZE // 2, SIZE, 4 * MIB):
            connection.write(at, NOISE[:BLOCK])
    wait_for("nobody writes", lambda: not cluster.json("image", "info", "fixed-clone")["writer"], 30)
    cluster.cli("image", "access", "fixed-clone", "--access", "read-only")
    with cluster.nbd("fixed-clone") as connection:
        for _ in range(2):
            intact(all(connection.read(at, MIB) == NOISE for at in range(SIZE // 2, SIZE, MIB)), "other bytes")
            cluster.cli("image", "flatten", "fixed-clone", ok=None, timeout=120)
