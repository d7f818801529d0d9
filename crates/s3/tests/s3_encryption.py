#!/usr/bin/env python3
"""Checks the kinds of encryption of an S3 endpoint with boto3: SSE-S3, SSE-KMS, SSE-C, bucket defaults.

Like s3_conformance.py, whose helpers it uses; the endpoint must speak HTTPS, and its key service must
have the keys 'project' and 'second' and none called 'missing'. With S3_PLAIN_ENDPOINT it is checked
that keys are not taken over plain HTTP.
"""

import base64
import hashlib
import os
import sys

import s3_conformance as base
from s3_conformance import MIB, Bucket, check, md5, noise, refused, s3

base.CHECKS.clear()


def customer(key=None, prefix=""):
    key = key or os.urandom(32)
    return {prefix + "SSECustomerAlgorithm": "AES256", prefix + "SSECustomerKey": key}


def body(answer):
    return answer["Body"].read()


@check
def sse_s3_is_the_default():
    with Bucket() as name:
        data = noise(100_000)
        for wanted in ({}, {"ServerSideEncryption": "AES256"}):
            put = s3.put_object(Bucket=name, Key="k", Body=data, **wanted)
            assert put["ServerSideEncryption"] == "AES256" and put["ETag"] == f'"{md5(data)}"', put
        for answer in (s3.get_object(Bucket=name, Key="k"), s3.head_object(Bucket=name, Key="k")):
            assert answer["ServerSideEncryption"] == "AES256" and "SSEKMSKeyId" not in answer, answer
        refused("InvalidArgument", s3.put_object, Bucket=name, Key="k", Body=b"", SSEKMSKeyId="project")
        refused(
            "InvalidArgument",
            s3.put_object,
            Bucket=name,
            Key="k",
            Body=b"",
            ServerSideEncryption="AES256",
            SSEKMSKeyId="project",
        )
        refused("InvalidArgument", s3.put_object, Bucket=name, Key="k", Body=b"", ServerSideEncryption="rot13")


@check
def sse_kms_with_keys_and_contexts():
    context = base64.b64encode(b'{"team":"blue","stage":"test"}').decode()
    with Bucket() as name:
        data = noise(200_000)
        for key_id, told in (
            (None, "atoll"),
            ("project", "project"),
            ("arn:aws:kms:us-east-1:1:key/second", "second"),
            ("alias/project", "project"),
        ):
            wanted = {"ServerSideEncryption": "aws:kms", "SSEKMSEncryptionContext": context, "BucketKeyEnabled": True}
            if key_id:
                wanted["SSEKMSKeyId"] = key_id
            put = s3.put_object(Bucket=name, Key="k", Body=data, **wanted)
            assert (
                put["ServerSideEncryption"] == "aws:kms" and put["SSEKMSKeyId"] == told and put["BucketKeyEnabled"]
            ), put
            import json

            assert json.loads(base64.b64decode(put["SSEKMSEncryptionContext"])) == {"team": "blue", "stage": "test"}, (
                put
            )
            assert put["ETag"] != f'"{md5(data)}"', "the ETag tells what is in the object"
            got = s3.get_object(Bucket=name, Key="k")
            assert body(got) == data and got["SSEKMSKeyId"] == told and got["ServerSideEncryption"] == "aws:kms"
            part = s3.get_object(Bucket=name, Key="k", Range="bytes=70000-150000")
            assert body(part) == data[70000:150001]
            assert s3.head_object(Bucket=name, Key="k")["SSEKMSKeyId"] == told
        refused(
            "KMS.NotFoundException",
            s3.put_object,
            Bucket=name,
            Key="k",
            Body=b"x",
            ServerSideEncryption="aws:kms",
            SSEKMSKeyId="missing",
        )
        refused(
            "InvalidArgument",
            s3.put_object,
            Bucket=name,
            Key="k",
            Body=b"x",
            ServerSideEncryption="aws:kms",
            SSEKMSEncryptionContext="?",
        )
        refused("NotImplemented", s3.put_object, Bucket=name, Key="k", Body=b"x", ServerSideEncryption="aws:kms:dsse")
        assert body(s3.get_object(Bucket=name, Key="k")) == data, "refused PUTs changed nothing"


@check
def bucket_default_encryption():
    with Bucket() as name:

        def default():
            rules = s3.get_bucket_encryption(Bucket=name)["ServerSideEncryptionConfiguration"]["Rules"]
            assert len(rules) == 1
            return rules[0]["ApplyServerSideEncryptionByDefault"]

        def set_default(**rule):
            s3.put_bucket_encryption(
                Bucket=name,
                ServerSideEncryptionConfiguration={
                    "Rules": [{"ApplyServerSideEncryptionByDefault": rule, "BucketKeyEnabled": True}]
                },
            )

        assert default() == {"SSEAlgorithm": "AES256"}
        set_default(SSEAlgorithm="aws:kms", KMSMasterKeyID="project")
        assert default() == {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": "project"}
        put = s3.put_object(Bucket=name, Key="k", Body=b"kms by default")
        assert (put["ServerSideEncryption"], put["SSEKMSKeyId"]) == ("aws:kms", "project"), put
        put = s3.put_object(Bucket=name, Key="plain", Body=b"by the request", ServerSideEncryption="AES256")
        assert put["ServerSideEncryption"] == "AES256"
        copy = s3.copy_object(Bucket=name, Key="copy", CopySource={"Bucket": name, "Key": "plain"})
        assert copy["SSEKMSKeyId"] == "project", copy
        refused("KMS.NotFoundException", set_default, SSEAlgorithm="aws:kms", KMSMasterKeyID="missing")
        refused("InvalidArgument", set_default, SSEAlgorithm="AES256", KMSMasterKeyID="project")
        assert default()["KMSMasterKeyID"] == "project"
        s3.delete_bucket_encryption(Bucket=name)
        assert default() == {"SSEAlgorithm": "AES256"}
        assert body(s3.get_object(Bucket=name, Key="k")) == b"kms by default"
        assert body(s3.get_object(Bucket=name, Key="copy")) == b"by the request"
    refused("NoSuchBucket", s3.get_bucket_encryption, Bucket=name)
    refused("NoSuchBucket", set_default, SSEAlgorithm="AES256")


@check
def sse_c_on_put_get_head():
    with Bucket() as name:
        key, data = customer(), noise(150_000)
        told = base64.b64encode(hashlib.md5(key["SSECustomerKey"]).digest()).decode()
        for content in (data, b""):
            put = s3.put_object(Bucket=name, Key="k", Body=content, **key)
            assert put["SSECustomerAlgorithm"] == "AES256" and put["SSECustomerKeyMD5"] == told, put
            assert "ServerSideEncryption" not in put and put["ETag"] != f'"{md5(content)}"'
            got = s3.get_object(Bucket=name, Key="k", **key)
            assert body(got) == content and got["SSECustomerKeyMD5"] == told
            assert s3.head_object(Bucket=name, Key="k", **key)["ContentLength"] == len(content)
            refused("InvalidRequest", s3.get_object, Bucket=name, Key="k")
            refused("AccessDenied", s3.get_object, Bucket=name, Key="k", **customer())
            refused("400", s3.head_object, Bucket=name, Key="k")
            refused("403", s3.head_object, Bucket=name, Key="k", **customer())
        s3.put_object(Bucket=name, Key="k", Body=data, **key)
        assert body(s3.get_object(Bucket=name, Key="k", Range="bytes=65530-65545", **key)) == data[65530:65546]
        s3.put_object(Bucket=name, Key="other", Body=b"x")
        refused("InvalidRequest", s3.get_object, Bucket=name, Key="other", **key)
        # Whoever has no key may delete and list all the same.
        listed = s3.list_objects_v2(Bucket=name)["Contents"]
        assert {entry["Key"]: entry["Size"] for entry in listed} == {"k": len(data), "other": 1}
        s3.delete_object(Bucket=name, Key="k")


@check
def sse_c_headers_must_fit():
    with Bucket() as name:

        def put(**headers):
            return base.raw(
                "PUT",
                f"/{name}/k",
                b"x",
                {
                    f"x-amz-server-side-encryption-customer-{header.replace('_', '-')}": value
                    for header, value in headers.items()
                },
            )

        key = os.urandom(32)
        good = {
            "algorithm": "AES256",
            "key": base64.b64encode(key).decode(),
            "key_MD5": base64.b64encode(hashlib.md5(key).digest()).decode(),
        }
        assert put(**good)[0] == 200
        wrong = [
            ({"algorithm": "AES128"}, b"InvalidEncryptionAlgorithm"),
            ({"key": base64.b64encode(key[:16]).decode()}, b"InvalidArgument"),
            ({"key": "%%%"}, b"InvalidArgument"),
            ({"key_MD5": base64.b64encode(b"0" * 16).decode()}, b"InvalidArgument"),
        ]
        for change, code in wrong:
            status, _, text = put(**{**good, **change})
            assert status == 400 and code in text, (change, status, text)
        for missing in good:
            status, _, text = put(**{header: value for header, value in good.items() if header != missing})
            assert status == 400 and b"InvalidArgument" in text, (missing, status, text)
        refused(
            "InvalidArgument",
            s3.put_object,
            Bucket=name,
            Key="k",
            Body=b"",
            ServerSideEncryption="aws:kms",
            **customer(),
        )


@check
def sse_c_multipart():
    with Bucket() as name:
        key, parts = customer(), [noise(5 * MIB), noise(6 * MIB), noise(1000)]
        upload = s3.create_multipart_upload(Bucket=name, Key="k", **key)
        assert upload["SSECustomerAlgorithm"] == "AES256"
        ids = {"Bucket": name, "Key": "k", "UploadId": upload["UploadId"]}
        refused("InvalidRequest", s3.upload_part, PartNumber=1, Body=parts[0], **ids)
        refused("InvalidRequest", s3.upload_part, PartNumber=1, Body=parts[0], **ids, **customer())
        listed = []
        for number, part in enumerate(parts, 1):
            # Each part twice: an attempt never shares a key with another.
            for _ in range(2):
                done = s3.upload_part(PartNumber=number, Body=part, **ids, **key)
            listed.append({"PartNumber": number, "ETag": done["ETag"]})
        # The key need not be said here; the AWS command line does.
        refused("InvalidRequest", s3.complete_multipart_upload, MultipartUpload={"Parts": listed}, **ids, **customer())
        s3.complete_multipart_upload(MultipartUpload={"Parts": listed}, **ids, **key)
        assert body(s3.get_object(Bucket=name, Key="k", **key)) == b"".join(parts)
        assert (
            body(s3.get_object(Bucket=name, Key="k", Range="bytes=5242870-5242900", **key))
            == b"".join(parts)[5242870:5242901]
        )
        refused("InvalidRequest", s3.get_object, Bucket=name, Key="k")


@check
def sse_kms_multipart():
    with Bucket() as name:
        parts = [noise(5 * MIB), noise(100)]
        upload = s3.create_multipart_upload(Bucket=name, Key="k", ServerSideEncryption="aws:kms", SSEKMSKeyId="second")
        assert upload["SSEKMSKeyId"] == "second", upload
        ids = {"Bucket": name, "Key": "k", "UploadId": upload["UploadId"]}
        listed = []
        for number, part in enumerate(parts, 1):
            done = s3.upload_part(PartNumber=number, Body=part, **ids)
            assert done["SSEKMSKeyId"] == "second", done
            listed.append({"PartNumber": number, "ETag": done["ETag"]})
        done = s3.complete_multipart_upload(MultipartUpload={"Parts": listed}, **ids)
        assert (done["ServerSideEncryption"], done["SSEKMSKeyId"]) == ("aws:kms", "second"), done
        assert body(s3.get_object(Bucket=name, Key="k")) == b"".join(parts)


@check
def copies_from_each_kind_to_each():
    with Bucket() as name, Bucket() as other:
        data = noise(6 * MIB)
        key, new = customer(), customer()
        kinds = {
            "s3": ({}, {}),
            "kms": ({"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "project"}, {}),
            "c": (key, key),
        }
        for kind, (write, _) in kinds.items():
            s3.put_object(Bucket=name, Key=kind, Body=data, Metadata={"kind": kind}, **write)
        targets = {
            "s3": ({}, {}),
            "kms": ({"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "second"}, {}),
            "c": (new, new),
        }
        for kind, (_, read) in kinds.items():
            source = {
                "CopySource": {"Bucket": name, "Key": kind},
                **{"CopySource" + header: value for header, value in read.items()},
            }
            for target, (write, open_with) in targets.items():
                s3.copy_object(Bucket=other, Key="copy", **source, **write)
                got = s3.get_object(Bucket=other, Key="copy", **open_with)
                assert body(got) == data and got["Metadata"] == {"kind": kind}, (kind, target)
                upload = s3.create_multipart_upload(Bucket=other, Key="parts", **write)
                ids = {"Bucket": other, "Key": "parts", "UploadId": upload["UploadId"]}
                part = s3.upload_part_copy(
                    PartNumber=1, CopySourceRange="bytes=100-6000000", **ids, **source, **open_with
                )
                s3.complete_multipart_upload(
                    MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["CopyPartResult"]["ETag"]}]}, **ids
                )
                assert body(s3.get_object(Bucket=other, Key="parts", **open_with)) == data[100:6000001], (kind, target)


@check
def copies_that_are_refused():
    with Bucket() as name, Bucket() as other:
        s3.put_object(Bucket=name, Key="s3", Body=b"x")
        s3.put_object(Bucket=name, Key="c", Body=b"x", **customer())
        bare = {"CopySource": {"Bucket": name, "Key": "c"}}
        refused("InvalidRequest", s3.copy_object, Bucket=other, Key="x", **bare)
        refused("InvalidRequest", s3.copy_object, Bucket=other, Key="x", **bare, **customer(prefix="CopySource"))
        refused(
            "InvalidRequest",
            s3.copy_object,
            Bucket=other,
            Key="x",
            CopySource={"Bucket": name, "Key": "s3"},
            **customer(prefix="CopySource"),
        )


@check
def an_object_copied_onto_itself_may_change_its_encryption():
    """Its key included."""
    with Bucket() as name:
        data, key, new = noise(6 * MIB), customer(), customer()
        s3.put_object(Bucket=name, Key="s3", Body=data)
        s3.put_object(Bucket=name, Key="c", Body=data, **key)
        s3.copy_object(
            Bucket=name,
            Key="s3",
            CopySource={"Bucket": name, "Key": "s3"},
            ServerSideEncryption="aws:kms",
            SSEKMSKeyId="project",
        )
        assert s3.head_object(Bucket=name, Key="s3")["SSEKMSKeyId"] == "project"
        s3.copy_object(
            Bucket=name,
            Key="c",
            CopySource={"Bucket": name, "Key": "c"},
            **{"CopySource" + header: value for header, value in key.items()},
            **new,
        )
        assert body(s3.get_object(Bucket=name, Key="c", **new)) == data
        refused("AccessDenied", s3.get_object, Bucket=name, Key="c", **key)


@check
def presigned_urls_carry_the_headers():
    import urllib.request

    with Bucket() as name:
        url = s3.generate_presigned_url(
            "put_object",
            Params={"Bucket": name, "Key": "k", "ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "project"},
        )
        headers = {"x-amz-server-side-encryption": "aws:kms", "x-amz-server-side-encryption-aws-kms-key-id": "project"}
        context = base.ssl.create_default_context(cafile=os.environ["AWS_CA_BUNDLE"])
        with urllib.request.urlopen(
            urllib.request.Request(url, b"data", headers, method="PUT"), context=context
        ) as answer:
            assert answer.headers["x-amz-server-side-encryption-aws-kms-key-id"] == "project", dict(answer.headers)
        assert body(s3.get_object(Bucket=name, Key="k")) == b"data"


@check
def no_keys_over_plain_http():
    plain = os.environ.get("S3_PLAIN_ENDPOINT")
    if not plain:
        return "no S3_PLAIN_ENDPOINT"
    import boto3

    # botocore itself refuses, so a client without its check asks.
    with Bucket() as name:
        client = boto3.client(
            "s3",
            endpoint_url=plain,
            region_name="us-east-1",
            aws_access_key_id=base.ACCESS,
            aws_secret_access_key=base.SECRET,
            config=base.Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
        )
        key = os.urandom(32)
        headers = {
            "x-amz-server-side-encryption-customer-algorithm": "AES256",
            "x-amz-server-side-encryption-customer-key": base64.b64encode(key).decode(),
            "x-amz-server-side-encryption-customer-key-MD5": base64.b64encode(hashlib.md5(key).digest()).decode(),
        }

        def add(request, **_):
            for header, value in headers.items():
                request.headers[header] = value

        client.meta.events.register("before-sign.s3.PutObject", add)
        client.meta.events.register("before-sign.s3.GetObject", add)
        refused("InvalidRequest", client.put_object, Bucket=name, Key="k", Body=b"x")
        s3.put_object(Bucket=name, Key="k", Body=b"x", **customer(key))
        refused("InvalidRequest", client.get_object, Bucket=name, Key="k")


if __name__ == "__main__":
    sys.exit(base.main())
