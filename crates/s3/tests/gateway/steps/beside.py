"""Steps of beside.rs: objects whose data is beside the bucket index."""

import os

from prelude import *  # noqa: F403
from prelude import code, read, run_step, s3, together


def is_zeros(key, length):
    assert read("bucket", key) == bytes(int(length))


def is_missing(key):
    assert code(s3.get_object, Bucket="bucket", Key=key) == (404, "NoSuchKey")


def delete(key):
    s3.delete_object(Bucket="bucket", Key=key)


def tag(key):
    s3.put_object_tagging(Bucket="bucket", Key=key, Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})


def is_tagged(key):
    assert s3.get_object(Bucket="bucket", Key=key)["TagCount"] == 1


def one_of_many_creates(key):
    create = lambda: code(s3.put_object, Bucket="bucket", Key=key, Body=bytes(2_000), IfNoneMatch="*")
    results = together(*[create] * 6)
    assert sorted(results) == [(200, "")] + [(412, "PreconditionFailed")] * 5, results


def copies_and_versions():
    """Versions: an object, a copy, and an object with SSE-KMS."""
    s3.put_bucket_versioning(Bucket="bucket", VersioningConfiguration={"Status": "Enabled"})
    body = os.urandom(40_000)
    kms = {"ServerSideEncryption": "aws:kms"}
    first = s3.put_object(Bucket="bucket", Key="versioned", Body=body)["VersionId"]
    second = s3.copy_object(Bucket="bucket", Key="versioned", CopySource="bucket/other")["VersionId"]
    third = s3.put_object(Bucket="bucket", Key="versioned", Body=body, **kms)["VersionId"]
    assert read("bucket", "versioned", VersionId=first) == body
    assert read("bucket", "versioned", VersionId=second) == bytes(60_000)
    assert read("bucket", "versioned", Range="bytes=5000-6000") == body[5_000:6_001]
    s3.delete_object(Bucket="bucket", Key="versioned", VersionId=first)
    s3.delete_object(Bucket="bucket", Key="versioned", VersionId=third)
    assert read("bucket", "versioned") == bytes(60_000)


def delete_all():
    versions = s3.list_object_versions(Bucket="bucket")
    for version in versions.get("Versions", []) + versions.get("DeleteMarkers", []):
        s3.delete_object(Bucket="bucket", Key=version["Key"], VersionId=version["VersionId"])


def empty_and_delete_bucket():
    delete_all()
    s3.delete_bucket(Bucket="bucket")


run_step(globals())
