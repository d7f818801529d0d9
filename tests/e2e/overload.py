#!/usr/bin/env python3
"""Clients that have far more in flight than the OSDs' memory target allows, and clients that read no answers: OSDs
hold their bound on memory, others are served meanwhile, and nothing fails."""
import json, os, signal, threading, time

from harness import MIB, expect, is_alive, main, resident_bytes, wait_for
from nbdclient import BlockLoad

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
STOPPED_AFTER_S, STOPPED_S = 3, 5


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
        expect(min(self.bytes.values()) > 0, f"an OSD was not measured: {self.bytes}")
        expect(max(self.bytes.values()) < RESIDENT_BYTES_MAX, f"OSDs took {self.text()} with a target of {TARGET_BYTES // MIB} MiB")


def bulk(cluster, pattern, seconds):
    """Clients in a process group of their own."""
    return cluster.test.start(cluster.test.atoll, "bench", "block", "--data", cluster.data, "--image", ",".join(IMAGES), "--rw", pattern, *BULK,
                              "--seconds", seconds, "--json", env=cluster.environment(), start_new_session=True)


def result(process, pattern):
    output, errors = process.communicate(timeout=120)
    expect(process.returncode == 0, f"exit code {process.returncode}\n{errors[-1500:]}")
    measured = json.loads(output)
    expect(measured["operations"] > 0 and measured["errors"] == 0, f"{measured}")
    return f"{pattern}s {measured['iops']:.0f}/s of 4 MiB"


def served(cluster, load):
    """Ends the small load beside the bulk: it was served, and read what it wrote."""
    expect(load.stop(60), "a thread hangs")
    with cluster.nbd("small") as connection:
        load.verify(connection)
    expect(not load.wrong and not load.error_texts, f"{load.wrong[:3]} {load.error_texts[:3]}")
    slowest = max((seconds for _, seconds in load.slowest), default=0)
    expect(load.acked > 0 and slowest < SLOWEST_S_MAX, f"{load.acked} small writes beside it, the slowest {slowest:.1f} s")
    return f"{load.acked} small writes beside it, slowest {slowest:.1f} s"


def small_load(cluster, number):
    """Each load has blocks of its own: it takes them for empty."""
    threads, blocks = 2, 200
    return BlockLoad(lambda: cluster.nbd("small"), number * threads * blocks, threads, blocks).start()


def overload(test):
    cluster = test.cluster("overload", osd_size="8G")
    cluster.variables = {"ATOLL_OSD_MEMORY_TARGET": str(TARGET_BYTES)}
    with test.step("atoll up --detach with a memory target of 256 MiB", fatal=True) as note:
        note(f"healthy after {cluster.up():.1f} s")
        for image in IMAGES:
            cluster.create_image(image, "256M")
        cluster.create_image("small", "64M")
    before = cluster.process_ids()
    for number, pattern in enumerate(("write", "read")):
        with test.step(f"2 GiB of {pattern}s in flight") as note, Peak(cluster) as peak:
            load = small_load(cluster, number)
            rate = result(bulk(cluster, pattern, 6 * test.scale), pattern)
            note(f"{rate}; {served(cluster, load)}; OSDs up to {peak.text()}")
            peak.check()
    with test.step(f"clients that read no answers for {STOPPED_S} s") as note, Peak(cluster) as peak:
        process = bulk(cluster, "read", 10)
        time.sleep(STOPPED_AFTER_S)
        expect(is_alive(process.pid), "it has ended already")
        os.killpg(process.pid, signal.SIGSTOP)
        try:
            load = small_load(cluster, 2)
            time.sleep(STOPPED_S)
            text = served(cluster, load)
        finally:
            os.killpg(process.pid, signal.SIGCONT)
        note(f"{text}; then {result(process, 'read')}; OSDs up to {peak.text()}")
        peak.check()
    with test.step("all processes are still the same, and the cluster is healthy"):
        expect(cluster.process_ids() == before, f"{before} -> {cluster.process_ids()}")
        wait_for("healthy", lambda: cluster.json("status")["health"] == "ok", 30)
    with test.step("atoll down"):
        cluster.down()


if __name__ == "__main__":
    main(overload)
