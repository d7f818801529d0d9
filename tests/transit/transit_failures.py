"""Failures that a test asks the Transit test server for, and the requests that it has counted."""

import collections
import socket
import struct
import threading

STATUSES = {
    "403": "permission denied",
    "429": "request path is rate limited",
    "500": "internal error",
    "502": "bad gateway",
    "503": "service unavailable",
}
TRANSPORT = ("slow", "hang", "reset", "garbage", "truncated")
# States of a server: what `sys/health` answers, and by which parameter clients can ask for another
# status. Other requests are refused by the first two alone; the others forward them.
STATES = {
    "sealed": (503, "sealedcode"),
    "uninitialized": (501, "uninitcode"),
    "standby": (429, "standbycode"),
    "dr_secondary": (472, "drsecondarycode"),
    "performance_standby": (473, "performancestandbycode"),
}
REFUSING_STATES = ("sealed", "uninitialized")
KINDS = ("none", *TRANSPORT, *STATUSES, *STATES)


class Failures:
    """The failure in force, if any."""

    def __init__(self):
        self.condition = threading.Condition()
        self.kind = "none"
        self.seconds = 0
        self.left = None
        self.operations = None

    def set(self, wanted):
        """Takes the body of `POST /_test/failure`; ends the one before, so that what hangs goes on."""
        kind, seconds, count = str(wanted.get("kind")), wanted.get("seconds", 3), wanted.get("count")
        operations = wanted.get("operations")
        if kind not in KINDS:
            raise ValueError(f"no failure is called {kind!r}; there are {', '.join(KINDS)}")
        if not isinstance(seconds, (int, float)) or not 0 <= seconds <= 3600:
            raise ValueError("'seconds' must be a number from 0 to 3600")
        if count is not None and not (isinstance(count, int) and count > 0):
            raise ValueError("'count' must be a whole number above 0, or null for no end")
        if operations is not None and not isinstance(operations, list):
            raise ValueError("'operations' must be a list of names as /_test/requests shows them, or null")
        with self.condition:
            self.kind, self.seconds, self.left, self.operations = kind, seconds, count, operations
            self.condition.notify_all()

    def take(self, operation):
        """The failure that this request meets, and for how many seconds."""
        with self.condition:
            if self.operations is not None and operation not in self.operations:
                return "none", 0
            kind, seconds = self.kind, self.seconds
            if self.left is not None:
                self.left -= 1
                if self.left == 0:
                    self.kind, self.left = "none", None
            return kind, seconds

    def wait(self, seconds=None):
        """Waits that long, or until another failure is set."""
        with self.condition:
            self.condition.wait(seconds)


class Counts:
    """Requests by operation, those that failed among them."""

    def __init__(self):
        self.lock = threading.Lock()
        self.counts = collections.Counter()

    def add(self, operation):
        with self.lock:
            self.counts[operation] += 1

    def all(self):
        with self.lock:
            return {"total": self.counts.total(), "operations": dict(sorted(self.counts.items()))}


def reset(connection):
    """Ends a connection with a TCP reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
