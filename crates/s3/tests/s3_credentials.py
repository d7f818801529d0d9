#!/usr/bin/env python3
"""Every operation of S3 with credentials that must not do: none lets anyone in, and nothing changes.

Like s3_conformance.py, whose helpers it uses. The operations and their parameters come from botocore's
model of S3, so that none is forgotten. S3_OTHER_ACCESS_KEY is of another account.
"""

import base64
import hashlib
import hmac
import json
import os
import sys

import botocore.session
import s3_conformance as base
from botocore import UNSIGNED
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.client import Config
from botocore.credentials import Credentials
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


def not_told(bucket, method, path, headers=None, body=b""):
    """Nothing of the object is told, whatever the answer."""
    status, told, content = base.send(method, path, body, headers)
    assert b"nobody else's" not in content and status != 200, (method, path, headers, status, told, content)


@check
def tricks_with_paths():
    with Bucket() as public, Bucket() as bucket:
        s3.put_object(Bucket=bucket, Key="secret", Body=b"nobody else's")
        s3.put_object(Bucket=public, Key="open", Body=b"everybody's")
        statement = {"Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": f"arn:aws:s3:::{public}/*"}
        s3.put_bucket_policy(Bucket=public, Policy=json.dumps({"Version": "2012-10-17", "Statement": [statement]}))
        assert base.send("GET", f"/{public}/open")[2] == b"everybody's"
        for path in (
            f"/{bucket}/secret",
            f"//{bucket}/secret",
            f"/{public}/../{bucket}/secret",
            f"/{public}/%2e%2e/{bucket}/secret",
            f"/{public}/..%2f{bucket}%2fsecret",
            f"/{public}/open/../../{bucket}/secret",
            f"/{public}%2f..%2f{bucket}/secret",
            f"/{bucket}/secret?versionId=null",
            f"/{bucket}/secret?X-Amz-Signature=0",
            f"/{bucket}/secret?X-Amz-Credential={ACCESS}/20260101/us-east-1/s3/aws4_request",
            f"/{bucket}/secret%00",
            f"/{bucket.upper()}/secret",
            f"{base.ENDPOINT}/{bucket}/secret",
            f"/{bucket}?list-type=2",
            f"/{bucket}?versions",
            f"/{bucket}?policy",
        ):
            not_told(bucket, "GET", path)
        for source in (f"{bucket}/secret", f"/{bucket}/secret", f"{public}/../{bucket}/secret", f"{bucket}%2fsecret"):
            not_told(bucket, "PUT", f"/{public}/copy", {"x-amz-copy-source": source, "content-length": "0"})
            status, _, content = base.send("GET", f"/{public}/copy")
            assert status == 404 or content != b"nobody else's", (source, status, content)
        s3.delete_bucket_policy(Bucket=public)


@check
def tricks_with_headers():
    with Bucket() as bucket:
        s3.put_object(Bucket=bucket, Key="secret", Body=b"nobody else's")
        here = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": f"arn:aws:s3:::{bucket}/*"}
        here["Condition"] = {"IpAddress": {"aws:SourceIp": "192.0.2.0/24"}, "Bool": {"aws:SecureTransport": "true"}}
        s3.put_bucket_policy(Bucket=bucket, Policy=json.dumps({"Version": "2012-10-17", "Statement": [here]}))
        scope = f"Credential={ACCESS}/20260101/us-east-1/s3/aws4_request"
        for headers in (
            {},
            {"Authorization": f"AWS4-HMAC-SHA256 {scope}, SignedHeaders=host, Signature=0"},
            {"Authorization": "AWS4-HMAC-SHA256"},
            {"Authorization": f"AWS {ACCESS}:x"},
            {"Authorization": "Basic " + base64.b64encode(f"{ACCESS}:{SECRET}".encode()).decode()},
            {"Authorization": f"Bearer {SECRET}"},
            # Who is no trusted proxy is not believed.
            {"X-Forwarded-For": "192.0.2.1", "X-Forwarded-Proto": "https"},
            {"X-Real-IP": "192.0.2.1", "Forwarded": "for=192.0.2.1;proto=https"},
            {"x-amz-security-token": "x"},
            {"X-HTTP-Method-Override": "GET"},
            {"x-amz-expected-bucket-owner": ACCESS},
            {"Host": f"{bucket}.example.com"},
        ):
            not_told(bucket, "GET", f"/{bucket}/secret", headers)
        # A guess of the owner is not confirmed.
        for owner in (s3.get_bucket_acl(Bucket=bucket)["Owner"]["ID"], "somebody"):
            _, _, content = base.send("GET", f"/{bucket}/secret", headers={"x-amz-expected-bucket-owner": owner})
            assert b"<Code>AccessDenied</Code><Message>Access Denied</Message>" in content, (owner, content)
        s3.delete_bucket_policy(Bucket=bucket)


@check
def signatures_cover_what_they_say():
    """A good signature for one request is none for another."""
    with Bucket() as bucket:
        s3.put_object(Bucket=bucket, Key="open", Body=b"mine")
        s3.put_object(Bucket=bucket, Key="secret", Body=b"nobody else's")
        url = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "open"})
        target = url.removeprefix(base.ENDPOINT)
        assert base.send("GET", target)[2] == b"mine"
        not_told(bucket, "GET", target.replace("/open?", "/secret?"))
        not_told(bucket, "DELETE", target)
        not_told(bucket, "GET", target + "&versionId=null")
        not_told(bucket, "GET", target.replace("X-Amz-Expires=3600", "X-Amz-Expires=7200"))
        not_told(bucket, "GET", target.replace(ACCESS, OTHER[0]))
        assert base.send("GET", target)[2] == b"mine"


def signed_chunks(path, pieces):
    """Headers and chunks of an upload whose every chunk is signed (STREAMING-AWS4-HMAC-SHA256-PAYLOAD)."""
    size = sum(map(len, pieces))
    kind = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
    request = AWSRequest("PUT", base.ENDPOINT + path, headers={"x-amz-decoded-content-length": str(size)})
    request.headers["x-amz-content-sha256"] = kind
    request.headers["content-encoding"] = "aws-chunked"
    auth = S3SigV4Auth(Credentials(ACCESS, SECRET), "s3", "us-east-1")
    auth.payload = lambda request: kind
    auth.add_auth(request)
    date, previous = request.context["timestamp"], request.headers["Authorization"].rpartition("Signature=")[2]
    scope = f"{date[:8]}/us-east-1/s3/aws4_request"
    key = f"AWS4{SECRET}".encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    chunks = []
    for piece in [*pieces, b""]:
        digests = hashlib.sha256(b"").hexdigest(), hashlib.sha256(piece).hexdigest()
        text = "\n".join(["AWS4-HMAC-SHA256-PAYLOAD", date, scope, previous, *digests])
        previous = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        chunks.append(f"{len(piece):x};chunk-signature={previous}\r\n".encode() + piece + b"\r\n")
    return dict(request.headers.items()), chunks


@check
def chunks_cannot_be_changed():
    with Bucket() as bucket:
        path = f"/{bucket}/k"
        pieces = [b"a" * 65_536, b"b" * 65_536, b"c" * 1_000]
        headers, chunks = signed_chunks(path, pieces)
        assert base.send("PUT", path, b"".join(chunks), headers)[0] == 200
        assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"".join(pieces)
        s3.put_object(Bucket=bucket, Key="k", Body=b"kept")
        first, second, third, last = chunks
        wrong = {
            "a changed byte": [first, second.replace(b"b" * 9, b"b" * 8 + b"x", 1), third, last],
            "exchanged chunks": [second, first, third, last],
            "a chunk twice": [first, first, third, last],
            "a chunk less": [first, second, last],
            "cut short": [first, second],
            "a changed signature": [first, second, third.replace(b"chunk-signature=", b"chunk-signature=0", 1), last],
        }
        for what, body in wrong.items():
            status, _, content = base.send("PUT", path, b"".join(body), headers)
            assert status in (400, 403), (what, status, content)
            assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"kept", what


if __name__ == "__main__":
    sys.exit(base.main())
