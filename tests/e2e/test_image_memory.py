"""Clients of the NBD server that hold its memory and go no further: all connections together have a bound, and small
requests of others are served meanwhile."""

import contextlib
import socket
import struct
import threading
import time

import pytest
from lib.cluster import MIB
from lib.nbd import READ, REQUEST_MAGIC, WRITE, connect_patiently
from lib.processes import resident_bytes

CONNECTIONS = 30
LONG = 32 * MIB
# What all requests may take, and as much again as buffers of sockets and of the process may.
GROWTH_MAX = 400 * MIB
SMALL_REQUEST_S_MAX = 10


@pytest.fixture(scope="module")
def cluster(scenario):
    cluster = scenario.cluster(osd_size="4G")
    cluster.up()
    cluster.create_image("held", "256M")
    return cluster


def header(kind, cookie, length):
    return struct.pack(">IHHQQI", REQUEST_MAGIC, 0, kind, cookie, 0, length)


def send_until_it_waits(connection, data):
    """Sends what the server takes."""
    connection.socket.settimeout(2)
    with contextlib.suppress(TimeoutError):
        connection.socket.sendall(data)


def check_others(cluster, server, before, note, what):
    grown = max(0, resident_bytes(server) - before)
    begun = time.monotonic()
    with cluster.nbd("held", timeout=SMALL_REQUEST_S_MAX) as other:
        block = bytes([7]) * 4096
        other.write(4096, block)
        assert other.read(4096, 4096) == block
    took = time.monotonic() - begun
    note(f"{what}: {grown // MIB} MiB more, a small write and read beside it {took:.1f} s")
    assert grown < GROWTH_MAX, f"the server took {grown // MIB} MiB more"


def test_connections_have_a_bound(cluster, note):
    connections = []
    for _ in range(1100):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(10)
        connection.connect(str(cluster.nbd_socket))
        connections.append(connection)

    def is_greeted(connection):
        try:
            return connection.recv(18) != b""
        except ConnectionError:
            return False

    def is_open(connection):
        connection.setblocking(False)
        try:
            return connection.recv(1) != b""
        except BlockingIOError:
            return True
        except ConnectionError:
            return False

    # The oldest that say nothing make way for new ones.
    greeted = [connection for connection in connections if is_greeted(connection)]
    served = sum(map(is_open, greeted))
    note(f"of {len(connections)} connections {served} are served")
    assert 200 <= served <= 256
    for connection in connections:
        connection.close()
    connect_patiently(lambda: cluster.nbd("held"), 30).close()


def test_writes_that_do_not_end_have_a_bound(cluster, note):
    server = cluster.children()["nbd"]
    before = resident_bytes(server)
    held = [cluster.nbd("held") for _ in range(CONNECTIONS)]
    almost = header(WRITE, 1, LONG) + bytes([1]) * (LONG - 1)
    threads = [threading.Thread(target=send_until_it_waits, args=(connection, almost)) for connection in held]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check_others(cluster, server, before, note, f"{CONNECTIONS} writes of 32 MiB without their last byte")
    for connection in held:
        connection.socket.close()


def test_answers_that_nobody_takes_have_a_bound(cluster, note):
    with cluster.nbd("held") as writer:
        for offset in range(0, 256 * MIB, 8 * MIB):
            writer.write(offset, bytes([3]) * (8 * MIB))
    server = cluster.children()["nbd"]
    before = resident_bytes(server)
    held = [cluster.nbd("held") for _ in range(CONNECTIONS)]
    for connection in held:
        connection.socket.sendall(header(READ, 1, LONG) + header(READ, 2, LONG))
    time.sleep(5)
    check_others(cluster, server, before, note, f"{2 * CONNECTIONS} reads of 32 MiB whose answers nobody takes")
    for connection in held:
        connection.socket.close()
