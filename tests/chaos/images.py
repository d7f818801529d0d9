"""Writers of images over NBD, which take snapshots of them."""

import struct

from lib.nbd import NbdError
from lib.waiting import CommandFailed
from writers import Writer

BLOCK = 4096
BLOCKS = 2048
SNAPSHOTS_MAX = 4


class ImageWriter(Writer):
    """Writes, trims and reads blocks of one image. Of each block it is known what may be there: the number of the write
    that was acknowledged last, and of those whose outcome is unknown; 0 is zeros."""

    def __init__(self, name, seed, cluster):
        super().__init__(name, seed)
        self.cluster, self.connection, self.number = cluster, None, 0
        self.may_be = [{0} for _ in range(BLOCKS)]
        # Name to what the blocks may be; those that may be removed.
        self.snapshots, self.doomed = {}, set()

    def content(self, block, number):
        if number == 0:
            return bytes(BLOCK)
        stamp = struct.pack(">8s16sQQ", b"AtollXOS", self.name.encode(), block, number)
        return (stamp * (BLOCK // len(stamp) + 1))[:BLOCK]

    def turn(self):
        try:
            if not self.connection:
                self.connection = self.cluster.nbd(self.name, timeout=60)
            what = self.rng.choices((self.write, self.read, self.erase, self.snapshot), (10, 8, 2, 0.03))[0]
            what()
        except NbdError as error:
            # A refusal leaves open what of a write has happened.
            self.counts[f"NBD error {error.number}"] += 1
            self.stopping.wait(0.1)
        except OSError as error:
            self.counts[type(error).__name__] += 1
            self.disconnect()
            self.stopping.wait(0.2)

    def disconnect(self):
        if self.connection:
            self.connection.close()
        self.connection = None

    def some_blocks(self, most):
        first = self.rng.randrange(BLOCKS)
        return range(first, min(BLOCKS, first + self.rng.randint(1, most)))

    def change(self, blocks, number, send):
        before = [self.may_be[block] for block in blocks]
        for block, may_be in zip(blocks, before):
            self.may_be[block] = may_be | {number}
        send()
        for block in blocks:
            self.may_be[block] = {number}
        self.acked("writes")

    def write(self):
        self.number += 1
        number, blocks = self.number, self.some_blocks(16)
        data = b"".join(self.content(block, number) for block in blocks)
        fua = self.rng.random() < 0.1
        self.change(blocks, number, lambda: self.connection.write(blocks[0] * BLOCK, data, fua=fua))

    def erase(self):
        blocks = self.some_blocks(64)
        send = self.connection.trim if self.rng.random() < 0.5 else self.connection.zero
        self.change(blocks, 0, lambda: send(blocks[0] * BLOCK, len(blocks) * BLOCK))

    def read(self):
        blocks = self.some_blocks(32)
        found = self.connection.read(blocks[0] * BLOCK, len(blocks) * BLOCK)
        self.judge(found, blocks, self.may_be, "under load")
        self.acked("reads")

    def judge(self, found, blocks, may_be, when):
        for place, block in enumerate(blocks):
            one = found[place * BLOCK : (place + 1) * BLOCK]
            if not any(one == self.content(block, number) for number in may_be[block]):
                stamp = struct.unpack(">8s16sQQ", one[:40])
                self.wrong(f"block {block} {when} is {stamp}, may be {sorted(may_be[block])}")

    def snapshot(self):
        """Of an image about which nothing is in flight: what it has now is what may be in the snapshot."""
        if len(self.snapshots) >= SNAPSHOTS_MAX:
            doomed = self.rng.choice(list(self.snapshots))
            self.doomed.add(doomed)
            self.cluster.cli("image", "snap", "rm", f"{self.name}@{doomed}", ok=None, timeout=120)
            del self.snapshots[doomed]
            return
        self.number += 1
        name = f"s{self.number}"
        try:
            self.cluster.cli("image", "snap", "create", f"{self.name}@{name}", timeout=120)
        except CommandFailed:
            self.counts["snapshots failed"] += 1
            return
        self.snapshots[name] = list(self.may_be)
        self.acked("snapshots")

    def compare(self, export, may_be, when):
        with self.cluster.nbd(export, timeout=90) as connection:
            for first in range(0, BLOCKS, 256):
                try:
                    found = connection.read(first * BLOCK, 256 * BLOCK)
                except NbdError as error:
                    self.wrong(f"{export} {when} cannot be read: {error}")
                else:
                    self.judge(found, range(first, first + 256), may_be, when)

    def check(self, _, when):
        """Compares the image and its snapshots."""
        self.disconnect()
        self.compare(self.name, self.may_be, when)
        for name, may_be in self.snapshots.items():
            self.compare(f"{self.name}@{name}", may_be, f"in snapshot {name} {when}")
        return BLOCKS * (1 + len(self.snapshots))
