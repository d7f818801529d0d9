#!/usr/bin/env python3
"""Single processes killed with -9, or stopped for a while, under load: the supervisor restarts them,
writes go on, no acked byte is lost and no wrong byte is read. Prints how long I/O stalled.

    ATOLL_E2E_ROUNDS=N   times that every OSD is killed (2)
"""
import json, os, random, signal, time

from harness import MIB, expect, main, wait_for
from nbdclient import BlockLoad, NbdError, connect_patiently
from s3load import Uploader, list_keys

STALL_SECONDS_MAX = 30


class Load:
    """Blocks over NBD and objects over S3 at once, every ack recorded."""

    def __init__(self, cluster):
        self.blocks = BlockLoad(lambda: cluster.nbd("load", timeout=90), threads=4, blocks_per_thread=400, seed=77).start()
        s3 = cluster.s3(read_timeout=90)
        s3.create_bucket(Bucket="load")
        self.objects = Uploader(s3, "load", threads=2)
        rng = random.Random(23)
        noise = rng.randbytes(6 * MIB)

        def items():
            number = 0
            while True:
                number += 1
                size, start = rng.choice((100, 4096, 65536, 300_000, 5 * MIB)), rng.randrange(MIB)
                # One thread per key: keys do not repeat within the number of threads.
                yield f"k{number % 500:03}", lambda start=start, size=size, number=number: number.to_bytes(8, "big") + noise[start:start + size]

        self.objects.start(items())

    def progress(self):
        return self.blocks.acked, len(self.objects.ack_times)

    def goes_on(self, writes=200, objects=5, seconds=60):
        """Waits until both kinds of writes are acked again."""
        blocks, puts = self.progress()
        try:
            wait_for("writes go on", lambda: self.blocks.acked >= blocks + writes and len(self.objects.ack_times) >= puts + objects, seconds)
        except Exception as error:
            raise type(error)(f"{error}; {self.blocks.acked - blocks} block writes and {len(self.objects.ack_times) - puts} PUTs since; last errors "
                              f"{self.blocks.error_texts[-2:]} {self.objects.errors[-2:]}") from None

    def put_stall(self, since):
        times = sorted(list(self.objects.ack_times))
        times = [t for t in times if t < since][-1:] + [t for t in times if t >= since]
        return max((b - a for a, b in zip(times, times[1:]) if a < since + 2), default=0)

    def no_wrong_byte(self):
        expect(not self.blocks.wrong, f"{len(self.blocks.wrong)} wrong reads:\n" + "\n".join(self.blocks.wrong[:5]))


def scenario(test):
    rounds = int(os.environ.get("ATOLL_E2E_ROUNDS", 2 * test.scale))
    cluster = test.cluster(osd_size="8G")
    with test.step("atoll up --detach", fatal=True) as note:
        note(f"healthy after {cluster.up():.1f} s")
    with test.step("images and a load on NBD and S3", fatal=True) as note:
        cluster.create_image("load", "64M")
        cluster.create_image("bench", "256M")
        load = Load(cluster)
        load.goes_on(1000, 20)
        note(f"{load.blocks.acked} block writes, {len(load.objects.ack_times)} PUTs acked")

    osds = sorted(name for name in cluster.children() if name.startswith("osd"))
    test.check("three OSDs run", len(osds) == 3, f"{cluster.children()}")
    stalls = []
    for name in osds * rounds:
        with test.step(f"kill -9 {name}: restarted, writes go on") as note:
            killed = time.monotonic()
            pid = cluster.kill(name)
            cluster.restarted(name, pid)
            restarted = time.monotonic() - killed
            load.goes_on()
            load.no_wrong_byte()
            stall = load.blocks.first_silence(killed)
            stalls.append(stall)
            note(f"running after {restarted:.1f} s; NBD writes stalled {stall:.2f} s, PUTs {load.put_stall(killed):.2f} s")
            expect(stall < STALL_SECONDS_MAX, f"stalled for {stall:.1f} s")
            time.sleep(random.random())
    if stalls:
        print(f"      stall of NBD writes when an OSD is killed: {min(stalls):.2f} to {max(stalls):.2f} s", flush=True)
    with test.step("no client saw an error: an OSD's restart is a stall and nothing else") as note:
        errors = load.blocks.error_texts + load.objects.errors
        expect(not errors, f"{len(errors)} errors, such as\n" + "\n".join(errors[:5]))
        note(f"{load.blocks.acked} block writes, {load.blocks.reads} reads, {len(load.objects.ack_times)} PUTs")
    for name in osds:
        with test.step(f"kill -9 {name}, which nobody restarts: writes go on without it") as note:
            # Whatever was killed before is a member again; two failures at a time are for later.
            wait_for("all groups are whole", lambda: all(pg["members"] == pg["target"] for pg in cluster.json("pg", "ls")), 60)
            supervisor = cluster.process_ids()["supervisor"]
            os.kill(supervisor, signal.SIGSTOP)
            try:
                killed = time.monotonic()
                pid = cluster.kill(name)
                load.goes_on(500, 20)
                stall = load.blocks.first_silence(killed)
                note(f"NBD writes stalled {stall:.2f} s, PUTs {load.put_stall(killed):.2f} s")
                expect(stall < STALL_SECONDS_MAX, f"stalled for {stall:.1f} s")
            finally:
                os.kill(supervisor, signal.SIGCONT)
            cluster.restarted(name, pid)
            load.no_wrong_byte()
    with test.step("two OSDs killed at once") as note:
        killed = time.monotonic()
        pids = {name: cluster.kill(name) for name in osds[:2]}
        for name, pid in pids.items():
            cluster.restarted(name, pid)
        load.goes_on()
        load.no_wrong_byte()
        note(f"NBD writes stalled {load.blocks.first_silence(killed):.2f} s")
    with test.step("an OSD that is killed again as soon as it is back, three times") as note:
        killed = time.monotonic()
        for _ in range(3):
            pid = cluster.kill(osds[1])
            cluster.restarted(osds[1], pid)
        load.goes_on()
        load.no_wrong_byte()
        note(f"{time.monotonic() - killed:.1f} s in all")
    with test.step("an OSD that is stopped for 5 s (SIGSTOP) and goes on") as note:
        stopped = time.monotonic()
        pid = cluster.children()[osds[2]]
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(5)
        finally:
            os.kill(pid, signal.SIGCONT)
        load.goes_on()
        load.no_wrong_byte()
        note(f"NBD writes stalled {load.blocks.first_silence(stopped):.2f} s; {'the same process' if cluster.children()[osds[2]] == pid else 'was restarted'}")
    with test.step("cluster state killed with -9: I/O goes on, it is restarted") as note:
        killed = time.monotonic()
        pid = cluster.kill("cluster-state")
        cluster.restarted("cluster-state", pid)
        load.goes_on()
        load.no_wrong_byte()
        cluster.json("status")
        note(f"NBD writes stalled {load.blocks.first_silence(killed):.2f} s, PUTs {load.put_stall(killed):.2f} s")
    errors_before = len(load.blocks.error_texts), len(load.objects.errors)
    for name in ("nbd", "gateway"):
        with test.step(f"the {name} process killed with -9: restarted, clients that reconnect go on") as note:
            killed = time.monotonic()
            pid = cluster.kill(name)
            cluster.restarted(name, pid)
            load.goes_on(seconds=90)
            load.no_wrong_byte()
            note(f"NBD writes stalled {load.blocks.first_silence(killed):.2f} s, PUTs {load.put_stall(killed):.2f} s; "
                 f"{len(load.blocks.error_texts) - errors_before[0]} + {len(load.objects.errors) - errors_before[1]} requests cut off")
    with test.step("atoll bench block while an OSD is killed: no errors") as note:
        bench = test.start(test.atoll, "bench", "block", "--data", cluster.data, "--image", "bench", "--rw", "randwrite", "--bs", "4k",
                           "--qd", "32", "--seconds", "8", "--json")
        time.sleep(3)
        pid = cluster.kill(osds[0])
        cluster.restarted(osds[0], pid)
        output, errors = bench.communicate(timeout=120)
        expect(bench.returncode == 0, f"exit code {bench.returncode}: {errors[-1000:]}")
        result = json.loads(output)
        expect(result["errors"] == 0, f"{result}")
        note(f"{result['iops']:.0f} IOPS, p99.9 {result['latency_us']['p999'] / 1000:.0f} ms")
    with test.step("the load ends") as note:
        expect(load.objects.stop(120) & load.blocks.stop(120), "a thread hangs")
        load.no_wrong_byte()
        note(f"{load.blocks.acked} block writes, {load.blocks.reads} reads, {len(load.objects.ack_times)} PUTs acked; "
             f"{load.blocks.open_ended} + {len(load.objects.errors)} failed")
        expect(load.blocks.errors == 0, f"{load.blocks.errors} requests were answered with an error: {load.blocks.error_texts[:5]}")
    verify(test, cluster, load, "afterwards")
    with test.step("atoll down and up"):
        cluster.down()
        cluster.up()
    verify(test, cluster, load, "after a restart")
    with test.step("the cluster says that it is well"):
        status = cluster.json("status")
        expect(status, "an empty status")
        cluster.down()


def verify(test, cluster, load, when):
    with test.step(f"every acked block write is there {when}, no byte is wrong") as note:
        with connect_patiently(lambda: cluster.nbd("load")) as connection:
            note(f"{load.blocks.verify(connection)} blocks")
        load.no_wrong_byte()
    with test.step(f"every acked object is there {when}, no byte is wrong") as note:
        s3 = cluster.s3(attempts=3)
        problems = load.objects.problems(s3)
        expect(not problems, f"{len(problems)}:\n" + "\n".join(problems[:5]))
        missing = load.objects.acked.keys() - set(list_keys(s3, "load"))
        expect(not missing, f"not in the listing: {sorted(missing)[:5]}")
        note(f"{len(load.objects.acked)} objects")


if __name__ == "__main__":
    main(scenario)
