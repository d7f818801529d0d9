"""Steps of sealing.rs: buckets whose new objects are not sealed."""

import hashlib
import os
import time

from prelude import *  # noqa: F403
from prelude import code, read, run_step, s3

PATTERN = b"what the owner of the bucket wrote"
DATA = PATTERN * (5_500_000 // len(PATTERN))
# Gateways follow within 2 s.
FOLLOW_SECONDS_MAX = 4


def kind(answer):
    return answer.get("ServerSideEncryption"), answer.get("SSECustomerAlgorithm")


def follows(condition):
    """Waits until the gateway follows what was changed."""
    deadline = time.monotonic() + FOLLOW_SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, "the gateway does not follow"
        time.sleep(0.1)


def put_in_clear():
    put = s3.put_object(Bucket="plain", Key="k", Body=DATA)
    assert kind(put) == (None, None) and put["ETag"] == '"' + hashlib.md5(DATA).hexdigest() + '"', put
    assert kind(s3.head_object(Bucket="plain", Key="k")) == (None, None)
    got = s3.get_object(Bucket="plain", Key="k")
    assert kind(got) == (None, None) and got["Body"].read() == DATA
    for first, last in ((0, 0), (70_001, 5_000_000), (len(DATA) - 3, len(DATA) + 9)):
        assert read("plain", "k", Range=f"bytes={first}-{last}") == DATA[first : last + 1]
    s3.put_object(Bucket="plain", Key="empty", Body=b"")
    assert read("plain", "empty") == b""
    one = {"Bucket": "plain", "Key": "parts"}
    upload = s3.create_multipart_upload(**one)
    assert kind(upload) == (None, None)
    one["UploadId"] = upload["UploadId"]
    first = s3.upload_part(**one, PartNumber=1, Body=DATA)["ETag"]
    second = s3.upload_part_copy(**one, PartNumber=2, CopySource="plain/k")["CopyPartResult"]["ETag"]
    parts = [{"PartNumber": 1, "ETag": first}, {"PartNumber": 2, "ETag": second}]
    s3.complete_multipart_upload(**one, MultipartUpload={"Parts": parts})
    assert read("plain", "parts") == DATA * 2
    missing = (404, "ServerSideEncryptionConfigurationNotFoundError")
    assert code(s3.get_bucket_encryption, Bucket="plain") == missing


def ask_for_encryption():
    """What asks to be encrypted is, and elsewhere nothing has changed."""
    own = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": os.urandom(32)}
    assert kind(s3.put_object(Bucket="plain", Key="s3", Body=DATA, ServerSideEncryption="AES256")) == ("AES256", None)
    assert kind(s3.put_object(Bucket="plain", Key="c", Body=DATA, **own)) == (None, "AES256")
    assert kind(s3.head_object(Bucket="plain", Key="s3")) == ("AES256", None)
    assert read("plain", "s3") == DATA
    assert read("plain", "c", **own) == DATA
    assert code(s3.get_object, Bucket="plain", Key="k", **own) == (400, "InvalidRequest")
    rules = {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]}
    s3.put_bucket_encryption(Bucket="plain", ServerSideEncryptionConfiguration=rules)
    assert kind(s3.put_object(Bucket="plain", Key="default", Body=DATA)) == ("AES256", None)
    assert s3.get_bucket_encryption(Bucket="plain")
    s3.create_bucket(Bucket="usual")
    assert kind(s3.copy_object(Bucket="usual", Key="copy", CopySource="plain/k")) == ("AES256", None)
    s3.delete_bucket_encryption(Bucket="plain")


def copy_into_the_clear():
    copied = s3.copy_object(Bucket="plain", Key="copy", CopySource="usual/copy")
    assert "ServerSideEncryption" not in copied
    assert read("plain", "copy") == DATA


def put_and_begin_upload(bucket, key):
    """Prints the number of the upload."""
    s3.put_object(Bucket=bucket, Key=key, Body=DATA)
    print(s3.create_multipart_upload(Bucket=bucket, Key="parts")["UploadId"])


def sealing_is_on_again(upload_id):
    """For new objects and parts, as soon as the gateway follows."""
    follows(lambda: kind(s3.put_object(Bucket="plain", Key="small", Body=b"x")) == ("AES256", None))
    assert kind(s3.put_object(Bucket="plain", Key="after", Body=DATA)) == ("AES256", None)
    assert read("plain", "before") == DATA
    copied = s3.copy_object(Bucket="plain", Key="before", CopySource="plain/before")
    assert copied["ServerSideEncryption"] == "AES256"
    refused = code(s3.upload_part, Bucket="plain", Key="parts", UploadId=upload_id, PartNumber=1, Body=DATA)
    assert refused == (400, "InvalidRequest"), refused


def no_object_is_taken():
    """Neither a small one, which would be in the index, nor a large one."""
    follows(lambda: code(s3.put_object, Bucket="bucket", Key="small", Body=b"x")[0] == 500)
    assert code(s3.put_object, Bucket="bucket", Key="k", Body=DATA)[0] == 500


def put_small():
    s3.put_object(Bucket="plain", Key="k", Body=PATTERN)
    source = {"CopySource": "plain/k", "ServerSideEncryption": "AES256"}
    assert s3.copy_object(Bucket="plain", Key="sealed", **source)["ServerSideEncryption"] == "AES256"
    s3.copy_object(Bucket="plain", Key="copy", CopySource="plain/sealed")
    for key in ("k", "sealed", "copy"):
        got = s3.get_object(Bucket="plain", Key=key, Range="bytes=5-9")
        assert got["Body"].read() == PATTERN[5:10] and ("ServerSideEncryption" in got) == (key == "sealed"), key


def delete_what_is_in_clear():
    for key in ("k", "copy"):
        s3.delete_object(Bucket="plain", Key=key)


def sealed_is_refused():
    assert code(s3.get_object, Bucket="plain", Key="sealed") == (500, "InternalError")


def forged_is_refused(upload_id):
    assert code(s3.get_object, Bucket="bucket", Key="k") == (500, "InternalError")
    part = code(s3.upload_part, Bucket="bucket", Key="parts", UploadId=upload_id, PartNumber=1, Body=DATA)
    assert part == (400, "InvalidRequest"), part
    assert s3.put_object(Bucket="bucket", Key="k", Body=DATA)["ServerSideEncryption"] == "AES256"
    assert read("bucket", "k") == DATA


run_step(globals())
