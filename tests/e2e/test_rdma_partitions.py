"""Faults between hosts as in `test_partitions.py`, with all frames over RDMA (libfabric's provider for sockets): links
that hang, break, and are made anew, with registers, fio and uploads watched."""

import ctypes.util
import json

import pytest
from lib.hosts_load import HostsLoad
from lib.partitions import Faults, all_copies_are_the_same, go_through, start_world
from lib.waiting import wait_for

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.root,
    pytest.mark.needs("ip", "nft", "etcd", "etcdctl", "openssl", "fio"),
    pytest.mark.skipif(ctypes.util.find_library("fabric") is None, reason="libfabric1 is not installed"),
]

FAULTS = (
    "falls_silent",
    "not_from_etcd",
    "cannot_send",
    "cannot_hear",
    "apart",
    "from_all",
    "killed",
    "osd_paused_short",
    "osd_paused_long",
    "host_paused",
    "packets_lost",
)


@pytest.fixture(scope="module")
def world(scenario):
    return start_world(scenario, up=("--transport", "rdma"), variables={"ATOLL_RDMA_PROVIDER": "tcp"})


@pytest.fixture(scope="module")
def load(scenario, world):
    """Clients on all hosts."""
    return HostsLoad(scenario, world, 5).runs()


@pytest.fixture(scope="module")
def ended(load):
    load.finish()
    return load


def links(world):
    return json.loads(world.hosts[0].cli("status", "--json").stdout)["links_by_transport"]


def test_all_links_are_over_rdma(world, load):
    """All links between all hosts are over RDMA, and within a host, too."""
    wait_for("all links are over RDMA", lambda: set(links(world)) == {"rdma"}, 30)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_overcome(world, load, name, note):
    """Clients go on, no wrong byte is read, and the cluster becomes clean by itself."""
    go_through(world, load, getattr(Faults(world), name)(), note)


@pytest.mark.limit(200)
def test_links_return_to_rdma(world, load, note):
    """Links that were made without RDMA while it failed come back to it."""
    note(f"after the last fault: {links(world)}")
    wait_for("all links are over RDMA", lambda: set(links(world)) == {"rdma"}, 120, 1)


def test_nothing_was_lost(ended, note):
    """No client hangs, every register's history is linearizable, fio and every upload are verified."""
    note(ended.counts())
    ended.check_histories()
    ended.fio.verify()
    ended.check_uploads()


def test_all_copies_of_everything_are_the_same(scenario, world, ended):
    """A deep scrub finds nothing, and no process has panicked."""
    all_copies_are_the_same(world)
    scenario.no_panic()
