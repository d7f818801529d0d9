"""A load of files in a directory that knows what was made durable."""

import os
import pathlib
import random
import struct

from lib.load import CountedLoad

HEADER = ">8sIIQ"
MARK = b"AtollE2E"


class FileLoad(CountedLoad):
    """Threads that replace files: the new content is written beside the old one, made durable and renamed, and then the
    directory is made durable. Of each file it is known which content was acknowledged last and which was begun last."""

    def __init__(self, directory, threads=4, files_per_thread=24):
        self.directory, self.files_per_thread = pathlib.Path(directory), files_per_thread
        keys = [(thread, file) for thread in range(threads) for file in range(files_per_thread)]
        super().__init__(keys, threads)

    def _run(self, thread):
        rng = random.Random(f"files/{thread}")
        try:
            (self.directory / str(thread)).mkdir()
            while not self.stopping:
                self.replace((thread, rng.randrange(self.files_per_thread)))
        except OSError as error:
            self.errors.append(error)

    def path(self, directory, key):
        return directory / str(key[0]) / str(key[1])

    def content(self, key, sequence):
        rng = random.Random(f"{key}/{sequence}")
        size = rng.choice((0, 100, 4096, 30_000, 300_000, 1_000_000))
        return struct.pack(HEADER, MARK, *key, sequence) + rng.randbytes(size)

    def replace(self, key):
        sequence = self.begun[key] + 1
        content = self.content(key, sequence)
        self.begun[key] = sequence
        path = self.path(self.directory, key)
        with open(path.with_suffix(".new"), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(path.with_suffix(".new"), path)
        sync_directory(path.parent)
        self.ack(key, sequence)

    def problems(self, directory, least, most):
        """What is not as it must be in a directory which has of each file the content number `least` or a later one up
        to `most`. Number 0 is no file."""
        found = []
        for key in self.begun:
            path = self.path(directory, key)
            content = path.read_bytes() if path.exists() else b""
            size = struct.calcsize(HEADER)
            sequence = struct.unpack(HEADER, content[:size])[3] if len(content) >= size else 0
            if not least[key] <= sequence <= most[key]:
                found.append(f"{path}: content {sequence}, must be {least[key]} to {most[key]}")
            elif content != (self.content(key, sequence) if sequence else b""):
                found.append(f"{path}: not the bytes of content {sequence}")
        return found


def sync_directory(path):
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
