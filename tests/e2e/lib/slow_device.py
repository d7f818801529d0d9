"""A device that is slow for some processes: the kernel's throttle of cgroups (version 1, blkio)."""

import contextlib
import os
import pathlib
import secrets

from lib.waiting import Failed

BLKIO = pathlib.Path("/sys/fs/cgroup/blkio")


def device_of(path):
    """MAJOR:MINOR of the disk that has this file. A partition has no throttle of its own."""
    number = os.stat(path).st_dev
    name = f"{os.major(number)}:{os.minor(number)}"
    partition = pathlib.Path("/sys/dev/block", name).resolve()
    return (partition.parent / "dev").read_text().strip() if (partition / "partition").exists() else name


def throttled(pids, path, writes_per_second):
    """The processes get so many writes a second of the disk that has `path`."""
    return limited(pids, path, "write_iops_device", writes_per_second)


def silent(pids, path):
    """The disk that has `path` completes no write of these processes, for all that they can tell."""
    return limited(pids, path, "write_bps_device", 1)


@contextlib.contextmanager
def limited(pids, path, limit, value):
    if not BLKIO.is_dir():
        raise Failed("there is no cgroup controller 'blkio' (version 1) at /sys/fs/cgroup/blkio")
    group = BLKIO / f"atoll-e2e-{secrets.token_hex(4)}"
    group.mkdir()
    try:
        (group / f"blkio.throttle.{limit}").write_text(f"{device_of(path)} {value}")
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        # What it held back goes on.
        for pid in (group / "cgroup.procs").read_text().split():
            (BLKIO / "cgroup.procs").write_text(pid)
        group.rmdir()
