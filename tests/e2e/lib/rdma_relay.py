"""Somebody on the wire between a client and an OSD whose RDMA goes over sockets (libfabric's provider `tcp`): changes
bytes that go by, or cuts the connection. What is a frame he does not see."""

from lib.relay import Relay

# Pieces of the stream that hold one short message with data, and those that hold bytes of a long piece, which one side
# reads from the memory of the other.
LENGTHS = {"message": range(4200, 9000), "long piece": range(30_000, 1 << 20), "cut": range(1, 1 << 20)}


class WireRelay(Relay):
    """Carries connections to one OSD, and changes the middle of what goes by when it was told to."""

    def _pass_on(self, source, sink, way, state):
        while data := source.recv(1 << 18):
            what = self._attack(way, len(data), state)
            if what == "cut":
                sink.sendall(data[: len(data) // 2])
                break
            sink.sendall(flipped(data) if what else data)

    def _fits(self, attack, length):
        return length in LENGTHS[attack]


def flipped(data):
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
