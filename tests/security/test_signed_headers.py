"""What a signature does not cover is not obeyed: a presigned URL gives a stranger what it says, and nothing else.

crates/s3/tests/s3_signed_headers.py has every header of every operation; here is the attack on a whole cluster, and the
clients that people have.
"""

import datetime
import http.client
import urllib.parse

import boto3
import pytest
from botocore.client import Config

BUCKET, SECRET = "given", b"the plan"
NOT_SIGNED = b"There were headers present in the request which were not signed"


@pytest.fixture(scope="module")
def cluster(scenario):
    cluster = scenario.cluster("signed", osds=1, osd_size="2G")
    cluster.up()
    s3 = cluster.s3()
    s3.create_bucket(Bucket=BUCKET, ObjectLockEnabledForBucket=True)
    s3.put_object(Bucket=BUCKET, Key="secret/plan", Body=SECRET)
    return cluster


@pytest.fixture(scope="module")
def s3(cluster):
    return cluster.s3()


def send(method, url, body=None, **headers):
    """As it is: urllib and browsers would add a type."""
    place = urllib.parse.urlparse(url)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=20)
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, f"{place.path}?{place.query}", body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


def keys(s3):
    return [entry["Key"] for entry in s3.list_objects_v2(Bucket=BUCKET)["Contents"]]


def test_an_upload_url_copies_no_secret(s3):
    url = s3.generate_presigned_url("put_object", {"Bucket": BUCKET, "Key": "drop"})
    status, body = send("PUT", url, b"", x_amz_copy_source=f"/{BUCKET}/secret/plan")
    assert status == 403 and NOT_SIGNED in body and b"<HeadersNotSigned>x-amz-copy-source<" in body, (status, body)
    assert "drop" not in keys(s3)


def test_a_delete_url_removes_no_locked_version(s3):
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    lock = {"ObjectLockMode": "GOVERNANCE", "ObjectLockRetainUntilDate": until}
    place = {"Bucket": BUCKET, "Key": "locked"}
    place["VersionId"] = s3.put_object(Body=b"kept", **place, **lock)["VersionId"]
    url = s3.generate_presigned_url("delete_object", place)
    status, body = send("DELETE", url, x_amz_bypass_governance_retention="true")
    assert status == 403 and NOT_SIGNED in body, (status, body)
    assert s3.get_object(**place)["Body"].read() == b"kept"


def test_an_upload_url_locks_nothing(s3):
    url = s3.generate_presigned_url("put_object", {"Bucket": BUCKET, "Key": "forever"})
    wish = {"x_amz_object_lock_mode": "COMPLIANCE", "x_amz_object_lock_retain_until_date": "2125-01-01T00:00:00Z"}
    assert send("PUT", url, b"", **wish)[0] == 403
    assert "forever" not in keys(s3)


def test_the_attempt_is_a_security_event(cluster):
    logs = "".join(path.read_text() for path in (cluster.data / "log").glob("gateway*.log"))
    assert "a request has headers that its signature does not cover" in logs


@pytest.mark.parametrize("version", [None, "s3", "s3v4"])
def test_presigned_urls_of_boto3_work(cluster, version):
    """Without a version, as most programs are, it presigns with version 2 for us-east-1."""
    credentials = cluster.credentials()
    config = Config(signature_version=version, s3={"addressing_style": "path"})
    keys = {"aws_access_key_id": credentials["access_key"], "aws_secret_access_key": credentials["secret_key"]}
    endpoint = {"endpoint_url": credentials["endpoint"], "region_name": "us-east-1"}
    s3 = boto3.client("s3", **endpoint, **keys, config=config)
    place = {"Bucket": BUCKET, "Key": f"by/{version}"}
    url = s3.generate_presigned_url("put_object", place)
    assert ("AWSAccessKeyId=" in url) == (version != "s3v4"), url
    assert send("PUT", url, b"mine")[0] == 200
    assert send("GET", s3.generate_presigned_url("get_object", place)) == (200, b"mine")


def test_what_nothing_reads_passes(s3):
    url = s3.generate_presigned_url("get_object", {"Bucket": BUCKET, "Key": "secret/plan"})
    for name in ("x_amz_api_version", "x_amz_cf_id", "x_amz_te", "x_amz_foo"):
        assert send("GET", url, **{name: "1"}) == (200, SECRET), name
