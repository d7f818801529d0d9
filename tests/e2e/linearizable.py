#!/usr/bin/env python3
"""Checks the history of one register for linearizability: is there an order of all operations in which
each lies between its invocation and its response, and every read returns what was written last?

Wing and Gong's search, done just in time as Lowe has it: the events are walked in the order of time, and
a set of configurations is kept, each a value that the register may have now and those operations in
flight that have taken effect already. When an operation responds, only the configurations stay in which
it has taken effect. Configurations that are equal are one, so nothing is tried twice, and where nothing
is in flight a configuration is a value.

    linearizable.py      tries it: what it must refuse, and small random histories against brute force
"""
import itertools, math, random, unittest
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Operation:
    kind: str  # "read" or "write"
    value: object  # What was written or read. No two writes have the same.
    invoked: float
    responded: float = math.inf  # For ever, if the outcome of a write is open: it may happen at any time.
    client: str = ""

    def __str__(self):
        end = "open" if self.responded == math.inf else f"{self.responded:.4f}"
        return f"{self.invoked:.4f} .. {end} {self.client} {self.kind} {self.value}"


def violation(history, initial=None):
    """Why a history is not linearizable, or None if it is."""
    operations = decided(history)
    # At one time invocations are first: then the operations were concurrent, which refuses less.
    events = sorted((time, is_response, index) for index, operation in enumerate(operations)
                    for is_response, time in ((False, operation.invoked), (True, operation.responded)))
    in_flight, configurations = {}, {(initial, frozenset())}
    for time, is_response, index in events:
        if not is_response:
            in_flight[index] = operations[index]
            continue
        before, configurations = configurations, taken_effect(configurations, in_flight, index)
        if not configurations:
            return explained(operations, index, before)
        del in_flight[index]
    return None


def decided(history):
    """The history without what proves nothing: reads without an answer, and writes whose outcome is open
    and whose value nobody has read; these may never have happened. Those that were read must have
    happened before the first such read was answered."""
    written = [operation.value for operation in history if operation.kind == "write"]
    if len(written) != len(set(written)):
        raise ValueError("two writes of the same value")
    first_read = {}
    for operation in history:
        if operation.kind == "read" and operation.responded < math.inf:
            first_read[operation.value] = min(operation.responded, first_read.get(operation.value, math.inf))
    limited = (operation if operation.kind == "read" or operation.responded < math.inf
               else replace(operation, responded=max(operation.invoked, first_read.get(operation.value, math.inf)))
               for operation in history)
    return [operation for operation in limited if operation.responded < math.inf]


def taken_effect(configurations, in_flight, index):
    """The configurations that can follow in which the operation `index` has taken effect, without it.
    Reads of the value that is there take effect at once: that excludes nothing."""
    reads = {}
    for other, operation in in_flight.items():
        if operation.kind == "read":
            reads.setdefault(operation.value, set()).add(other)
    found, seen = set(), set()
    to_do = [(value, done | reads.get(value, set())) for value, done in configurations]
    while to_do:
        value, done = configuration = to_do.pop()
        if configuration in seen:
            continue
        seen.add(configuration)
        if index in done:
            found.add((value, done - {index}))
            continue
        to_do += ((operation.value, done | {other} | reads.get(operation.value, set()))
                  for other, operation in in_flight.items() if operation.kind == "write" and other not in done)
    return found


def explained(operations, index, configurations):
    bad = operations[index]
    values = sorted({str(value) for value, _ in configurations})
    around = sorted((operation for operation in operations
                     if operation.responded > bad.invoked - 1 and operation.invoked <= bad.responded or operation.value == bad.value),
                    key=lambda operation: operation.invoked)
    return "\n".join([f"no order explains: {bad}", f"before it was answered the value could be {', '.join(values)}, or what was in flight:",
                      *(f"  {operation}" for operation in around[-40:])])


# --- what it must refuse, and what not


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
        self.assertIsNotNone(violation(history))
        self.assertFalse(brute_force(history))

    def accepts(self, *history):
        self.assertIsNone(violation(history))
        self.assertTrue(brute_force(history))

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
        self.accepts(write("a", 0, 1), write("b", 2), read("a", 3, 4), write("c", 5, 6), read("c", 6, 7), read("b", 8, 9))
        self.accepts(write("a", 0, 1), write("b", 2), read("a", 3, 4))

    def test_what_is_concurrent_may_be_either_way(self):
        self.accepts(write("a", 0, 5), read(None, 1, 2), read("a", 3, 4))
        self.accepts(write("a", 0, 5), write("b", 0, 5), read("a", 6, 7))
        self.accepts(write("a", 0, 5), write("b", 0, 5), read("b", 6, 7))

    def test_two_writes_of_one_value_cannot_be_checked(self):
        with self.assertRaises(ValueError):
            violation([write("a", 0, 1), write("a", 2, 3)])

    def test_small_random_histories_as_by_brute_force(self):
        rng, verdicts = random.Random(5), []
        for _ in range(400):
            history = []
            for number in range(rng.randint(3, 6)):
                invoked = rng.randrange(12)
                if rng.random() < 0.5:
                    history.append(write(number, invoked, math.inf if rng.random() < 0.2 else invoked + rng.randint(1, 6)))
                else:
                    history.append(read(rng.choice((None, 0, 1, 2)), invoked, invoked + rng.randint(1, 6)))
            verdicts.append(violation(history) is None)
            self.assertEqual(verdicts[-1], brute_force(history), "\n".join(map(str, history)))
        self.assertGreater(min(sum(verdicts), len(verdicts) - sum(verdicts)), 50, "all much the same")

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
        self.assertIsNone(violation(history))
        last = max(index for index, operation in enumerate(history) if operation.kind == "read")
        history[last] = replace(history[last], value=history[last - 100].value)
        self.assertIsNotNone(violation(history))


def self_test():
    """Runs the tests above; returns how many, or what failed."""
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Tests).run(result)
    return result.testsRun, [text for _, text in result.failures + result.errors]


if __name__ == "__main__":
    unittest.main()
