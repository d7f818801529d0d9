"""Single processes killed with -9, or stopped for a while, under load: the supervisor restarts them,
writes go on, no acked byte is lost and no wrong byte is read. Notes how long I/O stalled.
"""

import json
import time

import pytest
from lib.load import BlockAndObjectLoad
from lib.net import stopped
from lib.tiers import nightly_but
from lib.waiting import under_load, wait_for

OSDS = ["osd.0", "osd.1", "osd.2"]
STALL_SECONDS_MAX = 30
STOPPED_SECONDS = 5


@pytest.fixture(scope="module")
def cluster(scenario):
    cluster = scenario.cluster(osd_size="8G")
    cluster.up()
    cluster.create_image("load", "64M")
    cluster.create_image("bench", "256M")
    return cluster


@pytest.fixture(scope="module")
def load(cluster):
    """A load on NBD and S3."""
    load = BlockAndObjectLoad(cluster)
    load.goes_on(1000, 20)
    yield load
    load.finish()


@pytest.fixture(scope="module")
def ended(load):
    """The load, ended."""
    load.finish()
    return load


@pytest.fixture(scope="module")
def restarted(cluster, ended):
    """The load, ended, and the cluster stopped and started."""
    cluster.down()
    cluster.up()
    return ended


def kill_and_go_on(cluster, load, name, **progress):
    """Kills a process that is restarted, and waits until writes go on; returns when it was killed."""
    killed = time.monotonic()
    cluster.restarted(name, cluster.kill(name))
    load.goes_on(**progress)
    load.no_wrong_byte()
    return killed


def test_three_osds_run(cluster):
    """Three OSDs run."""
    assert sorted(name for name in cluster.children() if name.startswith("osd")) == OSDS, f"{cluster.children()}"


@pytest.mark.parametrize("name", [*OSDS[:2], *(pytest.param(name, marks=pytest.mark.nightly) for name in OSDS)])
def test_an_osd_killed_is_restarted_and_writes_go_on(cluster, load, name, note):
    """kill -9 of an OSD: restarted, writes go on, and no client sees an error."""
    killed = kill_and_go_on(cluster, load, name)
    note(load.stalls(killed))
    assert load.blocks.first_silence(killed) < STALL_SECONDS_MAX, load.stalls(killed)


def test_no_client_saw_an_error(load, note):
    """No client saw an error: an OSD's restart is a stall and nothing else."""
    load.no_error()
    note(load.counts())


@pytest.mark.parametrize("name", nightly_but(["osd.1"], OSDS))
def test_writes_go_on_without_an_osd_that_nobody_restarts(cluster, load, name, note):
    """kill -9 of an OSD, which nobody restarts: writes go on without it."""
    # What was killed before is a member again: this is about one failure at a time.
    wait_for("all PGs are whole", lambda: all(pg["members"] == pg["target"] for pg in cluster.json("pg", "ls")), 60)
    with stopped(cluster.process_ids()["supervisor"]):
        killed = time.monotonic()
        pid = cluster.kill(name)
        load.goes_on(500, 20)
        note(load.stalls(killed))
        assert load.blocks.first_silence(killed) < STALL_SECONDS_MAX, load.stalls(killed)
    cluster.restarted(name, pid)
    load.no_wrong_byte()


@pytest.mark.nightly
def test_two_osds_killed_at_once(cluster, load, note):
    """Two OSDs killed at once: writes go on when they are back."""
    killed = time.monotonic()
    pids = {name: cluster.kill(name) for name in OSDS[:2]}
    for name, pid in pids.items():
        cluster.restarted(name, pid)
    load.goes_on()
    load.no_wrong_byte()
    note(load.stalls(killed))


@pytest.mark.nightly
def test_an_osd_that_is_killed_again_as_soon_as_it_is_back(cluster, load, note):
    """An OSD that is killed again as soon as it is back, three times."""
    killed = time.monotonic()
    for _ in range(3):
        cluster.restarted(OSDS[1], cluster.kill(OSDS[1]))
    load.goes_on()
    load.no_wrong_byte()
    note(f"{time.monotonic() - killed:.1f} s in all")


def test_an_osd_that_is_stopped_for_a_while_and_goes_on(cluster, load, note):
    """An OSD that is stopped for 5 s (SIGSTOP) and goes on."""
    began, pid = time.monotonic(), cluster.children()[OSDS[2]]
    with stopped(pid):
        under_load(STOPPED_SECONDS)
    load.goes_on()
    load.no_wrong_byte()
    same = "the same process" if cluster.children()[OSDS[2]] == pid else "was restarted"
    note(f"{load.stalls(began)}; {same}")


def test_io_goes_on_when_cluster_state_is_killed(cluster, load, note):
    """Cluster state killed with -9: I/O goes on, it is restarted."""
    killed = kill_and_go_on(cluster, load, "cluster-state")
    cluster.json("status")
    note(load.stalls(killed))


@pytest.mark.parametrize("name", ["nbd", "gateway"])
def test_clients_of_a_server_that_is_killed_reconnect_and_go_on(cluster, load, name, note):
    """The NBD server or the gateway killed with -9: restarted, clients that reconnect go on."""
    before = len(load.blocks.error_texts), len(load.objects.errors)
    killed = kill_and_go_on(cluster, load, name, seconds=90)
    cut_off = len(load.blocks.error_texts) - before[0], len(load.objects.errors) - before[1]
    note(f"{load.stalls(killed)}; {cut_off[0]} + {cut_off[1]} requests cut off")


@pytest.mark.nightly
def test_atoll_bench_block_while_an_osd_is_killed(scenario, cluster, load, note):
    """'atoll bench block' while an OSD is killed: no errors."""
    options = ["--image", "bench", "--rw", "randwrite", "--bs", "4k", "--qd", "32", "--seconds", "8", "--json"]
    bench = scenario.start(scenario.atoll, "bench", "block", "--data", cluster.data, *options)
    wait_for("it has the image", lambda: "bench" in json.dumps(cluster.json("image", "info", "bench")["writer"]), 20)
    under_load(1)
    cluster.restarted(OSDS[0], cluster.kill(OSDS[0]))
    output, errors = bench.communicate(timeout=120)
    assert bench.returncode == 0, f"exit code {bench.returncode}: {errors[-1000:]}"
    result = json.loads(output)
    assert result["errors"] == 0, f"{result}"
    note(f"{result['iops']:.0f} IOPS, p99 {result['latency_us']['p99'] / 1000:.0f} ms")


def test_no_request_was_answered_with_an_error(ended, note):
    """The load ends; no request was answered with an error, though some were cut off."""
    ended.no_wrong_byte()
    note(ended.counts())
    assert ended.blocks.errors == 0, f"{ended.blocks.errors} errors: {ended.blocks.error_texts[:5]}"


def test_every_acked_block_write_is_there(cluster, ended, note):
    """Every acked block write is there, no byte is wrong."""
    note(f"{ended.check_blocks(cluster)} blocks")


def test_every_acked_object_is_there(cluster, ended, note):
    """Every acked object is there, no byte is wrong."""
    note(f"{ended.check_objects(cluster)} objects")


@pytest.mark.nightly
def test_everything_is_there_after_a_restart(cluster, restarted, note):
    """Every acked write is there after 'atoll down' and 'atoll up', and the cluster says that it is well."""
    note(f"{restarted.check_blocks(cluster)} blocks, {restarted.check_objects(cluster)} objects")
    assert cluster.json("status"), "an empty status"
    cluster.down()
