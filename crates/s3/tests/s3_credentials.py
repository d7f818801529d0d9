#!/usr/bin/env python3
"""Every operation of S3 with credentials that must not do: none lets anyone in, and nothing changes.

Like s3_conformance.py, whose helpers it uses. The operations and their parameters come from botocore's
model of S3, so that none is forgotten. S3_OTHER_ACCESS_KEY is of another account.
"""

import os
import sys

import botocore.session
import s3_conformance as base
from botocore import UNSIGNED
from botocore.client import Config
from botocore.exceptions import ClientError
from s3_conformance import ACCESS, SECRET, Bucket, check, s3

base.CHECKS.clear()
OTHER = os.environ["S3_OTHER_ACCESS_KEY"], os.environ["S3_OTHER_SECRET_KEY"]
KEY, MISSING = "secret/of the owner", "missing"
# What has no bucket asks for the caller's own account, which may be asked.
OF_ACCOUNT = {"CreateBucket", "ListBuckets", "ListDirectoryBuckets", "WriteGetObjectResponse", "CreateSession"}
MODEL = botocore.session.get_session().get_service_model("s3")
OPERATIONS = [name for name in MODEL.operation_names if name not in OF_ACCOUNT]


def anonymous():
    settings = Config(signature_version=UNSIGNED, s3={"addressing_style": "path"}, retries={"total_max_attempts": 1})
    return botocore.session.get_session().create_client(
        "s3", endpoint_url=base.ENDPOINT, region_name="us-east-1", config=settings
    )


def value(shape, names=()):
    """The least that a shape of the model takes."""
    kind = shape.type_name
    if kind == "structure":
        members = shape.members.items()
        required = set(shape.required_members) or (set(list(shape.members)[:1]) if names else set())
        return {name: value(member, (*names, name)) for name, member in members if name in required}
    if kind == "list":
        return [value(shape.member, (*names, "member"))]
    if kind == "map":
        return {}
    if kind == "string":
        return (shape.enum or ["x" * shape.metadata.get("min", 1)])[0]
    plain = {"integer": 1, "long": 1, "boolean": True, "blob": b"x", "timestamp": 2_000_000_000}
    return plain[kind]


def parameters(operation, bucket, key):
    shape = MODEL.operation_model(operation).input_shape
    made = value(shape)
    for name in shape.members:
        if name == "Bucket":
            made[name] = bucket
        elif name == "Key":
            made[name] = key
        elif name == "CopySource":
            made[name] = {"Bucket": bucket, "Key": KEY}
        elif name == "Policy":
            made[name] = '{"Version":"2012-10-17","Statement":[]}'
        elif name == "Delete":
            made[name] = {"Objects": [{"Key": key}]}
        elif name == "ACL":
            made[name] = "public-read" if operation.endswith("Acl") else "bucket-owner-full-control"
    return made


def outcome(client, operation, bucket, key):
    """Status and code of an answer; 200 and an empty code for a success."""
    call = getattr(client, botocore.xform_name(operation))
    try:
        answer = call(**parameters(operation, bucket, key))
    except ClientError as error:
        return error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Code"]
    if operation == "DeleteObjects":
        errors = {entry["Code"] for entry in answer.get("Errors", [])}
        return (403, errors.pop()) if len(errors) == 1 and not answer.get("Deleted") else (200, str(errors))
    return 200, ""


def state(bucket):
    """All that an intruder could change."""
    objects = s3.list_objects_v2(Bucket=bucket)["Contents"]
    uploads = s3.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
    settings = [s3.get_bucket_acl(Bucket=bucket)["Grants"], s3.get_object_acl(Bucket=bucket, Key=KEY)["Grants"]]
    settings.append(s3.get_object_tagging(Bucket=bucket, Key=KEY)["TagSet"])
    settings.append(s3.get_bucket_versioning(Bucket=bucket).get("Status"))
    body = s3.get_object(Bucket=bucket, Key=KEY)["Body"].read()
    return [(entry["Key"], entry["ETag"], entry["Size"]) for entry in objects], uploads, settings, body


def try_all(bucket, client, codes):
    """Each operation, on an object and on none, must end with 403 and one of these codes."""
    let_in = []
    for operation in OPERATIONS:
        for key in (KEY, MISSING):
            status, code = outcome(client, operation, bucket, key)
            # What nobody can do here is refused with 501, or by its shape with 400, before anyone is asked.
            is_refused = status == 403 and (code in codes or code == "403") or status in (400, 405, 501)
            if not is_refused:
                let_in.append((operation, key, status, code))
    assert not let_in, let_in


def with_secret(ownership, client, codes):
    with Bucket() as bucket:
        if ownership:
            rules = [{"ObjectOwnership": ownership}]
            s3.put_bucket_ownership_controls(Bucket=bucket, OwnershipControls={"Rules": rules})
        s3.put_object(Bucket=bucket, Key=KEY, Body=b"nobody else's", Tagging="a=b")
        before = state(bucket)
        try_all(bucket, client, codes)
        assert state(bucket) == before
        # The same questions let the owner in, so they were good ones.
        allowed = [outcome(s3, operation, bucket, KEY)[0] for operation in ("GetObject", "ListObjectsV2", "HeadObject")]
        assert allowed == [200, 200, 200], allowed


@check
def nobody():
    with_secret(None, anonymous(), {"AccessDenied"})


@check
def nobody_where_acls_count():
    with_secret("ObjectWriter", anonymous(), {"AccessDenied"})


@check
def strangers():
    with_secret(None, base.client(*OTHER), {"AccessDenied"})


@check
def strangers_where_acls_count():
    with_secret("ObjectWriter", base.client(*OTHER), {"AccessDenied"})


@check
def unknown_keys():
    with_secret(None, base.client("ATOLLNOSUCHKEY", SECRET), {"InvalidAccessKeyId"})


@check
def wrong_secrets():
    with_secret(None, base.client(ACCESS, SECRET[:-1] + "x"), {"SignatureDoesNotMatch"})


@check
def tokens_that_nobody_gave():
    session = botocore.session.get_session()
    settings = Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1})
    for access in (ACCESS, "ASIA0123456789ABCDEF"):
        client = session.create_client(
            "s3",
            endpoint_url=base.ENDPOINT,
            region_name="us-east-1",
            aws_access_key_id=access,
            aws_secret_access_key=SECRET,
            aws_session_token="bm9ib2R5IGdhdmUgdGhpcw==",
            config=settings,
        )
        with_secret(None, client, {"InvalidToken", "InvalidAccessKeyId", "SignatureDoesNotMatch"})


if __name__ == "__main__":
    sys.exit(base.main())
