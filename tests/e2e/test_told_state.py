"""What a cluster says of itself is so: 'up', 'health' and 'status' with OSDs that do not start, PGs that do not serve,
and file systems that are full."""

import itertools
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from botocore.exceptions import ClientError
from lib.cluster import GIB, MIB
from lib.devices import Loops
from lib.operator import Small, problems, remove
from lib.waiting import wait_for

REFUSALS_IN_A_ROW = 3
# Requests that wait for cluster state have an answer by then.
ANSWER_SECONDS_MAX = 20


@pytest.fixture(scope="module")
def three(scenario):
    return Small(scenario, osds=3)


# --- OSDs and PGs


def test_health_of_a_stopped_cluster_says_that_it_is_stopped(three):
    """Nothing of it runs, so no I/O goes on; what to do is to start it."""
    three.cluster.down()
    code, found = problems(three.cluster)
    [problem] = found.values()
    assert code == 2 and problem["code"] == "NOT_RUNNING", problem
    assert "continues" not in problem["action"] and "atoll up" in problem["action"], problem


@pytest.fixture(scope="module")
def emptied(three):
    """One of three devices holds nothing any more, and the cluster was started; with what 'atoll up' said."""
    if three.cluster.all_pids():
        three.cluster.down()
    device = three.path("osd-1/device")
    size = device.stat().st_size
    os.truncate(device, 0)
    os.truncate(device, size)
    command = three.cluster.up_command("--detach")
    done = three.cluster.scenario.run(*command, env=three.cluster.environment(), ok=None)
    three.said = (done.returncode, done.stdout + done.stderr)
    return three


def test_up_says_which_osd_is_down(emptied):
    """It serves, and says that not all is well: which OSD is down, with an exit code that is not 0."""
    code, said = emptied.said
    assert "osd.1" in said and "atoll health" in said, said
    assert code not in (0, 2), f"exit code {code}"


def test_an_osd_that_did_not_start_is_down_at_once(emptied):
    """What OSDs announced before the cluster was stopped counts no more."""
    status = emptied.cluster.json("status")
    assert (status["osds_up"], status["osds"]) == (2, 3), status
    assert problems(emptied.cluster)[1]["OSD_DOWN"]["subjects"] == ["osd.1"]
    states = status["placement_groups_by_state"]
    assert sum(states.values()) == status["placement_groups"], f"PGs are counted twice: {states}"


def test_an_emptied_device_is_named(emptied):
    """Health says which device, and what to do, with commands that there are."""
    found = wait_for("health says why", lambda: problems(emptied.cluster)[1].get("OSD_CANNOT_START"), 15)
    [subject] = found["subjects"]
    assert subject.startswith("osd.1") and "osd-1/device" in subject, found
    assert "--new-device 1" in json.dumps(found), found
    log = emptied.path("log/osd.1.log").read_text()
    assert "format it first" not in log, "there is no command that formats"
    emptied.check()


def test_pgs_that_do_not_serve_are_an_error(emptied):
    """All PGs without a primary that serves: exit code 2 as soon as primaries say so, and not after their leases."""
    for osd in ("osd.0", "osd.2"):
        emptied.cluster.cli("cluster", "key", "revoke", osd)
    named = lambda: problems(emptied.cluster)[1].get("PG_NOT_ACTIVE")
    said = wait_for(
        "health says it of all", lambda: (p := named()) and p["summary"].startswith("64 ") and p, 8, pause=0.3
    )
    assert said["severity"] == "error", said
    assert "64 " in said["summary"] and "moments" not in said["action"], said
    for osd in ("osd.0", "osd.2"):
        emptied.cluster.cli("cluster", "key", "add", osd)
    wait_for("it serves again", lambda: problems(emptied.cluster)[0] == 1, 30)
    emptied.check()
    emptied.cluster.down()


# --- full file systems


class Mounted:
    """A small file system at a place."""

    def __init__(self, scenario, place, size_bytes):
        if reason := Loops(scenario).why_not():
            pytest.skip(reason)
        self.place, image = place, scenario.directory / f"{place.name}.ext4"
        with open(image, "wb") as file:
            file.truncate(size_bytes)
        scenario.run("mke2fs", "-q", "-t", "ext4", "-m", "0", image)
        place.mkdir(mode=0o700, exist_ok=True)
        scenario.run("mount", "-o", "loop", image, place)
        scenario.at_end.callback(scenario.run, "umount", "--lazy", place)

    def fill(self, name):
        """Takes all the space that is left, to the last block."""
        with open(self.place / name, "wb") as file:
            for size in (MIB, 4096):
                try:
                    while True:
                        os.write(file.fileno(), bytes(size))
                except OSError:
                    pass


def create_buckets(cluster, count):
    """Creates buckets until one is refused; returns how many came to be, and the refusal."""
    s3 = cluster.s3(read_timeout=ANSWER_SECONDS_MAX)

    def create(number):
        try:
            s3.create_bucket(Bucket=f"b-{time.monotonic_ns()}-{number}")
        except ClientError as error:
            return error
        return None

    with ThreadPoolExecutor(8) as pool:
        for first in range(0, count, 8):
            refusals = list(pool.map(create, range(first, min(first + 8, count))))
            if any(refusals):
                return first + refusals.count(None), next(filter(None, refusals))
    return count, None


@pytest.fixture(scope="module")
def cramped(scenario):
    """A cluster whose state is on a file system of its own, which others fill."""
    if os.geteuid() != 0:
        pytest.skip("mounting takes root")
    small = Small(scenario, "cramped")
    small.cluster.down()
    content = small.path("state/state.redb").read_bytes()
    remove(small.path("state"))
    small.state = Mounted(scenario, small.path("state"), 32 * MIB)
    small.path("state/state.redb").write_bytes(content)
    small.cluster.up()
    yield small
    small.cluster.kill_all()


@pytest.mark.needs("mke2fs", "mount")
def test_cluster_state_out_of_space_is_said_and_ends_by_itself(cramped):
    """Health warns while its reserve lasts, says an error afterwards, and all is well again once there is space."""
    cramped.state.fill("first")
    create_buckets(cramped.cluster, 100)
    wait_for("health warns", lambda: "STATE_NO_SPACE" in problems(cramped.cluster)[1], 30)
    cramped.state.fill("second")
    _, refusal = create_buckets(cramped.cluster, 500)
    assert refusal is not None, "the file system is full"
    code, found = problems(cramped.cluster)
    problem = found["STATE_NO_SPACE"]
    assert code == 2 and problem["severity"] == "error", (code, found)
    assert "moments" not in problem["action"] and "state" in problem["summary"], problem
    for name in ("first", "second"):
        (cramped.state.place / name).unlink()
    wait_for("buckets can be made again", lambda: create_buckets(cramped.cluster, 1)[0] == 1, 20)
    wait_for("nothing is wrong", lambda: problems(cramped.cluster)[0] == 0, 30)
    cramped.check()


@pytest.fixture(scope="module")
def tight(scenario):
    """Three OSDs of 4 GiB each on a file system of 1 GiB, and what 'atoll up' said."""
    if os.geteuid() != 0:
        pytest.skip("mounting takes root")
    mounted = Mounted(scenario, scenario.directory / "tight", GIB)
    cluster = scenario.cluster("tight/d", osds=3, osd_size="4G")
    cluster.variables["ATOLL_GARBAGE_GRACE_SECONDS"] = "2"
    done = scenario.run(*cluster.up_command("--detach"), env=cluster.environment())
    cluster.said, cluster.mounted = done.stdout + done.stderr, mounted
    yield cluster
    cluster.kill_all()


@pytest.mark.needs("mke2fs", "mount")
def test_devices_that_have_no_room_to_grow_are_said(tight):
    """At their making, and by health for as long as it is so: how far they may grow and what is free."""
    assert "OSD_OVERCOMMITTED" in tight.said, tight.said
    # Reports of the OSDs may be of before they served.
    found = wait_for("health warns and says no more", lambda: (p := problems(tight))[0] == 1 and p[1], 30)
    problem = found["OSD_OVERCOMMITTED"]
    assert problem["severity"] == "warning", found
    assert all(f"osd.{osd}" in json.dumps(problem["subjects"]) for osd in range(3)), problem


@pytest.mark.needs("mke2fs", "mount")
def test_a_full_file_system_stops_neither_osds_nor_cluster_state(tight):
    """OSDs are full before it is: new data is refused with 507, and all goes on once there is room."""
    pids, s3 = tight.children(), tight.s3()
    s3.create_bucket(Bucket="fill")

    def put(number):
        """The status of a PUT."""
        try:
            answer = s3.put_object(Bucket="fill", Key=f"{number:04}", Body=os.urandom(8 * MIB))
        except ClientError as error:
            answer = error.response
        return answer["ResponseMetadata"]["HTTPStatusCode"]

    # It has 1 GiB, and three copies are made; so many at once outrun whoever looks once a second how much is left.
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(put, range(64)))
    first = answers.index(507)
    assert first > 3 and set(answers) == {200, 507} and [put(first) for _ in range(3)] == [507] * 3
    more = itertools.count(100)

    def told():
        # What was begun and refused gives its room back, which the next one takes.
        put(next(more))
        return (p := problems(tight))[1].get("OSD_FILE_SYSTEM_FULL") and p

    code, found = wait_for("health says that OSDs have no room to grow", told, 60, 1)
    assert code == 2, found
    assert tight.children() == pids, "no process has ended"
    assert s3.get_object(Bucket="fill", Key="0000")["ContentLength"] == 8 * MIB
    for number in range(10):
        s3.delete_object(Bucket="fill", Key=f"{number:04}")
    assert tight.children() == pids, "no process has ended"
    # Nobody else writes, so nothing but that may start the checkpoint that makes holes in the files.
    wait_for("new data is taken again", lambda: put(999) == 200, 60, 1)
    wait_for("health says so", lambda: "OSD_FILE_SYSTEM_FULL" not in problems(tight)[1], 30)
    assert tight.children() == pids, "no process has ended"
