"""A connection over shared memory, as a socket that blocks: its two rings, polled. Both sides of the opening."""

import fcntl
import mmap
import os
import socket
import struct
import threading
import time

RING_BYTES = 512 << 10
BYTES_AT = 4096
SHARED_BYTES = BYTES_AT + 2 * RING_BYTES
OFFER = b"ATOLLSM\x01" + struct.pack("<I", RING_BYTES)
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
# The words of a ring: bytes produced and consumed since the beginning.
PRODUCED_AT, CONSUMED_AT, RING_WORDS_BYTES = 0, 128, 512
PAUSE = 0.0005


class SharedRings:
    """One side of a connection. The peer is woken after every change, whether it sleeps or not."""

    def __init__(self, beside, memory, doorbell, is_connecting):
        self.beside, self.doorbell = beside, doorbell
        self.memory = mmap.mmap(memory, SHARED_BYTES)
        os.close(memory)
        self.outgoing, self.incoming = (0, 1) if is_connecting else (1, 0)
        self.is_shut = threading.Event()

    def _word(self, ring, at):
        return struct.unpack_from("=Q", self.memory, ring * RING_WORDS_BYTES + at)[0]

    def _publish(self, ring, at, count):
        struct.pack_into("=Q", self.memory, ring * RING_WORDS_BYTES + at, count)
        os.write(self.doorbell, struct.pack("=Q", 1))

    def _has_ended(self):
        """Whether the peer has closed the socket beside the memory, or this side has."""
        if self.is_shut.is_set():
            return True
        try:
            return not self.beside.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def recv(self, length):
        consumed = self._word(self.incoming, CONSUMED_AT)
        while True:
            has_ended = self._has_ended()
            there = self._word(self.incoming, PRODUCED_AT) - consumed
            if there or has_ended:
                break
            time.sleep(PAUSE)
        at = consumed % RING_BYTES
        count = min(there, length, RING_BYTES - at)
        start = BYTES_AT + self.incoming * RING_BYTES + at
        data = self.memory[start : start + count]
        if count:
            self._publish(self.incoming, CONSUMED_AT, consumed + count)
        return data

    def sendall(self, data):
        data = memoryview(data)
        while data:
            if self._has_ended():
                raise BrokenPipeError("the peer has ended")
            produced = self._word(self.outgoing, PRODUCED_AT)
            room = RING_BYTES - (produced - self._word(self.outgoing, CONSUMED_AT))
            at = produced % RING_BYTES
            count = min(room, len(data), RING_BYTES - at)
            if not count:
                time.sleep(PAUSE)
                continue
            start = BYTES_AT + self.outgoing * RING_BYTES + at
            self.memory[start : start + count] = data[:count]
            self._publish(self.outgoing, PRODUCED_AT, produced + count)
            data = data[count:]

    def settimeout(self, seconds):
        """Nothing here waits without looking whether the peer is there."""

    def shutdown(self, how):
        self.is_shut.set()
        self.beside.shutdown(how)

    def close(self):
        self.beside.close()


def listen(name):
    """A socket on which shared memory is offered to who listens under a name."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{name}-shm")
    listener.listen()
    return listener


def accept(beside):
    """Takes the offer that comes on a socket."""
    offer, (memory, doorbell), _, _ = socket.recv_fds(beside, len(OFFER), 2)
    assert offer == OFFER, f"{offer}"
    socket.send_fds(beside, [b"\1"], [os.eventfd(0)])
    return SharedRings(beside, memory, doorbell, is_connecting=False)


def offer(name):
    """Offers memory to who listens under a name: the socket beside it, the memory, the answer and its doorbells."""
    beside = socket.socket(socket.AF_UNIX)
    beside.connect(f"\0{name}-shm")
    memory = os.memfd_create("atoll-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, SHARED_BYTES)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, SEALS)
    socket.send_fds(beside, [OFFER], [memory, os.eventfd(0)])
    answer, doorbells, _, _ = socket.recv_fds(beside, 1, 1)
    return beside, memory, answer, doorbells


def connect(name):
    """Connects to who listens under a name."""
    beside, memory, answer, doorbells = offer(name)
    assert answer == b"\1", f"the offer was not taken: {answer}"
    return SharedRings(beside, memory, doorbells[0], is_connecting=True)
