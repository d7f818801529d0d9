"""Who has the password of cluster state, as every host has, and no key service: what he writes there by hand lets
nobody in, and health tells of it.

crates/authority/tests/records.rs alters every field of every kind; here the processes are those of a cluster.
"""

import contextlib
import json
import os
import urllib.error
import urllib.request

import pytest
from botocore.exceptions import ClientError
from lib.console import Address, Caller, User
from lib.handshake import Initiator, etcdctl, knock, osd_public_keys, private_key
from lib.identities import Account, code_of
from lib.nbd import NbdError
from lib.operator import BUCKET, IMAGE, KEY, Small
from lib.records import SIGNATURE, query_api
from lib.s3 import error_of
from lib.waiting import wait_for

pytestmark = pytest.mark.needs("etcdctl")

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
        assert status_of(altered.cluster, f"{BUCKET}/{KEY}") == 403
        # Its owner is told so, too, when what the gateway has read before is over.
        get = altered.cluster.s3().get_object
        told = lambda: error_of(get, Bucket=BUCKET, Key=KEY) == (403, "AccessDenied")
        wait_for("the owner is refused", told, 10)
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
        assert error_of(low.get_object, Bucket=BUCKET, Key=KEY) == (403, "InvalidAccessKeyId")
        for service, call in (("sts", "get_caller_identity"), ("iam", "list_users")):
            client = query_api(altered.cluster, service, *altered.low)
            assert error_of(getattr(client, call)) == (403, "InvalidClientTokenId"), service
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
        url = f"https://127.0.0.1:{altered.cluster.admin_port}"
        user = User("watcher", "correct horse battery")
        answer = Caller(Address(url, user, user, altered.cluster.data / "tls" / "ca.crt")).log_in(user)
        assert (answer.status, answer.document["code"]) == (401, "CREDENTIALS_WRONG"), answer
        altered.log_says("admin", "/atoll/operators/watcher")
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
        assert error_of(client.list_buckets) == (403, "InvalidAccessKeyId")
        altered.cluster.cli("cluster", "sign", "--remove", key)
        assert not altered.refused()


def test_a_role_that_was_altered_is_nobodys(altered):
    """The user is refused by S3, and changes of the user are refused by IAM."""
    key = "/atoll/iam/users/100000000000/low"

    def raise_it(record):
        record["policies"] = {"all": json.dumps({"Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]})}

    with altered.record(key, raise_it):
        altered.log_says("gateway", key)
        low = altered.cluster.s3(access=altered.low[0], secret=altered.low[1])
        status, _ = error_of(low.get_object, Bucket=BUCKET, Key=KEY)
        assert status == 403
        root = altered.cluster.credentials()
        iam = query_api(altered.cluster, "iam", root["access_key"], root["secret_key"])
        assert error_of(iam.create_user, UserName="low") == (403, "AccessDenied")


@pytest.fixture(scope="module")
def owned(altered):
    """A key of the key service that belongs to the first account, and somebody of another account with S3 rights."""
    cluster = altered.cluster
    cluster.cli("key", "create", "project")
    cluster.cli("key", "policy", "set", "project", "--default")
    stranger = Account(cluster, [cluster], "stranger").root.s3
    stranger.create_bucket(Bucket="strangers")
    return stranger


def sealed_with(s3, bucket, name="project"):
    return code_of(s3.put_object, Bucket=bucket, Key="k", Body=b"x", ServerSideEncryption="aws:kms", SSEKMSKeyId=name)


def test_a_key_stays_shut_when_its_record_is_removed_by_hand(altered, owned):
    key, root = "/atoll/iam/kms_keys/project", altered.cluster.s3()
    wait_for("the owner uses it", lambda: sealed_with(root, BUCKET) == "ok", 5)
    assert sealed_with(owned, "strangers") == "AccessDenied"
    altered.run("del", key)
    altered.log_says("gateway", key)
    assert altered.refused() == [key]
    # Neither while the gateway runs, nor by one that starts.
    for start in (False, True):
        if start:
            altered.cluster.down()
            altered.cluster.up()
        assert sealed_with(owned, "strangers") == "AccessDenied"
        assert sealed_with(root, BUCKET) == "AccessDenied", "nobody knows what the record said"
    altered.cluster.cli("cluster", "sign", "--remove", key)
    altered.cluster.cli("key", "policy", "set", "project", "--default")
    wait_for("the owner uses it again", lambda: sealed_with(root, BUCKET) == "ok", 5)
    assert sealed_with(owned, "strangers") == "AccessDenied"
    assert not altered.refused()


def test_keys_stay_shut_without_the_manifest(altered, owned):
    """Without it nobody knows which records are missing: what was seen before holds, and no gateway starts."""
    key = "/atoll/iam/kms_keys/project"
    altered.run("del", "/atoll/manifest")
    altered.run("del", key)
    altered.log_says("gateway", key)
    assert sealed_with(owned, "strangers") == "AccessDenied"
    assert altered.refused() == ["/atoll/manifest"]
    altered.cluster.cli("cluster", "sign", "--yes", "--refused")
    altered.cluster.cli("key", "policy", "set", "project", "--default")
    assert not altered.refused()
    assert sealed_with(owned, "strangers") == "AccessDenied"


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


# What OSDs obey, and how somebody would have them serve him.
LOOSENED = [
    ("/atoll/pools/1", {"redundancy": {"kind": "replicated", "size": 1, "min_size": 1}}),
    ("/atoll/frames", {"cluster": "crc", "client": "crc"}),
    ("/atoll/settings", {"full_percent": 100}),
    ("/atoll/flags", {"flags": {}}),
]


@pytest.mark.parametrize(("key", "fields"), LOOSENED, ids=[key for key, _ in LOOSENED])
def test_osds_obey_what_was_signed(altered, key, fields):
    """The OSD has no key service, and knows the cluster's public key."""
    altered.cluster.cli("settings", "set", "full_percent", "96")
    altered.cluster.cli("flag", "set", "noout")
    with altered.record(key, lambda record: record.update(fields)):
        altered.log_says("osd.0", key)
        altered.small.check()
    altered.small.check()


def test_a_key_that_was_added_by_hand_connects_to_no_osd(altered):
    private = os.urandom(32)
    public = private_key(private).public_key().public_bytes_raw().hex()
    key = f"/atoll/authorized_keys/{public}"
    record = {"format": 1, "role": "client", "osd": None, "name": "client@thief"}
    port = dict(altered.cluster.listening_ports())["osd.0"]
    remote = osd_public_keys(altered.cluster)["osd.0"]
    right = altered.cluster.data / "keys" / "client.key"
    for knocking, is_let_in in ((bytes.fromhex(right.read_text().strip()), True), (private, False)):
        altered.run("put", key, json.dumps(record))
        altered.log_says("osd.0", key)
        _, closed = knock(port, Initiator(remote, knocking).first_message(), 1.5 if is_let_in else 10)
        assert closed != is_let_in
    assert altered.refused() == [key]
    altered.cluster.cli("cluster", "sign", "--remove", key)
    assert not altered.refused()


def test_no_data_is_deleted_for_a_pool_that_was_removed_by_hand(altered):
    key = "/atoll/removed_pools/1"
    altered.run(
        "put", key, json.dumps({k: v for k, v in json.loads(altered.stored("/atoll/pools/1")).items() if k != "signed"})
    )
    altered.log_says("osd.0", key)
    assert altered.refused() == [key]
    altered.small.check()
    altered.cluster.down()
    altered.cluster.up()
    altered.small.check()
    altered.cluster.cli("cluster", "sign", "--remove", key)
    assert not altered.refused()


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
