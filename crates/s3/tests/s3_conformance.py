#!/usr/bin/env python3
"""Checks an S3 endpoint with boto3: what Atoll promises to S3 clients.

    S3_ENDPOINT=http://127.0.0.1:9000 S3_ACCESS_KEY=... S3_SECRET_KEY=... s3_conformance.py

With S3_OTHER_ACCESS_KEY and S3_OTHER_SECRET_KEY a second user is tried, too. It makes buckets with
random names and deletes them. For HTTPS, AWS_CA_BUNDLE may name the certificate to trust. Prints a line for each
check; the exit code tells whether all passed.
"""

import base64
import binascii
import datetime
import hashlib
import http.client
import io
import os
import random
import secrets
import ssl
import sys
import threading
import traceback
import urllib.parse
import urllib.request

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.client import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

ENDPOINT = os.environ["S3_ENDPOINT"]
ACCESS, SECRET = os.environ["S3_ACCESS_KEY"], os.environ["S3_SECRET_KEY"]
MIB = 1 << 20
random.seed(7)


def client(access=ACCESS, secret=SECRET, region="us-east-1", **config):
    settings = Config(
        s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}, signature_version="s3v4", **config
    )
    return boto3.client(
        "s3",
        endpoint_url=ENDPOINT,
        region_name=region,
        aws_access_key_id=access,
        aws_secret_access_key=secret,
        config=settings,
    )


s3 = client()
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def refused(code, call, *args, **kwargs):
    """The call must fail with this S3 error code (or HTTP status, where there is no body)."""
    try:
        call(*args, **kwargs)
    except ClientError as error:
        got = error.response["Error"]["Code"]
        assert got in (code, str(code)), f"{got} instead of {code}: {error}"
        return error.response
    raise AssertionError(f"no error; expected {code}")


def md5(data):
    return hashlib.md5(data).hexdigest()


def noise(size):
    return random.randbytes(size)


class Bucket:
    """A bucket for one check; emptied and deleted at its end."""

    def __enter__(self):
        self.name = "atoll-" + secrets.token_hex(8)
        s3.create_bucket(Bucket=self.name)
        return self.name

    def __exit__(self, *_):
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=self.name):
            keys = [{"Key": entry["Key"]} for entry in page.get("Contents", [])]
            if keys:
                s3.delete_objects(Bucket=self.name, Delete={"Objects": keys})
        s3.delete_bucket(Bucket=self.name)


def raw(method, path, body=b"", headers=None, content_sha256=None, query=""):
    """A signed request whose body and headers boto3 would not send."""

    class Auth(S3SigV4Auth):
        def payload(self, request):
            return content_sha256 or hashlib.sha256(body).hexdigest()

        def _should_sha256_sign_payload(self, request):
            return True

        def add_auth(self, request):
            self._modify = None
            super().add_auth(request)

    url = ENDPOINT + path + query
    request = AWSRequest(method, url, data=body, headers=dict(headers or {}))
    request.headers["x-amz-content-sha256"] = content_sha256 or hashlib.sha256(body).hexdigest()
    Auth(Credentials(ACCESS, SECRET), "s3", "us-east-1").add_auth(request)
    return send(method, path + query, body, dict(request.headers.items()))


def send(method, target, body=b"", headers=None):
    place = urllib.parse.urlparse(ENDPOINT)
    if place.scheme == "https":
        trust = ssl.create_default_context(cafile=os.environ.get("AWS_CA_BUNDLE"))
        connection = http.client.HTTPSConnection(place.hostname, place.port, timeout=30, context=trust)
    else:
        connection = http.client.HTTPConnection(place.hostname, place.port, timeout=30)
    try:
        connection.request(method, target, body=body, headers=headers or {})
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


# --- buckets


@check
def bucket_lifecycle():
    with Bucket() as name:
        assert name in [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]
        assert s3.head_bucket(Bucket=name)["ResponseMetadata"]["HTTPStatusCode"] == 200
        assert s3.get_bucket_location(Bucket=name).get("LocationConstraint") is None
        assert "Status" not in s3.get_bucket_versioning(Bucket=name)
        s3.create_bucket(Bucket=name)  # S3's oldest region takes it for the first one
    refused("404", s3.head_bucket, Bucket=name)
    refused("NoSuchBucket", s3.delete_bucket, Bucket=name)
    refused("NoSuchBucket", s3.put_object, Bucket=name, Key="k", Body=b"")
    refused("NoSuchBucket", s3.list_objects_v2, Bucket=name)


@check
def bucket_names_are_checked():
    for name in ["ab", "UPPER", "with_underscore", "192.168.5.4", "a..b", "-a-b"]:
        status, _, body = raw("PUT", "/" + name)
        assert status == 400 and b"InvalidBucketName" in body, (name, status, body)


@check
def bucket_with_objects_is_not_deleted():
    with Bucket() as name:
        s3.put_object(Bucket=name, Key="k", Body=b"x")
        refused("BucketNotEmpty", s3.delete_bucket, Bucket=name)
        s3.put_object(Bucket=name, Key="k2", Body=b"x")  # the refused deletion left no trace


@check
def bucket_with_open_upload_is_deleted():
    name = "atoll-" + secrets.token_hex(8)
    s3.create_bucket(Bucket=name)
    upload = s3.create_multipart_upload(Bucket=name, Key="k")["UploadId"]
    s3.upload_part(Bucket=name, Key="k", UploadId=upload, PartNumber=1, Body=noise(70_000))
    s3.delete_bucket(Bucket=name)
    refused("404", s3.head_bucket, Bucket=name)


@check
def bucket_of_another_user():
    if "S3_OTHER_ACCESS_KEY" not in os.environ:
        return "skipped"
    other = client(os.environ["S3_OTHER_ACCESS_KEY"], os.environ["S3_OTHER_SECRET_KEY"])
    with Bucket() as name:
        refused("BucketAlreadyExists", other.create_bucket, Bucket=name)
        refused("AccessDenied", other.put_object, Bucket=name, Key="k", Body=b"not theirs")


# --- objects


@check
def put_get_sizes():
    with Bucket() as name:
        for size in [0, 1, 4095, 4096, 65535, 65536, 65537, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 9 * MIB + 12345]:
            data = noise(size)
            put = s3.put_object(Bucket=name, Key="k", Body=data)
            assert put["ETag"] == f'"{md5(data)}"', size
            got = s3.get_object(Bucket=name, Key="k")
            assert got["ContentLength"] == size and got["Body"].read() == data, size


@check
def an_empty_object_leaves_the_connection_usable():
    impatient = client(read_timeout=10)
    with Bucket() as name:
        for size in (0, 1, 0, 0, 100):
            impatient.put_object(Bucket=name, Key="k", Body=noise(size))
        assert len(impatient.get_object(Bucket=name, Key="k")["Body"].read()) == 100


@check
def metadata_and_headers_come_back():
    with Bucket() as name:
        expires = datetime.datetime(2031, 5, 6, 7, 8, 9, tzinfo=datetime.UTC)
        s3.put_object(
            Bucket=name,
            Key="k",
            Body=b"x",
            ContentType="text/x-test",
            CacheControl="max-age=5",
            ContentDisposition="attachment",
            ContentEncoding="gzip",
            ContentLanguage="de",
            Expires=expires,
            Metadata={"one": "1", "two-words": "hello world"},
        )
        for got in [s3.head_object(Bucket=name, Key="k"), s3.get_object(Bucket=name, Key="k")]:
            assert got["Metadata"] == {"one": "1", "two-words": "hello world"}, got["Metadata"]
            assert got["ContentType"] == "text/x-test" and got["CacheControl"] == "max-age=5"
            assert got["ContentDisposition"] == "attachment" and got["ContentLanguage"] == "de"
            assert got["ContentEncoding"] == "gzip", got["ContentEncoding"]
            assert got["ExpiresString"] == "Tue, 06 May 2031 07:08:09 GMT", got
            assert got["ServerSideEncryption"] == "AES256"
        s3.put_object(Bucket=name, Key="plain", Body=b"x")
        assert s3.head_object(Bucket=name, Key="plain")["ContentType"] == "binary/octet-stream"
        refused("MetadataTooLarge", s3.put_object, Bucket=name, Key="k", Body=b"", Metadata={"k": "v" * 2048})


@check
def response_overrides():
    with Bucket() as name:
        s3.put_object(Bucket=name, Key="k", Body=b"x")
        got = s3.get_object(
            Bucket=name,
            Key="k",
            ResponseContentType="a/b",
            ResponseCacheControl="no-store",
            ResponseContentDisposition="inline",
            ResponseContentEncoding="br",
            ResponseContentLanguage="fr",
        )
        assert (got["ContentType"], got["CacheControl"], got["ContentDisposition"]) == ("a/b", "no-store", "inline")
        assert (got["ContentEncoding"], got["ContentLanguage"]) == ("br", "fr")


@check
def ranges():
    with Bucket() as name:
        data = noise(4 * MIB + 200_000)
        s3.put_object(Bucket=name, Key="k", Body=data)
        size = len(data)
        cases = {
            "bytes=0-0": data[:1],
            "bytes=5-99": data[5:100],
            "bytes=65530-65540": data[65530:65541],
            f"bytes={4 * MIB - 3}-{4 * MIB + 3}": data[4 * MIB - 3 : 4 * MIB + 4],
            "bytes=4300000-": data[4300000:],
            "bytes=-7": data[-7:],
            f"bytes=-{size + 9}": data,
            f"bytes=1-{size * 2}": data[1:],
        }
        for header, expected in cases.items():
            got = s3.get_object(Bucket=name, Key="k", Range=header)
            assert got["ResponseMetadata"]["HTTPStatusCode"] == 206, header
            assert got["Body"].read() == expected, header
            assert got["ContentRange"].endswith(f"/{size}"), header
        for header in [f"bytes={size}-", "bytes=-0", f"bytes={size + 5}-{size + 9}"]:
            response = refused("InvalidRange", s3.get_object, Bucket=name, Key="k", Range=header)
            assert response["ResponseMetadata"]["HTTPStatusCode"] == 416
        status = raw("GET", f"/{name}/k", headers={"Range": "bytes=9-5"})[0]
        assert status in (200, 400, 416), status
        s3.put_object(Bucket=name, Key="empty", Body=b"")
        refused("InvalidRange", s3.get_object, Bucket=name, Key="empty", Range="bytes=0-0")
        assert s3.head_object(Bucket=name, Key="k", Range="bytes=0-9")["ContentLength"] == 10


@check
def conditional_reads():
    with Bucket() as name:
        etag = s3.put_object(Bucket=name, Key="k", Body=b"x")["ETag"]
        modified = s3.head_object(Bucket=name, Key="k")["LastModified"]
        hour = datetime.timedelta(hours=1)
        s3.get_object(Bucket=name, Key="k", IfMatch=etag)
        s3.get_object(Bucket=name, Key="k", IfNoneMatch='"other"')
        s3.get_object(Bucket=name, Key="k", IfModifiedSince=modified - hour)
        s3.get_object(Bucket=name, Key="k", IfUnmodifiedSince=modified + hour)
        refused("PreconditionFailed", s3.get_object, Bucket=name, Key="k", IfMatch='"other"')
        refused("PreconditionFailed", s3.get_object, Bucket=name, Key="k", IfUnmodifiedSince=modified - hour)
        refused("304", s3.get_object, Bucket=name, Key="k", IfNoneMatch=etag)
        refused("304", s3.get_object, Bucket=name, Key="k", IfModifiedSince=modified)
        refused("304", s3.head_object, Bucket=name, Key="k", IfNoneMatch=etag)
        refused("412", s3.head_object, Bucket=name, Key="k", IfMatch='"other"')


@check
def conditional_writes():
    with Bucket() as name:
        first = s3.put_object(Bucket=name, Key="k", Body=b"1", IfNoneMatch="*")["ETag"]
        refused("PreconditionFailed", s3.put_object, Bucket=name, Key="k", Body=b"2", IfNoneMatch="*")
        refused("PreconditionFailed", s3.put_object, Bucket=name, Key="k", Body=b"2", IfMatch='"other"')
        refused("NoSuchKey", s3.put_object, Bucket=name, Key="none", Body=b"2", IfMatch=first)
        s3.put_object(Bucket=name, Key="k", Body=b"3", IfMatch=first)
        refused("PreconditionFailed", s3.put_object, Bucket=name, Key="k", Body=b"4", IfMatch=first)
        assert s3.get_object(Bucket=name, Key="k")["Body"].read() == b"3"


@check
def one_of_many_conditional_writers_wins():
    with Bucket() as name:
        wins = []

        def write(number):
            try:
                s3.put_object(Bucket=name, Key="k", Body=str(number).encode(), IfNoneMatch="*")
                wins.append(number)
            except ClientError as error:
                assert error.response["Error"]["Code"] == "PreconditionFailed", error

        threads = [threading.Thread(target=write, args=[number]) for number in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert len(wins) == 1, wins
        assert s3.get_object(Bucket=name, Key="k")["Body"].read() == str(wins[0]).encode()


@check
def deletes():
    with Bucket() as name:
        assert s3.delete_object(Bucket=name, Key="never")["ResponseMetadata"]["HTTPStatusCode"] == 204
        s3.put_object(Bucket=name, Key="k", Body=b"x")
        s3.delete_object(Bucket=name, Key="k")
        refused("NoSuchKey", s3.get_object, Bucket=name, Key="k")
        refused("404", s3.head_object, Bucket=name, Key="k")
        for number in range(5):
            s3.put_object(Bucket=name, Key=f"n{number}", Body=b"x")
        keys = [{"Key": f"n{number}"} for number in range(5)] + [{"Key": "missing"}]
        answer = s3.delete_objects(Bucket=name, Delete={"Objects": keys})
        assert len(answer["Deleted"]) == 6 and "Errors" not in answer
        s3.put_object(Bucket=name, Key="q", Body=b"x")
        assert "Deleted" not in s3.delete_objects(Bucket=name, Delete={"Objects": [{"Key": "q"}], "Quiet": True})


@check
def strange_keys():
    keys = [
        "a b",
        "a+b",
        "ü/ö/ä.txt",
        "%41",
        "a//b",
        "/lead",
        "trail/",
        "q?x=1&y#z",
        "𝄞",
        "a'b\"<&>",
        "~!@$^*()_-=[]{}|;:,.",
        "x" * 1024,
        "é" * 512,
    ]
    with Bucket() as name:
        for key in keys:
            s3.put_object(Bucket=name, Key=key, Body=key.encode())
        for key in keys:
            assert s3.get_object(Bucket=name, Key=key)["Body"].read() == key.encode(), key
        listed = [entry["Key"] for entry in s3.list_objects_v2(Bucket=name)["Contents"]]
        assert listed == sorted(keys, key=str.encode), listed
        refused("KeyTooLongError", s3.put_object, Bucket=name, Key="x" * 1025, Body=b"")


# --- digests


@check
def content_md5():
    with Bucket() as name:
        good = base64.b64encode(hashlib.md5(b"data").digest()).decode()
        s3.put_object(Bucket=name, Key="k", Body=b"data", ContentMD5=good)
        bad = base64.b64encode(hashlib.md5(b"other").digest()).decode()
        refused("BadDigest", s3.put_object, Bucket=name, Key="bad", Body=b"data", ContentMD5=bad)
        refused("InvalidDigest", s3.put_object, Bucket=name, Key="bad", Body=b"data", ContentMD5="AAAA")
        refused("NoSuchKey", s3.get_object, Bucket=name, Key="bad")


def crc32(data):
    return base64.b64encode(binascii.crc32(data).to_bytes(4, "big")).decode()


@check
def checksum_headers():
    data = b"123456789"
    sums = {
        "CRC32": crc32(data),
        "SHA1": base64.b64encode(hashlib.sha1(data).digest()).decode(),
        "SHA256": base64.b64encode(hashlib.sha256(data).digest()).decode(),
        "CRC32C": base64.b64encode(bytes.fromhex("e3069283")).decode(),
        "CRC64NVME": base64.b64encode(bytes.fromhex("ae8b14860a799888")).decode(),
    }
    with Bucket() as name:
        for algorithm, value in sums.items():
            field = "Checksum" + algorithm
            put = s3.put_object(Bucket=name, Key=algorithm, Body=data, **{field: value})
            assert put[field] == value, (algorithm, put)
            got = s3.get_object(Bucket=name, Key=algorithm, ChecksumMode="ENABLED")
            assert got[field] == value and got["ChecksumType"] == "FULL_OBJECT"
            got["Body"].read()
            assert s3.head_object(Bucket=name, Key=algorithm, ChecksumMode="ENABLED")[field] == value
            assert field not in s3.head_object(Bucket=name, Key=algorithm)
            refused("BadDigest", s3.put_object, Bucket=name, Key="bad", Body=data + b"0", **{field: value})
        refused("InvalidRequest", s3.put_object, Bucket=name, Key="bad", Body=data, ChecksumCRC32="zz")
        refused("404", s3.head_object, Bucket=name, Key="bad")


def chunked(data, trailer, size=64 << 10):
    body = b"".join(
        b"%x\r\n%s\r\n" % (len(data[at : at + size]), data[at : at + size]) for at in range(0, len(data), size)
    )
    return body + b"0\r\n" + trailer + b"\r\n"


def put_chunked(name, key, body, length, headers=None):
    headers = {
        "content-encoding": "aws-chunked",
        "x-amz-decoded-content-length": str(length),
        "x-amz-trailer": "x-amz-checksum-crc32",
        **(headers or {}),
    }
    return raw("PUT", f"/{name}/{key}", body, headers, "STREAMING-UNSIGNED-PAYLOAD-TRAILER")


@check
def checksum_trailers():
    data = noise(3 * MIB + 17)
    trailer = lambda value: f"x-amz-checksum-crc32:{value}\r\n".encode()
    with Bucket() as name:
        status, _, body = put_chunked(name, "k", chunked(data, trailer(crc32(data))), len(data))
        assert status == 200, body
        got = s3.get_object(Bucket=name, Key="k", ChecksumMode="ENABLED")
        assert got["Body"].read() == data and got["ChecksumCRC32"] == crc32(data)
        assert "ContentEncoding" not in got, got["ContentEncoding"]
        for what, body, length, code in [
            ("wrong trailer", chunked(data, trailer(crc32(b"other"))), len(data), b"BadDigest"),
            ("no trailer", chunked(data, b""), len(data), b"MalformedTrailerError"),
            ("cut between chunks", chunked(data, b"")[: (65536 + 9) * 8], len(data), b"IncompleteBody"),
            ("shorter than said", chunked(data[:100], trailer(crc32(data[:100]))), len(data), b"IncompleteBody"),
            ("large chunk", chunked(data, trailer(crc32(data)), 2 * MIB), len(data), b"too large"),
        ]:
            status, _, answer = put_chunked(name, "bad", body, length)
            assert status == 400 and code in answer, (what, status, answer)
        refused("404", s3.head_object, Bucket=name, Key="bad")


@check
def body_must_fit_its_signature():
    with Bucket() as name:
        status, _, body = raw("PUT", f"/{name}/k", b"body", content_sha256=hashlib.sha256(b"x").hexdigest())
        assert status == 400 and b"XAmzContentSHA256Mismatch" in body, (status, body)
        refused("404", s3.head_object, Bucket=name, Key="k")


# --- copies


@check
def copies():
    with Bucket() as name, Bucket() as other:
        data = noise(5 * MIB + 3)
        s3.put_object(Bucket=name, Key="ä b", Body=data, Metadata={"m": "1"}, ContentType="a/b")
        source = {"Bucket": name, "Key": "ä b"}
        answer = s3.copy_object(Bucket=other, Key="copy", CopySource=source)
        assert answer["CopyObjectResult"]["ETag"] == f'"{md5(data)}"'
        got = s3.get_object(Bucket=other, Key="copy")
        assert got["Body"].read() == data and got["Metadata"] == {"m": "1"} and got["ContentType"] == "a/b"
        s3.copy_object(Bucket=other, Key="copy2", CopySource=source, MetadataDirective="REPLACE", Metadata={"m": "2"})
        assert s3.head_object(Bucket=other, Key="copy2")["Metadata"] == {"m": "2"}
        refused("InvalidRequest", s3.copy_object, Bucket=name, Key="ä b", CopySource=source)
        s3.copy_object(Bucket=name, Key="ä b", CopySource=source, MetadataDirective="REPLACE", Metadata={"m": "3"})
        assert s3.get_object(Bucket=name, Key="ä b")["Body"].read() == data
        refused("NoSuchKey", s3.copy_object, Bucket=other, Key="c", CopySource={"Bucket": name, "Key": "none"})
        refused("PreconditionFailed", s3.copy_object, Bucket=other, Key="c", CopySource=source, CopySourceIfMatch='"x"')
        s3.delete_object(Bucket=name, Key="ä b")
        assert s3.get_object(Bucket=other, Key="copy")["Body"].read() == data


# --- listings


@check
def listings():
    keys = [f"{top}/{middle}/{leaf}" for top in "ab" for middle in "xyz" for leaf in range(6)] + [
        "c",
        "a",
        "a/",
        "a0",
        "é",
    ]
    order = sorted(keys, key=str.encode)
    with Bucket() as name:
        for key in keys:
            s3.put_object(Bucket=name, Key=key, Body=key.encode())
        whole = s3.list_objects_v2(Bucket=name)
        assert [entry["Key"] for entry in whole["Contents"]] == order
        assert whole["KeyCount"] == len(keys) and not whole["IsTruncated"]
        entry = whole["Contents"][0]
        assert entry["Size"] == len(order[0]) and entry["ETag"] == f'"{md5(order[0].encode())}"'

        for paginator in ["list_objects_v2", "list_objects"]:
            for size in [1, 3, 7]:
                pages = s3.get_paginator(paginator).paginate(Bucket=name, PaginationConfig={"PageSize": size})
                found = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
                assert found == order, (paginator, size)
                pages = s3.get_paginator(paginator).paginate(
                    Bucket=name, Delimiter="/", PaginationConfig={"PageSize": size}
                )
                tops, folded = [], []
                for page in pages:
                    tops += [entry["Key"] for entry in page.get("Contents", [])]
                    folded += [entry["Prefix"] for entry in page.get("CommonPrefixes", [])]
                assert tops == ["a", "a0", "c", "é"] and folded == ["a/", "b/"], (paginator, size, tops, folded)

        inner = s3.list_objects_v2(Bucket=name, Prefix="a/", Delimiter="/")
        assert [entry["Key"] for entry in inner["Contents"]] == ["a/"]
        assert [entry["Prefix"] for entry in inner["CommonPrefixes"]] == ["a/x/", "a/y/", "a/z/"]
        after = s3.list_objects_v2(Bucket=name, StartAfter="b/z/4")
        assert [entry["Key"] for entry in after["Contents"]] == ["b/z/5", "c", "é"]
        assert s3.list_objects(Bucket=name, Marker="c")["Contents"][0]["Key"] == "é"
        assert s3.list_objects_v2(Bucket=name, Prefix="none").get("Contents") is None
        zero = s3.list_objects_v2(Bucket=name, MaxKeys=0)
        assert zero["KeyCount"] == 0 and not zero["IsTruncated"]
        owner = s3.list_objects_v2(Bucket=name, FetchOwner=True)["Contents"][0]["Owner"]["ID"]
        assert owner == ACCESS
        refused("InvalidArgument", s3.list_objects_v2, Bucket=name, ContinuationToken="!")


# --- multipart


def parts_of(name, key, upload, pieces, **extra):
    done = []
    for number, piece in enumerate(pieces, 1):
        answer = s3.upload_part(Bucket=name, Key=key, UploadId=upload, PartNumber=number, Body=piece, **extra)
        done.append({"PartNumber": number, "ETag": answer["ETag"]})
    return done


def multipart_etag(pieces):
    joined = b"".join(hashlib.md5(piece).digest() for piece in pieces)
    return f'"{md5(joined)}-{len(pieces)}"'


@check
def multipart():
    with Bucket() as name:
        pieces = [noise(5 * MIB), noise(6 * MIB + 1), noise(100)]
        upload = s3.create_multipart_upload(Bucket=name, Key="k", Metadata={"m": "1"}, ContentType="a/b")["UploadId"]
        parts = parts_of(name, "k", upload, pieces)
        s3.upload_part(Bucket=name, Key="k", UploadId=upload, PartNumber=9, Body=b"not used")
        assert s3.list_objects_v2(Bucket=name)["KeyCount"] == 0
        uploads = s3.list_multipart_uploads(Bucket=name)["Uploads"]
        assert [(entry["Key"], entry["UploadId"]) for entry in uploads] == [("k", upload)]
        listed = s3.list_parts(Bucket=name, Key="k", UploadId=upload, MaxParts=2)
        assert [part["PartNumber"] for part in listed["Parts"]] == [1, 2] and listed["IsTruncated"]
        rest = s3.list_parts(Bucket=name, Key="k", UploadId=upload, PartNumberMarker=2)
        assert [(part["PartNumber"], part["Size"]) for part in rest["Parts"]] == [(3, 100), (9, 8)]
        done = s3.complete_multipart_upload(Bucket=name, Key="k", UploadId=upload, MultipartUpload={"Parts": parts})
        assert done["ETag"] == multipart_etag(pieces), done["ETag"]
        again = s3.complete_multipart_upload(Bucket=name, Key="k", UploadId=upload, MultipartUpload={"Parts": parts})
        assert again["ETag"] == done["ETag"], "a completion can be repeated"
        whole = b"".join(pieces)
        got = s3.get_object(Bucket=name, Key="k")
        assert got["Body"].read() == whole and got["Metadata"] == {"m": "1"} and got["ContentType"] == "a/b"
        header = f"bytes={5 * MIB - 9}-{11 * MIB + 20}"
        assert s3.get_object(Bucket=name, Key="k", Range=header)["Body"].read() == whole[5 * MIB - 9 : 11 * MIB + 21]
        assert "Uploads" not in s3.list_multipart_uploads(Bucket=name)
        refused("NoSuchUpload", s3.list_parts, Bucket=name, Key="k", UploadId=upload)
        refused("NoSuchUpload", s3.abort_multipart_upload, Bucket=name, Key="k", UploadId=upload)


@check
def multipart_mistakes():
    with Bucket() as name:
        upload = s3.create_multipart_upload(Bucket=name, Key="k")["UploadId"]
        parts = parts_of(name, "k", upload, [noise(5 * MIB), b"small", b"last"])
        complete = lambda parts: s3.complete_multipart_upload(
            Bucket=name, Key="k", UploadId=upload, MultipartUpload={"Parts": parts}
        )
        refused("EntityTooSmall", complete, parts)
        refused("InvalidPartOrder", complete, [parts[2], parts[0]])
        refused("InvalidPart", complete, [parts[0], {"PartNumber": 7, "ETag": parts[0]["ETag"]}])
        refused("InvalidPart", complete, [{"PartNumber": 1, "ETag": parts[1]["ETag"]}])
        refused("MalformedXML", complete, [])
        refused("InvalidArgument", s3.upload_part, Bucket=name, Key="k", UploadId=upload, PartNumber=10001, Body=b"")
        refused("NoSuchUpload", s3.upload_part, Bucket=name, Key="k", UploadId="0" * 32, PartNumber=1, Body=b"")
        refused("NoSuchUpload", s3.upload_part, Bucket=name, Key="other", UploadId=upload, PartNumber=1, Body=b"")
        complete([parts[0], parts[2]])  # after all these mistakes it still works
        assert s3.head_object(Bucket=name, Key="k")["ContentLength"] == 5 * MIB + 4


@check
def multipart_abort():
    with Bucket() as name:
        upload = s3.create_multipart_upload(Bucket=name, Key="k")["UploadId"]
        parts = parts_of(name, "k", upload, [noise(70_000)])
        s3.abort_multipart_upload(Bucket=name, Key="k", UploadId=upload)
        refused(
            "NoSuchUpload",
            s3.complete_multipart_upload,
            Bucket=name,
            Key="k",
            UploadId=upload,
            MultipartUpload={"Parts": parts},
        )
        refused("NoSuchUpload", s3.upload_part, Bucket=name, Key="k", UploadId=upload, PartNumber=1, Body=b"")


@check
def multipart_copy():
    with Bucket() as name:
        data = noise(11 * MIB)
        s3.put_object(Bucket=name, Key="source", Body=data)
        upload = s3.create_multipart_upload(Bucket=name, Key="k")["UploadId"]
        source, parts = {"Bucket": name, "Key": "source"}, []
        for number, (first, last) in enumerate([(5, 5 * MIB + 10), (0, 99)], 1):
            answer = s3.upload_part_copy(
                Bucket=name,
                Key="k",
                UploadId=upload,
                PartNumber=number,
                CopySource=source,
                CopySourceRange=f"bytes={first}-{last}",
            )
            parts.append({"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]})
        refused(
            "InvalidRange",
            s3.upload_part_copy,
            Bucket=name,
            Key="k",
            UploadId=upload,
            PartNumber=3,
            CopySource=source,
            CopySourceRange=f"bytes=0-{len(data)}",
        )
        s3.complete_multipart_upload(Bucket=name, Key="k", UploadId=upload, MultipartUpload={"Parts": parts})
        assert s3.get_object(Bucket=name, Key="k")["Body"].read() == data[5 : 5 * MIB + 11] + data[:100]


@check
def multipart_checksums():
    with Bucket() as name:
        pieces = [noise(5 * MIB), noise(1000)]
        for kind, algorithm in [("COMPOSITE", "CRC32"), ("COMPOSITE", "SHA256"), ("FULL_OBJECT", "CRC32")]:
            created = s3.create_multipart_upload(Bucket=name, Key="k", ChecksumAlgorithm=algorithm, ChecksumType=kind)
            assert created["ChecksumAlgorithm"] == algorithm and created["ChecksumType"] == kind
            parts, digests, field = [], b"", "Checksum" + algorithm
            for number, piece in enumerate(pieces, 1):
                answer = s3.upload_part(
                    Bucket=name,
                    Key="k",
                    UploadId=created["UploadId"],
                    PartNumber=number,
                    Body=piece,
                    ChecksumAlgorithm=algorithm,
                )
                parts.append({"PartNumber": number, "ETag": answer["ETag"], field: answer[field]})
                digests += base64.b64decode(answer[field])
            done = s3.complete_multipart_upload(
                Bucket=name, Key="k", UploadId=created["UploadId"], MultipartUpload={"Parts": parts}
            )
            if kind == "FULL_OBJECT":
                expected = crc32(b"".join(pieces))
            else:
                whole = (
                    crc32(digests)
                    if algorithm == "CRC32"
                    else base64.b64encode(hashlib.sha256(digests).digest()).decode()
                )
                expected = whole + "-2"
            assert done[field] == expected and done["ChecksumType"] == kind, done
            got = s3.head_object(Bucket=name, Key="k", ChecksumMode="ENABLED")
            assert got[field] == expected and got["ChecksumType"] == kind, got


@check
def uploads_are_listed_in_order():
    with Bucket() as name:
        ids = {}
        for key in ["b", "a/2", "a/1", "a/1", "c"]:
            ids.setdefault(key, []).append(s3.create_multipart_upload(Bucket=name, Key=key)["UploadId"])
        expected = [(key, upload) for key in sorted(ids) for upload in sorted(ids[key])]
        for size in [1, 2, 100]:
            pages = s3.get_paginator("list_multipart_uploads").paginate(
                Bucket=name, PaginationConfig={"PageSize": size}
            )
            found = [(entry["Key"], entry["UploadId"]) for page in pages for entry in page.get("Uploads", [])]
            assert found == expected, (size, found)
        folded = s3.list_multipart_uploads(Bucket=name, Delimiter="/")
        assert [entry["Prefix"] for entry in folded["CommonPrefixes"]] == ["a/"]
        assert [entry["Key"] for entry in folded["Uploads"]] == ["b", "c"]
        for key, upload in expected:
            s3.abort_multipart_upload(Bucket=name, Key=key, UploadId=upload)


@check
def transfer_manager():
    with Bucket() as name:
        data = noise(23 * MIB + 5)
        config = TransferConfig(multipart_threshold=8 * MIB, multipart_chunksize=8 * MIB)
        s3.upload_fileobj(io.BytesIO(data), name, "k", Config=config)
        target = io.BytesIO()
        s3.download_fileobj(name, "k", target, Config=config)
        assert target.getvalue() == data


# --- who may do what


@check
def anonymous_and_forged_requests_are_refused():
    with Bucket() as name:
        s3.put_object(Bucket=name, Key="k", Body=b"x")
        status, headers, body = send("GET", f"/{name}/k")
        assert status == 403 and b"AccessDenied" in body and headers.get("x-amz-request-id"), (status, headers, body)
        assert send("GET", "/")[0] == 403
        refused("SignatureDoesNotMatch", client(secret="wrong").get_object, Bucket=name, Key="k")
        refused("InvalidAccessKeyId", client(access="NOBODY").get_object, Bucket=name, Key="k")
        status, _, body = send("GET", f"/{name}/k", headers={"Authorization": f"AWS {ACCESS}:AAAA", "Date": "x"})
        assert status == 400 and b"AWS4-HMAC-SHA256" in body, (status, body)


@check
def presigned_urls():
    with Bucket() as name:
        url = s3.generate_presigned_url("put_object", {"Bucket": name, "Key": "k ä"}, ExpiresIn=60)
        request = urllib.request.Request(url, data=b"presigned", method="PUT")
        request.add_unredirected_header("Content-Type", "")
        trust = None
        if ENDPOINT.startswith("https"):
            trust = ssl.create_default_context(cafile=os.environ.get("AWS_CA_BUNDLE"))
        assert urllib.request.urlopen(request, context=trust).status == 200
        url = s3.generate_presigned_url("get_object", {"Bucket": name, "Key": "k ä"}, ExpiresIn=60)
        assert urllib.request.urlopen(url, context=trust).read() == b"presigned"
        parts = urllib.parse.urlparse(url)
        at = parts.query.index("X-Amz-Signature=") + len("X-Amz-Signature=")
        forged = parts.query[:at] + ("1" if parts.query[at] == "0" else "0") + parts.query[at + 1 :]
        status, _, body = send("GET", parts.path + "?" + forged)
        assert status == 403 and b"SignatureDoesNotMatch" in body, (status, body)
        expired = s3.generate_presigned_url("get_object", {"Bucket": name, "Key": "k ä"}, ExpiresIn=-1)
        parts = urllib.parse.urlparse(expired)
        assert send("GET", parts.path + "?" + parts.query)[0] == 403


# --- the shell


@check
def health_and_limits():
    status, _, body = send("GET", "/-/health")
    assert status == 200 and body == b"ok\n", (status, body)
    status, _, body = send("GET", "/", headers={"x-big": "v" * 20_000})
    assert status == 431 and b"RequestHeaderSectionTooLarge" in body, (status, body)
    status, _, body = send("GET", "/", headers={f"x-{number}": "v" for number in range(200)})
    assert status == 431 and b"RequestHeaderSectionTooLarge" in body, (status, body)
    status, _, body = send("POST", "/some-bucket", b"--x--", {"Content-Type": "multipart/form-data; boundary=x"})
    assert status == 400 and b"IncorrectNumberOfFilesInPostRequest" in body, (status, body)
    with Bucket() as name:
        status, _, body = raw("PUT", f"/{name}/huge", b"", {"content-length": str(6 << 30)}, "UNSIGNED-PAYLOAD")
        assert status == 400 and b"EntityTooLarge" in body, (status, body)
        refused("NotImplemented", s3.put_bucket_logging, Bucket=name, BucketLoggingStatus={})


@check
def errors_tell_the_id_of_their_request():
    with Bucket() as name:
        for answer in (raw("GET", f"/{name}/nothing"), raw("GET", f"/{name}?versionId"), send("GET", f"/{name}/k")):
            status, headers, body = answer
            told = f"<RequestId>{headers['x-amz-request-id']}</RequestId></Error>"
            assert status >= 400 and body.endswith(told.encode()), answer
        error = refused("NoSuchKey", s3.get_object, Bucket=name, Key="nothing")
        assert error["ResponseMetadata"]["RequestId"] == error["ResponseMetadata"]["HTTPHeaders"]["x-amz-request-id"]


def main():
    passed = failed = 0
    wanted = sys.argv[1:]
    for function in CHECKS:
        if wanted and function.__name__ not in wanted:
            continue
        try:
            note = function()
            print(f"ok    {function.__name__.replace('_', ' ')}" + (f" ({note})" if note else ""))
            passed += 1
        except Exception:
            failed += 1
            print(f"FAIL  {function.__name__.replace('_', ' ')}\n{traceback.format_exc()}")
        sys.stdout.flush()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
