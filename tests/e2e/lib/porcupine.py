"""Checks a history for linearizability against a sequential model, as porcupine (A. Athalye) does: Wing and Gong's
search with Lowe's memoisation. The events are a linked list; an operation that takes effect is lifted out of it; where
one must have been answered and cannot have taken effect, the last choice is taken back. Sets of operations that have
taken effect together with the state are remembered, so that none is tried twice.

An operation without an answer may take effect at any time after its invocation, or never. If somebody has seen what
it wrote, which no other writes, then it has happened before.
"""

import math
from dataclasses import dataclass, replace

# Steps of one search: far more than a history of some thousands of operations takes.
STEPS_MAX = 5_000_000


@dataclass(frozen=True)
class Operation:
    kind: str
    input: object
    output: object  # None where there was no answer.
    invoked: float
    responded: float = math.inf
    client: str = ""

    def __str__(self):
        end = "open" if self.responded == math.inf else f"{self.responded:.4f}"
        return f"{self.invoked:.4f} .. {end} {self.client} {self.kind} {self.input} -> {self.output}"


class Undecided(Exception):
    """The search has taken too many steps."""


class Node:
    """An invocation or a response in the list of those that are left."""

    def __init__(self, index, time, is_call):
        self.index, self.time, self.is_call = index, time, is_call
        self.before = self.after = self.response = None


def violation(history, step, initial=None):
    """Why a history is not linearizable, or None if it is. `step(state, operation)` gives the state that follows, in a
    tuple, or None where the operation cannot have had this outcome in this state."""
    history = limited(history)
    # What may never have happened is left out first: few histories need it, and each doubles the choices.
    sure = [operation for operation in history if operation.responded < math.inf]
    found = search(sure, step, initial)
    return search(history, step, initial) if found and len(sure) < len(history) else found


def limited(history):
    """The history, with a limit for those operations without an answer whose value was seen."""
    seen = {}
    for operation in history:
        value = observed(operation)
        if value is not None:
            seen[value] = min(operation.responded, seen.get(value, math.inf))
    return [
        replace(operation, responded=max(operation.invoked, seen.get(written(operation), math.inf)))
        if operation.responded == math.inf
        else operation
        for operation in history
    ]


def observed(operation):
    """The value that an operation has found."""
    if operation.responded == math.inf:
        return None
    if operation.kind == "swap" and operation.output:
        return operation.input[0]
    return operation.output if operation.kind == "read" else None


def written(operation):
    return operation.input[1] if operation.kind == "swap" else operation.input


def search(history, step, initial):
    head, taken, done, state = linked(history), [], 0, initial
    seen, best, steps = set(), [], 0
    node = head.after
    while node is not None:
        steps += 1
        if steps > STEPS_MAX:
            raise Undecided(f"{len(history)} operations, {len(seen)} configurations")
        if node.is_call:
            following = step(state, history[node.index])
            if following is not None:
                configuration = (done | 1 << node.index, following[0])
                if configuration not in seen:
                    seen.add(configuration)
                    taken.append((node, state))
                    done, state = configuration
                    lift(node)
                    node = head.after
                    continue
            node = node.after
            continue
        if node.time == math.inf:
            # All that were answered have taken effect.
            return None
        if len(taken) >= len(best):
            best = [entry.index for entry, _ in taken]
            stuck = node.index
        if not taken:
            return explained(history, best, stuck, step, initial)
        node, state = taken.pop()
        done &= ~(1 << node.index)
        put_back(node)
        node = node.after
    return None


def linked(history):
    """The events in the order of time; at one time invocations are first, which refuses less."""
    events = []
    for index, operation in enumerate(history):
        call, response = Node(index, operation.invoked, True), Node(index, operation.responded, False)
        call.response = response
        events += [call, response]
    head = last = Node(-1, -math.inf, True)
    for node in sorted(events, key=lambda node: (node.time, not node.is_call)):
        last.after, node.before = node, last
        last = node
    return head


def lift(call):
    for node in (call, call.response):
        node.before.after = node.after
        if node.after is not None:
            node.after.before = node.before


def put_back(call):
    for node in (call.response, call):
        node.before.after = node
        if node.after is not None:
            node.after.before = node


def explained(history, order, stuck, step, initial):
    """The longest order that was found, and what does not fit in it."""
    state = initial
    for index in order:
        state = step(state, history[index])[0]
    bad = history[stuck]
    lines = [f"no order explains: {bad}", f"in the longest order the state before it is {state}, after:"]
    lines += [f"  {history[index]}" for index in order[-12:]]
    around = [one for one in history if one.responded > bad.invoked and one.invoked < bad.responded and one is not bad]
    return "\n".join([*lines, "at the same time:", *(f"  {one}" for one in around[:24])])


def register(state, operation):
    """A register with conditions: read, write (None removes the value), and swap, whose input is what it expects and
    what it writes, and whose output says whether it did."""
    if operation.kind == "write":
        return (operation.input,)
    if operation.kind == "read":
        return (state,) if operation.output == state else None
    expected, value = operation.input
    if operation.output is None:
        return (value if state == expected else state,)
    if operation.output != (state == expected):
        return None
    return (value if operation.output else state,)
