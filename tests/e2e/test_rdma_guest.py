"""RDMA that is more than sockets: soft-RoCE of the kernel of a guest under QEMU, by libfabric's provider `verbs`.

There the tests of the fabric run as they run over sockets elsewhere, and a cluster whose OSDs and clients talk over it.
"""

import json
import os
import pathlib

import pytest
from lib.cluster import MIB
from lib.load import BlockLoad
from lib.rdma_guest import ADDRESS, RdmaGuest, is_installed
from lib.scenario import REPOSITORY
from lib.waiting import wait_for

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.limit(400),
    pytest.mark.needs("qemu-system-x86_64", "busybox", "rdma", "mke2fs", "etcd"),
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


@pytest.fixture(scope="module")
def guest(scenario):
    with RdmaGuest(scenario, {"fabric-tests": fabric_tests(scenario)}) as guest:
        yield guest


def test_the_fabric_works_over_soft_roce(guest, note):
    """Streams, references, credits, bounds, ends and hostile peers, as over sockets."""
    environment = f"ATOLL_TEST_FABRIC_PROVIDER=verbs ATOLL_TEST_FABRIC_IP={ADDRESS}"
    output = guest.run(f"{environment} /disk/fabric-tests --test-threads 1 --skip 4096", 240)
    note(output.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def cluster(guest):
    guest.up()
    guest.create_image("disk")
    return guest


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


def finish(guest, image, running):
    """Ends loads: nothing that was acked is lost, and nothing is torn."""
    for load in running:
        assert load.stop(), "a thread hangs"
    with guest.nbd(image, timeout=90) as connection:
        for load in running:
            assert load.verify(connection) > 0
            assert not load.wrong, "\n".join(load.wrong[:5])
            assert not load.error_texts, "\n".join(load.error_texts[:5])


def test_a_cluster_works_over_soft_roce(cluster):
    """Everything goes over RDMA, and status says by which provider; what is written is read."""
    cluster.wait_for_links("rdma")
    assert "libfabric's providers: verbs at 3 OSDs" in cluster.run("atoll status")
    with cluster.nbd("disk") as connection:
        for number in range(3):
            connection.write(number * 8 * MIB, bytes([number + 1]) * 4096)
            connection.write(number * 8 * MIB + 4 * MIB, bytes([number + 11]) * 4 * MIB)
        for number in range(3):
            assert connection.read(number * 8 * MIB, 4096) == bytes([number + 1]) * 4096
            assert connection.read(number * 8 * MIB + 4 * MIB, 4 * MIB) == bytes([number + 11]) * 4 * MIB
    assert set(cluster.links()) == {"rdma"}, f"{cluster.links()}"


def test_an_osd_that_is_killed_in_mid_transfer_loses_nothing(cluster):
    """It comes back over RDMA."""
    running, old = loads(cluster, "killed"), cluster.process_id("osd.1")
    goes_on(running)
    cluster.kill("osd.1")
    goes_on(running)
    wait_for("osd.1 is started again", lambda: cluster.process_id("osd.1") not in (None, old), 60, 1)
    wait_for("all OSDs are up", lambda: cluster.json("status")["osds_up"] == 3, 60, 1)
    finish(cluster, "killed", running)
    cluster.wait_for_links("rdma")
    wait_for("no link is over TCP", lambda: set(cluster.links()) == {"rdma"}, 60, 1)


def test_an_adapter_that_is_removed_in_mid_transfer_loses_nothing(cluster):
    """All links over RDMA end, and TCP carries on. No process holds the removal up once it has ended."""
    cluster.wait_for_links("rdma")
    running = loads(cluster, "removed")
    goes_on(running)
    cluster.remove_adapter()
    goes_on(running)
    wait_for("links are over TCP", lambda: set(cluster.links()) == {"tcp"}, 60, 1)
    finish(cluster, "removed", running)
    cluster.run("atoll down", 90)
    wait_for("the adapter is gone", cluster.is_adapter_removed, 30, 1)
