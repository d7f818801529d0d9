"""Strangers cannot shut the doors: of connections without a log-in the oldest are closed, and those who are in, or come
with what lets them in, are served meanwhile."""

import contextlib
import http.client
import json
import socket
import ssl
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor

import pytest
from lib.console import Caller, User
from lib.handshake import Initiator, client_key, osd_public_keys
from lib.nvme import Controller, host_name, serving_cluster, subsystems
from lib.ports import free_port
from lib.waiting import wait_for

HOST = host_name("1")
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
# The head of a frame for the whole connection.
WINDOW_UPDATE = b"\0\0\4\x08\0\0\0\0\0"
# What somebody who is let in may wait meanwhile, on a machine that does other things as well.
SERVED_SECONDS_MAX = 8
# A stranger's connections beyond this would be closed on no listener.
HELD_MAX = {"admin": 32, "nbd": 64, "nvme": 64, "gateway": 1_024, "osd.0": 512, "cluster-state": 128}


@pytest.fixture(scope="module")
def nvme_address():
    return "127.0.0.1", free_port()


@pytest.fixture(scope="module")
def cluster(scenario, nvme_address):
    return serving_cluster(scenario, nvme_address, {"disk": (HOST,), "plain": ()}, "64M", osds=1, osd_size="2G")


@pytest.fixture(scope="module")
def ports(cluster, nvme_address):
    found = {name: port for name, port in cluster.listening_ports()}
    return found | {"nbd": cluster.nbd_port, "nvme": nvme_address[1], "gateway": cluster.s3_port}


class Held:
    """Connections of a stranger who says nothing, or the same to all."""

    def __init__(self, port, count, context=None, said=b""):
        self.sockets = []
        for _ in range(count):
            connection = socket.create_connection(("127.0.0.1", port), timeout=10)
            if context:
                connection = context.wrap_socket(connection, server_hostname="127.0.0.1")
            connection.sendall(said)
            self.sockets.append(connection)

    def open(self):
        """How many the other side has not closed."""
        return sum(not is_closed(connection) for connection in self.sockets)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for connection in self.sockets:
            connection.close()


def is_closed(connection):
    try:
        connection.setblocking(False)
        while connection.recv(65536):
            pass
        return True
    except (BlockingIOError, ssl.SSLWantReadError):
        return False
    except OSError:
        return True


def served(what):
    began = time.monotonic()
    what()
    seconds = time.monotonic() - began
    assert seconds < SERVED_SECONDS_MAX, f"{seconds:.1f} s"


def holds_few(held, name):
    wait_for(f"few connections to {name}", lambda: held.open() <= HELD_MAX[name], 10)


def test_the_console_stays_open(cluster, address, admin, ports):
    """Idle HTTP/2 connections without a log-in neither close it nor cut those who are in."""
    context = ssl.create_default_context(cafile=address.ca_file)
    context.set_alpn_protocols(["h2"])
    with Held(ports["admin"], 400, context, PREFACE) as held:
        served(lambda: Caller.logged_in(address, address.reader))
        served(lambda: admin.call("GET", "/api/v1/status"))
        holds_few(held, "admin")


@pytest.mark.nightly
def test_nobody_stays_without_a_log_in(address, ports):
    context = ssl.create_default_context(cafile=address.ca_file)
    context.set_alpn_protocols(["h2"])
    with Held(ports["admin"], 8, context, PREFACE) as held:
        wait_for("all are closed", lambda: held.open() == 0, 40)


def frame(kind, flags, stream, payload):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def unended_log_in(stream, size):
    """A request of HTTP/2 whose body does not end."""
    path, host = b"/api/v1/session", b"127.0.0.1"
    head = b"\x83\x87\x04" + bytes([len(path)]) + path + b"\x01" + bytes([len(host)]) + host
    return frame(1, 4, stream, head) + frame(0, 0, stream, b" " * 16_384) * (size // 16_384)


def await_window(connection):
    """Until the server takes more than the 64 KiB that HTTP/2 begins with."""
    answer = b""
    while WINDOW_UPDATE not in answer:
        part = connection.recv(65536)
        assert part, answer
        answer += part


def test_requests_that_do_not_end_take_little_memory(address, admin, ports):
    """The server keeps each until it is whole: the connection is cut off long before its time is over."""
    context = ssl.create_default_context(cafile=address.ca_file)
    context.set_alpn_protocols(["h2"])
    requests = [unended_log_in(2 * number + 1, 32 << 10) for number in range(24)]
    with Held(ports["admin"], 1, context, PREFACE) as held:
        await_window(held.sockets[0])
        with contextlib.suppress(OSError):
            held.sockets[0].sendall(b"".join(requests))
        wait_for("it is cut off", lambda: held.open() == 0, 10)
    with Held(ports["admin"], 1, context, PREFACE) as held:
        await_window(held.sockets[0])
        held.sockets[0].sendall(b"".join(requests[:8]))
        time.sleep(1)
        assert held.open() == 1, "a few are no reason"
    assert admin.call("GET", "/api/v1/health").status == 200


def log_in_from_elsewhere(address, user):
    """The status of a log-in from another address of this host."""
    place = urllib.parse.urlparse(address.url)
    context = ssl.create_default_context(cafile=address.ca_file)
    connection = http.client.HTTPSConnection(
        place.hostname, place.port, timeout=30, context=context, source_address=("127.0.0.2", 0)
    )
    with contextlib.closing(connection):
        body = json.dumps({"user": user.name, "password": user.password})
        headers = {"Content-Type": "application/json", "X-Atoll-CSRF": "login"}
        connection.request("POST", "/api/v1/session", body, headers)
        return connection.getresponse().status


def test_log_ins_under_way_delay_no_operator(address, admin):
    """Two hundred wrong log-ins at once: an operator from elsewhere logs in, and one who is in goes on."""

    def wrong(number):
        try:
            return Caller(address).log_in(User(f"nobody-{number}", "wrong")).status
        except OSError:
            # Its connection was the oldest of too many.
            return 0

    with ThreadPoolExecutor(max_workers=40) as pool:
        attempts = [pool.submit(wrong, number) for number in range(200)]
        time.sleep(1)
        served(lambda: admin.call("GET", "/api/v1/status"))
        began = time.monotonic()
        status = log_in_from_elsewhere(address, address.reader)
        assert status == 200 and time.monotonic() - began < SERVED_SECONDS_MAX, status
        statuses = {attempt.result() for attempt in attempts}
    assert statuses <= {0, 401, 429} and 429 in statuses, statuses


def test_silent_connections_cut_no_nvme_host(cluster, nvme_address, ports):
    """Neither a host that is connected, nor one that comes."""
    subsystem = subsystems(cluster)("disk")
    with Controller(nvme_address, subsystem, HOST) as before:
        before.write(0, b"a" * 4096)
        with Held(ports["nvme"], 1_100) as held:
            served(lambda: before.read(0, 4096))
            holds_few(held, "nvme")
            assert before.read(0, 4096) == b"a" * 4096
    with Held(ports["nvme"], 1_100), Controller(nvme_address, subsystem, HOST) as after:
        assert after.read(0, 4096) == b"a" * 4096


def test_silent_connections_cut_no_nbd_client(cluster, ports):
    with cluster.nbd("plain") as before, Held(ports["nbd"], 1_100) as held:
        before.write(0, b"b" * 4096)
        holds_few(held, "nbd")
        assert before.read(0, 4096) == b"b" * 4096


def test_silent_connections_keep_no_signed_request_away(cluster, ports):
    client = cluster.s3()
    client.create_bucket(Bucket="open")
    with Held(ports["gateway"], 3_000) as held:
        served(lambda: cluster.s3().list_buckets())
        served(lambda: client.list_buckets())
        holds_few(held, "gateway")


def test_silent_connections_keep_nobody_from_cluster_state(cluster, ports):
    with Held(ports["cluster-state"], 600) as held:
        served(lambda: cluster.json("status"))
        holds_few(held, "cluster-state")


def test_a_first_message_of_another_holds_no_connection_of_an_osd(cluster, ports):
    """Whoever has recorded one can send it again, and nothing that follows."""
    first = Initiator(osd_public_keys(cluster)["osd.0"], client_key(cluster)).first_message()
    with Held(ports["osd.0"], 700, said=first) as held:
        holds_few(held, "osd.0")
        served(lambda: cluster.json("osd", "ls"))
        wait_for("all are closed", lambda: held.open() == 0, 9)


def test_made_up_tokens_have_a_budget(cluster, address, admin):
    """Each costs cluster state a look-up. Who is logged in goes on, also from the same address."""
    statuses = [
        Caller.with_token(address, f"atoll_api_{number:064x}").call("GET", "/api/v1/health").status
        for number in range(100)
    ]
    assert statuses[:30] == [401] * 30, statuses
    assert 20 <= statuses.count(429) <= 68, statuses
    made_up = Caller(address)
    made_up.cookie = "atoll_session=" + "0" * 64
    assert made_up.call("GET", "/api/v1/health").status == 429, "a session that nobody has is a look-up, too"
    assert admin.call("GET", "/api/v1/health").status == 200
    wait_for("it is over", lambda: made_up.call("GET", "/api/v1/health").status == 401, 5)
