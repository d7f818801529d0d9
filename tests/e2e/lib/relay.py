"""Somebody between a client and an OSD who changes, repeats, leaves out, cuts and exchanges frames."""

import contextlib
import socket
import struct
import threading

from lib import shared_rings

FLAG_LAST_OF_KEY, FLAG_PAYLOAD_UNCHECKED = 2, 4
TAG = 16
OTHER = {"to": "from", "from": "to"}
ATTACKS = [
    "flags",
    "length",
    "control",
    "tag",
    "payload",
    "payload tag",
    "repeat",
    "leave out",
    "exchange",
    "shorten",
    "cut",
]
# What ends a connection, with its way. Data that OSDs send to who opens its seals has no check: only that changes.
ENDS = [(way, attack) for way in OTHER for attack in ATTACKS if way == "to" or not attack.startswith("payload")]


class Relay:
    """Carries connections to one OSD frame by frame, and does to a frame what it was told to do. The OSD is at an
    address of TCP, or listens under a name on this host, for Unix sockets or for shared memory; so does the relay."""

    def __init__(self, address, shares_memory=False):
        self.shares_memory = shares_memory
        self.address, self.connections, self.attack, self.done = address, 0, None, None
        self.lock = threading.Lock()
        self.rekeyed = {"to": 0, "from": 0}
        if isinstance(address, str):
            self.name = f"relay-of-{address}"
            self.listener = shared_rings.listen(self.name) if shares_memory else unix_listener(self.name)
        else:
            self.listener = socket.create_server(("127.0.0.1", 0))
            self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            client = self.listener.accept()[0]
            if self.shares_memory:
                client = shared_rings.accept(client)
            elif not isinstance(self.address, str):
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                osd = self._reach_osd()
            except OSError:
                client.close()
                continue
            osd.settimeout(None)
            self.connections += 1
            state = {"ended_by": None}
            for sockets, way in (((client, osd), "to"), ((osd, client), "from")):
                threading.Thread(target=self._carry, args=[*sockets, way, state], daemon=True).start()

    def _reach_osd(self):
        if self.shares_memory:
            return shared_rings.connect(self.address)
        if isinstance(self.address, str):
            osd = socket.socket(socket.AF_UNIX)
            osd.connect(f"\0{self.address}")
            return osd
        osd = socket.create_connection(self.address, timeout=5)
        osd.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return osd

    def _carry(self, source, sink, way, state):
        """One way of a connection."""
        with contextlib.suppress(OSError):
            self._pass_on(source, sink, way, state)
        state["ended_by"] = state["ended_by"] or way
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _pass_on(self, source, sink, way, state):
        """What goes one way, until that ends or is cut."""
        greeting = take(source, 8) if way == "to" else b""
        length = take(source, 2)
        sink.sendall(greeting + length + take(source, int.from_bytes(length, "big")))
        held = b""
        while True:
            frame, control, payload, is_checked = self._next(source, way)
            kind = "payload" if is_checked else "sealed payload"
            what = self._attack(way, kind if payload else "", state) if not held else None
            if what == "exchange":
                held = frame
                continue
            try:
                sink.sendall((changed(frame, control, what) if what else frame) + held)
            except OSError:
                state["ended_by"] = state["ended_by"] or OTHER[way]
                raise
            held = b""
            if what == "cut":
                break

    def _next(self, source, way):
        """A frame, the lengths of its control part and its payload, and whether that has a check."""
        header = take(source, 16)
        control, payload, flags, _ = struct.unpack("<IIII", header)
        self.rekeyed[way] += bool(flags & FLAG_LAST_OF_KEY)
        is_checked = not flags & FLAG_PAYLOAD_UNCHECKED
        rest = payload + TAG * is_checked if payload else 0
        return header + take(source, control + TAG + rest), control, payload, is_checked

    def _fits(self, attack, kind):
        """Whether that can be done to a frame with a payload of this kind."""
        return "payload" not in attack or kind and attack.startswith(kind)

    def _attack(self, way, kind, state):
        """What is to be done to what goes by, if anything."""
        with self.lock:
            if not self.attack or self.attack[0] != way or not self._fits(self.attack[1], kind):
                return None
            what, self.attack, self.done = self.attack[1], None, state
            return what


def unix_listener(name):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{name}")
    listener.listen()
    return listener


def take(source, length):
    data = b""
    while len(data) < length:
        part = source.recv(length - len(data))
        if not part:
            raise ConnectionError("it ended")
        data += part
    return data


def changed(frame, control, what):
    def flipped(place, bit=1):
        return frame[:place] + bytes([frame[place] ^ bit]) + frame[place + 1 :]

    return {
        "flags": lambda: flipped(8, FLAG_LAST_OF_KEY),
        "length": lambda: flipped(0, 4),
        "control": lambda: flipped(16 + control // 2),
        "tag": lambda: flipped(16 + control + TAG - 1),
        "payload": lambda: flipped(16 + control + TAG + 5),
        "sealed payload": lambda: flipped(16 + control + TAG + 5),
        "payload tag": lambda: flipped(len(frame) - 1),
        "repeat": lambda: frame + frame,
        "leave out": lambda: b"",
        "shorten": lambda: frame[:-1],
        "cut": lambda: frame[: len(frame) // 2],
    }[what]()
