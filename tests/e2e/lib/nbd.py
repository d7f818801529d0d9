"""A small NBD client.

One request at a time per connection, simple replies only: qemu-io, libnbd and fio try the rest.
"""

import contextlib
import os
import socket
import struct
import time

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

    def send(self, kind, offset, length, data=b"", flags=0):
        """Sends a request without waiting for its reply."""
        self.cookie += 1
        self.socket.sendall(struct.pack(">IHHQQI", REQUEST_MAGIC, flags, kind, self.cookie, offset, length) + data)

    def request(self, kind, offset, length, data=b"", flags=0):
        self.send(kind, offset, length, data, flags)
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

    def abort(self):
        """Ends the connection as if the client had been killed."""
        self.socket.close()

    def close(self):
        with contextlib.suppress(OSError):
            self.socket.sendall(struct.pack(">IHHQQI", REQUEST_MAGIC, 0, DISCONNECT, 0, 0, 0))
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
