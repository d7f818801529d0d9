"""NVMe hosts that use TLS with pre-shared keys, by OpenSSL as the host's end of TLS; keys and identities are derived in
Python."""

import contextlib
import os
import pathlib
import random
import socket

import pytest
from lib.nvme import (
    DISCOVERY,
    Controller,
    Queue,
    discovery_records,
    host_name,
    serving_cluster,
    status_of,
    subsystems,
)
from lib.nvme_tls import Psk, TlsSocket, dialer, key_of, key_text, old_info, standard_info
from lib.ports import free_port
from lib.verdicts import intact
from lib.waiting import wait_for

pytestmark = pytest.mark.needs("openssl")

KEYED, MIXED, OPEN = map(host_name, "567")
INVALID_HOST, INVALID_PARAMETERS, BUSY = 0x184, 0x182, 0x181
RECORD = b"\x16\x03\x01"
ALERT = b"\x15\x03\x03\x00\x02\x02"
NO_KEY, UNPROVED, MALFORMED, OTHER_MESSAGE = 40, 51, 50, 10


@pytest.fixture(scope="module")
def address():
    return "127.0.0.1", free_port()


@pytest.fixture(scope="module")
def cluster(scenario, address):
    images = dict.fromkeys(("disk", "other"), (KEYED, MIXED, OPEN))
    return serving_cluster(scenario, address, images, "16M", osd_size="2G")


@pytest.fixture(scope="module")
def subsystem(cluster):
    return subsystems(cluster)("disk")


@pytest.fixture(scope="module")
def keys(cluster):
    """One that the command has made, and one that may stay unused."""
    made = cluster.json("nvme", "host", "set-tls", KEYED)["key"]
    return made, cluster.json("nvme", "host", "set-tls", MIXED, "--hash", "sha384", "--allow-plain")["key"]


@pytest.fixture
def dial(scenario, subsystem, keys):
    """How the host with the first key connects."""

    def dial(key=keys[0], host=KEYED, of=subsystem, **options):
        return dialer(scenario, Psk(key, host, of, **options))

    return dial


@pytest.fixture
def set_key(cluster, scenario):
    """Sets the key of a host by a file."""

    def set_key(host, text, *options):
        file = pathlib.Path(scenario.directory, "key")
        file.write_text(text + "\n")
        return cluster.json("nvme", "host", "set-tls", host, "--key-file", file, *options)

    return set_key


def answer_to(address, *parts, timeout=10):
    """What the target sends to these bytes before it closes the connection."""
    with socket.create_connection(address, timeout) as connection:
        answer = b""
        # It may close the connection with bytes unread.
        with contextlib.suppress(ConnectionError):
            for part in parts:
                connection.sendall(part)
            while received := connection.recv(4096):
                answer += received
        return answer


@pytest.mark.parametrize("digests", [0, 3])
def test_a_host_with_the_key_uses_the_image(address, subsystem, dial, digests):
    """The admin queue and the I/O queue go through TLS, with large and small commands."""
    noise = random.Random(digests).randbytes(1 << 20)
    with Controller(address, subsystem, KEYED, digests, dial=dial()) as disk:
        length = 1 << 20 if digests == 0 else 65536
        disk.write(1 << 20, noise[:length])
        disk.write(4096, b"t" * 4096)
        intact(disk.read(1 << 20, length) == noise[:length], "other bytes")
        intact(disk.read(4096, 4096) == b"t" * 4096, "other bytes")


@pytest.mark.parametrize("info", [standard_info, old_info])
@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(("transform", "length"), [(0, 32), (1, 32), (0, 48), (2, 48)])
def test_all_keys_and_identities(set_key, address, subsystem, dial, transform, length, version, info):
    """Keys of both lengths, bound to the host or not, in both versions of identities, of old and new hosts."""
    key = key_text(transform, os.urandom(length))
    assert set_key(MIXED, key)["key"] is None, "who has given it knows it"
    dial = dial(key, MIXED, version=version, info=info)
    with Queue(address, dial=dial) as queue:
        assert queue.connect(subsystem, MIXED)


def test_a_group_that_the_target_prefers(scenario, address, subsystem, keys):
    """OpenSSL begins with X25519 and is asked for another group; here it begins with that."""
    options = {"options": ("-tls1_3", "-groups", "P-256")}
    with Queue(address, dial=dialer(scenario, Psk(keys[0], KEYED, subsystem), **options)) as queue:
        assert queue.connect(subsystem, KEYED)


def test_a_host_with_a_key_is_refused_without_tls(cluster, address, subsystem, keys):
    """For images and for discovery; others go on as they did."""
    assert status_of(Controller, address, subsystem, KEYED) == INVALID_HOST
    assert status_of(discovery_records, address, KEYED) == INVALID_HOST
    assert "connects without TLS, for which it has a key" in cluster.log_text()
    with Controller(address, subsystem, OPEN) as disk:
        disk.flush()


def test_a_host_may_connect_without_if_that_is_allowed(cluster, address, subsystem, dial):
    """Until the setting is changed."""
    key = cluster.json("nvme", "host", "set-tls", MIXED, "--allow-plain")["key"]
    with Controller(address, subsystem, MIXED) as disk:
        disk.write(0, b"p" * 512)
    with Controller(address, subsystem, MIXED, dial=dial(key, MIXED)) as disk:
        intact(disk.read(0, 512) == b"p" * 512, "other bytes")


def test_queues_of_a_controller_are_all_with_tls_or_all_without(cluster, address, subsystem, dial):
    """Who knows the number of a controller gets no queue of it beside TLS."""
    key = cluster.json("nvme", "host", "set-tls", MIXED, "--allow-plain")["key"]
    with Controller(address, subsystem, MIXED, dial=dial(key, MIXED)) as disk, Queue(address) as queue:
        assert status_of(queue.connect, subsystem, MIXED, 2, disk.id) == INVALID_HOST
    wait_for("the image is free", lambda: cluster.json("image", "info", "disk")["writer"] is None, 10)
    with Controller(address, subsystem, MIXED) as disk, Queue(address, dial=dial(key, MIXED)) as queue:
        assert status_of(queue.connect, subsystem, MIXED, 2, disk.id) == INVALID_HOST


def test_the_discovery_log_tells_who_needs_tls(cluster, address, dial):
    """Bytes 3 and 768 of an entry: whether a secure channel is needed, and which there is."""
    told = lambda host, **options: {(one[3], one[768]) for one in discovery_records(address, host, **options)}
    assert told(KEYED, dial=dial(of=DISCOVERY)) == {(1, 2)}
    cluster.cli("nvme", "host", "set-tls", MIXED, "--allow-plain")
    assert told(MIXED) == {(2, 2)}
    assert told(OPEN) == {(2, 0)}


def test_a_key_is_for_one_host_and_one_subsystem(cluster, address, subsystem, dial):
    """What the host says when it connects must be what its key is for."""
    with Queue(address, dial=dial()) as queue:
        assert status_of(queue.connect, subsystem, OPEN) == INVALID_HOST
    with Queue(address, dial=dial(of=DISCOVERY)) as queue:
        assert status_of(queue.connect, subsystem, KEYED) == INVALID_PARAMETERS
    other = subsystem.removesuffix("disk") + "other"
    with Queue(address, dial=dial()) as queue:
        assert status_of(queue.connect, other, KEYED) == INVALID_PARAMETERS
    with Controller(address, other, KEYED, dial=dial(of=other)) as disk:
        disk.flush()
    assert "another subsystem than its key is for" in cluster.log_text()


def test_another_key_is_refused(scenario, cluster, address, subsystem, keys):
    """So are hosts that have none, and names that are none. The host is not told which."""
    other = key_text(1, os.urandom(32))
    wrong = Psk(other, KEYED, subsystem), Psk(keys[0], OPEN, subsystem), Psk(keys[0], "nobody", subsystem)
    for psk in wrong:
        assert "decrypt error" in TlsSocket(scenario, address, psk).refused()
    longer = Psk(key_text(2, os.urandom(48)), KEYED, subsystem)
    assert "decrypt error" in TlsSocket(scenario, address, longer).refused(), "the host's key is of SHA-256"
    log = cluster.log_text()
    assert "failed_tls: 127.0.0.1: the host does not prove a key that it has here" in log
    assert not any(secret in log for secret in (other, wrong[0].key.hex(), keys[0]))


@pytest.mark.parametrize("options", [("-tls1_2",), ("-tls1_3", "-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256")])
def test_nothing_older_or_other_than_the_two_cipher_suites(scenario, address, subsystem, keys, options):
    """TLS 1.2 has pre-shared keys, too, and ChaCha20 has SHA-256."""
    psk = Psk(keys[0], KEYED, subsystem)
    TlsSocket(scenario, address, psk, options=options).refused()


def test_no_certificate_is_shown_to_who_offers_no_key(scenario, address):
    """A client of TLS with certificates is told that the handshake has failed."""
    told = scenario.run("openssl", "s_client", "-connect", f"{address[0]}:{address[1]}", "-tls1_3", ok=(1,))
    assert "handshake failure" in told.stderr


@pytest.mark.parametrize(
    ("record", "alert"),
    [
        (RECORD + b"\x00\x04\x02\x00\x00\x00", OTHER_MESSAGE),
        (RECORD + b"\x00\x00", MALFORMED),
        (RECORD + b"\xff\xff", MALFORMED),
        (RECORD + b"\x00\x04\x01\xff\xff\xff", MALFORMED),
        (RECORD + b"\x00\x05\x01\x00\x00\x01\x03", MALFORMED),
        (RECORD + b"\x00\x2c\x01\x00\x00\x28" + b"\3\3" + bytes(32) + b"\0\0\0\0\0\1", MALFORMED),
        (RECORD + b"\x00\x2d\x01\x00\x00\x29" + b"\3\3" + bytes(32) + b"\0\0\2\x13\1\1\0", NO_KEY),
        (RECORD + b"\x00\x01\x01" * 1 + (RECORD + b"\x00\x01\x01") * 3000, MALFORMED),
        (b"\x16\x02\x00\x00\x01\x01", OTHER_MESSAGE),
        (RECORD + os.urandom(600), None),
    ],
)
def test_hostile_first_messages(address, subsystem, record, alert):
    """They are refused with an alert, and the target goes on."""
    answer = answer_to(address, record)
    assert answer[:6] == ALERT and len(answer) == 7, answer
    assert alert is None or answer[6] == alert
    with Controller(address, subsystem, OPEN) as disk:
        disk.flush()


def recorded_hello(scenario, psk):
    """What a host with this key sends first."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = TlsSocket(scenario, server.getsockname(), psk)
        connection, _ = server.accept()
        with connection:
            connection.settimeout(10)
            header = connection.recv(5, socket.MSG_WAITALL)
            hello = header + connection.recv(int.from_bytes(header[3:], "big"), socket.MSG_WAITALL)
        client.close()
    return hello


def test_a_message_that_was_heard_is_of_no_use(scenario, address, subsystem, keys):
    """Who repeats a host's first message gets no further: the handshake ends with noise in place of its keys."""
    hello = recorded_hello(scenario, Psk(keys[0], KEYED, subsystem))
    for noise in (os.urandom(100), RECORD + b"\x00\x10" + os.urandom(16), hello, b""):
        with socket.create_connection(address, 10) as connection:
            connection.sendall(hello)
            assert connection.recv(5)[:3] == b"\x16\x03\x03", "the target goes on with the handshake"
            # It may close the connection with noise unread.
            with contextlib.suppress(ConnectionError):
                connection.sendall(noise)
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass
    # In pieces it is the same message.
    with socket.create_connection(address, 10) as connection:
        for byte in hello:
            connection.sendall(bytes([byte]))
        assert connection.recv(5)[:3] == b"\x16\x03\x03"


@pytest.mark.parametrize("begun", [b"\x16", RECORD, RECORD + b"\x02\x00\x01\x00\x01\xfc\x03\x03"])
def test_a_handshake_that_stops_is_cut_off(address, begun):
    """As a connection that does not become a queue; a host that leaves before is none of it."""
    with socket.create_connection(address) as connection:
        connection.sendall(begun)
    if len(begun) == 1:
        assert answer_to(address, begun, timeout=40) == b""


def test_secrets_are_wanted_under_tls_too(cluster, address, subsystem, dial):
    """TLS proves that the host has its key; a secret besides has to be proved besides."""
    secret = cluster.json("nvme", "host", "set", KEYED)["secret"]
    with Queue(address, dial=dial()) as queue:
        queue.connect(subsystem, KEYED)
        assert status_of(queue.fabrics, 4, bytes(8)) == 0x191
    with Controller(address, subsystem, KEYED, secrets=(secret, None), dial=dial()) as disk:
        disk.flush()
    listed = {host["host"]: host for host in cluster.json("nvme", "host", "ls")}
    assert listed[KEYED]["secret"]["is_mutual"] is False and listed[KEYED]["tls"]["is_plain_allowed"] is False
    cluster.cli("nvme", "host", "rm", KEYED)


def test_keys_are_wrapped_and_rewrapped(cluster, address, subsystem, dial, keys):
    """Keys are under the key service: counted, wrapped anew, and never listed."""
    cluster.cli("nvme", "host", "set-tls", MIXED, "--hash", "sha384")
    count = lambda: [version["has_wrapped"]["nvme_secrets"] for version in cluster.json("key", "ls")[0]["versions"]]
    assert count()[-1] == 3, "one of 32 bytes and one of 48"
    cluster.cli("key", "rotate")
    assert count()[-2:] == [0, 3]
    with Controller(address, subsystem, KEYED, dial=dial()) as disk:
        disk.flush()
    text = cluster.cli("nvme", "host", "ls").stdout + str(cluster.json("nvme", "host", "ls")) + cluster.log_text()
    assert "required" in text and keys[0] not in text


@pytest.mark.needs("nvme")
@pytest.mark.parametrize("number", [1, 2])
def test_keys_of_nvme_cli(scenario, cluster, set_key, address, subsystem, dial, number):
    """The command takes those of nvme-cli, and the other way round."""
    made = scenario.run("nvme", "gen-tls-key", f"--hmac={number}").stdout.strip()
    set_key(MIXED, made)
    with Queue(address, dial=dial(made, MIXED)) as queue:
        queue.connect(subsystem, MIXED)
    ours = cluster.json("nvme", "host", "set-tls", MIXED, "--hash", {1: "sha256", 2: "sha384"}[number])["key"]
    told = scenario.run("nvme", "check-tls-key", f"--key={ours}")
    assert "is valid" in told.stdout and key_of(ours)[0] == number


def test_what_the_command_refuses(cluster, set_key, scenario):
    """What is no key, no name, or not there."""
    file = pathlib.Path(scenario.directory, "wrong")
    file.write_text("NVMeTLSkey-1:01:AAAA:\n")
    wrong = cluster.cli("nvme", "host", "set-tls", KEYED, "--key-file", file, ok=(1,)).stderr
    assert "holds no key for TLS" in wrong and "AAAA" not in wrong
    assert "begins with 'nqn.'" in cluster.cli("nvme", "host", "set-tls", "host", ok=(1,)).stderr
    assert "no key for TLS" in cluster.cli("nvme", "host", "rm-tls", OPEN, ok=(1,)).stderr


def test_without_a_key_again(cluster, scenario, address, subsystem, keys):
    """A connected host stays; after 'rm-tls' it connects without, and with the key no more."""
    psk = Psk(keys[0], KEYED, subsystem)
    with Controller(address, subsystem, KEYED, dial=dialer(scenario, psk)) as disk:
        cluster.cli("nvme", "host", "rm-tls", KEYED)
        disk.flush()
    assert "decrypt error" in TlsSocket(scenario, address, psk).refused()
    with Controller(address, subsystem, KEYED) as disk:
        disk.flush()
