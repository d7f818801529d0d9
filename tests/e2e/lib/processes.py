"""Processes of the tests: which are whose, whether they live, and what they take."""

import contextlib
import glob
import os
import pathlib
import resource
import signal
import time

# In the environment of every process that a test run starts, so that those that lost their parent are found:
# the run as "PID of pytest.random", and the cluster.
RUN_MARK, CLUSTER_MARK = "ATOLL_E2E_RUN", "ATOLL_E2E_CLUSTER"


def is_alive(pid):
    """Whether a process runs: one that has ended and was not waited for does not."""
    try:
        stat = pathlib.Path("/proc", str(pid), "stat").read_text()
    except OSError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] not in "ZX"


def resident_bytes(pid):
    """Memory that a process has in use."""
    return int(pathlib.Path("/proc", str(pid), "statm").read_text().split()[1]) * resource.getpagesize()


def marked(name):
    """The processes that have a variable in their environment: {pid: value}."""
    found = {}
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            environment = pathlib.Path(path).read_bytes()
        except OSError:
            continue
        for entry in environment.split(b"\0"):
            if entry.startswith(f"{name}=".encode()):
                pid = int(path.split("/")[2])
                if is_alive(pid):
                    found[pid] = entry.split(b"=", 1)[1].decode()
    return found


def end_all(of_run, seconds=20):
    """Ends the processes of those runs for which `of_run` is true."""
    deadline = time.monotonic() + seconds
    while pids := [pid for pid, run in marked(RUN_MARK).items() if of_run(run)]:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                # Nothing that is stopped first starts anything anew.
                os.kill(pid, signal.SIGSTOP)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
