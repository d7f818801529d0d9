#!/usr/bin/env python3
"""Checks with boto3 that a Deny holds whose condition is about what only a body says, or one of many in a request; and
that a bucket that is made again under a name has nothing of the one before.

Like s3_conformance.py, whose helpers it uses.
"""

import json
import secrets
import sys

import s3_conformance as base
from s3_access import nobody, policy, with_acls
from s3_conformance import check, refused, s3
from s3_key_rights import User
from s3_versions import bucket, put, until

base.CHECKS.clear()
DAY = 24 * 60 * 60
ANY = ("Allow", "s3:*", "*", {})


def deny(action, operator, key, value):
    return ("Deny", action, "*", {"Condition": {operator: {key: value}}})


def retain(name, mode, seconds, **more):
    retention = {"Mode": mode, "RetainUntilDate": until(seconds)}
    return s3.put_object_retention(Bucket=name, Key="k", Retention=retention, **more)


def hold(name, status):
    return s3.put_object_legal_hold(Bucket=name, Key="k", LegalHold={"Status": status})


def locked_bucket():
    return bucket(versioning=None, ObjectLockEnabledForBucket=True)


@check
def a_denied_mode_is_denied_in_a_header_and_in_a_body():
    with locked_bucket() as name:
        put(name, "k", b"k")
        policy(name, ANY, deny("s3:PutObjectRetention", "StringEquals", "s3:object-lock-mode", "COMPLIANCE"))
        lock = {"ObjectLockMode": "COMPLIANCE", "ObjectLockRetainUntilDate": until(DAY)}
        refused("AccessDenied", s3.put_object, Bucket=name, Key="k", **lock)
        refused("AccessDenied", retain, name, "COMPLIANCE", DAY)
        retain(name, "GOVERNANCE", DAY)
        # Some allow a mode only by naming it.
        only = deny("s3:PutObjectRetention", "StringNotEquals", "s3:object-lock-mode", "GOVERNANCE")
        policy(name, ANY, only)
        refused("AccessDenied", retain, name, "COMPLIANCE", 2 * DAY)
        retain(name, "GOVERNANCE", 2 * DAY)


@check
def a_denied_date_is_denied_in_a_header_and_in_a_body():
    with locked_bucket() as name:
        put(name, "k", b"k")
        for statement in (
            deny(
                "s3:PutObjectRetention",
                "DateGreaterThan",
                "s3:object-lock-retain-until-date",
                until(10 * DAY).strftime("%Y-%m-%dT%H:%M:%SZ"),
            ),
            deny("s3:PutObjectRetention", "NumericGreaterThan", "s3:object-lock-remaining-retention-days", "10"),
        ):
            policy(name, ANY, statement)
            lock = {"ObjectLockMode": "GOVERNANCE", "ObjectLockRetainUntilDate": until(11 * DAY)}
            refused("AccessDenied", s3.put_object, Bucket=name, Key="k", **lock)
            refused("AccessDenied", retain, name, "GOVERNANCE", 11 * DAY)
            put(name, "k", b"k", **(lock | {"ObjectLockRetainUntilDate": until(9 * DAY)}))
            retain(name, "GOVERNANCE", 9.5 * DAY)


@check
def a_denied_hold_is_denied_in_a_header_and_in_a_body():
    with locked_bucket() as name:
        put(name, "k", b"k")
        policy(name, ANY, deny("s3:PutObjectLegalHold", "StringEquals", "s3:object-lock-legal-hold", "OFF"))
        refused("AccessDenied", s3.put_object, Bucket=name, Key="k", ObjectLockLegalHoldStatus="OFF")
        hold(name, "ON")
        refused("AccessDenied", hold, name, "OFF")
        s3.delete_bucket_policy(Bucket=name)
        hold(name, "OFF")


@check
def bypassing_is_denied_by_what_the_body_says():
    """Who may shorten a retention may be denied to do so to a mode."""
    with locked_bucket() as name:
        put(name, "k", b"k", ObjectLockMode="GOVERNANCE", ObjectLockRetainUntilDate=until(2 * DAY))
        less = deny("s3:BypassGovernanceRetention", "NumericLessThan", "s3:object-lock-remaining-retention-days", "1")
        mode = deny("s3:BypassGovernanceRetention", "StringEquals", "s3:object-lock-mode", "GOVERNANCE")
        policy(name, ANY, mode)
        refused("AccessDenied", retain, name, "GOVERNANCE", DAY, BypassGovernanceRetention=True)
        policy(name, ANY, less)
        retain(name, "GOVERNANCE", DAY, BypassGovernanceRetention=True)
        s3.delete_bucket_policy(Bucket=name)


@check
def a_version_is_denied_in_a_url_a_body_and_a_copy():
    with bucket() as name:
        kept, other = put(name, "k", b"1"), put(name, "k", b"2")
        of_version = lambda action: deny(action, "StringEquals", "s3:VersionId", kept)
        policy(name, ANY, of_version("s3:DeleteObjectVersion"), of_version("s3:GetObjectVersion"))
        refused("AccessDenied", s3.delete_object, Bucket=name, Key="k", VersionId=kept)
        objects = [{"Key": "k", "VersionId": version} for version in (kept, other)]
        answer = s3.delete_objects(Bucket=name, Delete={"Objects": objects})
        assert [entry["VersionId"] for entry in answer["Deleted"]] == [other], answer
        assert [entry["Code"] for entry in answer["Errors"]] == ["AccessDenied"], answer
        refused("AccessDenied", s3.get_object, Bucket=name, Key="k", VersionId=kept)
        source = {"Bucket": name, "Key": "k", "VersionId": kept}
        refused("AccessDenied", s3.copy_object, Bucket=name, Key="copy", CopySource=source)
        s3.delete_bucket_policy(Bucket=name)


@check
def writes_that_make_an_object_are_told_from_parts():
    """A policy of AWS's guide: objects are written with a condition, and parts of uploads need none."""
    with bucket() as name:
        creates = {"Bool": {"s3:ObjectCreationOperation": "true"}, "Null": {"s3:if-none-match": "true"}}
        policy(name, ANY, ("Deny", "s3:PutObject", "*", {"Condition": creates}))
        refused("AccessDenied", s3.put_object, Bucket=name, Key="k", Body=b"k")
        s3.put_object(Bucket=name, Key="k", Body=b"k", IfNoneMatch="*")
        upload = {"Bucket": name, "Key": "parts"}
        upload["UploadId"] = s3.create_multipart_upload(**upload)["UploadId"]
        part = {"PartNumber": 1, "ETag": s3.upload_part(PartNumber=1, Body=b"p", **upload)["ETag"]}
        complete = lambda **more: s3.complete_multipart_upload(MultipartUpload={"Parts": [part]}, **upload, **more)
        refused("AccessDenied", complete)
        complete(IfNoneMatch="*")
        s3.delete_bucket_policy(Bucket=name)


@check
def a_pool_can_be_forbidden():
    """By the place that the body of a CreateBucket names."""
    name = "atoll-" + secrets.token_hex(8)
    place = lambda constraint: {"CreateBucketConfiguration": {"LocationConstraint": constraint}}
    of_pool = lambda effect, operator: {
        "Effect": effect,
        "Action": "s3:CreateBucket",
        "Resource": "*",
        "Condition": {operator: {"s3:LocationConstraint": "pool:images"}},
    }
    with User() as user:
        user.may(of_pool("Deny", "StringEquals"))
        refused("AccessDenied", user.s3.create_bucket, Bucket=name, **place("pool:images"))
        # There is no such pool, which is the next question.
        refused("InvalidLocationConstraint", user.s3.create_bucket, Bucket=name, **place("pool:none"))
        user.s3.create_bucket(Bucket=name)
        user.s3.delete_bucket(Bucket=name)
        user.may(of_pool("Deny", "StringNotEquals"))
        refused("AccessDenied", user.s3.create_bucket, Bucket=name)
        refused("AccessDenied", user.s3.create_bucket, Bucket=name, **place("pool:none"))
        refused("InvalidLocationConstraint", user.s3.create_bucket, Bucket=name, **place("pool:images"))
        only = {"Version": "2012-10-17", "Statement": [of_pool("Allow", "StringEquals")]}
        user.api.put_user_policy(UserName=user.name, PolicyName="row", PolicyDocument=json.dumps(only))
        refused("AccessDenied", user.s3.create_bucket, Bucket=name)
        refused("InvalidLocationConstraint", user.s3.create_bucket, Bucket=name, **place("pool:images"))


@check
def a_bucket_that_is_made_again_has_nothing_of_the_one_before():
    with bucket(versioning=None) as name:
        with_acls(name)
        s3.delete_public_access_block(Bucket=name)
        s3.put_bucket_acl(Bucket=name, ACL="public-read")
        policy(name, ("Allow", "s3:GetObject", "*", {}))
        rule = {"AllowedMethods": ["GET"], "AllowedOrigins": ["*"]}
        s3.put_bucket_cors(Bucket=name, CORSConfiguration={"CORSRules": [rule]})
        s3.put_bucket_tagging(Bucket=name, Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
        s3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
        nobody.list_objects_v2(Bucket=name)
        s3.delete_bucket(Bucket=name)
        s3.create_bucket(Bucket=name)
        put(name, "k", b"k")
        refused("NoSuchBucketPolicy", s3.get_bucket_policy, Bucket=name)
        refused("NoSuchCORSConfiguration", s3.get_bucket_cors, Bucket=name)
        refused("NoSuchTagSet", s3.get_bucket_tagging, Bucket=name)
        assert "Status" not in s3.get_bucket_versioning(Bucket=name)
        assert [grant["Permission"] for grant in s3.get_bucket_acl(Bucket=name)["Grants"]] == ["FULL_CONTROL"]
        refused("AccessDenied", nobody.list_objects_v2, Bucket=name)
        refused("AccessDenied", nobody.get_object, Bucket=name, Key="k")
        s3.delete_object(Bucket=name, Key="k")


if __name__ == "__main__":
    sys.exit(base.main())
