"""What strangers try leaves a trail in the logs: the kind of event and who it was, in few lines however often."""

import contextlib
import os
import re
import socket
import struct

import boto3
import pytest
from botocore.client import Config
from botocore.exceptions import ClientError
from lib.handshake import Initiator, client_key, etcdctl, knock, osd_public_keys
from lib.nbd import OPTION_MAGIC, OPTION_STARTTLS
from lib.operator import Small
from lib.waiting import wait_for

pytestmark = pytest.mark.needs("etcdctl")

ATTEMPTS, LINES_MAX = 300, 20
TLS_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(300)


class Watched:
    """A cluster that strangers try."""

    def __init__(self, scenario):
        self.small = Small(scenario)
        self.cluster = self.small.cluster
        self.osd_key = osd_public_keys(self.cluster)["osd.0"]

    def port(self, process):
        found = {name: port for name, port in self.cluster.listening_ports()}
        return found[process]


@pytest.fixture(scope="module")
def watched(scenario):
    return Watched(scenario)


def send(port, data):
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection, contextlib.suppress(OSError):
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass


def broken_tls(port):
    """Begins TLS at an NBD server as it should be, and goes on with noise."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        assert connection.recv(18).startswith(b"NBDMAGIC")
        connection.sendall(struct.pack(">IQII", 3, OPTION_MAGIC, OPTION_STARTTLS, 0))
        assert len(connection.recv(20)) == 20
        with contextlib.suppress(OSError):
            connection.sendall(TLS_HELLO + os.urandom(300))
            while connection.recv(4096):
                pass


def s3_error(cluster, access, secret):
    credentials = cluster.credentials()
    s3 = boto3.client(
        "s3",
        endpoint_url=credentials["endpoint"],
        region_name="us-east-1",
        aws_access_key_id=access or credentials["access_key"],
        aws_secret_access_key=secret,
        config=Config(retries={"total_max_attempts": 1}),
    )
    with pytest.raises(ClientError):
        s3.list_buckets()


def stranger(watched):
    knock(watched.port("osd.0"), Initiator(watched.osd_key).first_message(), 2)


def impostor(watched):
    """Whoever has a client's key and takes another key for the OSD's."""
    other = Initiator(Initiator(watched.osd_key).private.public_key().public_bytes_raw(), client_key(watched.cluster))
    knock(watched.port("osd.0"), other.first_message(), 2)


def password(watched, given):
    command, environment = etcdctl(watched.cluster)
    at = command.index("--user") + 1
    command[at] = f"root:{given}"
    watched.cluster.scenario.run(*command, "get", "x", env=environment, ok=None)


def without_token(watched):
    command, environment = etcdctl(watched.cluster)
    at = command.index("--user")
    watched.cluster.scenario.run(*command[:at], "get", "x", env=environment, ok=None)


# Each with the process that is tried, and words of the line.
TRIED = {
    "an unknown key at an OSD": ("osd.0", stranger, "refused_key"),
    "a wrong key of the OSD": ("osd.0", impostor, "failed_handshake"),
    "random bytes at an OSD": (
        "osd.0",
        lambda watched: send(watched.port("osd.0"), os.urandom(400)),
        "failed_handshake",
    ),
    "random bytes at NBD": ("nbd", lambda watched: send(watched.cluster.nbd_port, os.urandom(400)), "malformed_input"),
    "a broken TLS handshake at NBD": ("nbd", lambda watched: broken_tls(watched.cluster.nbd_port), "failed_tls"),
    "a wrong secret of S3": ("gateway", lambda watched: s3_error(watched.cluster, None, "wrong"), "bad_signature"),
    "an unknown access key": (
        "gateway",
        lambda watched: s3_error(watched.cluster, "AKNOBODY", "x"),
        "unknown_access_key",
    ),
    "random bytes at S3": (
        "gateway",
        lambda watched: send(watched.cluster.s3_port, os.urandom(400)),
        "malformed_input",
    ),
    "a broken TLS handshake at S3": (
        "gateway",
        lambda watched: send(watched.cluster.s3_tls_port, os.urandom(400)),
        "failed_tls",
    ),
    "a wrong password of cluster state": ("cluster-state", lambda watched: password(watched, "wrong"), "bad_password"),
    "cluster state without a token": ("cluster-state", without_token, "bad_token"),
}


OFTEN = ["an unknown key at an OSD", "random bytes at an OSD", "random bytes at S3"]


@pytest.mark.parametrize("what", TRIED, ids=lambda what: what.replace(" ", "-"))
def test_what_strangers_try_is_logged(watched, what):
    """A line with the kind of event and who did it, and none of the secrets that were tried."""
    process, attempt, kind = TRIED[what]
    before = len(lines_of(watched, process))
    attempt(watched)
    new = lambda: [line for line in lines_of(watched, process)[before:] if kind in line]
    lines = wait_for(f"{process} logs {kind}", new, 4)
    assert "127.0.0.1" in lines[0], lines
    assert "wrong" not in re.sub(kind, "", lines[0]), lines


@pytest.fixture(scope="module")
def flooded(watched):
    """Some things were tried very often; how many lines each log had before."""
    before = {process: len(lines_of(watched, process)) for process in ("osd.0", "gateway")}
    for what in OFTEN:
        for _ in range(ATTEMPTS):
            TRIED[what][1](watched)
    return before


@pytest.mark.nightly
@pytest.mark.parametrize("what", OFTEN, ids=lambda what: what.replace(" ", "-"))
def test_what_is_tried_often_makes_few_lines(watched, flooded, what):
    """The rest is counted, and the count is said."""
    process, _, kind = TRIED[what]
    new = lambda: [line for line in lines_of(watched, process)[flooded[process] :] if kind in line]
    wait_for("all are counted", lambda: counted(new()) >= ATTEMPTS, 15)
    assert len(new()) <= LINES_MAX, f"{len(new())} lines: {new()[:3]}"


def lines_of(watched, process):
    """Lines about security in the log of a process."""
    text = watched.small.path(f"log/{process}.log").read_text()
    return [line for line in text.splitlines() if "security" in line]


def counted(lines):
    """How many attempts these lines tell of: each of one, and of how many more."""
    return len(lines) + sum(int(more[1]) for line in lines if (more := re.search(r"\bmore=(\d+)", line)))


def test_everything_is_well_after_all_that(watched):
    watched.small.check()
