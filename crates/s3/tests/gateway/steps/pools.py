"""Steps of pools.rs: in which pools the gateway keeps what."""

import os

from prelude import *  # noqa: F403
from prelude import code, read, run_step, s3

DATA = os.urandom(9 << 20)


def fill(bucket):
    s3.put_object(Bucket=bucket, Key="single", Body=DATA)
    one = {"Bucket": bucket, "Key": "parts"}
    one["UploadId"] = s3.create_multipart_upload(**one)["UploadId"]
    first = s3.upload_part(**one, PartNumber=1, Body=DATA)["ETag"]
    source = {"CopySource": f"{bucket}/single", "CopySourceRange": "bytes=0-4999999"}
    second = s3.upload_part_copy(**one, PartNumber=2, **source)["CopyPartResult"]["ETag"]
    parts = [{"PartNumber": 1, "ETag": first}, {"PartNumber": 2, "ETag": second}]
    s3.complete_multipart_upload(**one, MultipartUpload={"Parts": parts})
    assert read(bucket, "parts") == DATA + DATA[:5_000_000]
    assert read(bucket, "single", Range="bytes=70000-5000000") == DATA[70000:5000001]


def empty(bucket):
    for entry in s3.list_objects_v2(Bucket=bucket).get("Contents", []):
        s3.delete_object(Bucket=bucket, Key=entry["Key"])
    upload = s3.create_multipart_upload(Bucket=bucket, Key="unfinished")["UploadId"]
    s3.upload_part(Bucket=bucket, Key="unfinished", UploadId=upload, PartNumber=1, Body=b"1")


def create_and_fill():
    s3.create_bucket(Bucket="bucket")
    fill("bucket")


def replace_and_delete():
    s3.put_object(Bucket="bucket", Key="single", Body=b"")
    s3.delete_object(Bucket="bucket", Key="parts")


def fill_and_delete_the_bucket():
    fill("bucket")
    empty_and_delete("bucket")


def empty_and_delete(bucket):
    empty(bucket)
    s3.delete_bucket(Bucket=bucket)


def make(bucket, constraint):
    return code(s3.create_bucket, Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": constraint})


def copy_between_pools():
    assert make("warm", "eu-west-1") == (400, "InvalidLocationConstraint"), "another region"
    assert make("warm", "us-east-1")[0] == 200, "the gateway's region"
    assert make("cold", "pool:cold")[0] == 200
    assert make("none", "pool:none") == (400, "InvalidLocationConstraint")
    assert make("none", "pool:disks") == (400, "InvalidLocationConstraint")
    fill("warm")
    s3.copy_object(Bucket="cold", Key="copy", CopySource="warm/parts")
    one = {"Bucket": "cold", "Key": "parts"}
    one["UploadId"] = s3.create_multipart_upload(**one)["UploadId"]
    etag = s3.upload_part_copy(**one, PartNumber=1, CopySource="warm/single")["CopyPartResult"]["ETag"]
    s3.complete_multipart_upload(**one, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]})


def copies_are_there():
    body = read("cold", "copy")
    assert len(body) == (9 << 20) + 5_000_000
    assert read("cold", "parts") == body[: 9 << 20]
    s3.copy_object(Bucket="cold", Key="copy", CopySource="cold/copy", MetadataDirective="REPLACE")


def create_first():
    s3.create_bucket(Bucket="first")
    s3.put_object(Bucket="first", Key="k", Body=b"first" * 50_000)


def create_second():
    s3.create_bucket(Bucket="second")
    s3.put_object(Bucket="first", Key="k2", Body=b"first" * 50_000)
    assert read("first", "k") == b"first" * 50_000


def put_into_second():
    s3.put_object(Bucket="second", Key="k", Body=b"second" * 50_000)


run_step(globals())
