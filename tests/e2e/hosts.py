#!/usr/bin/env python3
"""Three hosts and an etcd with TLS, each in a network namespace of its own: joining by token, copies on
different hosts, I/O through every host, and an etcd that is away for half a minute."""
import json, os, shutil, signal, threading, time, urllib.request

from harness import MIB, Failed, expect, main, wait_for
from namespaces import ETCD_IP, NETWORK, Etcd, Host, Namespaces, enter, within
from nbdclient import Nbd, connect_patiently

AWAY_SECONDS = 30
# An operation may take this long while etcd is away. Its own limits in the gateway are 1 s each.
SLOWEST_SECONDS = 8


class Load:
    """Reads and writes through all hosts until it is stopped; the slowest of each kind is remembered."""

    def __init__(self, hosts):
        self.stop, self.errors, self.slowest, self.counts = threading.Event(), [], {}, {}
        self.threads = [threading.Thread(target=self.run, args=(host, work), daemon=True)
                        for host in hosts for work in (self.objects, self.blocks)]
        for thread in self.threads:
            thread.start()

    def run(self, host, work):
        try:
            enter(host.namespace)
            work(host)
        except Exception as error:
            self.errors.append(f"{host.name} {work.__name__}: {type(error).__name__}: {error}")

    def timed(self, kind, operation):
        started = time.monotonic()
        value = operation()
        self.slowest[kind] = max(self.slowest.get(kind, 0), time.monotonic() - started)
        self.counts[kind] = self.counts.get(kind, 0) + 1
        return value

    def objects(self, host):
        s3, number = host.s3(), 0
        while not self.stop.wait(0.05):
            key, body = f"{host.name}-{number % 20}", os.urandom(20_000)
            self.timed(f"put {host.name}", lambda: s3.put_object(Bucket="shared", Key=key, Body=body))
            found = self.timed(f"get {host.name}", lambda: s3.get_object(Bucket="shared", Key=key)["Body"].read())
            expect(found == body, f"{key} has other bytes")
            number += 1

    def blocks(self, host):
        with connect_patiently(lambda: Nbd((host.address, 10809), f"disk-{host.name}"), 30) as disk:
            number = 0
            while not self.stop.wait(0.02):
                offset, body = number % 1000 * 8192, os.urandom(8192)
                self.timed(f"write {host.name}", lambda: disk.write(offset, body))
                expect(self.timed(f"read {host.name}", lambda: disk.read(offset, 8192)) == body, f"other bytes at {offset}")
                number += 1

    def finish(self):
        """Stops it; returns how many operations there were and what the slowest took."""
        self.stop.set()
        for thread in self.threads:
            thread.join(60)
        expect(not self.errors, "\n".join(self.errors))
        expect(not any(thread.is_alive() for thread in self.threads), "an operation hangs")
        expect(len(self.counts) == 4 * len(self.threads) // 2, f"some did nothing: {self.counts}")
        return sum(self.counts.values()), max(self.slowest.values())


def on_different_hosts(etcd):
    """Every group's members are on hosts of their own; returns the number of groups."""
    host_of = {int(key.rsplit("/", 1)[1]): record["host"] for key, record in etcd.records("/atoll/osds/").items()}
    groups = etcd.records("/atoll/pgs/")
    for key, record in groups.items():
        names = [host_of[member] for member in record["members"]]
        expect(len(names) == 3 and len(set(names)) == 3, f"{key}: {names}")
    return len(groups)


def scenario(test):
    test.need(("ip", "iproute2"), ("etcd", "etcd-server"), ("etcdctl", "etcd-client"), ("openssl", "openssl"))
    if os.geteuid() != 0:
        return test.skip("three hosts", "network namespaces need root")
    namespaces = Namespaces(test)
    try:
        with_etcd(test, namespaces)
        with_the_embedded_server(test, namespaces)
    finally:
        for cluster in test.clusters:
            cluster.kill_all()
        namespaces.remove_all()


def with_etcd(test, namespaces):
    etcd = Etcd(test, namespaces.add_host("etcd", ETCD_IP))
    h1, h2, h3 = hosts = [Host(test, namespaces.add_host(f"h{n}", f"{NETWORK}.{n}"), f"h{n}", f"{NETWORK}.{n}") for n in (1, 2, 3)]
    etcd.start()
    first = ["--etcd", etcd.url, "--etcd-ca", etcd.directory / "ca.pem", *etcd.client("h1"), "--failure-domain", "host",
             "--osds", "1", "--osd-size", "4G"]
    with test.step("a wrong authority, no certificate, a wrong port: refused with a reason") as note:
        cases = [("wrong authority", [*first[:2], "--etcd-ca", etcd.directory / "other-ca.pem", *first[4:]], "another authority"),
                 ("no certificate", [*first[:4], *first[8:]], "--etcd-cert"),
                 ("no authority", [*first[:2], *first[4:]], "--etcd-ca")]
        for what, arguments, words in cases:
            wrong = Host(test, h1.namespace, "h1", h1.address, directory=f"wrong-{words.strip('-').replace(' ', '-')}")
            started = time.monotonic()
            try:
                wrong.start_up(*arguments, timeout=100)
            except Failed as error:
                expect(words in str(error), f"{what}: {error}")
            else:
                raise Failed(f"{what}: it started")
            note(f"{note.text} {what} {time.monotonic() - started:.1f} s")
    with test.step("the first host starts and waits for two more", fatal=True):
        said = h1.start_up(*first)
        expect("OSDs in 3 hosts (1 so far" in said, said)
    tokens = [json.loads(h1.cli("cluster", "token", "create", "--json").stdout) for _ in range(3)]
    key_file = h1.data / "keys" / "kms.json"
    with test.step("host 2 joins with 'atoll up --join' and gets a number of its own", fatal=True):
        said = h2.start_up("--join", tokens[0]["token"], *etcd.client("h2"), "--osds", "2", "--osd-size", "4G", "--key-service", key_file)
        expect("will serve when" in said, said)
        expect({record["host"] for record in etcd.records("/atoll/osds/").values()} == {"h1", "h2"}, f"{etcd.records('/atoll/osds/')}")
    with test.step("a used, a revoked and a cut token are refused"):
        h1.cli("cluster", "token", "rm", tokens[1]["id"])
        for text, words in ((tokens[0]["token"], "used by host 'h2'"), (tokens[1]["token"], "revoked"), (tokens[2]["token"][:-7], "not whole")):
            done = h3.cli("join", text, *etcd.client("h3"), "--host", "h3", ok=None)
            expect(done.returncode == 1 and words in done.stderr, f"{words}: {done.stderr}")
    with test.step("host 3 joins with 'atoll join', 'atoll osd create' and 'atoll up'; then all serve", fatal=True) as note:
        h3.cli("join", tokens[2]["token"], *etcd.client("h3"), "--host", "h3", "--listen", h3.address, "--key-service", key_file)
        h3.cli("osd", "create", "--device", test.directory / "h3.device", "--size", "4G")
        started = time.monotonic()
        h3.start_up()
        for host in hosts:
            wait_for(f"{host.name} is healthy", host.healthy, 60)
        note(f"{time.monotonic() - started:.1f} s")
    with test.step("copies are on different hosts, and OSDs announce addresses that others reach") as note:
        note(f"{on_different_hosts(etcd)} groups")
        addresses = {record["address"].rsplit(":", 1)[0] for record in etcd.records("/atoll/osd_up/").values()}
        expect(addresses == {host.address for host in hosts}, f"{addresses}")
        states = {token["used_by"] for token in json.loads(h2.cli("cluster", "token", "ls", "--json").stdout)}
        expect(states == {"h2", "h3"}, f"{states}")
    with test.step("objects put on each host are found on each", fatal=True):
        within(h1.namespace, lambda: h1.s3().create_bucket(Bucket="shared"))
        bodies = {host.name: os.urandom(3 * MIB) for host in hosts}
        for host in hosts:
            host.put("shared", f"of-{host.name}", bodies[host.name])
        for host in hosts:
            for name, body in bodies.items():
                expect(host.get("shared", f"of-{name}") == body, f"of-{name} on {host.name}")
    with test.step("local keys are rotated with several hosts only in steps that leave all of them able to read"):
        done = h1.cli("key", "rotate", ok=None)
        expect(done.returncode == 1 and "3 hosts have copies" in done.stderr, f"{done.returncode} {done.stderr}")
        h1.cli("key", "rotate", "--no-rewrap")
        for host in (h2, h3):
            shutil.copyfile(key_file, host.data / "keys" / "kms.json")
        h1.cli("key", "rewrap")
        # Gateways look at what is wrapped how every 2 s.
        time.sleep(2.5)
        for host in hosts:
            expect(host.get("shared", "of-h2") == bodies["h2"], f"{host.name} reads other bytes")
    with test.step("an image written on one host is read on another"):
        for host in hosts:
            h2.cli("image", "create", f"disk-{host.name}", "--size", "64M")
        with h2.attach("disk-h2") as disk:
            disk.write(5 * MIB, b"from host two" * 100)
        with h3.attach("disk-h2") as disk:
            expect(disk.read(5 * MIB, 1300) == b"from host two" * 100, "other bytes")
    with test.step(f"etcd is stopped for {AWAY_SECONDS} s: reads and writes go on through every host") as note:
        load = Load(hosts)
        time.sleep(3)
        os.kill(etcd.process.pid, signal.SIGSTOP)
        try:
            time.sleep(AWAY_SECONDS)
            before = sum(load.counts.values())
            time.sleep(2)
            expect(sum(load.counts.values()) > before, "nothing goes on any more")
            for host in hosts:
                with within(host.namespace, lambda host=host: urllib.request.urlopen(f"http://{host.address}:9000/-/health", timeout=10)) as answer:
                    expect(answer.status == 200, f"{host.name}: {answer.status}")
        finally:
            os.kill(etcd.process.pid, signal.SIGCONT)
        time.sleep(12)
        for host in hosts:
            writer = json.loads(host.cli("image", "info", f"disk-{host.name}", "--json").stdout)["writer"]
            expect(writer, f"the lock of disk-{host.name} is not taken again: others could take the image")
        count, slowest = load.finish()
        note(f"{count} operations, the slowest took {slowest:.2f} s")
        expect(slowest < SLOWEST_SECONDS, f"the slowest took {slowest:.1f} s: {load.slowest}")
    with test.step("OSDs are announced again, and changes are seen everywhere"):
        wait_for("all OSDs are up", lambda: len(etcd.records("/atoll/osd_up/")) == 4, 30)
        changes(hosts, "after-pause")
    with test.step("etcd is killed and started again on its data, with I/O going on") as note:
        load = Load(hosts)
        time.sleep(1)
        os.kill(etcd.process.pid, signal.SIGKILL)
        etcd.process.wait()
        time.sleep(6)
        etcd.start()
        time.sleep(4)
        count, slowest = load.finish()
        note(f"{count} operations, the slowest took {slowest:.2f} s")
        expect(slowest < SLOWEST_SECONDS, f"the slowest took {slowest:.1f} s: {load.slowest}")
        revision = json.loads(etcd.ctl("get", "x", "-w", "json", ok=(0,)).stdout)["header"]["revision"]
        etcd.ctl("compaction", str(revision), ok=(0,))
        changes(hosts, "after-kill")
    with test.step("all hosts are stopped and started: everything is found again"):
        for host in reversed(hosts):
            host.down()
        # Not one after the other: none serves before there are members enough.
        starts = [threading.Thread(target=host.start_up) for host in hosts]
        for start in starts:
            start.start()
        for start in starts:
            start.join()
        for host in hosts:
            expect(host.healthy(), f"{host.name} is not healthy")
            for name, body in bodies.items():
                expect(host.get("shared", f"of-{name}") == body, f"of-{name} on {host.name}")
        with h1.attach("disk-h2") as disk:
            expect(len(disk.read(5 * MIB, 1300)) == 1300, "the image")
    with test.step("an etcd that has lost its data is not taken for a new cluster"):
        h1.down()
        etcd.ctl("del", "/atoll/cluster", ok=(0,))
        try:
            h1.start_up()
        except Failed as error:
            expect("restore its snapshot" in str(error), str(error))
        else:
            raise Failed("it started")
    for host in hosts:
        host.kill_all()


def changes(hosts, bucket):
    """A bucket made on one host is there on the others at once."""
    within(hosts[0].namespace, lambda: hosts[0].s3(attempts=3).create_bucket(Bucket=bucket))
    for host in hosts:
        host.put(bucket, host.name, b"value")
    for host in hosts:
        for other in hosts:
            expect(host.get(bucket, other.name) == b"value", f"{other.name} on {host.name}")


def with_the_embedded_server(test, namespaces):
    e1, e2 = [Host(test, namespaces.add_host(f"e{n}", f"{NETWORK}.{n + 10}"), f"e{n}", f"{NETWORK}.{n + 10}") for n in (1, 2)]
    with test.step("two hosts on the embedded server, which speaks TLS to the other host") as note:
        e1.start_up("--failure-domain", "host", "--copies", "2", "--osds", "1", "--osd-size", "4G")
        token = json.loads(e1.cli("cluster", "token", "create", "--role", "osd", "--json").stdout)["token"]
        said = e2.start_up("--join", token, "--osds", "1", "--osd-size", "4G")
        wait_for("both are healthy", lambda: e1.healthy() and e2.healthy(), 60)
        expect(set(e2.process_ids()) == {"supervisor", "osd.1"}, f"a host of role osd runs OSDs only: {e2.process_ids()}")
        expect(not (e2.data / "keys" / "kms.json").exists(), "it has no key file")
        endpoint = json.loads((e2.data / "cluster.json").read_text())["state_endpoints"][0]
        expect(endpoint.startswith(f"https://{e1.address}:"), endpoint)
        within(e1.namespace, lambda: e1.s3().create_bucket(Bucket="bucket"))
        e1.put("bucket", "k", b"v")
        expect(e1.get("bucket", "k") == b"v", "other bytes")
        with e1.attach_new("i") as disk:
            disk.write(0, b"x" * 4096)
        note(said.splitlines()[0][:60] if said else "")
    with test.step("its restart keeps address and certificate, and the other host goes on"):
        e1.kill("cluster-state")
        time.sleep(1)
        wait_for("cluster state is back", lambda: e1.cli("status", "--json", ok=None).returncode == 0, 30)
        with e1.attach_new("j") as disk:
            disk.write(0, b"x" * 4096)


if __name__ == "__main__":
    main(scenario)
