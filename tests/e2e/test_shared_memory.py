"""Shared memory between processes of one host: who uses it, and what becomes of it when a peer does wrong or dies."""

import os

import pytest
from lib.cluster import MIB
from lib.load import BlockLoad
from lib.relay import Relay
from lib.shared_rings import offer
from lib.transports import (
    announced_records,
    change_frames,
    lead_through,
    links,
    revoke_and_trust_the_gateway,
    write_all_over,
)
from lib.waiting import wait_for

pytestmark = [pytest.mark.root, pytest.mark.needs("etcdctl")]


@pytest.fixture(scope="module")
def cluster(scenario):
    cluster = scenario.cluster()
    cluster.up()
    cluster.create_image("disk", "1G")
    yield cluster
    cluster.down()


@pytest.fixture
def records(scenario, cluster):
    with announced_records(scenario, cluster) as found_and_announce:
        yield found_and_announce


def test_processes_of_one_host_share_memory(cluster):
    """In a new cluster all connections between processes of one host are by shared memory, and status says so."""
    write_all_over(cluster)
    wait_for("status counts the links", lambda: links(cluster).get("shm", 0) >= 6, 15)
    assert set(links(cluster)) == {"shm"}, f"{links(cluster)}"
    assert "shm (connections to OSDs)" in cluster.cli("status").stdout, cluster.cli("status").stdout


def answer_to(user, name):
    """The answer to an offer of memory by a process of a user, and the number of doorbells that come with it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setresuid(user, user, user)
            _, _, answer, doorbells = offer(name)
            os.write(writing, answer + bytes([len(doorbells)]))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as said:
        answer = said.read()
    os.waitpid(child, 0)
    return tuple(answer)


def test_an_osd_shares_no_memory_with_another_user(cluster, records):
    """A process of another user than the OSD's gets neither memory nor doorbell; one of the same user gets both."""
    for record in records[0]:
        assert answer_to(os.geteuid(), record["local_name"]) == (1, 1)
        assert answer_to(65534, record["local_name"]) == (0, 0)


def test_who_is_not_offered_any_uses_unix_sockets(cluster, records):
    """An OSD under whose name nobody takes offers of shared memory is reached by its Unix socket, in the same mode."""
    lead_through(cluster, records, [Relay(record["local_name"]) for record in records[0]])
    write_all_over(cluster)
    wait_for("the links are Unix sockets", lambda: links(cluster).get("unix", 0) >= 3, 15)


def test_a_frame_that_is_changed_ends_the_connection(cluster, records, note):
    """A frame in shared memory is changed or cut: its receiver ends the connection, and no I/O fails."""
    relays = [Relay(record["local_name"], shares_memory=True) for record in records[0]]
    lead_through(cluster, records, relays)
    load = BlockLoad(lambda: cluster.nbd("disk"), threads=4, blocks_per_thread=16384, read_share=0.5).start()
    wait_for("writes are acked", lambda: load.acked > 50 and load.reads > 50, 30)
    change_frames(
        relays, [("to", "control"), ("from", "control"), ("from", "sealed payload"), ("to", "cut"), ("from", "tag")]
    )
    assert load.stop(60) and not load.wrong and not load.error_texts, f"{load.wrong[:3]} {load.error_texts[:3]}"
    note(f"{load.acked} writes, {load.reads} reads")


@pytest.mark.nightly
def test_a_revoked_key_loses_its_memory(cluster):
    """The gateway's key is revoked: what it shares with OSDs is closed, until it is trusted again."""
    revoke_and_trust_the_gateway(cluster)


def test_a_process_dies_in_the_middle_of_a_transfer(cluster, note):
    """An OSD and then the NBD server are killed while 1 MiB pieces are under way: what was acked is there, whole."""
    load = BlockLoad(
        lambda: cluster.nbd("disk", timeout=90), threads=4, blocks_per_thread=64, block_bytes=MIB, first_block=256
    ).start()
    wait_for("writes are acked", lambda: load.acked > 20, 30)
    cluster.restarted("osd.1", cluster.kill("osd.1"))
    acked = load.acked
    wait_for("writes go on", lambda: load.acked > acked + 20, 30)
    cluster.restarted("nbd", cluster.kill("nbd"))
    acked = load.acked
    wait_for("writes go on", lambda: load.acked > acked + 20, 40)
    assert load.stop(60) and not load.wrong and not load.errors, f"{load.wrong[:3]} {load.error_texts[:3]}"
    with cluster.nbd("disk") as connection:
        load.verify(connection)
    assert not load.wrong, f"{load.wrong[:3]}"
    wait_for("the links are there again", lambda: links(cluster).get("shm", 0) >= 6, 15)
    note(f"{load.acked} writes of 1 MiB, {load.open_ended} of them open")
