"""Keys under control: a cluster whose root key is in a Transit engine (tests/transit), with the engine in
trouble; rotation, re-wrapping and destruction of keys; the move from a local key file to Transit; each kind
of server-side encryption by boto3, aws CLI and rclone."""

import base64
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from botocore.exceptions import EndpointConnectionError
from lib.cluster import MIB
from lib.nbd import NbdError
from lib.s3 import error_of, read
from lib.scenario import REPOSITORY
from lib.tiers import nightly_but
from lib.transit import TOKEN, Transit
from lib.verdicts import intact
from lib.waiting import not_yet, under_load, wait_for

pytestmark = pytest.mark.needs("aws", "rclone")


LIFETIME_SECONDS = 8
ASKING_SECONDS, REFRESH_SECONDS = 1.5, 0.5


# DOC What S3 and images do when their root key is in Transit, also when that is in trouble.
class Sealed:
    """A cluster whose root key is in a Transit engine, with an image and two buckets."""

    def __init__(self, scenario):
        self.transit, self.cluster = Transit(scenario), scenario.cluster(name="transit", osd_size="2G")
        self.cluster.options = self.transit.options()
        self.cluster.variables["ATOLL_KEY_LIFETIME_SECONDS"] = str(LIFETIME_SECONDS)
        self.cluster.up()
        self.s3, self.data = self.cluster.s3(), os.urandom(3 * MIB)
        self.cluster.create_image("disk", "64M")
        with self.cluster.nbd("disk") as connection:
            connection.write(0, self.data)
        for bucket in ("one", "two"):
            self.s3.create_bucket(Bucket=bucket)
            self.s3.put_object(Bucket=bucket, Key="k", Body=self.data)

    def check_image(self):
        intact(self.cluster.read_image("disk", 0, len(self.data)) == self.data, "other bytes come back")


class Local:
    """A cluster with local keys, two buckets and two images."""

    def __init__(self, scenario):
        self.cluster = scenario.cluster(name="local", osd_size="2G")
        self.cluster.up()
        self.s3, self.data, self.has_projects = self.cluster.s3(), os.urandom(2 * MIB), False
        for bucket in ("keep", "shred"):
            self.s3.create_bucket(Bucket=bucket)
            self.s3.put_object(Bucket=bucket, Key="k", Body=self.data)
        for image in ("kept", "shredded"):
            self.cluster.create_image(image, "64M")
            with self.cluster.nbd(image) as connection:
                connection.write(4096, self.data)

    def all_is_there(self):
        intact(read(self.cluster.s3(), "keep", "k") == self.data, "the object has other bytes")
        intact(self.cluster.read_image("kept", 4096, len(self.data)) == self.data, "the image has other bytes")

    def with_projects(self):
        """With two keys more."""
        if not self.has_projects:
            for name in ("project", "second"):
                self.cluster.cli("key", "create", name)
        self.has_projects = True
        return self.cluster


@pytest.fixture(scope="module")
def sealed(scenario):
    return Sealed(scenario)


@pytest.fixture(scope="module")
def project(sealed):
    """The same, with a key more and an object that is sealed with it."""
    sealed.cluster.cli("key", "create", "project")
    kms = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "project"}
    sealed.s3.put_object(Bucket="one", Key="kms", Body=sealed.data, **kms)
    return sealed


@pytest.fixture(scope="module")
def local(scenario):
    return Local(scenario)


def test_no_root_key_is_on_a_host_of_a_cluster_with_transit(sealed):
    """'atoll up' with a Transit engine: no root key on this host, and no copy of the token."""
    text = (sealed.cluster.data / "keys" / "kms.json").read_text()
    kms = json.loads(text)
    assert kms["keys"] == {} and kms["transit"]["key"] == "atoll", f"kms.json: {kms.keys()}"
    assert TOKEN not in text, "the token was copied"


def test_the_engine_is_asked_once_per_key_and_not_per_request(sealed, note):
    """Images and objects; the engine is asked once per key and not per request."""
    sealed.check_image()
    before, begun, requests = sealed.transit.decryptions(), time.monotonic(), 0
    while time.monotonic() - begun < ASKING_SECONDS:
        for bucket in ("one", "two"):
            sealed.s3.put_object(Bucket=bucket, Key=f"small/{requests}", Body=sealed.data[:1000])
            intact(read(sealed.s3, bucket, "k") == sealed.data, "other bytes come back")
            requests += 2
    asked = sealed.transit.decryptions() - before
    assert asked <= 4, f"{asked} decryptions for {requests} requests"
    note(f"{asked} decryptions during {requests} requests")


def test_sse_kms_with_a_key_that_the_engine_has_and_one_that_it_has_not(project):
    """SSE-KMS with a key that the engine has, and with one that it has not."""
    intact(read(project.s3, "one", "kms") == project.data, "other bytes come back")
    strange = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "no-such-key"}
    refused = error_of(project.s3.put_object, Bucket="one", Key="x", Body=b"", **strange)
    assert refused == (400, "KMS.NotFoundException"), f"{refused}"


@pytest.fixture(scope="module", params=nightly_but(["hang"], ["hang", "sealed"]))
def silent(sealed, request):
    """The engine does not answer, or is sealed. It answers again at the end."""
    for bucket in ("one", "two"):
        read(sealed.s3, bucket, "k")
    # Keys that have used up half of their lifetime are asked for anew beside that, which must be over by then.
    under_load(REFRESH_SECONDS)
    sealed.transit.fail(request.param)
    sealed.failed_at = time.monotonic()
    yield sealed
    sealed.transit.fail("none")


def test_keys_in_use_go_on_and_what_needs_the_engine_fails_clearly(silent, note):
    """The engine is silent or sealed: keys in use go on, what needs it fails clearly, nothing hangs."""
    worst, served, s3 = 0, 0, silent.s3
    while time.monotonic() - silent.failed_at < LIFETIME_SECONDS / 4:
        started = time.monotonic()
        intact(read(s3, "one", "k") == silent.data, "other bytes come back")
        s3.put_object(Bucket="two", Key="while-away", Body=silent.data[:5000])
        worst, served = max(worst, time.monotonic() - started), served + 2
    started = time.monotonic()
    refused = error_of(s3.create_bucket, Bucket="three")
    assert refused == (503, "ServiceUnavailable"), f"a new bucket: {refused}"
    assert time.monotonic() - started < 4, "a new bucket's answer took too long"
    done = silent.cluster.cli("image", "create", "another", "--size", "64M", ok=None)
    assert done.returncode == 1 and "does not answer" in done.stderr, f"image create: {done.returncode} {done.stderr}"
    note(f"{served} requests served, slowest pair {worst:.2f} s")


def test_after_the_keys_lifetime_errors_are_clear_and_it_goes_on_by_itself(silent, note):
    """After the keys' lifetime: clear errors, quickly, also many at once; then it goes on by itself."""
    get = lambda: error_of(silent.s3.get_object, Bucket="one", Key="k")
    wait_for("GETs fail", lambda: get() == (503, "ServiceUnavailable"), LIFETIME_SECONDS + 5)
    started = time.monotonic()
    with ThreadPoolExecutor(32) as pool:
        errors = set(pool.map(lambda _: get(), range(64)))
    assert errors == {(503, "ServiceUnavailable")}, f"{errors}"
    took = time.monotonic() - started
    assert took < 8, f"64 requests took {took:.1f} s"
    silent.transit.fail("none")
    back = time.monotonic()
    wait_for("GETs work again", lambda: get() is None, 20)
    intact(read(silent.s3, "one", "k") == silent.data, "other bytes come back")
    note(f"64 refused in {took:.1f} s, works again after {time.monotonic() - back:.1f} s")


def test_a_short_failure_is_not_noticed(sealed):
    """A short failure is not noticed."""
    sealed.transit.fail("503", count=2)
    sealed.s3.create_bucket(Bucket="three")
    sealed.transit.fail("reset", count=1)
    sealed.s3.create_bucket(Bucket="four")
    sealed.transit.fail("none")


def test_a_gateway_that_starts_without_the_engine_waits_for_it(sealed):
    """The engine is sealed when the gateway starts: it waits and serves nothing, health says why, then it begins."""
    cluster = sealed.cluster
    sealed.transit.fail("sealed")
    try:
        before = cluster.kill("gateway")
        waiting = cluster.restarted("gateway", before)
        log = cluster.data / "log/gateway.log"
        said = "serving nothing until the key service answers"
        wait_for("the gateway says that it waits", lambda: said in log.read_text(), 20)
        found = json.loads(cluster.cli("health", "--json", ok=(0, 1, 2)).stdout)["problems"]
        assert "RECORDS_NOT_VERIFIED" in {problem["code"] for problem in found}, found
        with pytest.raises(EndpointConnectionError):
            cluster.s3(attempts=1).list_buckets()
    finally:
        sealed.transit.fail("none")

    def serves():
        with not_yet(EndpointConnectionError):
            return error_of(sealed.s3.get_object, Bucket="one", Key="k") is None

    wait_for("GETs work again", serves, 30)
    assert cluster.children()["gateway"] == waiting, "it was started again"


def test_rotation_with_everything_wrapped_anew(project):
    """Rotation with everything wrapped anew; no object changes."""
    before = project.s3.head_object(Bucket="one", Key="k")
    project.cluster.cli("key", "rotate")
    project.cluster.cli("key", "rotate", "project")
    versions = {
        (key["name"], version["id"]): version["has_wrapped"]
        for key in project.cluster.json("key", "ls")
        for version in key["versions"]
    }
    assert not any(versions["atoll", "v1"].values()) and versions["atoll", "v2"]["images"] == 1, f"{versions}"
    assert versions["project", "v2"]["buckets"] == 1 and not any(versions["project", "v1"].values()), f"{versions}"
    after = project.s3.head_object(Bucket="one", Key="k")
    assert after["LastModified"] == before["LastModified"] and after["ETag"] == before["ETag"], "the object changed"
    for key in ("k", "kms"):
        intact(read(project.s3, "one", key) == project.data, f"{key}: other bytes come back")


def test_a_restart_of_everything_asks_the_engine_again(project):
    """A restart of everything asks the engine again, and all is there."""
    project.cluster.down()
    project.cluster.up()
    project.s3 = project.cluster.s3()
    intact(
        read(project.s3, "one", "kms") == project.data and read(project.s3, "two", "k") == project.data,
        "other bytes come back",
    )
    project.check_image()


def test_a_key_that_is_destroyed_takes_what_it_protects_with_it(project, note):
    """A key that is destroyed takes what it protects with it, at once, and nothing else."""
    done = project.cluster.cli("key", "destroy", "--key", "project", ok=None)
    assert done.returncode == 1 and "--force" in done.stderr, f"{done.returncode} {done.stderr}"
    intact(read(project.s3, "one", "kms") == project.data, "a refusal destroyed it")
    project.cluster.cli("key", "destroy", "--key", "project", "--force")
    begun = time.monotonic()
    wait_for(
        "the object is unreadable",
        lambda: error_of(project.s3.get_object, Bucket="one", Key="kms") == (400, "KMS.DisabledException"),
        10,
    )
    note(f"after {time.monotonic() - begun:.1f} s")
    intact(read(project.s3, "one", "k") == project.data, "another object went with it")
    project.s3.delete_object(Bucket="one", Key="kms")


def test_rotation_an_old_version_only_opens(local):
    """Rotation: an old version only opens, a new one wraps; running processes take it up."""
    local.cluster.cli("key", "rotate")
    [key] = [key for key in local.cluster.json("key", "ls") if key["name"] == "atoll"]
    counts = [version["has_wrapped"] for version in key["versions"]]
    kinds = ("images", "buckets", "users", "sts_keys", "nvme_secrets", "signing_keys", "second_factors", "oidc_secrets")
    assert counts[0] == dict.fromkeys(kinds, 0) and counts[1] == {
        "images": 2,
        "buckets": 2,
        "users": 1,
        "sts_keys": 0,
        "nvme_secrets": 0,
        "second_factors": 0,
        "signing_keys": 1,
        "oidc_secrets": 0,
    }, f"{counts}"
    local.s3.create_bucket(Bucket="after")
    local.s3.put_object(Bucket="after", Key="k", Body=local.data)
    local.all_is_there()


@pytest.mark.nightly
def test_the_checks_of_s3_encryption(local):
    """crates/s3/tests/s3_encryption.py, over TLS."""
    cluster = local.with_projects()
    script = next(REPOSITORY.glob("crates/*/tests/s3_encryption.py"))
    environment = dict(cluster.s3_tls_environment(), S3_PLAIN_ENDPOINT=cluster.credentials()["endpoint"])
    done = cluster.scenario.run(sys.executable, script, env=environment, timeout=120, ok=None)
    passed = done.returncode == 0 and " passed, 0 failed" in done.stdout
    assert passed, f"{done.stdout[-3000:]}{done.stderr[-1000:]}"


@pytest.fixture(scope="module")
def source(local):
    """A file of 9 MiB, a bucket for it, and a customer's key."""
    local.with_projects()
    directory = local.cluster.scenario.directory
    (directory / "sse-source").write_bytes(os.urandom(9 * MIB))
    (directory / "customer.key").write_bytes(os.urandom(32))
    local.cluster.scenario.run("aws", "s3", "mb", "s3://kinds", env=local.cluster.s3_tls_environment())
    return directory / "sse-source"


AWS = {
    "SSE-S3": ["--sse", "AES256"],
    "SSE-KMS": ["--sse", "aws:kms", "--sse-kms-key-id", "project"],
    "SSE-C": ["--sse-c", "AES256", "--sse-c-key", "fileb://customer.key"],
}


@pytest.mark.parametrize("kind", AWS)
def test_aws_cli_with_each_kind_of_encryption(scenario, local, source, kind):
    """aws CLI with each kind of encryption, over TLS."""
    environment, back = local.cluster.s3_tls_environment(), scenario.directory / "sse-back"
    scenario.run("aws", "s3", "cp", source, "s3://kinds/aws", *AWS[kind], env=environment)
    key = AWS[kind] if kind == "SSE-C" else []
    scenario.run("aws", "s3", "cp", "s3://kinds/aws", back, *key, env=environment)
    assert back.read_bytes() == source.read_bytes(), "other bytes"
    back.unlink()


def test_a_buckets_default_encryption_is_told(scenario, local, source):
    """A bucket's default encryption is told."""
    environment = local.cluster.s3_tls_environment()
    told = scenario.run("aws", "s3api", "get-bucket-encryption", "--bucket", "kinds", env=environment).stdout
    [rule] = json.loads(told)["ServerSideEncryptionConfiguration"]["Rules"]
    assert rule["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"] == "AES256", told


@pytest.mark.parametrize("kind", AWS)
def test_rclone_with_each_kind_of_encryption(scenario, local, source, kind):
    """rclone with each kind of encryption, over TLS."""
    customer = base64.b64encode((scenario.directory / "customer.key").read_bytes()).decode()
    options = {
        "SSE-S3": {"SERVER_SIDE_ENCRYPTION": "AES256"},
        "SSE-KMS": {"SERVER_SIDE_ENCRYPTION": "aws:kms", "SSE_KMS_KEY_ID": "second"},
        "SSE-C": {"SSE_CUSTOMER_ALGORITHM": "AES256", "SSE_CUSTOMER_KEY_BASE64": customer},
    }[kind]
    environment = local.cluster.s3_tls_environment() | {f"RCLONE_S3_{name}": value for name, value in options.items()}
    # rclone cannot be told of the authority in both ways.
    del environment["AWS_CA_BUNDLE"]
    # Each under a name of its own: rclone looks at what is there with the key of what it writes.
    place, back = f"atoll:kinds/rclone-{kind}", scenario.directory / "sse-back"
    scenario.run(
        "rclone", "copyto", source, place, "--s3-upload-cutoff", "6M", "--s3-chunk-size", "5M", env=environment
    )
    scenario.run("rclone", "copyto", place, back, env=environment)
    assert back.read_bytes() == source.read_bytes(), "other bytes"
    back.unlink()


def test_a_bucket_and_an_image_are_shredded(local, note):
    """A bucket and an image are shredded: their data stays and says nothing."""
    for what in (("--bucket", "shred"), ("--image", "shredded")):
        done = local.cluster.cli("key", "destroy", *what, ok=None)
        assert done.returncode == 1 and "--force" in done.stderr, f"{done.returncode} {done.stderr}"
        local.cluster.cli("key", "destroy", *what, "--force")
    begun = time.monotonic()
    wait_for(
        "the bucket is unreadable",
        lambda: error_of(local.s3.get_object, Bucket="shred", Key="k") == (403, "AccessDenied"),
        10,
    )
    note(f"after {time.monotonic() - begun:.1f} s")
    assert error_of(local.s3.put_object, Bucket="shred", Key="new", Body=b"x") == (403, "AccessDenied"), "a PUT went in"
    done = local.cluster.cli("image", "info", "shredded", ok=None)
    assert done.returncode == 0, done.stderr
    with pytest.raises((NbdError, OSError)):
        local.cluster.nbd("shredded").close()
    local.all_is_there()
    local.s3.delete_object(Bucket="shred", Key="k")
    local.s3.delete_bucket(Bucket="shred")
    local.cluster.cli("image", "rm", "shredded")


def test_the_move_to_transit(local):
    """The move to Transit: both serve, then everything is there, then the local key is gone."""
    transit = Transit(local.cluster.scenario)
    local.cluster.cli("key", "use-transit", *transit.options())
    local.cluster.cli("key", "rewrap")
    local.cluster.down()
    local.cluster.up()
    local.all_is_there()
    uses = {
        (key["service"], key["name"]): sum(sum(version["has_wrapped"].values()) for version in key["versions"])
        for key in local.cluster.json("key", "ls")
    }
    assert uses["local", "atoll"] == 0 and uses["transit", "atoll"] >= 3, f"{uses}"
