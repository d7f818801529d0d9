#!/usr/bin/env python3
"""Does an operation cost the same as the work grows? Starts a throw-away cluster and measures CPU time per
operation of all servers, rates and latencies over growing numbers of images, placement groups and
objects, over an image that is overwritten more and more, and over a steady run. Prints Markdown."""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile

KINDS = ("images", "groups", "objects", "overwrites", "steady")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--atoll", default="target/release/atoll", help="the binary")
    parser.add_argument("--dir", default="/var/tmp", help="where the cluster is made")
    parser.add_argument("--seconds", type=float, default=3, help="length of each run (default %(default)s)")
    parser.add_argument("--steady-seconds", type=float, default=120, help="length of the steady run")
    parser.add_argument("--objects-max", type=int, default=100_000, help="objects in a bucket, at most (a million needs 3 GiB per OSD)")
    parser.add_argument("--osd-size", default="7G", help="of each of three OSDs (default %(default)s)")
    parser.add_argument("--only", choices=KINDS, nargs="+", default=KINDS)
    growth = Growth(parser.parse_args())
    try:
        growth.up()
        for kind in growth.arguments.only:
            getattr(growth, kind)()
    finally:
        growth.down()


class Growth:
    def __init__(self, arguments):
        self.arguments = arguments
        self.data = tempfile.mkdtemp(prefix="atoll-growth-", dir=arguments.dir)

    def atoll(self, *words):
        command = [self.arguments.atoll, *words, "--data", self.data]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(command)}: {done.stderr or done.stdout}")
        return done.stdout

    def up(self):
        self.atoll("up", "--detach", "--osd-size", self.arguments.osd_size, "--s3-listen", "127.0.0.1:19080", "--s3-tls-listen", "off")

    def down(self):
        subprocess.run([self.arguments.atoll, "down", "--data", self.data], capture_output=True)
        shutil.rmtree(self.data, ignore_errors=True)

    def block(self, images, depth, working_set, seconds=None):
        output = self.atoll(
            "bench", "block", "--json", "--image", images, "--rw", "randwrite", "--bs", "4k", "--qd", str(depth),
            "--working-set", working_set, "--seconds", str(seconds or self.arguments.seconds))
        return json.loads(output)

    def object(self, operation, objects):
        output = self.atoll(
            "bench", "object", "--json", "--op", operation, "--size", "1k", "--concurrency", "16", "--prefill", "missing",
            "--objects", str(objects), "--bucket", "growing", "--seconds", str(self.arguments.seconds))
        return json.loads(output)

    def image(self, name, size, *more):
        self.atoll("image", "create", name, "--size", size, *more)

    def images(self):
        title("4 KiB random writes, 64 in flight, over so many images", "images")
        for count in (1, 8, 64):
            names = [f"i{count}-{number}" for number in range(count)]
            for name in names:
                self.image(name, f"{1024 // count}M")
            row(count, self.block(",".join(names), 64 // count, f"{512 // count}M"))

    def groups(self):
        title("4 KiB random writes at depth 32, in a pool of so many placement groups", "placement groups")
        for count in (16, 256, 1024, 4096):
            pool = f"groups{count}"
            self.atoll("pool", "create", pool, "--pg-num", str(count), "--failure-domain", "osd")
            self.image(pool, "1G", "--pool", pool)
            row(count, self.block(pool, 32, "256M"))

    def objects(self):
        counts = [1000]
        while counts[-1] < self.arguments.objects_max:
            counts.append(min(counts[-1] * 10, self.arguments.objects_max))
        title("Objects of 1 KiB, 16 at once, with so many in the bucket", "objects")
        for count in counts:
            # Reading comes first, because it fills the bucket.
            for operation in ("get", "put", "list"):
                row(f"{count:,}, {operation.upper()}", self.object(operation, count))
            print(f"| | resident memory of the OSDs: {', '.join(map(str, self.resident_mib()))} MiB | | | |", flush=True)

    def overwrites(self):
        title("4 KiB random writes at depth 32 over an image of 256 MiB that was written in order", "% of it overwritten before")
        self.image("overwritten", "256M")
        self.atoll("bench", "block", "--image", "overwritten", "--rw", "write", "--bs", "4m", "--qd", "4", "--working-set", "256M",
                   "--seconds", str(self.arguments.seconds))
        written_bytes = 0
        while (part := 1 - math.exp(-written_bytes / (256 << 20))) < 0.92:
            measured = self.block("overwritten", 32, "256M")
            row(round(100 * part), measured)
            written_bytes += measured["operations"] * 4096

    def steady(self):
        title("4 KiB random writes at depth 32, one long run", "from second")
        self.image("steady", "1G")
        for begin in range(0, int(self.arguments.steady_seconds), 20):
            row(begin, self.block("steady", 32, "1G", 20))
            print(f"| | resident memory of the OSDs: {', '.join(map(str, self.resident_mib()))} MiB | | | |")

    def resident_mib(self):
        found = []
        for process in filter(str.isdigit, os.listdir("/proc")):
            try:
                command = open(f"/proc/{process}/cmdline").read().split("\0")
                status = open(f"/proc/{process}/status").read()
            except OSError:
                continue
            if command[1:3] == ["osd", "run"] and self.data in command:
                found.append(int(status.split("VmRSS:")[1].split()[0]) >> 10)
        return sorted(found)


def title(text, growing):
    print(f"\n**{text}**\n\n| {growing} | op/s | CPU us/op | p50 us | p99.9 us |\n|---|---|---|---|---|", flush=True)


def row(size, measured):
    latency = measured["latency_us"]
    figures = (f"{measured['iops']:,.0f}", f"{measured['cpu_us_per_op']:.1f}", latency["p50"], latency["p999"])
    size = size if isinstance(size, str) else f"{size:,}"
    print(f"| {size} | " + " | ".join(map(str, figures)) + " |", flush=True)


if __name__ == "__main__":
    main()
