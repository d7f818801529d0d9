"""Ports of the loopback interface that no other test run on this machine takes."""

import fcntl
import pathlib
import socket
import tempfile

# Below those that the kernel gives to sockets of its choice.
FIRST, END, BLOCK = 20_000, 32_600, 100


def blocks():
    """Blocks of ports that are ours until this process ends: what a killed server leaves free stays free for it."""
    directory = pathlib.Path(tempfile.gettempdir(), "atoll-e2e-ports")
    directory.mkdir(exist_ok=True)
    for first in range(FIRST, END, BLOCK):
        lock = open(directory / str(first), "w")  # noqa: SIM115
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            continue
        HELD.append(lock)
        yield from range(first, first + BLOCK)
    raise RuntimeError(f"all ports from {FIRST} to {END} are held by test runs")


HELD = []
PORTS = blocks()


def is_listening(port):
    """Whether somebody takes connections at a port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except (ConnectionRefusedError, TimeoutError):
        return False
    return True


def free_port():
    """A port that nobody has."""
    for port in PORTS:
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise RuntimeError("no port is free")
