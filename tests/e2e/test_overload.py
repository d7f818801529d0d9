"""Clients that have far more in flight than the OSDs' memory target allows, and clients that read no answers: OSDs
hold their bound on memory, others are served meanwhile, and nothing fails."""

import ctypes.util
import json
import os
import signal
import threading

import pytest
from lib.cluster import MIB
from lib.load import BlockLoad
from lib.processes import is_alive, resident_bytes
from lib.transports import links
from lib.waiting import under_load, wait_for

TARGET_BYTES = 256 * MIB
# Requests may take a quarter of the target on primaries, and as much again on each of the other two members; caches
# give way for them within seconds. Without a bound on requests OSDs took 600 to 1,200 MiB here.
RESIDENT_BYTES_MAX = 2 * TARGET_BYTES
IMAGES = [f"bulk-{number}" for number in range(8)]
# Of all clients in flight: 2 GiB.
BULK = ["--bs", "4m", "--qd", "64", "--working-set", "256M"]
# Behind a bounded queue a small request waits for that, not for as long as it likes. Two slow processors write
# some 200 MiB/s with three copies.
SLOWEST_S_MAX = 20
STOPPED_AFTER_SECONDS, STOPPED_SECONDS = 3, 5
# Large writes wait for checkpoints, which take seconds beside other tests.
BULK_SECONDS = 15


class Peak:
    """The most memory that each OSD takes until the end of the block."""

    def __init__(self, cluster):
        self.pids = {name: pid for name, pid in cluster.children().items() if name.startswith("osd.")}
        self.bytes = dict.fromkeys(self.pids, 0)
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self.watch)

    def watch(self):
        while not self.is_over.wait(0.05):
            for name, pid in self.pids.items():
                self.bytes[name] = max(self.bytes[name], resident_bytes(pid))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.is_over.set()
        self.thread.join()

    def text(self):
        return "/".join(str(value // MIB) for value in sorted(self.bytes.values())) + " MiB"

    def check(self):
        assert min(self.bytes.values()) > 0, f"an OSD was not measured: {self.bytes}"
        assert max(self.bytes.values()) < RESIDENT_BYTES_MAX, (
            f"OSDs took {self.text()} with a target of {TARGET_BYTES // MIB} MiB"
        )


def bulk(cluster, pattern, seconds):
    """Clients in a process group of their own."""
    return cluster.scenario.start(
        cluster.scenario.atoll,
        "bench",
        "block",
        "--data",
        cluster.data,
        "--image",
        ",".join(IMAGES),
        "--rw",
        pattern,
        *BULK,
        "--seconds",
        seconds,
        "--json",
        env=cluster.environment(),
        start_new_session=True,
    )


def result(process, pattern):
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, f"exit code {process.returncode}\n{errors[-1500:]}"
    measured = json.loads(output)
    assert measured["operations"] > 0 and measured["errors"] == 0, f"{measured}"
    return f"{pattern}s {measured['iops']:.0f}/s of 4 MiB"


def served(cluster, load):
    """Ends the small load beside the bulk: it was served, and read what it wrote."""
    assert load.stop(60), "a thread hangs"
    with cluster.nbd("small") as connection:
        load.verify(connection)
    assert not load.wrong and not load.error_texts, f"{load.wrong[:3]} {load.error_texts[:3]}"
    slowest = max((seconds for _, seconds in load.slowest), default=0)
    assert load.acked > 0 and slowest < SLOWEST_S_MAX, (
        f"{load.acked} small writes beside it, the slowest {slowest:.1f} s"
    )
    return f"{load.acked} small writes beside it, slowest {slowest:.1f} s"


def small_load(cluster, number):
    """Each load has blocks of its own: it takes them for empty."""
    threads, blocks = 2, 200
    return BlockLoad(lambda: cluster.nbd("small"), number * threads * blocks, threads, blocks).start()


# Over RDMA, by libfabric's provider for sockets, all of it is nightly: the rules are the same.
NEEDS_FABRIC = pytest.mark.skipif(ctypes.util.find_library("fabric") is None, reason="libfabric1 is not installed")


@pytest.fixture(scope="module", params=["shm", pytest.param("rdma", marks=[pytest.mark.nightly, NEEDS_FABRIC])])
def cluster(scenario, request):
    """With a memory target of 256 MiB for each OSD."""
    cluster = scenario.cluster(f"overload-{request.param}", osd_size="8G")
    cluster.variables = {"ATOLL_OSD_MEMORY_TARGET": str(TARGET_BYTES)}
    if request.param == "rdma":
        cluster.variables["ATOLL_RDMA_PROVIDER"] = "tcp"
    cluster.options += ["--transport", request.param]
    cluster.up()
    for image in IMAGES:
        cluster.create_image(image, "256M")
    cluster.create_image("small", "64M")
    cluster.started = cluster.process_ids()
    yield cluster
    cluster.down()


@pytest.mark.parametrize(("number", "pattern"), [(0, "write"), (1, "read")])
@pytest.mark.nightly
def test_2_gib_of_requests_in_flight(scenario, cluster, number, pattern, note):
    """2 GiB of writes, and of reads, in flight: OSDs hold their bound, and others are served."""
    with Peak(cluster) as peak:
        load = small_load(cluster, number)
        rate = result(bulk(cluster, pattern, BULK_SECONDS * scenario.scale), pattern)
        note(f"{rate}; {served(cluster, load)}; OSDs up to {peak.text()}")
        peak.check()


@pytest.mark.nightly
def test_clients_that_read_no_answers(cluster, note):
    """Clients that read no answers for a while."""
    with Peak(cluster) as peak:
        process = bulk(cluster, "read", 10)
        under_load(STOPPED_AFTER_SECONDS)
        assert is_alive(process.pid), "it has ended already"
        os.killpg(process.pid, signal.SIGSTOP)
        try:
            load = small_load(cluster, 2)
            under_load(STOPPED_SECONDS)
            text = served(cluster, load)
        finally:
            os.killpg(process.pid, signal.SIGCONT)
        note(f"{text}; then {result(process, 'read')}; OSDs up to {peak.text()}")
        peak.check()


def test_more_small_requests_than_a_connection_may_have(cluster, note):
    """A client with more small requests in flight than a connection may have: they come many in a frame."""
    load = ["--rw", "randread", "--bs", "4k", "--qd", "3000", "--working-set", "64M", "--seconds", "3"]
    told = cluster.json("bench", "block", "--image", IMAGES[0], *load)
    assert told["operations"] > 3000 and told["errors"] == 0, told
    note(f"{told['iops']:.0f}/s with 3000 in flight")


def test_all_processes_are_still_the_same(cluster):
    """All processes are still the same, and the cluster is healthy, over the transport that it prefers."""
    assert cluster.process_ids() == cluster.started, f"{cluster.started} -> {cluster.process_ids()}"
    wait_for("healthy", lambda: cluster.json("status")["health"] == "ok", 30)
    assert set(links(cluster)) == {cluster.options[-1]}, f"{links(cluster)}"
