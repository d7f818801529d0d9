"""Registers that clients on several hosts read and write at once, every invocation and response recorded:
small objects through the gateways of all hosts, and blocks of one image through whichever host has it."""

import collections
import math
import random
import threading
import time
from dataclasses import dataclass

from botocore.exceptions import BotoCoreError, ClientError

from lib.linearizable import Operation, violation
from lib.nbd import Nbd, NbdError
from lib.net import enter

# The gateway gives up after 30 s, the NBD server after 10 minutes: its clients lose patience before.
GATEWAY_SECONDS_MAX = 45
BLOCK_SECONDS_MAX = 6
# Those that only read do not wait for what a fault holds up, but go on with the next register: so they
# read from whoever still answers.
READER_SECONDS_MAX = 0.4
BLOCK_BYTES = 4096


class WrongBytes(Exception):
    """What was read is nothing that anybody wrote as a whole."""


class Client:
    """A thread on a host that reads and writes registers chosen at random. `outcomes` are what it does:
    a list of [kind, register, value, invoked, responded, error]."""

    def __init__(self, name, host, registers, pause_seconds, seed):
        self.name, self.host, self.registers, self.pause_seconds = name, host, registers, pause_seconds
        self.rng, self.kinds = random.Random(f"{seed}/{name}"), ("read", "write")
        self.outcomes, self.wrong, self.stop = [], [], threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        enter(self.host.namespace)
        number = 0
        while not self.stop.wait(self.rng.random() * 2 * self.pause_seconds):
            register, kind = self.rng.choice(self.registers), self.rng.choice(self.kinds)
            number += 1
            value = f"{self.name}-{number}" if kind == "write" else None
            outcome = [kind, register, value, time.monotonic(), math.inf, None]
            self.outcomes.append(outcome)
            try:
                if kind == "write":
                    self.write(register, value)
                else:
                    outcome[2] = self.read(register)
                outcome[4] = time.monotonic()
            except WrongBytes as error:
                self.wrong.append(f"{self.name} read {register}: {error}")
            except (BotoCoreError, ClientError, OSError, NbdError) as error:
                outcome[5] = (time.monotonic(), f"{type(error).__name__}: {error}")

    def answered_at(self):
        """When it was last answered."""
        return next((outcome[4] for outcome in reversed(self.outcomes) if outcome[4] < math.inf), 0)


class ObjectClient(Client):
    """Through the gateway of its own host."""

    def __init__(self, *arguments, bucket, s3):
        super().__init__(*arguments)
        self.bucket, self.s3 = bucket, s3

    def body(self, register, value):
        # Every third register is too large to be kept in the bucket's index.
        return encoded(value, 40_000 if int(register) % 3 == 0 else 400)

    def write(self, register, value):
        self.s3.put_object(Bucket=self.bucket, Key=f"register-{register}", Body=self.body(register, value))

    def read(self, register):
        try:
            found = self.s3.get_object(Bucket=self.bucket, Key=f"register-{register}")["Body"].read()
        except ClientError as error:
            if error.response["Error"]["Code"] == "NoSuchKey":
                return None
            raise
        return decoded(found)


class BlockClient(Client):
    """Through any host: with the next one if one does not answer, or says that another has the image."""

    def __init__(self, *arguments, image, hosts):
        super().__init__(*arguments)
        # The first of the hosts is the one in use, or to be tried next.
        self.image, self.hosts, self.connection = image, collections.deque(hosts), None

    def request(self, function):
        try:
            if not self.connection:
                self.connection = Nbd((self.hosts[0].address, 10809), self.image, timeout=BLOCK_SECONDS_MAX)
            return function(self.connection)
        except (OSError, NbdError):
            if self.connection:
                self.connection.close()
            self.connection = None
            self.hosts.rotate(-1)
            raise

    def write(self, register, value):
        self.request(lambda connection: connection.write(int(register) * BLOCK_BYTES, encoded(value, BLOCK_BYTES)))

    def read(self, register):
        found = self.request(lambda connection: connection.read(int(register) * BLOCK_BYTES, BLOCK_BYTES))
        return None if found == bytes(BLOCK_BYTES) else decoded(found)


def encoded(value, length):
    line = value.encode() + b"\n"
    return (line * (length // len(line) + 1))[:length]


def decoded(found):
    value = found.split(b"\n", 1)[0].decode(errors="replace")
    if found != encoded(value, len(found)) or not found:
        raise WrongBytes(f"{len(found)} bytes that are no whole value: {found[:60]}")
    return value


class Registers:
    """All clients, and what they saw."""

    def __init__(
        self, hosts, bucket, image, seed, objects=10, blocks=10, object_clients_per_host=2, pause_seconds=0.06
    ):
        keys, places = [[str(number) for number in range(count)] for count in (objects, blocks)]
        self.objects = [
            ObjectClient(
                f"{host.name}.{number}",
                host,
                keys,
                pause_seconds,
                seed,
                bucket=bucket,
                s3=host.s3(read_timeout=GATEWAY_SECONDS_MAX),
            )
            for host in hosts
            for number in range(object_clients_per_host)
        ]
        self.blocks = [
            BlockClient(f"{host.name}.nbd", host, places, pause_seconds / 2, seed, image=image, hosts=hosts)
            for host in hosts
        ]
        self.readers = [
            ObjectClient(
                f"{host.name}.reader",
                host,
                keys,
                pause_seconds / 2,
                seed,
                bucket=bucket,
                s3=host.s3(read_timeout=READER_SECONDS_MAX, connect_timeout=READER_SECONDS_MAX),
            )
            for host in hosts
        ]
        for reader in self.readers:
            reader.kinds = ("read",)
        self.clients = self.objects + self.readers + self.blocks

    def start(self):
        for client in self.clients:
            client.thread.start()
        return self

    def finish(self, seconds=60):
        """Stops all; returns whether no operation hangs."""
        for client in self.clients:
            client.stop.set()
        for client in self.clients:
            client.thread.join(seconds)
        return not any(client.thread.is_alive() for client in self.clients)

    def wrong(self):
        return [text for client in self.clients for text in client.wrong]

    def counts(self):
        """How many operations were answered, and how many not."""
        outcomes = [outcome for client in self.clients for outcome in client.outcomes]
        answered = sum(outcome[4] < math.inf for outcome in outcomes)
        return answered, len(outcomes) - answered

    def violations(self):
        """The registers whose histories no order explains, and why."""
        found = []
        for what, clients in (("object", self.objects + self.readers), ("block", self.blocks)):
            histories = collections.defaultdict(list)
            for client in clients:
                for kind, register, value, invoked, responded, _ in client.outcomes:
                    histories[register].append(Operation(kind, value, invoked, responded, client.name))
            for register, history in sorted(histories.items()):
                why = violation(history)
                if why:
                    found.append(f"{what} {register}: {why}")
        return found


@dataclass(frozen=True)
class Stall:
    seconds: float = 0
    client: str = "nobody"
    kind: str = "waited"
    began: float = 0  # Seconds after the time from which it was looked for.

    def __str__(self):
        return f"{self.seconds:.2f} s ({self.client} {self.kind} at {self.began:+.1f} s)"


def longest(clients, since, until):
    """The longest time that one operation took of those that were under way between."""
    took = [
        Stall(end - invoked, client.name, kind, invoked - since)
        for client in clients
        for kind, _, _, invoked, responded, error in list(client.outcomes)
        for end in [min(error[0] if error else responded, until)]
        if invoked < until and end > since
    ]
    return max(took, key=lambda stall: stall.seconds, default=Stall())


def failures(clients, since, until):
    """The errors that clients got between."""
    return [
        f"{client.name} {kind}: {error[1]}"
        for client in clients
        for kind, _, _, _, _, error in list(client.outcomes)
        if error and since <= error[0] <= until
    ]
