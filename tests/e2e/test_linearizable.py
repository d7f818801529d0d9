"""The checker of histories: what it must refuse, and small random histories against brute force."""

import itertools
import math
import random
import unittest
from dataclasses import replace

import pytest
from lib.linearizable import Operation, violation


def write(value, invoked, responded=math.inf):
    return Operation("write", value, invoked, responded)


def read(value, invoked, responded):
    return Operation("read", value, invoked, responded)


def brute_force(history, initial=None):
    """Whether any order of any choice of the open writes is a right one."""
    sure = [operation for operation in history if operation.responded < math.inf]
    unsure = [operation for operation in history if operation.responded == math.inf and operation.kind == "write"]
    for count in range(len(unsure) + 1):
        for chosen in itertools.combinations(unsure, count):
            if any(is_right(order, initial) for order in itertools.permutations(sure + list(chosen))):
                return True
    return False


def is_right(order, value):
    latest = -math.inf
    for operation in order:
        latest = max(latest, operation.invoked)
        if operation.responded < latest or operation.kind == "read" and operation.value != value:
            return False
        value = operation.value
    return True


class Tests(unittest.TestCase):
    def refuses(self, *history):
        assert violation(history) is not None
        assert not brute_force(history)

    def accepts(self, *history):
        assert violation(history) is None
        assert brute_force(history)

    def test_a_stale_read_is_refused(self):
        self.refuses(write("a", 0, 1), write("b", 2, 3), read("a", 4, 5))

    def test_a_lost_write_is_refused(self):
        self.refuses(write("a", 0, 1), read(None, 2, 3))

    def test_a_failed_write_that_was_read_and_then_vanishes_is_refused(self):
        self.refuses(write("a", 0, 1), write("b", 2), read("b", 3, 4), read("a", 5, 6))

    def test_a_value_that_nobody_wrote_is_refused(self):
        self.refuses(write("a", 0, 1), read("b", 2, 3))

    def test_a_value_that_was_read_before_it_was_written_is_refused(self):
        self.refuses(read("a", 0, 1), write("a", 2, 3))

    def test_two_readers_that_see_writes_in_different_orders_are_refused(self):
        self.refuses(write("a", 0, 9), write("b", 0, 9), read("a", 1, 2), read("b", 3, 4), read("a", 5, 6))

    def test_a_write_in_flight_is_not_seen_and_unseen(self):
        self.refuses(write("a", 0, 1), write("b", 2, 9), read("b", 3, 4), read("a", 5, 6))

    def test_a_failed_write_may_happen_late_or_never(self):
        self.accepts(
            write("a", 0, 1), write("b", 2), read("a", 3, 4), write("c", 5, 6), read("c", 6, 7), read("b", 8, 9)
        )
        self.accepts(write("a", 0, 1), write("b", 2), read("a", 3, 4))

    def test_what_is_concurrent_may_be_either_way(self):
        self.accepts(write("a", 0, 5), read(None, 1, 2), read("a", 3, 4))
        self.accepts(write("a", 0, 5), write("b", 0, 5), read("a", 6, 7))
        self.accepts(write("a", 0, 5), write("b", 0, 5), read("b", 6, 7))

    def test_two_writes_of_one_value_cannot_be_checked(self):
        with pytest.raises(ValueError, match="two writes"):
            violation([write("a", 0, 1), write("a", 2, 3)])

    def test_small_random_histories_as_by_brute_force(self):
        rng, verdicts = random.Random(5), []
        for _ in range(400):
            history = []
            for number in range(rng.randint(3, 6)):
                invoked = rng.randrange(12)
                if rng.random() < 0.5:
                    history.append(
                        write(number, invoked, math.inf if rng.random() < 0.2 else invoked + rng.randint(1, 6))
                    )
                else:
                    history.append(read(rng.choice((None, 0, 1, 2)), invoked, invoked + rng.randint(1, 6)))
            verdicts.append(violation(history) is None)
            assert verdicts[-1] == brute_force(history), "\n".join(map(str, history))
        assert min(sum(verdicts), len(verdicts) - sum(verdicts)) > 50, "all much the same"

    def test_a_long_history_of_a_real_register_and_one_changed_read(self):
        rng, value, now, history = random.Random(7), None, 0.0, []
        for number in range(5_000):
            # Operations take effect one after the other, and overlap with some neighbours.
            now += rng.random()
            invoked, responded = now - rng.random() * 3, now + rng.random() * 3
            if rng.random() < 0.3:
                value = number
                history.append(write(value, invoked, math.inf if rng.random() < 0.05 else responded))
            else:
                history.append(read(value, invoked, responded))
        assert violation(history) is None
        last = max(index for index, operation in enumerate(history) if operation.kind == "read")
        history[last] = replace(history[last], value=history[last - 100].value)
        assert violation(history) is not None
