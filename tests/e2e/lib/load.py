"""Loads that know exactly what was acked."""

import random
import struct
import threading
import time

from lib.nbd import NbdError, connect_patiently
from lib.s3 import Uploader, list_keys
from lib.verdicts import intact
from lib.waiting import wait_for

MIB = 1 << 20


class CountedLoad:
    """Threads that make one thing after the other, each for keys of its own, within a `with`. Of each key it is known
    which number was begun last and which was acknowledged last. Number 0 is nothing."""

    def __init__(self, keys, threads):
        self.begun, self.acked = dict.fromkeys(keys, 0), dict.fromkeys(keys, 0)
        self.errors, self.ack_times, self.stopping = [], [], False
        self.threads = [threading.Thread(target=self._run, args=[index], daemon=True) for index in range(threads)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopping = True
        for thread in self.threads:
            thread.join(120)

    def ack(self, key, number):
        self.acked[key] = number
        self.ack_times.append(time.monotonic())


def longest_pause(times):
    """The longest time between two acknowledgements, in seconds."""
    times = sorted(times)
    return max((later - earlier for earlier, later in zip(times, times[1:])), default=0)


class BlockLoad:
    """Threads that write to an image, each to blocks of its own and over a connection of its own, and
    read some back. For every block it is known what may be read: what was acked last, or anything
    whose fate is open since then. Few blocks, so that they are overwritten often."""

    def __init__(
        self, connect, first_block=0, threads=4, blocks_per_thread=256, block_bytes=4096, seed=1, read_share=0.2
    ):
        self.connect, self.block_bytes, self.seed, self.read_share = connect, block_bytes, seed, read_share
        self.first_block, self.blocks_per_thread, self.thread_count = first_block, blocks_per_thread, threads
        self.may_be = {}  # block -> list of sequence numbers; 0 is never written
        self.acked = self.reads = self.errors = self.open_ended = 0
        self.error_texts, self.wrong = [], []
        self.slowest = []  # (start, seconds) of slow operations
        self.ack_times = []
        self.stopping = False
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self._run, args=[index], daemon=True) for index in range(threads)]

    def content(self, block, sequence):
        if sequence == 0:
            return bytes(self.block_bytes)
        stamp = struct.pack(">8sQQQ", b"AtollE2E", self.seed, block, sequence)
        return stamp * (self.block_bytes // len(stamp))

    def start(self):
        for thread in self.threads:
            thread.start()
        return self

    def stop(self, seconds=120):
        self.stopping = True
        for thread in self.threads:
            thread.join(seconds)
        self.no_wrong_byte()
        return not any(thread.is_alive() for thread in self.threads)

    def no_wrong_byte(self):
        intact(not self.wrong, f"{len(self.wrong)} wrong reads:\n" + "\n".join(self.wrong[:5]))

    def _run(self, index):
        rng = random.Random(f"{self.seed}/{index}")
        first = self.first_block + index * self.blocks_per_thread
        connection, sequence = None, 0
        while not self.stopping:
            try:
                connection = connection or connect_patiently(self.connect, 120, lambda: self.stopping)
            except (OSError, NbdError) as error:
                if not self.stopping:
                    self._say(f"cannot connect: {error}")
                return
            block = first + rng.randrange(self.blocks_per_thread)
            before, is_read = time.monotonic(), rng.random() < self.read_share
            try:
                if is_read:
                    found = connection.read(block * self.block_bytes, self.block_bytes)
                    self._judge(block, found, "under load")
                else:
                    sequence += 1
                    self.may_be.setdefault(block, [0]).append(sequence)
                    connection.write(block * self.block_bytes, self.content(block, sequence))
                    self.may_be[block] = [sequence]
            except (OSError, NbdError) as error:
                with self.lock:
                    self.errors += isinstance(error, NbdError)
                    self.open_ended += not is_read
                    self.error_texts.append(str(error))
                if not isinstance(error, NbdError):
                    connection.close()
                    connection = None
                continue
            now = time.monotonic()
            with self.lock:
                self.reads += is_read
                self.acked += not is_read
                if not is_read:
                    self.ack_times.append(now)
                if now - before > 0.2:
                    self.slowest.append((before, now - before))
        if connection:
            connection.close()

    def _say(self, text):
        with self.lock:
            self.error_texts.append(text)

    def _judge(self, block, found, when):
        candidates = self.may_be.get(block, [0])
        if found not in (self.content(block, sequence) for sequence in candidates):
            stamp = struct.unpack(">8sQQQ", found[:32])
            mixed = "" if found == found[:32] * (self.block_bytes // 32) else ", mixed"
            self.wrong.append(
                f"block {block} {when}: found (mark, seed, block, sequence) {stamp}{mixed}, may be {candidates}"
            )
        else:
            # It has been seen: from now on it is this.
            self.may_be[block] = (
                [s for s in candidates if self.content(block, s) == found] if when == "at rest" else candidates
            )

    def verify(self, connection):
        """Reads all blocks that were ever written, each of which must be as it was acked; returns how many."""
        for block in sorted(self.may_be):
            self._judge(block, connection.read(block * self.block_bytes, self.block_bytes), "at rest")
        self.no_wrong_byte()
        return len(self.may_be)

    def longest_silence(self, since, until=None):
        """Longest time without any ack after `since`, in seconds."""
        until = until or time.monotonic()
        with self.lock:
            times = [since] + [t for t in self.ack_times if since <= t <= until] + [until]
        return max(later - earlier for earlier, later in zip(times, times[1:]))

    def first_silence(self, since):
        """Seconds without acks in the stall that follows an event at `since`: the longest gap that
        begins within two seconds of it."""
        with self.lock:
            times = sorted(t for t in self.ack_times if t >= since - 1)
        times = [t for t in times if t < since][-1:] + [t for t in times if t >= since]
        gaps = [b - a for a, b in zip(times, times[1:]) if a < since + 2]
        return max(gaps, default=time.monotonic() - since)


class BlockAndObjectLoad:
    """Blocks over NBD and objects over S3 at once, every ack recorded."""

    def __init__(self, cluster):
        self.blocks = BlockLoad(
            lambda: cluster.nbd("load", timeout=90), threads=4, blocks_per_thread=400, seed=77
        ).start()
        s3 = cluster.s3(read_timeout=90)
        s3.create_bucket(Bucket="load")
        self.objects = Uploader(s3, "load", threads=2)
        rng = random.Random(23)
        noise = rng.randbytes(6 * MIB)

        def items():
            number = 0
            while True:
                number += 1
                size, start = rng.choice((100, 4096, 65536, 300_000, 5 * MIB)), rng.randrange(MIB)
                # One thread per key: keys do not repeat within the number of threads.
                yield (
                    f"k{number % 500:03}",
                    lambda start=start, size=size, number=number: (
                        number.to_bytes(8, "big") + noise[start : start + size]
                    ),
                )

        self.objects.start(items())

    def progress(self):
        return self.blocks.acked, len(self.objects.ack_times)

    def goes_on(self, writes=200, objects=5, seconds=60):
        """Waits until both kinds of writes are acked again."""
        blocks, puts = self.progress()
        try:
            wait_for(
                "writes go on",
                lambda: self.blocks.acked >= blocks + writes and len(self.objects.ack_times) >= puts + objects,
                seconds,
            )
        except Exception as error:
            since = f"{self.blocks.acked - blocks} block writes and {len(self.objects.ack_times) - puts} PUTs since"
            last = f"last errors {self.blocks.error_texts[-2:]} {self.objects.errors[-2:]}"
            raise type(error)(f"{error}; {since}; {last}") from None

    def put_stall(self, since):
        times = sorted(list(self.objects.ack_times))
        times = [t for t in times if t < since][-1:] + [t for t in times if t >= since]
        return max((b - a for a, b in zip(times, times[1:]) if a < since + 2), default=0)

    def no_wrong_byte(self):
        self.blocks.no_wrong_byte()

    def stalls(self, since):
        return f"NBD writes stalled {self.blocks.first_silence(since):.2f} s, PUTs {self.put_stall(since):.2f} s"

    def counts(self):
        blocks, objects = self.blocks, self.objects
        acked = f"{blocks.acked} block writes, {blocks.reads} reads, {len(objects.ack_times)} PUTs acked"
        return f"{acked}; {blocks.open_ended} + {len(objects.errors)} failed"

    def no_error(self):
        errors = self.blocks.error_texts + self.objects.errors
        assert not errors, f"{len(errors)} errors, such as\n" + "\n".join(errors[:5])

    def finish(self):
        """Ends the load; no thread hangs."""
        assert self.objects.stop(120) & self.blocks.stop(120), "a thread hangs"

    def check_blocks(self, cluster):
        """Every acked block write is there, no byte is wrong; returns how many blocks there are."""
        with connect_patiently(lambda: cluster.nbd("load")) as connection:
            return self.blocks.verify(connection)

    def check_objects(self, cluster):
        """Every acked object is there and listed, no byte is wrong; returns how many there are."""
        s3 = cluster.s3(attempts=3)
        problems = self.objects.problems(s3)
        assert not problems, f"{len(problems)}:\n" + "\n".join(problems[:5])
        missing = self.objects.acked.keys() - set(list_keys(s3, "load"))
        intact(not missing, f"not in the listing: {sorted(missing)[:5]}")
        return len(self.objects.acked)
