"""Answers of an OSD do not reach a gateway, the PG is written more often than its log has entries, and then that OSD
dies: the gateway's retries reach the next primary later than the log, and nothing is done twice."""

import http.client
import os
import signal
import threading
import time
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import boto3
import pytest
from botocore.client import Config
from botocore.exceptions import ClientError
from lib.net import NETWORK, Host, Namespaces, enter, within
from lib.verdicts import intact
from lib.waiting import not_yet, under_load, wait_for

pytestmark = [pytest.mark.root, pytest.mark.needs("ip", "nft", "ss")]

BUCKET = "late"
# Index objects of a bucket, and the one whose PG the test is about.
SHARDS, SHARD = 8, 0
# Entries of a PG's log, and more.
WRITES = 1_100
LATE_PUTS = 20
THREADS = 16
# The conditions of PUTs are looked at within so long.
CONDITIONS_SECONDS = 1
# Longer packets have more than an acknowledgement of TCP.
ACK_BYTES_MAX = 80
# The index holds the first itself, so that one write is all of a PUT. The second have data that a second execution
# could give away; some wait for answers before the index is changed.
SMALL_BYTES, LARGE_BYTES = 800, 3_000
# A collector runs every 30 s, and removes what it has seen for the grace.
GRACE_SECONDS, COLLECTED_SECONDS = 2, 75


def crc32c(data):
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def keys(prefix, count):
    """Keys whose entries are all in one index object."""
    found, number = [], 0
    while len(found) < count:
        key = f"{prefix}{number}"
        if crc32c(key.encode()) % SHARDS == SHARD:
            found.append(key)
        number += 1
    return found


def body(key, generation=0):
    size = LARGE_BYTES if key.startswith("large") else SMALL_BYTES
    return f"{key}/{generation}/".encode().ljust(size, b"x")


class World:
    """A host with all OSDs and a gateway, and a second gateway of the same cluster in another network namespace."""

    def __init__(self, scenario):
        self.scenario, namespaces = scenario, Namespaces(scenario)
        address = f"{NETWORK}.1"
        self.host = Host(scenario, namespaces.add_host("h1", address), "h1", address)
        self.host.variables["ATOLL_GARBAGE_GRACE_SECONDS"] = str(GRACE_SECONDS)
        self.namespace, self.endpoint = namespaces.add_host("h2", f"{NETWORK}.2"), f"http://{NETWORK}.2:9100"
        table = "table inet faults { chain input { type filter hook input priority 0; }\n}"
        scenario.run("ip", "netns", "exec", self.namespace, "nft", table)

    def start(self):
        self.host.start_up("--osds", "3", "--osd-size", "4G")
        self.credentials = self.host.json("credentials")
        # 'ip netns exec' becomes the command that it runs.
        self.gateway = self.scenario.start_logged(
            self.scenario.directory / "second-gateway.log",
            *("ip", "netns", "exec", self.namespace, self.scenario.atoll, "gateway", "run"),
            *("--data", self.host.data, "--s3-listen", f"{NETWORK}.2:9100", "--s3-tls-listen", "off"),
            env=self.host.environment(),
        )

        def serves():
            with not_yet(OSError), urllib.request.urlopen(f"{self.endpoint}/-/health", timeout=5) as answer:
                return answer.status == 200

        within(self.namespace, lambda: wait_for("the second gateway serves", serves, 30))
        self.near = self.client(f"http://{NETWORK}.1:9000")
        self.late = self.client(self.endpoint)
        within(self.host.namespace, lambda: self.near.create_bucket(Bucket=BUCKET))

    def client(self, endpoint):
        config = Config(
            s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}, read_timeout=60, max_pool_connections=64
        )
        return boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            config=config,
            aws_access_key_id=self.credentials["access_key"],
            aws_secret_access_key=self.credentials["secret_key"],
        )

    def all_of(self, namespace, call, items):
        """Calls a function for all items, on threads inside a namespace; returns what came of each."""
        with ThreadPoolExecutor(THREADS, initializer=enter, initargs=(namespace,)) as pool:
            return list(pool.map(call, items))

    def place(self):
        """The PG of the index object, as 'pg map' describes it."""
        bucket = next(found for found in self.host.json("bucket", "ls") if found["name"] == BUCKET)
        return self.host.json("pg", "map", "--pool", "objects", f"s3i/{bucket['id']}/{SHARD}")

    def port_of(self, osd):
        """Where an OSD listens."""
        pid = self.host.process_ids()[f"osd.{osd}"]
        listed = self.scenario.run("ip", "netns", "exec", self.host.namespace, "ss", "-tlnpH").stdout.splitlines()
        line = next(line for line in listed if f"pid={pid}," in line and f"{NETWORK}.1:" in line)
        return line.split()[3].rsplit(":", 1)[1]

    def flows_to(self, port):
        """Connections of the second gateway."""
        listed = self.scenario.run("ip", "netns", "exec", self.namespace, "ss", "-tnH").stdout
        return sum(f"{NETWORK}.1:{port}" in line for line in listed.splitlines())

    def drop_answers(self, port):
        # Acknowledgements of TCP pass, or the gateway could not send all of its requests.
        rule = f"add rule inet faults input ip saddr {NETWORK}.1 tcp sport {port} ip length > {ACK_BYTES_MAX} drop"
        self.scenario.run("ip", "netns", "exec", self.namespace, "nft", rule)

    def hear_again(self):
        self.scenario.run("ip", "netns", "exec", self.namespace, "nft", "flush chain inet faults input")


class LatePuts:
    """PUTs over the gateway that hears nothing, and what came of them."""

    def __init__(self, world):
        self.world, self.statuses, self.threads = world, {}, []
        self.may_send_bodies = threading.Event()

    def start_conditional(self, key):
        """Its body comes when answers begin to be dropped."""
        named = {"Bucket": BUCKET, "Key": key}
        url = urllib.parse.urlsplit(self.world.late.generate_presigned_url("put_object", Params=named))

        def put():
            enter(self.world.namespace)
            connection = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
            connection.putrequest("PUT", f"{url.path}?{url.query}")
            connection.putheader("Content-Length", str(SMALL_BYTES))
            connection.putheader("If-None-Match", "*")
            connection.endheaders()
            self.may_send_bodies.wait(30)
            connection.send(body(key))
            self.statuses[key] = connection.getresponse().status

        self.threads.append(threading.Thread(target=put, daemon=True))
        self.threads[-1].start()

    def start(self, key, generation=0):
        def put():
            enter(self.world.namespace)
            try:
                self.world.late.put_object(Bucket=BUCKET, Key=key, Body=body(key, generation))
                self.statuses[key] = 200
            except ClientError as error:
                self.statuses[key] = error.response["ResponseMetadata"]["HTTPStatusCode"]

        self.threads.append(threading.Thread(target=put, daemon=True))
        self.threads[-1].start()

    def end(self, seconds=50):
        deadline = time.monotonic() + seconds
        for thread in self.threads:
            thread.join(max(0, deadline - time.monotonic()))
        waiting = sum(thread.is_alive() for thread in self.threads)
        assert not waiting, f"{waiting} of {len(self.threads)} have no answer"


@pytest.fixture(scope="module")
def world(scenario):
    probe = scenario.run("unshare", "--net", "nft", "add table inet probe", ok=None, timeout=20)
    if probe.returncode != 0:
        pytest.skip(f"this kernel has no nftables: {probe.stderr.strip()[:200]}")
    world = World(scenario)
    world.start()
    yield world
    world.gateway.kill()
    world.gateway.wait()
    world.host.down()


@pytest.fixture(scope="module")
def done(world):
    """The PUTs of which the answers came too late, after all of it."""
    small, large, older, conditional = (keys(kind, LATE_PUTS) for kind in ("small", "large", "older", "conditional"))
    # Both gateways have connections by now, and know the bucket.
    warm = lambda key: world.late.put_object(Bucket=BUCKET, Key=key, Body=b"1")
    world.all_of(world.namespace, warm, keys("warm", 32))
    primary = world.place()["primary"]
    port = world.port_of(primary)
    assert world.flows_to(port), f"the second gateway is not connected to osd.{primary} over TCP"
    late = LatePuts(world)
    for key in conditional:
        late.start_conditional(key)
    under_load(CONDITIONS_SECONDS)
    # Some of these have looked at the entry by then and some have not; a few may be answered.
    late.may_send_bodies.set()
    world.drop_answers(port)
    for key in small + large:
        late.start(key)
    for key in older:
        late.start(key, 1)

    def is_there(key):
        with not_yet(ClientError):
            world.near.head_object(Bucket=BUCKET, Key=key)
        return True

    # All of them are done, and their gateway does not know.
    wait = lambda key: wait_for(f"{key} is written", lambda: is_there(key), 15)
    world.all_of(world.host.namespace, wait, small + older)
    is_unanswered = lambda: not any(key in late.statuses for key in small + older)
    assert is_unanswered(), f"answered already: {late.statuses}"
    put = lambda key: world.near.put_object(Bucket=BUCKET, Key=key, Body=body(key, 2))
    world.all_of(world.host.namespace, put, older + keys("filler", WRITES))
    assert is_unanswered(), f"answered already: {late.statuses}"
    # Nobody starts the OSD again before another leads.
    supervisor = world.host.process_ids()["supervisor"]
    os.kill(supervisor, signal.SIGSTOP)
    try:
        world.host.kill(f"osd.{primary}")
        late.end()
    finally:
        os.kill(supervisor, signal.SIGCONT)
        world.hear_again()
    return small + large, older, conditional, late.statuses


def check_bytes(world, done):
    plain, older, conditional, statuses = done
    get = lambda key: (key, world.near.get_object(Bucket=BUCKET, Key=key)["Body"].read())
    wrong = []
    for keys_of, generation in ((plain, 0), (older, 2), (conditional, 0)):
        for key, found in world.all_of(world.host.namespace, get, keys_of):
            if found != body(key, generation):
                wrong.append(f"{key}, answered {statuses[key]}: {found[:40]}")
    intact(not wrong, f"{len(wrong)} of {len(statuses)}, such as {wrong[:5]}")


def test_a_write_whose_answer_was_lost_is_answered_by_the_next_primary(done):
    """PUTs are answered 200 although their answers were lost and the log had forgotten them, conditional ones too."""
    statuses = done[3]
    refused = {key: status for key, status in statuses.items() if status != 200}
    assert len(statuses) == 4 * LATE_PUTS and not refused, f"{refused}"


def test_no_retry_is_done_again(world, done):
    """Every PUT is there, and an older one has not undone a newer."""
    check_bytes(world, done)


@pytest.mark.nightly
@pytest.mark.limit(150)
def test_a_collector_takes_nothing_of_it(world, done):
    """Nothing of it is garbage: all is there after two rounds of the collectors."""
    under_load(COLLECTED_SECONDS)
    check_bytes(world, done)
