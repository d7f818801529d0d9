#!/usr/bin/env python3
"""Three hosts and an etcd in network namespaces, and one fault after the other: hosts killed, cut off, cut
off in one direction, paused, a device lost, packets lost. Clients on all hosts read and write registers
meanwhile, whose histories must be linearizable; fio verifies, and S3 uploads are compared. After each
fault the cluster must become clean by itself. Prints how long the clients stood that were not cut off.

    ATOLL_E2E_ROUNDS=N   times that all faults are gone through; from the second time on in random order, on
                         random hosts and for random times. Without it, once, and without those of LONG_ONLY
    ATOLL_E2E_SEED=N     what is random (1)
    ATOLL_E2E_FAULTS=A,B only faults with one of these words in their names
    ATOLL_E2E_EC=2+1     images and data of S3 are in erasure-coded pools, which serve with one host away
"""
import contextlib, json, os, random, signal, threading, time

import linearizable
from harness import MIB, expect, main, wait_for
from namespaces import ETCD_IP, NETWORK, Etcd, Host, Namespaces, within
from registers import Registers, failures, longest
from s3load import Uploader

CLEAN_SECONDS_MAX = 60
# When it is clean, every client is served after so long, also one that was cut off.
SERVED_SECONDS_MAX = 15
# An operation of a client that is not cut off may take this long.
STALL_SECONDS_MAX = 15
# Faults that are much like others, or that other scenarios have (`osd_killed`, `erasure`): left out of the run
# that `make test` makes.
LONG_ONLY = ("cannot hear the other", "apart;", "cut off from all", "paused, short", "all processes of h1 paused", "packets lost", "killed -9 with all", "lost and replaced")
EC = os.environ.get("ATOLL_E2E_EC")
EC_POOL = "coded"
# Clients are watched for this long after a cluster is clean again.
CALM_SECONDS = 1


class World:
    """The hosts, their etcd, and the network between them."""

    def __init__(self, test, namespaces):
        self.test = test
        self.etcd = Etcd(test, namespaces.add_host("etcd", ETCD_IP))
        self.hosts = [Host(test, namespaces.add_host(f"h{n}", f"{NETWORK}.{n}"), f"h{n}", f"{NETWORK}.{n}") for n in (1, 2, 3)]
        for namespace in [self.etcd.namespace, *(host.namespace for host in self.hosts)]:
            # What comes in from these addresses is dropped without a word, whatever it belongs to.
            self.nft(namespace, "table inet faults {\n set cut { type ipv4_addr; }\n"
                     "chain input { type filter hook input priority 0; ip saddr @cut drop; }\n"
                     "chain loss { type filter hook input priority 1; }\n}")

    def nft(self, namespace, text):
        self.test.run("ip", "netns", "exec", namespace, "nft", text, timeout=20)

    def start(self):
        """All of it, with two OSDs on the second host."""
        h1, h2, h3 = self.hosts
        self.etcd.start()
        h1.start_up("--etcd", self.etcd.url, "--etcd-ca", self.etcd.directory / "ca.pem", *self.etcd.client("h1"),
                    "--failure-domain", "host", "--osds", "1", "--osd-size", "4G", *(["--ec", EC] if EC else []))
        for host, osds in ((h2, 2), (h3, 1)):
            token = json.loads(h1.cli("cluster", "token", "create", "--json").stdout)["token"]
            host.start_up("--join", token, *self.etcd.client(host.name), "--osds", osds, "--osd-size", "4G",
                          "--key-service", h1.data / "keys" / "kms.json")
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
                expect(host.healthy(), f"a process of {host.name} is not well: {host.process_ids()}")
            health = json.loads(self.hosts[-1].cli("health", "--json", ok=None).stdout)
            expect(health["status"] == "ok", "; ".join(f"{p['code']}: {p['summary']} {p['subjects'][:6]}" for p in health["problems"]))
            for key, record in self.etcd.records("/atoll/pgs/").items():
                expect(record["activated_epoch"] == record["epoch"] and len(record["members"]) == 3, f"{key}: {record}")
            return True

        for look in range(2):
            wait_for("the cluster is clean", is_clean, seconds, 0.3)
            time.sleep(0.5 * (look == 0))

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
            time.sleep(seconds)
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

    @contextlib.contextmanager
    def paused(self, host, names):
        """SIGSTOP, and at the end SIGCONT."""
        pids = host.process_ids()
        pids = [pids[name] for name in pids if name.startswith(names)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    @contextlib.contextmanager
    def killed(self, host):
        host.kill_all()
        try:
            yield
        finally:
            host.start_up()

    @contextlib.contextmanager
    def without_device(self, host, osd):
        """The device is gone with all that was on it, and is replaced as docs/operations.md has it."""
        device = host.data / osd.replace(".", "-") / "device"
        device.unlink()
        host.kill(osd)
        try:
            yield
        finally:
            host.down()
            host.start_up()
            expect(device.exists(), "there is no new device")


def faults(world, rng=None):
    """(name, hosts that are cut off by it, seconds, function that returns the context), as they come."""
    h1, h2, _ = world.hosts
    if rng:
        # fio is on the third host and does not connect twice: it may be cut off, but not be killed.
        h1, h2 = rng.sample((h1, h2), 2)
    cut, other = rng.sample(world.hosts, 2) if rng else (h1, h2)

    def lasting(seconds):
        return seconds * rng.uniform(0.3, 1.7) if rng else seconds

    away = [(cut, host) for host in world.hosts if host is not cut]
    back = [(host, cut) for _, host in away]
    found = [
        (f"{h2.name} killed -9 with all its processes", {h2}, lasting(3), lambda: world.killed(h2)),
        (f"{cut.name} cut off from the other hosts, not from etcd", {cut}, lasting(7), lambda: world.dropped(*away, *back)),
        (f"{cut.name} cannot send to the other hosts, but hears them", {cut}, lasting(6), lambda: world.dropped(*away)),
        (f"{cut.name} cannot hear the other hosts, but sends to them", {cut}, lasting(6), lambda: world.dropped(*back)),
        (f"{cut.name} and {other.name} apart; the third reaches both", {cut, other}, lasting(6),
         lambda: world.dropped((cut, other), (other, cut))),
        (f"{cut.name} cut off from etcd only", set(), lasting(12), lambda: world.dropped((cut, world.etcd), (world.etcd, cut))),
        (f"{cut.name} cut off from all", {cut}, lasting(17), lambda: world.dropped((cut, world.etcd), (world.etcd, cut), *away, *back)),
        (f"{cut.name} falls silent, and then hears nothing", {cut}, lasting(6),
         lambda: world.falling_silent([*away, (cut, world.etcd)], [*back, (world.etcd, cut)], 1.7)),
        (f"an OSD of {other.name} paused, short", set(), lasting(5), lambda: world.paused(other, first_osd(other))),
        (f"an OSD of {cut.name} paused, long", set(), lasting(15), lambda: world.paused(cut, first_osd(cut))),
        (f"all processes of {h1.name} paused", {h1}, lasting(8), lambda: world.paused(h1, "")),
        (f"the device of an OSD of {h2.name} lost and replaced", {h2}, lasting(4), lambda: world.without_device(h2, first_osd(h2))),
        ("5 % of all packets lost", set(), lasting(8), lambda: world.lossy(5)),
    ]
    if rng:
        rng.shuffle(found)
    wanted = os.environ.get("ATOLL_E2E_FAULTS")
    if not wanted and "ATOLL_E2E_ROUNDS" not in os.environ:
        return [fault for fault in found if not any(word in fault[0] for word in LONG_ONLY)]
    return [fault for fault in found if not wanted or any(word in fault[0] for word in wanted.split(","))]


def first_osd(host):
    return min(name for name in host.children() if name.startswith("osd."))


class Fio:
    """One fio after the other on one image, each writes it with other contents and then verifies it."""

    def __init__(self, test, host, image):
        self.test, self.host, self.image = test, host, image
        self.stopping, self.done, self.error = False, 0, None
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def job(self, number, *more):
        return ["ip", "netns", "exec", self.host.namespace, "fio", "--name=verify", "--ioengine=nbd",
                f"--uri=nbd://{self.host.address}:10809/{self.image}", "--rw=randwrite", "--bs=4k", "--size=12m", "--iodepth=8",
                "--verify=crc32c", "--verify_fatal=1", f"--randseed={number}", *more]

    def run(self):
        try:
            while not self.stopping:
                self.test.run(*self.job(self.done), "--rate_iops=,200", timeout=240)
                self.done += 1
        except Exception as error:
            self.error = error

    def finish(self):
        """Waits for the last; returns how many there were."""
        self.stopping = True
        self.thread.join(240)
        if self.error:
            raise self.error
        expect(not self.thread.is_alive(), "fio hangs")
        return self.done

    def verify(self):
        """What the last one wrote is there."""
        self.test.run(*self.job(self.done - 1, "--verify_only"), timeout=120)


class Load:
    def __init__(self, test, world, seed, *image_options):
        self.world = world
        h1, _, h3 = world.hosts
        within(h1.namespace, lambda: h1.s3().create_bucket(Bucket="load"))
        for image in ("registers", "fio"):
            h1.create_image(image, "16M", *image_options)
        self.registers = Registers(world.hosts, "load", "registers", seed).start()
        self.fio = Fio(test, h3, "fio")
        noise, rng = os.urandom(2 * MIB), random.Random(seed)

        def items(host):
            number = 0
            while True:
                number += 1
                size, start = rng.choice((100, 5_000, 70_000, 300_000)), rng.randrange(MIB)
                yield f"{host.name}/{number:06}", lambda start=start, size=size: self.paced(noise[start:start + size])

        self.uploaders = [Uploader(host.s3(), "load", threads=1) for host in world.hosts]
        for host, uploader in zip(world.hosts, self.uploaders):
            # Its threads begin where the one is that starts them.
            within(host.namespace, lambda host=host, uploader=uploader: uploader.start(items(host)))

    def paced(self, body):
        time.sleep(0.2)
        return body

    def acked(self):
        return sum(len(uploader.ack_times) for uploader in self.uploaders)


def go_through(test, world, load, fault):
    """One fault, and what came of it."""
    name, cut_off, seconds, context = fault
    # Those whose host or server is cut off may wait.
    objects = [client for client in load.registers.objects if client.host not in cut_off]
    blocks = [client for client in load.registers.blocks if client.host not in cut_off and client.hosts[0] not in cut_off]
    with test.step(name) as note:
        started = time.monotonic()
        with context():
            time.sleep(seconds)
            ended = time.monotonic()
        world.becomes_clean()
        clean = time.monotonic() - ended
        # Also those that were cut off are served again.
        wait_for("every client is answered", lambda: all(client.answered_at() > ended + clean for client in load.registers.clients),
                 SERVED_SECONDS_MAX)
        served = time.monotonic() - ended - clean
        time.sleep(CALM_SECONDS)
        stalls = [longest(clients, started, time.monotonic()) for clients in (objects, blocks)]
        errors = failures(objects, started, time.monotonic())
        note(f"for {ended - started:.0f} s; clean {clean:.1f} s later, all clients served {served:.1f} s after that; longest stall: "
             f"of an object {stalls[0]}, of a block {stalls[1]}")
        wrong = load.registers.wrong()
        expect(not wrong, "\n".join(wrong[:5]))
        expect(stalls[0].seconds < STALL_SECONDS_MAX, note.text)
        expect(not errors, "clients that are not cut off got errors, such as\n" + "\n".join(errors[:5]))


def scenario(test):
    test.need(("ip", "iproute2"), ("nft", "nftables"), ("etcd", "etcd-server"), ("etcdctl", "etcd-client"), ("openssl", "openssl"),
              ("fio", "fio"))
    with test.step("the checker of histories refuses what it must") as note:
        count, problems = linearizable.self_test()
        expect(count > 0 and not problems, "\n".join(problems))
        note(f"{count} tests")
    if os.geteuid() != 0:
        return test.skip("three hosts and their faults", "network namespaces need root")
    namespaces = Namespaces(test)
    try:
        probe = test.run("ip", "netns", "exec", namespaces.switch, "nft", "add table inet probe", ok=None, timeout=20)
        if probe.returncode != 0:
            return test.skip("three hosts and their faults", f"this kernel has no nftables: {probe.stderr.strip()[:200]}")
        with_faults(test, World(test, namespaces))
    finally:
        for cluster in test.clusters:
            cluster.kill_all()
        namespaces.remove_all()


def with_faults(test, world):
    rounds, seed = int(os.environ.get("ATOLL_E2E_ROUNDS", test.scale)), int(os.environ.get("ATOLL_E2E_SEED", "1"))
    with test.step("three hosts and an etcd with TLS", fatal=True):
        world.start()
    with test.step("clients on all hosts", fatal=True) as note:
        load = Load(test, world, seed, *(["--pool", EC_POOL] if EC else []))
        wait_for("all clients are answered", lambda: all(len(client.outcomes) > 20 for client in load.registers.clients) and load.acked() > 20)
        note(f"seed {seed}")
    for number in range(max(1, rounds)):
        rng = random.Random(f"{seed}/{number}") if number else None
        for fault in faults(world, rng):
            go_through(test, world, load, fault)
    nothing_is_lost(test, world, load)


def nothing_is_lost(test, world, load):
    """Ends the load, and looks at all that it saw and wrote."""
    with test.step("the load ends, and no client hangs") as note:
        for uploader in load.uploaders:
            uploader.stopping = True
        expect(load.registers.finish() & all([uploader.stop(60) for uploader in load.uploaders]), "a client hangs")
        answered, failed = load.registers.counts()
        note(f"{answered} operations on registers, {failed} without answer; {load.acked()} uploads, "
             f"{sum(len(uploader.errors) for uploader in load.uploaders)} failed")
    with test.step("the history of every register is linearizable") as note:
        found = load.registers.violations() + load.registers.wrong()
        (test.directory / "violations").write_text("\n\n".join(found))
        expect(not found, f"{len(found)}:\n" + "\n\n".join(found)[:6000])
    with test.step("fio has verified all that it wrote, and verifies it once more") as note:
        note(f"{load.fio.finish()} times")
        load.fio.verify()
    with test.step("every acknowledged upload is there, read through another host") as note:
        for host, uploader in zip(world.hosts[1:] + world.hosts[:1], load.uploaders):
            problems = within(host.namespace, lambda host=host, uploader=uploader: uploader.problems(host.s3(attempts=3)))
            expect(not problems, f"{len(problems)}:\n" + "\n".join(problems[:5]))
        note(f"{sum(len(uploader.acked) for uploader in load.uploaders)} objects")
    with test.step("all copies of everything are the same (a deep scrub finds nothing)") as note:
        groups = json.loads(world.hosts[0].cli("pg", "scrub", "all", "--deep", "--wait", "--json", timeout=180).stdout)
        bad = [group for group in groups if group["scrub"]["errors"]]
        expect(not bad, f"{bad}")
        note(f"{sum(group['scrub']['objects'] for group in groups)} objects")
    with test.step("no process has panicked"):
        panics = [line for host in test.clusters for line in host.log_text().splitlines() if "panicked" in line]
        expect(not panics, "\n".join(panics[:5]))


if __name__ == "__main__":
    main(scenario)
