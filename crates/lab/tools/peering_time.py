#!/usr/bin/env python3
"""Measures how long PGs do not serve after OSDs have started again.

    tools/peering_time.py --atoll target/release/atoll [--pgs 1024] [--rounds 3]

Three OSDs and a pool of so many PGs, without data. Counted is, from the logs, the time from when the
last of the OSDs that were started listens until the last OSD says that all PGs that it leads
serve. ATOLL_E2E_DIR says where the cluster's directory is made; it is removed at the end.
"""
import argparse, datetime, pathlib, re, statistics, sys, time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests" / "e2e"))
from lib.scenario import Scenario, add_arguments  # noqa: E402
from lib.waiting import wait_for  # noqa: E402

QUIET_SECONDS = 3


def events(cluster, since):
    """When OSDs began to listen, and when all of their PGs served, and how many, since then; by OSD."""
    listened, served = {}, {}
    for path in (cluster.data / "log").glob("osd.*.log"):
        for line in path.read_text(errors="replace").splitlines():
            found = re.match(r"(\S+)Z .*?(?:(osd\.\d+) serves \S+ on|all (\d+) PGs that (osd\.\d+) leads serve)", re.sub(r"\x1b\[[0-9;]*m", "", line))
            if found:
                at = datetime.datetime.fromisoformat(found[1] + "+00:00").timestamp()
                if at >= since and found[2]:
                    listened[found[2]] = at
                elif at >= since:
                    served[found[4]] = at, int(found[3])
    return listened, served


def settled(cluster, pgs):
    listed = cluster.json("pg", "ls")
    return len(listed) >= pgs and all(pg["state"] == "active" and not pg["is_degraded"] and not pg["is_misplaced"] for pg in listed)


def measure(cluster, pgs, name, restart):
    since = time.time()
    restart()
    wait_for("all PGs are where they should be", lambda: settled(cluster, pgs), 120, 1)
    time.sleep(QUIET_SECONDS)
    listened, served = events(cluster, since)
    serving = sum(number for _, number in served.values())
    assert serving >= pgs, f"only {serving} PGs serve: {served}"
    begun = max(listened.values())
    seconds = max(at for at, _ in served.values()) - begun
    by_osd = ", ".join(f"{osd} {number} PGs after {at - begun:.2f}" for osd, (at, number) in sorted(served.items()))
    print(f"{name}: {seconds:.2f} s  ({by_osd})", flush=True)
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--pgs", type=int, default=1024, help="PGs of the pool, a power of two")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    test = Scenario("peering-time", arguments.atoll, arguments.scale)
    try:
        cluster = test.cluster(osd_size="2G")
        cluster.up()
        cluster.cli("pool", "create", "many", "--pg-num", str(arguments.pgs), "--failure-domain", "osd")
        wait_for("the PGs are made", lambda: settled(cluster, arguments.pgs), 120, 1)
        osds = sorted(name for name in cluster.children() if name.startswith("osd"))

        def kill(names):
            for name, pid in {name: cluster.kill(name) for name in names}.items():
                cluster.restarted(name, pid)

        def stop_and_start():
            cluster.down()
            cluster.up()

        ways = {"atoll down, atoll up": stop_and_start, "kill -9 of all OSDs": lambda: kill(osds), "kill -9 of one OSD": lambda: kill(osds[:1])}
        for name, restart in ways.items():
            seconds = [measure(cluster, arguments.pgs, name, restart) for _ in range(arguments.rounds)]
            print(f"{name}: median {statistics.median(seconds):.2f} s", flush=True)
    finally:
        test.clean_up(keep=False)


if __name__ == "__main__":
    main()
