"""Looks for bytes in all files of a directory."""

import contextlib
import os
import stat

from lib.cluster import MIB


def data_of(path):
    """The parts of a file that are not holes, with some overlap."""
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        place = 0
        while place < end:
            try:
                place = os.lseek(file.fileno(), place, os.SEEK_DATA)
            except OSError:
                return
            hole = os.lseek(file.fileno(), place, os.SEEK_HOLE)
            while place < hole:
                length = min(hole - place, 16 * MIB)
                yield place, os.pread(file.fileno(), length + 128, place)
                place += length


def search(directory, needles):
    """Where the needles are: [(file, offset, needle)], and the bytes that were searched."""
    found, searched = [], 0
    for path in sorted(directory.rglob("*")):
        # A file that is written in the place of another goes meanwhile, and is searched as that.
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(path.lstat().st_mode):
                continue
            for offset, data in data_of(path):
                searched += len(data)
                for needle in needles:
                    if needle in data:
                        found.append((str(path.relative_to(directory)), offset + data.index(needle), needle))
    return found, searched
