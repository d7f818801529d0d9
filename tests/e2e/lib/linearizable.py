"""Checks the history of one register for linearizability: is there an order of all operations in which
each lies between its invocation and its response, and every read returns what was written last?

Wing and Gong's search, done just in time as Lowe has it: the events are walked in the order of time, and
a set of configurations is kept, each a value that the register may have now and those operations in
flight that have taken effect already. When an operation responds, only the configurations stay in which
it has taken effect. Configurations that are equal are one, so nothing is tried twice, and where nothing
is in flight a configuration is a value.
"""

import math
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
    events = sorted(
        (time, is_response, index)
        for index, operation in enumerate(operations)
        for is_response, time in ((False, operation.invoked), (True, operation.responded))
    )
    in_flight, configurations = {}, {(initial, frozenset())}
    for _, is_response, index in events:
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
    limited = (
        operation
        if operation.kind == "read" or operation.responded < math.inf
        else replace(operation, responded=max(operation.invoked, first_read.get(operation.value, math.inf)))
        for operation in history
    )
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
        to_do += (
            (operation.value, done | {other} | reads.get(operation.value, set()))
            for other, operation in in_flight.items()
            if operation.kind == "write" and other not in done
        )
    return found


def explained(operations, index, configurations):
    bad = operations[index]
    values = sorted({str(value) for value, _ in configurations})
    around = sorted(
        (
            operation
            for operation in operations
            if operation.responded > bad.invoked - 1
            and operation.invoked <= bad.responded
            or operation.value == bad.value
        ),
        key=lambda operation: operation.invoked,
    )
    return "\n".join(
        [
            f"no order explains: {bad}",
            f"before it was answered the value could be {', '.join(values)}, or what was in flight:",
            *(f"  {operation}" for operation in around[-40:]),
        ]
    )
