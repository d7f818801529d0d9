#!/usr/bin/env python3
"""Measures what TLS costs on NBD: fio, plain and with TLS in turns, against the same image.

    tools/nbd_tls_cost.py --atoll target/release/atoll [--seconds 4] [--rounds 3]

Three OSDs. For each kind of load: operations per second, and CPU of the NBD server's process per operation.
ATOLL_E2E_DIR says where the cluster's directory is made; it is removed at the end.
"""
import argparse, os, pathlib, statistics, sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests" / "e2e"))
from lib.scenario import Scenario, add_arguments  # noqa: E402
from lib.fio import fio, fio_that_trusts  # noqa: E402
from lib.authority import Authority  # noqa: E402

LOADS = [("4k read QD1", dict(rw="randread", bs="4k", iodepth=1)), ("4k read QD32", dict(rw="randread", bs="4k", iodepth=32)),
         ("4k write QD1", dict(rw="randwrite", bs="4k", iodepth=1)), ("4k write QD32", dict(rw="randwrite", bs="4k", iodepth=32)),
         ("4M read QD4", dict(rw="read", bs="4M", iodepth=4)), ("4M write QD4", dict(rw="write", bs="4M", iodepth=4))]
IMAGE_BYTES = 256 << 20


def cpu_seconds(pid):
    fields = pathlib.Path("/proc", str(pid), "stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(test, cluster, program, place, job, seconds):
    pid = cluster.children()["nbd"]
    before = cpu_seconds(pid)
    result = fio(test, place, "cost", program=program, size=IMAGE_BYTES, time_based=None, runtime=seconds, **job)
    side = result["read" if "read" in job["rw"] else "write"]
    return side["iops"], (cpu_seconds(pid) - before) * 1e6 / side["total_ios"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--seconds", type=int, default=4, help="of each fio run")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    test = Scenario("nbd-tls-cost", arguments.atoll, arguments.scale)
    try:
        cluster = test.cluster(osd_size="2G")
        authority = Authority(test, "own")
        (cluster.data / "tls").mkdir(parents=True)
        authority.sign(cluster.data / "tls" / "server.crt", cluster.data / "tls" / "server.key", "serverAuth")
        cluster.up()
        cluster.create_image("cost", str(IMAGE_BYTES))
        program = fio_that_trusts(test, authority.client_directory("trusting"))
        places = {"plain": cluster.nbd_uri("cost", tcp=True), "TLS": f"nbds://127.0.0.1:{cluster.nbd_port}/cost"}
        fio(test, places["plain"], "fill", rw="write", bs="4M", iodepth=4, size=IMAGE_BYTES)
        print("| load | op/s plain | op/s TLS | NBD server, CPU us/op plain | TLS |\n|---|---|---|---|---|")
        for name, job in LOADS:
            found = {kind: [] for kind in places}
            for _ in range(arguments.rounds):
                for kind, place in places.items():
                    found[kind].append(measure(test, cluster, program, place, job, arguments.seconds))
            median = {kind: [statistics.median(column) for column in zip(*runs)] for kind, runs in found.items()}
            (plain_ops, plain_us), (tls_ops, tls_us) = median["plain"], median["TLS"]
            print(f"| {name} | {plain_ops:,.0f} | {tls_ops:,.0f} | {plain_us:,.1f} | {tls_us:,.1f} |", flush=True)
    finally:
        test.clean_up(keep=False)


if __name__ == "__main__":
    main()
