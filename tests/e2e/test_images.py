"""Images as people handle them: removal that is interrupted, who may use an image, the trash, extents, and names."""

import json
import random
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from lib.cluster import MIB
from lib.nbd import TRIM, NbdError, connect_patiently
from lib.net import stopped
from lib.tiers import nightly_but
from lib.verdicts import intact
from lib.waiting import Failed, wait_for

pytestmark = [pytest.mark.any_order, pytest.mark.needs("nbdinfo", "qemu-io")]

HOLDER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from lib.nbd import Nbd
from lib.verdicts import intact
with Nbd(sys.argv[2], sys.argv[3]) as connection:
    connection.write(0, b"held" * 1024)
    print("holds", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def cluster(scenario):
    cluster = scenario.cluster(osd_size="4G")
    cluster.up()
    return cluster


def qemu_io(cluster, export, *commands, ok=(0,), read_only=False):
    parts = [part for command in commands for part in ("-c", command)]
    flags = ["-r"] if read_only else []
    return cluster.scenario.run("qemu-io", "-f", "raw", *flags, *parts, cluster.nbd_uri(export), ok=ok)


def holder(cluster, image, tcp=False):
    """Another process that has an image open."""
    tests = str(cluster.scenario.directory.parents[2] / "tests" / "e2e")
    process = cluster.scenario.start(
        sys.executable, "-c", HOLDER, tests, cluster.nbd_socket, image, stdin=subprocess.PIPE
    )
    assert process.stdout.readline() == "holds\n", process.stderr.read()
    return process


def refused(cluster, *arguments):
    done = cluster.cli(*arguments, ok=None)
    assert done.returncode == 1, f"{arguments} ended with {done.returncode}\n{done.stdout}"
    assert "panic" not in done.stderr
    return done.stderr


# --- removal


def fill(cluster, name, objects):
    """Writes a block into so many objects."""
    with cluster.nbd(name) as connection:
        for index in range(objects):
            connection.write(index * 4 * MIB, b"data" * 1024)


@pytest.mark.parametrize("after", nightly_but([0.03], [0.03, 0.12]))
def test_an_interrupted_removal_goes_on(cluster, after):
    """kill -9 of 'image rm': nobody can attach the image, and the next 'image rm', or a server, removes the rest."""
    name = f"doomed-{int(after * 1000)}"
    cluster.create_image(name, "64G")
    fill(cluster, name, 300)
    wait_for("the NBD server lets go", lambda: not cluster.json("image", "info", name)["writer"], 20)
    remover = cluster.scenario.start(cluster.scenario.atoll, "image", "rm", name, "--data", cluster.data)
    time.sleep(after)
    remover.send_signal(signal.SIGKILL)
    remover.wait()
    if name in {image["name"] for image in cluster.json("image", "ls", "--fast")}:
        # It had not begun: all is there.
        intact(cluster.read_image(name, 0, 4096) == b"data" * 1024, "other bytes")
        wait_for("the NBD server lets go", lambda: not cluster.json("image", "info", name)["writer"], 20)
    else:
        with pytest.raises(NbdError, match="no image"):
            cluster.nbd(name).close()
        assert "no way back" in refused(cluster, "image", "trash", "restore", name) or not trash(cluster)
    done = cluster.cli("image", "rm", name, ok=None, timeout=60)
    # The NBD server may have been faster.
    assert done.returncode == 0 or "no image" in done.stderr, done.stderr
    wait_for("nothing is left to be removed", lambda: name not in trash(cluster), 60)
    cluster.create_image(name, "64M")
    intact(cluster.read_image(name, 0, 4096) == bytes(4096), "other bytes")
    assert cluster.json("image", "du", name)["used_bytes"] == 0


def trash(cluster):
    return {image["name"] for image in cluster.json("image", "trash", "ls")}


@pytest.mark.nightly
def test_the_servers_remove_what_nobody_else_does(cluster):
    cluster.create_image("left", "16G")
    fill(cluster, "left", 50)
    wait_for("the NBD server lets go", lambda: not cluster.json("image", "info", "left")["writer"], 20)
    cluster.cli("image", "trash", "mv", "left", "--keep", "1s")
    wait_for("the NBD server has removed it", lambda: "left" not in trash(cluster), 60)


def test_two_removers(cluster):
    cluster.create_image("twice", "64G")
    fill(cluster, "twice", 200)
    wait_for("the NBD server lets go", lambda: not cluster.json("image", "info", "twice")["writer"], 20)
    command = [cluster.scenario.atoll, "image", "rm", "twice", "--data", cluster.data]
    both = [cluster.scenario.start(*command) for _ in range(2)]
    said = [process.communicate(timeout=60) for process in both]
    codes = sorted(process.returncode for process in both)
    assert codes in ([0, 0], [0, 1]), said
    assert all("there is no image 'twice'" in error for _, error in said if error), said
    assert "twice" not in trash(cluster)


@pytest.mark.nightly
def test_what_is_in_use_is_not_removed(cluster):
    cluster.create_image("used", "64M")
    other = holder(cluster, "used")
    assert "in use by NBD server" in refused(cluster, "image", "rm", "used")
    assert "in use" in refused(cluster, "image", "trash", "mv", "used")
    assert "in use" in refused(cluster, "image", "rename", "used", "renamed")
    other.communicate("")
    wait_for("the NBD server lets go", lambda: not cluster.json("image", "info", "used")["writer"], 20)
    cluster.cli("image", "snap", "create", "used@s")
    with cluster.nbd("used@s"):
        assert "in use by NBD server" in refused(cluster, "image", "snap", "rm", "used@s")
        assert cluster.json("image", "info", "used")["watchers"]
    assert "1 snapshots" in refused(cluster, "image", "rm", "used")


def test_the_trash(cluster):
    cluster.create_image("kept", "64M")
    with cluster.nbd("kept") as connection:
        connection.write(0, b"kept" * 1024)
    wait_for("the NBD server lets go", lambda: not cluster.json("image", "info", "kept")["writer"], 20)
    cluster.cli("image", "snap", "create", "kept@before")
    with cluster.nbd("kept") as connection:
        connection.write(0, b"more" * 1024)
    wait_for("the NBD server lets go", lambda: not cluster.json("image", "info", "kept")["writer"], 20)
    cluster.cli("image", "clone", "kept@before", "child")
    assert "has clones" in refused(cluster, "image", "trash", "mv", "kept")
    cluster.cli("image", "rm", "child")
    assert "1 snapshots" in refused(cluster, "image", "trash", "mv", "kept", "--keep", "0s")
    cluster.cli("image", "trash", "mv", "kept")
    with pytest.raises(NbdError):
        cluster.nbd("kept").close()
    cluster.create_image("kept", "32M")
    assert "--name" in refused(cluster, "image", "trash", "restore", "kept")
    cluster.cli("image", "trash", "restore", "kept", "--name", "back")
    intact(cluster.read_image("back", 0, 4096) == b"more" * 1024, "other bytes")
    intact(cluster.read_image("back@before", 0, 4096) == b"kept" * 1024, "other bytes")
    wait_for("the NBD server lets go", lambda: not cluster.json("image", "info", "back")["writer"], 20)
    wait_for("nobody reads the snapshot", lambda: not cluster.json("image", "info", "back")["watchers"], 20)
    cluster.cli("image", "trash", "mv", "back")
    assert cluster.json("image", "trash", "ls")[0]["snapshots"] == 1
    cluster.cli("image", "trash", "rm", "back")
    cluster.cli("image", "trash", "mv", "kept")
    cluster.cli("image", "trash", "rm", "kept")
    assert "kept" not in trash(cluster)


# --- who may use an image


def test_one_client_at_a_time_unless_the_image_says_otherwise(cluster):
    cluster.create_image("one", "64M")
    other = holder(cluster, "one")
    with pytest.raises(NbdError, match="multi-attach"):
        cluster.nbd("one").close()
    cluster.cli("image", "access", "one", "--access", "multi-attach")
    with cluster.nbd("one") as connection:
        intact(connection.read(0, 4096) == b"held" * 1024, "other bytes")
    other.communicate("")
    cluster.cli("image", "access", "one", "--reset")
    with cluster.nbd("one") as first, cluster.nbd("one") as second:
        first.write(4096, b"mine" * 1024)
        intact(second.read(4096, 4096) == b"mine" * 1024, "other bytes")


def test_readers_keep_writers_away_and_do_not_become_writers(cluster):
    """Who came when an image was read-only stays a reader when it is not, and nobody writes before it leaves."""
    cluster.create_image("switched", "16M")
    with cluster.nbd("switched") as disk:
        disk.write(0, b"held" * 1024)
        cluster.cli("image", "access", "switched", "--access", "read-only")
        with pytest.raises(NbdError, match="option refused"):
            cluster.nbd("switched").close()
    with connect_patiently(lambda: cluster.nbd("switched"), 20) as reader:
        cluster.cli("image", "access", "switched", "--access", "exclusive")
        with pytest.raises(NbdError, match="option refused"):
            cluster.nbd("switched").close()
        assert "in use" in refused(cluster, "image", "resize", "switched", "--size", "8M", "--allow-shrink")
        intact(reader.read(0, 4096) == b"held" * 1024, "what is read")
        with pytest.raises(NbdError):
            reader.write(0, bytes(4096))
    with connect_patiently(lambda: cluster.nbd("switched"), 20) as disk:
        disk.write(0, b"lead" * 1024)


@pytest.mark.nightly
def test_a_reader_without_cluster_state_stops_and_goes_on(cluster):
    """A reader that is cut off for longer than its lease reads nothing, and goes on when cluster state answers."""
    cluster.create_image("watched", "16M")
    with cluster.nbd("watched") as disk:
        disk.write(0, b"\1" * 4096)
    cluster.cli("image", "snap", "create", "watched@one")

    def reads(reader):
        try:
            return reader.read(0, 4096) == b"\1" * 4096
        except NbdError:
            return False

    with cluster.nbd("watched@one") as reader:
        assert reads(reader)
        with stopped(cluster.process_ids()["cluster-state"]):
            wait_for("it reads nothing", lambda: not reads(reader), 60, 1)
        wait_for("it goes on", lambda: reads(reader), 60, 1)


def test_a_broken_lock_lets_the_next_client_in(cluster):
    cluster.create_image("stuck", "64M")
    other = holder(cluster, "stuck")
    assert "--yes" in refused(cluster, "image", "lock", "break", "stuck")
    assert "stuck" in {lock["image"] for lock in cluster.json("image", "lock", "ls")}
    cluster.cli("image", "lock", "break", "stuck", "--yes")
    with cluster.nbd("stuck") as connection:
        intact(connection.read(0, 4096) == b"held" * 1024, "other bytes")
    other.kill()


@pytest.mark.parametrize("was_connected", [False, True], ids=["connects again", "has another connection"])
def test_nothing_of_a_broken_connection_is_done_after_what_follows_it(cluster, was_connected):
    """A client whose connection breaks while a trim is in flight writes over another one: what it wrote stays."""
    name = f"again-{int(was_connected)}"
    cluster.create_image(name, "256M")
    broken, live = cluster.nbd(name), cluster.nbd(name) if was_connected else None

    def go_on():
        connection = live or cluster.nbd(name)
        connection.write(200 * MIB, b"newer" * 4096)
        return connection

    with ThreadPoolExecutor(1) as pool:
        with stopped(cluster.process_ids()["osd.0"]):
            # That is done some objects at a time, and the first ones wait for the OSD.
            broken.send(TRIM, 0, 256 * MIB)
            time.sleep(0.2)
            broken.abort()
            goes_on = pool.submit(go_on)
            time.sleep(0.8)
        with goes_on.result(60) as connection:
            time.sleep(0.5)
            intact(connection.read(200 * MIB, 5 * 4096) == b"newer" * 4096, "other bytes")


def test_plain_tcp_reaches_only_what_is_open_to_it(cluster):
    cluster.create_image("closed", "64M")
    with pytest.raises(NbdError, match="--allow 127.0.0.1"):
        cluster.nbd("closed", tcp=True).close()
    listed = json.loads(
        cluster.scenario.run("nbdinfo", "--json", "--list", f"nbd://127.0.0.1:{cluster.nbd_port}/", ok=None).stdout
        or '{"exports": []}'
    )
    assert "closed" not in {export["export-name"] for export in listed["exports"]}
    cluster.cli("image", "access", "closed", "--allow", "127.0.0.0/8")
    cluster.nbd("closed", tcp=True).close()


def test_read_only_exports(cluster):
    cluster.create_image("golden", "64M")
    qemu_io(cluster, "golden", "write -P 7 0 8k")
    cluster.cli("image", "access", "golden", "--access", "read-only")
    wait_for("the NBD server lets go", lambda: not cluster.json("image", "info", "golden")["writer"], 20)
    qemu_io(cluster, "golden", "read -P 7 0 8k", read_only=True)
    other = subprocess.Popen(["nbdcopy", cluster.nbd_uri("golden"), "null:"])
    qemu_io(cluster, "golden", "read -P 0 8k 1M", read_only=True)
    assert other.wait(60) == 0
    assert qemu_io(cluster, "golden", "write 0 4k", ok=None).returncode != 0
    with cluster.nbd("golden") as connection, pytest.raises(NbdError):
        connection.write(0, bytes(4096))


# --- attaching where it cannot be done


@pytest.mark.nightly
def test_a_failed_attach_is_an_answer_and_holds_nothing(cluster):
    """Without enough OSDs: an error of NBD within 15 s, and no lock is left."""
    cluster.create_image("waits", "64M")
    osds = [name for name in cluster.children() if name.startswith("osd.")]
    stopped = [cluster.process_ids()[name] for name in osds[:2]]
    for pid in stopped:
        subprocess.run(["kill", "-STOP", str(pid)], check=True)
    try:
        started = time.monotonic()
        with pytest.raises(NbdError, match="do not all answer"):
            cluster.nbd("waits", timeout=30).close()
        assert time.monotonic() - started < 18
    finally:
        for pid in stopped:
            subprocess.run(["kill", "-CONT", str(pid)], check=True)
    wait_for("the image can be attached", lambda: cluster.read_image("waits", 0, 4096) == bytes(4096), 60)


def test_an_image_is_not_made_where_it_could_not_be_written(cluster):
    cluster.cli("pool", "create", "nowhere", "--size", "3", "--failure-domain", "host", "--pg-num", "4", timeout=90)
    assert "0 of 4 placement groups" in refused(cluster, "image", "create", "x", "--size", "1G", "--pool", "nowhere")
    cluster.cli("pool", "rm", "nowhere", "--yes-destroy", "nowhere")
    made = cluster.json("pool", "create", "usual", "--pg-num", "4")
    assert made["failure_domain"] == "osd", "as 'atoll up' does on one host"


# --- extents


def extents(cluster, export):
    """What nbdinfo says: a list of (offset, length, is data)."""
    found = json.loads(cluster.scenario.run("nbdinfo", "--json", "--map", cluster.nbd_uri(export)).stdout)
    return [(part["offset"], part["length"], part["type"] == 0) for part in found]


@pytest.mark.parametrize("pool", ["images", "coded"])
def test_extents_are_those_of_a_model(cluster, pool):
    """Random writes and trims: nbdinfo --map tells each block of 4 KiB."""
    if pool == "coded":
        cluster.cli("pool", "create", "coded", "--ec", "2+1", "--pg-num", "4")
    size, rng, name = 64 * MIB, random.Random(5), f"mapped-{pool}"
    cluster.create_image(name, size, "--pool", pool)
    blocks = bytearray(size // 4096)
    with cluster.nbd(name) as connection:
        for _ in range(120):
            first, count = rng.randrange(len(blocks)), rng.choice([1, 3, 16, 200, 1500])
            count = min(count, len(blocks) - first)
            if rng.random() < 0.65:
                connection.write(first * 4096, rng.randbytes(4096) * count)
                blocks[first : first + count] = b"\1" * count
            else:
                connection.trim(first * 4096, count * 4096)
                blocks[first : first + count] = bytes(count)
    found = bytearray(len(blocks))
    for offset, length, is_data in extents(cluster, name):
        assert offset % 4096 == length % 4096 == 0
        if is_data:
            found[offset // 4096 : (offset + length) // 4096] = b"\1" * (length // 4096)
    assert found == blocks


@pytest.mark.nightly
def test_large_empty_images_cost_little(cluster, note):
    cluster.create_image("vast", "64T")
    started = time.monotonic()
    assert extents(cluster, "vast") == [(0, 64 << 40, False)]
    mapped = time.monotonic()
    assert cluster.json("image", "du", "vast")["used_bytes"] == 0
    counted = time.monotonic()
    wait_for("the NBD server lets go", lambda: not cluster.json("image", "info", "vast")["writer"], 20)
    begun = time.monotonic()
    cluster.cli("image", "rm", "vast")
    note(f"64 TiB: map {mapped - started:.1f} s, du {counted - mapped:.1f} s, rm {time.monotonic() - begun:.1f} s")


# --- the command line


def test_names_sizes_and_lists(cluster):
    assert "cannot have 1 bytes" in refused(cluster, "image", "create", "ok", "--size", "1")
    assert "4.0 KiB up to 64.0 TiB" in refused(cluster, "image", "create", "ok", "--size", "65T")
    done = cluster.cli("image", "create", "ok", "--size", "10KB", ok=None)
    assert done.returncode == 2 and "10K or 10KiB" in done.stderr
    dash = [cluster.scenario.atoll, "image", "create", "--data", cluster.data, "--size", "1M", "--", "-dash"]
    assert "cannot be a name" in cluster.scenario.run(*dash, ok=(1,)).stderr
    long = "a" * 60 + "-end"
    cluster.create_image(long, "4M")
    table = cluster.cli("image", "ls").stdout
    assert re.search(r"^NAME +POOL +SIZE +USED +SNAPS +SEALED +WRITER", table)
    assert "…" in table and long not in table and long in cluster.cli("image", "ls", "--full").stdout
    for name in ("r1", "r2"):
        cluster.create_image(name, "4M")
    assert "no image 'r3'" in refused(cluster, "image", "rm", "r1", "r3", "r2")
    assert not {"r1", "r2"} & {image["name"] for image in cluster.json("image", "ls")}
    cluster.cli("image", "rename", long, "short")
    cluster.cli("image", "meta", "set", "short", "owner=ann", "note=a=b")
    assert cluster.json("image", "info", "short")["metadata"] == {"owner": "ann", "note": "a=b"}
    cluster.cli("image", "meta", "rm", "short", "note")
    assert cluster.json("image", "meta", "ls", "short") == {"owner": "ann"}


def test_a_shrink_that_is_interrupted_must_be_done_again(cluster):
    cluster.create_image("shrunk", "16G")
    fill(cluster, "shrunk", 400)
    wait_for("the NBD server lets go", lambda: not cluster.json("image", "info", "shrunk")["writer"], 20)
    command = ["image", "resize", "shrunk", "--size", "8M", "--allow-shrink"]
    shrinker = cluster.scenario.start(cluster.scenario.atoll, *command, "--data", cluster.data)
    wait_for("it has begun", lambda: cluster.json("image", "info", "shrunk")["unfinished"] or shrinker.poll() == 0, 30)
    shrinker.kill()
    shrinker.wait()
    if cluster.json("image", "info", "shrunk")["unfinished"]:
        with pytest.raises(NbdError, match="is not done"):
            cluster.nbd("shrunk").close()
    cluster.cli(*command)
    assert cluster.json("image", "info", "shrunk")["size_bytes"] == 8 * MIB
    cluster.cli("image", "resize", "shrunk", "--size", "16G")
    intact(cluster.read_image("shrunk", 8 * MIB, 4096) == bytes(4096), "other bytes")
    intact(cluster.read_image("shrunk", 0, 4096) == b"data" * 1024, "other bytes")


def commands(scenario, *path):
    """All commands below one, by what their help says."""
    text = scenario.run(scenario.atoll, *path, "--help").stdout
    section = re.search(r"^Commands:\n((?:  .*\n|\n)+)", text, re.M)
    names = re.findall(r"^  ([a-z][a-z0-9-]*)  ", section.group(1), re.M) if section else []
    below = [name for name in names if name != "help"]
    if not below:
        return [(path, re.search(r"^Usage: .*$", text, re.M).group(0))]
    return [found for name in below for found in commands(scenario, *path, name)]


# They serve or measure until they are ended, or change the cluster.
NOT_TRIED = {("up",), ("down",), ("join",), ("preflight",), ("sim",)}
SERVING = ("bench", "gateway", "nbd", "state", "completion")


@pytest.mark.nightly
def test_no_command_minds_a_closed_pipe(cluster):
    """Every command that needs no arguments, and the help of all, with nobody who reads: as behind 'head'."""
    scenario = cluster.scenario
    every = commands(scenario)
    assert len(every) > 60, every
    cluster.create_image("shown", "4M")
    tried = 0
    for path, usage in every:
        runs = [[*path, "--help"]]
        plain = re.sub(r"\[[^]]*\]", "", usage.split(" ", 1)[1])
        words = [word for word in plain.split() if word not in ("atoll", *path)]
        is_plain = not words and path not in NOT_TRIED and path[0] not in SERVING
        if is_plain and "--data" in scenario.run(scenario.atoll, *path, "--help").stdout:
            runs += [[*path, "--data", cluster.data], [*path, "--data", cluster.data, "--json"]]
        for run in runs:
            tried += 1
            command = " ".join(f"'{part}'" for part in [scenario.atoll, *map(str, run)])
            done = scenario.run("bash", "-c", f"{command} | true; exit ${{PIPESTATUS[0]}}", ok=None, timeout=60)
            assert "panic" not in done.stderr and "roken pipe" not in done.stderr, f"{run}: {done.stderr}"
            assert done.returncode in (0, 1, 2), f"{run} ended with {done.returncode}: {done.stderr}"
    assert tried > 90, tried


def test_a_full_disk_behind_the_output_is_an_error(cluster):
    done = cluster.scenario.run(
        "bash", "-c", f"'{cluster.scenario.atoll}' status --data '{cluster.data}' > /dev/full", ok=None
    )
    assert done.returncode == 1 and "No space left" in done.stderr, done.stderr


def test_nothing_went_wrong_in_the_servers(cluster):
    assert "panic" not in cluster.log_text()
    with pytest.raises(Failed):
        cluster.cli("image", "info", "none")
