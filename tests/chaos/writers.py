"""What writers have in common: a thread, what it did, and what was not as it must be."""

import collections
import random
import threading
import time
import traceback

from botocore.exceptions import BotoCoreError, ClientError, EndpointConnectionError

REFUSED, DONE, UNKNOWN = "refused", "done", "unknown"
NO_SPACE = 507


class Writer:
    """A thread that does one thing after the other. `turn` does one; `check` compares at the end all that was
    acknowledged."""

    def __init__(self, name, seed):
        self.name, self.rng = name, random.Random(f"{seed}/{name}")
        self.counts, self.problems, self.error = collections.Counter(), [], None
        self.acked_at, self.slowest = time.monotonic(), 0
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.run, name=name, daemon=True)

    def run(self):
        try:
            while not self.stopping.is_set():
                self.turn()
        except Exception:
            # A writer that ends is a defect of this program, or an answer that nobody expected: the run fails.
            self.error = traceback.format_exc()

    def acked(self, what):
        now = time.monotonic()
        self.slowest = max(self.slowest, now - self.acked_at)
        self.acked_at = now
        self.counts[what] += 1

    def wrong(self, text):
        self.problems.append(f"{self.name}: {text}")


def request(writer, call, **arguments):
    """Sends a request of S3 once. Returns its outcome, and its answer or the status of the refusal. What a server says
    of itself (5xx), and silence, leave open whether it happened; that there is no room (507) is a refusal, and so is
    that nobody listens."""
    try:
        answer = call(**arguments)
        if "Body" in answer:
            answer["Content"] = answer["Body"].read()
        return DONE, answer
    except ClientError as error:
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        writer.counts[f"status {status}"] += 1
        if status >= 500:
            writer.stopping.wait(0.05)
        return (REFUSED, status) if status < 500 or status == NO_SPACE else (UNKNOWN, status)
    except EndpointConnectionError:
        writer.counts["nobody listens"] += 1
        writer.stopping.wait(0.1)
        return REFUSED, None
    except (BotoCoreError, OSError) as error:
        writer.counts[type(error).__name__] += 1
        return UNKNOWN, None


def patiently(writer, call, **arguments):
    """The same at the end, when everything serves: until there is an answer."""
    for _ in range(60):
        outcome, answer = request(writer, call, **arguments)
        if outcome == DONE or (outcome == REFUSED and answer not in (None, NO_SPACE)):
            return outcome, answer
        time.sleep(1)
    raise TimeoutError(f"{writer.name}: no answer to {arguments} in a cluster that is well")
