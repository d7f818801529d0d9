#!/usr/bin/env python3
"""Measures what the model of `atoll bench model` reckons with: CPU time, network bytes and drive bytes per operation.

    tools/hosts/calibrate.py [--atoll target/release/atoll] [--dir DIR] [--seconds 5] [--rounds 3] > calibration.toml

It starts clusters of four hosts in network namespaces without limits (driver.py), one with three copies and one with
EC 2+2, puts a load on them, and reads counters in the middle of it: CPU time of OSDs and of gateways, what went
through the hosts' network interfaces, and what OSDs wrote to their devices. Figures are medians of the rounds.
It needs what driver.py needs, and 10 GB of disk for a while. The machine should have nothing else to do.
"""
import argparse, datetime, json, os, pathlib, platform, statistics, subprocess, sys, tempfile, threading, time

import driver

HOSTS = 4
TICK_US = 1_000_000 // os.sysconf("SC_CLK_TCK")
SAMPLE_SECONDS = 0.25
# What a run begins and ends with is left out: filling before reads, and the last requests.
LEFT_OUT_SECONDS = 0.75
BLOCK_LOADS = [("randwrite", "4k", 128), ("randread", "4k", 128), ("write", "4m", 8), ("read", "4m", 8)]
OBJECT_LOADS = [("put", "64k", 32), ("get", "64k", 32), ("put", "4m", 8), ("get", "4m", 8)]
OBJECT_COUNTS = {"64k": 200, "4m": 24}


class Cluster:
    """A cluster of the driver, and its counters."""

    def __init__(self, directory, atoll, more):
        self.directory, self.atoll = directory, atoll
        command = [driver.__file__, "up", "--dir", directory, "--atoll", atoll, "--hosts", HOSTS, "--uncapped", "--osd-size", "6G", *more]
        said = subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True).stdout
        self.record = json.loads(said.splitlines()[-1])
        self.switch = driver.name_of(directory) + "-switch"

    def counters(self):
        """Counters of all hosts together."""
        links = json.loads(subprocess.run(["ip", "-n", self.switch, "-s", "-j", "link"], check=True, capture_output=True).stdout)
        links = [link["stats64"] for link in links if link["ifname"].startswith("h")]
        osds, gateways = self.record["servers"]["osd"], self.record["servers"]["gateway"]
        return {
            "osd_cpu_us": sum(map(cpu_us, osds)), "gateway_cpu_us": sum(map(cpu_us, gateways)),
            # What the switch sends is what hosts receive.
            "host_in_bytes": sum(link["tx"]["bytes"] for link in links), "host_out_bytes": sum(link["rx"]["bytes"] for link in links),
            "drive_write_bytes": sum(map(written_bytes, osds)),
        }

    def bench(self, *arguments):
        """Runs a load; returns how many operations a second there were, and the counters per operation."""
        command = [*self.record["clients"]["wrap"], self.atoll, "bench", *arguments, "--data", self.record["atoll"]["data"], "--json"]
        samples, ended = [], threading.Event()

        def watch():
            while not ended.wait(SAMPLE_SECONDS):
                samples.append((time.monotonic(), self.counters()))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            done = subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True)
        finally:
            end = time.monotonic()
            ended.set()
            watcher.join()
        report = json.loads(done.stdout)
        if report["errors"]:
            sys.exit(f"{report['errors']} errors, such as: {report['first_error']}")
        begin = end - report["seconds"] + LEFT_OUT_SECONDS
        within = [sample for sample in samples if begin <= sample[0] <= end - LEFT_OUT_SECONDS]
        (first_time, first), (last_time, last) = within[0], within[-1]
        operations = report["iops"] * (last_time - first_time)
        return {name: (last[name] - first[name]) / operations for name in first} | {"operations_per_s": report["iops"]}

    def cli(self, *arguments):
        command = [*self.record["clients"]["wrap"], self.atoll, *arguments, "--data", self.record["atoll"]["data"]]
        subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)

    def down(self):
        driver.down(self.directory)


def cpu_us(pid):
    fields = pathlib.Path("/proc", str(pid), "stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * TICK_US


def written_bytes(pid):
    lines = pathlib.Path("/proc", str(pid), "io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


def measure(cluster, redundancy, pool, arguments):
    """Prints one table of the calibration per load."""
    cluster.cli("image", "create", "bench", "--size", "1G", "--pool", pool)
    cluster.bench("block", "--image", "bench", "--rw", "write", "--bs", "4m", "--qd", 8, "--seconds", 4)
    loads = [("block", load) for load in BLOCK_LOADS] + [("object", load) for load in OBJECT_LOADS]
    results = {}
    for round_number in range(arguments.rounds):
        for kind, (operation, size, depth) in loads:
            print(f"{redundancy}, round {round_number + 1}: {operation} {size}", file=sys.stderr, flush=True)
            what = (["block", "--image", "bench", "--rw", operation, "--bs", size, "--qd", depth] if kind == "block" else
                    ["object", "--op", operation, "--size", size, "--concurrency", depth, "--objects", OBJECT_COUNTS[size]])
            results.setdefault((operation, size, depth), []).append(cluster.bench(*what, "--seconds", arguments.seconds))
    today = datetime.date.today().isoformat()
    for (operation, size, depth), runs in results.items():
        figures = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        rate = figures.pop("operations_per_s")
        spread = [run["osd_cpu_us"] + run["gateway_cpu_us"] for run in runs]
        print(f'[[operation]]\noperation = "{operation}"\nsize = "{size}"\nredundancy = "{redundancy}"')
        print(f'cpu_us = {figures["osd_cpu_us"] + figures["gateway_cpu_us"]:.1f}\ngateway_cpu_us = {figures["gateway_cpu_us"]:.1f}')
        for name in ("host_in_bytes", "host_out_bytes", "drive_write_bytes"):
            print(f"{name} = {figures[name]:.0f}")
        print(f'source = "tools/hosts/calibrate.py, {today}, {operation} {size} at depth {depth}, {rate:.0f} op/s, median of {len(runs)} '
              f'({min(spread):.0f} to {max(spread):.0f} us)"\n', flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--atoll", default=str(driver.REPOSITORY / "target" / "release" / "atoll"), help="the binary")
    parser.add_argument("--dir", type=pathlib.Path, help="where clusters are made (a new directory under /var/tmp)")
    parser.add_argument("--seconds", type=int, default=5, help="of each run (5)")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    base = (arguments.dir or pathlib.Path(tempfile.mkdtemp(prefix="atoll-calibrate-", dir="/var/tmp"))).resolve()
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    print(f'name = "Atoll"\nmachine = "{os.cpu_count()} cores of {cpu}, Linux {platform.release()}"\ndate = "{datetime.date.today()}"\nhosts = {HOSTS}\nec_chunk = "64k"\nosd_threads = 1\n')
    for redundancy, pool, more in (("3 copies", "images", []), ("2+2", "data", ["--pool-ec", "2+2"])):
        cluster = Cluster(base / pool, arguments.atoll, more)
        try:
            measure(cluster, redundancy, pool, arguments)
        finally:
            cluster.down()
    base.rmdir()


if __name__ == "__main__":
    main()
