#!/usr/bin/env python3
"""Whether 'atoll bench' measures what others measure: the same load by it and by fio (a file, an NBD export) and by
warp (S3), in turns on the same target, and its CPU accounting against the kernel's cgroups.

    crates/lab/tools/bench_agreement.py --atoll target/release/atoll [--warp PATH] [--seconds 4] [--rounds 5]

Prints Markdown: medians of both, and the median of the ratios within rounds with their spread. ATOLL_E2E_DIR says where
the cluster and the file are made. warp is left out unless its path is given. The comparison with cgroups needs root.
"""
import argparse, json, os, pathlib, re, statistics, subprocess, sys

TESTS = pathlib.Path(__file__).resolve().parents[3] / "tests" / "e2e"
sys.path.insert(0, str(TESTS))
from lib.scenario import Scenario, add_arguments  # noqa: E402
from lib.waiting import Failed  # noqa: E402

LOADS = [("randread", "4k", 1), ("randread", "4k", 32), ("randwrite", "4k", 1), ("randwrite", "4k", 32), ("read", "1m", 8)]


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300, **options)
    if done.returncode:
        raise Failed(f"{' '.join(map(str, command))}: {done.stderr[-800:]}")
    return done.stdout


def figures(iops, p50_us, p99_us):
    return {"op/s": iops, "p50 us": p50_us, "p99 us": p99_us}


def atoll_figures(text):
    report = json.loads(text)
    if report["errors"]:
        raise Failed(report["first_error"])
    latency = report["latency_us"]
    return figures(report["iops"], latency["p50"], latency["p99"]), report


def fio(pattern, size, depth, seconds, *more):
    said = run("fio", "--name=x", f"--rw={pattern}", f"--bs={size}", f"--iodepth={depth}", f"--runtime={seconds}", "--time_based",
               "--randrepeat=0", "--lat_percentiles=1", "--clat_percentiles=0", "--output-format=json", *more)
    job = json.loads(said[said.index("{"):])["jobs"][0]
    direction = job["write" if "write" in pattern else "read"]
    percentile = direction["lat_ns"]["percentile"]
    return figures(direction["total_ios"] / direction["runtime"] * 1e3, percentile["50.000000"] / 1e3, percentile["99.000000"] / 1e3)


def compare(what, rounds, ours, theirs):
    """Both in turns; prints a row for each figure."""
    runs = [(ours(), theirs()) if number % 2 == 0 else (theirs(), ours())[::-1] for number in range(rounds)]
    for name in runs[0][0]:
        mine, others = ([run[side][name] for run in runs] for side in (0, 1))
        ratios = [a / b for a, b in zip(mine, others)]
        print(f"| {what} | {name} | {statistics.median(mine):,.0f} | {statistics.median(others):,.0f} | **{statistics.median(ratios):.2f}** "
              f"({min(ratios):.2f} to {max(ratios):.2f}) |", flush=True)


def on_a_file(test, seconds, rounds):
    path = test.directory / "raw"
    with open(path, "wb") as file:
        for _ in range(256):
            file.write(os.urandom(1 << 20))
        os.fsync(file.fileno())
    for pattern, size, depth in LOADS:
        def ours():
            said = run(test.atoll, "bench", "block", "--file", path, "--rw", pattern, "--bs", size, "--qd", depth, "--seconds", seconds,
                       "--prefill", "nothing", "--json")
            return atoll_figures(said)[0]
        sync = ["--sync=dsync"] if "write" in pattern else []
        compare(f"file, {pattern} {size} depth {depth}, fio io_uring", rounds, ours,
                lambda: fio(pattern, size, depth, seconds, f"--filename={path}", "--direct=1", "--ioengine=io_uring", *sync))
    path.unlink()


def over_nbd(test, cluster, seconds, rounds):
    cluster.create_image("agree", "256M")
    cluster.cli("bench", "block", "--image", "agree", "--rw", "write", "--bs", "1m", "--qd", 8, "--seconds", 1)
    uri = f"nbd+unix:///agree?socket={cluster.nbd_socket}"
    for pattern, size, depth in LOADS:
        def ours():
            said = run(test.atoll, "bench", "block", "--nbd", uri, "--rw", pattern, "--bs", size, "--qd", depth, "--working-set", "256M",
                       "--seconds", seconds, "--prefill", "nothing", "--json")
            return atoll_figures(said)[0]
        compare(f"NBD, {pattern} {size} depth {depth}, fio nbd", rounds, ours,
                lambda: fio(pattern, size, depth, seconds, "--ioengine=nbd", f"--uri={uri}", "--size=256M"))


def with_warp(test, cluster, warp, seconds, rounds):
    keys = cluster.json("credentials")
    host = keys["endpoint"].removeprefix("http://").rstrip("/")
    access = ["--host", host, "--access-key", keys["access_key"], "--secret-key", keys["secret_key"], "--no-color"]
    for operation, size, concurrency, objects in (("put", "64KiB", 8, 0), ("get", "64KiB", 8, 200), ("put", "4MiB", 4, 0), ("get", "4MiB", 4, 32)):
        def ours():
            said = cluster.cli("bench", "object", "--op", operation, "--size", size, "--concurrency", concurrency, "--objects", objects or 200,
                               "--seconds", seconds, "--json", timeout=120).stdout
            return atoll_figures(said)[0]

        def theirs():
            more = ["--objects", objects] if operation == "get" else []
            data = test.directory / "warp"
            run(warp, operation, *access, "--obj.size", size, "--concurrent", concurrency, "--duration", f"{seconds}s", "--bucket", f"warp-{operation}",
                "--noclear", "--benchdata", data, *more, env=dict(os.environ, HOME=str(test.directory)))
            return warp_figures(run(warp, "analyze", "--no-color", "--json", f"{data}.csv.zst"), operation)
        compare(f"S3, {operation} {size} {concurrency} at once, warp", rounds, ours, theirs)


def warp_figures(text, operation):
    """Operations a second and latency from its analysis."""
    report = json.loads(text[text.index("{"):])
    one = report["by_op_type"][operation.upper()]
    throughput = one["throughput"]
    latency = one["single_sized_requests"]
    return figures(throughput["objects"] / (throughput["measure_duration_millis"] / 1e3), latency["dur_median_millis"] * 1e3,
                   latency["dur_99_millis"] * 1e3)


def against_cgroups(test, cluster, seconds):
    """All processes of the cluster in a cgroup: what the kernel counts while a benchmark runs, and what that reports."""
    root = pathlib.Path("/sys/fs/cgroup/cpuacct")
    group = (root if root.exists() else pathlib.Path("/sys/fs/cgroup")) / "atoll-bench-agreement"
    group.mkdir()
    processes = json.loads((cluster.data / "processes.json").read_text())
    pids = [processes["supervisor"], *(child["pid"] for child in processes["children"])]
    used = lambda: int((group / "cpuacct.usage").read_text()) / 1e3 if root.exists() else int(  # noqa: E731
        re.search(r"usage_usec (\d+)", (group / "cpu.stat").read_text())[1])
    try:
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        for pattern, depth in (("randread", 32), ("randwrite", 32)):
            before = used()
            said = cluster.cli("bench", "block", "--image", "agree", "--rw", pattern, "--bs", "4k", "--qd", depth, "--working-set", "256M",
                               "--seconds", seconds, "--json", timeout=120).stdout
            after, report = used(), json.loads(said)
            counted = (after - before) / report["operations"]
            print(f"| CPU, {pattern} 4k depth {depth}, cgroup | us/op | {report['cpu_us_per_op']:.1f} | {counted:.1f} | "
                  f"**{report['cpu_us_per_op'] / counted:.2f}** |", flush=True)
    finally:
        for pid in pids:
            (group.parent / "cgroup.procs").write_text(str(pid))
        group.rmdir()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--warp", type=pathlib.Path, help="path of warp's binary")
    parser.add_argument("--seconds", type=int, default=4, help="of each run")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    test = Scenario("bench-agreement", arguments.atoll, arguments.scale)
    try:
        print("| load, beside | figure | atoll bench | the other | ratio |\n|---|---|---|---|---|", flush=True)
        on_a_file(test, arguments.seconds, arguments.rounds)
        cluster = test.cluster(osd_size="6G")
        cluster.variables = {}
        cluster.up()
        over_nbd(test, cluster, arguments.seconds, arguments.rounds)
        if arguments.warp:
            with_warp(test, cluster, arguments.warp.resolve(), arguments.seconds, arguments.rounds)
        if os.geteuid() == 0:
            against_cgroups(test, cluster, arguments.seconds)
    finally:
        test.clean_up(keep=False)


if __name__ == "__main__":
    main()
