"""What a host of the scaling benchmark may use: CPU time by a cgroup, bandwidth by token buckets on its network interface."""
import contextlib, os, pathlib, signal, subprocess, time

CGROUPS = pathlib.Path("/sys/fs/cgroup")
# The quota is dealt out anew after each period, and a host that has used its share waits for the rest of it: as
# short a period as possible, so that this wait is not most of the latency. The kernel's least quota is 1 ms.
PERIOD_US_MIN = 10_000
QUOTA_US_MIN = 1_000
# What is left to the load generator and the kernel.
CORES_LEFT_OVER = 0.8
# A bucket must hold the largest segment that the kernel gives to a network interface, 64 KiB, and what comes in a tick of its clock.
BURST_BYTES_MIN = 128 << 10
TICK_SECONDS = 0.004
QUEUE_MS = 50


def check_fit(hosts, cpu_percent):
    """Why so many hosts with such shares would get in each other's way on this machine, or None."""
    cores = len(os.sched_getaffinity(0))
    if hosts * cpu_percent <= (cores - CORES_LEFT_OVER) * 100 + 1e-6:
        return None
    most = int((cores - CORES_LEFT_OVER) * 100 / hosts)
    return (f"{hosts} hosts with {cpu_percent:g} % of a core are {hosts * cpu_percent / 100:g} cores; this machine has {cores}, and {CORES_LEFT_OVER} "
            f"must stay free for clients, or else the machine is the bottleneck and not the hosts. Take --cpu-percent {most} or less")


def period_and_quota_us(cpu_percent):
    """The shortest period whose quota the kernel takes."""
    period_us = max(PERIOD_US_MIN, round(QUOTA_US_MIN * 100 / cpu_percent))
    return period_us, max(QUOTA_US_MIN, round(period_us * cpu_percent / 100))


class CpuGroups:
    """One cgroup per host, all under one of their own. What a process of a host starts is in the same group."""

    def __init__(self, name, root=CGROUPS):
        self.is_v2 = "cpu" in read_words(root / "cgroup.controllers")
        self.controllers = root if self.is_v2 else root / "cpu"
        self.path = self.controllers / name

    def make(self, groups):
        if not (self.controllers / "cgroup.procs").exists():
            raise OSError(f"there is no CPU controller in {self.controllers}; mount one (cgroup v2, or v1's cpu)")
        if self.is_v2:
            (self.controllers / "cgroup.subtree_control").write_text("+cpu")
        self.path.mkdir()
        if self.is_v2:
            (self.path / "cgroup.subtree_control").write_text("+cpu")
        for group in groups:
            (self.path / group).mkdir()

    def enter_first(self, group, command):
        """A command that goes into a group before it becomes what it is to be."""
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.path / group / "cgroup.procs"), *map(str, command)]

    def add(self, group, pid):
        (self.path / group / "cgroup.procs").write_text(str(pid))

    def limit(self, group, cpu_percent):
        period_us, quota_us = period_and_quota_us(cpu_percent)
        if self.is_v2:
            (self.path / group / "cpu.max").write_text(f"{quota_us} {period_us}")
        else:
            (self.path / group / "cpu.cfs_period_us").write_text(str(period_us))
            (self.path / group / "cpu.cfs_quota_us").write_text(str(quota_us))

    def remove_all(self, seconds=20):
        """Kills what is in the groups, again until nothing is left (a supervisor starts its children anew), and removes them."""
        deadline = time.monotonic() + seconds
        groups = [path for path in self.path.glob("*") if path.is_dir()]
        for group in groups:
            while pids := read_words(group / "cgroup.procs"):
                if time.monotonic() > deadline:
                    raise OSError(f"processes {' '.join(pids)} in {group} do not end")
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
                time.sleep(0.02)
        for path in (*groups, self.path):
            with contextlib.suppress(FileNotFoundError):
                path.rmdir()


def read_words(path):
    try:
        return path.read_text().split()
    except FileNotFoundError:
        return []


def limit_bandwidth(namespace, interface, mbit):
    """What a network interface sends is held back to this rate. (What it receives, its peer in the switch sends.)"""
    burst_bytes = max(BURST_BYTES_MIN, int(mbit * 1e6 / 8 * TICK_SECONDS))
    subprocess.run(["tc", "-n", namespace, "qdisc", "replace", "dev", interface, "root", "tbf", "rate", f"{mbit}mbit",
                    "burst", str(burst_bytes), "latency", f"{QUEUE_MS}ms"], check=True)
