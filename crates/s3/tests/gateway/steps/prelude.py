"""What the steps of the Rust tests use: a client of the gateway under test, and how one step is run.

A file of steps has a function for each; `FILE.py STEP [ARGUMENT ...]` runs one. What it prints is what the Rust test
gets, and an exception fails the test.
"""

import os
import sys
import threading

import boto3
from botocore.client import Config
from botocore.exceptions import ClientError

s3 = boto3.client(
    "s3",
    endpoint_url=os.environ["S3_ENDPOINT"],
    region_name="us-east-1",
    aws_access_key_id=os.environ["S3_ACCESS_KEY"],
    aws_secret_access_key=os.environ["S3_SECRET_KEY"],
    config=Config(
        retries={"total_max_attempts": 1},
        signature_version="s3v4",
        s3={"addressing_style": "path"},
        max_pool_connections=50,
    ),
)


def run_step(steps):
    """Runs the step that the command line names."""
    name, *arguments = sys.argv[1:]
    steps[name](*arguments)


def code(call, **arguments):
    """HTTP status and S3 error code of a call, or 200."""
    try:
        call(**arguments)
        return (200, "")
    except ClientError as error:
        return (error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Code"])


def together(*calls):
    """Results of calls made at the same time."""
    results = [None] * len(calls)

    def run(index):
        results[index] = calls[index]()

    threads = [threading.Thread(target=run, args=[index]) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def read(bucket, key, **options):
    """The body of an object."""
    return s3.get_object(Bucket=bucket, Key=key, **options)["Body"].read()


# Steps of several files.


def create_bucket(bucket="bucket"):
    s3.create_bucket(Bucket=bucket)


def put(bucket, key, body):
    """Puts these characters."""
    s3.put_object(Bucket=bucket, Key=key, Body=body.encode())


def put_zeros(bucket, key, length):
    s3.put_object(Bucket=bucket, Key=key, Body=bytes(int(length)))


def put_fails(key, length, status, error):
    """A PUT of so many bytes gets this answer."""
    answer = code(s3.put_object, Bucket="bucket", Key=key, Body=b"x" * int(length))
    assert answer == (int(status), error), answer


def get_fails(key, status, error):
    answer = code(s3.get_object, Bucket="bucket", Key=key)
    assert answer == (int(status), error), answer


def delete(bucket, key):
    s3.delete_object(Bucket=bucket, Key=key)


def body_is(bucket, key, content, times="1"):
    """An object holds these characters, so many times."""
    assert read(bucket, key) == content.encode() * int(times)
