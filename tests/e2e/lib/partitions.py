"""Three hosts and an etcd in network namespaces: what may go wrong with them, and what must be true afterwards."""

import contextlib
import json
import os
import time

import pytest

from lib.net import ETCD_IP, NETWORK, Etcd, Host, Namespaces, stopped
from lib.operator import is_well, told
from lib.registers import failures, longest
from lib.verdicts import intact
from lib.waiting import CommandFailed, NotYet, not_yet, under_load, wait_for

CLEAN_SECONDS_MAX = 60
# When it is clean, every client is served after so long, also one that was cut off.
SERVED_SECONDS_MAX = 15
# An operation of a client that is not cut off may take this long.
STALL_SECONDS_MAX = 15
EC = os.environ.get("ATOLL_E2E_EC")
EC_POOL = "coded"
# Clients are watched for this long after a cluster is clean again.
CALM_SECONDS = 1


class World:
    """The hosts, their etcd, and the network between them."""

    def __init__(self, scenario, up=(), variables=()):
        """With more options of the first 'atoll up', and more of the environment of all processes."""
        self.scenario, self.up, namespaces = scenario, up, Namespaces(scenario)
        self.etcd = Etcd(scenario, namespaces.add_host("etcd", ETCD_IP))
        self.hosts = [
            Host(scenario, namespaces.add_host(f"h{n}", f"{NETWORK}.{n}"), f"h{n}", f"{NETWORK}.{n}") for n in (1, 2, 3)
        ]
        for host in self.hosts:
            host.variables |= dict(variables)
        for namespace in [self.etcd.namespace, *(host.namespace for host in self.hosts)]:
            # What comes in from these addresses is dropped without a word, whatever it belongs to.
            self.nft(
                namespace,
                "table inet faults {\n set cut { type ipv4_addr; }\n"
                "chain input { type filter hook input priority 0; ip saddr @cut drop; }\n"
                "chain loss { type filter hook input priority 1; }\n}",
            )

    def nft(self, namespace, text):
        self.scenario.run("ip", "netns", "exec", namespace, "nft", text, timeout=20)

    def start(self):
        """All of it, with two OSDs on the second host."""
        h1, h2, h3 = self.hosts
        self.etcd.start()
        h1.start_up(
            "--etcd",
            self.etcd.url,
            "--etcd-ca",
            self.etcd.directory / "ca.pem",
            *self.etcd.client("h1"),
            "--failure-domain",
            "host",
            "--osds",
            "1",
            "--osd-size",
            "4G",
            *(["--ec", EC] if EC else []),
            *self.up,
        )
        for host, osds in ((h2, 2), (h3, 1)):
            token = json.loads(h1.cli("cluster", "token", "create", "--json").stdout)["token"]
            host.start_up(
                "--join",
                host.token_file(token),
                *self.etcd.client(host.name),
                "--osds",
                osds,
                "--osd-size",
                "4G",
                "--key-service",
                h1.data / "keys" / "kms.json",
            )
        self.becomes_clean()
        if EC:
            h1.cli("pool", "create", EC_POOL, "--ec", EC, "--pg-num", "32", "--failure-domain", "host")
            for pool in (EC_POOL, "data"):
                h1.cli("pool", "set", pool, "min_size", EC.split("+")[0])
            self.becomes_clean()

    def becomes_clean(self, seconds=CLEAN_SECONDS_MAX):
        """Waits until all is well, twice."""

        def is_clean():
            for host in self.hosts:
                if not host.healthy():
                    raise NotYet(f"a process of {host.name} is not well: {host.process_ids()}")
            # Exit code 1 and 2 tell of problems, in words; without cluster state it can tell none.
            with not_yet(CommandFailed):
                health = json.loads(self.hosts[-1].cli("health", "--json", ok=(0, 1, 2)).stdout)
                records = self.etcd.records("/atoll/pgs/")
            if not is_well(health):
                raise NotYet(told(health))
            for key, record in records.items():
                if record["activated_epoch"] != record["epoch"] or len(record["members"]) != 3:
                    raise NotYet(f"{key}: {record}")
            return True

        wait_for("the cluster is clean", is_clean, seconds, 0.3)
        under_load(0.5)
        wait_for("the cluster is still clean", is_clean, seconds, 0.3)

    # --- faults: each a context in which it is there

    @contextlib.contextmanager
    def dropped(self, *ways):
        """Nothing arrives on these ways, each (from, to), of hosts or the etcd."""

        def change(verb):
            for sender, receiver in ways:
                address = sender.address if sender is not self.etcd else ETCD_IP
                self.nft(receiver.namespace, f"{verb} element inet faults cut {{ {address} }}")

        change("add")
        try:
            yield
        finally:
            change("delete")

    @contextlib.contextmanager
    def falling_silent(self, ways, back, seconds):
        """Nothing is heard of a host, and only later does it hear nothing: it does not notice that others
        have given it up, and only the leases keep it from serving what is old."""
        with self.dropped(*ways):
            under_load(seconds)
            with self.dropped(*back):
                yield

    @contextlib.contextmanager
    def lossy(self, percent):
        for host in self.hosts:
            self.nft(host.namespace, f'add rule inet faults loss iifname "eth0" numgen random mod 100 < {percent} drop')
        try:
            yield
        finally:
            for host in self.hosts:
                self.nft(host.namespace, "flush chain inet faults loss")

    def paused(self, host, names):
        """SIGSTOP of processes of a host whose names begin so, and at the end SIGCONT."""
        return stopped(*(pid for name, pid in host.process_ids().items() if name.startswith(names)))

    @contextlib.contextmanager
    def killed(self, host):
        host.kill_all()
        try:
            yield
        finally:
            host.start_up()

    @contextlib.contextmanager
    def without_device(self, host, osd):
        """The device is gone with all that was on it, and is replaced as docs/guide/troubleshooting.md has it."""
        device = host.data / osd.replace(".", "-") / "device"
        device.unlink()
        host.kill(osd)
        try:
            yield
        finally:
            host.down()
            host.start_up("--new-device", osd.split(".")[1])
            assert device.exists(), "there is no new device"


class Faults:
    """What may go wrong: each fault is (hosts that are cut off by it, seconds, its context)."""

    def __init__(self, world, rng=None):
        """With `rng` they are on random hosts and for random times."""
        self.world, self.rng = world, rng
        self.h1, self.h2, _ = world.hosts
        if rng:
            # fio is on the third host and does not connect twice: it may be cut off, but not be killed.
            self.h1, self.h2 = rng.sample((self.h1, self.h2), 2)
        self.cut, self.other = rng.sample(world.hosts, 2) if rng else (self.h1, self.h2)
        self.away = [(self.cut, host) for host in world.hosts if host is not self.cut]
        self.back = [(host, self.cut) for _, host in self.away]
        self.etcd = [(self.cut, world.etcd), (world.etcd, self.cut)]

    def lasting(self, seconds):
        return seconds * self.rng.uniform(0.3, 1.7) if self.rng else seconds

    def killed(self):
        """A host killed -9 with all its processes."""
        return {self.h2}, 3, self.world.killed(self.h2)

    def not_from_etcd(self):
        """A host cut off from the other hosts, not from etcd."""
        return {self.cut}, 7, self.world.dropped(*self.away, *self.back)

    def cannot_send(self):
        """A host that cannot send to the other hosts, but hears them."""
        return {self.cut}, 6, self.world.dropped(*self.away)

    def cannot_hear(self):
        """A host that cannot hear the other hosts, but sends to them."""
        return {self.cut}, 6, self.world.dropped(*self.back)

    def apart(self):
        """Two hosts apart; the third reaches both."""
        ways = (self.cut, self.other), (self.other, self.cut)
        return {self.cut, self.other}, 6, self.world.dropped(*ways)

    def from_etcd_only(self):
        """A host cut off from etcd only."""
        return set(), 12, self.world.dropped(*self.etcd)

    def from_all(self):
        """A host cut off from all."""
        return {self.cut}, 17, self.world.dropped(*self.etcd, *self.away, *self.back)

    def falls_silent(self):
        """A host that falls silent, and then hears nothing."""
        (to_etcd, from_etcd), silent_seconds = self.etcd, 1.7
        context = self.world.falling_silent([*self.away, to_etcd], [*self.back, from_etcd], silent_seconds)
        return {self.cut}, 6, context

    def osd_paused_short(self):
        """An OSD paused, short."""
        return set(), 5, self.world.paused(self.other, first_osd(self.other))

    def osd_paused_long(self):
        """An OSD paused, long."""
        return set(), 15, self.world.paused(self.cut, first_osd(self.cut))

    def host_paused(self):
        """All processes of a host paused."""
        return {self.h1}, 8, self.world.paused(self.h1, "")

    def device_lost(self):
        """The device of an OSD lost and replaced."""
        return {self.h2}, 4, self.world.without_device(self.h2, first_osd(self.h2))

    def packets_lost(self):
        """5 % of all packets lost."""
        return set(), 8, self.world.lossy(5)


def first_osd(host):
    return min(name for name in host.children() if name.startswith("osd."))


def start_world(scenario, **options):
    """The hosts with their cluster; the test is skipped where the kernel cannot cut them off."""
    probe = scenario.run("unshare", "--net", "nft", "add table inet probe", ok=None, timeout=20)
    if probe.returncode != 0:
        pytest.skip(f"this kernel has no nftables: {probe.stderr.strip()[:200]}")
    world = World(scenario, **options)
    world.start()
    return world


def go_through(world, load, fault, note):
    """One fault, and what came of it."""
    cut_off, seconds, context = fault
    # Those whose host or server is cut off may wait.
    objects = [client for client in load.registers.objects if client.host not in cut_off]
    blocks = [
        client for client in load.registers.blocks if client.host not in cut_off and client.hosts[0] not in cut_off
    ]
    started = time.monotonic()
    with context:
        under_load(seconds)
        ended = time.monotonic()
    world.becomes_clean()
    clean = time.monotonic() - ended
    # Also those that were cut off are served again.
    load.all_are_answered(ended + clean, SERVED_SECONDS_MAX)
    served = time.monotonic() - ended - clean
    under_load(CALM_SECONDS)
    stalls = [longest(clients, started, time.monotonic()) for clients in (objects, blocks)]
    errors = failures(objects, started, time.monotonic())
    note(
        f"for {ended - started:.0f} s; clean {clean:.1f} s later, all clients served {served:.1f} s after that; "
        f"longest stall: of an object {stalls[0]}, of a block {stalls[1]}"
    )
    load.check_bytes()
    assert stalls[0].seconds < STALL_SECONDS_MAX, stalls[0]
    assert not errors, "clients that are not cut off got errors, such as\n" + "\n".join(errors[:5])


def all_copies_are_the_same(world):
    """A deep scrub finds nothing; returns how many objects it has looked at."""
    scrub = ("pg", "scrub", "all", "--deep", "--wait", "--json")
    pgs = json.loads(world.hosts[0].cli(*scrub, timeout=180, ok=None).stdout)
    bad = [pg for pg in pgs if pg["scrub"]["errors"]]
    intact(not bad, f"{bad}")
    return sum(pg["scrub"]["objects"] for pg in pgs)
