#!/usr/bin/env python3
"""Pools get more placement groups under load, while an OSD dies too; then a pool is removed and its space comes back."""
import os, signal, time

from harness import MIB, expect, main, wait_for
from osd_killed import Load, verify


def groups(cluster, pool):
    return cluster.json("pg", "ls", "--pool", pool)


def all_serve(cluster, pool, count):
    found = groups(cluster, pool)
    return len(found) == count and all(group["state"] == "active" and not group["is_degraded"] for group in found)


def used_bytes(cluster):
    return [osd["used_bytes"] for osd in cluster.json("osd", "ls")]


def scenario(test):
    cluster = test.cluster(osd_size="8G")
    with test.step("atoll up --detach", fatal=True) as note:
        note(f"healthy after {cluster.up():.1f} s")
    with test.step("an image, objects, and a load on both", fatal=True) as note:
        cluster.create_image("load", "64M")
        cluster.create_image("idle", "64M")
        with cluster.nbd("idle") as connection:
            connection.write(0, b"\x5a" * (32 * MIB))
        load = Load(cluster)
        load.goes_on(1000, 20)
        note(f"{load.blocks.acked} block writes, {len(load.objects.ack_times)} PUTs acked")
    before = len(groups(cluster, "images"))
    for pool, factor in (("images", 2), ("objects", 2), ("images", 4)):
        count = len(groups(cluster, pool)) * factor
        with test.step(f"pool set {pool} pg_num {count}: all groups split, nothing moves, I/O goes on", fatal=True) as note:
            began = time.monotonic()
            done = cluster.cli("pool", "set", pool, "pg_num", count)
            expect(f"{count} placement groups" in done.stdout, done.stdout)
            wait_for("all groups serve", lambda: all_serve(cluster, pool, count), 60)
            took = time.monotonic() - began
            load.goes_on()
            load.no_wrong_byte()
            moved = [group["pg"] for group in groups(cluster, pool) if group["is_misplaced"]]
            note(f"{took:.1f} s; NBD writes stalled {load.blocks.first_silence(began):.2f} s, PUTs {load.put_stall(began):.2f} s")
            expect(not moved, f"these are to move: {moved}")
    with test.step("fewer groups, or a number that is none: refused with a reason"):
        for value, words in (("16", "do not merge"), ("1000", "power of two"), ("many", "many")):
            done = cluster.cli("pool", "set", "images", "pg_num", value, ok=None)
            expect(done.returncode == 1 and words in done.stderr, done.stderr)
    with test.step("an OSD is killed while all groups split") as note:
        count = len(groups(cluster, "objects")) * 4
        began = time.monotonic()
        name = sorted(name for name in cluster.children() if name.startswith("osd"))[1]
        pid = cluster.children()[name]
        setting = test.start(test.atoll, "pool", "set", "objects", "pg_num", str(count), "--data", cluster.data)
        time.sleep(0.1)
        cluster.kill(name)
        cluster.restarted(name, pid)
        setting.communicate(timeout=60)
        expect(setting.returncode == 0, "'atoll pool set' failed")
        wait_for("all groups serve", lambda: all_serve(cluster, "objects", count), 60)
        load.goes_on()
        note(f"{time.monotonic() - began:.1f} s; NBD writes stalled {load.blocks.first_silence(began):.2f} s, PUTs {load.put_stall(began):.2f} s")
    with test.step("the load ends without an error") as note:
        expect(load.objects.stop(120) & load.blocks.stop(120), "a thread hangs")
        errors = load.blocks.error_texts + load.objects.errors
        expect(not errors, "\n".join(errors[:5]))
        load.no_wrong_byte()
        note(f"{load.blocks.acked} block writes, {load.blocks.reads} reads, {len(load.objects.ack_times)} PUTs acked")
    verify(test, cluster, load, "afterwards")
    with test.step("a deep scrub finds nothing"):
        cluster.cli("pg", "scrub", "all", "--deep", "--wait", timeout=120)
    with test.step("every store checks, and after a restart all is there"):
        cluster.down()
        for number in range(3):
            test.run(test.atoll, "store", "check", "--device", cluster.data / f"osd-{number}" / "device", timeout=120)
        cluster.up()
        with cluster.nbd("idle") as connection:
            expect(connection.read(0, 32 * MIB) == b"\x5a" * (32 * MIB), "other bytes")
        expect(len(groups(cluster, "images")) == before * 8, "it has forgotten its groups")
    verify(test, cluster, load, "after a restart")
    removed_pool(test, cluster)
    cluster.down()


def removed_pool(test, cluster):
    with test.step("a pool is removed while an OSD is away: what that has of it goes when it is back") as note:
        before = used_bytes(cluster)
        cluster.cli("pool", "create", "short", "--pg-num", "8", "--failure-domain", "osd")
        cluster.cli("image", "create", "gone", "--size", "256M", "--pool", "short")
        with cluster.nbd("gone") as connection:
            for offset in range(0, 256 * MIB, 8 * MIB):
                connection.write(offset, b"\xa5" * (8 * MIB))
        wait_for("it is in use", lambda: min(used_bytes(cluster)) > max(before) + 200 * MIB, 30)
        supervisor, pid = cluster.process_ids()["supervisor"], cluster.children()["osd.1"]
        os.kill(supervisor, signal.SIGSTOP)
        try:
            cluster.kill("osd.1")
            cluster.cli("image", "rm", "gone", timeout=60)
            cluster.cli("pool", "rm", "short", "--yes-destroy", "short")
        finally:
            os.kill(supervisor, signal.SIGCONT)
        cluster.restarted("osd.1", pid)
        wait_for("it is free again", lambda: max(used_bytes(cluster)) < max(before) + 64 * MIB, 60)
        note(f"{max(before) / MIB:.0f} MiB before, {max(used_bytes(cluster)) / MIB:.0f} MiB now")


if __name__ == "__main__":
    main(scenario)
