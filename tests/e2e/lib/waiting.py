"""Waiting for a condition with a limit, and what is raised when it does not come true."""

import time


class Failed(AssertionError):
    """Something did not do what it must."""


def wait_for(what, condition, seconds=60, pause=0.1):
    """The first true value of a condition; what it raises meanwhile counts as not yet."""
    deadline, last = time.monotonic() + seconds, None
    while True:
        try:
            value = condition()
            if value:
                return value
        except (AssertionError, OSError, ValueError, KeyError) as error:
            last = error
        if time.monotonic() > deadline:
            raise Failed(f"not after {seconds} s: {what}" + (f"; last error: {last}" if last else ""))
        time.sleep(pause)


def stays(what, condition, seconds, pause=0.1):
    """Fails as soon as a condition no longer holds within so many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not condition():
            raise Failed(f"no longer: {what}")
        time.sleep(pause)


def under_load(seconds):
    """Lets the load that runs in other threads go on for so long: a duration of load, or of a fault under it."""
    time.sleep(seconds)
