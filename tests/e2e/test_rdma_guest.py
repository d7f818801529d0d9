"""RDMA that is more than sockets: soft-RoCE and soft-iWARP of the kernel of a guest under QEMU, by libfabric's provider
`verbs`.

There the tests of the fabric run as they run over sockets elsewhere, and a cluster whose OSDs and clients talk over it.
"""

import json
import os
import pathlib
import time

import pytest
from lib.cluster import MIB
from lib.load import BlockLoad
from lib.nbd import connect_patiently
from lib.rdma_guest import ADDRESS, RdmaGuest, is_installed
from lib.scenario import REPOSITORY
from lib.verdicts import intact
from lib.waiting import NotYet, wait_for

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.limit(400),
    pytest.mark.needs("qemu-system-x86_64", "busybox", "rdma", "mke2fs", "etcd", "prlimit", "setpriv"),
    pytest.mark.skipif(not is_installed(), reason="libfabric1 or ibverbs-providers is not installed"),
]


def fabric_tests(scenario):
    """The tests of the fabric as a program: that which is named, or of the profile of the binary that is tested."""
    if program := os.environ.get("ATOLL_FABRIC_TESTS"):
        return program
    profile = pathlib.Path(scenario.atoll).parent.name
    command = ("cargo", "test", "--profile", profile, "-p", "atoll-fabric", "--lib", "--no-run")
    done = scenario.run(*command, "--message-format=json", timeout=300, cwd=REPOSITORY)
    built = [json.loads(line) for line in done.stdout.splitlines()]
    return next(path for path in (one.get("executable") for one in built) if path)


@pytest.fixture(scope="module", params=["rxe", "siw"])
def guest(scenario, request):
    with RdmaGuest(scenario, {"fabric-tests": fabric_tests(scenario)}, request.param) as guest:
        yield guest


ENVIRONMENT = f"ATOLL_TEST_FABRIC_PROVIDER=verbs ATOLL_TEST_FABRIC_IP={ADDRESS}"


def test_the_fabric_works_over_verbs(guest, note):
    """Streams, references, credits, bounds, ends, hostile peers and refused memory, as over sockets."""
    # Over iWARP no registration for reads is kept, because the peer may write there.
    skipped = ["4096", "registrations_are_kept_up_to_a_limit"] if guest.kind == "siw" else ["4096"]
    skips = " ".join(f"--skip {name}" for name in skipped)
    output = guest.run(f"{ENVIRONMENT} /disk/fabric-tests --test-threads 1 {skips}", 240)
    note(output.strip().splitlines()[-1])


def test_a_limit_of_locked_memory_is_named(guest, note):
    """A process that may lock less than the first buffers take gets an error that says so, and what to do."""
    may = "(ulimit -l 64; /usr/bin/setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock"
    test = "/disk/fabric-tests the_limit_of_this_process_is_named --nocapture)"
    output = guest.run(f"{may} env {ENVIRONMENT} ATOLL_TEST_FABRIC_LOCKED_LITTLE=1 {test}", 60)
    note(next(line for line in output.splitlines() if "RLIMIT_MEMLOCK" in line))


@pytest.fixture(scope="module")
def cluster(guest):
    """A cluster that starts without an adapter, which comes later."""
    guest.remove_adapter()
    wait_for("the adapter is gone", guest.is_adapter_removed, 30, 1)
    guest.up()
    guest.create_image("disk")
    return guest


def test_an_adapter_that_comes_later_is_used(cluster, note):
    """OSDs that find no adapter start, serve over TCP and say why. When one is there, they announce it, and links go
    over to it, without a restart."""
    wait_for("links are over TCP", lambda: set(cluster.links()) == {"tcp"}, 60, 1)
    assert "cannot listen over RDMA" in cluster.log_text()
    cluster.add_adapter()
    started = time.monotonic()
    with connect_patiently(lambda: cluster.nbd("disk", timeout=90)) as connection:

        def is_over_rdma():
            for number in range(64):
                connection.write(number * 4 * MIB, bytes([number]) * 4096)
            return is_over_rdma_again(cluster)

        wait_for("what is written goes over RDMA", is_over_rdma, 150, 1)
        note(f"after {time.monotonic() - started:.0f} s: {cluster.links()}")
        intact(
            all(connection.read(number * 4 * MIB, 4096) == bytes([number]) * 4096 for number in range(64)),
            "other bytes",
        )


def loads(guest, image):
    """Small and long writes to a new image, each of which is remembered once it is acked."""
    guest.create_image(image)
    connect = lambda: guest.nbd(image, timeout=90)
    short = BlockLoad(connect, threads=2, blocks_per_thread=64, seed=3)
    long = BlockLoad(connect, first_block=32, threads=1, blocks_per_thread=8, block_bytes=4 * MIB, seed=4)
    return short.start(), long.start()


def goes_on(running, seconds=90):
    """Waits until both loads have writes acked that began from now on."""
    before = [(load, load.acked + load.thread_count) for load in running]
    wait_for("writes go on", lambda: all(load.acked > acked for load, acked in before), seconds)


def is_over_rdma_again(cluster):
    """Only the supervisor's links, of which it makes no use, may be older than the adapter."""
    found = cluster.links()
    if not set(found) <= {"rdma", "tcp"} or found.get("tcp", 0) > 3 or found.get("rdma", 0) < 5:
        raise NotYet(f"{found}")
    return True


def finish(guest, image, running):
    """Ends loads: nothing that was acked is lost, and nothing is torn."""
    for load in running:
        assert load.stop(), "a thread hangs"
    with guest.nbd(image, timeout=90) as connection:
        for load in running:
            assert load.verify(connection) > 0
            intact(not load.wrong, "\n".join(load.wrong[:5]))
            assert not load.error_texts, "\n".join(load.error_texts[:5])


def test_a_cluster_works_over_verbs(cluster):
    """Everything goes over RDMA, and status says by which provider; what is written is read."""
    assert "libfabric's providers: verbs at 3 OSDs" in cluster.run("atoll status")
    with cluster.nbd("disk") as connection:
        for number in range(3):
            connection.write(number * 8 * MIB, bytes([number + 1]) * 4096)
            connection.write(number * 8 * MIB + 4 * MIB, bytes([number + 11]) * 4 * MIB)
        for number in range(3):
            intact(connection.read(number * 8 * MIB, 4096) == bytes([number + 1]) * 4096, "other bytes")
            intact(
                connection.read(number * 8 * MIB + 4 * MIB, 4 * MIB) == bytes([number + 11]) * 4 * MIB, "other bytes"
            )
        wait_for("links are over RDMA", lambda: is_over_rdma_again(cluster), 30, 1)


def test_an_osd_that_is_killed_in_mid_transfer_loses_nothing(cluster):
    """It comes back over RDMA."""
    running, old = loads(cluster, "killed"), cluster.process_id("osd.1")
    goes_on(running)
    cluster.kill("osd.1")
    goes_on(running)
    wait_for("osd.1 is started again", lambda: cluster.process_id("osd.1") not in (None, old), 60, 1)
    wait_for("all OSDs are up", lambda: cluster.json("status")["osds_up"] == 3, 60, 1)
    finish(cluster, "killed", running)
    wait_for("links are over RDMA", lambda: is_over_rdma_again(cluster), 90, 1)


def test_an_osd_that_may_lock_little_is_reached_by_tcp(cluster, note):
    """An OSD that may lock no memory has no links over RDMA, says why, and is reached by TCP. When it may, links
    return."""
    old = cluster.process_id("osd.1")
    cluster.limit_locked_memory("supervisor", 64 << 10)
    cluster.kill("osd.1")
    wait_for("osd.1 is started again", lambda: cluster.process_id("osd.1") not in (None, old), 60, 1)
    cluster.limit_locked_memory("supervisor", "unlimited")
    wait_for("all OSDs are up", lambda: cluster.json("status")["osds_up"] == 3, 60, 1)
    running = loads(cluster, "locked")
    goes_on(running)
    wait_for("osd.1 is reached by TCP", lambda: cluster.links().get("tcp", 0) >= 3, 60, 1)
    wait_for("it says why", lambda: "(RLIMIT_MEMLOCK)" in cluster.run("cat /disk/d/log/osd.1.log"), 30, 1)
    cluster.limit_locked_memory("osd.1", "unlimited")
    started = time.monotonic()
    wait_for("links return", lambda: is_over_rdma_again(cluster) and cluster.links()["rdma"] >= 6, 150, 1)
    note(f"{time.monotonic() - started:.0f} s until links are over RDMA again: {cluster.links()}")
    goes_on(running)
    finish(cluster, "locked", running)


def test_an_adapter_that_is_removed_in_mid_transfer_loses_nothing(cluster, note):
    """All links over RDMA end, and TCP carries on. What comes back is used again, where the kernel takes it away from
    processes; otherwise no process holds the removal up once it has ended."""
    cluster.wait_for_links("rdma", 5)
    running = loads(cluster, "removed")
    goes_on(running)
    cluster.remove_adapter()
    goes_on(running)
    wait_for("links are over TCP", lambda: set(cluster.links()) == {"tcp"}, 60, 1)
    if cluster.is_let_go:
        wait_for("the adapter is gone", cluster.is_adapter_removed, 30, 1)
        cluster.add_adapter()
        started = time.monotonic()
        wait_for("links are over RDMA", lambda: is_over_rdma_again(cluster), 120, 1)
        note(f"back after {time.monotonic() - started:.0f} s: {cluster.links()}")
        goes_on(running)
    finish(cluster, "removed", running)
    cluster.run("atoll down", 90)
    wait_for("the adapter is gone", cluster.is_adapter_removed, 30, 1)
