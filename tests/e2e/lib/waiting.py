"""Waiting for a condition with a limit, and what is raised when it does not come true."""

import contextlib
import time


class Failed(AssertionError):
    """Something did not do what it must."""


class CommandFailed(Failed):
    """A command ended with an exit code that it must not end with, or did not end."""


class NotYet(Exception):
    """A condition does not hold yet, and why. Everything else that a condition raises is an error at once."""


@contextlib.contextmanager
def not_yet(*errors):
    """Within a condition: what of these kinds is raised here is to be expected until it holds."""
    try:
        yield
    except errors as error:
        raise NotYet(f"{type(error).__name__}: {error}") from error


def wait_for(what, condition, seconds=60, pause=0.1):
    """The first true value of a condition. It says by a false value, or by NotYet, that it does not hold yet."""
    deadline, last = time.monotonic() + seconds, None
    while True:
        try:
            value = condition()
            if value:
                return value
        except NotYet as error:
            last = error
        if time.monotonic() > deadline:
            raise Failed(f"not after {seconds} s: {what}" + (f"; last: {last}" if last else ""))
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
