"""Somebody on the wire between a client and an OSD whose RDMA goes over sockets (libfabric's provider `tcp`): changes
bytes that go by, or cuts the connection. What is a frame he does not see."""

import contextlib
import socket
import threading

# Pieces of the stream that hold one short message with data, and those that hold bytes of a long piece, which one side
# reads from the memory of the other.
LENGTHS = {"message": range(4200, 9000), "long piece": range(30_000, 1 << 20), "cut": range(1, 1 << 20)}


class WireRelay:
    """Carries connections to one OSD, and changes the middle of what goes by when it was told to."""

    def __init__(self, port):
        self.osd_port, self.connections, self.attack, self.done = port, 0, None, None
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            client = self.listener.accept()[0]
            try:
                osd = socket.create_connection(("127.0.0.1", self.osd_port), timeout=5)
            except OSError:
                client.close()
                continue
            osd.settimeout(None)
            self.connections += 1
            state = threading.Event()
            for sockets, way in (((client, osd), "to"), ((osd, client), "from")):
                sockets[1].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._carry, args=[*sockets, way, state], daemon=True).start()

    def _carry(self, source, sink, way, ended):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 18):
                what = self._attack(way, len(data), ended)
                if what == "cut":
                    sink.sendall(data[: len(data) // 2])
                    break
                sink.sendall(flipped(data) if what else data)
        ended.set()
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _attack(self, way, length, ended):
        with self.lock:
            if not self.attack or self.attack[0] != way or length not in LENGTHS[self.attack[1]]:
                return None
            what, self.attack, self.done = self.attack[1], None, ended
            return what


def flipped(data):
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
