"""A small NBD client, and a load on an image that knows exactly what was acked.

One request at a time per connection, simple replies only: qemu-io, libnbd and fio try the rest.
"""
import os, random, socket, struct, threading, time

READ, WRITE, DISCONNECT, FLUSH, TRIM, WRITE_ZEROES = 0, 1, 2, 3, 4, 6
FLAG_FUA = 1
OPTION_MAGIC, REPLY_MAGIC, REQUEST_MAGIC = 0x49484156454F5054, 0x67446698, 0x25609513
OPTION_STARTTLS, OPTION_GO, INFO_EXPORT = 5, 7, 0
ERROR_TLS_REQUIRED = 205
ENOSPC = 28


class NbdError(Exception):
    """The server answered with an error."""

    def __init__(self, number, what):
        super().__init__(f"{what}: NBD error {number} ({os.strerror(number) if number < 200 else 'option refused'})")
        self.number = number


class Nbd:
    def __init__(self, address, export, timeout=60, tls=None):
        """`tls` is an ssl.SSLContext, if TLS is to be used."""
        self.socket = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
        self.socket.settimeout(timeout)
        self.cookie = 0
        try:
            self.socket.connect(address)
            self._greet()
            if tls:
                self.start_tls(tls)
            self._choose(export)
        except BaseException:
            self.socket.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _take(self, length):
        parts = []
        while length:
            part = self.socket.recv(min(length, 1 << 20))
            if not part:
                raise ConnectionError("the server closed the connection")
            parts.append(part)
            length -= len(part)
        return b"".join(parts)

    def _greet(self):
        magic, option_magic, flags = struct.unpack(">8sQH", self._take(18))
        if magic != b"NBDMAGIC" or option_magic != OPTION_MAGIC or flags & 1 == 0:
            raise ConnectionError(f"not a fixed newstyle server: {magic} {flags}")
        self.socket.sendall(struct.pack(">I", 3))

    def _option_replies(self, option, data, what):
        """The replies to an option up to the ACK, which is not among them."""
        self.socket.sendall(struct.pack(">QII", OPTION_MAGIC, option, len(data)) + data)
        while True:
            _magic, _option, kind, length = struct.unpack(">QIII", self._take(20))
            body = self._take(length)
            if kind & (1 << 31):
                raise NbdError(200 + (kind & 0xFF), f"{what} refused: {body.decode(errors='replace')}")
            if kind == 1:
                return
            yield kind, body

    def start_tls(self, context):
        list(self._option_replies(OPTION_STARTTLS, b"", "TLS"))
        self.socket = context.wrap_socket(self.socket, server_hostname="127.0.0.1")

    def _choose(self, export):
        name = export.encode()
        data = struct.pack(">I", len(name)) + name + struct.pack(">H", 0)
        for kind, body in self._option_replies(OPTION_GO, data, f"export '{export}'"):
            if kind == 3 and struct.unpack(">H", body[:2])[0] == INFO_EXPORT:
                self.size, self.flags = struct.unpack(">QH", body[2:12])

    def request(self, kind, offset, length, data=b"", flags=0):
        self.cookie += 1
        self.socket.sendall(struct.pack(">IHHQQI", REQUEST_MAGIC, flags, kind, self.cookie, offset, length) + data)
        magic, error, cookie = struct.unpack(">IIQ", self._take(16))
        if magic != REPLY_MAGIC or cookie != self.cookie:
            raise ConnectionError(f"a reply that does not fit: {magic:#x}, cookie {cookie}")
        if error:
            raise NbdError(error, f"request {kind} at {offset}+{length}")
        return self._take(length) if kind == READ else b""

    def read(self, offset, length):
        return self.request(READ, offset, length)

    def write(self, offset, data, fua=False):
        self.request(WRITE, offset, len(data), data, FLAG_FUA if fua else 0)

    def trim(self, offset, length):
        self.request(TRIM, offset, length)

    def zero(self, offset, length):
        self.request(WRITE_ZEROES, offset, length)

    def flush(self):
        self.request(FLUSH, 0, 0)

    def close(self):
        try:
            self.socket.sendall(struct.pack(">IHHQQI", REQUEST_MAGIC, 0, DISCONNECT, 0, 0, 0))
        except OSError:
            pass
        self.socket.close()


def connect_patiently(connect, seconds=90, stop=lambda: False):
    """A connection, as soon as one can be had."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return connect()
        except (OSError, NbdError):
            if stop() or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


class BlockLoad:
    """Threads that write to an image, each to blocks of its own and over a connection of its own, and
    read some back. For every block it is known what may be read: what was acked last, or anything
    whose fate is open since then. Few blocks, so that they are overwritten often."""

    def __init__(self, connect, first_block=0, threads=4, blocks_per_thread=256, block_bytes=4096, seed=1, read_share=0.2):
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
        return not any(thread.is_alive() for thread in self.threads)

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
            self.wrong.append(f"block {block} {when}: found (mark, seed, block, sequence) {stamp}{mixed}, may be {candidates}")
        else:
            # It has been seen: from now on it is this.
            self.may_be[block] = [s for s in candidates if self.content(block, s) == found] if when == "at rest" else candidates

    def verify(self, connection):
        """Reads all blocks that were ever written; returns how many, or raises nothing: see `wrong`."""
        for block in sorted(self.may_be):
            self._judge(block, connection.read(block * self.block_bytes, self.block_bytes), "at rest")
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
