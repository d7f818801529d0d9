"""Conditional registers: small objects that several writers read, write, remove and swap on a condition, through two
gateways. Every history must be linearizable."""

import collections
import itertools
import math
import threading
import time

from lib.porcupine import Operation, Undecided, register, violation
from writers import DONE, REFUSED, Writer, request

# A register is left after so many operations: the search takes more than linear time.
OPERATIONS_MAX = 250
REGISTERS = 4


class Registers:
    """All registers, those that are in use first, and their histories."""

    def __init__(self, bucket):
        self.bucket, self.lock, self.numbers = bucket, threading.Lock(), itertools.count()
        self.histories = collections.defaultdict(list)
        self.used = collections.Counter()
        self.names = [self.new_name() for _ in range(REGISTERS)]

    def new_name(self):
        return f"register-{next(self.numbers)}"

    def choose(self, rng):
        with self.lock:
            place = rng.randrange(REGISTERS)
            if self.used[self.names[place]] >= OPERATIONS_MAX:
                self.names[place] = self.new_name()
            self.used[self.names[place]] += 1
            return self.names[place]

    def add(self, name, operation):
        with self.lock:
            self.histories[name].append(operation)

    def problems(self):
        """The histories that no order explains."""
        found = []
        for name, history in sorted(self.histories.items()):
            try:
                why = violation(history, register)
            except Undecided as error:
                why = f"cannot be decided: {error}"
            if why:
                found.append(f"{self.bucket}/{name}: {why}")
        return found


class RegisterWriter(Writer):
    def __init__(self, name, seed, s3, registers):
        super().__init__(name, seed)
        self.s3, self.registers, self.number = s3, registers, 0
        # Of each register the ETag that was seen last, and the value that it stands for.
        self.seen = {}

    def turn(self):
        name = self.registers.choose(self.rng)
        self.rng.choices((self.read, self.write, self.swap, self.remove), (8, 2, 8, 0.5))[0](name)
        self.stopping.wait(self.rng.random() * 0.02)

    def new_value(self):
        self.number += 1
        value = f"{self.name}-{self.number}"
        # Below and above what is kept in the index of the bucket.
        return value, (value + "\n").encode() * self.rng.choice((1, 3, 400))

    def send(self, name, kind, given, call, **arguments):
        """Sends a request and records it; returns its outcome and its answer."""
        invoked = time.monotonic()
        outcome, answer = request(self, call, Bucket=self.registers.bucket, Key=name, **arguments)
        responded = time.monotonic()
        operation = self.operation(kind, given, outcome, answer, invoked, responded)
        if operation:
            self.registers.add(name, operation)
        if outcome == DONE:
            self.acked("writes" if kind != "read" else "reads")
        return outcome, answer

    def operation(self, kind, given, outcome, answer, invoked, responded):
        """What it has shown; nothing, where it has no outcome and changes nothing, or was refused for another reason
        than its condition."""
        if kind == "read":
            if outcome == DONE:
                return Operation(kind, None, value_of(answer["Content"]), invoked, responded, self.name)
            is_absent = outcome == REFUSED and answer == 404
            return Operation(kind, None, None, invoked, responded, self.name) if is_absent else None
        if outcome == DONE:
            return Operation(kind, given, True, invoked, responded, self.name)
        if outcome == REFUSED:
            # 404 is the answer to a condition on a register that is not there.
            is_condition = kind == "swap" and answer in (404, 412)
            return Operation(kind, given, False, invoked, responded, self.name) if is_condition else None
        return Operation(kind, given, None, invoked, math.inf, self.name)

    def read(self, name):
        outcome, answer = self.send(name, "read", None, self.s3.get_object)
        if outcome == DONE:
            self.seen[name] = (answer["ETag"], value_of(answer["Content"]))
            self.whole(name, answer["Content"])
        elif outcome == REFUSED:
            self.seen[name] = (None, None)

    def whole(self, name, found):
        line = found.split(b"\n", 1)[0] + b"\n"
        if found != line * (len(found) // len(line)):
            self.wrong(f"{name} is no whole value: {found[:60]}")

    def write(self, name):
        value, body = self.new_value()
        outcome, answer = self.send(name, "write", value, self.s3.put_object, Body=body)
        if outcome == DONE:
            self.seen[name] = (answer["ETag"], value)

    def swap(self, name):
        etag, expected = self.seen.get(name, (None, None))
        value, body = self.new_value()
        condition = {"IfMatch": etag} if etag else {"IfNoneMatch": "*"}
        outcome, answer = self.send(name, "swap", (expected, value), self.s3.put_object, Body=body, **condition)
        if outcome == DONE:
            self.seen[name] = (answer["ETag"], value)
        else:
            self.read(name)

    def check(self, s3, _):
        """Reads every register once more, which then has its place in the history."""
        self.s3 = s3
        names = list(self.registers.histories)
        for name in names:
            for _ in range(60):
                outcome, answer = self.send(name, "read", None, self.s3.get_object)
                if outcome == DONE or answer == 404:
                    break
                time.sleep(1)
        return len(names)

    def remove(self, name):
        outcome, _ = self.send(name, "write", None, self.s3.delete_object)
        if outcome == DONE:
            self.seen[name] = (None, None)


def value_of(found):
    return found.split(b"\n", 1)[0].decode(errors="replace")
