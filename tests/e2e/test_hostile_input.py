"""Hostile input on every port, and wrong keys and passwords."""

import contextlib
import http.client
import os
import random
import re
import select
import socket
import time
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from botocore.exceptions import ClientError, ParamValidationError
from lib import handshake
from lib.cluster import MIB
from lib.garbage import DRIP, DRIPS, Drip, changed, seeds, send
from lib.handshake import client_key, knock, osd_public_keys
from lib.load import BlockLoad
from lib.processes import is_alive, resident_bytes
from lib.s3 import Uploader, error_of
from lib.tiers import nightly_but
from lib.verdicts import intact
from lib.waiting import Failed, stays, under_load, wait_for

pytestmark = pytest.mark.needs("etcdctl")


SHORT_CONNECTIONS = 1000
IDLE_CONNECTIONS = 250
DRIPPING_SECONDS, HANDSHAKE_BYTES_MAX = 8, 25
PROCESSES = ("osd.0", "osd.1", "osd.2", "gateway", "nbd", "cluster-state", "admin")
ETCD_COMMANDS = [
    ["get", "--prefix", "/", "--print-value-only=false"],
    ["put", "/atoll/users/evil", "{}"],
    ["del", "--prefix", "/atoll/"],
]
GROWTH_BYTES_MAX = 512 * MIB


def pour(name, address, rounds, rng):
    """Truncated, changed and random input."""
    corpus, count = seeds(name), 0
    for _ in range(rounds):
        for seed in corpus:
            for data in (seed, seed[: rng.randrange(len(seed) + 1)], changed(seed, rng)):
                send(address, data, rng.choice(("close", "reset", "close", "half-close")), 0.02)
                count += 1
    for size in (1, 7, 100, 4096, 65536, MIB) * rounds:
        send(address, rng.randbytes(size), rng.choice(("close", "reset", "half-close")), 0.02)
        count += 1
    return count


def connected(address):
    connection = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
    connection.settimeout(5)
    connection.connect(address)
    return connection


def ask(cluster, method, path, headers=None, body=None):
    """Status and body of an answer to a request without a signature."""
    place = urllib.parse.urlparse(cluster.credentials()["endpoint"])
    connection = (
        http.client.HTTPSConnection(place.hostname, place.port, timeout=20, context=cluster.trust())
        if place.scheme == "https"
        else http.client.HTTPConnection(place.hostname, place.port, timeout=20)
    )
    with contextlib.closing(connection):
        connection.request(method, path, body=body, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()


class Target:
    """A cluster under a small checked load, which must go on whatever is sent to its ports."""

    def __init__(self, cluster):
        self.cluster = cluster
        cluster.create_image("plain", "64M")
        cluster.create_image("load", "64M")
        s3 = cluster.s3()
        s3.create_bucket(Bucket="bucket")
        self.uploader = Uploader(s3, "bucket")
        for number in range(60):
            self.uploader.put(f"kept/{number}", random.Random(number).randbytes(1 + number * 3000))
        self.image = random.Random(1).randbytes(4 * MIB)
        with cluster.nbd("plain") as connection:
            connection.write(0, self.image)
        self.first = cluster.process_ids()
        self.before = dict(self.first)
        self.memory = {name: resident_bytes(pid) for name, pid in self.first.items()}
        self.load = BlockLoad(lambda: cluster.nbd("load"), threads=2, blocks_per_thread=200).start()

    def addresses(self, name):
        found = [("127.0.0.1", port) for process, port in sorted(self.cluster.listening_ports()) if process == name]
        assert found, f"{name} listens nowhere"
        return found + ([str(self.cluster.nbd_socket)] if name == "nbd" else [])

    def every(self):
        return [(name, address) for name in PROCESSES for address in self.addresses(name)]

    def serves_within(self):
        """Seconds that a GET, an NBD read and status take."""
        started = time.monotonic()
        self.cluster.s3().get_object(Bucket="bucket", Key="kept/3")["Body"].read()
        with self.cluster.nbd("plain") as connection:
            connection.read(0, 65536)
        self.cluster.json("status")
        return time.monotonic() - started

    def check_alive(self):
        """All processes are those of before; one that has died is told once."""
        # The supervisor notices a death within a fraction of a second.
        with contextlib.suppress(Failed):
            stays("all processes live", lambda: all(map(is_alive, self.before.values())), 0.3, 0.05)
        if not all(map(is_alive, self.before.values())):
            wait_for("the dead are replaced", lambda: all(map(is_alive, self.cluster.process_ids().values())), 30)
        now = self.cluster.process_ids()
        changes = [f"{name} {pid} -> {now.get(name)}" for name, pid in self.before.items() if now.get(name) != pid]
        self.before = now
        text = self.cluster.log_text()
        panic = text[text.rfind("panicked at") - 40 :][:300] if "panicked at" in text else "no panic in the logs"
        assert not changes, f"died and was restarted: {', '.join(changes)}\n{panic}"


@pytest.fixture(scope="module")
def cluster(scenario):
    cluster = scenario.cluster("ports", osd_size="4G")
    cluster.up()
    return cluster


@pytest.fixture(scope="module")
def target(cluster):
    target = Target(cluster)
    yield target
    target.load.stop(60)


def test_every_child_listens_somewhere(target, note):
    """Every child listens somewhere: OSDs, gateway, NBD, cluster state. No other process does."""
    listening = sorted(target.cluster.listening_ports())
    assert {name for name, _ in listening} == set(PROCESSES), f"{listening}"
    note(", ".join(f"{name}:{port}" for name, port in listening))


@pytest.mark.parametrize("name", PROCESSES)
def test_truncated_changed_and_random_input(scenario, target, name, note):
    """Truncated, changed and random input on all ports of a process."""
    rng, rounds = random.Random(f"99/{name}"), max(1, int(2 * scenario.scale))
    for address in target.addresses(name):
        note(f"{label(name, address)}: {pour(name, address, rounds, rng)} connections")
    target.check_alive()


@pytest.mark.parametrize("name", nightly_but(["osd.0", "gateway", "nbd"], PROCESSES))
def test_many_short_connections(target, name):
    """1,000 short connections to each port of a process."""
    for address in target.addresses(name):
        with ThreadPoolExecutor(16) as pool:
            list(
                pool.map(
                    lambda n, address=address: send(address, b"x" * (n % 3), "reset" if n % 2 else "close"),
                    range(SHORT_CONNECTIONS),
                )
            )
    target.check_alive()


@pytest.mark.nightly
def test_slow_and_idle_connections_to_every_port(target, note):
    """Slow and idle connections to every port; others are served meanwhile."""
    with contextlib.ExitStack() as held:
        for _, address in target.every():
            for _ in range(IDLE_CONNECTIONS):
                held.enter_context(connected(address))
        dripping = [
            Drip(DRIPS.get(name, DRIP), held.enter_context(connected(address)))
            for name, address in target.every()
            for _ in range(8)
        ]
        slowest, deadline = 0, time.monotonic() + DRIPPING_SECONDS
        while time.monotonic() < deadline:
            for drip in dripping:
                drip.send_a_byte()
            slowest = max(slowest, target.serves_within())
            under_load(0.5)
        note(f"GET, NBD read and status took at most {slowest:.2f} s")
    target.check_alive()


def test_the_load_beside_all_this_saw_no_error_and_no_wrong_byte(target, note):
    """The load beside all this saw no error and no wrong byte."""
    assert target.load.stop(60), "a thread hangs"
    assert not target.load.wrong and not target.load.error_texts, (
        f"{target.load.wrong[:3]} {target.load.error_texts[:3]}"
    )
    with target.cluster.nbd("load") as connection:
        target.load.verify(connection)
    assert not target.load.wrong, f"{target.load.wrong[:3]}"
    slowest = max((seconds for _, seconds in target.load.slowest), default=0)
    note(f"{target.load.acked} writes, slowest {slowest:.2f} s")


def label(name, address):
    return f"{name} ({address[1] if isinstance(address, tuple) else 'Unix socket'})"


@pytest.mark.parametrize(
    ("what", "code"),
    [("an unknown access key", "InvalidAccessKeyId"), ("a wrong secret key", "SignatureDoesNotMatch")],
)
def test_s3_with_wrong_credentials(target, what, code):
    """S3 with wrong credentials: the error that says which."""
    secret = "wrong" + target.cluster.credentials()["secret_key"][5:]
    client = target.cluster.s3(access="AKIDOESNOTEXIST00000") if "access" in what else target.cluster.s3(secret=secret)
    for call in (
        client.list_buckets,
        lambda: client.get_object(Bucket="bucket", Key="kept/1"),
        lambda: client.put_object(Bucket="bucket", Key="bad", Body=b"x"),
        lambda: client.delete_object(Bucket="bucket", Key="kept/1"),
    ):
        assert error_of(call) == (403, code)


def test_s3_without_a_signature(target):
    """S3 without a signature: AccessDenied."""
    for method, path in (
        ("GET", "/"),
        ("GET", "/bucket/kept/1"),
        ("PUT", "/bucket/bad"),
        ("DELETE", "/bucket/kept/1"),
        ("GET", "/bucket?list-type=2"),
    ):
        status, body = ask(target.cluster, method, path, body=b"x" if method == "PUT" else None)
        assert status == 403 and b"<Code>AccessDenied</Code>" in body, f"{method} {path}: {status} {body[:300]}"


def test_oversized_headers_a_clear_s3_error(target):
    """Oversized headers: a clear S3 error."""
    for headers in ({"x-amz-meta-big": "v" * 60_000}, {f"x-amz-meta-{n}": "v" * 100 for n in range(200)}):
        status, body = ask(target.cluster, "GET", "/", headers)
        assert 400 <= status < 500 and b"<Code>" in body, f"{status} {body[:300]}"
    status, body = ask(target.cluster, "GET", "/bucket/" + "k" * 3000)
    assert 400 <= status < 500, f"{status} {body[:300]}"


def test_metadata_keys_and_parts_over_their_limits(target, note):
    """Metadata, keys and parts over their limits: a clear S3 error."""
    s3, codes = target.cluster.s3(), []
    for arguments in ({"Key": "meta", "Metadata": {"big": "v" * 3000}}, {"Key": "k" * 1025}):
        status, code = error_of(s3.put_object, Bucket="bucket", Body=b"x", **arguments)
        assert 400 <= status < 500, f"{arguments}: {status} {code}"
        codes.append(code)
    with pytest.raises((ParamValidationError, ClientError)):
        # boto3 itself refuses an empty key.
        s3.put_object(Bucket="bucket", Body=b"x", Key="")
    note(", ".join(codes))


@pytest.mark.parametrize(
    "user", [None, "root:wrong", "nobody:nothing"], ids=["no password", "a wrong password", "a wrong user"]
)
@pytest.mark.parametrize("command", ETCD_COMMANDS, ids=["get", "put", "del"])
def test_cluster_state_refuses(target, user, command, note):
    """Cluster state refuses everything without a password, with a wrong password and with a wrong user."""
    scenario = target.cluster.scenario
    login = ["--user", user] if user else []
    environment = dict(scenario.environment, ETCDCTL_API="3")
    for address in target.addresses("cluster-state"):
        endpoint = ["--endpoints", f"127.0.0.1:{address[1]}", "--command-timeout=4s", "--dial-timeout=2s"]
        done = scenario.run("etcdctl", *endpoint, *login, *command, env=environment, ok=None, timeout=30)
        assert done.returncode != 0, f"it was done: {done.stdout[:300]}"
        assert "atoll" not in done.stdout, f"it told {done.stdout[:300]}"
        refused = (done.stderr.strip().splitlines() or [""])[-1]
        note(re.sub(r".*(desc|error|Error)[\"': =]+", "", refused)[:80])


def test_a_handshake_with_a_key_that_is_not_authorised(target, note):
    """A handshake with a key that is not authorised: every OSD closes, nothing is served."""
    public = osd_public_keys(target.cluster)
    assert len(public) == 3, f"{public.keys()}"
    ports_of = {name: port for name, port in target.cluster.listening_ports() if name in public}
    client = client_key(target.cluster)
    answers = []
    for name, port in sorted(ports_of.items()):
        # The right key, so that it is clear that the others fail because of their keys.
        answer, closed = knock(port, handshake.Initiator(public[name], client).first_message(), 1.5)
        assert answer and not closed, f"{name} refuses the right key: {answer!r}"
        wrong_mode = handshake.Initiator(public[name], client).first_message(b"\2")
        wrong_prologue = handshake.Initiator(public[name], client, prologue=b"ATOLL\0\0\x01").first_message()
        for what, first in (
            ("an unknown key", handshake.Initiator(public[name]).first_message()),
            ("a wrong responder key", handshake.Initiator(os.urandom(32), client).first_message()),
            ("a key of zeros", handshake.Initiator(public[name], bytes(32)).first_message()),
            ("another frame mode", wrong_mode),
            ("another prologue", wrong_prologue),
        ):
            answer, closed = knock(port, first + os.urandom(300), 10)
            assert closed, f"{name} keeps a connection with {what}"
            assert len(answer) < 100, f"{name} talks to {what}: {answer!r}"
            answers.append(len(answer))
    note(f"{len(answers)} attempts, answers of {sorted(set(answers))} bytes")


def test_a_handshake_that_never_ends_is_cut_off(target, note):
    """A handshake that never ends is cut off, however it drips."""
    port = dict(target.cluster.listening_ports())["osd.0"]
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        started, data = time.monotonic(), handshake.GREETING + b"\x00\x61" + bytes(90)
        for number in range(HANDSHAKE_BYTES_MAX):
            try:
                connection.send(data[number : number + 1])
            except OSError:
                break
            # A byte a second, until it is closed.
            if select.select([connection], [], [], 1)[0]:
                break
        else:
            raise Failed(f"it still listens after {time.monotonic() - started:.0f} s of a byte a second")
    note(f"after {time.monotonic() - started:.0f} s")


def test_all_processes_are_still_the_same_as_before_all_this(target):
    """All processes are still the same as before all this."""
    assert target.cluster.process_ids() == target.first


def test_memory_has_not_grown_without_bound(target, note):
    """Memory has not grown without bound."""
    growth = {name: resident_bytes(pid) - target.memory[name] for name, pid in target.cluster.process_ids().items()}
    assert all(value < GROWTH_BYTES_MAX for value in growth.values()), f"{growth}"
    note(", ".join(f"{name} {value / MIB:+.0f} MiB" for name, value in growth.items()))


def test_no_descriptor_is_left_open_for_connections_that_are_gone(target, note):
    """No descriptor is left open for connections that are gone."""

    # A listener and its clients of long standing remain.
    def few():
        return all(len(os.listdir(f"/proc/{pid}/fd")) < 150 for pid in target.cluster.process_ids().values())

    wait_for("few open descriptors", few, 60, 0.5)
    note(
        ", ".join(f"{name} {len(os.listdir(f'/proc/{pid}/fd'))}" for name, pid in target.cluster.process_ids().items())
    )


def test_data_is_still_right(target):
    """Data is still right, new clients are served."""
    problems = target.uploader.problems(target.cluster.s3())
    assert not problems, f"{problems[:5]}"
    with target.cluster.nbd("plain") as connection:
        intact(connection.read(0, 4 * MIB) == target.image, "the image has changed")
    target.cluster.json("status")


def test_no_panic_in_any_log(target):
    """No panic in any log."""
    text = target.cluster.log_text()
    assert "panicked" not in text, text[max(0, text.find("panicked") - 300) :][:1000]
