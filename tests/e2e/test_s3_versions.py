"""Versions of objects under races: many clients of two gateways write, replace and delete the same keys while
gateways and OSDs are killed. No acknowledged version is lost, no deleted one comes back."""

import collections
import itertools
import math
import random
import threading
import time

import pytest
from botocore.exceptions import BotoCoreError, ClientError
from lib.gateway import Gateway
from lib.linearizable import Operation, violation
from lib.verdicts import intact
from lib.waiting import wait_for

BUCKET = "versions"
CLIENTS = 64
RACE_SECONDS = 12
KEYS = [f"mixed-{number}" for number in range(3)]
REGISTERS = [f"register-{number}" for number in range(3)]
SWAPPED = [f"swapped-{number}" for number in range(3)]
# Below and above what is kept in the index.
SIZES = (100, 3_000)


class Race:
    """What clients did, and what was answered."""

    def __init__(self, clients):
        self.clients, self.lock, self.stop = clients, threading.Lock(), threading.Event()
        self.numbers = itertools.count()
        # Version id to key and body of writes that were acknowledged; bodies of those whose outcome is unknown.
        self.written, self.perhaps_written = {}, set()
        self.removed, self.perhaps_removed = set(), set()
        self.histories = collections.defaultdict(list)
        # Of each key the ETags that acknowledged conditional writes have replaced.
        self.replaced = collections.defaultdict(list)
        self.outcomes = collections.Counter()

    def body(self, rng):
        text = f"{next(self.numbers)}."
        return (text * (rng.choice(SIZES) // len(text) + 1)).encode()

    def put(self, s3, rng, key, **conditions):
        """Writes; returns the time, or infinity if the outcome is unknown, and None if it was refused."""
        body = self.body(rng)
        operation = Operation("write", body, time.monotonic(), math.inf)
        try:
            answer = s3.put_object(Bucket=BUCKET, Key=key, Body=body, **conditions)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] < 500:
                self.outcomes["refused"] += 1
                return None
            answer = None
        except BotoCoreError:
            answer = None
        with self.lock:
            self.outcomes["acknowledged" if answer else "unknown"] += 1
            if answer:
                self.written[answer["VersionId"]] = (key, body)
                operation = Operation("write", body, operation.invoked, time.monotonic())
            else:
                self.perhaps_written.add(body)
            self.histories[key].append(operation)
        return answer

    def get(self, s3, key):
        invoked = time.monotonic()
        try:
            answer = s3.get_object(Bucket=BUCKET, Key=key)
            body, etag = answer["Body"].read(), answer["ETag"]
        except (ClientError, BotoCoreError):
            return None
        with self.lock:
            self.histories[key].append(Operation("read", body, invoked, time.monotonic()))
        return etag

    def swap(self, s3, rng, key):
        etag = self.get(s3, key)
        conditions = {"IfMatch": etag} if etag else {"IfNoneMatch": "*"}
        if self.put(s3, rng, key, **conditions) and etag:
            with self.lock:
                self.replaced[key].append(etag)

    def remove(self, s3, rng):
        with self.lock:
            known = [version for version, (key, _) in self.written.items() if key in KEYS]
            if not known:
                return
            version = rng.choice(known)
            key = self.written[version][0]
            self.perhaps_removed.add(version)
        try:
            s3.delete_object(Bucket=BUCKET, Key=key, VersionId=version)
        except (ClientError, BotoCoreError):
            return
        self.outcomes["removed"] += 1
        self.removed.add(version)

    def mix(self, s3, rng):
        key = rng.choice(KEYS)
        if rng.random() < 0.5:
            self.put(s3, rng, key)
        elif rng.random() < 0.6:
            self.remove(s3, rng)
        else:
            try:
                if rng.random() < 0.5:
                    s3.delete_object(Bucket=BUCKET, Key=key)
                else:
                    tags = {"TagSet": [{"Key": "n", "Value": str(next(self.numbers))}]}
                    s3.put_object_tagging(Bucket=BUCKET, Key=key, Tagging=tags)
            except (ClientError, BotoCoreError):
                self.outcomes["refused"] += 1

    def run(self, number):
        rng, s3 = random.Random(number), self.clients[number % len(self.clients)]
        while not self.stop.wait(rng.random() * 0.02):
            choice = rng.random()
            if choice < 0.5:
                self.mix(s3, rng)
            elif choice < 0.65:
                self.swap(s3, rng, rng.choice(SWAPPED))
            elif choice < 0.8:
                self.put(s3, rng, rng.choice(REGISTERS))
            else:
                self.get(s3, rng.choice(REGISTERS))


class Raced:
    """A cluster after the race."""

    def __init__(self, scenario):
        self.cluster = scenario.cluster()
        self.cluster.up()
        self.second = Gateway(self.cluster)
        wait_for("the second gateway serves", self.second.is_serving, 60)
        self.s3, other = self.cluster.s3(read_timeout=10), self.second.s3(read_timeout=10)
        self.s3.create_bucket(Bucket=BUCKET)
        self.s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
        self.race = Race([self.s3, other])
        threads = [threading.Thread(target=self.race.run, args=[number]) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            self.kill_in_turns(RACE_SECONDS * scenario.scale)
        finally:
            self.race.stop.set()
            for thread in threads:
                thread.join()
        self.s3 = self.cluster.s3(attempts=5)
        wait_for("the gateway serves", self.cluster.is_serving, 60)
        self.listed = self.list()

    def kill_in_turns(self, seconds):
        end, pause = time.monotonic() + seconds, seconds / 6
        for step in itertools.cycle(("second", "osd.1", "gateway", "osd.2")):
            if self.race.stop.wait(min(pause, max(0, end - time.monotonic()))) or time.monotonic() >= end:
                return
            if step == "second":
                self.second.kill()
                self.second.start()
            else:
                self.cluster.restarted(step, self.cluster.kill(step))

    def list(self):
        """Version id to key of all objects; and how many delete markers there are."""
        pages = list(self.s3.get_paginator("list_object_versions").paginate(Bucket=BUCKET))
        self.markers = sum(len(page.get("DeleteMarkers", [])) for page in pages)
        return {line["VersionId"]: line["Key"] for page in pages for line in page.get("Versions", [])}

    def read(self, key, version):
        return self.s3.get_object(Bucket=BUCKET, Key=key, VersionId=version)["Body"].read()


@pytest.fixture(scope="module")
def raced(scenario):
    return Raced(scenario)


@pytest.mark.nightly
def test_the_race_was_one(raced, note):
    note(f"{dict(raced.race.outcomes)}, {len(raced.listed)} versions, {raced.markers} markers")
    outcomes = raced.race.outcomes
    assert outcomes["acknowledged"] > 100 and outcomes["removed"] > 10 and outcomes["unknown"] > 0, outcomes
    assert raced.markers > 0 and any(raced.race.replaced.values())


@pytest.mark.nightly
def test_no_acknowledged_version_is_lost(raced):
    race = raced.race
    kept = {version: what for version, what in race.written.items() if version not in race.perhaps_removed}
    intact(kept.keys() <= raced.listed.keys(), f"lost: {kept.keys() - raced.listed.keys()}")
    for version, (key, body) in kept.items():
        intact(raced.listed[version] == key and raced.read(key, version) == body, (key, version))


@pytest.mark.nightly
def test_no_deleted_version_comes_back(raced):
    back = raced.race.removed & raced.listed.keys()
    intact(not back, f"came back: {back}")


@pytest.mark.nightly
def test_nothing_is_there_that_nobody_wrote(raced):
    race = raced.race
    for version in raced.listed.keys() - race.written.keys():
        intact(raced.read(raced.listed[version], version) in race.perhaps_written, version)


@pytest.mark.nightly
def test_a_version_is_replaced_by_one_conditional_write_at_most(raced):
    for key, etags in raced.race.replaced.items():
        twice = [etag for etag, count in collections.Counter(etags).items() if count > 1]
        intact(not twice, f"{key}: replaced twice: {twice}")


@pytest.mark.nightly
@pytest.mark.parametrize("key", REGISTERS + SWAPPED)
def test_the_newest_version_is_linearizable(raced, key):
    found = violation(raced.race.histories[key])
    intact(found is None, found)
