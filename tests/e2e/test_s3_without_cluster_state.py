"""Cluster state gone for a while: users of two accounts and who does not sign go on at both gateways with what they
have used before, on new connections, too. What changes identities or buckets fails meanwhile and works afterwards."""

import contextlib
import itertools
import json
import threading
import time
import urllib.request

import pytest
from botocore.exceptions import BotoCoreError, ClientError
from lib.gateway import Gateway
from lib.identities import Account, Nobody, code_of, counts_everywhere, policy
from lib.net import stopped
from lib.waiting import under_load, wait_for

GONE_SECONDS = {"hung": 20, "killed": 60}
# A request may take this long: the first ones find out that there is no answer.
SLOWEST_SECONDS_MAX = 5
PAUSE_SECONDS = 0.02
FULL, PUBLIC = "AmazonS3FullAccess", "public/a"


class Worker(threading.Thread):
    """Requests one after the other; what each took, and the errors."""

    def __init__(self, name):
        super().__init__(daemon=True)
        self.name, self.stopping = name, threading.Event()
        self.took, self.errors = [], []

    def timed(self, what, request):
        began = time.monotonic()
        try:
            answer = request()
        except (ClientError, BotoCoreError, OSError) as error:
            self.errors.append(f"{self.name}: {what} after {time.monotonic() - began:.2f} s: {error}")
            answer = None
        self.took.append((time.monotonic() - began, f"{self.name}: {what}"))
        return answer

    def run(self):
        for number in itertools.count():
            if self.stopping.wait(PAUSE_SECONDS):
                return
            self.turn(number)


class User(Worker):
    """Puts, gets, lists and deletes with a key."""

    def __init__(self, name, gateway, key, bucket):
        super().__init__(name)
        self.connect = lambda: gateway.s3(access=key.access, secret=key.secret)
        self.bucket, self.s3, self.kept = bucket, self.connect(), {}

    def turn(self, number):
        if number % 10 == 9:
            self.s3.close()
            self.s3 = self.connect()
        name, body = f"{self.name}/{number}", f"{self.name} {number} ".encode() * (1 + number % 3 * 5000)
        place = {"Bucket": self.bucket, "Key": name}
        self.timed("PUT", lambda: self.s3.put_object(**place, Body=body))
        self.kept[name] = body
        found = self.timed("GET", lambda: self.s3.get_object(**place)["Body"].read())
        if found not in (None, body):
            self.errors.append(f"{name} has other bytes")
        page = self.timed("LIST", lambda: self.s3.list_objects_v2(Bucket=self.bucket, Prefix=name))
        if page is not None and name not in [entry["Key"] for entry in page.get("Contents", [])]:
            self.errors.append(f"{name} is not listed")
        if number % 2:
            self.timed("DELETE", lambda: self.s3.delete_object(**place))
            del self.kept[name]

    def differs(self):
        """Keys that are not there as they were acknowledged, or that were deleted."""
        found = {}
        for page in self.s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=f"{self.name}/"):
            for entry in page.get("Contents", []):
                found[entry["Key"]] = self.s3.get_object(Bucket=self.bucket, Key=entry["Key"])["Body"].read()
        return sorted(key for key in found.keys() | self.kept.keys() if found.get(key) != self.kept.get(key))


class Stranger(Worker):
    """Gets what is public, each time on a new connection."""

    def __init__(self, name, endpoint, bucket):
        super().__init__(name)
        self.url = f"{endpoint}/{bucket}/{PUBLIC}"

    def turn(self, _number):
        def get():
            with urllib.request.urlopen(self.url, timeout=60) as answer:
                return answer.read()

        if self.timed("GET", get) not in (None, b"public"):
            self.errors.append("other bytes")


@contextlib.contextmanager
def hung(cluster):
    with stopped(cluster.process_ids()["cluster-state"]):
        yield


@contextlib.contextmanager
def killed(cluster):
    """With a supervisor that does not restart it."""
    with stopped(cluster.process_ids()["supervisor"]):
        cluster.kill("cluster-state")
        yield


class World:
    def __init__(self, scenario, name, outage):
        self.outage = name
        self.cluster = scenario.cluster(name, osd_size="1G")
        # One of the outages is longer than identities count otherwise.
        self.cluster.variables["ATOLL_S3_IDENTITY_LIFETIME_SECONDS"] = "300"
        self.cluster.up()
        self.second = Gateway(self.cluster)
        self.gateways = [self.cluster, self.second]
        wait_for("the second gateway serves", self.second.is_serving, 30)
        self.endpoints = [self.cluster.credentials()["endpoint"], self.second.endpoint()]
        self.accounts = [Account(self.cluster, self.gateways, name) for name in ("sales", "other")]
        self.users, self.workers = [], []
        for account in self.accounts:
            self.add_workers(account)
        # What no gateway has met before it is needed: a user of its own and a bucket.
        self.idle, self.unused = self.accounts[0].user("idle"), "unused"
        self.accounts[0].cli("policy", "attach", FULL, "--user", "idle")
        self.accounts[0].root.s3.create_bucket(Bucket=self.unused)
        with self.working():
            wait_for("everyone works", lambda: all(len(worker.took) > 5 for worker in self.workers), 30)
            assert not self.errors(), self.errors()
            with outage(self.cluster):
                self.began = time.monotonic()
                self.meanwhile = self.try_changes()
                put = lambda s3: s3.put_object(Bucket=self.unused, Key="a", Body=b"a")
                self.new_codes = [code_of(put, s3) for s3 in self.idle.clients]
                strangers = [gateway.s3(access="AKIANOBODY", secret="x" * 64) for gateway in self.gateways]
                self.stranger_codes = [code_of(put, s3) for s3 in strangers]
                under_load(GONE_SECONDS[outage.__name__] - (time.monotonic() - self.began))
                self.seconds = time.monotonic() - self.began
            self.counts = {worker.name: len(worker.took) for worker in self.workers}

    def add_workers(self, account):
        bucket = f"bucket-of-{account.name}"
        account.root.s3.create_bucket(Bucket=bucket)
        account.root.s3.put_object(Bucket=bucket, Key=PUBLIC, Body=b"public")
        public = policy(("Allow", "s3:GetObject", f"{bucket}/public/*", {"Principal": "*"}))
        account.root.s3.put_bucket_policy(Bucket=bucket, Policy=json.dumps(public))
        user = account.user("user")
        account.cli("policy", "attach", FULL, "--user", "user")
        counts_everywhere(lambda s3: s3.list_objects_v2(Bucket=bucket), user.clients, "ok")
        self.users.append(user)
        counts_everywhere(lambda s3: s3.get_object(Bucket=bucket, Key=PUBLIC), Nobody(self.endpoints).clients, "ok")
        for number, (gateway, endpoint) in enumerate(zip(self.gateways, self.endpoints)):
            self.workers.append(User(f"{account.name}-{number}", gateway, user, bucket))
            self.workers.append(Stranger(f"{account.name}-public-{number}", endpoint, bucket))

    @contextlib.contextmanager
    def working(self):
        for worker in self.workers:
            worker.start()
        try:
            yield
        finally:
            for worker in self.workers:
                worker.stopping.set()
            for worker in self.workers:
                worker.join(90)

    def try_changes(self):
        """What is answered to changes, and after how long."""
        root, found = self.accounts[0].root, {}
        for name, ask in {
            "bucket": lambda: root.s3.create_bucket(Bucket="made-meanwhile"),
            "policy": lambda: root.s3.delete_bucket_policy(Bucket="bucket-of-sales"),
        }.items():
            began = time.monotonic()
            found[name] = code_of(ask), time.monotonic() - began
        began = time.monotonic()
        done = self.cluster.cli("user", "create", "late", "--account", "sales", ok=None)
        found["user"] = done.returncode, time.monotonic() - began
        return found

    def errors(self):
        return [error for worker in self.workers for error in worker.errors]


OUTAGES = [pytest.param(hung, id="hung"), pytest.param(killed, id="killed", marks=pytest.mark.nightly)]


@pytest.fixture(scope="module", params=OUTAGES)
def world(scenario, request):
    world = World(scenario, request.param.__name__, request.param)
    yield world
    world.cluster.kill_all()
    world.second.kill()


def test_no_request_fails(world, note):
    note(f"{sum(world.counts.values())} requests in {world.seconds:.0f} s without cluster state: {world.counts}")
    assert world.seconds >= GONE_SECONDS[world.outage] and min(world.counts.values()) > 50, world.counts
    errors = world.errors()
    assert not errors, f"{len(errors)} errors: {errors[:5]}"


def test_no_request_takes_long(world, note):
    slowest = sorted((entry for worker in world.workers for entry in worker.took), reverse=True)
    over = [seconds for seconds, _ in slowest if seconds > 0.5]
    note(f"slowest: {[f'{seconds:.2f} s {what}' for seconds, what in slowest[:3]]}, {len(over)} over 0.5 s")
    assert slowest[0][0] < SLOWEST_SECONDS_MAX, slowest[:5]


def test_what_was_written_and_deleted_meanwhile_is_as_it_was_acknowledged(world):
    for worker in world.workers:
        if isinstance(worker, User):
            assert worker.kept and not worker.differs(), worker.name


def test_users_and_buckets_that_were_not_used_before_serve_too(world):
    assert world.new_codes == ["ok", "ok"], world.new_codes


def test_nobody_else_gets_in_meanwhile(world):
    # The key of a stranger may have been made since cluster state was heard of last.
    assert world.stranger_codes == ["ServiceUnavailable"] * 2, world.stranger_codes


def test_changes_meanwhile_fail_and_do_not_hang(world, note):
    note(world.meanwhile)
    assert world.meanwhile["user"][0] == 1, world.meanwhile
    for name in ("bucket", "policy"):
        code, seconds = world.meanwhile[name]
        assert code == "ServiceUnavailable" and seconds < SLOWEST_SECONDS_MAX, world.meanwhile


def test_identities_are_changed_again_afterwards(world, note):
    began, sales, user = time.monotonic(), world.accounts[0], world.users[0]
    attempt = lambda: sales.cli("policy", "detach", FULL, "--user", "user", ok=None).returncode == 0
    wait_for("a policy is detached", attempt, 60)
    changed = time.monotonic() - began
    refused = lambda s3: code_of(s3.list_objects_v2, Bucket="bucket-of-sales") == "AccessDenied"
    wait_for("both gateways have heard of it", lambda: all(refused(s3) for s3 in user.clients), 30)
    note(f"changed after {changed:.1f} s, heard everywhere after {time.monotonic() - began:.1f} s")


def test_new_users_and_buckets_are_made_again_afterwards(world):
    # Its first command may come before cluster state answers again.
    wait_for("changes are taken", lambda: world.cluster.cli("account", "ls", ok=(0, 1)).returncode == 0, 60)
    account = Account(world.cluster, world.gateways, "afterwards")
    account.root.s3.create_bucket(Bucket="afterwards")
    assert [code_of(s3.list_objects_v2, Bucket="afterwards") for s3 in account.root.clients] == ["ok", "ok"]
