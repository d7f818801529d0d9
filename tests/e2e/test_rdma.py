"""Frames over RDMA, by libfabric's provider for sockets: the same cluster, and TCP while RDMA fails."""

import ctypes.util

import pytest
from lib.cluster import MIB
from lib.load import BlockLoad
from lib.rdma_relay import WireRelay
from lib.transports import announced_records, links, restart_nbd, revoke_and_trust_the_gateway
from lib.verdicts import intact
from lib.waiting import NotYet, wait_for

pytestmark = [
    pytest.mark.needs("etcdctl"),
    pytest.mark.skipif(ctypes.util.find_library("fabric") is None, reason="libfabric1 is not installed"),
]


@pytest.fixture(scope="module")
def cluster(scenario):
    cluster = scenario.cluster()
    cluster.options += ["--transport", "rdma"]
    cluster.variables["ATOLL_RDMA_PROVIDER"] = "tcp"
    cluster.up()
    cluster.create_image("disk", "64M")
    yield cluster
    cluster.down()


@pytest.fixture
def records(scenario, cluster):
    with announced_records(scenario, cluster) as found_and_announce:
        yield found_and_announce


def write_and_read(cluster, first):
    """Writes short and long pieces to objects of every OSD, and reads them back."""
    with cluster.nbd("disk") as connection:
        for number in range(0, 64, 4):
            connection.write(number * MIB, bytes([first + number]) * 4096)
            connection.write(number * MIB + MIB, bytes([first + number + 1]) * MIB)
        for number in range(0, 64, 4):
            intact(connection.read(number * MIB, 4096) == bytes([first + number]) * 4096, "other bytes")
            intact(connection.read(number * MIB + MIB, MIB) == bytes([first + number + 1]) * MIB, "other bytes")


def all_over_rdma(cluster):
    """All links of OSDs, and those of a client."""
    found = links(cluster)
    if set(found) != {"rdma"} or found["rdma"] < 4:
        raise NotYet(f"{found}")
    return True


def test_a_cluster_works_over_rdma(cluster):
    """Everything goes over RDMA, an OSD may be killed and comes back by it, and status and metrics say so."""
    write_and_read(cluster, 1)
    wait_for("status counts the links", lambda: links(cluster).get("rdma", 0) >= 6, 15)
    # An OSD whose key was not authorised yet when it called is reached by TCP, and sought again a second later.
    wait_for("all are over RDMA", lambda: all_over_rdma(cluster), 15)
    said = cluster.cli("status").stdout
    assert "rdma (connections to OSDs; libfabric's providers: tcp at 3 OSDs)" in said, said
    assert cluster.json("status")["rdma_providers"] == {"tcp": 3}
    cluster.restarted("osd.1", cluster.kill("osd.1"))
    write_and_read(cluster, 100)
    wait_for("the OSD is connected again", lambda: links(cluster).get("rdma", 0) >= 6, 30)
    # Who was faster than its announcement of RDMA has come by TCP, and changes over.
    wait_for("all are over RDMA", lambda: all_over_rdma(cluster), 30)


def test_an_osd_that_rdma_does_not_reach_is_reached_by_tcp(cluster, records):
    """Clients that find nobody at an OSD's address of RDMA use TCP, and return when the OSD announces another."""
    found, announce = records
    assert all(record["rdma_address"].startswith("tcp:127.0.0.1:") for record in found), f"{found}"
    for record in found:
        announce({**record, "rdma_address": "tcp:127.0.0.1:1"})
    restart_nbd(cluster)
    write_and_read(cluster, 30)
    wait_for("clients use TCP", lambda: links(cluster).get("tcp", 0) >= 3, 15)
    assert " by rdma: " in cluster.log_text(), "no log tells of it"
    for record in found:
        announce(record)
    wait_for("clients are back", lambda: "is reached over RDMA again" in cluster.log_text(), 15)
    write_and_read(cluster, 60)
    wait_for("there are none over TCP", lambda: all_over_rdma(cluster), 15)


@pytest.mark.nightly
@pytest.mark.limit(400)
def test_bytes_that_are_changed_on_the_wire_do_no_harm(cluster, records, note):
    """Messages and long pieces are changed, and connections cut, on their way over RDMA: who receives what does not fit
    ends the connection or reads again, nothing wrong is given out, and no I/O fails."""
    found, announce = records
    relays = [WireRelay(("127.0.0.1", int(record["rdma_address"].rsplit(":", 1)[1]))) for record in found]
    for record, relay in zip(found, relays, strict=True):
        announce({**record, "rdma_address": f"tcp:127.0.0.1:{relay.port}"})
    restart_nbd(cluster)
    cluster.create_image("wire", "256M")
    connect = lambda: cluster.nbd("wire", timeout=90)
    short = BlockLoad(connect, threads=2, blocks_per_thread=8192, read_share=0.5).start()
    long = BlockLoad(
        connect, threads=2, blocks_per_thread=16, block_bytes=4 * MIB, first_block=16, read_share=0.5, seed=2
    ).start()
    loads = (short, long)
    wait_for("reads and writes go on", lambda: all(load.acked > 5 and load.reads > 5 for load in loads), 40)
    assert all(relay.connections for relay in relays), "clients pass the relays by"
    attacks = [(way, what) for what in ("message", "long piece", "cut") for way in ("to", "from")]
    for number, (way, what) in enumerate(attacks * 2):
        relay = relays[number % len(relays)]
        made, relay.done, relay.attack = relay.connections, None, (way, what)
        wait_for(f"{what} {way} the OSD comes by", lambda relay=relay: relay.done, 20, 0.01)
        if what == "cut" or (way, what) == ("to", "message"):
            wait_for(
                f"the connection ends after {what} {way}", lambda relay=relay: relay.done.get("ended_by"), 10, 0.01
            )
            wait_for("a new connection", lambda relay=relay, made=made: relay.connections > made, 90, 0.01)
    before = [(load, load.acked, load.reads) for load in loads]
    wait_for("all go on", lambda: all(load.acked > a + 5 and load.reads > r + 5 for load, a, r in before), 60)
    for load in loads:
        assert load.stop(60) and not load.wrong and not load.error_texts, f"{load.wrong[:3]} {load.error_texts[:3]}"
        with cluster.nbd("wire") as connection:
            load.verify(connection)
        assert not load.wrong, f"{load.wrong[:3]}"
    assert "does not fit; bytes were damaged or forged" in cluster.log_text(), "no log tells of damaged frames"
    note(f"{short.acked} short and {long.acked} long writes")


@pytest.mark.nightly
def test_a_revoked_key_loses_its_connections(cluster):
    """The gateway's key is revoked: its connections over RDMA are closed, until it is trusted again."""
    restart_nbd(cluster)
    revoke_and_trust_the_gateway(cluster)
    wait_for("all are over RDMA", lambda: all_over_rdma(cluster), 30)


@pytest.mark.nightly
def test_osds_that_start_without_rdma_use_it_when_it_comes(scenario, note):
    """OSDs start where libfabric cannot be loaded, serve over TCP and say why. When it can be, they announce RDMA, and
    all links return to it, without a restart and under load."""
    cluster = scenario.cluster("later")
    directory = scenario.directory / "libraries"
    directory.mkdir()
    library = directory / "libfabric.so.1"
    library.write_text("this is no library")
    cluster.options += ["--transport", "rdma"]
    cluster.variables |= {"ATOLL_RDMA_PROVIDER": "tcp", "LD_LIBRARY_PATH": str(directory)}
    cluster.up()
    cluster.create_image("disk", "64M")
    load = BlockLoad(lambda: cluster.nbd("disk", timeout=90), threads=2, blocks_per_thread=4096).start()
    wait_for("writes are acked", lambda: load.acked > 50, 30)
    wait_for("links are over TCP", lambda: set(links(cluster)) == {"tcp"}, 15)
    assert "cannot listen over RDMA" in cluster.log_text() and "libfabric1" in cluster.log_text()
    assert not cluster.json("status")["rdma_providers"]
    library.unlink()
    wait_for("all OSDs announce RDMA", lambda: cluster.json("status")["rdma_providers"] == {"tcp": 3}, 30)

    def are_back():
        found = links(cluster)
        # The supervisor has used its own three once, and does nothing with them.
        if found.get("rdma", 0) < 5 or found.get("tcp", 0) > 3:
            raise NotYet(f"{found}")
        return True

    wait_for("all links in use are over RDMA", are_back, 30)
    acked = load.acked
    wait_for("writes go on", lambda: load.acked > acked + 50, 30)
    assert load.stop(60) and not load.wrong and not load.error_texts, f"{load.wrong[:3]} {load.error_texts[:3]}"
    with cluster.nbd("disk") as connection:
        load.verify(connection)
    assert not load.wrong, f"{load.wrong[:3]}"
    note(f"{load.acked} writes")
    cluster.down()
