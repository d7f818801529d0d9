#!/usr/bin/env python3
"""Every operation of S3 with the actions that AWS documents for it: with all of them it is done, and without any one it
is not.

Like s3_conformance.py, whose helpers it uses. A row is an operation, the parameters that make a difference, and its
actions with what they are about ("o" the object, "t" the target of a copy, "b" the bucket, "*" the account). The rows
follow "Required permissions for Amazon S3 API operations"; actions that take the object's version are in rows of their
own.
"""

import datetime
import json
import secrets
import sys

import boto3
import botocore.session
import s3_conformance as base
from botocore.exceptions import ClientError
from s3_conformance import ACCESS, SECRET, check, s3

base.CHECKS.clear()
iam = boto3.client(
    "iam",
    endpoint_url=base.ENDPOINT,
    region_name="us-east-1",
    aws_access_key_id=ACCESS,
    aws_secret_access_key=SECRET,
)
NAME = "atoll-" + secrets.token_hex(8)
USER = "of-" + NAME
LATER = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
RETENTION = {"Mode": "GOVERNANCE", "RetainUntilDate": LATER}
TAGS = {"TagSet": [{"Key": "a", "Value": "b"}]}
RULES = {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]}
ENCRYPTION = {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]}
CORS = {"CORSRules": [{"AllowedMethods": ["GET"], "AllowedOrigins": ["*"]}]}
BLOCK = {
    "BlockPublicAcls": False,
    "IgnorePublicAcls": False,
    "BlockPublicPolicy": False,
    "RestrictPublicBuckets": False,
}
POLICY = {"Effect": "Deny", "Principal": "*", "Action": "s3:GetObject", "Resource": f"arn:aws:s3:::{NAME}/nothing"}
SOURCE = {"Bucket": NAME, "Key": "tagged"}


def version():
    return s3.list_object_versions(Bucket=NAME, Prefix="k")["Versions"][0]["VersionId"]


def etag(key="k"):
    return s3.head_object(Bucket=NAME, Key=key)["ETag"]


def upload():
    return s3.create_multipart_upload(Bucket=NAME, Key="k")["UploadId"]


def completed():
    upload_id = upload()
    part = s3.upload_part(Bucket=NAME, Key="k", UploadId=upload_id, PartNumber=1, Body=b"x")
    return {"UploadId": upload_id, "MultipartUpload": {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}}


def held():
    """A version that governance keeps."""
    put = s3.put_object(
        Bucket=NAME, Key="k", Body=b"held", ObjectLockMode="GOVERNANCE", ObjectLockRetainUntilDate=LATER
    )
    return {"VersionId": put["VersionId"], "BypassGovernanceRetention": True}


GET, PUT = "o s3:GetObject", "o s3:PutObject"
OBJECT_ROWS = [
    ("GetObject", dict, [GET]),
    ("GetObject", lambda: {"VersionId": version()}, ["o s3:GetObjectVersion"]),
    ("HeadObject", dict, [GET]),
    ("HeadObject", lambda: {"VersionId": version()}, ["o s3:GetObjectVersion"]),
    ("GetObjectAttributes", lambda: {"ObjectAttributes": ["ETag"]}, [GET, "o s3:GetObjectAttributes"]),
    (
        "GetObjectAttributes",
        lambda: {"ObjectAttributes": ["ETag"], "VersionId": version()},
        ["o s3:GetObjectVersion", "o s3:GetObjectVersionAttributes"],
    ),
    ("GetObjectAcl", dict, ["o s3:GetObjectAcl"]),
    ("GetObjectAcl", lambda: {"VersionId": version()}, ["o s3:GetObjectVersionAcl"]),
    ("GetObjectTagging", dict, ["o s3:GetObjectTagging"]),
    ("GetObjectTagging", lambda: {"VersionId": version()}, ["o s3:GetObjectVersionTagging"]),
    ("GetObjectRetention", lambda: {"Key": "locked"}, ["o s3:GetObjectRetention"]),
    ("GetObjectLegalHold", lambda: {"Key": "locked"}, ["o s3:GetObjectLegalHold"]),
    ("PutObject", dict, [PUT]),
    ("PutObject", lambda: {"IfNoneMatch": "*", "Key": "o/" + secrets.token_hex(8)}, [PUT]),
    ("PutObject", lambda: {"IfMatch": etag()}, [PUT, GET]),
    ("PutObject", lambda: {"Tagging": "a=b"}, [PUT, "o s3:PutObjectTagging"]),
    ("PutObject", lambda: {"ObjectLockLegalHoldStatus": "OFF"}, [PUT, "o s3:PutObjectLegalHold"]),
    (
        "PutObject",
        lambda: {"ObjectLockMode": "GOVERNANCE", "ObjectLockRetainUntilDate": LATER},
        [PUT, "o s3:PutObjectRetention"],
    ),
    ("PutObjectAcl", lambda: {"ACL": "bucket-owner-full-control"}, ["o s3:PutObjectAcl"]),
    ("PutObjectAcl", lambda: {"ACL": "private", "VersionId": version()}, ["o s3:PutObjectVersionAcl"]),
    ("PutObjectTagging", lambda: {"Tagging": TAGS}, ["o s3:PutObjectTagging"]),
    ("PutObjectTagging", lambda: {"Tagging": TAGS, "VersionId": version()}, ["o s3:PutObjectVersionTagging"]),
    ("DeleteObjectTagging", dict, ["o s3:DeleteObjectTagging"]),
    ("DeleteObjectTagging", lambda: {"VersionId": version()}, ["o s3:DeleteObjectVersionTagging"]),
    ("PutObjectLegalHold", lambda: {"LegalHold": {"Status": "OFF"}}, ["o s3:PutObjectLegalHold"]),
    ("PutObjectRetention", lambda: {"Retention": RETENTION}, ["o s3:PutObjectRetention"]),
    (
        "PutObjectRetention",
        lambda: {"Retention": RETENTION, "BypassGovernanceRetention": True},
        ["o s3:PutObjectRetention", "o s3:BypassGovernanceRetention"],
    ),
    ("CreateMultipartUpload", dict, [PUT]),
    ("CreateMultipartUpload", lambda: {"Tagging": "a=b"}, [PUT, "o s3:PutObjectTagging"]),
    ("CreateMultipartUpload", lambda: {"ObjectLockLegalHoldStatus": "OFF"}, [PUT, "o s3:PutObjectLegalHold"]),
    ("UploadPart", lambda: {"UploadId": upload(), "PartNumber": 1}, [PUT]),
    ("ListParts", lambda: {"UploadId": upload()}, ["o s3:ListMultipartUploadParts"]),
    ("AbortMultipartUpload", lambda: {"UploadId": upload()}, ["o s3:AbortMultipartUpload"]),
    ("CompleteMultipartUpload", completed, [PUT]),
    ("CompleteMultipartUpload", lambda: completed() | {"IfMatch": etag()}, [PUT, GET]),
    (
        "UploadPartCopy",
        lambda: {"UploadId": upload(), "PartNumber": 1, "CopySource": {"Bucket": NAME, "Key": "plain"}},
        [PUT, "p s3:GetObject"],
    ),
    ("CopyObject", lambda: {"CopySource": {"Bucket": NAME, "Key": "plain"}}, [PUT, "p s3:GetObject"]),
    (
        "CopyObject",
        lambda: {"CopySource": SOURCE},
        [PUT, "o s3:PutObjectTagging", "s s3:GetObject", "s s3:GetObjectTagging"],
    ),
    ("CopyObject", lambda: {"CopySource": SOURCE, "TaggingDirective": "REPLACE"}, [PUT, "s s3:GetObject"]),
    (
        "CopyObject",
        lambda: {"CopySource": SOURCE, "TaggingDirective": "REPLACE", "Tagging": "c=d"},
        [PUT, "o s3:PutObjectTagging", "s s3:GetObject"],
    ),
    (
        "CopyObject",
        lambda: {"CopySource": SOURCE | {"VersionId": s3.head_object(**SOURCE)["VersionId"]}},
        [PUT, "o s3:PutObjectTagging", "s s3:GetObjectVersion", "s s3:GetObjectVersionTagging"],
    ),
    (
        "CopyObject",
        lambda: {"CopySource": {"Bucket": NAME, "Key": "plain"}, "ObjectLockLegalHoldStatus": "OFF"},
        [PUT, "o s3:PutObjectLegalHold", "p s3:GetObject"],
    ),
    ("DeleteObject", dict, ["o s3:DeleteObject"]),
    ("DeleteObject", lambda: {"IfMatch": "*"}, ["o s3:DeleteObject"]),
    ("DeleteObject", lambda: {"IfMatch": etag()}, ["o s3:DeleteObject", GET]),
    ("DeleteObject", lambda: {"IfMatchSize": 1}, ["o s3:DeleteObject", GET]),
    ("DeleteObject", lambda: {"VersionId": version()}, ["o s3:DeleteObjectVersion"]),
    ("DeleteObject", held, ["o s3:DeleteObjectVersion", "o s3:BypassGovernanceRetention"]),
]
BUCKET_ROWS = [
    ("HeadBucket", {}, ["b s3:ListBucket"]),
    ("ListObjects", {}, ["b s3:ListBucket"]),
    ("ListObjectsV2", {}, ["b s3:ListBucket"]),
    ("ListObjectVersions", {}, ["b s3:ListBucketVersions"]),
    ("ListMultipartUploads", {}, ["b s3:ListBucketMultipartUploads"]),
    ("ListBuckets", {}, ["* s3:ListAllMyBuckets"]),
    ("GetBucketAcl", {}, ["b s3:GetBucketAcl"]),
    ("PutBucketAcl", {"ACL": "private"}, ["b s3:PutBucketAcl"]),
    ("GetBucketCors", {}, ["b s3:GetBucketCORS"]),
    ("PutBucketCors", {"CORSConfiguration": CORS}, ["b s3:PutBucketCORS"]),
    ("DeleteBucketCors", {}, ["b s3:PutBucketCORS"]),
    ("GetBucketEncryption", {}, ["b s3:GetEncryptionConfiguration"]),
    (
        "PutBucketEncryption",
        {"ServerSideEncryptionConfiguration": ENCRYPTION},
        ["b s3:PutEncryptionConfiguration"],
    ),
    ("DeleteBucketEncryption", {}, ["b s3:PutEncryptionConfiguration"]),
    ("GetBucketLocation", {}, ["b s3:GetBucketLocation"]),
    ("GetBucketLogging", {}, ["b s3:GetBucketLogging"]),
    ("GetBucketAccelerateConfiguration", {}, ["b s3:GetAccelerateConfiguration"]),
    ("GetBucketNotificationConfiguration", {}, ["b s3:GetBucketNotification"]),
    ("GetBucketOwnershipControls", {}, ["b s3:GetBucketOwnershipControls"]),
    ("PutBucketOwnershipControls", {"OwnershipControls": RULES}, ["b s3:PutBucketOwnershipControls"]),
    ("DeleteBucketOwnershipControls", {}, ["b s3:PutBucketOwnershipControls"]),
    (
        "PutBucketPolicy",
        {"Policy": json.dumps({"Version": "2012-10-17", "Statement": POLICY})},
        ["b s3:PutBucketPolicy"],
    ),
    ("GetBucketPolicy", {}, ["b s3:GetBucketPolicy"]),
    ("GetBucketPolicyStatus", {}, ["b s3:GetBucketPolicyStatus"]),
    ("DeleteBucketPolicy", {}, ["b s3:DeleteBucketPolicy"]),
    ("GetBucketRequestPayment", {}, ["b s3:GetBucketRequestPayment"]),
    (
        "PutBucketRequestPayment",
        {"RequestPaymentConfiguration": {"Payer": "BucketOwner"}},
        ["b s3:PutBucketRequestPayment"],
    ),
    ("PutBucketTagging", {"Tagging": TAGS}, ["b s3:PutBucketTagging"]),
    ("GetBucketTagging", {}, ["b s3:GetBucketTagging"]),
    ("DeleteBucketTagging", {}, ["b s3:PutBucketTagging"]),
    ("GetBucketVersioning", {}, ["b s3:GetBucketVersioning"]),
    ("PutBucketVersioning", {"VersioningConfiguration": {"Status": "Enabled"}}, ["b s3:PutBucketVersioning"]),
    ("GetBucketReplication", {}, ["b s3:GetReplicationConfiguration"]),
    ("GetBucketWebsite", {}, ["b s3:GetBucketWebsite"]),
    ("DeleteBucketWebsite", {}, ["b s3:DeleteBucketWebsite"]),
    ("GetBucketLifecycleConfiguration", {}, ["b s3:GetLifecycleConfiguration"]),
    ("DeleteBucketLifecycle", {}, ["b s3:PutLifecycleConfiguration"]),
    ("GetObjectLockConfiguration", {}, ["b s3:GetBucketObjectLockConfiguration"]),
    (
        "PutObjectLockConfiguration",
        {"ObjectLockConfiguration": {"ObjectLockEnabled": "Enabled"}},
        ["b s3:PutBucketObjectLockConfiguration"],
    ),
    ("PutPublicAccessBlock", {"PublicAccessBlockConfiguration": BLOCK}, ["b s3:PutBucketPublicAccessBlock"]),
    ("GetPublicAccessBlock", {}, ["b s3:GetBucketPublicAccessBlock"]),
    ("DeletePublicAccessBlock", {}, ["b s3:PutBucketPublicAccessBlock"]),
    ("DeleteBucket", {}, ["b s3:DeleteBucket"]),
]
# The keys of the letters of the rows.
PLACES = {
    "o": f"arn:aws:s3:::{NAME}/",
    "s": f"arn:aws:s3:::{NAME}/tagged",
    "p": f"arn:aws:s3:::{NAME}/plain",
    "b": f"arn:aws:s3:::{NAME}",
    "*": "*",
}


class World:
    def __enter__(self):
        s3.create_bucket(Bucket=NAME, ObjectLockEnabledForBucket=True)
        s3.put_object(Bucket=NAME, Key="tagged", Body=b"x", Tagging="team=red")
        s3.put_object(Bucket=NAME, Key="plain", Body=b"x")
        lock = {"ObjectLockMode": "GOVERNANCE", "ObjectLockRetainUntilDate": LATER, "ObjectLockLegalHoldStatus": "OFF"}
        s3.put_object(Bucket=NAME, Key="locked", Body=b"x", **lock)
        iam.create_user(UserName=USER)
        key = iam.create_access_key(UserName=USER)["AccessKey"]
        self.key = key["AccessKeyId"]
        self.client = base.client(key["AccessKeyId"], key["SecretAccessKey"])
        return self

    def __exit__(self, *_):
        iam.delete_access_key(UserName=USER, AccessKeyId=self.key)
        for name in iam.list_user_policies(UserName=USER)["PolicyNames"]:
            iam.delete_user_policy(UserName=USER, PolicyName=name)
        iam.delete_user(UserName=USER)
        found = s3.list_object_versions(Bucket=NAME)
        for entry in [*found.get("Versions", []), *found.get("DeleteMarkers", [])]:
            place = {"Key": entry["Key"], "VersionId": entry["VersionId"]}
            s3.delete_object(Bucket=NAME, BypassGovernanceRetention=True, **place)
        s3.delete_bucket(Bucket=NAME)

    def may(self, rows, key="k"):
        """Lets the user do these things and nothing else."""
        statements = []
        for row in rows:
            place, action = row.split()
            resource = PLACES[place] + (key if place == "o" else "")
            statements.append({"Effect": "Allow", "Action": action, "Resource": resource})
        statements = statements or [{"Effect": "Allow", "Action": "sts:GetCallerIdentity", "Resource": "*"}]
        document = json.dumps({"Version": "2012-10-17", "Statement": statements})
        iam.put_user_policy(UserName=USER, PolicyName="row", PolicyDocument=document)

    def outcome(self, operation, parameters):
        takes = MODEL.operation_model(operation).input_shape.members
        made = {"Bucket": NAME} if "Bucket" in takes and operation != "ListBuckets" else {}
        made |= {"Key": "k"} if "Key" in takes else {}
        try:
            getattr(self.client, botocore.xform_name(operation))(**(made | parameters))
        except ClientError as error:
            return error.response["Error"]["Code"]
        return "ok"


MODEL = botocore.session.get_session().get_service_model("s3")
DENIED = ("AccessDenied", "403")
# With the right to ask, that there is nothing is the answer.
NOTHING = {
    "GetBucketCors": "NoSuchCORSConfiguration",
    "GetBucketPolicy": "ok",
    "GetBucketReplication": "ReplicationConfigurationNotFoundError",
    "GetBucketWebsite": "NoSuchWebsiteConfiguration",
    "GetBucketLifecycleConfiguration": "NoSuchLifecycleConfiguration",
    "DeleteBucket": "BucketNotEmpty",
}


@check
def each_action_of_an_object_is_needed():
    with World() as world:
        for operation, more, actions in OBJECT_ROWS:
            s3.put_object(Bucket=NAME, Key="k", Body=b"x")
            for missing in actions:
                parameters = more()
                world.may([action for action in actions if action != missing], parameters.get("Key", "k"))
                outcome = world.outcome(operation, parameters)
                assert outcome in DENIED, (operation, parameters, "without", missing, outcome)
            s3.put_object(Bucket=NAME, Key="k", Body=b"x")
            parameters = more()
            world.may(actions, parameters.get("Key", "k"))
            assert world.outcome(operation, parameters) == "ok", (operation, parameters, actions)


@check
def each_action_of_a_bucket_is_needed():
    with World() as world:
        for operation, parameters, actions in BUCKET_ROWS:
            if operation == "GetBucketCors":
                s3.delete_bucket_cors(Bucket=NAME)
            world.may([])
            assert world.outcome(operation, parameters) in DENIED, operation
            world.may(actions)
            assert world.outcome(operation, parameters) == NOTHING.get(operation, "ok"), operation


@check
def all_operations_have_rows():
    rows = {operation for operation, _, _ in OBJECT_ROWS} | {operation for operation, _, _ in BUCKET_ROWS}
    # The last is signed for another service.
    others = {"CreateBucket", "DeleteObjects", "ListDirectoryBuckets"}
    unknown = []
    with World() as world:
        world.may([])
        for operation in set(MODEL.operation_names) - rows - others:
            members = MODEL.operation_model(operation).input_shape.members
            if set(MODEL.operation_model(operation).input_shape.required_members) <= {"Bucket", "Key"} and members:
                outcome = world.outcome(operation, {})
                if outcome not in ("NotImplemented", "MethodNotAllowed", "501", *DENIED):
                    unknown.append((operation, outcome))
    assert not unknown, unknown


@check
def each_key_of_a_deletion_is_asked_for():
    with World() as world:
        lock = {"ObjectLockMode": "GOVERNANCE", "ObjectLockRetainUntilDate": LATER}
        objects = []
        for key in ("a", "b"):
            put = s3.put_object(Bucket=NAME, Key=key, Body=b"x", **lock)
            objects.append({"Key": key, "VersionId": put["VersionId"]})
        delete = lambda objects, **more: world.client.delete_objects(Bucket=NAME, Delete={"Objects": objects}, **more)
        statements = [
            {"Effect": "Allow", "Action": ["s3:DeleteObject*"], "Resource": f"arn:aws:s3:::{NAME}/*"},
            {"Effect": "Allow", "Action": "s3:BypassGovernanceRetention", "Resource": f"arn:aws:s3:::{NAME}/a"},
        ]
        document = json.dumps({"Version": "2012-10-17", "Statement": statements})
        iam.put_user_policy(UserName=USER, PolicyName="row", PolicyDocument=document)
        answer = delete(objects, BypassGovernanceRetention=True)
        assert [entry["Key"] for entry in answer["Deleted"]] == ["a"], answer
        assert [(entry["Key"], entry["Code"]) for entry in answer["Errors"]] == [("b", "AccessDenied")], answer
        # What a condition tells is asked for, too.
        s3.put_object(Bucket=NAME, Key="c", Body=b"x")
        for condition in ({"ETag": etag("c")}, {"Size": 1}):
            answer = delete([{"Key": "c"} | condition])
            assert [entry["Code"] for entry in answer["Errors"]] == ["AccessDenied"], answer
        assert [entry["Key"] for entry in delete([{"Key": "c"}])["Deleted"]] == ["c"]


@check
def answers_show_what_one_may_ask_for():
    with World() as world:
        lock = {"ObjectLockMode": "GOVERNANCE", "ObjectLockRetainUntilDate": LATER, "ObjectLockLegalHoldStatus": "OFF"}
        s3.put_object(Bucket=NAME, Key="k", Body=b"x", Tagging="a=b", **lock)
        shown = {
            "x-amz-tagging-count": "o s3:GetObjectTagging",
            "x-amz-object-lock-mode": "o s3:GetObjectRetention",
            "x-amz-object-lock-retain-until-date": "o s3:GetObjectRetention",
            "x-amz-object-lock-legal-hold": "o s3:GetObjectLegalHold",
        }
        for right in {None, *shown.values()}:
            world.may([GET, right] if right else [GET])
            for call in (world.client.head_object, world.client.get_object):
                headers = call(Bucket=NAME, Key="k")["ResponseMetadata"]["HTTPHeaders"]
                found = {header for header in shown if header in headers}
                assert found == {header for header, needed in shown.items() if needed == right}, (right, found)


@check
def a_bucket_with_more_needs_more():
    with World() as world:
        for more, action in (
            ({}, []),
            ({"ObjectLockEnabledForBucket": True}, ["s3:PutBucketObjectLockConfiguration", "s3:PutBucketVersioning"]),
            ({"ObjectOwnership": "BucketOwnerEnforced"}, ["s3:PutBucketOwnershipControls"]),
            ({"ACL": "private"}, ["s3:PutBucketAcl"]),
        ):
            actions = ["s3:CreateBucket", *action]
            name = "atoll-" + secrets.token_hex(8)
            for missing in actions:
                world.may([f"* {each}" for each in actions if each != missing])
                outcome = world.outcome("CreateBucket", {"Bucket": name} | more)
                assert outcome in DENIED, (more, missing, outcome)
            world.may([f"* {each}" for each in actions])
            assert world.outcome("CreateBucket", {"Bucket": name} | more) == "ok", more
            s3.delete_bucket(Bucket=name)


if __name__ == "__main__":
    sys.exit(base.main())
