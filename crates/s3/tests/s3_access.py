#!/usr/bin/env python3
"""Checks with boto3 who may do what: bucket policies, ACLs, ownership of objects, public access.

Like s3_conformance.py, whose helpers it uses. S3_OTHER_ACCESS_KEY is of another account.
"""

import base64
import json
import os
import sys
import zlib

import s3_conformance as base
from s3_conformance import Bucket, check, refused, s3
from s3_credentials import anonymous

base.CHECKS.clear()
OTHER = os.environ["S3_OTHER_ACCESS_KEY"], os.environ["S3_OTHER_SECRET_KEY"]
other, nobody = base.client(*OTHER), anonymous()
CRC32_OF_DATA = base64.b64encode(zlib.crc32(b"data").to_bytes(4, "big"))
ALL_USERS = "http://acs.amazonaws.com/groups/global/AllUsers"


def canonical_id(client):
    return client.list_buckets()["Owner"]["ID"]


def policy(bucket, *statements):
    """Sets a bucket's policy; each statement is an effect, actions, a place in the bucket, and more."""
    made = []
    for effect, actions, place, more in statements:
        resource = f"arn:aws:s3:::{bucket}" + (f"/{place}" if place else "")
        made.append({"Effect": effect, "Principal": "*", "Action": actions, "Resource": resource} | more)
    document = json.dumps({"Version": "2012-10-17", "Statement": made})
    s3.put_bucket_policy(Bucket=bucket, Policy=document)
    assert s3.get_bucket_policy(Bucket=bucket)["Policy"] == document


def with_acls(bucket, ownership="ObjectWriter"):
    rules = [{"ObjectOwnership": ownership}]
    s3.put_bucket_ownership_controls(Bucket=bucket, OwnershipControls={"Rules": rules})


def body(client, bucket, key, **more):
    return client.get_object(Bucket=bucket, Key=key, **more)["Body"].read()


@check
def a_policy_lets_strangers_in_as_far_as_it_says():
    with Bucket() as name:
        s3.put_object(Bucket=name, Key="public/a", Body=b"a")
        s3.put_object(Bucket=name, Key="private/b", Body=b"b")
        refused("NoSuchBucketPolicy", s3.get_bucket_policy, Bucket=name)
        policy(name, ("Allow", "s3:GetObject", "public/*", {}))
        for client in (other, nobody):
            assert body(client, name, "public/a") == b"a"
            refused("AccessDenied", client.get_object, Bucket=name, Key="private/b")
            refused("AccessDenied", client.list_objects_v2, Bucket=name)
            refused("AccessDenied", client.put_object, Bucket=name, Key="public/a", Body=b"c")
            # Who may not list learns nothing of what is missing.
            refused("AccessDenied", client.get_object, Bucket=name, Key="public/missing")
        page = {"Bucket": name, "Key": "public/a", "ResponseContentType": "text/html"}
        refused("InvalidRequest", nobody.get_object, **page)
        assert other.get_object(**page)["ContentType"] == "text/html"
        policy(
            name,
            ("Allow", "s3:GetObject", "public/*", {}),
            ("Allow", "s3:ListBucket", None, {"Condition": {"StringLike": {"s3:prefix": "public/*"}}}),
        )
        assert [entry["Key"] for entry in other.list_objects_v2(Bucket=name, Prefix="public/")["Contents"]] == [
            "public/a"
        ]
        refused("AccessDenied", other.list_objects_v2, Bucket=name)
        refused("NoSuchKey", other.get_object, Bucket=name, Key="public/missing")
        s3.delete_bucket_policy(Bucket=name)
        refused("AccessDenied", other.get_object, Bucket=name, Key="public/a")


@check
def a_denial_outweighs_all():
    with Bucket() as name:
        s3.put_object(Bucket=name, Key="a", Body=b"a")
        policy(name, ("Deny", "s3:GetObject", "*", {}))
        refused("AccessDenied", s3.get_object, Bucket=name, Key="a")
        # The owner's root can always mend the policy.
        policy(name, ("Deny", "s3:*", None, {}))
        refused("AccessDenied", s3.list_objects_v2, Bucket=name)
        s3.delete_bucket_policy(Bucket=name)
        assert body(s3, name, "a") == b"a"


@check
def conditions_count():
    with Bucket() as name:
        encrypted = {"Condition": {"StringNotEquals": {"s3:x-amz-server-side-encryption": "AES256"}}}
        policy(name, ("Allow", "s3:*", "*", {}), ("Deny", "s3:PutObject", "*", encrypted))
        refused("AccessDenied", other.put_object, Bucket=name, Key="a", Body=b"a")
        other.put_object(Bucket=name, Key="a", Body=b"a", ServerSideEncryption="AES256")
        here = {"Condition": {"IpAddress": {"aws:SourceIp": "127.0.0.0/8"}}}
        elsewhere = {"Condition": {"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}}
        policy(name, ("Allow", "s3:GetObject", "*", here))
        assert body(nobody, name, "a") == b"a"
        policy(name, ("Allow", "s3:GetObject", "*", elsewhere))
        refused("AccessDenied", nobody.get_object, Bucket=name, Key="a")


@check
def conditions_on_tags_count():
    with Bucket() as name:
        s3.put_object(Bucket=name, Key="open", Body=b"a", Tagging="level=public")
        s3.put_object(Bucket=name, Key="shut", Body=b"b", Tagging="level=secret")
        is_public = {"Condition": {"StringEquals": {"s3:ExistingObjectTag/level": "public"}}}
        policy(name, ("Allow", ["s3:GetObject", "s3:GetObjectTagging", "s3:PutObjectTagging"], "*", is_public))
        assert body(other, name, "open") == b"a"
        assert other.get_object_tagging(Bucket=name, Key="open")["TagSet"] == [{"Key": "level", "Value": "public"}]
        refused("AccessDenied", other.get_object, Bucket=name, Key="shut")
        refused("AccessDenied", other.get_object_tagging, Bucket=name, Key="shut")
        target = {"Bucket": name, "Key": "shut"}
        refused("AccessDenied", other.put_object_tagging, **target, Tagging={"TagSet": []})
        asked = {"Condition": {"StringEquals": {"s3:RequestObjectTag/level": "public"}}}
        policy(name, ("Allow", "s3:PutObjectTagging", "*", asked))
        refused(
            "AccessDenied", other.put_object_tagging, **target, Tagging={"TagSet": [{"Key": "level", "Value": "x"}]}
        )
        other.put_object_tagging(**target, Tagging={"TagSet": [{"Key": "level", "Value": "public"}]})


@check
def a_batch_is_judged_entry_by_entry():
    with Bucket() as name:
        for key in ("mine/a", "yours/b"):
            s3.put_object(Bucket=name, Key=key, Body=b"x")
        policy(name, ("Allow", "s3:DeleteObject", "yours/*", {}))
        entries = [{"Key": "mine/a"}, {"Key": "yours/b"}]
        answer = other.delete_objects(Bucket=name, Delete={"Objects": entries})
        assert [entry["Key"] for entry in answer["Deleted"]] == ["yours/b"], answer
        assert [(entry["Key"], entry["Code"]) for entry in answer["Errors"]] == [("mine/a", "AccessDenied")], answer
        assert body(s3, name, "mine/a") == b"x"


@check
def copies_need_both_sides():
    with Bucket() as name:
        s3.put_object(Bucket=name, Key="secret", Body=b"x")
        policy(name, ("Allow", "s3:PutObject", "*", {}))
        source = {"Bucket": name, "Key": "secret"}
        refused("AccessDenied", other.copy_object, Bucket=name, Key="copy", CopySource=source)
        policy(name, ("Allow", ["s3:PutObject", "s3:GetObject"], "*", {}))
        other.copy_object(Bucket=name, Key="copy", CopySource=source)
        assert body(s3, name, "copy") == b"x"


@check
def malformed_policies_are_refused():
    with Bucket() as name:
        good = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": f"arn:aws:s3:::{name}/*"}
        all_but_some = {key: value for key, value in good.items() if key != "Principal"}
        all_but_some["NotPrincipal"] = {"AWS": "123456789012"}
        for wrong in (
            "no JSON",
            json.dumps({"Version": "2012-10-17", "Statement": [all_but_some]}),
            json.dumps({"Version": "2012-10-17", "Statement": [good | {"Effect": "Perhaps"}]}),
            json.dumps({"Version": "2012-10-17", "Statement": [good | {"Resource": "arn:aws:s3:::another/*"}]}),
            json.dumps({"Version": "2012-10-17", "Statement": [good | {"Colour": "blue"}]}),
            json.dumps({"Version": "2025-01-01", "Statement": [good]}),
            json.dumps({"Version": "2012-10-17", "Statement": [good | {"Condition": {"Sometimes": {"a": "b"}}}]}),
        ):
            refused("MalformedPolicy", s3.put_bucket_policy, Bucket=name, Policy=wrong)
        refused("NoSuchBucketPolicy", s3.get_bucket_policy, Bucket=name)


@check
def acls_let_in_whom_they_name():
    with Bucket() as name:
        with_acls(name)
        s3.put_object(Bucket=name, Key="a", Body=b"a")
        refused("AccessDenied", other.get_object, Bucket=name, Key="a")
        s3.put_object_acl(Bucket=name, Key="a", GrantRead=f'id="{canonical_id(other)}"')
        assert body(other, name, "a") == b"a"
        refused("AccessDenied", other.get_object_acl, Bucket=name, Key="a")
        refused("AccessDenied", nobody.get_object, Bucket=name, Key="a")
        s3.put_object_acl(Bucket=name, Key="a", ACL="public-read")
        assert body(nobody, name, "a") == b"a"
        grants = s3.get_object_acl(Bucket=name, Key="a")["Grants"]
        assert {grant["Permission"] for grant in grants} == {"FULL_CONTROL", "READ"}, grants
        assert any(grant["Grantee"].get("URI") == ALL_USERS for grant in grants), grants
        # A new version has an ACL of its own.
        s3.put_object(Bucket=name, Key="a", Body=b"b")
        refused("AccessDenied", nobody.get_object, Bucket=name, Key="a")
        refused("AccessDenied", nobody.list_objects_v2, Bucket=name)
        s3.put_bucket_acl(Bucket=name, ACL="public-read")
        assert [entry["Key"] for entry in nobody.list_objects_v2(Bucket=name)["Contents"]] == ["a"]
        refused("AccessDenied", nobody.put_object, Bucket=name, Key="b", Body=b"b")
        s3.put_bucket_acl(Bucket=name, ACL="private")


@check
def objects_belong_to_who_writes_them():
    with Bucket() as name:
        with_acls(name)
        s3.put_bucket_acl(Bucket=name, ACL="public-read-write")
        other.put_object(Bucket=name, Key="theirs", Body=b"x")
        assert other.get_object_acl(Bucket=name, Key="theirs")["Owner"]["ID"] == canonical_id(other)
        refused("AccessDenied", s3.get_object, Bucket=name, Key="theirs")
        owners = {entry["Key"]: entry["Owner"]["ID"] for entry in s3.list_objects(Bucket=name)["Contents"]}
        assert owners == {"theirs": canonical_id(other)}
        other.put_object_acl(Bucket=name, Key="theirs", ACL="bucket-owner-read")
        assert body(s3, name, "theirs") == b"x"
        # Whose bucket it is can always delete.
        s3.delete_object(Bucket=name, Key="theirs")
        with_acls(name, "BucketOwnerPreferred")
        other.put_object(Bucket=name, Key="given", Body=b"y", ACL="bucket-owner-full-control")
        assert s3.get_object_acl(Bucket=name, Key="given")["Owner"]["ID"] == canonical_id(s3)
        s3.put_bucket_acl(Bucket=name, ACL="private")


@check
def strangers_upload_where_acls_let_them():
    # Over TLS boto3 sends these bodies in aws-chunked framing, with the checksum behind them.
    with Bucket() as name:
        with_acls(name)
        s3.put_bucket_acl(Bucket=name, ACL="public-read-write")
        for data in (b"", b"small", os.urandom(3 << 20)):
            for algorithm in ("CRC32", "SHA1", "SHA256"):
                put = nobody.put_object(Bucket=name, Key="a", Body=data, ChecksumAlgorithm=algorithm, ACL="public-read")
                assert put[f"Checksum{algorithm}"], put
                assert body(nobody, name, "a") == data
                assert nobody.head_object(Bucket=name, Key="a")["ContentLength"] == len(data)
        upload = s3.create_multipart_upload(Bucket=name, Key="b", ChecksumAlgorithm="CRC32")["UploadId"]
        part = nobody.upload_part(
            Bucket=name, Key="b", UploadId=upload, PartNumber=1, Body=b"part", ChecksumAlgorithm="CRC32"
        )
        parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"], "ChecksumCRC32": part["ChecksumCRC32"]}]}
        s3.complete_multipart_upload(Bucket=name, Key="b", UploadId=upload, MultipartUpload=parts)
        assert body(s3, name, "b") == b"part"
        s3.delete_object(Bucket=name, Key="a")
        s3.put_bucket_acl(Bucket=name, ACL="private")
        refused("AccessDenied", nobody.put_object, Bucket=name, Key="a", Body=b"x", ChecksumAlgorithm="CRC32")


@check
def unsigned_framing_is_checked():
    def put(body, kind="STREAMING-UNSIGNED-PAYLOAD-TRAILER", length="4", **more):
        headers = {"x-amz-content-sha256": kind, "x-amz-trailer": "x-amz-checksum-crc32", "x-amz-acl": "public-read"}
        if length is not None:
            headers["x-amz-decoded-content-length"] = length
        return base.send("PUT", f"/{name}/a", body, headers | more)

    with Bucket() as name:
        with_acls(name)
        s3.put_bucket_acl(Bucket=name, ACL="public-read-write")
        good = b"4\r\ndata\r\n0\r\nx-amz-checksum-crc32:" + CRC32_OF_DATA + b"\r\n\r\n"
        assert put(good)[0] == 200
        assert body(nobody, name, "a") == b"data"
        for code, answer in (
            (b"BadDigest", put(good.replace(b"data", b"date"))),
            (b"MalformedTrailerError", put(b"4\r\ndata\r\n0\r\n\r\n")),
            (b"IncompleteBody", put(good[:-2])),
            (b"IncompleteBody", put(good[:9])),
            (b"IncompleteBody", put(good, length="5")),
            (b"InvalidRequest", put(good, length="3")),
            (b"InvalidRequest", put(good.replace(b"4\r\n", b"4;chunk-signature=0\r\n"))),
            (b"InvalidRequest", put(b"no framing\r\n")),
            (b"InvalidRequest", put(good, kind="STREAMING-AWS4-HMAC-SHA256-PAYLOAD")),
            (b"InvalidRequest", put(good, kind="STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER")),
            (b"MissingContentLength", put(good, length=None)),
        ):
            assert b"<Code>" + code + b"</Code>" in answer[2], (code, answer)
        assert body(nobody, name, "a") == b"data"
        s3.put_bucket_acl(Bucket=name, ACL="private")
        s3.delete_object(Bucket=name, Key="a")


@check
def acls_of_multipart_uploads_count():
    with Bucket() as name:
        with_acls(name)
        target = {"Bucket": name, "Key": "parts"}
        upload = s3.create_multipart_upload(**target, ACL="public-read", StorageClass="STANDARD_IA")["UploadId"]
        part = s3.upload_part(**target, UploadId=upload, PartNumber=1, Body=b"x")["ETag"]
        parts = {"Parts": [{"PartNumber": 1, "ETag": part}]}
        s3.complete_multipart_upload(**target, UploadId=upload, MultipartUpload=parts)
        assert body(nobody, name, "parts") == b"x"
        assert s3.head_object(**target)["StorageClass"] == "STANDARD_IA"
        assert s3.list_objects_v2(Bucket=name)["Contents"][0]["StorageClass"] == "STANDARD_IA"


@check
def without_acls_they_are_refused():
    with Bucket() as name:
        assert s3.get_bucket_ownership_controls(Bucket=name)["OwnershipControls"]["Rules"] == [
            {"ObjectOwnership": "BucketOwnerEnforced"}
        ]
        refused("AccessControlListNotSupported", s3.put_bucket_acl, Bucket=name, ACL="public-read")
        refused("AccessControlListNotSupported", s3.put_object, Bucket=name, Key="a", Body=b"", ACL="public-read")
        grant = f'id="{canonical_id(other)}"'
        refused("AccessControlListNotSupported", s3.put_object, Bucket=name, Key="a", Body=b"", GrantRead=grant)
        s3.put_object(Bucket=name, Key="a", Body=b"", ACL="private")
        s3.put_object(Bucket=name, Key="a", Body=b"", ACL="bucket-owner-full-control")
        name_of_other = "atoll-" + name[6:][::-1]
        refused("InvalidBucketAclWithObjectOwnership", s3.create_bucket, Bucket=name_of_other, ACL="public-read")


@check
def an_acl_stands_in_the_way_of_turning_acls_off():
    with Bucket() as name:
        with_acls(name)
        s3.put_bucket_acl(Bucket=name, ACL="public-read")
        refused("InvalidBucketAclWithObjectOwnership", with_acls, name, "BucketOwnerEnforced")
        s3.put_object(Bucket=name, Key="a", Body=b"a", ACL="public-read")
        s3.put_bucket_acl(Bucket=name, ACL="private")
        with_acls(name, "BucketOwnerEnforced")
        refused("AccessDenied", nobody.get_object, Bucket=name, Key="a")
        s3.delete_bucket_ownership_controls(Bucket=name)
        refused("OwnershipControlsNotFoundError", s3.get_bucket_ownership_controls, Bucket=name)
        assert body(nobody, name, "a") == b"a"


@check
def malformed_acls_are_refused():
    with Bucket() as name:
        with_acls(name)
        refused("InvalidArgument", s3.put_bucket_acl, Bucket=name, GrantRead='id="nobody-has-this"')
        refused("UnresolvableGrantByEmailAddress", s3.put_bucket_acl, Bucket=name, GrantRead='emailAddress="a@b.c"')
        refused("InvalidArgument", s3.put_bucket_acl, Bucket=name, GrantRead='uri="http://example.com"')
        refused("InvalidArgument", s3.put_bucket_acl, Bucket=name, GrantRead="whoever")
        refused(
            "InvalidRequest", s3.put_bucket_acl, Bucket=name, ACL="private", GrantRead=f'id="{canonical_id(other)}"'
        )


@check
def public_access_is_blocked():
    with Bucket() as name:
        with_acls(name)
        s3.put_object(Bucket=name, Key="a", Body=b"a", ACL="public-read")

        def block(**kinds):
            s3.put_public_access_block(Bucket=name, PublicAccessBlockConfiguration=kinds)

        block(IgnorePublicAcls=True)
        refused("AccessDenied", nobody.get_object, Bucket=name, Key="a")
        block(BlockPublicAcls=True)
        assert body(nobody, name, "a") == b"a"
        refused("AccessDenied", s3.put_object_acl, Bucket=name, Key="a", ACL="public-read")
        refused("AccessDenied", s3.put_bucket_acl, Bucket=name, ACL="authenticated-read")
        s3.put_object(Bucket=name, Key="b", Body=b"b")
        policy(name, ("Allow", "s3:GetObject", "*", {}))
        assert s3.get_bucket_policy_status(Bucket=name)["PolicyStatus"]["IsPublic"]
        assert body(nobody, name, "b") == b"b"
        block(RestrictPublicBuckets=True)
        refused("AccessDenied", nobody.get_object, Bucket=name, Key="b")
        refused("AccessDenied", other.get_object, Bucket=name, Key="b")
        block(BlockPublicPolicy=True)
        refused("AccessDenied", policy, name, ("Allow", "s3:GetObject", "*", {}))


@check
def buckets_are_those_of_the_account():
    with Bucket() as name:
        assert name in [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]
        assert name not in [bucket["Name"] for bucket in other.list_buckets()["Buckets"]]
        refused("BucketAlreadyExists", other.create_bucket, Bucket=name)
        refused("AccessDenied", nobody.list_buckets)
        s3.list_objects_v2(Bucket=name, ExpectedBucketOwner=canonical_id(s3))
        refused("AccessDenied", s3.list_objects_v2, Bucket=name, ExpectedBucketOwner=canonical_id(other))


@check
def headers_of_presigned_urls_count():
    with Bucket() as name:
        with_acls(name)
        url = s3.generate_presigned_url("put_object", Params={"Bucket": name, "Key": "a", "ACL": "public-read"})
        target = url.removeprefix(base.ENDPOINT)
        answer = base.send("PUT", target, b"a", {"x-amz-acl": "public-read"})
        assert answer[0] == 200, (target, answer)
        assert body(nobody, name, "a") == b"a"


@check
def parameters_are_judged_as_they_are_served():
    with Bucket() as name:
        s3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
        old = s3.put_object(Bucket=name, Key="public/a", Body=b"old")["VersionId"]
        s3.put_object(Bucket=name, Key="public/a", Body=b"new")
        s3.put_object(Bucket=name, Key="secret/b", Body=b"b")
        policy(
            name,
            ("Allow", "s3:GetObject", "*", {}),
            ("Allow", "s3:ListBucket", None, {"Condition": {"StringEquals": {"s3:prefix": "public/"}}}),
        )
        for target, status in [
            ("/public/a", 200),
            ("?prefix=public/", 200),
            ("?pre%66ix=public/", 200),
            (f"/public/a?versionId={old}", 403),
            (f"/public/a?version%49d={old}", 403),
            (f"/public/a?VersionId={old}", 501),
            (f"/public/a?%56ersionId={old}", 501),
            ("?prefix=secret/", 403),
            ("?Prefix=public/", 501),
            ("?Prefix=public/&prefix=secret/", 501),
            ("?prefix=public/&prefix=secret/", 400),
            # A signature of version 2 counts however it is spelled, and half of one is none.
            ("/public/a?AWSAccessKeyId=a&Expires=1&Sign%61ture=b", 403),
            ("/public/a?Sign%61ture=b", 403),
        ]:
            answer = base.send("GET", f"/{name}{target}")
            assert answer[0] == status, (target, answer)
        versions = s3.list_object_versions(Bucket=name)
        for version in versions["Versions"]:
            s3.delete_object(Bucket=name, Key=version["Key"], VersionId=version["VersionId"])


@check
def misspelled_names_are_refused():
    with Bucket() as name:
        for action, condition in (
            ("s3:GetObjct", {}),
            ("iam:GetUser", {}),
            ("s3:Frob*", {}),
            ("s3:GetObject", {"StringEquals": {"aws:SourceIpp": "x"}}),
            ("s3:GetObject", {"StringEquals": {"s3:x-amz-foo": "x"}}),
            ("s3:GetObject", {"StringLike": {"s3:prefix": "${aws:usrname}"}}),
        ):
            statement = {"Effect": "Deny", "Principal": "*", "Action": action, "Resource": f"arn:aws:s3:::{name}/*"}
            document = {"Version": "2012-10-17", "Statement": statement | {"Condition": condition}}
            refused("MalformedPolicy", s3.put_bucket_policy, Bucket=name, Policy=json.dumps(document))


if __name__ == "__main__":
    sys.exit(base.main())
