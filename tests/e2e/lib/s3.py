"""Uploads over S3 that remember exactly which were acked."""

import hashlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from botocore.exceptions import BotoCoreError, ClientError

from lib.verdicts import intact


def digest(data):
    return hashlib.sha256(data).hexdigest()


class Uploader:
    """Threads that PUT objects; every ack is recorded as it comes in, and so is every upload whose
    fate is open, because it failed or was interrupted."""

    def __init__(self, s3, bucket, threads=8):
        self.s3, self.bucket, self.thread_count = s3, bucket, threads
        self.acked = {}  # key -> SHA-256 of what was acked last
        self.open_ended = {}  # key -> SHA-256s of what may be there instead
        self.errors = []
        self.stopping = False
        self.lock = threading.Lock()
        self.ack_times = []
        self.threads = []

    def put(self, key, body):
        sha = digest(body)
        with self.lock:
            self.open_ended.setdefault(key, set()).add(sha)
        try:
            self.s3.put_object(Bucket=self.bucket, Key=key, Body=body)
        except (BotoCoreError, ClientError, OSError) as error:
            with self.lock:
                self.errors.append(f"PUT {key}: {error}")
            return False
        with self.lock:
            self.acked[key] = sha
            # One writer per key: what was acked is what is there.
            self.open_ended[key] = set()
            self.ack_times.append(time.monotonic())
        return True

    def start(self, items):
        """`items` yields (key, function that returns the body); it may be endless."""
        items, turn = iter(items), threading.Lock()

        def work():
            while not self.stopping:
                with turn:
                    item = next(items, None)
                if item is None:
                    return
                key, body = item
                self.put(key, body())

        self.threads = [threading.Thread(target=work, daemon=True) for _ in range(self.thread_count)]
        for thread in self.threads:
            thread.start()
        return self

    def wait(self, seconds=300):
        for thread in self.threads:
            thread.join(seconds)
        return not any(thread.is_alive() for thread in self.threads)

    def stop(self, seconds=120):
        self.stopping = True
        return self.wait(seconds)

    def problems(self, s3=None, threads=8):
        """Reads everything back and compares: what was acked is there. Returns what could not be read."""
        s3, wrong = s3 or self.s3, []

        def compare(key):
            try:
                sha = digest(s3.get_object(Bucket=self.bucket, Key=key)["Body"].read())
            except ClientError as error:
                code = error.response["Error"]["Code"]
                if code not in ("NoSuchKey", "NoSuchBucket"):
                    return f"{key}: {code}"
                if key in self.acked:
                    wrong.append(f"{key}: {code} though its PUT was acked")
                return None
            except (BotoCoreError, OSError) as error:
                return f"{key}: {error}"
            if sha != self.acked.get(key) and sha not in self.open_ended.get(key, ()):
                wrong.append(f"{key}: other bytes than were sent")
            return None

        keys = sorted(self.acked.keys() | self.open_ended.keys())
        with ThreadPoolExecutor(threads) as pool:
            unread = [problem for problem in pool.map(compare, keys) if problem]
        intact(not wrong, f"{len(wrong)} of {len(keys)}, such as\n" + "\n".join(wrong[:10]))
        return unread


def list_keys(s3, bucket, prefix=""):
    keys = []
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        keys += [entry["Key"] for entry in page.get("Contents", [])]
    return keys


def error_of(call, *arguments, **named):
    """HTTP status and code of an S3 error; None if there is none."""
    try:
        call(*arguments, **named)
    except ClientError as error:
        return error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Code"]
    return None


def read(s3, bucket, key):
    return s3.get_object(Bucket=bucket, Key=key)["Body"].read()
