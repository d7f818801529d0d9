"""Administration of a running cluster: OSDs out, in, added, removed and moved, pools made, changed and
removed, flags, settings, PGs, health, and the coordinator. Nothing here waits for data
to move: what is looked at is what shall be."""

import json
import os
import re
import signal
import time

import pytest
from lib.cluster import MIB
from lib.waiting import NotYet, wait_for

OSDS = 5


def by_id(cluster):
    return {osd["id"]: osd for osd in cluster.json("osd", "ls")}


def refused(cluster, *arguments, words, code=1):
    done = cluster.cli(*arguments, ok=None)
    assert done.returncode == code, f"{arguments}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    for word in words:
        assert word in done.stderr, f"{arguments}: '{word}' is not in: {done.stderr}"
    assert "panicked" not in done.stderr, done.stderr
    return done.stderr.strip()[:140]


def health(cluster):
    """Exit code, and problems by their code."""
    done = cluster.cli("health", "--json", ok=(0, 1, 2))
    report = json.loads(done.stdout)
    assert ["ok", "warning", "error"].index(report["status"]) == done.returncode, f"{done.returncode} {report}"
    return done.returncode, {problem["code"]: problem for problem in report["problems"]}


def is_healthy(cluster):
    code, problems = health(cluster)
    if code != 0:
        raise NotYet(f"{problems}")
    return True


@pytest.fixture(scope="module")
def cluster(scenario):
    cluster = scenario.cluster(osds=OSDS, osd_size="1G")
    cluster.up()
    return cluster


@pytest.fixture(scope="module")
def more(cluster):
    """A pool of 16 PGs with 2 copies."""
    cluster.json("pool", "create", "more", "--pg-num", "16", "--failure-domain", "osd", "--size", "2")
    return "more"


@pytest.fixture(scope="module")
def hanging(cluster):
    """The OSD that coordinates, which is stopped as soon as a test uses this, and goes on after that of `went_on`."""
    cluster.cli("settings", "set", "osd_down_out_seconds", "2")
    leader = wait_for("somebody coordinates", lambda: {"id": cluster.json("status")["coordinator"]}, 30)["id"]
    pid = cluster.process_ids()[f"osd.{leader}"]
    assert pid in cluster.all_pids(), f"process {pid} is not one of this cluster's"
    os.kill(pid, signal.SIGSTOP)
    return leader


@pytest.fixture(scope="module")
def went_on(cluster, hanging):
    os.kill(cluster.process_ids()[f"osd.{hanging}"], signal.SIGCONT)
    return hanging


def test_every_command_says_what_it_does(scenario, note):
    """Every command says what it does, and those with arguments have examples."""
    commands = [
        "health",
        "osd ls",
        "osd tree",
        "osd out",
        "osd in",
        "osd reweight",
        "osd rm",
        "osd add",
        "osd set-location",
        "pool ls",
        "pool create",
        "pool set",
        "pool rm",
        "pg ls",
        "pg query",
        "pg map",
        "flag ls",
        "flag set",
        "flag unset",
        "settings ls",
        "settings set",
    ]
    for command in commands:
        text = scenario.run(scenario.atoll, *command.split(), "--help").stdout
        assert "--json" in text, f"{command}: no --json"
        is_plain = command.endswith((" ls", " tree")) and command != "pg ls"
        assert is_plain or "Example" in text, f"{command}: no examples\n{text}"
    completion = scenario.run(scenario.atoll, "completion", "bash").stdout
    assert "set-location" in completion and "norebalance" in completion, "the completion does not know them"
    note(f"{len(commands)} commands")


def test_osds_tree_pools_and_pgs_of_a_fresh_cluster(cluster, note):
    """OSDs, tree, pools and PGs of a fresh cluster."""
    osds = by_id(cluster)
    assert len(osds) == OSDS and all(osd["state"] == "up" and not osd["is_out"] for osd in osds.values()), f"{osds}"
    pgs = cluster.json("pg", "ls")
    assert len(pgs) == 64 and all(pg["state"] == "active" for pg in pgs), f"{pgs[:3]}"
    for pg in pgs:
        assert len(set(pg["members"])) == 3 and pg["primary"] in pg["members"], f"{pg}"
    assert sum(osd["pgs"] for osd in osds.values()) == 3 * 64, f"{osds}"
    assert sum(osd["pgs_primary"] for osd in osds.values()) == 64, f"{osds}"
    tree = cluster.json("osd", "tree")
    assert [osd["id"] for host in tree for osd in host["osds"]] == list(range(OSDS)), f"{tree}"
    assert tree[0]["rack"] == tree[0]["zone"] == "default", f"{tree[0]}"
    text = cluster.cli("osd", "tree").stdout
    assert "rack default" in text and "osd.4" in text, text
    note(f"{len(pgs)} PGs")


def test_a_pg_and_an_object_are_found(cluster):
    """A PG and an object are found."""
    pg = cluster.json("pg", "query", "1.1f")
    assert pg["pool"] == "images" and pg["epoch"] >= pg["activated_epoch"] >= 1, f"{pg}"
    found = cluster.json("pg", "map", "some-object", "--pool", "objects")
    assert found == cluster.json("pg", "map", "some-object", "--pool", "objects"), "it moves about"
    assert found["pg"].startswith("2.") and found["primary"] in found["members"], f"{found}"
    ours = cluster.json("pg", "ls", "--osd", "osd.2")
    assert ours and all(2 in pg["members"] for pg in ours), f"{ours[:2]}"
    refused(cluster, "pg", "query", "9.1", words=["9.1", "atoll pg ls"])
    refused(cluster, "pg", "query", "nine", words=["nine"], code=2)
    refused(cluster, "pg", "map", "x", "--pool", "none", words=["none", "atoll pool ls"])


def test_a_healthy_cluster_is_healthy(cluster):
    """A healthy cluster is healthy."""
    wait_for("nothing is wrong", lambda: is_healthy(cluster), 30)
    assert cluster.cli("health").stdout.splitlines()[0] == "ok", "the text says something else"


def test_a_pool_gets_its_pgs_from_the_coordinator(cluster, note):
    """A pool gets its PGs from the coordinator, and is changed."""
    pool = cluster.json("pool", "create", "extra", "--pg-num", "16", "--failure-domain", "osd")
    assert pool["redundancy"] == {"kind": "replicated", "size": 3, "min_size": 2}, f"{pool}"
    pgs = cluster.json("pg", "ls", "--pool", "extra")
    assert len(pgs) == 16 and all(len(set(pg["members"])) == 3 for pg in pgs), f"{pgs[:3]}"
    wait_for(
        "its PGs are active",
        lambda: all(pg["state"] == "active" for pg in cluster.json("pg", "ls", "--pool", "extra")),
    )
    changed = cluster.json("pool", "set", "extra", "size", "2")
    assert changed["redundancy"]["size"] == 2, f"{changed}"
    assert all(len(pg["target"]) == 2 for pg in cluster.json("pg", "ls", "--pool", "extra")), (
        "the targets do not follow"
    )
    assert cluster.json("pool", "set", "extra", "device_class", "any")["device_class"] is None, "a class is left"
    cluster.cli("pool", "set", "extra", "name", "renamed")
    assert "renamed" in cluster.cli("pool", "ls").stdout, "it has its old name"
    note(refused(cluster, "pool", "set", "renamed", "pg_num", "8", words=["do not merge"]))
    assert cluster.json("pool", "set", "renamed", "pg_num", "32")["pg_num"] == 32, "it was not changed"
    assert len(cluster.json("pg", "ls", "--pool", "renamed")) == 32, "PGs are missing"
    cluster.cli("pool", "rm", "renamed", "--yes-destroy", "renamed")


def test_wrong_values_are_refused(cluster, more):
    """Wrong values are refused, and say what would be right."""
    refused(cluster, "pool", "create", more, words=["already"])
    refused(cluster, "pool", "create", "odd", "--pg-num", "48", words=["power of two"])
    refused(cluster, "pool", "create", "odd", "--size", "0", words=["1 to"])
    refused(cluster, "pool", "create", "a/b", words=["a/b"])
    refused(cluster, "pool", "set", more, "min_size", "3", words=["min_size 3", "2 copies"])
    refused(cluster, "pool", "set", more, "size", "many", words=["many"])
    refused(cluster, "pool", "set", more, "failure_domain", "planet", words=["planet", "rack"])
    refused(cluster, "pool", "set", more, "colour", "red", words=["colour"], code=2)
    refused(cluster, "pool", "set", "none", "size", "2", words=["none"])


def test_what_is_in_a_pool_is_told(cluster, more):
    """By 'atoll pool ls' and the metrics of the cluster and of OSDs: with all copies, and without."""
    written = 8 * MIB
    cluster.create_image("told", "16M", "--pool", more)
    with cluster.nbd("told") as disk:
        disk.write(0, os.urandom(written), fua=True)

    def told():
        return next(pool for pool in cluster.json("pool", "ls") if pool["name"] == more)

    found = wait_for("it is told", lambda: (found := told())["used_bytes"] >= 2 * written and found, 30)
    assert 2 * written <= found["used_bytes"] < 2 * written + MIB, found
    assert found["stored_bytes"] == found["used_bytes"] // 2, found

    def of_osds(name):
        shown = [cluster.cli("metrics", "show", f"osd.{osd}").stdout for osd in by_id(cluster)]
        found = [re.search(rf'^{name}{{pool="{more}"}} (\d+)$', text, re.M) for text in shown]
        return sum(int(one[1]) for one in found if one)

    wait_for("OSDs tell it", lambda: of_osds("atoll_osd_pool_used_bytes") == told()["used_bytes"], 30)
    assert of_osds("atoll_osd_pool_objects") > 0
    with cluster.nbd("told") as disk:
        disk.trim(0, written)
    wait_for("it is gone again", lambda: told()["used_bytes"] < MIB, 30)
    cluster.cli("image", "rm", "told")


def test_a_pool_is_removed_only_if_it_is_named_twice(cluster, more, note):
    """A pool is removed only if it is named twice, and the built-in ones never."""
    note(refused(cluster, "pool", "rm", more, words=["--yes-destroy more"]))
    refused(cluster, "pool", "rm", more, "--yes-destroy", "extra", words=["--yes-destroy more"])
    refused(cluster, "pool", "rm", "images", "--yes-destroy", "images", words=["images"])
    removed = cluster.json("pool", "rm", more, "--yes-destroy", more)
    assert not [pg for pg in cluster.json("pg", "ls") if pg["pg"].startswith(f"{removed['id']}.")], "PGs are left"
    again = cluster.json("pool", "create", "extra", "--pg-num", "8", "--failure-domain", "osd")
    assert again["id"] > removed["id"], f"the number {removed['id']} is given again"
    cluster.cli("pool", "rm", "extra", "--yes-destroy", "extra")


def test_a_pool_without_osds_is_told_at_once(cluster):
    """There is no OSD of its class: it is made, and said to lack its PGs."""
    create = ("pool", "create", "nowhere", "--device-class", "nvme", "--pg-num", "4")
    started = time.monotonic()
    assert "0 of its 4 PGs" in cluster.cli(*create, ok=(3,)).stderr
    assert time.monotonic() - started < 10, "it waits for what cannot come"
    cluster.cli("pool", "rm", "nowhere", "--yes-destroy", "nowhere")


def test_copies_are_spread_over_the_racks_that_were_named(cluster, note):
    """Copies are spread over the racks that were named."""
    cluster.json("pool", "create", "racks", "--pg-num", "16", "--failure-domain", "rack")
    assert "POOL_TOO_FEW_DOMAINS" in health(cluster)[1], "all OSDs are in one rack, and nobody minds"
    racks = {0: "ra", 1: "ra", 2: "rb", 3: "rb", 4: "rc"}
    for osd, rack in racks.items():
        cluster.cli("osd", "set-location", osd, "--host", f"host{osd}", "--rack", rack, "--zone", "east")
    assert {osd["id"]: osd["rack"] for osd in by_id(cluster).values()} == racks, f"{by_id(cluster)}"
    for pg in cluster.json("pg", "ls", "--pool", "racks"):
        assert {racks[osd] for osd in pg["target"]} == {"ra", "rb", "rc"}, f"{pg}"
    assert "POOL_TOO_FEW_DOMAINS" not in health(cluster)[1], f"{health(cluster)}"
    text = cluster.cli("osd", "tree").stdout
    assert "zone east" in text and "rack rb" in text and "host host3" in text, text
    note("3 racks")
    refused(cluster, "osd", "set-location", "0", words=["--host"])
    refused(cluster, "osd", "set-location", "77", "--rack", "x", words=["osd.77"])
    cluster.cli("pool", "rm", "racks", "--yes-destroy", "racks")


def test_an_osd_that_is_out_shall_hold_nothing(cluster):
    """An OSD that is out shall hold nothing, and gets its share back when it is in."""
    before = by_id(cluster)[3]["pgs_target"]
    assert before > 0, "it has nothing"
    cluster.cli("osd", "out", "osd.3")
    assert by_id(cluster)[3]["is_out"] and by_id(cluster)[3]["pgs_target"] == 0, f"{by_id(cluster)[3]}"
    assert "OSD_OUT" in health(cluster)[1], f"{health(cluster)}"
    cluster.cli("osd", "in", "3")
    assert not by_id(cluster)[3]["is_out"] and by_id(cluster)[3]["pgs_target"] > 0, f"{by_id(cluster)[3]}"


def test_weights_decide_shares(cluster):
    """Weights decide shares."""
    weight = by_id(cluster)[3]["weight"]
    cluster.cli("osd", "reweight", "3", "0")
    assert by_id(cluster)[3]["pgs_target"] == 0, f"{by_id(cluster)[3]}"
    cluster.cli("osd", "reweight", "3", weight)
    assert by_id(cluster)[3]["pgs_target"] > 0, f"{by_id(cluster)[3]}"
    refused(cluster, "osd", "reweight", "3", "-1", words=["-1"])
    refused(cluster, "osd", "out", "12", words=["osd.12", "atoll osd ls"])
    refused(cluster, "osd", "out", "x", words=["osd.3"], code=2)


def test_an_osd_joins_the_running_cluster(scenario, cluster, note):
    """An OSD joins the running cluster."""
    made = cluster.json("osd", "create", "--device", scenario.directory / "new-osd", "--size", "1G")
    assert made["id"] == OSDS and "running cluster" in made["next"], f"{made}"
    refused(cluster, "osd", "add", "9", words=["osd.9", "osd create"])
    refused(cluster, "osd", "add", "0", words=["osd.0", "already"])
    cluster.cli("osd", "add", OSDS, "--host", "new", "--rack", "rc", "--zone", "east", "--device-class", "hdd")
    added = by_id(cluster)[OSDS]
    assert [added[what] for what in ("host", "rack", "zone", "device_class")] == ["new", "rc", "east", "hdd"], (
        f"{added}"
    )
    wait_for("it runs", lambda: by_id(cluster)[OSDS]["state"] == "up", 30)
    assert by_id(cluster)[OSDS]["pgs_target"] > 0, "nothing shall move there"
    assert f"osd.{OSDS}" in cluster.children(), "the supervisor does not know it"
    note(f"osd.{OSDS}")


@pytest.mark.nightly
def test_an_osd_that_pgs_count_on_is_not_removed(scenario, cluster, note):
    """An OSD that PGs count on is not removed; one that holds nothing is."""
    note(refused(cluster, "osd", "rm", "1", words=["PGs", "atoll osd out 1", "--lost"]))
    assert by_id(cluster)[1]["state"] == "up" and "osd.1" in cluster.children(), "it was stopped"
    cluster.cli("osd", "out", OSDS)

    def remove():
        return cluster.cli("osd", "rm", OSDS, ok=(0, 1)).returncode == 0

    wait_for("it holds nothing", remove, 120, 1)
    assert OSDS not in by_id(cluster), f"{by_id(cluster)}"
    wait_for("its process has ended", lambda: f"osd.{OSDS}" not in cluster.children(), 20)
    refused(cluster, "osd", "add", OSDS, words=[f"osd.{OSDS}", "not given again"])
    made = cluster.json("osd", "create", "--device", scenario.directory / "another-osd", "--size", "1G")
    assert made["id"] == OSDS + 1, f"numbers are given twice: {made}"


def test_flags_are_set_shown_as_a_warning(cluster):
    """Flags are set, shown as a warning, and taken back."""
    cluster.cli("flag", "set", "noout", "norebalance")
    assert [flag["flag"] for flag in cluster.json("flag", "ls")] == ["noout", "norebalance"], (
        f"{cluster.json('flag', 'ls')}"
    )
    code, problems = health(cluster)
    assert code >= 1 and problems["FLAGS_SET"]["subjects"] == ["noout", "norebalance"], f"{code} {problems}"
    assert problems["FLAGS_SET"]["since_unix_ms"], "since when?"
    assert cluster.json("flag", "unset", "noout", "norebalance") == [], "a flag is left"
    refused(cluster, "flag", "set", "nonsense", words=["noout"], code=2)


def test_settings_are_kept(cluster):
    """Settings are kept."""
    assert cluster.json("settings", "ls")["osd_down_out_seconds"] == 600, f"{cluster.json('settings', 'ls')}"
    assert cluster.json("settings", "set", "near_full_percent", "80")["near_full_percent"] == 80, "not set"
    assert cluster.json("settings", "ls")["near_full_percent"] == 80, "not kept"
    refused(cluster, "settings", "set", "near_full_percent", "101", words=["101"])


@pytest.mark.nightly
def test_osds_that_poll_busily_serve_as_usual(cluster):
    """OSDs that poll busily serve as usual."""
    refused(cluster, "settings", "set", "busy_poll_us", "1001", words=["1000"])
    assert cluster.json("settings", "set", "busy_poll_us", "200")["busy_poll_us"] == 200, "not set"
    cluster.cli("image", "create", "polled", "--size", "16M")
    load = ["--image", "polled", "--rw", "randrw", "--verify", "--qd", "1", "--seconds", "2", "--working-set", "16M"]
    told = cluster.json("bench", "block", *load)
    assert told["operations"] > 0 and told["errors"] == 0, told
    cluster.cli("image", "rm", "polled")
    cluster.cli("settings", "set", "busy_poll_us", "0")


def test_the_balancer_wants_pgs_elsewhere_than_chance_has_put_them(cluster, note):
    """The balancer wants PGs elsewhere than chance has put them."""
    cluster.cli("settings", "set", "balance_seconds", "1")

    def wishes():
        pgs = [cluster.json("pg", "query", pg["pg"]) for pg in cluster.json("pg", "ls")]
        return [pg for pg in pgs if pg["balancer_members"]]

    found = wait_for("it wants something", wishes, 120, 1)
    for pg in found:
        assert pg["target"] == pg["balancer_members"] and len(set(pg["target"])) == 3, f"{pg}"
    wanted = [osd["pgs_target"] for osd in by_id(cluster).values()]
    note(f"{len(found)} of {len(cluster.json('pg', 'ls'))} PGs; {min(wanted)} to {max(wanted)} PGs for each OSD")


@pytest.mark.nightly
def test_the_coordinator_hangs_another_takes_over(cluster, hanging, note):
    """The coordinator hangs: another takes over, sees that it is down, and with noout leaves it in."""
    cluster.cli("flag", "set", "noout")
    leader = hanging
    wait_for("it counts as down", lambda: by_id(cluster)[leader]["state"] == "down", 30)
    others = wait_for("another coordinates", lambda: {cluster.json("status")["coordinator"]} - {leader, None}, 30)
    problem = wait_for("health names it", lambda: health(cluster)[1].get("OSD_DOWN"), 10)
    assert problem["subjects"] == [f"osd.{leader}"], f"{problem}"
    wait_for("and since when", lambda: health(cluster)[1]["OSD_DOWN"]["since_unix_ms"], 10)
    assert health(cluster)[0] >= 1, "health is ok"
    assert not by_id(cluster)[leader]["is_out"], "it was marked out in spite of noout"
    note(f"osd.{leader}, then osd.{others.pop()}")


def test_without_noout_it_is_marked_out(cluster, hanging):
    """Without noout it is marked out, and its PGs shall move to others."""
    cluster.cli("flag", "unset", "noout")
    wait_for("it is out", lambda: by_id(cluster)[hanging]["is_out_by_coordinator"], 30)
    assert by_id(cluster)[hanging]["pgs_target"] == 0, f"{by_id(cluster)[hanging]}"
    assert "OSD_AUTO_OUT" in health(cluster)[1], f"{health(cluster)}"


def test_when_it_is_back_it_is_in_again(cluster, went_on):
    """When it is back it is in again, and all serves."""
    leader = went_on
    wait_for("it is in", lambda: not by_id(cluster)[leader]["is_out"], 60)
    wait_for("all PGs serve", lambda: all(pg["state"] == "active" for pg in cluster.json("pg", "ls")), 120, 0.5)
    wait_for("nothing is wrong", lambda: is_healthy(cluster), 60, 0.5)


def test_of_a_cluster_that_does_not_run(scenario, cluster):
    """Of a cluster that does not run, health says so."""
    cluster.down()
    code, problems = health(cluster)
    assert code == 2 and list(problems) == ["NOT_RUNNING"], f"{code} {problems}"
