"""Steps of faults.rs: what the gateway does when things go wrong, and what it leaves in the cluster."""

import os
import socket
import time
import urllib.parse

from prelude import *  # noqa: F403
from prelude import code, read, run_step, s3, together


def upload_one_part(key, body):
    one = {"Bucket": "bucket", "Key": key}
    one["UploadId"] = s3.create_multipart_upload(**one)["UploadId"]
    etag = s3.upload_part(**one, PartNumber=1, Body=body)["ETag"]
    return one, {"Parts": [{"PartNumber": 1, "ETag": etag}]}


def put_canaries():
    canary = b"CANARY-OF-PLAIN-DATA" * 300_000
    s3.put_object(Bucket="bucket", Key="small", Body=canary[:1_000])
    s3.put_object(Bucket="bucket", Key="single", Body=canary)
    s3.copy_object(Bucket="bucket", Key="copy", CopySource="bucket/single")
    one, parts = upload_one_part("parts", canary)
    s3.complete_multipart_upload(**one, MultipartUpload=parts)
    assert read("bucket", "parts") == canary


def put_data_times(times, status, error):
    answer = code(s3.put_object, Bucket="bucket", Key="k", Body=b"data" * int(times))
    assert answer == (int(status), error), answer


def put_times(content, times):
    s3.put_object(Bucket="bucket", Key="k", Body=content.encode() * int(times))


def a_get_is_cut():
    """Damage behind what was already sent cuts the connection."""
    try:
        read("bucket", "k")
    except Exception as error:  # Which one depends on the version of boto3.
        print("cut:", type(error).__name__)
    else:
        raise AssertionError("damaged data was delivered")
    read("bucket", "k", Range="bytes=0-99")


def begin_upload(length):
    url = urllib.parse.urlparse(s3.generate_presigned_url("put_object", {"Bucket": "bucket", "Key": "k"}))
    connection = socket.create_connection((url.hostname, url.port))
    head = f"PUT {url.path}?{url.query} HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Length: {length}\r\n\r\n"
    connection.sendall(head.encode())
    connection.sendall(bytes(9 << 20))
    return connection


def break_uploads_off():
    begin_upload(20 << 20).close()
    answer = begin_upload(20 << 20).recv(100_000)
    assert b"RequestTimeout" in answer, answer
    assert code(s3.head_object, Bucket="bucket", Key="k")[0] == 404


def make_garbage():
    s3.create_bucket(Bucket="bucket")
    for number in range(30):
        s3.put_object(Bucket="bucket", Key=f"k{number}", Body=bytes(100_000))
        s3.put_object(Bucket="bucket", Key=f"k{number}", Body=bytes(5 << 20))
    for number in range(10):
        s3.delete_object(Bucket="bucket", Key=f"k{number}")
    one, _ = upload_one_part("u", b"1")
    s3.upload_part(**one, PartNumber=1, Body=b"2")
    s3.abort_multipart_upload(**one)


def others_are_there():
    for number in range(10, 30):
        assert read("bucket", f"k{number}") == bytes(5 << 20)
    s3.delete_object(Bucket="bucket", Key="k10")


def race_writes_and_a_deletion():
    print({race(turn) for turn in range(25)})


def race(turn):
    name = f"race-{turn}"
    s3.create_bucket(Bucket=name)
    put_one = lambda: code(s3.put_object, Bucket=name, Key=os.urandom(8).hex(), Body=b"x")

    def delete_bucket():
        time.sleep(turn * 0.002)
        return code(s3.delete_bucket, Bucket=name)

    deleted, *puts = together(delete_bucket, put_one, put_one, put_one)
    done = [result for result in puts if result[0] == 200]
    if deleted[0] in (200, 204):
        assert not done, (deleted, puts)
        assert all(result[1] == "NoSuchBucket" for result in puts), puts
    else:
        assert deleted[1] == "BucketNotEmpty", deleted
        assert s3.list_objects_v2(Bucket=name)["KeyCount"] == len(done)
        assert put_one()[0] == 200
    return deleted[1], len(done) > 0


def is_read_slowly(content, times, seconds):
    """An object holds these characters, for a client that takes so long."""
    body = s3.get_object(Bucket="bucket", Key="k")["Body"]
    first = body.read(1_000)
    time.sleep(float(seconds))
    assert first + body.read() == content.encode() * int(times)


def begin_upload_of_one_part():
    one, parts = upload_one_part("u", b"1")
    print(one["UploadId"], parts["Parts"][0]["ETag"])


def complete_upload(upload_id, etag):
    parts = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
    s3.complete_multipart_upload(Bucket="bucket", Key="u", UploadId=upload_id, MultipartUpload=parts)
    assert read("bucket", "u") == b"1"


def abort_upload(upload_id, etag):
    s3.abort_multipart_upload(Bucket="bucket", Key="u", UploadId=upload_id)


def begin_multipart_upload():
    upload_one_part("u", b"1")


def put_answers(status, error=""):
    answer = code(s3.put_object, Bucket="bucket", Key="k", Body=b"")
    assert answer == (int(status), error), answer


def race_completions_and_aborts():
    for turn in range(25):
        key = f"k{turn}"
        one, parts = upload_one_part(key, b"data")
        complete = lambda one=one, parts=parts: code(s3.complete_multipart_upload, **one, MultipartUpload=parts)
        abort = lambda one=one: code(s3.abort_multipart_upload, **one)
        add = lambda one=one: code(s3.upload_part, **one, PartNumber=1, Body=b"other")
        completed, again, aborted, added = together(complete, complete, abort, add)
        is_there = code(s3.head_object, Bucket="bucket", Key=key)[0] == 200
        if is_there:
            body = read("bucket", key)
            assert aborted[0] != 204 and body == b"data", (completed, aborted, body)
        assert not (completed[0] == 200 and not is_there), (completed, again, aborted, added)


def abort_and_delete_all():
    for page in s3.list_multipart_uploads(Bucket="bucket").get("Uploads", []):
        s3.abort_multipart_upload(Bucket="bucket", Key=page["Key"], UploadId=page["UploadId"])
    for entry in s3.list_objects_v2(Bucket="bucket").get("Contents", []):
        assert read("bucket", entry["Key"]) == b"data"
        s3.delete_object(Bucket="bucket", Key=entry["Key"])


def work_at_once():
    s3.create_bucket(Bucket="bucket")
    assert all(together(*[lambda number=number: work(number) for number in range(16)]))


def work(number):
    one = {"Bucket": "bucket", "Key": f"k{number}"}
    for size in (1, 1_024, 9 << 20, 1_023):
        data = os.urandom(size)
        s3.put_object(**one, Body=data)
        s3.copy_object(Bucket="bucket", Key=f"c{number}", CopySource=one)
        assert read("bucket", f"c{number}") == data
    return True


run_step(globals())
