#!/usr/bin/env python3
"""Checks with boto3 that an S3 endpoint drops nothing: what is not done is refused, and nothing has changed.

Like s3_conformance.py, whose helpers it uses.
"""

import base64
import binascii
import datetime
import hashlib
import sys

import s3_conformance as base
from botocore.exceptions import ClientError
from s3_conformance import ACCESS, Bucket, check, raw, refused, s3

base.CHECKS.clear()
HOUR = datetime.timedelta(hours=1)


def put(bucket, key, body=b"kept"):
    return s3.put_object(Bucket=bucket, Key=key, Body=body)


def content(bucket, key):
    return s3.get_object(Bucket=bucket, Key=key)["Body"].read()


def is_there(bucket, key):
    try:
        s3.head_object(Bucket=bucket, Key=key)
    except ClientError:
        return False
    return True


def delete_several(bucket, *objects):
    """The keys deleted, and the codes of the others' errors."""
    answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": list(objects)})
    errors = {error["Key"]: error["Code"] for error in answer.get("Errors", [])}
    return [deleted["Key"] for deleted in answer.get("Deleted", [])], errors


@check
def a_rename_is_refused():
    with Bucket() as name:
        put(name, "source", b"source")
        put(name, "k")
        for query in ("?renameObject", "?renameObject="):
            status, _, body = raw("PUT", f"/{name}/k", headers={"x-amz-rename-source": f"/{name}/source"}, query=query)
            assert status == 501 and b"NotImplemented" in body, (status, body)
        assert content(name, "k") == b"kept" and content(name, "source") == b"source"


@check
def deletions_heed_sizes_times_and_versions():
    with Bucket() as name:
        keys = ["size", "time", "version", "etag", "right"]
        for key in keys:
            put(name, key)
        head = s3.head_object(Bucket=name, Key="right")
        deleted, errors = delete_several(
            name,
            {"Key": "size", "Size": 5},
            {"Key": "time", "LastModifiedTime": head["LastModified"] - HOUR},
            {"Key": "version", "VersionId": "abc"},
            {"Key": "etag", "ETag": "0" * 32},
            {"Key": "right", "Size": 4, "LastModifiedTime": head["LastModified"], "ETag": head["ETag"].strip('"')},
        )
        failed = "PreconditionFailed"
        assert errors == {"size": failed, "time": failed, "version": "InvalidArgument", "etag": failed}, errors
        assert deleted == ["right"], deleted
        assert [is_there(name, key) for key in keys] == [True, True, True, True, False]
        assert delete_several(name, {"Key": "version", "VersionId": "null"}) == (["version"], {})


@check
def one_deletion_heeds_sizes_and_times():
    with Bucket() as name:
        put(name, "k")
        modified = s3.head_object(Bucket=name, Key="k")["LastModified"]
        refused("PreconditionFailed", s3.delete_object, Bucket=name, Key="k", IfMatchSize=5)
        refused("PreconditionFailed", s3.delete_object, Bucket=name, Key="k", IfMatchLastModifiedTime=modified - HOUR)
        refused("InvalidArgument", s3.delete_object, Bucket=name, Key="k", VersionId="abc")
        assert is_there(name, "k")
        s3.delete_object(Bucket=name, Key="k", IfMatchSize=4, IfMatchLastModifiedTime=modified)
        assert not is_there(name, "k")


@check
def copies_heed_conditions_of_the_destination():
    with Bucket() as name:
        put(name, "source", b"source")
        etag = put(name, "k")["ETag"]
        headers = {"x-amz-copy-source": f"/{name}/source"}
        for conditions in ({"if-none-match": "*"}, {"if-match": '"' + "0" * 32 + '"'}):
            status, _, body = raw("PUT", f"/{name}/k", headers=headers | conditions)
            assert status == 412 and b"PreconditionFailed" in body, (conditions, status, body)
        assert content(name, "k") == b"kept"
        status, _, body = raw("PUT", f"/{name}/k", headers=headers | {"if-match": etag})
        assert status == 200 and content(name, "k") == b"source", (status, body)
        status, _, body = raw("PUT", f"/{name}/new", headers=headers | {"if-none-match": "*"})
        assert status == 200 and content(name, "new") == b"source", (status, body)


@check
def what_an_object_cannot_have_is_refused():
    cases = {
        "AccessControlListNotSupported": [{"ACL": "public-read"}, {"GrantRead": "id=somebody"}],
        "InvalidStorageClass": [{"StorageClass": "GLACIER"}, {"StorageClass": "FREEZER"}],
        "NotImplemented": [
            {"WebsiteRedirectLocation": "/elsewhere"},
        ],
        "InvalidRequest": [{"ObjectLockLegalHoldStatus": "ON"}],
        "InvalidTag": [{"Tagging": "color=blue&color=red"}],
    }
    with Bucket() as name:
        put(name, "k")
        for code, wishes in cases.items():
            for wish in wishes:
                refused(code, s3.put_object, Bucket=name, Key="k", Body=b"other", **wish)
                refused(code, s3.create_multipart_upload, Bucket=name, Key="k", **wish)
                copy = {"TaggingDirective": "REPLACE"} | wish
                refused(code, s3.copy_object, Bucket=name, Key="copy", CopySource=f"{name}/k", **copy)
        refused("NotImplemented", s3.delete_object, Bucket=name, Key="k", MFA="serial 123456")
        assert content(name, "k") == b"kept" and not is_there(name, "copy")
        for acl in ("private", "bucket-owner-full-control"):
            s3.put_object(Bucket=name, Key="k", Body=b"same", ACL=acl, StorageClass="STANDARD")


@check
def settings_that_cannot_be_set_are_refused():
    with Bucket() as name:
        refused("NoSuchBucketPolicy", s3.get_bucket_policy, Bucket=name)
        website = {"IndexDocument": {"Suffix": "index.html"}}
        refused("NotImplemented", s3.put_bucket_website, Bucket=name, WebsiteConfiguration=website)
        payment = {"Payer": "Requester"}
        refused("NotImplemented", s3.put_bucket_request_payment, Bucket=name, RequestPaymentConfiguration=payment)
        assert s3.get_bucket_request_payment(Bucket=name)["Payer"] == "BucketOwner"
        refused("NoSuchWebsiteConfiguration", s3.get_bucket_website, Bucket=name)
        refused("ReplicationConfigurationNotFoundError", s3.get_bucket_replication, Bucket=name)
        refused("NoSuchLifecycleConfiguration", s3.get_bucket_lifecycle_configuration, Bucket=name)
        for call in (s3.get_bucket_logging, s3.get_bucket_accelerate_configuration):
            assert set(call(Bucket=name)) == {"ResponseMetadata"}


@check
def acls_are_those_of_the_owner():
    with Bucket() as name:
        put(name, "k")
        for acl in (s3.get_bucket_acl(Bucket=name), s3.get_object_acl(Bucket=name, Key="k")):
            assert acl["Owner"]["ID"] == ACCESS, acl
            assert [grant["Permission"] for grant in acl["Grants"]] == ["FULL_CONTROL"], acl
        own = {"Owner": acl["Owner"], "Grants": acl["Grants"]}
        everyone = {"Type": "Group", "URI": "http://acs.amazonaws.com/groups/global/AllUsers"}
        public = {"Owner": acl["Owner"], "Grants": [{"Grantee": everyone, "Permission": "READ"}]}
        code = "AccessControlListNotSupported"
        for call, what in ((s3.put_bucket_acl, {}), (s3.put_object_acl, {"Key": "k"})):
            call(Bucket=name, ACL="private", **what)
            call(Bucket=name, AccessControlPolicy=own, **what)
            refused(code, call, Bucket=name, ACL="public-read", **what)
            refused(code, call, Bucket=name, AccessControlPolicy=public, **what)
        ownership = s3.get_bucket_ownership_controls(Bucket=name)["OwnershipControls"]
        assert ownership == {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]}
        s3.put_bucket_ownership_controls(Bucket=name, OwnershipControls=ownership)
        refused("NoSuchPublicAccessBlockConfiguration", s3.get_public_access_block, Bucket=name)
        block = {"BlockPublicAcls": True, "IgnorePublicAcls": False}
        block |= {"BlockPublicPolicy": True, "RestrictPublicBuckets": False}
        s3.put_public_access_block(Bucket=name, PublicAccessBlockConfiguration=block)
        assert s3.get_public_access_block(Bucket=name)["PublicAccessBlockConfiguration"] == block
        s3.delete_public_access_block(Bucket=name)


@check
def what_a_bucket_cannot_have_is_refused():
    name = "atoll-refused-bucket"
    refused("InvalidBucketAclWithObjectOwnership", s3.create_bucket, Bucket=name, ACL="public-read")
    refused("InvalidArgument", s3.create_bucket, Bucket=name, GrantRead="id=somebody")
    refused("InvalidArgument", s3.create_bucket, Bucket=name, ObjectOwnership="Everybody")
    elsewhere = {"LocationConstraint": "eu-west-1"}
    refused("InvalidLocationConstraint", s3.create_bucket, Bucket=name, CreateBucketConfiguration=elsewhere)
    refused(404, s3.head_bucket, Bucket=name)
    # s3s does not read them yet.
    tagged = {"Tags": [{"Key": "color", "Value": "blue"}]}
    refused("MalformedXML", s3.create_bucket, Bucket=name, CreateBucketConfiguration=tagged)
    refused(404, s3.head_bucket, Bucket=name)


@check
def somebody_elses_bucket_is_noticed():
    with Bucket() as name:
        put(name, "k")
        refused("AccessDenied", s3.get_object, Bucket=name, Key="k", ExpectedBucketOwner="somebody")
        refused("AccessDenied", s3.delete_object, Bucket=name, Key="k", ExpectedBucketOwner="somebody")
        source = {"Bucket": name, "Key": "copy", "CopySource": f"{name}/k"}
        refused("AccessDenied", s3.copy_object, ExpectedSourceBucketOwner="somebody", **source)
        s3.copy_object(ExpectedSourceBucketOwner=ACCESS, ExpectedBucketOwner=ACCESS, **source)
        assert content(name, "k") == content(name, "copy") == b"kept"


@check
def a_signature_for_another_region_is_refused():
    with Bucket() as name:
        elsewhere = base.client(region="eu-west-1")
        refused("AuthorizationHeaderMalformed", elsewhere.put_object, Bucket=name, Key="k", Body=b"")
        url = elsewhere.generate_presigned_url("get_object", {"Bucket": name, "Key": "k"})
        status, _, body = base.send("GET", url.removeprefix(base.ENDPOINT))
        assert status == 400 and b"expecting &apos;us-east-1&apos;" in body.replace(b"'", b"&apos;"), (status, body)


@check
def presigned_requests_last_a_week_at_most():
    with Bucket() as name:
        put(name, "k")
        for seconds, wanted, code in (
            (604_800, 200, b"kept"),
            (604_801, 400, b"AuthorizationQueryParametersError"),
            (-1, 403, b"<Code>AccessDenied</Code><Message>Request has expired"),
        ):
            url = s3.generate_presigned_url("get_object", {"Bucket": name, "Key": "k"}, ExpiresIn=seconds)
            status, _, body = base.send("GET", url.removeprefix(base.ENDPOINT))
            assert status == wanted and code in body, (seconds, status, body)


@check
def a_signed_date_is_a_time():
    with Bucket() as name:
        put(name, "k")
        # botocore fills in the time of the signature, and then sends no X-Amz-Date.
        status, _, body = raw("GET", f"/{name}/k", headers={"Date": "now"})
        assert status == 200 and body == b"kept", (status, body)


@check
def requests_without_a_signature_are_denied():
    with Bucket() as name:
        put(name, "k")
        for authorization, wanted in ((None, 403), ("", 403), ("Basic dTpw", 400), ("AWS4-HMAC-SHA256", 400)):
            headers = {} if authorization is None else {"Authorization": authorization}
            status, _, body = base.send("GET", f"/{name}/k", headers=headers)
            assert status == wanted and (status == 400 or b"AccessDenied" in body), (authorization, status, body)


@check
def names_are_those_of_hosts():
    for name in ("atoll-.bar", "atoll.-bar"):
        status, _, body = raw("PUT", f"/{name}")
        assert status == 400 and b"InvalidBucketName" in body, (name, status, body)


@check
def an_empty_delimiter_is_none():
    with Bucket() as name:
        put(name, "a/b")
        for query in ("?delimiter=", "?list-type=2&delimiter="):
            status, _, body = raw("GET", f"/{name}", query=query)
            assert status == 200 and b"Delimiter" not in body and b"a/b" in body, (query, status, body)


@check
def unknown_subresources_are_refused():
    with Bucket() as name:
        put(name, "k")
        for method, query in (("PUT", "?unheard-of"), ("GET", "?torrent"), ("DELETE", "?retention")):
            status, _, body = raw(method, f"/{name}/k", query=query)
            assert status == 501 and b"NotImplemented" in body, (method, query, status, body)
        assert content(name, "k") == b"kept"
        assert raw("GET", f"/{name}/k", query="?mine=7")[2] == b"kept", "a client's own parameter"


# Of each document the address it goes to, in a bucket, and what is in it.
DOCUMENTS = {
    "AccessControlPolicy": ("PUT", "?acl", "<AccessControlList></AccessControlList>"),
    "CORSConfiguration": (
        "PUT",
        "?cors",
        "<CORSRule><AllowedMethod>GET</AllowedMethod><AllowedOrigin>*</AllowedOrigin></CORSRule>",
    ),
    "Delete": ("POST", "?delete", "<Object><Key>k</Key></Object>"),
    "OwnershipControls": (
        "PUT",
        "?ownershipControls",
        "<Rule><ObjectOwnership>ObjectWriter</ObjectOwnership></Rule>",
    ),
    "PublicAccessBlockConfiguration": ("PUT", "?publicAccessBlock", "<BlockPublicAcls>true</BlockPublicAcls>"),
    "RequestPaymentConfiguration": ("PUT", "?requestPayment", "<Payer>BucketOwner</Payer>"),
    "Tagging": ("PUT", "?tagging", "<TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet>"),
    "VersioningConfiguration": ("PUT", "?versioning", "<Status>Enabled</Status>"),
}


@check
def documents_with_unknown_elements_are_refused():
    with Bucket() as name:
        put(name, "k")
        for root, (method, query, content_of_root) in DOCUMENTS.items():
            document = f"<{root}>{content_of_root}<Strange>1</Strange></{root}>".encode()
            status, _, body = raw(method, f"/{name}", document, query=query)
            assert status == 400 and b"<Code>MalformedXML</Code>" in body and b"Strange" in body, (root, status, body)
        assert is_there(name, "k") and "Status" not in s3.get_bucket_versioning(Bucket=name)
        for code, call in {
            "NoSuchTagSet": s3.get_bucket_tagging,
            "NoSuchCORSConfiguration": s3.get_bucket_cors,
            "NoSuchPublicAccessBlockConfiguration": s3.get_public_access_block,
        }.items():
            refused(code, call, Bucket=name)


@check
def documents_are_what_their_digests_say():
    def base64_of(digest):
        return base64.b64encode(digest).decode()

    with Bucket() as name:
        put(name, "k")
        document = b"<Delete><Object><Key>k</Key></Object></Delete>"
        for code, header, value in (
            ("BadDigest", "content-md5", base64_of(hashlib.md5(b"other").digest())),
            ("InvalidDigest", "content-md5", "short"),
            ("BadDigest", "x-amz-checksum-sha256", base64_of(hashlib.sha256(b"other").digest())),
            ("BadDigest", "x-amz-checksum-crc32", base64_of(binascii.crc32(b"other").to_bytes(4, "big"))),
            ("InvalidRequest", "x-amz-checksum-crc32", "short"),
        ):
            status, _, body = raw("POST", f"/{name}", document, headers={header: value}, query="?delete")
            assert status == 400 and f"<Code>{code}</Code>".encode() in body, (header, status, body)
            assert is_there(name, "k"), header
        headers = {
            "content-md5": base64_of(hashlib.md5(document).digest()),
            "x-amz-checksum-sha256": base64_of(hashlib.sha256(document).digest()),
        }
        status, _, body = raw("POST", f"/{name}", document, headers=headers, query="?delete")
        assert status == 200 and not is_there(name, "k"), (status, body)


@check
def completions_are_what_their_digest_says():
    with Bucket() as name:
        upload = s3.create_multipart_upload(Bucket=name, Key="k")["UploadId"]
        etag = s3.upload_part(Bucket=name, Key="k", UploadId=upload, PartNumber=1, Body=b"part")["ETag"]
        part = f"<Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>"
        document = f"<CompleteMultipartUpload>{part}</CompleteMultipartUpload>".encode()
        digests = [hashlib.md5(body).digest() for body in (b"other", document)]
        for digest, expected in zip(digests, (400, 200), strict=True):
            headers = {"content-md5": base64.b64encode(digest).decode()}
            status, _, body = raw("POST", f"/{name}/k", document, headers=headers, query=f"?uploadId={upload}")
            assert status == expected, (status, body)
            assert is_there(name, "k") == (expected == 200)


if __name__ == "__main__":
    sys.exit(base.main())
