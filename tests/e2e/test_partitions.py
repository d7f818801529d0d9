"""Three hosts and an etcd in network namespaces, and one fault after the other: hosts killed, cut off, cut
off in one direction, paused, a device lost, packets lost. Clients on all hosts read and write registers
meanwhile, whose histories must be linearizable; fio verifies, and S3 uploads are compared. After each
fault the cluster must become clean by itself.

    ATOLL_E2E_ROUNDS=N   in the nightly tier: one time each, and N - 1 times all faults in random order (2)
    ATOLL_E2E_SEED=N     what is random (1)
    ATOLL_E2E_EC=2+1     images and data of S3 are in erasure-coded pools, which serve with one host away
"""

import os
import random

import pytest
from lib.hosts_load import HostsLoad
from lib.partitions import EC, EC_POOL, Faults, all_copies_are_the_same, go_through, start_world

pytestmark = [pytest.mark.root, pytest.mark.needs("ip", "nft", "etcd", "etcdctl", "openssl", "fio")]


ROUNDS, SEED = int(os.environ.get("ATOLL_E2E_ROUNDS", "2")), int(os.environ.get("ATOLL_E2E_SEED", "1"))


# Faults of the quick tier; those of the nightly one are much like others, or other scenarios have them.
QUICK = ("falls_silent",)
NIGHTLY = (
    "not_from_etcd",
    "cannot_send",
    "from_etcd_only",
    "osd_paused_long",
    "killed",
    "cannot_hear",
    "apart",
    "from_all",
    "osd_paused_short",
    "host_paused",
    "device_lost",
    "packets_lost",
)


@pytest.fixture(scope="module")
def world(scenario):
    return start_world(scenario)


@pytest.fixture(scope="module")
def load(scenario, world):
    """Clients on all hosts."""
    return HostsLoad(scenario, world, SEED, *(["--pool", EC_POOL] if EC else [])).runs()


@pytest.fixture(scope="module")
def ended(load):
    load.finish()
    return load


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.nightly) for name in NIGHTLY)])
def test_a_fault_is_overcome(world, load, name, note):
    """Clients go on, no wrong byte is read, and the cluster becomes clean by itself."""
    go_through(world, load, getattr(Faults(world), name)(), note)


@pytest.mark.nightly
@pytest.mark.limit(900)
@pytest.mark.parametrize("number", range(1, ROUNDS))
def test_faults_in_random_order(world, load, number, note):
    """All faults in random order, on random hosts and for random times."""
    rng = random.Random(f"{SEED}/{number}")
    for name in rng.sample(QUICK + NIGHTLY, len(QUICK + NIGHTLY)):
        faults = Faults(world, rng)
        cut_off, seconds, context = getattr(faults, name)()
        go_through(world, load, (cut_off, faults.lasting(seconds), context), note)


def test_the_load_ends_and_no_client_hangs(ended, note):
    """The load ends, and no client hangs."""
    note(ended.counts())


def test_the_history_of_every_register_is_linearizable(ended):
    """The history of every register is linearizable."""
    ended.check_histories()


def test_fio_verifies_what_it_wrote(ended):
    """fio has verified all that it wrote, and verifies it once more."""
    ended.fio.verify()


def test_every_acknowledged_upload_is_there(ended):
    """Every acknowledged upload is there, read through another host."""
    ended.check_uploads()


def test_all_copies_of_everything_are_the_same(world, ended, note):
    """All copies of everything are the same: a deep scrub finds nothing."""
    note(f"{all_copies_are_the_same(world)} objects")


def test_no_process_has_panicked(scenario, ended):
    """No process has panicked."""
    scenario.no_panic()
