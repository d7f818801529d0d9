"""What carries the frames: Unix sockets within a host, and TCP where they are not to be had."""

import socket
import subprocess
import sys

import pytest
from lib.load import BlockLoad
from lib.relay import Relay
from lib.transports import (
    announced_records,
    change_frames,
    lead_through,
    links,
    restart_nbd,
    revoke_and_trust_the_gateway,
    write_all_over,
)
from lib.waiting import wait_for

pytestmark = [pytest.mark.root, pytest.mark.needs("etcdctl", "/usr/bin/python3")]

# Listens on a name, tells that it does, and then what each connection has sent.
LISTENER = """
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0" + sys.argv[1])
listener.listen()
print("listening", flush=True)
while True:
    connection = listener.accept()[0]
    print(len(connection.recv(4096)), flush=True)
"""
NOBODY = 65534


@pytest.fixture(scope="module")
def cluster(scenario):
    cluster = scenario.cluster()
    cluster.options = ["--transport", "unix"]
    cluster.up()
    cluster.create_image("disk", "256M")
    yield cluster
    cluster.down()


@pytest.fixture
def records(scenario, cluster):
    with announced_records(scenario, cluster) as found_and_announce:
        yield found_and_announce


def test_processes_of_one_host_use_unix_sockets(cluster):
    """Processes of one host use Unix sockets, all of them, and status says so."""
    write_all_over(cluster)
    wait_for("status counts the links", lambda: links(cluster).get("unix", 0) >= 6, 15)
    assert "tcp" not in links(cluster), f"{links(cluster)}"
    assert "unix (connections to OSDs)" in cluster.cli("status").stdout, cluster.cli("status").stdout
    modes = cluster.json("status")["frame_modes"]
    assert modes == {"cluster": "secure", "client": "secure", "gateway": "secure", "unix": "crc"}, f"{modes}"


@pytest.mark.nightly
def test_a_role_prefers_tcp(cluster):
    """A role that is told to prefer TCP uses it on new connections; the others go on as before."""
    cluster.cli("settings", "set", "transport_client", "tcp")
    restart_nbd(cluster)
    write_all_over(cluster)
    wait_for("status counts the links", lambda: links(cluster).get("tcp", 0) >= 3, 15)
    assert links(cluster)["unix"] >= 3, f"{links(cluster)}"
    cluster.cli("settings", "set", "transport_client", "unix")
    restart_nbd(cluster)
    write_all_over(cluster)
    wait_for("there are none over TCP", lambda: "tcp" not in links(cluster), 15)


def test_the_socket_of_another_user_is_left_alone(cluster, records):
    """A process of another user that has taken an OSD's name is told nothing: TCP is used."""
    found, announce = records
    listener = subprocess.Popen(
        ["/usr/bin/python3", "-c", LISTENER, "atoll-test-of-nobody"], stdout=subprocess.PIPE, text=True, user=NOBODY
    )
    try:
        assert listener.stdout.readline() == "listening\n"
        for record in found:
            announce({**record, "local_name": "atoll-test-of-nobody"})
        restart_nbd(cluster)
        write_all_over(cluster)
        wait_for("the links are over TCP", lambda: links(cluster).get("tcp", 0) >= 3, 15)
        assert listener.stdout.readline() == "0\n", "it was sent something"
        assert f"is of another user, {NOBODY}" in cluster.log_text(), "no log tells of it"
    finally:
        listener.kill()
        listener.wait()


@pytest.fixture
def relays(cluster, records):
    """Clients are led through relays to all OSDs, over Unix sockets with encrypted frames."""
    relays = [Relay(record["local_name"]) for record in records[0]]
    lead_through(cluster, records, relays)
    return relays


def test_a_frame_that_is_changed_ends_the_connection(cluster, relays, note):
    """A frame over a Unix socket is changed or cut: its receiver ends the connection, and no I/O fails."""
    load = BlockLoad(lambda: cluster.nbd("disk"), threads=4, blocks_per_thread=16384, read_share=0.5).start()
    wait_for("writes are acked", lambda: load.acked > 50 and load.reads > 50, 30)
    change_frames(
        relays, [("to", "control"), ("from", "control"), ("from", "sealed payload"), ("to", "cut"), ("from", "tag")]
    )
    assert load.stop(60) and not load.wrong and not load.error_texts, f"{load.wrong[:3]} {load.error_texts[:3]}"
    note(f"{load.acked} writes, {load.reads} reads")


def test_a_revoked_key_loses_its_connections(cluster):
    """The gateway's key is revoked: its Unix sockets are closed, until it is trusted again."""
    revoke_and_trust_the_gateway(cluster)


def test_the_name_is_in_no_file_and_of_no_other_network(cluster, records):
    """The name of the socket is unknown in another network namespace, so that processes there use TCP."""
    found, _ = records
    reach = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0' + {found[0]['local_name']!r})"
    socket.socket(socket.AF_UNIX).connect(f"\0{found[0]['local_name']}")
    elsewhere = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", reach], capture_output=True, text=True, check=False
    )
    assert "ConnectionRefusedError" in elsewhere.stderr, elsewhere.stderr
