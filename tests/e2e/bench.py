#!/usr/bin/env python3
"""`atoll bench` on a real cluster: verified blocks and objects by several clients, open loop, NBD, files, each OSD by
itself; a matrix that is killed and gone on with, what it leaves behind when it is interrupted, and its reports."""
import json, pathlib, signal

from harness import expect, main, wait_for

MATRIX = """
name = "small"
title = "A small matrix"
about = "Only to see that it works: <b>no</b> result."
[profile.full]
rounds = 3
seconds = 0.3
warm_up_seconds = 0.1
[[cluster]]
name = "checked"
up = ["--osd-size", "2G", "--frame-mode", "crc"]
[[subject]]
name = "plain"
title = "nothing encrypted"
cluster = "checked"
sealed = false
[[subject]]
name = "sealed"
title = "sealed by the client"
cluster = "checked"
[[subject]]
name = "unix"
title = "sealed, over NBD"
cluster = "checked"
way = "nbd-unix"
only = ["blocks"]
[[load]]
group = "blocks"
depth = 8
block = ["randread", "randwrite"]
sizes = ["4k"]
working_set = "16M"
[[load]]
group = "objects"
depth = 4
clients = 2
object = ["get", "put"]
sizes = ["64k"]
objects = 8
"""
# Two loads of blocks on three subjects and two of objects on two, three times.
RUNS = (2 * 3 + 2 * 2) * 3


def bench(cluster, *arguments, ok=(0,)):
    return json.loads(cluster.cli("bench", *arguments, "--json", timeout=120, ok=ok).stdout)


def loads(test, cluster):
    for number in range(3):
        cluster.create_image(f"disk{number}", "64M")
    with test.step("three clients write and read, and all that they read is what they wrote") as note:
        report = bench(cluster, "block", "--image", "disk0,disk1,disk2", "--rw", "randrw", "--bs", "8k", "--qd", "8", "--seconds", "2", "--working-set", "16M", "--verify")
        expect(report["errors"] == 0 and report["clients"] == 3 and report["verified"] > 100, str(report))
        expect(set(report["by_kind"]) == {"read", "write"}, str(report["by_kind"]))
        note(f"{report['verified']} reads compared")
    with test.step("a rate is kept, and one that is too high shows as waiting") as note:
        slow = bench(cluster, "block", "--image", "disk0", "--rw", "randread", "--qd", "32", "--rate", "500", "--seconds", "2", "--working-set", "16M")
        expect(450 <= slow["iops"] <= 510, f"{slow['iops']} operations a second instead of 500")
        fast = bench(cluster, "block", "--image", "disk0", "--rw", "randwrite", "--qd", "1", "--rate", "100000", "--seconds", "2", "--working-set", "16M")
        expect(fast["latency_us"]["p50"] > 200_000, f"operations that were due long ago: {fast['latency_us']}")
        note(f"{slow['iops']:.0f} operations a second; overloaded: median {fast['latency_us']['p50'] / 1e3:.0f} ms")
    with test.step("NBD: two clients of one export, then one that compares"):
        report = bench(cluster, "block", "--nbd", cluster.nbd_uri("disk1"), "--clients", "2", "--rw", "randwrite", "--seconds", "1", "--working-set", "16M")
        expect(report["errors"] == 0 and report["clients"] == 2 and report["operations"] > 0, str(report))
        report = bench(cluster, "block", "--nbd", cluster.nbd_uri("disk1"), "--rw", "randrw", "--seconds", "1", "--working-set", "16M", "--verify")
        expect(report["errors"] == 0 and report["verified"] > 0, str(report))
    with test.step("objects: a mixture of all operations and sizes, compared"):
        report = bench(cluster, "object", "--op", "mixed", "--size", "4k:50,64k:40,5m:10", "--objects", "40", "--clients", "2", "--concurrency", "4", "--seconds", "3", "--verify")
        expect(report["errors"] == 0 and report["verified"] > 0, str(report))
        expect(set(report["by_kind"]) == {"get", "put", "list", "delete"}, str(report["by_kind"]))
    with test.step("each OSD by itself"):
        report = bench(cluster, "osds", "--seconds", "0.3", "--rounds", "2")
        expect([one["osd"] for one in report] == [0, 1, 2], str(report))
        expect(all(one["write"]["iops"] > 0 and one["read"]["iops"] > 0 for one in report), str(report))
    with test.step("a file: made, filled, verified; an image that is not there is an error with a reason"):
        path = test.directory / "raw"
        done = test.run(test.atoll, "bench", "block", "--file", path, "--file-size", "64M", "--rw", "randrw", "--seconds", "1", "--working-set", "64M", "--verify", "--json")
        expect(json.loads(done.stdout)["errors"] == 0, done.stdout)
        path.unlink()
        done = cluster.cli("bench", "block", "--image", "nothing", "--rw", "randread", ok=(1,))
        expect("nothing" in done.stderr, done.stderr)


def matrix_command(test):
    path = test.directory / "small.toml"
    path.write_text(MATRIX)
    return [test.atoll, "bench", "run", path, "--out", test.directory / "results", "--dir", test.directory / "clusters"]


def servers_of(directory):
    """Processes that work below a directory."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if str(directory).encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                pass
    return found


def matrix(test):
    record = test.directory / "results" / "small-full.jsonl"
    clusters = test.directory / "clusters"
    lines = lambda: [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []  # noqa: E731
    runs = lambda: [line for line in lines() if line["line"] == "run"]  # noqa: E731
    with test.step("a matrix that is told to end stops its cluster and removes it") as note:
        process = test.start(*matrix_command(test))
        wait_for("some runs are done", lambda: len(runs()) >= 5, 60)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        expect(process.returncode == 130, f"exit code {process.returncode}")
        wait_for("nothing of it runs", lambda: not servers_of(clusters), 20)
        expect(not list(clusters.glob("*")), f"left behind: {list(clusters.glob('*'))}")
        before = len(runs())
        note(f"{before} of {RUNS} runs were done")
    with test.step("the same command does the rest, and only that") as note:
        with open(record, "a") as file:
            file.write('{"line":"run","subject":"pl')
        report = json.loads(test.run(*matrix_command(test), "--json", timeout=180).stdout)
        expect(report["runs"] == RUNS and report["failed"] == 0, str(report))
        cells = [(run["subject"], run["load"], run["round"]) for run in runs()]
        expect(len(cells) == RUNS and len(set(cells)) == RUNS, "each run is there once")
        expect(not servers_of(clusters) and not clusters.exists(), "it leaves nothing behind")
        note(f"{RUNS - before} runs")
    with test.step("runs of one round follow each other, in turns"):
        first = runs()[:6]
        expect({run["round"] for run in first[:3]} == {0} and len({run["subject"] for run in first[:3]}) == 3, str([run["subject"] for run in first]))
    with test.step("sealing is what the record says it is"):
        said = {run["subject"]: run["measurement"]["protections"] for run in runs() if run["load"].startswith("blocks")}
        expect("not sealed" in said["plain"] and "not sealed" not in said["sealed"], str(said))
    with test.step("the report is one page that needs nothing from elsewhere, and says what was measured"):
        html = record.with_suffix(".html").read_text()
        expect("<script" not in html and 'src="http' not in html and 'href="http' not in html, "it refers to something outside")
        expect("&lt;b&gt;no&lt;/b&gt;" in html and "<b>no</b>" not in html, "text from outside is not escaped")
        markdown = record.with_suffix(".md").read_text()
        expect("blocks: randread 4 KiB" in markdown and "objects: put 64 KiB" in markdown, markdown[:500])
    with test.step("a record compared with itself has not changed"):
        done = json.loads(test.run(test.atoll, "bench", "compare", record, record, "--json").stdout)
        changes = [change for cell in done["cells"] for change in cell["changes"]]
        expect(changes and not any(change["is_different"] for change in changes), str(changes))
    with test.step("what cannot be is refused before anything is started"):
        done = test.run(*matrix_command(test), "--profile", "long", ok=(1,))
        expect("full" in done.stderr, done.stderr)
        done = test.run(test.atoll, "bench", "run", "nothing", ok=(1,))
        expect("encryption-block" in done.stderr, done.stderr)


def scenario(test):
    cluster = test.cluster(osd_size="2G")
    cluster.up()
    loads(test, cluster)
    cluster.down()
    matrix(test)


if __name__ == "__main__":
    main(scenario)
