"""What is no conversation: beginnings as each port knows them, cut and changed, and noise."""

import os
import socket
import struct

from lib import handshake
from lib.nbd import OPTION_GO, OPTION_MAGIC, REQUEST_MAGIC

MIB = 1 << 20


def send(address, data, ending="close", answer_seconds=1.0):
    """Sends bytes over a new connection and ends it in some way; returns the first bytes of the answer."""
    with socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET) as connection:
        connection.settimeout(5)
        answer = b""
        try:
            connection.connect(address)
            connection.sendall(data)
            if ending == "half-close":
                connection.shutdown(socket.SHUT_WR)
            if ending == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif ending != "close":
                connection.settimeout(answer_seconds)
                answer = connection.recv(65536)
        except OSError:
            pass
        return answer


HELLO = struct.pack(">I", 3)
EXPORT = (
    struct.pack(">QII", OPTION_MAGIC, OPTION_GO, 4 + 5 + 2) + struct.pack(">I", 5) + b"plain" + struct.pack(">H", 0)
)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def request(kind, offset, length, data=b"", flags=0):
    return struct.pack(">IHHQQI", REQUEST_MAGIC, flags, kind, 7, offset, length) + data


def frame(kind, flags, stream, data):
    return struct.pack(">I", len(data))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + data


SETTINGS = frame(4, 0, 0, b"")
# Of NVMe/TCP: a connection is wanted.
IC_REQUEST = struct.pack("<BBBBIHBBI112x", 0, 0, 128, 0, 128, 0, 0, 0, 0)
# Beginnings of conversations as each port knows them, to be cut and changed.
NBD = [
    HELLO + EXPORT + request(0, 0, 4096) + request(2, 0, 0),
    HELLO + EXPORT + request(6, 0, 4096, b"", 0xFFFF),
    HELLO + EXPORT + request(0, 0, 0xFFFFFFFF),
    HELLO + EXPORT + request(77, 0, 0),
    HELLO + EXPORT + request(0, 1 << 63, 1 << 31),
    HELLO + EXPORT + request(1, 8 * MIB, 0xFFFFFFFF, b"z" * 70_000),
    HELLO + struct.pack(">QII", OPTION_MAGIC, 7, 0xFFFFFFFF),
    HELLO + struct.pack(">QII", OPTION_MAGIC, 3, 0) * 500,
    HELLO + struct.pack(">QII", OPTION_MAGIC, 10, 4 + 5 + 4) + struct.pack(">I5sI", 5, b"plain", 0xFFFFFFFF),
    struct.pack(">I", 0xFFFFFFFF),
    HELLO + struct.pack(">QII", OPTION_MAGIC, 5, 0) + b"\x16\x03\x01\x02\x00\x01",
]
HTTP1 = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"PUT /b/k HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"PUT /b/k HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nshort",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"PUT /b/k HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFF\r\nabc",
    b"PUT /b/k HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET /%00%ff%2e%2e%2f HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000 + b"\r\n",
    b"POST /b?delete HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n<Delete><Object><Key",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(300),
]
HTTP2 = [
    PREFACE + SETTINGS,
    PREFACE + SETTINGS + frame(1, 4, 1, b"\x82\x86\x84" + bytes(40)),
    PREFACE + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",
    PREFACE + SETTINGS + frame(6, 0, 0, bytes(8)) * 2000,
    PREFACE
    + SETTINGS
    + b"".join(frame(1, 4, 2 * i + 1, b"\x82") + frame(3, 0, 2 * i + 1, bytes(4)) for i in range(1000)),
    PREFACE + frame(4, 0, 0, struct.pack(">HI", 4, 0xFFFFFFFF)) + frame(8, 0, 0, b"\x7f\xff\xff\xff") * 3,
]
ATOLL = [
    handshake.GREETING,
    handshake.GREETING + b"\xff\xff" + bytes(600),
    handshake.GREETING + b"\x00\x61" + os.urandom(97),
    handshake.GREETING + b"\x00\x00" * 4,
    b"ATOLL\0\0\x01" + bytes(200),
    handshake.GREETING + b"\x02\x00" + os.urandom(512),
    handshake.GREETING[:3],
]
# Of a client's first record: its head, and that with a part of what it promises.
TLS = [b"\x16\x03\x01\x02\x00", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100)]
EVERY = [b"\0", b"\n", bytes(100_000), b"\xff" * 70_000]
NVME = [
    IC_REQUEST,
    IC_REQUEST + struct.pack("<BBBBI", 4, 0, 72, 0, 72) + b"\x7f\0\0\0\1" + bytes(59),
    IC_REQUEST + struct.pack("<BBBBI", 4, 0, 72, 0, 0xFFFFFFFF) + bytes(64),
    IC_REQUEST + struct.pack("<BBBBIHHII", 6, 0, 24, 24, 1 << 30, 1, 1, 0, 1 << 30),
    struct.pack("<BBBBI", 0, 0, 255, 0, 0xFFFFFFFF) + bytes(120),
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(300),
]
OF_PORTS = {
    "nbd": NBD,
    "gateway": HTTP1,
    "cluster-state": HTTP2 + HTTP1[:3],
    "admin": TLS + HTTP1[:3],
    "admin-socket": HTTP1,
    "nvme": NVME,
}


def seeds(name):
    return EVERY + (ATOLL if name.startswith("osd") else OF_PORTS[name])


def changed(data, rng):
    data = bytearray(data)
    for _ in range(rng.randrange(1, 9)):
        if data:
            data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


# Conversations that are sent byte by byte.
DRIPS = {
    "gateway": b"GET / HTTP/1.1\r\nHost: x\r\nx-a: " + b"a" * 1000,
    "nbd": HELLO + struct.pack(">QII", OPTION_MAGIC, 7, 300),
    "cluster-state": PREFACE + bytes(100),
    "admin": b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc" + bytes(1000),
}
DRIP = handshake.GREETING + b"\x00\x61" + bytes(97)


class Drip:
    """A connection that sends a byte now and then, until it is cut off."""

    def __init__(self, data, connection):
        self.data, self.connection, self.sent, self.is_over = data, connection, 0, False

    def send_a_byte(self):
        if self.is_over:
            return
        try:
            self.connection.send(self.data[self.sent % len(self.data) :][:1])
            self.sent += 1
        except OSError:
            self.is_over = True
