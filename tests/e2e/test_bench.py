"""`atoll bench` on a real cluster: verified blocks and objects by several clients, open loop, NBD, files, each OSD by
itself; a matrix that is killed and gone on with, what it leaves behind when it is interrupted, and its reports."""

import json
import pathlib
import signal

import pytest
from lib.logs import json_lines
from lib.waiting import wait_for

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


@pytest.fixture(scope="module")
def cluster(scenario):
    cluster = scenario.cluster(osd_size="2G")
    cluster.up()
    for number in range(3):
        cluster.create_image(f"disk{number}", "64M")
    yield cluster
    cluster.down()


@pytest.fixture(scope="module")
def clusters(scenario):
    return scenario.directory / "clusters"


@pytest.fixture(scope="module")
def record(scenario):
    """Where the matrix keeps its results."""
    return scenario.directory / "results" / "small-full.jsonl"


@pytest.fixture(scope="module")
def whole(scenario, record):
    """The same, with all runs done."""
    if len(runs(record)) < RUNS:
        scenario.run(*matrix_command(scenario), timeout=180)
    return record


def runs(record):
    return [run for run in json_lines(record) if run["line"] == "run"]


def test_three_clients_write_and_read(cluster, note):
    """Three clients write and read, and all that they read is what they wrote."""
    report = bench(
        cluster,
        "block",
        "--image",
        "disk0,disk1,disk2",
        "--rw",
        "randrw",
        "--bs",
        "8k",
        "--qd",
        "8",
        "--seconds",
        "2",
        "--working-set",
        "16M",
        "--verify",
    )
    assert report["errors"] == 0 and report["clients"] == 3 and report["verified"] > 100, str(report)
    assert set(report["by_kind"]) == {"read", "write"}, str(report["by_kind"])
    note(f"{report['verified']} reads compared")


@pytest.mark.nightly
def test_a_rate_is_kept(cluster, note):
    """A rate is kept, and one that is too high shows as waiting."""
    slow = bench(
        cluster,
        "block",
        "--image",
        "disk0",
        "--rw",
        "randread",
        "--qd",
        "32",
        "--rate",
        "500",
        "--seconds",
        "2",
        "--working-set",
        "16M",
    )
    assert 450 <= slow["iops"] <= 510, f"{slow['iops']} operations a second instead of 500"
    fast = bench(
        cluster,
        "block",
        "--image",
        "disk0",
        "--rw",
        "randwrite",
        "--qd",
        "1",
        "--rate",
        "100000",
        "--seconds",
        "2",
        "--working-set",
        "16M",
    )
    assert fast["latency_us"]["p50"] > 200_000, f"operations that were due long ago: {fast['latency_us']}"
    note(f"{slow['iops']:.0f} operations a second; overloaded: median {fast['latency_us']['p50'] / 1e3:.0f} ms")


def test_nbd_two_clients_of_one_export(cluster):
    """NBD: two clients of one export, then one that compares."""
    cluster.cli("image", "access", "disk1", "--access", "multi-attach")
    report = bench(
        cluster,
        "block",
        "--nbd",
        cluster.nbd_uri("disk1"),
        "--clients",
        "2",
        "--rw",
        "randwrite",
        "--seconds",
        "1",
        "--working-set",
        "16M",
    )
    assert report["errors"] == 0 and report["clients"] == 2 and report["operations"] > 0, str(report)
    report = bench(
        cluster,
        "block",
        "--nbd",
        cluster.nbd_uri("disk1"),
        "--rw",
        "randrw",
        "--seconds",
        "1",
        "--working-set",
        "16M",
        "--verify",
    )
    assert report["errors"] == 0 and report["verified"] > 0, str(report)


@pytest.mark.nightly
def test_objects_a_mixture_of_all_operations_and_sizes(cluster):
    """Objects: a mixture of all operations and sizes, compared."""
    report = bench(
        cluster,
        "object",
        "--op",
        "mixed",
        "--size",
        "4k:50,64k:40,5m:10",
        "--objects",
        "40",
        "--clients",
        "2",
        "--concurrency",
        "4",
        "--seconds",
        "3",
        "--verify",
    )
    assert report["errors"] == 0 and report["verified"] > 0, str(report)
    assert set(report["by_kind"]) == {"get", "put", "list", "delete"}, str(report["by_kind"])


@pytest.mark.nightly
def test_each_osd_by_itself(cluster):
    """Each OSD by itself."""
    report = bench(cluster, "osds", "--seconds", "0.3", "--rounds", "2")
    assert [one["osd"] for one in report] == [0, 1, 2], str(report)
    assert all(one["write"]["iops"] > 0 and one["read"]["iops"] > 0 for one in report), str(report)


def test_a_file_made_filled(scenario, cluster):
    """A file: made, filled, verified; an image that is not there is an error with a reason."""
    path = scenario.directory / "raw"
    done = scenario.run(
        scenario.atoll,
        "bench",
        "block",
        "--file",
        path,
        "--file-size",
        "64M",
        "--rw",
        "randrw",
        "--seconds",
        "1",
        "--working-set",
        "64M",
        "--verify",
        "--json",
    )
    assert json.loads(done.stdout)["errors"] == 0, done.stdout
    path.unlink()
    done = cluster.cli("bench", "block", "--image", "nothing", "--rw", "randread", ok=(1,))
    assert "nothing" in done.stderr, done.stderr


def matrix_command(scenario):
    path = scenario.directory / "small.toml"
    path.write_text(MATRIX)
    return [
        scenario.atoll,
        "bench",
        "run",
        path,
        "--out",
        scenario.directory / "results",
        "--dir",
        scenario.directory / "clusters",
    ]


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


@pytest.mark.nightly
def test_a_matrix_that_is_told_to_end_stops_its_cluster_and_removes_it(scenario, clusters, record, note):
    """A matrix that is told to end stops its cluster and removes it."""
    process = scenario.start(*matrix_command(scenario))
    wait_for("some runs are done", lambda: len(runs(record)) >= 5, 60)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 130, f"exit code {process.returncode}"
    wait_for("nothing of it runs", lambda: not servers_of(clusters), 20)
    assert not list(clusters.glob("*")), f"left behind: {list(clusters.glob('*'))}"
    before = len(runs(record))
    assert before < RUNS, "it was done before it was told to end"
    note(f"{before} of {RUNS} runs were done")


@pytest.mark.nightly
def test_the_same_command_does_the_rest(scenario, record, clusters, note):
    """The same command does the rest, and only that."""
    before = len(runs(record))
    with open(record, "a") as file:
        file.write('{"line":"run","subject":"pl')
    report = json.loads(scenario.run(*matrix_command(scenario), "--json", timeout=180).stdout)
    assert report["runs"] == RUNS and report["failed"] == 0, str(report)
    cells = [(run["subject"], run["load"], run["round"]) for run in runs(record)]
    assert len(cells) == RUNS and len(set(cells)) == RUNS, "each run is there once"
    assert not servers_of(clusters) and not clusters.exists(), "it leaves nothing behind"
    note(f"{RUNS - before} runs")


@pytest.mark.nightly
def test_runs_of_one_round_follow_each_other(whole):
    """Runs of one round follow each other, in turns."""
    first = runs(whole)[:6]
    assert {run["round"] for run in first[:3]} == {0} and len({run["subject"] for run in first[:3]}) == 3, str(
        [run["subject"] for run in first]
    )


@pytest.mark.nightly
def test_sealing_is_what_the_record_says_it_is(whole):
    """Sealing is what the record says it is."""
    said = {
        run["subject"]: run["measurement"]["protections"] for run in runs(whole) if run["load"].startswith("blocks")
    }
    assert "not sealed" in said["plain"] and "not sealed" not in said["sealed"], str(said)


@pytest.mark.nightly
def test_the_report_is_one_page_that_needs_nothing_from_elsewhere(whole):
    """The report is one page that needs nothing from elsewhere, and says what was measured."""
    html = whole.with_suffix(".html").read_text()
    assert "<script" not in html and 'src="http' not in html and 'href="http' not in html, (
        "it refers to something outside"
    )
    assert "&lt;b&gt;no&lt;/b&gt;" in html and "<b>no</b>" not in html, "text from outside is not escaped"
    markdown = whole.with_suffix(".md").read_text()
    assert "blocks: randread 4 KiB" in markdown and "objects: put 64 KiB" in markdown, markdown[:500]


@pytest.mark.nightly
def test_a_record_compared_with_itself_has_not_changed(scenario, whole):
    """A record compared with itself has not changed."""
    done = json.loads(scenario.run(scenario.atoll, "bench", "compare", whole, whole, "--json").stdout)
    changes = [change for cell in done["cells"] for change in cell["changes"]]
    assert changes and not any(change["is_different"] for change in changes), str(changes)


def test_what_cannot_be_is_refused_before_anything_is_started(scenario):
    """What cannot be is refused before anything is started."""
    done = scenario.run(*matrix_command(scenario), "--profile", "long", ok=(1,))
    assert "full" in done.stderr, done.stderr
    done = scenario.run(scenario.atoll, "bench", "run", "nothing", ok=(1,))
    assert "encryption-block" in done.stderr, done.stderr
