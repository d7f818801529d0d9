"""Failures that no second run excuses: a slow machine does not cause them."""


class Final(AssertionError):
    """A failure after which the test is not run again: the run fails."""


class DataFailure(Final):
    """Data that was acknowledged is lost, wrong or corrupt, or is seen as it never was."""


class Panicked(Final):
    """A process of the program has panicked."""


def intact(condition, what):
    """Says of data that it is as it must be. Tests compare with this whatever was acknowledged."""
    if not condition:
        raise DataFailure(str(what)[:20_000])


def is_final(error):
    """Whether an error is a final failure, or came of one, or holds one."""
    seen, to_do = set(), [error]
    while to_do:
        error = to_do.pop()
        if error is None or id(error) in seen:
            continue
        if isinstance(error, Final):
            return True
        seen.add(id(error))
        to_do += [error.__cause__, error.__context__, *getattr(error, "exceptions", ())]
    return False
