"""A device that completes nothing any more, as a remote one to which all paths are lost, for real: its OSD ends, writes
go on without it, and it is back when the device is. No acked byte is lost and no wrong byte is read.
"""

import time

import pytest
from lib.load import BlockAndObjectLoad
from lib.operator import problems
from lib.processes import is_alive
from lib.slow_device import silent
from lib.waiting import wait_for

pytestmark = pytest.mark.root

OSD = "osd.1"
SILENCE_SECONDS, STALL_SECONDS_MAX = 2, 15


@pytest.fixture(scope="module")
def cluster(scenario):
    cluster = scenario.cluster(osd_size="2G")
    cluster.up()
    cluster.create_image("load", "64M")
    cluster.cli("settings", "set", "device_silence_seconds", SILENCE_SECONDS)
    return cluster


@pytest.fixture(scope="module")
def load(cluster):
    load = BlockAndObjectLoad(cluster)
    load.goes_on(500, 10)
    yield load
    load.finish()


def said(cluster, words):
    return words in (cluster.data / "log" / f"{OSD}.log").read_text()


def test_writes_go_on_without_an_osd_whose_device_is_silent(cluster, load, note):
    """The OSD ends and says why, its PGs go on elsewhere, and it cannot be started before the device answers."""
    pid, began = cluster.process_ids()[OSD], time.monotonic()
    with silent([pid], cluster.data):
        wait_for("the OSD ends", lambda: not is_alive(pid), STALL_SECONDS_MAX, 0.1)
        load.goes_on(500, 10)
        note(load.stalls(began))
        assert said(cluster, "the data device has not answered for 3 s"), "no cause is named"
        assert load.blocks.first_silence(began) < STALL_SECONDS_MAX, load.stalls(began)
        wait_for("it is not started", lambda: said(cluster, "whose requests the device has not completed"), 20, 0.2)
    load.no_error()


def test_it_is_back_when_the_device_answers(cluster, load):
    """All PGs have all their members again."""
    wait_for("all PGs are whole", lambda: all(pg["members"] == pg["target"] for pg in cluster.json("pg", "ls")), 60)
    load.goes_on(500, 10)
    load.no_error()
    load.no_wrong_byte()
    said = problems(cluster)[1]["OSD_ENDED"]["summary"]
    assert said.startswith(f"{OSD} ended 1 time: the data device has not answered for 3 s"), said


def test_every_acked_write_is_there(cluster, load, note):
    """Every acked block write and object is there, no byte is wrong."""
    load.finish()
    note(f"{load.check_blocks(cluster)} blocks, {load.check_objects(cluster)} objects")


def test_the_setting_has_bounds(cluster):
    """Silence is neither taken for death at once, nor borne for ever."""
    for seconds in (1, 601):
        assert "2 to 600" in cluster.cli("settings", "set", "device_silence_seconds", seconds, ok=(1,)).stderr
