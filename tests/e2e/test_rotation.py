"""Each secret of a cluster gets a successor while clients are at work: keys of the key service and of signatures, the
key of temporary credentials, the password of cluster state, the TLS key. Health reports secrets that are too old."""

import json
import os
import threading
import time

import boto3
import pytest
from botocore.client import Config
from botocore.exceptions import ClientError
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from lib.waiting import wait_for

DAY_SECONDS = 24 * 60 * 60


class Client(threading.Thread):
    """Writes and reads objects with temporary credentials over TLS, on a new connection each time, and an image."""

    def __init__(self, cluster, port):
        super().__init__(daemon=True)
        self.cluster, self.port, self.done, self.failure, self.is_over = cluster, port, 0, None, False
        self.credentials = self.client("sts", {}).get_session_token()["Credentials"]
        self.certificates = set()

    def client(self, service, session):
        credentials = self.cluster.credentials()
        keys = dict(aws_access_key_id=credentials["access_key"], aws_secret_access_key=credentials["secret_key"])
        return boto3.client(
            service,
            endpoint_url=f"https://127.0.0.1:{self.port}",
            region_name="us-east-1",
            verify=str(self.cluster.data / "tls" / "ca.crt"),
            config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
            **(keys | session),
        )

    def session(self):
        names = dict(
            aws_access_key_id="AccessKeyId", aws_secret_access_key="SecretAccessKey", aws_session_token="SessionToken"
        )
        return {name: self.credentials[field] for name, field in names.items()}

    def run(self):
        try:
            while not self.is_over:
                s3, body = self.client("s3", self.session()), os.urandom(20_000)
                s3.put_object(Bucket="rotation", Key="k", Body=body)
                assert s3.get_object(Bucket="rotation", Key="k")["Body"].read() == body
                with self.cluster.nbd("disk") as connection:
                    connection.write(0, body[:4096])
                self.done += 1
        except Exception as failure:
            self.failure = failure

    def goes_on(self, rounds=3):
        until = self.done + rounds
        wait_for("the client goes on", lambda: self.failure or self.done >= until, 30)
        assert self.failure is None, f"{self.failure!r}"


@pytest.fixture(scope="module")
def cluster(scenario):
    cluster = scenario.cluster(name="rotation", osd_size="2G")
    cluster.up()
    cluster.s3().create_bucket(Bucket="rotation")
    cluster.create_image("disk", "64M")
    return cluster


@pytest.fixture(scope="module")
def client(cluster):
    client = Client(cluster, cluster.s3_tls_port)
    client.start()
    yield client
    client.is_over = True
    client.join(60)


@pytest.mark.parametrize(
    "command", [("key", "rotate"), ("key", "rotate-sts"), ("host", "rotate"), ("host", "renew-tls"), ("key", "rewrap")]
)
def test_a_secret_gets_a_successor_while_clients_are_at_work(cluster, client, command):
    client.goes_on()
    cluster.cli(*command)
    client.goes_on(6)


def public_keys(cluster, name):
    return [key["public_key"] for key in cluster.json("cluster", "key", "ls") if key["name"].startswith(name)]


@pytest.mark.parametrize("holder", ["client", "gateway"])
def test_two_static_keys_are_valid_until_the_old_one_is_revoked(cluster, client, holder):
    client.goes_on()
    [old] = public_keys(cluster, holder)
    assert cluster.json("cluster", "key", "rotate", holder)["old_public_key"] == old
    assert len(public_keys(cluster, holder)) == 2
    client.goes_on(6)
    # A call that was cut short between its two files is finished by the next one.
    keys = cluster.data / "keys"
    (keys / f"{holder}.next.key").write_bytes((keys / f"{holder}.key").read_bytes())
    (keys / f"{holder}.next.key").chmod(0o600)
    cluster.cli("cluster", "key", "rotate", holder)
    assert len(public_keys(cluster, holder)) == 3 and not (keys / f"{holder}.next.key").exists()
    client.goes_on(6)


def test_an_osd_starts_again_with_its_other_key(cluster, client):
    [old] = public_keys(cluster, "osd.0")
    pid = cluster.process_ids()["osd.0"]
    cluster.cli("cluster", "key", "rotate", "osd.0")
    [new] = public_keys(cluster, "osd.0")
    assert new != old
    wait_for("it runs again", lambda: cluster.process_ids()["osd.0"] not in (None, pid), 20)
    wait_for("all is served", cluster.is_serving, 60)
    client.goes_on(6)
    assert "no key here" in cluster.cli("cluster", "key", "rotate", "osd.9", ok=(1,)).stderr


def test_another_tls_key_is_in_use_at_once(scenario, cluster, client):
    def served():
        said = scenario.run("openssl", "s_client", "-connect", f"127.0.0.1:{cluster.s3_tls_port}", ok=None, timeout=20)
        return said.stdout.partition("BEGIN CERTIFICATE")[2].partition("END CERTIFICATE")[0]

    before = served()
    assert before
    cluster.cli("host", "renew-tls")
    wait_for("the gateway has another certificate", lambda: served() not in ("", before), 20)
    client.goes_on()


def test_sessions_end_with_their_key_if_they_shall(cluster, client):
    """The last test in which the client works."""
    client.goes_on()
    assert "less than 36 h ago" in cluster.cli("key", "rotate-sts", ok=(1,)).stderr
    client.is_over = True
    client.join(60)
    assert client.failure is None, f"{client.failure!r}"
    cluster.cli("key", "rotate-sts", "--end-sessions")

    def is_void():
        try:
            client.client("s3", client.session()).list_objects_v2(Bucket="rotation")
        except ClientError as error:
            return error.response["ResponseMetadata"]["HTTPStatusCode"] in (400, 403)
        return False

    wait_for("the session is void", is_void, 10)
    fresh = Client(cluster, cluster.s3_tls_port)
    assert fresh.client("s3", fresh.session()).list_objects_v2(Bucket="rotation")["KeyCount"] == 1


def test_processes_use_the_new_key_when_the_old_ones_are_revoked(cluster):
    for name in ("gateway", "nbd"):
        cluster.kill(name)
    in_use = {name: (cluster.data / "keys" / f"{name}.key").read_text() for name in ("client", "gateway")}
    assert len(set(in_use.values())) == 2
    for holder in ("client", "gateway"):
        private = X25519PrivateKey.from_private_bytes(bytes.fromhex(in_use[holder]))
        new = private.public_key().public_bytes_raw().hex()
        for old in set(public_keys(cluster, holder)) - {new}:
            cluster.cli("cluster", "key", "revoke", old[:16])
        assert len(public_keys(cluster, holder)) == 1

    def works():
        fresh = Client(cluster, cluster.s3_tls_port)
        fresh.client("s3", fresh.session()).put_object(Bucket="rotation", Key="fresh", Body=b"fresh")
        return True

    def tried():
        try:
            return works()
        except Exception:
            return False

    wait_for("a new client works", tried, 30)
    cluster.read_image("disk", 0, 4096)


def test_old_secrets_are_listed_and_reported(cluster):
    ages = {age["secret"]: age for age in cluster.json("key", "ages")}
    expected = (
        "key atoll of the key service",
        "key that signs records",
        "key of temporary credentials",
        "static key of client on host",
        "static key of gateway on host",
        "static key of osd.0 on host",
        "key of the TLS certificate of host",
        "key of the TLS authority on host",
        "secret of access key",
    )
    for start in expected:
        found = [age for name, age in ages.items() if name.startswith(start)]
        assert found and all(age["rotated_by"] and age["place"] for age in found), f"{start}: {list(ages)}"
        assert all(time.time() * 1000 - age["since_unix_ms"] < DAY_SECONDS * 1000 for age in found), found

    def problems():
        health = json.loads(cluster.cli("health", "--json", ok=(0, 1)).stdout)
        return {one["code"]: one for one in health["problems"]}

    assert "SECRETS_OLD" not in problems(), "it is off by default"
    cluster.cli("settings", "set", "secret_age_days_max", "100")
    assert "SECRETS_OLD" not in problems(), "all are young"
    old = time.time() - 101 * DAY_SECONDS
    os.utime(cluster.data / "keys" / "gateway.key", (old, old))
    [subject] = problems()["SECRETS_OLD"]["subjects"]
    assert subject.startswith("static key of gateway") and "(101 days)" in subject
    assert json.dumps(problems()["SECRETS_OLD"]).count("atoll key ages") == 1
