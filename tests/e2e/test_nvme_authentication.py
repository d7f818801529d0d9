"""NVMe hosts that prove themselves (DH-HMAC-CHAP), by an implementation of the host's side in Python. What the kernel's
does is in test_nvme_guest.py."""

import pathlib
import struct

import pytest
from lib import dhchap
from lib.nvme import (
    DISCOVERY,
    IDENTIFY,
    MUST_AUTHENTICATE,
    Controller,
    Queue,
    discover,
    host_name,
    serving_cluster,
    status_of,
    subsystems,
)
from lib.ports import free_port
from lib.verdicts import intact
from lib.waiting import wait_for

PROVEN, OPEN = map(host_name, "34")
AUTHENTICATION_REQUIRED, BUSY, INVALID_FIELD, COMMAND_SEQUENCE = 0x191, 0x181, 0x002, 0x00C
FAILED, CONCATENATION, NO_HASH, NO_GROUP = 1, 3, 4, 5


@pytest.fixture(scope="module")
def address():
    return "127.0.0.1", free_port()


@pytest.fixture(scope="module")
def cluster(scenario, address):
    return serving_cluster(scenario, address, dict.fromkeys(("disk", "other"), (PROVEN, OPEN)), "16M", osd_size="2G")


@pytest.fixture(scope="module")
def subsystem(cluster):
    return subsystems(cluster)("disk")


@pytest.fixture(scope="module")
def secrets(cluster):
    """(the host's, the gateways')."""
    told = cluster.json("nvme", "host", "set", PROVEN, "--mutual", "--hash", "sha384")
    return told["secret"], told["controller_secret"]


@pytest.fixture
def connect(address, subsystem, secrets):
    def connect(host=PROVEN, secrets=secrets):
        return Controller(address, subsystem, host, secrets=secrets)

    return connect


@pytest.fixture
def unproven(address, subsystem, secrets):
    """An admin queue whose host has yet to prove itself."""
    with Queue(address) as queue:
        assert queue.connect(subsystem, PROVEN) & MUST_AUTHENTICATE
        yield queue


def refused(queue, subsystem, secret, controller_secret=None, **options):
    """Why the controller ends an authentication; it ends the connection, too."""
    send, receive = queue.auth_send, queue.auth_receive
    with pytest.raises(dhchap.Refused) as error:
        dhchap.authenticate(send, receive, PROVEN, subsystem, secret, controller_secret, **options)
    with pytest.raises(ConnectionError):
        queue.auth_send(dhchap.negotiate(1, (1,), (0,)))
    return error.value.explanation


@pytest.mark.parametrize("is_mutual", [False, True])
def test_a_host_that_has_the_secret_uses_the_image(connect, secrets, is_mutual):
    """The admin queue and the I/O queue prove themselves; what is written is read."""
    with connect(secrets=secrets if is_mutual else secrets[:1]) as disk:
        disk.write(4096, b"p" * 4096)
        intact(disk.read(4096, 4096) == b"p" * 4096, "other bytes")


@pytest.mark.parametrize("group", range(4))
@pytest.mark.parametrize("identifier", [1, 2, 3])
def test_all_hash_functions_and_groups(unproven, subsystem, secrets, identifier, group):
    """Each that both have is taken, by itself."""
    options = {"hashes": (identifier,), "groups": (group,)}
    send, receive = unproven.auth_send, unproven.auth_receive
    assert dhchap.authenticate(send, receive, PROVEN, subsystem, *secrets, **options) == (identifier, group)
    assert unproven.fabrics(4, struct.pack("<B3xI", 0, 8))[1] == 0x1_0400, "the queue is none of a controller"


def test_discovery_is_for_hosts_that_have_proved_themselves(address, subsystem, secrets):
    """The discovery controller lists nothing before."""
    assert subsystem in dict(discover(address, PROVEN, secrets))
    assert status_of(discover, address, PROVEN) == AUTHENTICATION_REQUIRED
    assert subsystem in dict(discover(address, OPEN))


def test_nothing_is_done_for_a_host_before(cluster, unproven, address, subsystem, secrets, connect):
    """Commands are refused, and the image is not opened: another host gets it."""
    assert status_of(unproven.fabrics, 4, struct.pack("<B3xI", 0, 0x1C)) == AUTHENTICATION_REQUIRED
    assert status_of(unproven.command, IDENTIFY, (1,), expects=4096) == AUTHENTICATION_REQUIRED
    assert status_of(unproven.auth_receive) == COMMAND_SEQUENCE, "there is no message yet"
    wrong = struct.pack("<xBBBI", 1, 1, 0xE8, 16)
    assert status_of(unproven.fabrics, 5, wrong, bytes(16)) == INVALID_FIELD
    wait_for("nobody has the image", lambda: cluster.json("image", "info", "disk")["writer"] is None, 10)
    with connect(OPEN, None) as disk, Queue(address) as queue:
        assert disk.size == 16 << 20
        # The image is in use by now: the proof succeeds, and the answer is that of a connect.
        queue.connect(subsystem, PROVEN)
        assert status_of(dhchap.authenticate, queue.auth_send, queue.auth_receive, PROVEN, subsystem, *secrets) == BUSY


def test_an_io_queue_proves_itself_too(connect, address, subsystem):
    """Who knows the number of a controller gets no queue of it by that."""
    with connect() as disk, Queue(address) as queue:
        assert queue.connect(subsystem, PROVEN, 2, disk.id) & MUST_AUTHENTICATE
        assert status_of(queue.command, 2, (0, 0, 0), namespace=1, expects=512) == AUTHENTICATION_REQUIRED


def test_another_secret_is_refused(cluster, unproven, subsystem, secrets):
    """A wrong secret ends the connection, and the log tells."""
    assert refused(unproven, subsystem, secrets[1]) == FAILED
    assert "failed_nvme_authentication" in (cluster.data / "log" / "nvme.log").read_text()


def test_a_gateway_proves_that_it_has_its_secret(address, subsystem, secrets):
    """A host that expects another secret of the gateway notices."""
    with pytest.raises(AssertionError, match="the controller does not hold its secret"):
        Controller(address, subsystem, PROVEN, secrets=(secrets[0], secrets[0]))


@pytest.mark.parametrize(
    ("options", "explanation"),
    [({"hashes": (4,)}, NO_HASH), ({"groups": (4, 5)}, NO_GROUP), ({"hashes": ()}, NO_HASH)],
)
def test_what_is_not_in_common_is_told(unproven, subsystem, secrets, options, explanation):
    """The failure says what is missing."""
    assert refused(unproven, subsystem, *secrets, **options) == explanation


def test_messages_that_are_wrong_are_told(unproven):
    """A secure channel is asked for, which there is not."""
    unproven.auth_send(dhchap.negotiate(7, (1,), (0,), secure_channel=1))
    assert unproven.auth_receive()[:8] == bytes([0, 0xF1, 0, 0, 7, 0, 1, CONCATENATION])


@pytest.mark.parametrize("message", [b"x", bytes(8), b"\0" * 7 + b"\x20" + bytes(64), b"\xff" * 4096])
def test_hostile_messages(unproven, message):
    """They are refused as messages, and the gateway goes on."""
    unproven.auth_send(message)
    assert unproven.auth_receive()[:2] == b"\0\xf1"


def test_secrets_are_wrapped_and_rewrapped(cluster, connect, secrets):
    """Secrets are under the key service: counted, wrapped anew, and never listed."""
    count = lambda: [version["has_wrapped"]["nvme_secrets"] for version in cluster.json("key", "ls")[0]["versions"]]
    assert count()[-1] == 4, "two secrets of 48 bytes"
    cluster.cli("key", "rotate")
    assert count()[-2:] == [0, 4]
    with connect() as disk:
        disk.flush()
    listed = cluster.json("nvme", "host", "ls")
    assert [(host["host"], host["secret"]["is_mutual"]) for host in listed] == [(PROVEN, True)]
    text = cluster.cli("nvme", "host", "ls").stdout + str(listed) + cluster.log_text()
    assert not any(secret in text for secret in secrets)


@pytest.mark.needs("nvme")
def test_a_new_secret_takes_the_place_of_the_old_one(scenario, cluster, connect, secrets):
    """A host that is connected stays; its next connection needs the new secret."""
    made = scenario.run("nvme", "gen-dhchap-key", "--hmac=1", f"--nqn={PROVEN}").stdout.strip()
    file = pathlib.Path(scenario.directory, "secret")
    file.write_text(made + "\n")
    with connect() as disk:
        told = cluster.json("nvme", "host", "set", PROVEN, "--secret-file", file)
        assert told["secret"] is None and told["is_mutual"] is False
        disk.flush()
    with pytest.raises(dhchap.Refused):
        connect()
    with pytest.raises(dhchap.Refused):
        connect(secrets=(made, secrets[1]))
    with connect(secrets=(made,)) as disk:
        disk.flush()


def test_what_the_command_refuses(cluster, scenario):
    """What is no secret, no name, or the same secret both ways."""
    file = pathlib.Path(scenario.directory, "wrong")
    file.write_text("DHHC-1:00:AAAA:\n")
    wrong = cluster.cli("nvme", "host", "set", PROVEN, "--secret-file", file, ok=(1,)).stderr
    assert "holds no secret" in wrong and "nvme gen-dhchap-key" in wrong
    assert "begins with 'nqn.'" in cluster.cli("nvme", "host", "set", "host", ok=(1,)).stderr
    file.write_text("DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:")
    both = ("--secret-file", file, "--controller-secret-file", file)
    assert "must differ" in cluster.cli("nvme", "host", "set", PROVEN, *both, ok=(1,)).stderr
    assert "no secret of NVMe host" in cluster.cli("nvme", "host", "rm", OPEN, ok=(1,)).stderr


def test_without_a_secret_again(cluster, connect, address):
    """After 'rm' the host connects without."""
    cluster.cli("nvme", "host", "rm", PROVEN)
    assert cluster.json("nvme", "host", "ls") == []
    with connect(secrets=None) as disk:
        disk.flush()
    assert len(discover(address, PROVEN)) == 2
    with Queue(address) as queue:
        assert not queue.connect(DISCOVERY, PROVEN) & MUST_AUTHENTICATE
