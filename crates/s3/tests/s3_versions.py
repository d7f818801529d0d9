#!/usr/bin/env python3
"""Checks with boto3 that an S3 endpoint keeps versions, locks and tags of objects, and tells of their parts.

Like s3_conformance.py, whose helpers it uses.
"""

import contextlib
import datetime
import secrets
import sys
import time

import s3_conformance as base
from botocore.exceptions import ClientError
from s3_conformance import check, refused, s3

base.CHECKS.clear()
MIB = 1 << 20
NULL = "null"


@contextlib.contextmanager
def bucket(versioning="Enabled", **options):
    name = "atoll-" + secrets.token_hex(8)
    s3.create_bucket(Bucket=name, **options)
    if versioning:
        set_versioning(name, versioning)
    try:
        yield name
    finally:
        remove_all(name)
        s3.delete_bucket(Bucket=name)


def set_versioning(name, status):
    s3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": status})
    assert s3.get_bucket_versioning(Bucket=name)["Status"] == status


def remove_all(name):
    for key, version, _, _ in versions(name):
        s3.delete_object(Bucket=name, Key=key, VersionId=version, BypassGovernanceRetention=True)


def put(name, key, body, **options):
    return s3.put_object(Bucket=name, Key=key, Body=body, **options).get("VersionId")


def read(name, key, version=None):
    which = {"VersionId": version} if version else {}
    return s3.get_object(Bucket=name, Key=key, **which)["Body"].read()


def versions(name, **options):
    """Key, version id, kind and whether it is the newest, of all pages, in their order."""
    lines = []
    for page in s3.get_paginator("list_object_versions").paginate(Bucket=name, **options):
        found = [(line, "object") for line in page.get("Versions", [])]
        found += [(line, "marker") for line in page.get("DeleteMarkers", [])]
        lines += [(line["Key"], line["VersionId"], kind, line["IsLatest"]) for line, kind in found]
    return lines


def keys(name):
    return [line["Key"] for line in s3.list_objects_v2(Bucket=name).get("Contents", [])]


def status_of(call, **options):
    """Status and headers of a request that fails."""
    try:
        call(**options)
    except ClientError as error:
        answer = error.response["ResponseMetadata"]
        return answer["HTTPStatusCode"], answer["HTTPHeaders"]
    raise AssertionError("it did not fail")


@check
def each_write_is_a_version():
    with bucket() as name:
        ids = [put(name, "k", body) for body in (b"one", b"two", b"three")]
        assert len(set(ids)) == 3 and all(ids)
        assert read(name, "k") == b"three"
        assert [read(name, "k", version) for version in ids] == [b"one", b"two", b"three"]
        assert s3.head_object(Bucket=name, Key="k")["VersionId"] == ids[2]
        expected = [("k", version, "object", version == ids[2]) for version in reversed(ids)]
        assert versions(name) == expected, versions(name)
        refused("NoSuchVersion", s3.get_object, Bucket=name, Key="k", VersionId="0" * 32)
        refused("InvalidArgument", s3.get_object, Bucket=name, Key="k", VersionId="abc")
        refused("BucketNotEmpty", s3.delete_bucket, Bucket=name)


@check
def a_deletion_leaves_a_marker():
    with bucket() as name:
        version = put(name, "k", b"kept")
        answer = s3.delete_object(Bucket=name, Key="k")
        marker = answer["VersionId"]
        assert answer["DeleteMarker"] and marker != version
        assert keys(name) == [] and versions(name) == [("k", version, "object", False), ("k", marker, "marker", True)]
        code, headers = status_of(s3.get_object, Bucket=name, Key="k")
        assert code == 404 and headers["x-amz-delete-marker"] == "true" and headers["x-amz-version-id"] == marker
        code, headers = status_of(s3.head_object, Bucket=name, Key="k", VersionId=marker)
        assert code == 405 and headers["x-amz-delete-marker"] == "true"
        assert read(name, "k", version) == b"kept"
        # Without the marker the version behind it is the newest again.
        assert s3.delete_object(Bucket=name, Key="k", VersionId=marker)["DeleteMarker"]
        assert read(name, "k") == b"kept" and keys(name) == ["k"]
        s3.delete_object(Bucket=name, Key="k", VersionId=version)
        assert versions(name) == []
        s3.delete_object(Bucket=name, Key="k", VersionId=version)


@check
def objects_from_before_are_null_versions():
    with bucket(versioning=None) as name:
        assert put(name, "k", b"before") is None
        set_versioning(name, "Enabled")
        version = put(name, "k", b"after")
        assert read(name, "k", NULL) == b"before" and read(name, "k") == b"after"
        assert versions(name) == [("k", version, "object", True), ("k", NULL, "object", False)]
        set_versioning(name, "Suspended")
        # A key has one null version at most.
        assert put(name, "k", b"suspended") is None
        assert read(name, "k", NULL) == b"suspended" and read(name, "k", version) == b"after"
        assert versions(name) == [("k", NULL, "object", True), ("k", version, "object", False)]
        assert s3.delete_object(Bucket=name, Key="k")["VersionId"] == NULL
        assert versions(name) == [("k", version, "object", False), ("k", NULL, "marker", True)]
        s3.delete_object(Bucket=name, Key="k", VersionId=NULL)
        assert read(name, "k") == b"after"


@check
def listings_of_versions_have_pages():
    with bucket() as name:
        expected = []
        for key in ("a", "b/1", "b/2", "c"):
            expected += [(key, version) for version in reversed([put(name, key, bytes([n])) for n in range(3)])]
        for size in (1, 2, 5, 100):
            lines = versions(name, PaginationConfig={"PageSize": size})
            assert [line[:2] for line in lines] == expected, (size, lines)
        assert [line[:2] for line in versions(name, Prefix="b/")] == expected[3:9]
        page = s3.list_object_versions(Bucket=name, Delimiter="/")
        assert [line["Prefix"] for line in page["CommonPrefixes"]] == ["b/"] and len(page["Versions"]) == 6
        after = s3.list_object_versions(Bucket=name, KeyMarker="b/2")
        assert [line["VersionId"] for line in after["Versions"]] == [version for _, version in expected[9:]]
        refused("InvalidArgument", s3.list_object_versions, Bucket=name, VersionIdMarker=expected[0][1])


@check
def copies_and_uploads_make_versions():
    with bucket() as name:
        old, new = put(name, "k", b"old"), put(name, "k", b"new")
        source = {"Bucket": name, "Key": "k", "VersionId": old}
        answer = s3.copy_object(Bucket=name, Key="k", CopySource=source)
        assert answer["CopySourceVersionId"] == old and answer["VersionId"] not in (old, new)
        assert read(name, "k") == b"old" and len(versions(name)) == 3
        upload = s3.create_multipart_upload(Bucket=name, Key="k")["UploadId"]
        part = s3.upload_part(Bucket=name, Key="k", UploadId=upload, PartNumber=1, Body=b"parts")
        listed = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
        made = s3.complete_multipart_upload(Bucket=name, Key="k", UploadId=upload, MultipartUpload=listed)
        assert read(name, "k", made["VersionId"]) == b"parts" and len(versions(name)) == 4


@check
def conditions_are_of_the_newest_version():
    with bucket() as name:
        etag = s3.put_object(Bucket=name, Key="k", Body=b"one")["ETag"]
        refused("PreconditionFailed", s3.put_object, Bucket=name, Key="k", Body=b"two", IfNoneMatch="*")
        s3.put_object(Bucket=name, Key="k", Body=b"two", IfMatch=etag)
        refused("PreconditionFailed", s3.put_object, Bucket=name, Key="k", Body=b"three", IfMatch=etag)
        refused("PreconditionFailed", s3.delete_object, Bucket=name, Key="k", IfMatch=etag)
        s3.put_object(Bucket=name, Key="k", Body=b"two", IfNoneMatch=etag)
        newest = s3.head_object(Bucket=name, Key="k")["ETag"]
        refused("PreconditionFailed", s3.put_object, Bucket=name, Key="k", Body=b"two", IfNoneMatch=newest)
        s3.delete_object(Bucket=name, Key="nothing", IfMatch=etag)
        s3.delete_object(Bucket=name, Key="k")
        s3.put_object(Bucket=name, Key="k", Body=b"three", IfNoneMatch="*")
        assert read(name, "k") == b"three" and len(versions(name)) == 5


@check
def several_deletions_tell_of_markers():
    with bucket() as name:
        version = put(name, "a", b"a")
        put(name, "b", b"b")
        wanted = [{"Key": "a", "VersionId": version}, {"Key": "b"}]
        deleted = s3.delete_objects(Bucket=name, Delete={"Objects": wanted})["Deleted"]
        assert deleted[0] == {"Key": "a", "VersionId": version}, deleted
        assert deleted[1]["DeleteMarker"] and deleted[1]["DeleteMarkerVersionId"], deleted
        assert keys(name) == []


def until(seconds):
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)


def remove(name, key, version, **options):
    return s3.delete_object(Bucket=name, Key=key, VersionId=version, **options)


@check
def retention_keeps_a_version():
    with bucket(versioning=None, ObjectLockEnabledForBucket=True) as name:
        assert s3.get_bucket_versioning(Bucket=name)["Status"] == "Enabled"
        off = {"Status": "Suspended"}
        refused("InvalidBucketState", s3.put_bucket_versioning, Bucket=name, VersioningConfiguration=off)
        governed = put(name, "g", b"g", ObjectLockMode="GOVERNANCE", ObjectLockRetainUntilDate=until(3600))
        bound = put(name, "c", b"c", ObjectLockMode="COMPLIANCE", ObjectLockRetainUntilDate=until(4))
        refused("AccessDenied", remove, name, "g", governed)
        refused("AccessDenied", remove, name, "c", bound, BypassGovernanceRetention=True)
        weaker = {"Mode": "GOVERNANCE", "RetainUntilDate": until(5)}
        which = {"Bucket": name, "Key": "c", "BypassGovernanceRetention": True}
        refused("AccessDenied", s3.put_object_retention, Retention=weaker, **which)
        # Versions behind a marker or newer ones are as safe.
        marker = s3.delete_object(Bucket=name, Key="c")["VersionId"]
        put(name, "c", b"newer")
        refused("AccessDenied", remove, name, "c", bound, BypassGovernanceRetention=True)
        assert read(name, "c", bound) == b"c"
        remove(name, "c", marker)
        remove(name, "g", governed, BypassGovernanceRetention=True)
        assert s3.get_object_retention(Bucket=name, Key="c", VersionId=bound)["Retention"]["Mode"] == "COMPLIANCE"
        end = time.monotonic() + 30
        while time.monotonic() < end:
            with contextlib.suppress(ClientError):
                remove(name, "c", bound)
                break
        refused("NoSuchVersion", s3.get_object, Bucket=name, Key="c", VersionId=bound)


@check
def a_legal_hold_keeps_a_version():
    with bucket(versioning=None, ObjectLockEnabledForBucket=True) as name:
        version = put(name, "k", b"k", ObjectLockLegalHoldStatus="ON")
        assert s3.head_object(Bucket=name, Key="k")["ObjectLockLegalHoldStatus"] == "ON"
        refused("AccessDenied", remove, name, "k", version, BypassGovernanceRetention=True)
        s3.put_object_legal_hold(Bucket=name, Key="k", LegalHold={"Status": "OFF"})
        remove(name, "k", version)


@check
def a_bucket_retains_by_default():
    with bucket() as name:
        rule = {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 2}}
        wanted = {"ObjectLockEnabled": "Enabled", "Rule": rule}
        s3.put_object_lock_configuration(Bucket=name, ObjectLockConfiguration=wanted)
        assert s3.get_object_lock_configuration(Bucket=name)["ObjectLockConfiguration"] == wanted
        version = put(name, "k", b"k")
        kept = s3.get_object_retention(Bucket=name, Key="k")["Retention"]
        left = kept["RetainUntilDate"] - until(0)
        assert kept["Mode"] == "GOVERNANCE" and 47 < left.total_seconds() / 3600 <= 48, kept
        refused("AccessDenied", remove, name, "k", version)


@check
def objects_have_tags():
    with bucket() as name:
        old = put(name, "k", b"k", Tagging="color=light+blue&empty=")
        new = put(name, "k", b"k")
        s3.put_object_tagging(Bucket=name, Key="k", Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})

        def tags(key="k", **which):
            found = s3.get_object_tagging(Bucket=name, Key=key, **which)["TagSet"]
            return {tag["Key"]: tag["Value"] for tag in found}

        assert tags() == tags(VersionId=new) == {"a": "b"}
        assert tags(VersionId=old) == {"color": "light blue", "empty": ""}
        assert s3.get_object(Bucket=name, Key="k", VersionId=old)["TagCount"] == 2
        s3.copy_object(Bucket=name, Key="copy", CopySource=f"{name}/k")
        s3.copy_object(Bucket=name, Key="new", CopySource=f"{name}/k", TaggingDirective="REPLACE", Tagging="c=d")
        assert (tags("copy"), tags("new")) == ({"a": "b"}, {"c": "d"})
        s3.delete_object_tagging(Bucket=name, Key="k", VersionId=old)
        assert tags(VersionId=old) == {} and tags() == {"a": "b"}
        refused("NoSuchTagSet", s3.get_bucket_tagging, Bucket=name)
        s3.put_bucket_tagging(Bucket=name, Tagging={"TagSet": [{"Key": "team", "Value": "x"}]})
        assert s3.get_bucket_tagging(Bucket=name)["TagSet"] == [{"Key": "team", "Value": "x"}]
        s3.delete_bucket_tagging(Bucket=name)
        refused("NoSuchTagSet", s3.get_bucket_tagging, Bucket=name)


@check
def parts_of_objects_are_known():
    with bucket(versioning=None) as name:
        bodies = {2: b"2" * (5 * MIB), 7: b"7" * 100}
        begun = s3.create_multipart_upload(Bucket=name, Key="k", ChecksumAlgorithm="SHA256")
        upload, listed = begun["UploadId"], []
        for number, body in bodies.items():
            part = s3.upload_part(
                Bucket=name, Key="k", UploadId=upload, PartNumber=number, Body=body, ChecksumAlgorithm="SHA256"
            )
            listed.append({"PartNumber": number, "ETag": part["ETag"], "ChecksumSHA256": part["ChecksumSHA256"]})
        s3.complete_multipart_upload(Bucket=name, Key="k", UploadId=upload, MultipartUpload={"Parts": listed})
        for (number, body), part in zip(bodies.items(), listed, strict=True):
            answer = s3.get_object(Bucket=name, Key="k", PartNumber=number, ChecksumMode="ENABLED")
            assert answer["Body"].read() == body and answer["PartsCount"] == 2
            assert answer["ChecksumSHA256"] == part["ChecksumSHA256"] and answer["ChecksumType"] == "COMPOSITE"
            head = s3.head_object(Bucket=name, Key="k", PartNumber=number)
            assert head["ContentLength"] == len(body) and head["ContentRange"] == answer["ContentRange"]
        refused("InvalidPart", s3.get_object, Bucket=name, Key="k", PartNumber=1)
        wanted = ["ETag", "Checksum", "ObjectParts", "ObjectSize", "StorageClass"]
        about = s3.get_object_attributes(Bucket=name, Key="k", ObjectAttributes=wanted)
        assert '"' not in about["ETag"], about
        assert about["ObjectSize"] == 5 * MIB + 100 and about["Checksum"]["ChecksumType"] == "COMPOSITE"
        parts = about["ObjectParts"]["Parts"]
        assert [(part["PartNumber"], part["Size"]) for part in parts] == [(2, 5 * MIB), (7, 100)]
        assert [part["ChecksumSHA256"] for part in parts] == [part["ChecksumSHA256"] for part in listed]
        put(name, "plain", b"plain")
        assert s3.get_object(Bucket=name, Key="plain", PartNumber=1)["Body"].read() == b"plain"
        about = s3.get_object_attributes(Bucket=name, Key="plain", ObjectAttributes=["ObjectParts", "ETag"])
        assert "ObjectParts" not in about and "ObjectSize" not in about


@check
def an_empty_last_part_is_empty():
    with bucket(versioning=None) as name:
        upload, listed = s3.create_multipart_upload(Bucket=name, Key="k")["UploadId"], []
        for number, body in ((1, b"1" * (5 * MIB)), (2, b"")):
            part = s3.upload_part(Bucket=name, Key="k", UploadId=upload, PartNumber=number, Body=body)
            listed.append({"PartNumber": number, "ETag": part["ETag"]})
        s3.complete_multipart_upload(Bucket=name, Key="k", UploadId=upload, MultipartUpload={"Parts": listed})
        assert s3.get_object(Bucket=name, Key="k", PartNumber=2)["Body"].read() == b""
        assert s3.head_object(Bucket=name, Key="k", PartNumber=2)["ContentLength"] == 0


@check
def a_retention_date_is_one_that_can_be_told():
    with bucket(versioning=None, ObjectLockEnabledForBucket=True) as name:
        headers = {"x-amz-object-lock-mode": "COMPLIANCE"}
        headers["x-amz-object-lock-retain-until-date"] = "9999-12-31T23:59:59-23:59"
        status, _, body = base.raw("PUT", f"/{name}/k", b"k", headers)
        assert status == 400 and b"InvalidArgument" in body, (status, body)
        assert versions(name) == []


@check
def keys_with_many_zeros_do_no_harm():
    with bucket() as name:
        key = "%00" * 300 + "a" * 700
        for method, body in (("GET", b""), ("PUT", b"k"), ("DELETE", b"")):
            status, _, said = base.raw(
                method, f"/{name}/{key}", body, query="?versionId=" + "0" * 32 if not body else ""
            )
            assert 400 <= status < 500 or status == 204, (method, status, said)
        status, _, said = base.raw("GET", f"/{name}", query=f"?versions=&prefix={key}{key}")
        assert status == 200, (status, said)
        put(name, "still", b"there")
        assert read(name, "still") == b"there"


@check
def a_bucket_is_not_made_twice_in_two_ways():
    with bucket(versioning=None) as name:
        s3.create_bucket(Bucket=name)
        refused("BucketAlreadyOwnedByYou", s3.create_bucket, Bucket=name, ObjectLockEnabledForBucket=True)


@check
def deleting_page_by_page_leaves_nothing():
    with bucket() as name:
        for number in range(7):
            put(name, "k", bytes([number]))
        page = s3.list_object_versions(Bucket=name, MaxKeys=3)
        while True:
            for line in page["Versions"]:
                s3.delete_object(Bucket=name, Key="k", VersionId=line["VersionId"])
            if not page["IsTruncated"]:
                break
            markers = {"KeyMarker": page["NextKeyMarker"], "VersionIdMarker": page["NextVersionIdMarker"]}
            page = s3.list_object_versions(Bucket=name, MaxKeys=3, **markers)
        assert versions(name) == []


if __name__ == "__main__":
    sys.exit(base.main())
