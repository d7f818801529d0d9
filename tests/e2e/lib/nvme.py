"""A small NVMe/TCP initiator, for what the kernel's in the guest does not do: wrong PDUs, single commands, statuses.

One command at a time per queue. CRC-32C is computed here, byte by byte.
"""

import socket
import struct
import uuid

from lib import dhchap

IC_REQ, IC_RESP, H2C_TERM, C2H_TERM, COMMAND, RESPONSE, H2C_DATA, C2H_DATA, R2T = 0, 1, 2, 3, 4, 5, 6, 7, 9
FLUSH, WRITE, READ, COMPARE, WRITE_ZEROES, TRIM = 0, 1, 2, 5, 8, 9
GET_LOG, IDENTIFY, SET_FEATURES, GET_FEATURES, ASYNC_EVENT, KEEP_ALIVE = 2, 6, 9, 0x0A, 0x0C, 0x18
FABRICS, PROPERTY_SET, CONNECT, PROPERTY_GET, AUTH_SEND, AUTH_RECEIVE = 0x7F, 0, 1, 4, 5, 6
MUST_AUTHENTICATE = 1 << 17
DISCOVERY = "nqn.2014-08.org.nvmexpress.discovery"
SUCCESS_FLAG = 8
LBA = 512


def _table():
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
        yield crc


TABLE = list(_table())


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


class NvmeError(Exception):
    """A command ended with this status code type and status code."""

    def __init__(self, status, result, what):
        super().__init__(f"{what}: status {status >> 8 & 7}/{status & 0xFF:#04x}, result {result:#x}")
        self.status, self.result = status & 0x7FF, result


class Terminated(ConnectionError):
    """The target has ended the connection, saying why."""

    def __init__(self, status, information):
        super().__init__(f"terminated with {status}, {information}")
        self.status, self.information = status, information


class Queue:
    """A connection that is a queue of a controller."""

    def __init__(self, address, digests=0, timeout=60, dial=socket.create_connection):
        self.socket = dial(address, timeout)
        self.digests, self.next_id = 0, 0
        self.socket.sendall(struct.pack("<BBBBIHBBI112x", IC_REQ, 0, 128, 0, 128, 0, 0, digests, 0))
        kind, _, body, _ = self.read_pdu()
        assert kind == IC_RESP and body[3] == digests, (kind, body)
        self.digests, self.max_data = digests, struct.unpack("<I", body[4:8])[0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def _take(self, length):
        parts = []
        while length:
            part = self.socket.recv(min(length, 1 << 20))
            if not part:
                raise ConnectionError("the target closed the connection")
            parts.append(part)
            length -= len(part)
        return b"".join(parts)

    def read_pdu(self):
        """Type, flags, the fields behind the common header, and data of the next PDU."""
        head = self._take(8)
        kind, flags, header, offset, total = struct.unpack("<BBBBI", head)
        rest = head + self._take(total - 8)
        if kind == C2H_TERM:
            raise Terminated(*struct.unpack("<HI", rest[8:14]))
        if flags & 1:
            assert struct.unpack("<I", rest[header : header + 4])[0] == crc32c(rest[:header]), "header digest"
        data = b""
        if offset:
            end = total - (4 if flags & 2 else 0)
            data = rest[offset:end]
            assert not flags & 2 or struct.unpack("<I", rest[end:])[0] == crc32c(data), "data digest"
        return kind, flags, rest[8:header], data

    def pdu(self, kind, fields, data=b"", flags=0):
        header = 8 + len(fields)
        start = header + (4 if self.digests & 1 else 0)
        tail = 4 if data and self.digests & 2 else 0
        flags |= self.digests & 1 | (2 if tail else 0)
        pdu = struct.pack("<BBBBI", kind, flags, header, start if data else 0, start + len(data) + tail) + fields
        if self.digests & 1:
            pdu += struct.pack("<I", crc32c(pdu))
        return pdu + data + (struct.pack("<I", crc32c(data)) if tail else b"")

    def sqe(self, opcode, dwords=(), namespace=0, data=b"", expects=0, in_capsule=True, fuse=0):
        """A submission queue entry, and what goes into the capsule. `dwords` are those from number 10 on."""
        self.next_id = (self.next_id + 1) % 0x8000
        length = len(data) or expects
        kind = 1 if data and in_capsule else 0x5A
        pointer = struct.pack("<QI3xB", 0, length, kind)
        dwords = [*dwords, *[0] * (6 - len(dwords))]
        entry = struct.pack("<BBHI16x16s6I", opcode, 0x40 | fuse, self.next_id, namespace, pointer, *dwords)
        return entry, data if in_capsule else b""

    def send(self, *commands):
        self.socket.sendall(b"".join(self.pdu(COMMAND, entry, capsule) for entry, capsule in commands))

    def response(self, data=b""):
        """Data and result of the next command that ends; `data` is sent when the target asks for it."""
        received = b""
        while True:
            kind, flags, fields, part = self.read_pdu()
            if kind == R2T:
                command, tag, offset, length = struct.unpack("<HHII", fields[:12])
                self._send_data(command, tag, offset, data[offset : offset + length])
            elif kind == C2H_DATA:
                received += part
                if flags & SUCCESS_FLAG:
                    return received, 0
            else:
                result, _, _, _, status = struct.unpack("<QHHHH", fields)
                if status >> 1:
                    raise NvmeError(status >> 1, result, "a command")
                return received, result

    def _send_data(self, command, tag, offset, data):
        for start in range(0, len(data), self.max_data):
            part = data[start : start + self.max_data]
            fields = struct.pack("<HHIII", command, tag, offset + start, len(part), 0)
            is_last = start + len(part) == len(data)
            self.socket.sendall(self.pdu(H2C_DATA, fields, part, 4 if is_last else 0))

    def command(self, opcode, dwords=(), data=b"", **options):
        self.send(self.sqe(opcode, dwords, data=data, **options))
        return self.response(data)

    def fabrics(self, kind, tail, data=b"", expects=0):
        """A fabrics command; `tail` is what is behind its SGL."""
        entry, capsule = self.sqe(FABRICS, data=data, expects=expects)
        entry = entry[:4] + bytes([kind]) + entry[5:40] + tail.ljust(24, b"\0")
        self.send((entry, capsule))
        return self.response(data)

    def connect(self, subsystem, host, queue_id=0, controller_id=0xFFFF, size=31, keep_alive_ms=0, host_id=None):
        host_id = host_id or uuid.uuid5(uuid.NAMESPACE_DNS, host).bytes
        data = host_id + struct.pack("<H238x", controller_id)
        data += subsystem.encode().ljust(256, b"\0") + host.encode().ljust(256, b"\0") + bytes(256)
        tail = struct.pack("<HHHBxI", 0, queue_id, size, 0, keep_alive_ms)
        return self.fabrics(CONNECT, tail, data)[1]

    def auth_send(self, message):
        self.fabrics(AUTH_SEND, struct.pack("<xBBBI", 1, 1, 0xE9, len(message)), message)

    def auth_receive(self, length=4096):
        return self.fabrics(AUTH_RECEIVE, struct.pack("<xBBBI", 1, 1, 0xE9, length), expects=length)[0]

    def join(self, subsystem, host, queue_id=0, controller_id=0xFFFF, keep_alive_ms=0, secrets=None):
        """Connects, and proves what the target wants proved with (host's secret, controller's secret or None)."""
        result = self.connect(subsystem, host, queue_id, controller_id, keep_alive_ms=keep_alive_ms)
        if result & MUST_AUTHENTICATE and secrets:
            dhchap.authenticate(self.auth_send, self.auth_receive, host, subsystem, *secrets)
        return result & 0xFFFF


class Controller:
    """A controller of a subsystem, with one I/O queue unless it is the discovery controller."""

    def __init__(
        self,
        address,
        subsystem,
        host,
        digests=0,
        timeout=60,
        keep_alive_ms=0,
        secrets=None,
        dial=socket.create_connection,
    ):
        self.address = address
        self.admin, self.io = Queue(address, digests, timeout, dial), None
        try:
            self.id = self.admin.join(subsystem, host, keep_alive_ms=keep_alive_ms, secrets=secrets)
            self.set_property(0x14, 0x460001)
            assert self.get_property(0x1C) == 1, "the controller is not ready"
            if subsystem != DISCOVERY:
                self.admin.command(SET_FEATURES, (7, 0x3_0003))
                self.io = Queue(address, digests, timeout, dial)
                self.io.join(subsystem, host, 1, self.id, secrets=secrets)
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for queue in filter(None, (self.io, self.admin)):
            queue.close()

    def get_property(self, offset, size=0):
        return self.admin.fabrics(PROPERTY_GET, struct.pack("<B3xI", size, offset))[1]

    def set_property(self, offset, value):
        self.admin.fabrics(PROPERTY_SET, struct.pack("<B3xIQ", 0, offset, value))

    def identify(self, structure, namespace=0):
        return self.admin.command(IDENTIFY, (structure,), namespace=namespace, expects=4096)[0]

    def log(self, page, length, offset=0):
        dwords = (page | (length // 4 - 1 & 0xFFFF) << 16, length // 4 - 1 >> 16, offset, 0)
        return self.admin.command(GET_LOG, dwords, namespace=0xFFFFFFFF, expects=length)[0]

    @property
    def size(self):
        return struct.unpack("<Q", self.identify(0, 1)[:8])[0] * LBA

    def _range(self, opcode, offset, length, extra=0, **options):
        dwords = (offset // LBA & 0xFFFFFFFF, offset // LBA >> 32, length // LBA - 1 | extra)
        return self.io.command(opcode, dwords, namespace=1, **options)

    def read(self, offset, length):
        return self._range(READ, offset, length, expects=length)[0]

    def write(self, offset, data, in_capsule=None):
        in_capsule = len(data) <= 32768 if in_capsule is None else in_capsule
        self._range(WRITE, offset, len(data), data=data, in_capsule=in_capsule)

    def compare(self, offset, data):
        self._range(COMPARE, offset, len(data), data=data)

    def zero(self, offset, length):
        self._range(WRITE_ZEROES, offset, length, 1 << 25)

    def trim_entry(self, *ranges):
        data = b"".join(struct.pack("<IIQ", 0, length // LBA, offset // LBA) for offset, length in ranges)
        return self.io.sqe(TRIM, (len(ranges) - 1, 4), 1, data)

    def trim(self, *ranges):
        self.io.send(self.trim_entry(*ranges))
        self.io.response()

    def flush(self):
        self.io.command(FLUSH, namespace=1)

    def compare_and_write(self, offset, expected, data):
        """The statuses of both commands."""
        dwords = (offset // LBA & 0xFFFFFFFF, offset // LBA >> 32, len(data) // LBA - 1)
        first = self.io.sqe(COMPARE, dwords, 1, expected, fuse=1)
        self.io.send(first, self.io.sqe(WRITE, dwords, 1, data, fuse=2))
        statuses = []
        for _ in range(2):
            try:
                self.io.response()
                statuses.append(0)
            except NvmeError as error:
                statuses.append(error.status)
        return statuses


def host_name(digit):
    """The name of a host, by a digit that makes it another than others."""
    return f"nqn.2014-08.org.nvmexpress:uuid:{digit * 8}-0000-4000-8000-000000000000"


def serving_cluster(scenario, address, images, size, **options):
    """A cluster that serves images over NVMe/TCP at an address: their names, with the hosts that may use each."""
    cluster = scenario.cluster(**options)
    cluster.options += ["--nvme-listen", f"{address[0]}:{address[1]}"]
    cluster.up()
    for name, hosts in images.items():
        cluster.create_image(name, size)
        if hosts:
            cluster.cli("image", "access", name, *(f"--allow={host}" for host in hosts))
    return cluster


def subsystems(cluster):
    """Gives the subsystem of an image."""
    cluster_id = cluster.json("status")["cluster_id"]
    return lambda image: f"nqn.2026-11.io.atoll:{cluster_id}:{image}"


def status_of(call, *arguments, **options):
    """The status by which a call is refused."""
    try:
        call(*arguments, **options)
    except NvmeError as error:
        return error.status
    raise AssertionError("nothing is refused")


def discovery_records(address, host, **options):
    """The entries of the discovery log."""
    with Controller(address, DISCOVERY, host, **options) as controller:
        count = struct.unpack("<Q", controller.log(0x70, 16)[8:])[0]
        records = controller.log(0x70, 1024 * (1 + count))[1024:]
    return [records[start : start + 1024] for start in range(0, len(records), 1024)]


def discover(address, host, secrets=None):
    """The names of subsystems, and where they are."""
    text = lambda field: field.rstrip(b"\0 ").decode()
    found = discovery_records(address, host, secrets=secrets)
    return [(text(one[256:512]), (text(one[512:768]), int(text(one[32:64])))) for one in found]
