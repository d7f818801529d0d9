"""Who has the password of cluster state, as every host has, and no key service: what he writes there by hand lets
nobody in, and health tells of it.

crates/authority/tests/records.rs alters every field of every kind; here the processes are those of a cluster.
"""

import contextlib
import json
import os
import re
import urllib.error
import urllib.request

import pytest
from botocore.exceptions import ClientError
from lib.handshake import etcdctl
from lib.nbd import NbdError
from lib.operator import BUCKET, IMAGE, KEY, Small
from lib.waiting import wait_for

pytestmark = pytest.mark.needs("etcdctl")

SIGNATURE = re.compile(rb',"signed":"[0-9a-f.]{115}"}\n?$')
POLICY = {"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "*"}]}


class Altered:
    """A cluster, and somebody who writes its state by hand."""

    def __init__(self, scenario):
        self.small = Small(scenario)
        self.cluster = self.small.cluster
        self.cluster.cli("user", "create", "low")
        low = self.cluster.json("user", "key", "create", "low")
        self.low = (low["AccessKey"]["AccessKeyId"], low["AccessKey"]["SecretAccessKey"])

    def run(self, *arguments):
        command, environment = etcdctl(self.cluster)
        done = self.cluster.scenario.run(*command, *arguments, env=environment)
        return done.stdout.encode() if isinstance(done.stdout, str) else done.stdout

    def stored(self, key):
        return self.run("get", key, "--print-value-only").rstrip(b"\n")

    @contextlib.contextmanager
    def record(self, key, alter):
        """It is altered, with its old signature, and signed by an operator who has put it right."""
        before = self.stored(key)
        signature = SIGNATURE.search(before)
        assert signature, f"{key} is not signed: {before}"
        record = json.loads(before)
        del record["signed"]
        alter(record)
        self.run("put", key, (json.dumps(record).encode()[:-1] + signature.group()).decode())
        try:
            yield
            assert self.refused() == [key], self.refused()
        finally:
            # What was there before does not hold any more either: it was put back.
            self.run("put", key, before.decode())
            assert self.refused() == [key]
            self.cluster.cli("cluster", "sign", "--record", key)
            assert not self.refused()

    def refused(self):
        problems = self.cluster.json_of_health()
        found = [problem for problem in problems if problem["code"] == "RECORDS_REFUSED"]
        return [subject.split(": ")[0] for problem in found for subject in problem["subjects"]]

    def log_says(self, process, key):
        """Lines of one kind are few in a moment, so any that names the record counts."""
        log = self.small.path(f"log/{process}.log")
        wait_for(f"{process} tells of {key}", lambda: key in log.read_text(), 10)


@pytest.fixture(scope="module")
def altered(scenario):
    altered = Altered(scenario)
    cluster = altered.cluster

    def health():
        done = cluster.scenario.run(cluster.scenario.atoll, "health", "--json", "--data", cluster.data, ok=(0, 1, 2))
        return json.loads(done.stdout)["problems"]

    cluster.json_of_health = health
    return altered


def status_of(cluster, path):
    try:
        with urllib.request.urlopen(f"{cluster.credentials()['endpoint']}/{path}", timeout=20) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_a_new_cluster_is_signed(altered):
    assert not altered.refused()
    assert altered.cluster.json("cluster", "sign") == {"signed": 0, "not_signed": []}


def test_a_policy_for_everybody_opens_no_bucket(altered):
    def open_it(record):
        record["access"] = {"policy": json.dumps(POLICY)}
        record["format"] = 3

    with altered.record(f"/atoll/buckets/{BUCKET}", open_it):
        assert status_of(altered.cluster, f"{BUCKET}/{KEY}") != 200
        altered.log_says("gateway", f"/atoll/buckets/{BUCKET}")
    altered.small.check()


def test_a_low_users_key_becomes_no_root(altered):
    key = f"/atoll/users/{altered.low[0]}"

    def raise_it(record):
        del record["account"], record["user"]
        record["format"] = 1

    with altered.record(key, raise_it):
        altered.log_says("gateway", key)
        low = altered.cluster.s3(access=altered.low[0], secret=altered.low[1])
        with pytest.raises(ClientError) as refused:
            low.get_object(Bucket=BUCKET, Key=KEY)
        assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] >= 400
    with pytest.raises(ClientError):
        altered.cluster.s3(access=altered.low[0], secret=altered.low[1]).get_object(Bucket=BUCKET, Key=KEY)


def test_an_operator_made_by_hand_is_none(altered):
    password = altered.small.path("password")
    password.write_text("correct horse battery\n")
    altered.cluster.cli("operator", "create", "watcher", "--role", "read-only", "--password-file", password)

    def raise_it(record):
        record["role"] = "admin"

    altered.cluster.cli("operator", "create", "other", "--role", "read-only", "--password-file", password)
    with altered.record("/atoll/operators/watcher", raise_it):
        listed = altered.cluster.scenario.run(
            altered.cluster.scenario.atoll, "operator", "ls", "--json", "--data", altered.cluster.data
        )
        assert "/atoll/operators/watcher in cluster state has no valid signature of this cluster" in listed.stderr
        assert [one["name"] for one in json.loads(listed.stdout)] == ["other"], "the others are listed"
    assert [one["role"] for one in altered.cluster.json("operator", "ls")] == ["read-only"] * 2


def test_one_refused_bucket_does_not_hide_the_others(altered):
    altered.cluster.s3().create_bucket(Bucket="second")

    def open_it(record):
        record["access"] = {"policy": json.dumps(POLICY)}
        record["format"] = 3

    with altered.record(f"/atoll/buckets/{BUCKET}", open_it):
        names = [bucket["Name"] for bucket in altered.cluster.s3().list_buckets()["Buckets"]]
        assert names == ["second"], names
        assert [bucket["name"] for bucket in altered.cluster.json("bucket", "ls")] == ["second"]


def test_a_key_that_was_deleted_stays_deleted(altered):
    made = altered.cluster.json("user", "key", "create", "low")["AccessKey"]
    key = f"/atoll/users/{made['AccessKeyId']}"
    client = altered.cluster.s3(access=made["AccessKeyId"], secret=made["SecretAccessKey"])
    before = altered.stored(key)
    altered.cluster.cli("user", "key", "rm", made["AccessKeyId"])
    # At once, and as the second version that it was.
    for writes in ([before.decode()], ['{"reserved":true}', before.decode()]):
        for write in writes:
            altered.run("put", key, write)
        assert altered.refused() == [key]
        with pytest.raises(ClientError) as refused:
            client.list_buckets()
        assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] >= 400
        altered.cluster.cli("cluster", "sign", "--remove", key)
        assert not altered.refused()


NVME_HOST = "nqn.2014-08.org.nvmexpress:uuid:7"


def test_the_secret_of_an_nvme_host_cannot_be_removed_by_hand(altered):
    altered.cluster.json("nvme", "host", "set", NVME_HOST)
    key = f"/atoll/nvme_hosts/{NVME_HOST}"
    altered.run("del", key)
    assert altered.refused() == [key]

    def is_told():
        lines = altered.cluster.cli("events", "--json").stdout.splitlines()
        events = [event for event in map(json.loads, lines) if event["code"] == "RECORDS_REFUSED"]
        return any(f"{key}, revision" in subject for event in events for subject in event["subjects"])

    wait_for("the log of events has it", is_told, 20)
    audit = altered.small.path("log/admin-audit.jsonl")
    assert '"event":"refused_record"' in audit.read_text()
    shown = altered.cluster.json("cluster", "sign")["not_signed"]
    assert [(one["key"], one["gives"]) for one in shown] == [(key, "is not there")], shown
    # The operator sees that, and has it made again.
    altered.cluster.cli("cluster", "sign", "--remove", key)
    assert not altered.refused()
    altered.cluster.cli("nvme", "host", "set", NVME_HOST)
    assert not altered.refused()


def test_settings_of_frames_cannot_be_removed_by_hand(altered):
    altered.cluster.cli("settings", "set", "frame_mode_unix", "secure")
    altered.run("del", "/atoll/frames")
    assert altered.refused() == ["/atoll/frames"]
    # Not even a start writes those with which the cluster began.
    altered.cluster.down()
    altered.cluster.up()
    assert altered.refused() == ["/atoll/frames"]
    altered.cluster.cli("cluster", "sign", "--remove", "/atoll/frames")
    altered.cluster.cli("settings", "set", "frame_mode_unix", "crc")
    assert not altered.refused()
    altered.small.check()


def test_an_image_opened_to_everybody_is_not_opened_at_all(altered):
    def open_it(record):
        record["export"] = {"access": "read_only", "clients": ["*"]}
        record["format"] = 2

    with (
        altered.record(f"/atoll/images/{IMAGE}", open_it),
        pytest.raises(NbdError, match="no valid signature of this cluster"),
    ):
        altered.cluster.nbd(IMAGE).read(0, 512)
    altered.small.check()


def test_settings_of_frames_are_those_that_were_signed(altered):
    def weaken(record):
        record["client"] = record["cluster"] = record["gateway"] = "crc"

    with altered.record("/atoll/frames", weaken):
        altered.log_says("gateway", "/atoll/frames")


def test_processes_that_start_refuse_as_well(altered):
    key = f"/atoll/users/{altered.low[0]}"
    record = json.loads(altered.stored(key))
    del record["signed"]
    altered.run("put", key, json.dumps(record))
    altered.run("del", "/atoll/authority")
    before = altered.cluster.json("cluster", "sign")["not_signed"]
    assert all(one["state"].startswith("refused") for one in before) and len(before) > 5, before
    codes = {problem["code"] for problem in altered.cluster.json_of_health()}
    assert "RECORDS_REFUSED" in codes, codes
    # The operator puts right what he has looked at; the keys are others.
    altered.cluster.cli("cluster", "sign", "--remove", key)
    altered.cluster.cli("cluster", "sign", "--yes", "--refused")
    assert altered.cluster.json("cluster", "sign") == {"signed": 0, "not_signed": []}
    altered.small.check()


def test_the_key_rotates(altered):
    done = altered.cluster.json("key", "rotate")
    assert done["signed"] > 5, done
    assert not altered.refused()
    data = os.urandom(100)
    altered.cluster.s3().put_object(Bucket=BUCKET, Key="after", Body=data)
    assert altered.cluster.s3().get_object(Bucket=BUCKET, Key="after")["Body"].read() == data
    altered.small.check()
