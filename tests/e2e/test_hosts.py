"""Three hosts and an etcd with TLS, each in a network namespace of its own: joining by token, copies on
different hosts, I/O through every host, and an etcd that is away for half a minute."""

import json
import os
import secrets
import shutil
import signal
import socket
import ssl
import threading
import time
import urllib.parse
import urllib.request

import pytest
from lib.cluster import MIB
from lib.console import Address, Caller, User
from lib.nbd import Nbd, connect_patiently
from lib.net import ETCD_IP, NETWORK, Etcd, Host, Namespaces, enter, start_all, stopped, within
from lib.s3 import read
from lib.verdicts import DataFailure, intact
from lib.waiting import Failed, NotYet, stays, under_load, wait_for

pytestmark = [pytest.mark.root, pytest.mark.needs("ip", "etcd", "etcdctl", "openssl")]


# Gateways look every 2 s at what is wrapped how.
FOLLOW_SECONDS = 2.5
# Of locks and announcements that etcd could not renew.
LEASES_EXPIRE_SECONDS = 12
KILLED_SECONDS = 5
# An operation may take this long while etcd is away. Its own limits in the gateway are 1 s each.
SLOWEST_SECONDS = 8


class Load:
    """Reads and writes through all hosts until it is stopped; the slowest of each kind is remembered."""

    def __init__(self, hosts):
        self.stop, self.errors, self.lost, self.slowest, self.counts = threading.Event(), [], [], {}, {}
        self.threads = [
            threading.Thread(target=self.run, args=(host, work), daemon=True)
            for host in hosts
            for work in (self.objects, self.blocks)
        ]
        for thread in self.threads:
            thread.start()

    def run(self, host, work):
        try:
            enter(host.namespace)
            work(host)
        except DataFailure as error:
            self.lost.append(f"{host.name}: {error}")
        except Exception as error:
            self.errors.append(f"{host.name} {work.__name__}: {type(error).__name__}: {error}")

    def timed(self, kind, operation, *arguments, **named):
        started = time.monotonic()
        value = operation(*arguments, **named)
        self.slowest[kind] = max(self.slowest.get(kind, 0), time.monotonic() - started)
        self.counts[kind] = self.counts.get(kind, 0) + 1
        return value

    def objects(self, host):
        s3, number = host.s3(), 0
        while not self.stop.wait(0.05):
            key, body = f"{host.name}-{number % 20}", os.urandom(20_000)
            self.timed(f"put {host.name}", s3.put_object, Bucket="shared", Key=key, Body=body)
            found = self.timed(f"get {host.name}", read, s3, "shared", key)
            intact(found == body, f"{key} has other bytes")
            number += 1

    def blocks(self, host):
        with connect_patiently(lambda: Nbd((host.address, 10809), f"disk-{host.name}"), 30) as disk:
            number = 0
            while not self.stop.wait(0.02):
                offset, body = number % 1000 * 8192, os.urandom(8192)
                self.timed(f"write {host.name}", disk.write, offset, body)
                found = self.timed(f"read {host.name}", disk.read, offset, 8192)
                intact(found == body, f"other bytes at {offset}")
                number += 1

    def finish(self):
        """Stops it; returns how many operations there were and what the slowest took."""
        self.stop.set()
        for thread in self.threads:
            thread.join(60)
        intact(not self.lost, "\n".join(self.lost))
        assert not self.errors, "\n".join(self.errors)
        assert not any(thread.is_alive() for thread in self.threads), "an operation hangs"
        assert len(self.counts) == 4 * len(self.threads) // 2, f"some did nothing: {self.counts}"
        return sum(self.counts.values()), max(self.slowest.values())


def on_different_hosts(etcd):
    """Every PG's members are on hosts of their own; returns the number of PGs."""
    host_of = {int(key.rsplit("/", 1)[1]): record["host"] for key, record in etcd.records("/atoll/osds/").items()}
    pgs = etcd.records("/atoll/pgs/")
    for key, record in pgs.items():
        names = [host_of[member] for member in record["members"]]
        assert len(names) == 3 and len(set(names)) == 3, f"{key}: {names}"
    return len(pgs)


class World:
    """An etcd, and three hosts that join one after the other."""

    def __init__(self, scenario):
        self.namespaces = Namespaces(scenario)
        self.etcd = Etcd(scenario, self.namespaces.add_host("etcd", ETCD_IP))
        self.etcd.start()
        self.hosts = [self.host(scenario, f"h{n}", f"{NETWORK}.{n}") for n in (1, 2, 3)]
        self.h1, self.h2, self.h3 = self.hosts
        self.client = self.etcd.client("h1")
        self.key_file = self.h1.data / "keys" / "kms.json"
        self.bodies = {host.name: os.urandom(3 * MIB) for host in self.hosts}

    def host(self, scenario, name, address):
        return Host(scenario, self.namespaces.add_host(name, address), name, address)

    def first(self, authority, client):
        """Arguments with which the first host starts."""
        osds = ["--failure-domain", "host", "--osds", "1", "--osd-size", "4G"]
        return [
            "--etcd",
            self.etcd.url,
            *(["--etcd-ca", self.etcd.directory / authority] if authority else []),
            *client,
            *osds,
        ]

    def find_objects(self):
        for host in self.hosts:
            for name, body in self.bodies.items():
                intact(host.get("shared", f"of-{name}") == body, f"of-{name} on {host.name}")


@pytest.fixture(scope="module")
def world(scenario):
    return World(scenario)


@pytest.fixture(scope="module")
def one(world):
    """The first host has started."""
    world.said = world.h1.start_up(*world.first("ca.pem", world.client))
    world.tokens = [json.loads(world.h1.cli("cluster", "token", "create", "--json").stdout) for _ in range(3)]
    return world


@pytest.fixture(scope="module")
def two(one):
    """The second one has joined with 'atoll up --join'."""
    keys = ["--key-service", one.key_file]
    join = [
        "--join",
        one.h2.token_file(one.tokens[0]["token"]),
        *one.etcd.client("h2"),
        "--osds",
        "2",
        "--osd-size",
        "4G",
    ]
    one.said_to_join = one.h2.start_up(*join, *keys)
    return one


@pytest.fixture(scope="module")
def three(scenario, two):
    """The third one has joined with 'atoll join', 'atoll osd create' and 'atoll up', and all serve."""
    h3, keys = two.h3, ["--key-service", two.key_file]
    join = [h3.token_file(two.tokens[2]["token"]), *two.etcd.client("h3"), "--host", "h3", "--listen", h3.address]
    h3.cli("join", *join, *keys)
    h3.cli("osd", "create", "--device", scenario.directory / "h3.device", "--size", "4G")
    started = time.monotonic()
    h3.start_up()
    for host in two.hosts:
        wait_for(f"{host.name} is healthy", host.healthy, 60)
    two.seconds = time.monotonic() - started
    return two


@pytest.fixture(scope="module")
def stored(three):
    """Each host has put an object, and has an image."""
    within(three.h1.namespace, lambda: three.h1.s3().create_bucket(Bucket="shared"))
    for host in three.hosts:
        host.put("shared", f"of-{host.name}", three.bodies[host.name])
        three.h2.create_image(f"disk-{host.name}", "64M")
    with three.h2.attach("disk-h2") as disk:
        disk.write(5 * MIB, b"from host two" * 100)
    return three


@pytest.mark.parametrize(
    ("authority", "with_client", "words"),
    [("other-ca.pem", True, "another authority"), ("ca.pem", False, "--etcd-cert"), (None, True, "--etcd-ca")],
    ids=["wrong authority", "no certificate", "no authority"],
)
def test_an_etcd_is_refused_with_a_reason(scenario, world, authority, with_client, words):
    """A wrong authority, no certificate and no authority are refused with a reason."""
    h1 = world.h1
    wrong = Host(scenario, h1.namespace, "h1", h1.address, directory=f"wrong-{authority}-{with_client}")
    with pytest.raises(Failed, match=words):
        wrong.start_up(*world.first(authority, world.client if with_client else []), timeout=100)


def test_the_first_host_starts_and_waits_for_two_more(one):
    """The first host starts and waits for two more."""
    assert "OSDs in 3 hosts (1 so far" in one.said, one.said


def test_host_2_joins_and_gets_a_number_of_its_own(two):
    """Host 2 joins with 'atoll up --join' and gets a number of its own."""
    assert "will serve when" in two.said_to_join, two.said_to_join
    osds = two.etcd.records("/atoll/osds/")
    assert {record["host"] for record in osds.values()} >= {"h1", "h2"} and len(osds) >= 3, f"{osds}"


def test_a_used_a_revoked_and_a_cut_token_are_refused(two):
    """A used, a revoked and a cut token are refused."""
    tokens, h3 = two.tokens, two.h3
    two.h1.cli("cluster", "token", "rm", tokens[1]["id"])
    for text, words in (
        (tokens[0]["token"], "used by host 'h2'"),
        (tokens[1]["token"], "revoked"),
        (tokens[2]["token"][:-7], "not whole"),
    ):
        done = h3.cli("join", h3.token_file(text), *two.etcd.client("h3"), "--host", "h3", ok=None)
        assert done.returncode == 1 and words in done.stderr, f"{words}: {done.stderr}"


def test_host_3_joins_and_then_all_serve(three, note):
    """Host 3 joins with 'atoll join', 'atoll osd create' and 'atoll up'; then all serve."""
    assert all(host.healthy() for host in three.hosts)
    note(f"{three.seconds:.1f} s")


def test_copies_are_on_different_hosts(three, note):
    """Copies are on different hosts, and OSDs announce addresses that others reach."""
    note(f"{on_different_hosts(three.etcd)} PGs")
    addresses = {record["address"].rsplit(":", 1)[0] for record in three.etcd.records("/atoll/osd_up/").values()}
    assert addresses == {host.address for host in three.hosts}, f"{addresses}"
    states = {token["used_by"] for token in json.loads(three.h2.cli("cluster", "token", "ls", "--json").stdout)}
    assert states - {None} == {"h2", "h3"}, f"{states}"


def test_objects_put_on_each_host_are_found_on_each(stored):
    """Objects put on each host are found on each."""
    stored.find_objects()


def test_local_keys_are_rotated_in_steps_that_leave_all_hosts_able_to_read(stored):
    """Local keys are rotated with several hosts only in steps that leave all of them able to read."""
    h1, hosts = stored.h1, stored.hosts
    done = h1.cli("key", "rotate", ok=None)
    assert done.returncode == 1 and "3 hosts have copies" in done.stderr, f"{done.returncode} {done.stderr}"
    h1.cli("key", "rotate", "--no-rewrap")
    for host in hosts[1:]:
        shutil.copyfile(stored.key_file, host.data / "keys" / "kms.json")
    h1.cli("key", "rewrap")

    def all_read():
        return all(host.get("shared", "of-h2") == stored.bodies["h2"] for host in hosts)

    stays("all hosts read", all_read, FOLLOW_SECONDS)


def test_an_image_written_on_one_host_is_read_on_another(stored):
    """An image written on one host is read on another."""
    with stored.h3.attach("disk-h2") as disk:
        intact(disk.read(5 * MIB, 1300) == b"from host two" * 100, "other bytes")


@pytest.mark.nightly
@pytest.mark.parametrize("seconds", [14, pytest.param(30, marks=pytest.mark.nightly)])
def test_reads_and_writes_go_on_while_etcd_is_stopped(stored, seconds, note):
    """etcd is stopped: reads and writes go on through every host, and locks are taken again when it is back."""
    load = Load(stored.hosts)
    wait_for("all loads run", lambda: len(load.counts) == 4 * len(stored.hosts), 30)
    with stopped(stored.etcd.process.pid):
        under_load(seconds)
        before = sum(load.counts.values())
        wait_for("it goes on", lambda: sum(load.counts.values()) > before, 2)
        for host in stored.hosts:
            check_health(host)
    under_load(LEASES_EXPIRE_SECONDS)
    for host in stored.hosts:
        writer = json.loads(host.cli("image", "info", f"disk-{host.name}", "--json").stdout)["writer"]
        assert writer, f"the lock of disk-{host.name} is not taken again: others could take the image"
    check_load(load, note)


def test_osds_are_announced_again(stored):
    """OSDs are announced again, and changes are seen everywhere."""
    wait_for("all OSDs are up", lambda: len(stored.etcd.records("/atoll/osd_up/")) == 4, 30)
    changes(stored.hosts, "after-pause")


@pytest.mark.nightly
def test_etcd_is_killed_and_started_again_on_its_data(stored, note):
    """etcd is killed and started again on its data, with I/O going on."""
    etcd, load = stored.etcd, Load(stored.hosts)
    wait_for("all loads run", lambda: len(load.counts) == 4 * len(stored.hosts), 30)
    os.kill(etcd.process.pid, signal.SIGKILL)
    etcd.process.wait()
    under_load(KILLED_SECONDS)
    etcd.start()
    under_load(KILLED_SECONDS)
    check_load(load, note)
    revision = json.loads(etcd.ctl("get", "x", "-w", "json", ok=(0,)).stdout)["header"]["revision"]
    etcd.ctl("compaction", str(revision), ok=(0,))
    changes(stored.hosts, "after-kill")


def test_osds_of_a_host_without_an_admin_server_are_named(stored):
    """Nobody can be asked for them, which 'atoll slow', 'atoll top' and the console say."""
    h1, etcd = stored.h1, stored.etcd
    etcd.ctl("del", "/atoll/admin_servers/h2", ok=(0,))
    there = {f"osd.{key.rsplit('/', 1)[1]}" for key, one in etcd.records("/atoll/osds/").items() if one["host"] == "h2"}
    caller = console(h1, h1)
    charts = within(h1.namespace, lambda: caller.call("GET", "/api/v1/figures")).document["unanswered"]
    for unanswered in (charts, figures(h1)[1], json.loads(h1.cli("slow", "--json").stdout)["unanswered"]):
        assert {(one["host"], one["process"]) for one in unanswered} == {("h2", osd) for osd in there}, unanswered
        assert all("no admin server" in one["reason"] for one in unanswered), unanswered


@pytest.mark.nightly
def test_all_hosts_are_stopped_and_started(stored):
    """All hosts are stopped and started: everything is found again."""
    for host in reversed(stored.hosts):
        host.down()
    start_all(stored.hosts)
    for host in stored.hosts:
        assert host.healthy(), f"{host.name} is not healthy"
    stored.find_objects()
    with stored.h1.attach("disk-h2") as disk:
        assert len(disk.read(5 * MIB, 1300)) == 1300, "the image"


def test_an_etcd_that_has_lost_its_data_is_not_taken_for_a_new_cluster(three):
    """An etcd that has lost its data is not taken for a new cluster."""
    three.h1.down()
    three.etcd.ctl("del", "/atoll/cluster", ok=(0,))
    with pytest.raises(Failed, match="restore its snapshot"):
        three.h1.start_up()
    for host in three.hosts:
        host.kill_all()


def check_health(host):
    """The gateway of a host says that it is well."""
    url = f"http://{host.address}:9000/-/health"
    with within(host.namespace, lambda: urllib.request.urlopen(url, timeout=10)) as answer:
        assert answer.status == 200, f"{host.name}: {answer.status}"


def check_load(load, note):
    """Ends the load: nothing took long."""
    count, slowest = load.finish()
    note(f"{count} operations, the slowest took {slowest:.2f} s")
    assert slowest < SLOWEST_SECONDS, f"the slowest took {slowest:.1f} s: {load.slowest}"


def changes(hosts, bucket):
    """A bucket made on one host is there on the others at once."""
    within(hosts[0].namespace, lambda: hosts[0].s3(attempts=3).create_bucket(Bucket=bucket))
    for host in hosts:
        host.put(bucket, host.name, b"value")
    for host in hosts:
        for other in hosts:
            intact(host.get(bucket, other.name) == b"value", f"{other.name} on {host.name}")


@pytest.fixture(scope="module")
def embedded(scenario, world):
    """Two hosts on the embedded server, the second of role osd."""
    e1, e2 = (world.host(scenario, f"e{n}", f"{NETWORK}.{n + 10}") for n in (1, 2))
    e1.start_up("--failure-domain", "host", "--copies", "2", "--osds", "1", "--osd-size", "4G")
    token = json.loads(e1.cli("cluster", "token", "create", "--role", "osd", "--json").stdout)["token"]
    e2.start_up("--join", e2.token_file(token), "--osds", "1", "--osd-size", "4G")
    wait_for("both are healthy", lambda: e1.healthy() and e2.healthy(), 60)
    return e1, e2


def test_a_host_of_role_osd_runs_osds_only(embedded):
    """A host of role osd runs OSDs only, has no keys, and speaks TLS with the embedded server of the other host."""
    e1, e2 = embedded
    assert set(e2.process_ids()) == {"supervisor", "osd.1", "admin"}, f"{e2.process_ids()}"
    assert not (e2.data / "keys" / "kms.json").exists(), "it has no key file"
    endpoint = json.loads((e2.data / "cluster.json").read_text())["state_endpoints"][0]
    assert endpoint.startswith(f"https://{e1.address}:"), endpoint


def test_two_hosts_on_the_embedded_server_serve(embedded):
    """Two hosts on the embedded server serve objects and images."""
    e1, _ = embedded
    within(e1.namespace, lambda: e1.s3().create_bucket(Bucket="bucket"))
    e1.put("bucket", "k", b"v")
    intact(e1.get("bucket", "k") == b"v", "other bytes")
    with e1.attach_new("i") as disk:
        disk.write(0, b"x" * 4096)


class Writer:
    """Writes to an image and a bucket through a host, until it is closed."""

    def __init__(self, host):
        within(host.namespace, lambda: host.s3(attempts=3).create_bucket(Bucket="seen"))
        host.create_image("seen", "16M")
        self.host, self.stop = host, threading.Event()
        self.thread = threading.Thread(target=lambda: within(host.namespace, self.run))
        self.thread.start()

    def run(self):
        s3 = self.host.s3(attempts=3)
        with connect_patiently(lambda: Nbd((self.host.address, 10809), "seen"), 30) as disk:
            while not self.stop.wait(0.01):
                disk.write(0, os.urandom(4096), fua=True)
                s3.put_object(Bucket="seen", Key="k", Body=b"x")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.stop.set()
        self.thread.join(60)


def figures(host, *options):
    """What 'atoll top' tells of each subject, and who has not told."""
    told = json.loads(host.cli("top", "--count", "1", "--interval", "2", "--json", *options).stdout)
    return {(one["kind"], one["name"]): one for one in told["figures"]}, told["unanswered"]


def console(host, maker):
    """A session of the admin API of a host, for calls within its namespace. `maker` has the key service."""
    name = f"of-{host.name}-{secrets.token_hex(4)}"
    made = json.loads(maker.cli("operator", "create", name, "--role", "read-only", "--json").stdout)
    user = User(name, made["password"])
    address = Address(f"https://{host.address}:8443", user, user, host.data / "tls" / "ca.crt")
    return within(host.namespace, lambda: Caller.logged_in(address, user))


@pytest.mark.nightly
def test_top_shows_what_both_hosts_do_on_each(embedded):
    """OSDs of both hosts, and the gateway and the image of the first, are seen from the second, and as a sum."""
    e1, e2 = embedded
    with Writer(e1):
        for host in (e1, e2):
            told, unanswered = figures(host)
            assert unanswered == [], unanswered
            assert {("osd", "osd.0"), ("osd", "osd.1"), ("gateway", "gateway@e1"), ("image", "seen")} <= told.keys()
            # Each object has a copy on both; clients' operations count where they are answered.
            parts = [told["osd", f"osd.{n}"]["writes_per_second"] for n in (0, 1)]
            assert told["cluster", "cluster"]["writes_per_second"] == pytest.approx(sum(parts), abs=0.2), told
            assert sum(parts) > 0 and told["image", "seen"]["writes_per_second"] > 0, told
        told, _ = figures(e1, "--host", "e2")
        assert ("osd", "osd.1") in told and ("osd", "osd.0") not in told, told.keys()


def test_a_host_with_osds_only_makes_nobody_an_operator(embedded):
    """Its user in cluster state has no right to. With all rights it would sign nothing: test_signed_records."""
    e1, e2 = embedded
    for change in (("operator", "create", "intruder"), ("settings", "set", "frame_mode_client", "crc")):
        refused = e2.cli(*change, ok=(1,)).stderr
        assert "who has no right to it" in refused or "no key service here to sign with" in refused, refused
    assert "intruder" not in e1.cli("operator", "ls").stdout


def test_a_session_at_a_host_with_osds_only_ends_with_its_operator(embedded):
    """That host cannot keep it in cluster state, and still learns of its end with the next call."""
    e1, e2 = embedded
    caller = console(e2, e1)
    asked = lambda: within(e2.namespace, lambda: caller.call("GET", "/api/v1/session").status)
    assert asked() == 200
    listed = json.loads(e1.cli("operator", "sessions", "ls", "--json").stdout)
    assert caller.session["id"] not in [session["id"] for session in listed]
    e1.cli("operator", "sessions", "end", "--operator", caller.session["user"])
    assert asked() == 401


def test_the_console_charts_both_hosts(embedded):
    """The charts of each host's console have the other host's OSD, and a sum of both."""
    for host, other in zip(embedded, ("osd.1", "osd.0")):
        caller = console(host, embedded[0])

        def charted(host=host, caller=caller, other=other):
            asked = "/api/v1/figures?kind=osd&kind=cluster"
            document = within(host.namespace, lambda: caller.call("GET", asked)).document
            if document["unanswered"]:
                raise NotYet(f"no answer: {document['unanswered']}")
            series = {one["name"]: one["reads_per_second"] for one in document["series"]}
            known = [name in series and series[name][-1] is not None for name in (other, "cluster")]
            return all(known) and document["count"] > 2

        wait_for(f"the console of {host.name} has charts of {other}", charted, 30)


def test_slow_operations_of_both_hosts_are_shown_on_each(embedded):
    """A write that waits for the second host's OSD is told there by the first host's gateway, and by its console."""
    e1, e2 = embedded
    s3 = within(e1.namespace, lambda: e1.s3(attempts=3))
    put = lambda body: within(e1.namespace, lambda: s3.put_object(Bucket="held-up", Key="slow", Body=body))
    within(e1.namespace, lambda: s3.create_bucket(Bucket="held-up"))
    # The client is there already, so that its making takes nothing of the time in which the OSD is stopped.
    put(b"before")
    with stopped(e2.process_ids()["osd.1"]):
        thread = threading.Thread(target=put, args=(b"after",))
        thread.start()
        time.sleep(1)
    thread.join(60)
    caller = console(e2, e1)
    found = within(e2.namespace, lambda: caller.call("GET", "/api/v1/slow-operations?limit=1000")).document
    told = json.loads(e2.cli("slow", "--json", "--limit", "1000").stdout)
    for document in (found, told):
        assert document["unanswered"] == [], document["unanswered"]
        puts = [(one["host"], one["process"]) for one in document["operations"] if one["object"] == "/held-up/slow"]
        assert ("e1", "gateway") in puts, document["operations"]


@pytest.mark.nightly
def test_a_host_that_does_not_answer_is_named(embedded, note):
    """With the reason and soon, by 'atoll slow' and the console; the rest is told."""
    e1, e2 = embedded
    caller = console(e1, e1)
    with stopped(e2.process_ids()["admin"]):
        begun = time.monotonic()
        told = e1.cli("slow").stdout
        note(f"{time.monotonic() - begun:.1f} s")
        assert "host e2 does not answer: no answer within 4 s" in told and "gateway" in told, told
        document = within(e1.namespace, lambda: caller.call("GET", "/api/v1/figures?kind=osd")).document
        assert [one["host"] for one in document["unanswered"]] == ["e2"], document["unanswered"]
        assert "osd.0" in {one["name"] for one in document["series"]}, document
    with stopped(e2.process_ids()["osd.1"]):
        told = json.loads(e1.cli("slow", "--json").stdout)
        assert [(one["host"], one["process"]) for one in told["unanswered"]] == [("e2", "osd.1")], told["unanswered"]


def ask_as_host(host, pair, path, protocol="atoll-host/1"):
    """The answer of a host's admin server, in a word and whole, to who shows a certificate, or none."""

    def ask():
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols([protocol])
        if pair:
            context.load_cert_chain(*pair)
        with (
            socket.create_connection((host.address, 8443), 10) as plain,
            context.wrap_socket(plain) as stream,
        ):
            stream.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            answer = b""
            while part := stream.recv(65536):
                answer += part
            return answer.decode(errors="replace")

    text = within(host.namespace, ask)
    return text.split()[1], text


def test_only_hosts_are_told_what_processes_do(embedded, world):
    """A certificate that is none of a host is refused, and noted; without one there is no handshake. A host's own opens
    nothing that operators may do."""
    e1, e2 = embedded
    own = [e2.data / "tls" / name for name in ("server.crt", "server.key")]
    stranger = [world.etcd.directory / name for name in ("h1.pem", "h1.key")]
    for path in ("/slow", "/metrics", "/figures"):
        assert ask_as_host(e1, own, path)[0] == "200", path
        status, text = ask_as_host(e1, stranger, path)
        assert status == "403" and "osd.0" not in text, text
        with pytest.raises(ssl.SSLError, match="(?i)certificate"):
            ask_as_host(e1, None, path)
    assert "security: refused_key" in (e1.data / "log" / "admin.log").read_text()
    assert ask_as_host(e1, own, "/api/v1/status")[0] == "404"
    assert ask_as_host(e1, own, "/api/v1/status", protocol="http/1.1")[0] == "401"
    assert ask_as_host(e1, own, "/metrics/osd.0", protocol="http/1.1")[0] == "401"


def test_a_stolen_key_is_worthless_once_the_host_has_another(embedded, world):
    """The key of a host's record decides, on both sides; the record follows the certificate."""
    e1, e2 = embedded
    places = [e2.data / "tls" / name for name in ("server.key", "server.crt")]
    stolen = [e1.scenario.directory / place.name for place in places]
    for place, copy, new in zip(places, stolen, ("h2.key", "h2.pem")):
        shutil.copy(place, copy)
        shutil.copy(world.etcd.directory / new, place)
    pair = [stolen[1], stolen[0]]
    wait_for("the old key is refused", lambda: ask_as_host(e1, pair, "/slow")[0] == "403", 20)
    wait_for("both tell", lambda: json.loads(e1.cli("slow", "--json").stdout)["unanswered"] == [], 20)
    wait_for("both are told", lambda: json.loads(e2.cli("slow", "--json").stdout)["unanswered"] == [], 20)


def test_its_restart_keeps_address_and_certificate(embedded):
    """The embedded server's restart keeps address and certificate, and the other host goes on."""
    e1, _ = embedded
    e1.restarted("cluster-state", e1.kill("cluster-state"))
    wait_for("cluster state is back", lambda: e1.cli("status", "--json", ok=None).returncode == 0, 30)
    with e1.attach_new("j") as disk:
        disk.write(0, b"x" * 4096)
