"""What the snippets in the Rust tests begin with."""
import os, socket, sys, threading, time, urllib.parse

import boto3
from botocore.client import Config
from botocore.exceptions import ClientError

s3 = boto3.client(
    "s3", endpoint_url=os.environ["S3_ENDPOINT"], region_name="us-east-1",
    aws_access_key_id=os.environ["S3_ACCESS_KEY"], aws_secret_access_key=os.environ["S3_SECRET_KEY"],
    config=Config(retries={"total_max_attempts": 1}, signature_version="s3v4", s3={"addressing_style": "path"}, max_pool_connections=50))


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
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return results
