"""The checker of conditional registers: what it must refuse, and small random histories against brute force."""

import itertools
import math
import random

import pytest
from lib.porcupine import Operation, register, violation


def write(value, invoked, responded=math.inf):
    return Operation("write", value, True if responded < math.inf else None, invoked, responded)


def read(value, invoked, responded):
    return Operation("read", None, value, invoked, responded)


def swap(expected, value, done, invoked, responded=math.inf):
    return Operation("swap", (expected, value), done, invoked, responded)


def brute_force(history):
    """Whether any order of any choice of the open operations is a right one."""
    sure = [operation for operation in history if operation.responded < math.inf]
    unsure = [operation for operation in history if operation.responded == math.inf]
    choices = (chosen for count in range(len(unsure) + 1) for chosen in itertools.combinations(unsure, count))
    return any(is_right(order) for chosen in choices for order in itertools.permutations([*sure, *chosen]))


def is_right(order):
    state, latest = None, -math.inf
    for operation in order:
        latest = max(latest, operation.invoked)
        following = register(state, operation)
        if operation.responded < latest or following is None:
            return False
        state = following[0]
    return True


REFUSED = {
    "a stale read": [write("a", 0, 1), write("b", 2, 3), read("a", 4, 5)],
    "a lost write": [write("a", 0, 1), read(None, 2, 3)],
    "a write that is seen and gone": [write("a", 0, 1), write("b", 2), read("b", 3, 4), read("a", 5, 6)],
    "two swaps of one value": [write("a", 0, 1), swap("a", "b", True, 2, 9), swap("a", "c", True, 2, 9)],
    "a swap of what was not there": [write("a", 0, 1), swap("b", "c", True, 2, 3)],
    "a swap that was refused and is read": [
        write("a", 0, 1),
        swap("x", "b", False, 2, 3),
        read("b", 4, 5),
    ],
    "a swap refused though all is as it expects": [write("a", 0, 1), swap("a", "b", False, 2, 3)],
    "a swap that was done twice": [
        write("a", 0, 1),
        swap("a", "b", True, 2, 3),
        write("a", 4, 5),
        read("b", 6, 7),
    ],
    "a removed value that comes back": [write("a", 0, 1), write(None, 2, 3), read("a", 4, 5)],
}
ACCEPTED = {
    "an open swap that happens late": [
        write("a", 0, 1),
        swap("a", "b", None, 2),
        read("a", 3, 4),
        read("b", 5, 6),
    ],
    "an open swap that never happens": [write("a", 0, 1), swap("a", "b", None, 2), swap("a", "c", True, 3, 4)],
    "an open write that only a refusal shows": [
        write("a", 0, 1),
        write("b", 2),
        swap("a", "c", False, 3, 4),
    ],
    "one of two swaps at once": [write("a", 0, 1), swap("a", "b", True, 2, 5), swap("a", "c", False, 2, 5)],
    "a creation": [swap(None, "a", True, 0, 1), swap(None, "b", False, 2, 3), write(None, 4, 5), read(None, 6, 7)],
}


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused(name):
    assert violation(REFUSED[name], register) is not None
    assert not brute_force(REFUSED[name])


@pytest.mark.parametrize("name", ACCEPTED)
def test_is_accepted(name):
    assert violation(ACCEPTED[name], register) is None
    assert brute_force(ACCEPTED[name])


def random_history(rng):
    history = []
    for number in range(rng.randint(3, 6)):
        invoked = rng.randrange(12)
        responded = math.inf if rng.random() < 0.2 else invoked + rng.randint(1, 6)
        kind, known = rng.random(), (None, 0, 1, 2)
        if kind < 0.3:
            history.append(write(number, invoked, responded))
        elif kind < 0.7:
            outcome = None if responded == math.inf else rng.random() < 0.5
            history.append(swap(rng.choice(known), number, outcome, invoked, responded))
        elif responded < math.inf:
            history.append(read(rng.choice(known), invoked, responded))
    return history


def test_small_random_histories_as_by_brute_force():
    rng, verdicts = random.Random(5), []
    for _ in range(600):
        history = random_history(rng)
        verdicts.append(violation(history, register) is None)
        assert verdicts[-1] == brute_force(history), "\n".join(map(str, history))
    assert min(sum(verdicts), len(verdicts) - sum(verdicts)) > 50, "all much the same"


def real_history(rng, count):
    """Of a real register whose operations overlap with their neighbours; some have no answer."""
    state, now, history = None, 0.0, []
    for number in range(count):
        now += rng.random()
        invoked, responded = now - rng.random() * 3, now + rng.random() * 3
        is_open = rng.random() < 0.03
        kind = rng.random()
        if kind < 0.4:
            history.append(read(state, invoked, responded))
        elif kind < 0.6:
            state = number
            history.append(write(number, invoked, math.inf if is_open else responded))
        else:
            expected = state if rng.random() < 0.7 else number - 10
            is_done = expected == state
            history.append(
                swap(expected, number, None if is_open else is_done, invoked, math.inf if is_open else responded)
            )
            state = number if is_done else state
    return history


def test_long_histories_of_a_real_register_and_one_changed_read():
    rng = random.Random(7)
    for _ in range(20):
        history = real_history(rng, 300)
        assert violation(history, register) is None
        reads = [index for index, operation in enumerate(history) if operation.kind == "read"]
        old = history[reads[-40]].output
        last = history[reads[-1]]
        history[reads[-1]] = read(old, last.invoked, last.responded)
        assert violation(history, register) is not None
