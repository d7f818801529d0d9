#!/usr/bin/env python3
"""Checks that an S3 endpoint takes uploads by HTML form: with the policies that boto3 makes, and with others.

Like s3_conformance.py, whose helpers it uses. --domain=NAME says under which domain buckets have hosts of their own.
"""

import base64
import datetime
import hashlib
import hmac
import json
import sys
import urllib.parse

import s3_conformance as base
from s3_conformance import ACCESS, ENDPOINT, SECRET, Bucket, check, noise, s3

base.CHECKS.clear()
BOUNDARY = "----WebKitFormBoundary7MA4YWxkTrZu0gW"
DOMAIN_OPTION = "--domain="
DOMAINS = [option.removeprefix(DOMAIN_OPTION) for option in sys.argv if option.startswith(DOMAIN_OPTION)]
sys.argv = [option for option in sys.argv if not option.startswith(DOMAIN_OPTION)]
SECURE = ENDPOINT.startswith("https:")


def encoded(fields, data, file_name="a.txt"):
    """The body of a form: its fields and its file."""
    parts = []
    for name, value in fields.items():
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'
        parts += [head.encode(), value.encode(), b"\r\n"]
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{file_name}"\r\n'
    parts += [head.encode(), b"Content-Type: text/html\r\n\r\n", data, f"\r\n--{BOUNDARY}--\r\n".encode()]
    return b"".join(parts)


def post(bucket, fields, data=b"data", file_name="a.txt", headers=None, path=None):
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"} | (headers or {})
    status, headers, body = base.send("POST", path or f"/{bucket}", encoded(fields, data, file_name), headers)
    return status, {name.lower(): value for name, value in headers.items()}, body


def policy(bucket, *conditions, seconds=600, **fields):
    """The fields of a form that boto3 signs, with a condition for each."""
    key = fields.pop("key", "k")
    conditions = [*conditions, *({name: value} for name, value in fields.items())]
    return s3.generate_presigned_post(bucket, key, fields, conditions, ExpiresIn=seconds)["fields"]


def policy_v2(bucket, *conditions, **fields):
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=10)
    document = {
        "expiration": end.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "conditions": [{"bucket": bucket}, *conditions, *({name: value} for name, value in fields.items())],
    }
    text = base64.b64encode(json.dumps(document).encode())
    signature = base64.b64encode(hmac.new(SECRET.encode(), text, hashlib.sha1).digest())
    return fields | {"AWSAccessKeyId": ACCESS, "policy": text.decode(), "signature": signature.decode()}


def stored(bucket, fields, data=b"data", key="k", status=204, **options):
    got, headers, body = post(bucket, fields, data, **options)
    assert got == status, (got, headers, body)
    found = s3.get_object(Bucket=bucket, Key=key)
    assert found["Body"].read() == data
    assert headers.get("etag", found["ETag"]) == found["ETag"], headers
    return headers, body, found


def not_stored(bucket, status, code, fields, data=b"data", **options):
    got, headers, body = post(bucket, fields, data, **options)
    assert got == status and f"<Code>{code}</Code>".encode() in body, (status, code, got, body)
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 0
    return body


@check
def forms_are_stored():
    with Bucket() as name:
        for size in (0, 1, 1024, 1025, 70_000, 9 << 20):
            stored(name, policy(name), noise(size))
            stored(name, policy_v2(name, key="k"), noise(size))


@check
def fields_are_those_of_a_put():
    fields = {
        "acl": "private",
        "Content-Type": "text/plain",
        "Cache-Control": "max-age=60",
        "Content-Disposition": "attachment",
        "Content-Encoding": "gzip",
        "Content-Language": "de",
        "Expires": "Tue, 24 Nov 2026 08:09:10 GMT",
        "x-amz-meta-color": "blue",
        "x-amz-storage-class": "STANDARD",
        "x-amz-checksum-algorithm": "CRC32",
        "tagging": "<Tagging><TagSet><Tag><Key>a b</Key><Value>c&#43;d</Value></Tag></TagSet></Tagging>",
    }
    with Bucket() as name:
        _, _, found = stored(name, policy(name, **fields) | {"x-ignore-this": "x"})
        assert found["ContentType"] == "text/plain" and found["CacheControl"] == "max-age=60", found
        assert found["ContentDisposition"] == "attachment" and found["ContentEncoding"] == "gzip", found
        assert found["ContentLanguage"] == "de" and found["ExpiresString"] == fields["Expires"], found
        assert found["Metadata"] == {"color": "blue"} and found["ServerSideEncryption"] == "AES256", found
        assert s3.get_object_tagging(Bucket=name, Key="k")["TagSet"] == [{"Key": "a b", "Value": "c+d"}]
        assert "ChecksumCRC32" in s3.head_object(Bucket=name, Key="k", ChecksumMode="ENABLED")
        _, _, found = stored(name, policy(name))
        assert found["ContentType"] == "binary/octet-stream", "the type of the file's part means nothing"


@check
def the_key_may_name_the_file():
    with Bucket() as name:
        fields = policy(name, key="user/${filename}")
        stored(name, fields, key="user/a.txt")
        stored(name, fields, key="user/ä b.txt", file_name="C:\\dir\\ä b.txt")


@check
def the_form_chooses_its_answer():
    with Bucket() as name:
        location = f"{ENDPOINT}/{name}/a/k%20%C3%A9"
        for asked, status in (("200", 200), ("201", 201), ("204", 204), ("404", 204)):
            fields = policy(name, key="a/k é", success_action_status=asked)
            headers, body, _ = stored(name, fields, key="a/k é", status=status)
            assert headers["location"] == location, headers
            assert (f"<Location>{location}</Location>".encode() in body) == (status == 201), body
            assert (b"<Key>a/k \xc3\xa9</Key>" in body) == (status == 201), body
        url = "https://page.example/done?x=y"
        fields = policy(name, success_action_redirect=url, success_action_status="201")
        headers, body, found = stored(name, fields, status=303)
        etag = urllib.parse.quote(found["ETag"])
        assert headers["location"] == f"{url}&bucket={name}&key=k&etag={etag}", headers


@check
def policies_bind_what_is_sent():
    with Bucket() as name:
        denied = lambda *arguments, **options: not_stored(name, 403, "AccessDenied", *arguments, **options)
        body = denied(policy(name) | {"Content-Type": "text/html"})
        assert b"Invalid according to Policy: Extra input fields: content-type" in body, body
        body = denied(policy(name) | {"key": "other"})
        assert b"Policy Condition failed: [&quot;eq&quot;,&quot;$key&quot;,&quot;k&quot;]" in body, body
        denied(policy(name, {"acl": "private"}))
        body = denied(policy(name, seconds=-60))
        assert b"Policy expired" in body, body
        denied({"key": "k"})
        with Bucket() as other:
            denied(policy(other))
            denied(policy(other) | {"bucket": other})
            not_stored(name, 400, "InvalidArgument", policy(name) | {"bucket": other})


@check
def sizes_are_bound():
    with Bucket() as name:
        allow = lambda least, most: policy(name, ["content-length-range", least, most])
        not_stored(name, 400, "EntityTooLarge", allow(0, 3))
        not_stored(name, 400, "EntityTooLarge", allow(0, 5 << 20), noise(9 << 20))
        not_stored(name, 400, "EntityTooSmall", allow(5, 9))
        not_stored(name, 400, "EntityTooSmall", allow(9 << 20, 20 << 20), noise((9 << 20) - 1))
        not_stored(name, 400, "InvalidPolicyDocument", allow(5, 4))
        stored(name, allow(4, 4))


@check
def signatures_are_verified():
    with Bucket() as name:
        v4, v2 = policy(name), policy_v2(name, key="k")
        not_stored(name, 403, "SignatureDoesNotMatch", v4 | {"x-amz-signature": v4["x-amz-signature"][::-1]})
        not_stored(name, 403, "SignatureDoesNotMatch", v4 | {"policy": policy(name, key="other")["policy"]})
        not_stored(name, 403, "SignatureDoesNotMatch", v2 | {"signature": v2["signature"][::-1]})
        not_stored(name, 403, "InvalidAccessKeyId", v2 | {"AWSAccessKeyId": ACCESS[::-1]})
        credential = v4["x-amz-credential"].replace(ACCESS, "NOBODY")
        not_stored(name, 403, "InvalidAccessKeyId", v4 | {"x-amz-credential": credential})
        credential = v4["x-amz-credential"].replace("us-east-1", "eu-west-1")
        not_stored(name, 400, "AuthorizationHeaderMalformed", v4 | {"x-amz-credential": credential})
        not_stored(name, 400, "InvalidArgument", v4 | v2)
        for form, field in ((v4, "x-amz-signature"), (v4, "policy"), (v4, "key"), (v2, "signature"), (v2, "policy")):
            without = {name: value for name, value in form.items() if name != field}
            not_stored(name, 400, "InvalidArgument", without)
        not_stored(name, 403, "AccessDenied", v4 | {"x-amz-security-token": "x"})
        not_stored(name, 400, "InvalidRequest", v4, headers={"Authorization": "AWS4-HMAC-SHA256 x"})


@check
def what_a_put_cannot_do_a_form_cannot():
    with Bucket() as name:
        for code, field, value in (
            ("AccessControlListNotSupported", "acl", "public-read"),
            ("InvalidStorageClass", "x-amz-storage-class", "GLACIER"),
            ("NotImplemented", "x-amz-website-redirect-location", "/x"),
            ("InvalidArgument", "x-amz-server-side-encryption", "nonsense"),
            ("InvalidRequest", "x-amz-object-lock-legal-hold", "ON"),
            ("InvalidArgument", "Expires", "tomorrow"),
            ("InvalidTag", "tagging", "<Tagging><TagSet><Tag><Key></Key><Value>v</Value></Tag></TagSet></Tagging>"),
            ("MalformedXML", "tagging", "a=b"),
            ("MetadataTooLarge", "x-amz-meta-a", "x" * 3_000),
        ):
            fields = policy(name, **{field: value})
            got, _, body = post(name, fields)
            assert 400 <= got < 502 and f"<Code>{code}</Code>".encode() in body, (field, got, body)
        sha256 = base64.b64encode(hashlib.sha256(b"other").digest()).decode()
        not_stored(name, 400, "BadDigest", policy(name) | {"x-amz-checksum-sha256": sha256})
        not_stored(name, 400, "InvalidRequest", policy(name) | {"x-amz-checksum-sha256": "nonsense"})
        not_stored(name, 403, "AccessDenied", policy(name), headers={"x-amz-acl": "private"})
        not_stored(name, 501, "NotImplemented", policy(name), path=f"/{name}?delete")
        not_stored(name, 501, "NotImplemented", policy(name), path=f"/{name}/k")
        customer = {f"x-amz-server-side-encryption-customer-{part}": value for part, value in CUSTOMER_KEY.items()}
        fields = policy(name, **customer)
        if SECURE:
            got, headers, body = post(name, fields)
            assert got == 204 and headers["x-amz-server-side-encryption-customer-algorithm"] == "AES256", (got, body)
            arguments = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": b"k" * 32}
            assert s3.get_object(Bucket=name, Key="k", **arguments)["Body"].read() == b"data"
        else:
            not_stored(name, 400, "InvalidRequest", fields)
    status, _, body = post("atoll-no-such-bucket", policy("atoll-no-such-bucket"))
    assert status == 404 and b"NoSuchBucket" in body, (status, body)


CUSTOMER_KEY = {
    "algorithm": "AES256",
    "key": base64.b64encode(b"k" * 32).decode(),
    "key-md5": base64.b64encode(hashlib.md5(b"k" * 32).digest()).decode(),
}


@check
def locks_versions_and_conditions():
    with Bucket() as name:
        s3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
        headers, _, found = stored(name, policy(name))
        assert headers["x-amz-version-id"] == found["VersionId"], headers
        status, _, body = post(name, policy(name, **{"If-None-Match": "*"}))
        assert status == 412 and b"PreconditionFailed" in body, (status, body)
        for entry in s3.list_object_versions(Bucket=name)["Versions"]:
            s3.delete_object(Bucket=name, Key=entry["Key"], VersionId=entry["VersionId"])
    with Bucket() as name:
        owner = policy(name, **{"x-amz-expected-bucket-owner": "somebody"})
        not_stored(name, 403, "AccessDenied", owner)
        stored(name, policy(name, **{"x-amz-expected-bucket-owner": ACCESS}))


@check
def scripts_of_other_origins_may_read_the_answer():
    page = "https://page.example"
    with Bucket() as name:
        rule = {"AllowedOrigins": [page], "AllowedMethods": ["POST"], "ExposeHeaders": ["ETag"]}
        s3.put_bucket_cors(Bucket=name, CORSConfiguration={"CORSRules": [rule]})
        for fields, wanted in ((policy(name), 204), ({"key": "k"}, 403)):
            status, headers, body = post(name, fields, headers={"Origin": page})
            assert status == wanted and headers["access-control-allow-origin"] == page, (status, headers, body)


@check
def buckets_are_found_in_hosts():
    if not DOMAINS:
        return "skipped"
    with Bucket() as name:
        host = f"{name}.{DOMAINS[0]}"
        headers, _, _ = stored(name, policy(name), path="/", headers={"Host": host})
        assert headers["location"] == f"{ENDPOINT.split(':')[0]}://{host}/k", headers
    return None


if __name__ == "__main__":
    sys.exit(base.main())
