#!/usr/bin/env python3
"""Instructions of user space that a whole OSD takes for a 4 KiB write or read of a client, by function, as callgrind
counts them in a real cluster of three OSDs, one of which runs under valgrind.

    crates/lab/tools/osd_instructions.py                    # its share of a write: primary of a third, else member
    crates/lab/tools/osd_instructions.py --role primary     # as the primary of all, or as a member of all
    crates/lab/tools/osd_instructions.py --rw randread --top 60
    crates/lab/tools/osd_instructions.py --calls encode     # who calls functions of this name, and what they call

valgrind has no AVX-512 and knows no AES-GCM of the newest kind, so that CRCs, ciphers and long copies count more
than they cost. The program is target/release/atoll unless --binary says otherwise.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from instructions import ROOT, Profile, print_calls, print_top

# Stands in for the program once the cluster runs: an OSD that is started anew is counted.
WRAPPER = """#!/bin/sh
case "$*" in
*"--id 0"*) exec valgrind --tool=callgrind --instr-atstart=no --compress-strings=yes \\
    --callgrind-out-file={output} {real} "$@" ;;
*) exec {real} "$@" ;;
esac
"""
SECONDS_TO_START = 180


def is_clean(status):
    states = status["placement_groups_by_state"]
    return status["osds_up"] == 3 and states.get("active", 0) == status["placement_groups"] > 0


class Cluster:
    """Three OSDs below a directory of their own."""

    def __init__(self, binary, directory):
        self.directory, self.real = directory, directory / "atoll.real"
        self.program, self.output = directory / "atoll", directory / "callgrind.out"
        shutil.copy2(binary, self.real)
        shutil.copy2(binary, self.program)
        self.data = directory / "data"
        listen = ["--s3-listen", "127.0.0.1:19300", "--s3-tls-listen", "off", "--admin-listen", "off"]
        # As over a network.
        frames = ["--frame-mode", "secure", "--transport", "tcp"]
        command = [self.program, "up", "--data", self.data, "--osd-size", "4G", *frames, *listen]
        self.log = open(directory / "log", "w")
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)

    def run(self, *words):
        command = [self.real, *words, "--data", self.data]
        ended = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if ended.returncode:
            raise SystemExit(f"'{' '.join(map(str, command))}' failed: {ended.stderr.strip()}")
        return ended.stdout

    def wait_until_clean(self):
        deadline = time.monotonic() + SECONDS_TO_START
        command = [self.real, "status", "--json", "--data", self.data]
        while time.monotonic() < deadline:
            told = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
            if told and is_clean(json.loads(told)):
                return
            time.sleep(0.5)
        raise SystemExit(f"the cluster's PGs are not clean; its log: {(self.directory / 'log').read_text()[-2000:]}")

    def osd_pid(self):
        processes = json.loads((self.data / "processes.json").read_text())
        return next(child["pid"] for child in processes["children"] if child["name"] == "osd.0")

    def count_osd(self):
        """Starts osd.0 anew, under callgrind."""
        self.program.unlink()
        self.program.write_text(WRAPPER.format(output=self.output, real=self.real))
        self.program.chmod(0o755)
        before = self.osd_pid()
        os.kill(before, signal.SIGKILL)
        deadline = time.monotonic() + SECONDS_TO_START
        while self.osd_pid() in (before, None) and time.monotonic() < deadline:
            time.sleep(0.2)

    def pool_with(self, role):
        """A pool of one PG, of which osd.0 is the primary or not."""
        for number in range(20):
            name = f"pool{number}"
            self.run("pool", "create", name, "--pg-num", "1")
            pgs = json.loads(self.run("pg", "ls", "--json", "--pool", name))
            if (pgs[0]["primary"] == 0) == (role == "primary"):
                return name
        raise SystemExit("osd.0 has no such role in any of 20 pools")

    def end(self):
        self.process.terminate()
        self.process.wait()
        self.log.close()


def control(pid, *words):
    subprocess.run(["callgrind_control", *words, str(pid)], check=True, capture_output=True)


def bench(cluster, arguments, seconds, prefill):
    words = ["bench", "block", "--image", "disk", "--rw", arguments.rw, "--bs", arguments.bs, "--qd", str(arguments.qd)]
    words += ["--seconds", str(seconds), "--working-set", "256M", "--prefill", prefill, "--json"]
    return json.loads(cluster.run(*words))


def measure(cluster, arguments):
    cluster.wait_until_clean()
    # Before there are pools with a role for it: who leads a PG loses that when it ends.
    cluster.count_osd()
    cluster.wait_until_clean()
    pool = ["--pool", cluster.pool_with(arguments.role)] if arguments.role else []
    cluster.run("image", "create", "disk", "--size", "256M", *pool)
    cluster.run(
        "bench",
        "block",
        "--image",
        "disk",
        "--rw",
        "write",
        "--bs",
        "64k",
        "--seconds",
        "600",
        "--bytes-max",
        "256M",
        "--working-set",
        "256M",
        "--prefill",
        "nothing",
        "--json",
    )
    pid = cluster.osd_pid()
    bench(cluster, arguments, 3, "nothing")
    control(pid, "-i", "on")
    told = bench(cluster, arguments, arguments.seconds, "nothing")
    control(pid, "-d")
    control(pid, "-i", "off")
    dumps = sorted(cluster.directory.glob("callgrind.out*"), key=lambda path: path.stat().st_size)
    if arguments.keep:
        shutil.copy2(dumps[-1], arguments.keep)
    return Profile(dumps[-1]), told


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/atoll")
    parser.add_argument("--role", choices=["primary", "member"], help="of osd.0 in all PGs [each in its share]")
    parser.add_argument("--rw", default="randwrite")
    parser.add_argument("--bs", default="4k")
    parser.add_argument("--qd", type=int, default=32)
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--top", type=int, default=25, help="functions to show [25]")
    parser.add_argument("--calls", help="show callers and callees of functions whose name contains this")
    parser.add_argument("--keep", type=Path, help="copy callgrind's file to here, for callgrind_annotate")
    arguments = parser.parse_args()
    if not shutil.which("valgrind"):
        sys.exit("valgrind, which counts the instructions, is not installed; 'apt install valgrind' does it")
    with tempfile.TemporaryDirectory(prefix="osd-instructions-") as directory:
        cluster = Cluster(arguments.binary, Path(directory))
        try:
            profile, told = measure(cluster, arguments)
        finally:
            cluster.end()
        operations = told["operations"]
        print(
            f"{arguments.rw} {arguments.bs}, depth {arguments.qd}, osd.0 is {arguments.role or 'in its share'}: "
            f"{operations} operations"
        )
        if arguments.calls:
            print_calls(profile, arguments.calls, operations)
        else:
            print_top(profile, arguments.top, operations)


if __name__ == "__main__":
    main()
