#!/usr/bin/env python3
"""Headers that a signature does not cover are not obeyed, wherever the signature stands.

Like s3_conformance.py, whose helpers it uses. The operations and their headers come from botocore's model of S3, so
that none is forgotten. With --without-version-2 it checks that signatures of version 2 are refused.
"""

import datetime
import hashlib
import json
import re
import sys
import urllib.parse

import boto3
import botocore.session
import s3_conformance as base
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.client import Config
from botocore.credentials import Credentials
from s3_conformance import ACCESS, SECRET, Bucket, check, s3

base.CHECKS.clear()
VERSION_2_OFF = "--without-version-2" in sys.argv
MODEL = botocore.session.get_session().get_service_model("s3")
NOT_SIGNED = b"There were headers present in the request which were not signed"
IN_2100 = "2100-01-01T00:00:00Z"
# Headers by which a stranger gets more than the signer gave him: of a PUT, and of a DELETE.
WISHES = {
    "x-amz-acl": "public-read",
    "x-amz-bypass-governance-retention": "true",
    "x-amz-meta-color": "blue",
    "x-amz-object-lock-legal-hold": "ON",
    "x-amz-object-lock-mode": "COMPLIANCE",
    "x-amz-object-lock-retain-until-date": IN_2100,
    "x-amz-storage-class": "GLACIER_IR",
    "x-amz-tagging": "team=red",
    "x-amz-website-redirect-location": "https://example.com/",
    "content-md5": "1B2M2Y8AsgTpgAmY7PhCfg==",
}


def target_of(url):
    return url.removeprefix(base.ENDPOINT)


def presigned(method, path, headers=None, query=""):
    """Where to send a request that is signed in its URL."""
    request = AWSRequest(method, base.ENDPOINT + path + query, headers=dict(headers or {}))
    S3SigV4QueryAuth(Credentials(ACCESS, SECRET), "s3", "us-east-1", 600).add_auth(request)
    return target_of(request.url)


def signed(method, path, body=b"", headers=None, query="", service="s3", kind=None):
    """The headers of a request that is signed in one of them."""
    request = AWSRequest(method, base.ENDPOINT + path + query, data=body, headers=dict(headers or {}))
    payload = request.headers["x-amz-content-sha256"] = kind or hashlib.sha256(body).hexdigest()
    auth = (S3SigV4Auth if service == "s3" else SigV4Auth)(Credentials(ACCESS, SECRET), service, "us-east-1")
    auth.payload = lambda request: payload
    auth.add_auth(request)
    return dict(request.headers.items())


def not_signed(answer, *names):
    status, _, body = answer
    named = re.search(rb"<HeadersNotSigned>(.*)</HeadersNotSigned>", body)
    assert status == 403 and b"<Code>AccessDenied</Code>" in body and NOT_SIGNED in body, (names, status, body)
    assert named and named.group(1).decode() == ", ".join(sorted(names)), (names, body)


def content(bucket, key):
    return s3.get_object(Bucket=bucket, Key=key)["Body"].read()


def has(bucket, key):
    return key in [entry["Key"] for entry in s3.list_objects_v2(Bucket=bucket).get("Contents", [])]


def headers_of_model():
    """Of each operation a method and the names of its headers."""
    for name in MODEL.operation_names:
        operation = MODEL.operation_model(name)
        members = operation.input_shape.members.values() if operation.input_shape else []
        found = {member.serialization["name"].lower() for member in members if is_header(member)}
        if operation.http_checksum or operation.http_checksum_required:
            found |= {"x-amz-sdk-checksum-algorithm", "content-md5"}
        # An answer to HEAD would not say why.
        yield operation.http["method"].replace("HEAD", "GET"), sorted(found)


def is_header(member):
    return member.serialization.get("location") in ("header", "headers") and "name" in member.serialization


@check
def an_upload_for_a_stranger_copies_nothing():
    with Bucket() as bucket:
        s3.put_object(Bucket=bucket, Key="secret/plan", Body=b"secret")
        source = {"x-amz-copy-source": f"/{bucket}/secret/plan"}
        drop = f"/{bucket}/drop"
        not_signed(base.send("PUT", presigned("PUT", drop), headers=source), "x-amz-copy-source")
        assert not has(bucket, "drop")
        upload = s3.create_multipart_upload(Bucket=bucket, Key="drop")["UploadId"]
        part = presigned("PUT", drop, query=f"?partNumber=1&uploadId={upload}")
        ranged = source | {"x-amz-copy-source-range": "bytes=0-1"}
        not_signed(base.send("PUT", part, headers=ranged), *ranged)
        assert not s3.list_parts(Bucket=bucket, Key="drop", UploadId=upload).get("Parts")
        # What he was given works.
        assert base.send("PUT", presigned("PUT", drop), b"his own")[0] == 200
        assert content(bucket, "drop") == b"his own"
        # And what the signer wrote, too.
        assert base.send("PUT", presigned("PUT", drop, source), headers=source)[0] == 200
        assert content(bucket, "drop") == b"secret"


@check
def a_locked_version_stays():
    name = "atoll-" + hashlib.sha256(base.noise(8)).hexdigest()[:16]
    s3.create_bucket(Bucket=name, ObjectLockEnabledForBucket=True)
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    lock = {"ObjectLockMode": "GOVERNANCE", "ObjectLockRetainUntilDate": until}
    version = s3.put_object(Bucket=name, Key="k", Body=b"kept", **lock)["VersionId"]
    bypass = {"x-amz-bypass-governance-retention": "true"}
    target = presigned("DELETE", f"/{name}/k", query=f"?versionId={version}")
    not_signed(base.send("DELETE", target, headers=bypass), *bypass)
    assert content(name, "k") == b"kept"
    s3.delete_object(Bucket=name, Key="k", VersionId=version, BypassGovernanceRetention=True)
    for header in ("x-amz-object-lock-mode", "x-amz-object-lock-retain-until-date"):
        wish = {header: WISHES[header]}
        not_signed(base.send("PUT", presigned("PUT", f"/{name}/k"), b"new", wish), header)
    assert not s3.list_object_versions(Bucket=name).get("Versions")
    s3.delete_bucket(Bucket=name)


@check
def nothing_is_added_on_the_way():
    with Bucket() as bucket:
        path = f"/{bucket}/k"
        for header, value in WISHES.items():
            added = {header: value}
            not_signed(base.send("PUT", presigned("PUT", path), b"", added), header)
            not_signed(base.send("PUT", path, b"", signed("PUT", path) | added), header)
            chunked = signed("PUT", path, kind="STREAMING-UNSIGNED-PAYLOAD-TRAILER")
            not_signed(base.send("PUT", path, b"0\r\n\r\n", chunked | added), header)
            assert not has(bucket, "k"), header
        everything = signed("PUT", path) | WISHES
        not_signed(base.send("PUT", path, b"", everything), *WISHES)
        # A value that is no text would be passed over where signatures are verified.
        headers = signed("PUT", path)
        headers["Authorization"] = headers["Authorization"].replace("=host;", "=host;x-amz-acl;")
        headers["x-amz-acl"] = "private\xff"
        not_signed(base.send("PUT", path, b"", headers), "x-amz-acl")


@check
def every_header_of_every_operation():
    with Bucket() as bucket:
        s3.put_object(Bucket=bucket, Key="k", Body=b"kept")
        path, count = f"/{bucket}/k", 0
        for method, names in headers_of_model():
            for name in names:
                if name in PLAIN:
                    continue
                count += 1
                added = {name: "x"}
                not_signed(base.send(method, presigned(method, path), headers=added), name)
                if name != "x-amz-content-sha256":
                    not_signed(base.send(method, path, headers=signed(method, path) | added), name)
        assert count > 200, count
        assert content(bucket, "k") == b"kept"


# Headers of HTTP that clients, browsers and proxies add after a request was signed.
PLAIN = {
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-length",
    "content-type",
    "expires",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-unmodified-since",
    "range",
}


@check
def plain_headers_need_no_signature():
    with Bucket() as bucket:
        # The SDK for JavaScript presigns uploads without their type, and that for PHP never signs it.
        answer = base.send("PUT", presigned("PUT", f"/{bucket}/k"), b"kept", {"content-type": "text/plain"})
        assert answer[0] == 200, answer
        assert s3.head_object(Bucket=bucket, Key="k")["ContentType"] == "text/plain"
        path = f"/{bucket}/k"
        typed = signed("PUT", path, b"kept") | {"content-type": "text/css", "cache-control": "no-store"}
        assert base.send("PUT", path, b"kept", typed)[0] == 200
        head = s3.head_object(Bucket=bucket, Key="k")
        assert (head["ContentType"], head["CacheControl"]) == ("text/css", "no-store")
        assert base.send("GET", presigned("GET", path), headers={"range": "bytes=0-1"})[2] == b"ke"
        assert base.send("GET", presigned("GET", path), headers={"if-none-match": head["ETag"]})[0] == 304


@check
def what_nothing_reads_passes():
    with Bucket() as bucket:
        path = f"/{bucket}/k"
        strange = ["x-amz-api-version", "x-amz-cf-id", "x-amz-te", "x-amz-id-2", "x-amz-foo", "x-amz-user-agent"]
        for name in [*strange, "x-amzn-trace-id", "amz-sdk-request", "x-forwarded-for"]:
            added = {name: "2006-03-01"}
            assert base.send("PUT", presigned("PUT", path), b"x", added)[0] == 200, name
            assert base.send("PUT", path, b"x", signed("PUT", path, b"x") | added)[0] == 200, name
            assert base.send("PUT", path, b"x", signed("PUT", path, b"x", added))[0] == 200, name
        # What asks for something that is not built is refused by that.
        for name in ("x-amz-mfa", "x-amz-checksum-xxhash64", "x-amz-website-redirect-location"):
            status, _, body = base.send("PUT", path, b"x", signed("PUT", path, b"x", {name: "1"}))
            assert status == 501 and b"NotImplemented" in body, (name, status, body)


@check
def the_host_is_signed():
    with Bucket() as bucket:
        path = f"/{bucket}/k"
        headers = signed("GET", path)
        headers["Authorization"] = headers["Authorization"].replace("=host;", "=")
        not_signed(base.send("GET", path, headers=headers), "host")
        target = presigned("GET", path).replace("SignedHeaders=host", "SignedHeaders=date")
        not_signed(base.send("GET", target), "host")


@check
def only_one_signature_counts():
    deny = {"Effect": "Deny", "Principal": "*", "Action": "s3:GetObject"}
    deny["Condition"] = {"StringEquals": {"s3:authType": "REST-QUERY-STRING"}}
    with Bucket() as bucket:
        s3.put_object(Bucket=bucket, Key="k", Body=b"kept")
        deny["Resource"] = f"arn:aws:s3:::{bucket}/*"
        s3.put_bucket_policy(Bucket=bucket, Policy=json.dumps({"Version": "2012-10-17", "Statement": deny}))
        path = f"/{bucket}/k"
        assert base.send("GET", presigned("GET", path))[0] == 403
        for junk in ("junk", "", "Basic dTpw", signed("GET", path)["Authorization"]):
            status, _, body = base.send("GET", presigned("GET", path), headers={"Authorization": junk})
            assert status == 400 and b"InvalidArgument" in body and b"Only one auth" in body, (junk, status, body)
        assert content(bucket, "k") == b"kept"


@check
def a_signature_is_for_one_service_and_algorithm():
    with Bucket() as bucket:
        path = f"/{bucket}/k"
        for service in ("sts", "iam", "ec2"):
            status, _, body = base.send("PUT", path, b"x", signed("PUT", path, b"x", service=service))
            assert status == 400 and b"AuthorizationHeaderMalformed" in body, (service, status, body)
        headers = signed("PUT", path, b"x")
        headers["Authorization"] = headers["Authorization"].replace("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA512")
        status, _, body = base.send("PUT", path, b"x", headers)
        assert status == 400 and b"InvalidArgument" in body, (status, body)
        assert not has(bucket, "k")


@check
def iam_and_sts_read_nothing_that_is_not_signed():
    body = b"Action=GetCallerIdentity&Version=2011-06-15"
    form = {"content-type": "application/x-www-form-urlencoded"}
    for service in ("sts", "iam"):
        headers = signed("POST", "/", body, form, service=service)
        for added in ({"x-amz-security-token": "t"}, {"content-md5": "x"}, {"x-amz-tagging": "a=b"}):
            status, _, answer = base.send("POST", "/", body, headers | added)
            assert status == 403 and b"AccessDenied" in answer and NOT_SIGNED in answer, (service, status, answer)
        status, _, answer = base.send("POST", "/", body, headers | {"x-amz-foo": "1"})
        assert status == (200 if service == "sts" else 403), (service, status, answer)


def form_of(fields, name="k"):
    """The body of a form, and its type."""
    boundary = "atoll-boundary"
    parts = [f'--{boundary}\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n' for k, v in fields.items()]
    parts.append(f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\nx\r\n')
    body = "".join(parts) + f"--{boundary}--\r\n"
    return body.encode(), {"content-type": f"multipart/form-data; boundary={boundary}"}


@check
def forms_say_what_was_signed():
    with Bucket() as bucket:
        fields = s3.generate_presigned_post(bucket, "k")["fields"]
        for header, value in WISHES.items():
            body, kind = form_of(fields)
            not_signed(base.send("POST", f"/{bucket}", body, kind | {header: value}), header)
            # As a field that the policy does not name.
            body, kind = form_of(fields | {header: value})
            status, _, answer = base.send("POST", f"/{bucket}", body, kind)
            assert status == 403 and b"Extra input fields" in answer, (header, status, answer)
        assert not has(bucket, "k")
        body, kind = form_of(fields)
        assert base.send("POST", f"/{bucket}", body, kind | {"x-amz-foo": "1"})[0] in (200, 204)
        assert content(bucket, "k") == b"x"


def client_of_version_2():
    settings = Config(s3={"addressing_style": "path"}, signature_version="s3")
    keys = {"aws_access_key_id": ACCESS, "aws_secret_access_key": SECRET}
    return boto3.client("s3", endpoint_url=base.ENDPOINT, region_name="us-east-1", config=settings, **keys)


@check
def version_2_covers_what_it_defines():
    old = client_of_version_2()
    place = {"Key": "k"}
    with Bucket() as bucket:
        place["Bucket"] = bucket
        put = target_of(old.generate_presigned_url("put_object", place))
        for header, value in WISHES.items():
            if header == "content-md5":
                continue
            status, _, body = base.send("PUT", put, b"", {header: value})
            assert status == 403 and b"SignatureDoesNotMatch" in body, (header, status, body)
        status, _, body = base.send("PUT", put, b"", {"x-amz-copy-source": f"/{bucket}/other"})
        assert status == 403, (status, body)
        assert base.send("PUT", put, b"kept")[0] == 200
        typed = target_of(old.generate_presigned_url("put_object", place | {"ContentType": "text/plain"}))
        assert base.send("PUT", typed, b"kept", {"content-type": "text/plain"})[0] == 200
        assert base.send("PUT", typed, b"kept", {"content-type": "text/html"})[0] == 400
        head = s3.head_object(**place)
        assert head["ContentType"] == "text/plain"
        get = target_of(old.generate_presigned_url("get_object", place | {"ResponseContentType": "text/css"}))
        status, headers, body = base.send("GET", get)
        assert status == 200 and body == b"kept" and "text/css" in headers.values(), (status, headers)
        assert base.send("GET", get.replace("text%2Fcss", "text%2Fhtml"))[0] == 403
        for query in ("retention", "legal-hold", "attributes", "encryption", "ownershipControls", "publicAccessBlock"):
            for method, url in (("PUT", put), ("GET", get)):
                status, _, body = base.send(method, f"{url}&{query}", b"<x/>")
                assert status in (403, 405, 501), (method, query, status, body)
        expired = target_of(old.generate_presigned_url("get_object", place, ExpiresIn=-1))
        assert base.send("GET", expired)[0] == 403
        assert content(bucket, "k") == b"kept"


@check
def version_2_is_known_to_policies():
    old = client_of_version_2()
    with Bucket() as bucket:
        s3.put_object(Bucket=bucket, Key="k", Body=b"kept")
        statement = {"Effect": "Deny", "Principal": "*", "Action": "s3:GetObject"}
        statement["Resource"] = f"arn:aws:s3:::{bucket}/*"
        statement["Condition"] = {"StringNotEquals": {"s3:signatureversion": "AWS4-HMAC-SHA256"}}
        s3.put_bucket_policy(Bucket=bucket, Policy=json.dumps({"Version": "2012-10-17", "Statement": statement}))
        url = old.generate_presigned_url("get_object", {"Bucket": bucket, "Key": "k"})
        assert base.send("GET", target_of(url))[0] == 403
        assert content(bucket, "k") == b"kept"


@check
def old_signatures_are_denied_by_their_age():
    with Bucket() as bucket:
        s3.put_object(Bucket=bucket, Key="k", Body=b"kept")
        statement = {"Effect": "Deny", "Principal": "*", "Action": "s3:GetObject"}
        statement["Resource"] = f"arn:aws:s3:::{bucket}/*"
        target = presigned("GET", f"/{bucket}/k")
        for age, status in ((600_000, 200), (-1, 403)):
            statement["Condition"] = {"NumericGreaterThan": {"s3:signatureAge": age}}
            s3.put_bucket_policy(Bucket=bucket, Policy=json.dumps({"Version": "2012-10-17", "Statement": statement}))
            assert base.send("GET", target)[0] == status, age
        s3.delete_bucket_policy(Bucket=bucket)


def version_2_is_refused_where_it_is_off():
    with Bucket() as bucket:
        s3.put_object(Bucket=bucket, Key="k", Body=b"kept")
        url = client_of_version_2().generate_presigned_url("get_object", {"Bucket": bucket, "Key": "k"})
        status, _, body = base.send("GET", target_of(url))
        assert status == 400 and b"Please use AWS4-HMAC-SHA256" in body, (status, body)
        fields = client_of_version_2().generate_presigned_post(bucket, "form")["fields"]
        body, kind = form_of(fields)
        status, _, body = base.send("POST", f"/{bucket}", body, kind)
        assert status == 400 and b"Please use AWS4-HMAC-SHA256" in body, (status, body)
        assert urllib.parse.urlparse(url).query.count("Signature=") == 1


if VERSION_2_OFF:
    sys.argv.remove("--without-version-2")
    base.CHECKS[:] = [version_2_is_refused_where_it_is_off]

if __name__ == "__main__":
    sys.exit(base.main())
