#!/usr/bin/env python3
"""Does an operation cost the same as the work grows? Starts a throw-away cluster and measures CPU time per
operation of all servers, rates and latencies over growing numbers of images, PGs and
objects, depths and sizes, on an idle and a busy machine, over an image that is overwritten more and more,
and over a steady run. Prints Markdown."""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time

KINDS = ("images", "pgs", "depths", "saturated", "sizes", "objects", "overwrites", "steady")
# From when a bucket is filled until it is measured.
FILLED_PAUSE_S = 10


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--atoll", default="target/release/atoll", help="the binary")
    parser.add_argument("--dir", default="/var/tmp", help="where the cluster is made")
    parser.add_argument("--seconds", type=float, default=3, help="length of each run (default %(default)s)")
    parser.add_argument("--steady-seconds", type=float, default=120, help="length of the steady run")
    parser.add_argument("--objects-max", type=int, default=100_000, help="objects in a bucket, at most (a million needs 3 GiB per OSD)")
    parser.add_argument("--object-size", default="1k", help="of the objects of a growing bucket (default %(default)s)")
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

    def block(self, images, depth, working_set, seconds=None, operation="randwrite"):
        output = self.atoll(
            "bench", "block", "--json", "--image", images, "--rw", operation, "--bs", "4k", "--qd", str(depth),
            "--working-set", working_set, "--seconds", str(seconds or self.arguments.seconds))
        return json.loads(output)

    def object(self, operation, objects, size, bucket="growing", concurrency=16, seconds=None):
        output = self.atoll(
            "bench", "object", "--json", "--op", operation, "--size", size, "--concurrency", str(concurrency),
            "--prefill", "missing", "--objects", str(objects), "--bucket", bucket,
            "--seconds", str(seconds or self.arguments.seconds))
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

    def pgs(self):
        title("4 KiB random writes at depth 32, in a pool of so many PGs", "PGs")
        for count in (16, 256, 1024, 4096):
            pool = f"pgs{count}"
            self.atoll("pool", "create", pool, "--pg-num", str(count), "--failure-domain", "osd")
            self.image(pool, "1G", "--pool", pool)
            row(count, self.block(pool, 32, "256M"))

    def depths(self):
        title("4 KiB over eight images, with so many in flight", "in flight")
        names = [f"deep{number}" for number in range(8)]
        for name in names:
            self.image(name, "128M")
        for operation in ("randwrite", "randread"):
            for depth in (1, 8, 32, 128, 512, 2048, 8192):
                images = names[:min(depth, len(names))]
                measured = self.block(",".join(images), depth // len(images), "64M", operation=operation)
                row(f"{depth:,}, {operation}", measured)
            self.memory()

    def saturated(self):
        title("4 KiB on an idle machine, and beside a busy loop per processor", "depth")
        self.image("busy", "1G")
        busy_loop = [sys.executable, "-c", "while True: pass"]
        for depth in (1, 32):
            for operation in ("randwrite", "randread"):
                row(f"{depth}, {operation}, idle", self.block("busy", depth, "256M", operation=operation))
                loops = [subprocess.Popen(busy_loop) for _ in range(os.cpu_count())]
                try:
                    row(f"{depth}, {operation}, busy", self.block("busy", depth, "256M", operation=operation))
                finally:
                    for loop in loops:
                        loop.kill()
                        loop.wait()

    def sizes(self):
        title("Objects of so many bytes", "bytes, at once")
        # The largest take seconds each.
        shapes = (("1k", 1000, 16, None), ("64k", 1000, 16, None), ("4m", 64, 16, None), ("256m", 4, 4, 20))
        for size, objects, concurrency, seconds in shapes:
            for operation in ("put", "get"):
                measured = self.object(operation, objects, size, f"of-{size}", concurrency, seconds)
                row(f"{size}, {concurrency}, {operation.upper()}", measured)
            self.memory()

    def objects(self):
        counts = [1000]
        while counts[-1] < self.arguments.objects_max:
            counts.append(min(counts[-1] * 10, self.arguments.objects_max))
        size = self.arguments.object_size
        title(f"Objects of {size}, 16 at once, with so many in the bucket", "objects")
        for count in counts:
            # This fills the bucket; checkpoints go on for a while after it.
            self.object("get", count, size)
            time.sleep(FILLED_PAUSE_S)
            for operation in ("get", "put", "list"):
                row(f"{count:,}, {operation.upper()}", self.object(operation, count, size))
            self.memory()

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
        title("One long run: 4 KiB random writes and reads at depth 32, then all kinds of requests for objects", "from second")
        self.image("steady", "1G")
        began = time.monotonic()
        while (second := time.monotonic() - began) < self.arguments.steady_seconds:
            for operation in ("randwrite", "randread"):
                row(f"{second:.0f}, {operation}", self.block("steady", 32, "1G", 20, operation))
            row(f"{second:.0f}, objects", self.object("mixed", 2000, "1k:50,64k:40,1m:10", "steady", 16, 20))
            self.memory()

    def memory(self):
        used_mib = json.loads(self.atoll("status", "--json"))["used_bytes"] >> 20
        resident = ", ".join(map(str, self.resident_mib()))
        print(f"| | resident memory of the OSDs: {resident} MiB; in use on their devices: {used_mib:,} MiB | | | |", flush=True)

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
    rate = measured["iops"]
    figures = (f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}", f"{measured['cpu_us_per_op']:.1f}", latency["p50"], latency["p999"] or "-")
    size = size if isinstance(size, str) else f"{size:,}"
    print(f"| {size} | " + " | ".join(map(str, figures)) + " |", flush=True)


if __name__ == "__main__":
    main()
