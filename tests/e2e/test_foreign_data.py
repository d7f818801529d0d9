"""Data of a cluster that is there already: no other cluster is founded over it, and no OSD takes a device that is not
its own or is made a new one without being told."""

import json
import shutil

import pytest
from lib.operator import Small, files_of, problems, refused_start, remove, without
from lib.tiers import nightly_but
from lib.waiting import wait_for

# What is left of a data directory without cluster.json, and what the refusal must name of it.
LEFT = {
    "all": ["state", "osd-0", "keys", "credentials.json", "tls"],
    "devices and keys": ["osd-0", "keys"],
    "devices": ["osd-0"],
    "cluster state": ["state"],
    "keys": ["keys"],
    "credentials": ["credentials.json"],
}
NAMES = {"state": "state/state.redb", "osd-0": "osd-0/device", "keys": "keys/client.key"}


@pytest.fixture(scope="module")
def small(scenario):
    found = Small(scenario)
    found.cluster.down()
    return found


@pytest.fixture(scope="module")
def three(scenario):
    """Three OSDs and three copies, stopped."""
    found = Small(scenario, "three", osds=3)
    found.cluster.down()
    return found


@pytest.mark.parametrize("left", nightly_but(["all"], LEFT))
def test_no_cluster_is_founded_over_another_ones(scenario, small, left):
    """Without cluster.json 'atoll up' makes no cluster beside what is another's: it names that and writes nothing."""
    over = scenario.cluster(f"over-{left.replace(' ', '-')}", osds=1, osd_size="1G")
    over.data.mkdir(mode=0o700)
    for name in LEFT[left]:
        copy(small.path(name), over.data / name)
    before, device = files_of(over.data), small.path("osd-0/device")
    try:
        refused_start(over, "cluster.json", *(NAMES.get(name, name) for name in LEFT[left] if name != "tls"))
    finally:
        after = files_of(over.data)
    assert {name: after.get(name) for name in before} == before, "something was changed"
    assert not set(after) - set(before) - {"supervisor.lock"}, f"something was made: {set(after) - set(before)}"
    if "osd-0" in LEFT[left]:
        assert stores(scenario, over.data / "osd-0" / "device") == stores(scenario, device), "the device was written to"


def copy(source, target):
    if source.is_dir():
        shutil.copytree(source, target, copy_function=copy_sparse)
    else:
        shutil.copy2(source, target)


def copy_sparse(source, target):
    """Devices are mostly holes."""
    with open(source, "rb") as old, open(target, "wb") as new:
        while block := old.read(1 << 20):
            if block.strip(b"\0"):
                new.write(block)
            else:
                new.seek(len(block), 1)
        new.truncate()
    shutil.copymode(source, target)


def stores(scenario, device):
    """The superblocks of a device."""
    done = scenario.run(scenario.atoll, "store", "dump", "--device", device, "--json")
    return [line for line in done.stdout.splitlines() if json.loads(line)["record"] == "superblock"]


@pytest.mark.nightly
def test_a_cluster_is_founded_beside_osds_that_were_made_for_it(scenario):
    """Devices of 'atoll osd create' have served nobody yet, and their keys are no others'."""
    made = scenario.cluster("made", osds=1, osd_size="1G")
    made.cli("osd", "create", "--device", scenario.directory / "made.img", "--size", "1G")
    made.up()
    made.down()


def test_everything_is_there_with_cluster_json_put_back(small):
    """The refusal above harmed nothing."""
    small.cluster.up()
    small.check()
    small.cluster.down()


# --- devices


@pytest.mark.nightly
def test_an_osd_refuses_the_device_of_another_cluster(scenario, three):
    """Another cluster's device in the place of an OSD's own is named and not served."""
    other = Small(scenario, "other")
    other.cluster.down()
    copy(other.path("osd-0/device"), three.path("osd-1/device.new"))
    with without(three.cluster.data, "osd-1/device"):
        three.path("osd-1/device.new").rename(three.path("osd-1/device"))
        before = stores(scenario, three.path("osd-1/device"))
        serve_without(three, "osd.1", "osd-1/device")
        assert stores(scenario, three.path("osd-1/device")) == before, "the foreign device was written to"
    three.cluster.up()
    three.check()
    three.cluster.down()


@pytest.mark.nightly
def test_osds_refuse_each_others_devices(three):
    """Two devices that were exchanged are not taken for each other."""
    one, two = (three.path(f"osd-{number}/device") for number in (1, 2))
    swap(one, two)
    three.cluster.start_up()
    wait_for("health says that neither can start", lambda: {"osd.1", "osd.2"} <= not_started(three.cluster), 20)
    three.cluster.kill_all()
    swap(one, two)
    three.cluster.up()
    three.check()
    three.cluster.down()


def swap(one, two):
    between = one.with_name("between")
    one.rename(between)
    two.rename(one)
    between.rename(two)


@pytest.mark.nightly
def test_a_lost_device_is_not_made_anew(three):
    """A directory of an OSD that is gone is said and not filled again, until 'atoll up --new-device' says so."""
    with without(three.cluster.data, "osd-2") as away:
        serve_without(three, "osd.2", "osd-2/device", "--new-device 2")
        assert not three.path("osd-2/device").exists(), "another device was made"
        three.cluster.options += ["--new-device", "2"]
        three.cluster.up()
        del three.cluster.options[-2:]
        wait_for("it is backfilled", lambda: problems(three.cluster)[1].keys() <= {"KEYS_NOT_BACKED_UP"}, 30)
        three.check()
        three.cluster.down()
        # The old one lacks what was written since: the new one is the OSD's from now on.
        remove(away / "osd-2")
        three.path("osd-2").rename(away / "osd-2")


def serve_without(found, osd, *words):
    """The cluster serves from the other copies, and health says of an OSD what is wrong with its device."""
    found.cluster.start_up()
    wait_for(f"health says why {osd} cannot start", lambda: osd in not_started(found.cluster), 20)
    said = json.dumps(problems(found.cluster)[1]["OSD_CANNOT_START"])
    for word in words:
        assert word in said, f"'{word}' is not in: {said}"
    wait_for("it serves", found.cluster.is_serving, 30)
    found.check()
    found.cluster.kill_all()


def not_started(cluster):
    """The OSDs of which health says that they cannot start."""
    found = problems(cluster)[1].get("OSD_CANNOT_START", {"subjects": []})
    return {subject.split(" ")[0].rstrip(":") for subject in found["subjects"]}
