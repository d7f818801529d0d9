"""Clients that people have, each by the key of a user who may do everything with buckets and nothing else."""

import json
import os
import random
import re
import shutil
import urllib.request

import pytest
from lib.cluster import MIB
from lib.identities import Account, code_of
from lib.s3 import error_of, read
from lib.verdicts import intact
from lib.waiting import wait_for

pytestmark = pytest.mark.needs("restic", "s3cmd", "zstd")

# The newest that there is as a Go module.
MC = "github.com/minio/mc@v0.0.0-20250313080218-cf909e1063a9"
PUBLIC = b"for everybody"


class Client:
    """A user of an account, and files to send."""

    def __init__(self, scenario):
        self.scenario, self.cluster = scenario, scenario.cluster(osds=1, osd_size="4G")
        self.cluster.up()
        self.account = Account(self.cluster, [self.cluster], "clients")
        self.user = self.account.user("client")
        self.account.cli("policy", "attach", "AmazonS3FullAccess", "--user", "client")
        self.s3 = self.user.s3
        wait_for("the policy counts", lambda: code_of(self.s3.list_buckets) == "ok", 20)
        self.endpoint = self.cluster.credentials()["endpoint"]
        self.files = scenario.directory / "files"
        (self.files / "below").mkdir(parents=True)
        rng = random.Random(1)
        # One is more than a part of a multipart upload.
        for name, size in {"a b ö.txt": 100, "empty": 0, "below/large": 20 * MIB, "below/c": 70_000}.items():
            (self.files / name).write_bytes(rng.randbytes(size))

    def tree(self, directory):
        paths = [path for path in directory.rglob("*") if path.is_file()]
        return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def client(scenario):
    return Client(scenario)


# --- s3cmd


@pytest.fixture(scope="module")
def s3cmd(client):
    host = client.endpoint.removeprefix("http://")
    path = client.scenario.directory / "s3cfg"
    path.write_text(
        f"[default]\nhost_base = {host}\nhost_bucket = {host}\nuse_https = False\nbucket_location = us-east-1\n"
        f"access_key = {client.user.access}\nsecret_key = {client.user.secret}\n"
    )
    run = lambda *arguments, **options: client.scenario.run("s3cmd", "-c", path, *arguments, **options).stdout
    run("mb", "s3://s3cmd")
    return run


def test_s3cmd_syncs_there_and_back(client, s3cmd):
    s3cmd("sync", "--multipart-chunk-size-mb=5", f"{client.files}/", "s3://s3cmd/tree/")
    back = client.scenario.directory / "s3cmd-back"
    back.mkdir()
    s3cmd("sync", "s3://s3cmd/tree/", f"{back}/")
    assert client.tree(back) == client.tree(client.files)


def test_s3cmd_has_nothing_left_to_sync(client, s3cmd):
    s3cmd("sync", f"{client.files}/", "s3://s3cmd/again/")
    assert "upload:" not in s3cmd("sync", f"{client.files}/", "s3://s3cmd/again/")


def test_s3cmd_lists_and_removes(client, s3cmd):
    for name in ("one", "two"):
        s3cmd("put", client.files / "below" / "c", f"s3://s3cmd/lists/{name}")
    assert "s3://s3cmd/lists/one" in s3cmd("ls", "s3://s3cmd/lists/")
    s3cmd("del", "s3://s3cmd/lists/one")
    s3cmd("mv", "s3://s3cmd/lists/two", "s3://s3cmd/lists/three")
    listed = [line.split()[-1] for line in s3cmd("ls", "s3://s3cmd/lists/").splitlines()]
    assert listed == ["s3://s3cmd/lists/three"], listed


def test_s3cmd_sets_a_bucket_policy(client, s3cmd):
    s3cmd("put", client.files / "below" / "c", "s3://s3cmd/public/c")
    document = client.scenario.directory / "s3cmd-policy.json"
    everybody = {
        "Effect": "Allow",
        "Principal": "*",
        "Action": "s3:GetObject",
        "Resource": "arn:aws:s3:::s3cmd/public/*",
    }
    document.write_text(json.dumps({"Version": "2012-10-17", "Statement": [everybody]}))
    s3cmd("setpolicy", document, "s3://s3cmd")
    assert "public/*" in s3cmd("info", "s3://s3cmd")
    with urllib.request.urlopen(f"{client.endpoint}/s3cmd/public/c") as answer:
        intact(answer.read() == (client.files / "below" / "c").read_bytes(), "other bytes")
    s3cmd("delpolicy", "s3://s3cmd")


def test_s3cmd_shows_and_changes_an_acl(client, s3cmd):
    client.s3.put_bucket_ownership_controls(
        Bucket="s3cmd", OwnershipControls={"Rules": [{"ObjectOwnership": "ObjectWriter"}]}
    )
    s3cmd("put", "--acl-public", client.files / "below" / "c", "s3://s3cmd/acl")
    assert "*anon*" in s3cmd("info", "s3://s3cmd/acl")
    s3cmd("setacl", "--acl-private", "s3://s3cmd/acl")
    assert "*anon*" not in s3cmd("info", "s3://s3cmd/acl")


# --- restic


class Restic:
    """A repository in a bucket of its own."""

    def __init__(self, client, bucket):
        self.client, self.bucket = client, bucket
        self.environment = client.scenario.environment | {
            "AWS_ACCESS_KEY_ID": client.user.access,
            "AWS_SECRET_ACCESS_KEY": client.user.secret,
            "AWS_DEFAULT_REGION": "us-east-1",
            "RESTIC_REPOSITORY": f"s3:{client.endpoint}/{bucket}/repository",
            "RESTIC_PASSWORD": "not a secret",
            "RESTIC_CACHE_DIR": str(client.scenario.directory / "restic-cache"),
        }
        self.run("init")

    def run(self, *arguments):
        return self.client.scenario.run("restic", *arguments, env=self.environment).stdout

    def backup(self):
        self.run("backup", self.client.files)

    def restored(self):
        target = self.client.scenario.directory / f"restored-{self.bucket}"
        self.run("restore", "latest", "--target", target)
        return self.client.tree(target / self.client.files.relative_to("/"))


@pytest.fixture(scope="module")
def restic(client):
    """It makes the bucket itself."""
    restic = Restic(client, "restic")
    restic.backup()
    return restic


def test_restic_restores_what_it_has_backed_up(client, restic):
    assert restic.restored() == client.tree(client.files)


def test_restic_finds_nothing_wrong(restic):
    assert "no errors were found" in restic.run("check", "--read-data")


def test_restic_forgets_and_prunes(restic):
    restic.backup()
    restic.run("forget", "--keep-last", "1", "--prune")
    assert len(json.loads(restic.run("snapshots", "--json"))) == 1
    assert "no errors were found" in restic.run("check", "--read-data")


@pytest.fixture(scope="module")
def locked(client):
    """A repository in a bucket where everything is retained for a day."""
    client.s3.create_bucket(Bucket="locked", ObjectLockEnabledForBucket=True)
    rule = {"DefaultRetention": {"Mode": "COMPLIANCE", "Days": 1}}
    configuration = {"ObjectLockEnabled": "Enabled", "Rule": rule}
    client.s3.put_object_lock_configuration(Bucket="locked", ObjectLockConfiguration=configuration)
    restic = Restic(client, "locked")
    restic.backup()
    return restic


def test_restic_works_where_everything_is_retained(client, locked):
    assert locked.restored() == client.tree(client.files)
    assert "no errors were found" in locked.run("check", "--read-data")


def test_what_restic_has_written_is_retained(client, locked):
    versions = client.s3.list_object_versions(Bucket="locked", Prefix="repository/data/")["Versions"]
    assert versions
    for version in versions:
        place = {"Bucket": "locked", "Key": version["Key"], "VersionId": version["VersionId"]}
        assert error_of(client.s3.delete_object, **place) == (403, "AccessDenied"), place


# --- mc


@pytest.fixture(scope="module")
def mc(client):
    """Built from its Go module, which takes a minute; Debian's Go is too old for it."""
    if not shutil.which("go"):
        pytest.skip("Go is not installed")
    scenario = client.scenario
    binaries = scenario.directory / "go"
    environment = scenario.environment | {"GOBIN": str(binaries), "GOFLAGS": "-mod=mod"}
    # Proxies of the user count here.
    environment |= {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    scenario.run("go", "install", MC, env=environment, timeout=900)
    configuration = scenario.directory / "mc"
    run = lambda *arguments, **options: (
        scenario.run(binaries / "mc", "--config-dir", configuration, "--quiet", *arguments, **options).stdout
    )
    run("alias", "set", "atoll", client.endpoint, client.user.access, client.user.secret, "--api", "s3v4")
    run("mb", "atoll/mc-bucket")
    return run


class TestMc:
    pytestmark = [pytest.mark.nightly, pytest.mark.limit(1000)]

    def test_it_copies_there_and_back(self, client, mc):
        mc("cp", "--recursive", f"{client.files}/", "atoll/mc-bucket/tree/")
        back = client.scenario.directory / "mc-back"
        mc("cp", "--recursive", "atoll/mc-bucket/tree/", f"{back}/")
        assert client.tree(back) == client.tree(client.files)

    def test_it_lists_shows_and_removes(self, client, mc):
        mc("cp", client.files / "below" / "c", "atoll/mc-bucket/listed")
        assert [json.loads(line)["key"] for line in mc("ls", "--json", "atoll/mc-bucket/listed").splitlines()] == [
            "listed"
        ]
        assert json.loads(mc("stat", "--json", "atoll/mc-bucket/listed"))["size"] == 70_000
        mc("rm", "atoll/mc-bucket/listed")
        assert code_of(client.s3.get_object, Bucket="mc-bucket", Key="listed") == "NoSuchKey"

    def test_it_opens_a_bucket_to_everybody_for_downloads(self, client, mc):
        client.s3.put_object(Bucket="mc-bucket", Key="public", Body=PUBLIC)
        mc("anonymous", "set", "download", "atoll/mc-bucket")
        assert "download" in mc("anonymous", "get", "atoll/mc-bucket")
        with urllib.request.urlopen(f"{client.endpoint}/mc-bucket/public") as answer:
            intact(answer.read() == PUBLIC, "other bytes")
        mc("anonymous", "set", "none", "atoll/mc-bucket")

    def test_it_turns_versioning_on_and_shows_versions(self, client, mc):
        mc("mb", "atoll/mc-versions")
        mc("version", "enable", "atoll/mc-versions")
        assert client.s3.get_bucket_versioning(Bucket="mc-versions")["Status"] == "Enabled"
        for body in (b"1", b"2"):
            client.s3.put_object(Bucket="mc-versions", Key="a", Body=body)
        lines = mc("ls", "--versions", "--json", "atoll/mc-versions").splitlines()
        assert len({json.loads(line)["versionId"] for line in lines}) == 2, lines

    def test_it_mirrors_and_compares(self, client, mc):
        mc("mirror", f"{client.files}/", "atoll/mc-bucket/mirror/")
        assert mc("diff", f"{client.files}/", "atoll/mc-bucket/mirror/").strip() == ""
        intact(
            read(client.s3, "mc-bucket", "mirror/below/c") == (client.files / "below" / "c").read_bytes(), "other bytes"
        )

    def test_it_shows_retention_of_a_locked_bucket(self, client, mc):
        mc("mb", "--with-lock", "atoll/mc-locked")
        mc("retention", "set", "--default", "governance", "1d", "atoll/mc-locked")
        assert re.search("GOVERNANCE", mc("retention", "info", "--default", "atoll/mc-locked"))


# --- warp


class TestWarp:
    """MinIO's benchmark, here for its requests and not for its figures. Not every version of it is to be had as a
    Go module, so that a binary is looked for: 'go install github.com/minio/warp@latest', or from a checkout."""

    pytestmark = pytest.mark.nightly

    SMALL = ("--objects", "400", "--obj.size", "64KiB")

    @pytest.mark.parametrize(
        ("benchmark", "options"),
        [
            ("put", ("--obj.size", "64KiB", "--checksum", "CRC64NVME")),
            ("get", (*SMALL, "--range")),
            ("mixed", SMALL),
            ("mixed", (*SMALL, "--encrypt")),
            ("stat", SMALL),
            ("list", (*SMALL, "--metadata")),
            ("delete", ("--objects", "3200", "--obj.size", "1KiB")),
            ("versioned", SMALL),
            ("retention", SMALL),
            ("multipart", ("--parts", "8", "--part.size", "5MiB")),
            ("multipart-put", ("--parts", "8", "--part.size", "5MiB", "--part.concurrent", "4")),
        ],
        ids=lambda value: value if isinstance(value, str) else value[-1].strip("-"),
    )
    def test_none_of_its_requests_fails(self, client, benchmark, options, note):
        warp = shutil.which("warp") or pytest.skip("warp is not installed")
        data = client.scenario.directory / "warp"
        encrypted = client.cluster.credentials()["tls_endpoint"].removeprefix("https://")
        client.scenario.run(
            warp,
            benchmark,
            *("--host", encrypted, "--tls", "--access-key", client.user.access, "--secret-key", client.user.secret),
            *("--bucket", f"warp-{benchmark}", "--duration", "3s", "--concurrent", "8", "--benchdata", data, *options),
            env=client.scenario.environment | {"SSL_CERT_FILE": str(client.cluster.data / "tls" / "ca.crt")},
            timeout=120,
        )
        total = json.loads(client.scenario.run("zstd", "-dc", f"{data}.json.zst").stdout)["total"]
        note(f"{total['total_requests']} requests")
        assert total["total_errors"] == 0, total["first_errors"]
        assert total["total_requests"] > 20, total
