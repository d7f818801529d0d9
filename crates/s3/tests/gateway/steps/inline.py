"""Steps of inline.rs: small objects, whose data is in the bucket index."""

import hashlib
import os

from prelude import *  # noqa: F403
from prelude import code, read, run_step, s3, together


def put_and_look(length):
    """A PUT of so many bytes is what HEAD and GETs say it is."""
    length = int(length)
    body = (b"CANARY" * (length // 6 + 1))[:length]
    one = {"Bucket": "bucket", "Key": f"k{length}"}
    etag = s3.put_object(**one, Body=body, ChecksumAlgorithm="SHA256")["ETag"]
    assert etag == '"' + hashlib.md5(body).hexdigest() + '"'
    head = s3.head_object(**one, ChecksumMode="ENABLED")
    assert head["ContentLength"] == length and head["ETag"] == etag and head["ServerSideEncryption"] == "AES256"
    got = s3.get_object(**one, ChecksumMode="ENABLED")
    assert got["Body"].read() == body and got["ChecksumSHA256"] == head["ChecksumSHA256"]
    assert code(s3.get_object, **one, IfMatch='"0"') == (412, "PreconditionFailed")
    assert code(s3.get_object, **one, IfNoneMatch=etag) == (304, "304")
    for first, last in ((0, 0), (0, length), (500, 700), (length - 1, length - 1), (1_000, 2_000)):
        if 0 <= first < length:
            part = s3.get_object(**one, Range=f"bytes={first}-{last}")
            assert part["Body"].read() == body[first : last + 1] and part["ContentRange"].endswith(f"/{length}")


def sizes_are_listed():
    sizes = [entry["Size"] for entry in s3.list_objects_v2(Bucket="bucket")["Contents"]]
    assert sizes == [0, 1, 1023, 1024, 1025], sizes


def put_three():
    s3.put_object(Bucket="bucket", Key="k", Body=b"1")
    s3.put_object(Bucket="bucket", Key="other", Body=b"stays")
    s3.put_object(Bucket="bucket", Key="large", Body=bytes(2_000))


def put_and_delete():
    s3.put_object(Bucket="bucket", Key="k", Body=b"4")
    s3.delete_object(Bucket="bucket", Key="k")


def others_are_there():
    assert read("bucket", "other") == b"stays"
    assert read("bucket", "large") == bytes(2_000)


def copy():
    s3.create_bucket(Bucket="second")
    s3.put_object(Bucket="bucket", Key="k", Body=b"small", ChecksumAlgorithm="CRC32")
    s3.copy_object(Bucket="bucket", Key="copy", CopySource="bucket/k")
    s3.copy_object(Bucket="second", Key="copy", CopySource="bucket/copy", ServerSideEncryption="aws:kms")
    s3.copy_object(Bucket="bucket", Key="k", CopySource="bucket/k", MetadataDirective="REPLACE")


def upload_with_a_copied_part():
    """The copies are there without their source; they become parts."""
    s3.delete_object(Bucket="bucket", Key="k")
    for bucket in ("bucket", "second"):
        assert read(bucket, "copy") == b"small"
    upload("parts", os.urandom(5 << 20))
    upload("one")


def upload(key, *bodies):
    one = {"Bucket": "bucket", "Key": key}
    one["UploadId"] = s3.create_multipart_upload(**one)["UploadId"]
    etags = [s3.upload_part(**one, PartNumber=number, Body=body)["ETag"] for number, body in enumerate(bodies, 1)]
    copied = s3.upload_part_copy(**one, PartNumber=len(etags) + 1, CopySource="second/copy")
    etags.append(copied["CopyPartResult"]["ETag"])
    parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
    s3.complete_multipart_upload(**one, MultipartUpload={"Parts": parts})
    assert read("bucket", key) == b"".join(bodies) + b"small"


def copy_one():
    s3.copy_object(Bucket="second", Key="one", CopySource="bucket/one")


def fill_and_delete_the_bucket():
    for number in range(20):
        s3.put_object(Bucket="bucket", Key=f"k{number}", Body=b"small")
        s3.put_object(Bucket="bucket", Key=f"k{number}", Body=b"small" * (1 + number % 2 * 500))
    upload_id = s3.create_multipart_upload(Bucket="bucket", Key="u")["UploadId"]
    s3.upload_part(Bucket="bucket", Key="u", UploadId=upload_id, PartNumber=1, Body=b"1")
    assert code(s3.delete_bucket, Bucket="bucket") == (409, "BucketNotEmpty")
    for number in range(20):
        s3.delete_object(Bucket="bucket", Key=f"k{number}")
    s3.delete_bucket(Bucket="bucket")


def put_two_kilobytes():
    for key in ("k", "l"):
        s3.put_object(Bucket="bucket", Key=key, Body=key.encode() * 1_000)


def ranges_get(status, error=""):
    """GETs of a range of either object get this answer."""
    for key in ("k", "l"):
        answer = code(s3.get_object, Bucket="bucket", Key=key, Range="bytes=3-5")
        assert answer == (int(status), error), (key, answer)


def put_data(status, error):
    """A small PUT gets this answer."""
    answer = code(s3.put_object, Bucket="bucket", Key="k", Body=b"data")
    assert answer == (int(status), error), answer


def conditions_hold():
    """What was written though its answer was lost is there; of writers that create the same object one does it."""
    assert read("bucket", "k") == b"data"
    create = lambda: code(s3.put_object, Bucket="bucket", Key="k2", Body=b"data", IfNoneMatch="*")
    results = together(*[create] * 8)
    assert sorted(results) == [(200, "")] + [(412, "PreconditionFailed")] * 7, results
    etag = s3.head_object(Bucket="bucket", Key="k2")["ETag"]
    other = {"Bucket": "bucket", "Key": "k2", "Body": b"other"}
    assert code(s3.put_object, **other, IfMatch='"0"') == (412, "PreconditionFailed")
    assert code(s3.put_object, **other, IfMatch=etag) == (200, "")
    wrong = "AAAAAAAAAAAAAAAAAAAAAA=="
    assert code(s3.put_object, Bucket="bucket", Key="k3", Body=b"x", ContentMD5=wrong)[1] == "BadDigest"


run_step(globals())
