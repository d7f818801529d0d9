"""Waiting: only NotYet and false values are waited out."""

import pytest
from lib.verdicts import DataFailure
from lib.waiting import CommandFailed, Failed, NotYet, not_yet, wait_for


def raises(error, then=True):
    """A condition that raises once and then has a value."""
    errors = [error]

    def condition():
        if errors:
            raise errors.pop()
        return then

    return condition


def test_what_a_condition_says_is_not_yet_is_waited_out():
    assert wait_for("it comes", raises(NotYet("a moment"), "here"), 5, 0) == "here"
    values = [None, 0, "", 7]
    assert wait_for("it comes", lambda: values.pop(0), 5, 0) == 7


@pytest.mark.parametrize(
    "error",
    [AssertionError, ValueError, KeyError, OSError, ConnectionRefusedError, CommandFailed, DataFailure, RuntimeError],
)
def test_everything_else_is_an_error_at_once(error):
    with pytest.raises(error, match="at once"):
        wait_for("it comes", raises(error("at once")), 5, 0)


def test_the_last_reason_is_told():
    def never():
        raise NotYet("2 of 3")

    with pytest.raises(Failed, match="not after 0 s: all are up; last: 2 of 3"):
        wait_for("all are up", never, 0)


def test_only_the_kinds_that_are_named_are_not_yet():
    with pytest.raises(NotYet, match="ConnectionRefusedError: no"), not_yet(OSError):
        raise ConnectionRefusedError("no")
    with pytest.raises(ValueError, match="other"), not_yet(OSError):
        raise ValueError("other")
    with pytest.raises(DataFailure, match="lost"), not_yet(Failed, OSError):
        raise DataFailure("lost")
