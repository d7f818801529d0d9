"""Data in flight between Atoll's processes: what an eavesdropper sees, what becomes of frames that somebody
on the way changes, repeats, leaves out, cuts or exchanges, keys that change under load, and keys that are revoked."""

import itertools
import json
import pathlib
import random
import time

import pytest
from lib import handshake
from lib.cluster import MIB, socket_inodes
from lib.handshake import client_key, etcdctl, knock, osd_public_keys
from lib.load import BlockLoad
from lib.nbd import (
    connect_patiently,
)
from lib.relay import ATTACKS, ENDS, OTHER, Relay
from lib.s3 import Uploader, read
from lib.verdicts import intact
from lib.waiting import not_yet, stays, wait_for

pytestmark = pytest.mark.needs("tcpdump", "etcdctl")


# Nothing writes these by itself.
KEY = "a-key-that-is-nobodys-business-Zq7fT1xWm0Lr9"
PATTERN = b"Atoll-keeps-its-secrets-in-flight:Bv4Kc8Hd2Np6Js3Yg5Ea#1984@!:-)"[:64]
CUT_OFF_SECONDS = 5


def captured(scenario, cluster, name):
    """What tcpdump sees on the OSDs' ports during some traffic."""
    ports = sorted(port for process, port in cluster.listening_ports() if process.startswith("osd."))
    assert len(ports) == cluster.osds, f"ports of OSDs: {ports}"
    path = scenario.directory / f"{name}.pcap"
    tcpdump = scenario.start(
        "tcpdump",
        "-i",
        "lo",
        "-s",
        "0",
        "-U",
        "-Z",
        "root",
        "-B",
        "16384",
        "-w",
        path,
        " or ".join(f"tcp port {port}" for port in ports),
    )
    line = tcpdump.stderr.readline()
    assert "listening on" in line, f"tcpdump: {line}{tcpdump.stderr.read() if tcpdump.poll() is not None else ''}"
    traffic(cluster)
    wait_for("it is written", lambda: is_quiet(path), 10, 0.2)
    tcpdump.terminate()
    tcpdump.wait(10)
    data = path.read_bytes()
    path.unlink()
    assert len(data) > 4 * MIB, f"only {len(data)} bytes were captured"
    return data


def traffic(cluster):
    """Objects and blocks that hold the pattern."""
    s3, body = cluster.s3(), PATTERN * (MIB // 64)
    for number in range(8):
        s3.put_object(Bucket="flight", Key=f"{KEY}/{number}", Body=body[number:], Metadata={"mark": "in-the-clear"})
    s3.list_objects_v2(Bucket="flight", Prefix=KEY)
    intact(read(s3, "flight", f"{KEY}/0") == body, "other bytes come back")
    with cluster.nbd("flight") as connection:
        connection.write(0, body)
        intact(connection.read(0, MIB) == body, "other bytes come back")


def is_quiet(path):
    """Whether a file does not grow."""
    with not_yet(FileNotFoundError):
        size = path.stat().st_size
    time.sleep(0.2)
    return size == path.stat().st_size > 0


@pytest.fixture(scope="module")
def cluster(scenario):
    cluster = scenario.cluster(osd_size="4G")
    # Unix sockets are on no wire.
    cluster.options = ["--frame-mode", "cluster=secure-128", "--transport", "tcp"]
    cluster.up()
    cluster.s3().create_bucket(Bucket="flight")
    cluster.create_image("flight", "64M")
    yield cluster
    cluster.down()


@pytest.fixture(scope="module")
def crc(cluster):
    """Gateways speak in crc frames."""
    cluster.cli("settings", "set", "frame_mode_gateway", "crc")
    restart(cluster, "gateway")


@pytest.fixture(scope="module")
def gateway_key(cluster):
    """Name and public key of the gateway's key."""
    keys = {record["role"]: record for record in cluster.json("cluster", "key", "ls")}
    return keys["gateway"]["name"], keys["gateway"]["public_key"]


@pytest.fixture(scope="module")
def uploads(cluster):
    """Uploads that go on and on."""
    s3, data = cluster.s3(read_timeout=3), random.Random(1).randbytes(20_000)
    items = ((f"load/{number % 200}", lambda: data) for number in itertools.count())
    uploader = Uploader(s3, "flight", threads=2).start(items)
    wait_for("uploads are acked", lambda: len(uploader.ack_times) > 20, 30)
    yield uploader
    uploader.stopping = True


@pytest.fixture(scope="module")
def left(cluster):
    """A load on an image, for when an OSD is left by the others."""
    load = spread_load(cluster, "left", 2)
    wait_for("writes are acked", lambda: load.acked > 20, 30)
    yield load
    load.stop(60)


@pytest.fixture(scope="module")
def relays(scenario, cluster):
    """Clients are led through a relay to every OSD."""
    command, environment = etcdctl(cluster)
    relays = {}
    listed = scenario.run(*command, "get", "--prefix", "/atoll/osd_up/", "--print-value-only", env=environment).stdout
    for line in filter(str.strip, listed.splitlines()):
        record = json.loads(line)
        host, port = record["address"].rsplit(":", 1)
        relay = relays[record["id"]] = Relay((host, int(port)))
        record["address"] = f"127.0.0.1:{relay.port}"
        scenario.run(*command, "put", f"/atoll/osd_up/{record['id']}", json.dumps(record), env=environment)
    assert len(relays) == cluster.osds, f"{relays}"
    restart(cluster, "nbd")
    return relays


@pytest.fixture(scope="module")
def relayed(cluster, relays):
    """A load on an image through them."""
    load = spread_load(cluster, "relayed", 4)
    wait_for("writes are acked", lambda: load.acked > 50 and load.reads > 50, 30)
    yield load
    load.stop(60)


def test_status_shows_the_frame_mode_of_each_role(cluster):
    """Status shows the frame mode of each role."""
    modes, text = cluster.json("status")["frame_modes"], cluster.cli("status").stdout
    assert modes == {"cluster": "secure-128", "client": "secure", "gateway": "secure"}, modes
    assert "cluster secure-128, client secure, gateway secure" in text, text


def test_secure_neither_key_names_nor_contents_are_seen_on_the_wire(scenario, cluster, note):
    """secure: neither key names nor contents are seen on the wire."""
    data = captured(scenario, cluster, "secure")
    for needle in (KEY.encode(), PATTERN[16:48], b"in-the-clear"):
        assert needle not in data, f"{needle} is on the wire"
    note(f"{len(data) / MIB:.0f} MiB captured")


def test_a_roles_mode_is_changed(cluster, note):
    """A role's mode is changed: status tells it, and counts connections that are older."""
    cluster.s3().list_objects_v2(Bucket="flight")
    cluster.cli("settings", "set", "frame_mode_gateway", "crc")
    assert cluster.json("settings", "ls")["frame_mode_gateway"] == "crc", "settings ls does not"
    wait_for("older connections are counted", lambda: cluster.json("status")["links_in_other_mode"] > 0, 15)
    assert "gateway crc" in cluster.cli("status").stdout and "older" in cluster.cli("status").stdout, cluster.cli(
        "status"
    ).stdout
    restart(cluster, "gateway")
    cluster.s3().list_buckets()
    wait_for("there are none any more", lambda: cluster.json("status")["links_in_other_mode"] == 0, 15)
    note(str(cluster.json("status")["frame_modes"]))


def test_crc_key_names_are_seen(scenario, cluster, crc, note):
    """crc: key names are seen, contents are sealed all the same."""
    data = captured(scenario, cluster, "crc")
    assert KEY.encode() in data, "the key name is not on the wire: this check sees nothing"
    assert PATTERN[16:48] not in data, "contents are on the wire"
    note(f"{data.count(KEY.encode())} times the key name in {len(data) / MIB:.0f} MiB")


def test_the_mode_is_changed_back(cluster):
    """The mode is changed back."""
    cluster.cli("settings", "set", "frame_mode_gateway", "secure")
    restart(cluster, "gateway")
    intact(read(cluster.s3(), "flight", f"{KEY}/0") == PATTERN * (MIB // 64), "other bytes come back")


def restart(cluster, name):
    cluster.restarted(name, cluster.kill(name))
    wait_for("it serves again", cluster.is_serving)


def test_a_client_that_wants_another_mode_than_its_roles_is_refused(cluster):
    """A client that wants another mode than its role's is refused, and both sides are told."""
    public, client = osd_public_keys(cluster), client_key(cluster)
    port = next(port for name, port in cluster.listening_ports() if name == "osd.0")
    for mode, answers in ((b"\1", False), (b"\2", True), (b"\3", True)):
        answer, closed = knock(port, handshake.Initiator(public["osd.0"], client).first_message(mode), 2)
        assert len(answer) > 32 and closed == answers, f"mode {mode}: {answer!r}, closed: {closed}"
    log = (cluster.data / "log" / "osd.0.log").read_text()
    assert "wants crc frames, and cluster state says secure for its role, client" in log, log[-2000:]


def links(cluster, name):
    """Established connections of a process to other processes' OSD ports: from /proc."""
    ports = {port for process, port in cluster.listening_ports() if process.startswith("osd.") and process != name}
    inodes, found = set(socket_inodes(cluster.process_ids()[name])), 0
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        found += fields[3] == "01" and int(fields[2].rsplit(":", 1)[1], 16) in ports and fields[9] in inodes
    return found


def test_every_process_has_a_key_of_its_own(cluster):
    """Every process has a key of its own."""
    keys = {record["role"]: record for record in cluster.json("cluster", "key", "ls")}
    name = keys["gateway"]["name"]
    assert set(keys) == {"osd", "client", "gateway"} and name.startswith("gateway@"), f"{keys}"


def test_the_gateways_key_is_revoked_under_load(cluster, gateway_key, uploads, note):
    """The gateway's key is revoked under load: it is cut off within seconds, others go on."""
    uploader, (name, public), before = uploads, gateway_key, links(cluster, "gateway")
    assert before > 0, "the gateway has no connections"
    started = time.monotonic()
    cluster.cli("cluster", "key", "revoke", name)
    wait_for("its connections have ended", lambda: links(cluster, "gateway") == 0, CUT_OFF_SECONDS, 0.02)
    seconds = time.monotonic() - started
    count = len(uploader.ack_times)
    # A request that was under way may still be answered.
    stays("no uploads are acked", lambda: len(uploader.ack_times) <= count + 2, 1.5)
    assert links(cluster, "gateway") == 0, "it is connected again"
    assert f"its key {public} was revoked" in cluster.log_text(), "no OSD says that it has closed the connections"
    with cluster.nbd("flight") as connection:
        connection.write(8 * MIB, PATTERN * 64)
    note(f"{before} connections, {seconds:.2f} s")


def test_the_revoked_key_gets_no_new_connection(cluster, gateway_key):
    """The revoked key gets no new connection; the error says why."""
    name, _ = gateway_key
    private = client_key(cluster, "gateway")
    for osd, public_key in osd_public_keys(cluster).items():
        port = next(port for process, port in cluster.listening_ports() if process == osd)
        answer, closed = knock(port, handshake.Initiator(public_key, private).first_message(), 3)
        assert closed and not answer, f"{osd} answers: {answer!r}"
    refused = cluster.cli("cluster", "key", "revoke", name, ok=(1,))
    assert "key ls" in refused.stderr, "no advice"


def test_the_key_is_given_back(cluster, gateway_key, uploads):
    """The key is given back: uploads go on."""
    uploader, (name, public) = uploads, gateway_key
    cluster.cli("cluster", "key", "add", name, "--public-key", public)
    count = len(uploader.ack_times)
    wait_for("uploads are acked", lambda: len(uploader.ack_times) > count + 20, 40)
    uploader.stopping = True
    problems = uploader.problems(cluster.s3(attempts=2))
    assert not problems, f"{problems[:3]}"


def test_an_osds_key_is_revoked_under_load(cluster, left, note):
    """An OSD's key is revoked under load: the others leave it, and go on without it."""
    load, started = left, time.monotonic()
    cluster.cli("cluster", "key", "revoke", "osd.2")
    wait_for(
        "nobody is connected with it",
        lambda: not links(cluster, "osd.2") and not links_to(cluster, "osd.2"),
        CUT_OFF_SECONDS,
        0.02,
    )
    seconds = time.monotonic() - started
    acked = load.acked
    wait_for("writes are acked", lambda: load.acked > acked + 50, 40)
    assert not links(cluster, "osd.2") and not links_to(cluster, "osd.2"), "it is connected again"
    note(f"{seconds:.2f} s, longest pause of writes {load.longest_silence(started):.1f} s")


def test_it_is_trusted_again(cluster, left):
    """It is trusted again, and filled."""
    load = left
    cluster.cli("cluster", "key", "add", "osd.2")
    wait_for(
        "all copies are there", lambda: set(cluster.json("status")["placement_groups_by_state"]) == {"active"}, 60, 0.5
    )
    assert load.stop(60) and not load.wrong and not load.error_texts, f"{load.wrong[:3]} {load.error_texts[:3]}"
    with cluster.nbd("left") as connection:
        load.verify(connection)
    assert not load.wrong, f"{load.wrong[:3]}"


def links_to(cluster, name):
    """Established connections at an OSD's port."""
    port = next(port for process, port in cluster.listening_ports() if process == name)
    lines = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(fields[3] == "01" and int(fields[1].rsplit(":", 1)[1], 16) == port for fields in lines)


def spread_load(cluster, image, threads):
    """Reads and writes of so many objects that every OSD leads some."""
    cluster.create_image(image, "256M")
    return BlockLoad(
        lambda: cluster.nbd(image), threads=threads, blocks_per_thread=65536 // threads, read_share=0.5
    ).start()


def test_both_sides_change_their_keys_under_load(cluster, relays, relayed, note):
    """Both sides change their keys under load, on the same connections."""
    made = sum(relay.connections for relay in relays.values())
    cluster.cli("settings", "set", "frame_rekey_seconds", "1")
    wait_for(
        "keys have changed",
        lambda: all(count >= 2 for relay in relays.values() for count in relay.rekeyed.values()),
        20,
    )
    assert sum(relay.connections for relay in relays.values()) == made, "connections were made anew"
    cluster.cli("settings", "set", "frame_rekey_seconds", "3600")
    note(", ".join(f"{relay.rekeyed['to']}+{relay.rekeyed['from']}" for relay in relays.values()))


@pytest.mark.parametrize(("way", "attack"), ENDS)
def test_a_frame_that_is_changed_ends_the_connection(relays, relayed, way, attack):
    """A frame to or from an OSD is changed, repeated, left out, cut or exchanged: its receiver ends the connection."""
    relay = relays[ATTACKS.index(attack) % len(relays)]
    made, relay.done, relay.attack = relay.connections, None, (way, attack)
    wait_for("a frame comes by", lambda: relay.done, 30, 0.01)
    wait_for("the connection ends", lambda: relay.done.get("ended_by"), 8, 0.01)
    # The relay sees the end at the side that was sent the frame.
    expected = way if attack == "cut" else OTHER[way]
    assert relay.done["ended_by"] == expected, f"it was ended on the way {relay.done['ended_by']} the OSD"
    wait_for("a new connection", lambda: relay.connections > made, 30, 0.01)


def test_sealed_data_that_is_changed_is_read_again(relays, relayed):
    """A block is changed on its way to who opens it: he reads it once more, and the connection stays."""
    for relay in relays.values():
        relay.done, relay.attack = None, ("from", "sealed payload")
        wait_for("a block comes by", lambda relay=relay: relay.done, 30, 0.01)
    reads = relayed.reads
    wait_for("reads go on", lambda: relayed.reads > reads + 50, 30)
    assert not any(relay.done["ended_by"] for relay in relays.values())


def test_unsealed_data_that_is_changed_ends_the_connection(cluster, relays):
    """What nobody can open has the frame's check: the NBD server ends the connection, and reads on another."""
    cluster.create_image("unsealed", "256M", "--sealing", "off")
    blocks = range(0, 256 * MIB, 4 * MIB)
    with cluster.nbd("unsealed") as connection:
        for at in blocks:
            connection.write(at, bytes([at // MIB]) * 4096)
        for relay in relays.values():
            relay.done, relay.attack = None, ("from", "payload")
        intact(all(connection.read(at, 4096) == bytes([at // MIB]) * 4096 for at in blocks), "other bytes")
    assert all(relay.done for relay in relays.values()), "an OSD has sent no block"
    ends = lambda: {relay.done["ended_by"] for relay in relays.values()}
    wait_for("the NBD server ends all of them", lambda: None not in ends(), 10)
    assert ends() == {"to"}, "it passed"


def test_nothing_wrong_was_given_out(cluster, relayed, note):
    """Nothing wrong was given out, and all I/O went on."""
    load = relayed
    acked = load.acked
    wait_for("writes are acked", lambda: load.acked > acked + 50, 30)
    assert load.stop(60), "a thread hangs"
    assert not load.wrong and not load.error_texts, f"{load.wrong[:3]} {load.error_texts[:3]}"
    with connect_patiently(lambda: cluster.nbd("relayed")) as connection:
        blocks = load.verify(connection)
    assert not load.wrong, f"{load.wrong[:3]}"
    assert "does not fit; bytes were damaged or forged" in cluster.log_text(), "no log tells of the damaged frames"
    note(f"{load.acked} writes, {load.reads} reads, {blocks} blocks at rest")
