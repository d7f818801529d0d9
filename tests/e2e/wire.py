#!/usr/bin/env python3
"""Data in flight between Atoll's processes: what an eavesdropper sees, what becomes of frames that somebody
on the way changes, repeats, leaves out, cuts or exchanges, keys that change under load, and keys that are revoked."""
import json, os, pathlib, random, socket, struct, threading, time

import noise
from harness import MIB, expect, main, wait_for
from hostile import knock, osd_public_keys
from nbdclient import BlockLoad, connect_patiently
from s3load import Uploader

# Nothing writes these by itself.
KEY = "a-key-that-is-nobodys-business-Zq7fT1xWm0Lr9"
PATTERN = b"Atoll-keeps-its-secrets-in-flight:Bv4Kc8Hd2Np6Js3Yg5Ea#1984@!:-)"[:64]
CUT_OFF_SECONDS = 5
FLAG_LAST_OF_KEY = 2
TAG = 16


# --- eavesdropping

def captured(test, cluster, name, traffic):
    """What tcpdump sees on the OSDs' ports during `traffic`."""
    ports = sorted(port for process, port in cluster.listening_ports() if process.startswith("osd."))
    expect(len(ports) == cluster.osds, f"ports of OSDs: {ports}")
    path = test.directory / f"{name}.pcap"
    tcpdump = test.start("tcpdump", "-i", "lo", "-s", "0", "-U", "-Z", "root", "-B", "16384", "-w", path, " or ".join(f"tcp port {port}" for port in ports))
    line = tcpdump.stderr.readline()
    expect("listening on" in line, f"tcpdump: {line}{tcpdump.stderr.read() if tcpdump.poll() is not None else ''}")
    traffic()
    time.sleep(0.5)
    tcpdump.terminate()
    tcpdump.wait(10)
    data = path.read_bytes()
    path.unlink()
    expect(len(data) > 4 * MIB, f"only {len(data)} bytes were captured")
    return data


def eavesdropping(test, cluster):
    s3 = cluster.s3()
    s3.create_bucket(Bucket="flight")
    cluster.create_image("flight", "64M")

    def traffic():
        body = PATTERN * (MIB // 64)
        for number in range(8):
            s3.put_object(Bucket="flight", Key=f"{KEY}/{number}", Body=body[number:], Metadata={"mark": "in-the-clear"})
        s3.list_objects_v2(Bucket="flight", Prefix=KEY)
        expect(s3.get_object(Bucket="flight", Key=f"{KEY}/0")["Body"].read() == body, "other bytes come back")
        with cluster.nbd("flight") as connection:
            connection.write(0, body)
            expect(connection.read(0, MIB) == body, "other bytes come back")

    with test.step("secure: neither key names nor contents are seen on the wire") as note:
        data = captured(test, cluster, "secure", traffic)
        for needle in (KEY.encode(), PATTERN[16:48], b"in-the-clear"):
            expect(needle not in data, f"{needle} is on the wire")
        note(f"{len(data) / MIB:.0f} MiB captured")
    with test.step("a role's mode is changed: status tells it, and counts connections that are older") as note:
        cluster.cli("settings", "set", "frame_mode_gateway", "crc")
        expect(cluster.json("settings", "ls")["frame_mode_gateway"] == "crc", "settings ls does not")
        wait_for("older connections are counted", lambda: cluster.json("status")["links_in_other_mode"] > 0, 15)
        expect("gateway crc" in cluster.cli("status").stdout and "older" in cluster.cli("status").stdout, cluster.cli("status").stdout)
        restart(cluster, "gateway")
        s3.list_buckets()
        wait_for("there are none any more", lambda: cluster.json("status")["links_in_other_mode"] == 0, 15)
        note(str(cluster.json("status")["frame_modes"]))
    with test.step("crc: key names are seen, contents are sealed all the same") as note:
        data = captured(test, cluster, "crc", traffic)
        expect(KEY.encode() in data, "the key name is not on the wire: this check sees nothing")
        expect(PATTERN[16:48] not in data, "contents are on the wire")
        note(f"{data.count(KEY.encode())} times the key name in {len(data) / MIB:.0f} MiB")
    with test.step("and back"):
        cluster.cli("settings", "set", "frame_mode_gateway", "secure")
        restart(cluster, "gateway")
        expect(s3.get_object(Bucket="flight", Key=f"{KEY}/0")["Body"].read() == PATTERN * (MIB // 64), "other bytes come back")


def restart(cluster, name):
    cluster.restarted(name, cluster.kill(name))
    wait_for("it serves again", cluster.is_serving)


def other_modes(test, cluster):
    with test.step("a client that wants another mode than its role's is refused, and both sides are told"):
        public = osd_public_keys(test, cluster)
        client = bytes.fromhex((cluster.data / "keys" / "client.key").read_text().strip())
        port = next(port for name, port in cluster.listening_ports() if name == "osd.0")
        for mode, answers in ((b"\1", False), (b"\2", True), (b"\3", True)):
            answer, closed = knock(port, noise.Initiator(public["osd.0"], client).first_message(mode), 2)
            expect(len(answer) > 32 and closed == answers, f"mode {mode}: {answer!r}, closed: {closed}")
        log = (cluster.data / "log" / "osd.0.log").read_text()
        expect("wants crc frames, and cluster state says secure for its role, client" in log, log[-2000:])


# --- revoked keys

def links(cluster, name):
    """Established connections of a process to other processes' OSD ports: from /proc."""
    ports = {port for process, port in cluster.listening_ports() if process.startswith("osd.") and process != name}
    inodes = set()
    for descriptor in pathlib.Path(f"/proc/{cluster.process_ids()[name]}/fd").iterdir():
        try:
            inodes.add(os.readlink(descriptor))
        except OSError:
            pass
    found = 0
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "01" and int(fields[2].rsplit(":", 1)[1], 16) in ports and f"socket:[{fields[9]}]" in inodes:
            found += 1
    return found


def revoked_gateway(test, cluster):
    keys = {record["role"]: record for record in cluster.json("cluster", "key", "ls")}
    name, public = keys["gateway"]["name"], keys["gateway"]["public_key"]
    test.check("every process has a key of its own", set(keys) == {"osd", "client", "gateway"} and name.startswith("gateway@"), f"{keys}")
    s3 = cluster.s3(read_timeout=3)
    data = random.Random(1).randbytes(20_000)
    uploader = Uploader(s3, "flight", threads=2).start((f"load/{number % 200}", lambda: data) for number in range(10**9))
    wait_for("uploads are acked", lambda: len(uploader.ack_times) > 20, 30)
    before = links(cluster, "gateway")
    with test.step("the gateway's key is revoked under load: it is cut off within seconds, others go on") as note:
        expect(before > 0, "the gateway has no connections")
        started = time.monotonic()
        cluster.cli("cluster", "key", "revoke", name)
        wait_for("its connections have ended", lambda: links(cluster, "gateway") == 0, CUT_OFF_SECONDS, 0.02)
        seconds = time.monotonic() - started
        count = len(uploader.ack_times)
        time.sleep(1.5)
        expect(len(uploader.ack_times) <= count + 2, f"{len(uploader.ack_times) - count} more uploads were acked")
        expect(links(cluster, "gateway") == 0, "it is connected again")
        expect(f"its key {public} was revoked" in cluster.log_text(), "no OSD says that it has closed the connections")
        with cluster.nbd("flight") as connection:
            connection.write(8 * MIB, PATTERN * 64)
        note(f"{before} connections, {seconds:.2f} s")
    with test.step("the revoked key gets no new connection; the error says why"):
        private = bytes.fromhex((cluster.data / "keys" / "gateway.key").read_text().strip())
        for osd, public_key in osd_public_keys(test, cluster).items():
            port = next(port for process, port in cluster.listening_ports() if process == osd)
            answer, closed = knock(port, noise.Initiator(public_key, private).first_message(), 3)
            expect(closed and not answer, f"{osd} answers: {answer!r}")
        expect(cluster.test.run(cluster.test.atoll, "cluster", "key", "revoke", name, "--data", cluster.data, ok=(1,)).stderr.count("key ls"), "no advice")
    with test.step("the key is given back: uploads go on"):
        cluster.cli("cluster", "key", "add", name, "--public-key", public)
        count = len(uploader.ack_times)
        wait_for("uploads are acked", lambda: len(uploader.ack_times) > count + 20, 40)
        uploader.stopping = True
        problems = uploader.problems(cluster.s3(attempts=2))
        expect(not problems, f"{problems[:3]}")


def revoked_osd(test, cluster):
    load = spread_load(cluster, "left", 2)
    wait_for("writes are acked", lambda: load.acked > 20, 30)
    started = time.monotonic()
    with test.step("an OSD's key is revoked under load: the others leave it, and go on without it") as note:
        cluster.cli("cluster", "key", "revoke", "osd.2")
        wait_for("nobody is connected with it", lambda: not links(cluster, "osd.2") and not links_to(cluster, "osd.2"), CUT_OFF_SECONDS, 0.02)
        seconds = time.monotonic() - started
        acked = load.acked
        wait_for("writes are acked", lambda: load.acked > acked + 50, 40)
        expect(not links(cluster, "osd.2") and not links_to(cluster, "osd.2"), "it is connected again")
        note(f"{seconds:.2f} s, longest pause of writes {load.longest_silence(started):.1f} s")
    with test.step("it is trusted again, and filled"):
        cluster.cli("cluster", "key", "add", "osd.2")
        wait_for("all copies are there", lambda: set(cluster.json("status")["placement_groups_by_state"]) == {"active"}, 60, 0.5)
        expect(load.stop(60) and not load.wrong and not load.error_texts, f"{load.wrong[:3]} {load.error_texts[:3]}")
        with cluster.nbd("left") as connection:
            load.verify(connection)
        expect(not load.wrong, f"{load.wrong[:3]}")


def links_to(cluster, name):
    """Established connections at an OSD's port."""
    port = next(port for process, port in cluster.listening_ports() if process == name)
    lines = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(fields[3] == "01" and int(fields[1].rsplit(":", 1)[1], 16) == port for fields in lines)


def spread_load(cluster, image, threads):
    """Reads and writes of so many objects that every OSD leads some."""
    cluster.create_image(image, "256M")
    return BlockLoad(lambda: cluster.nbd(image), threads=threads, blocks_per_thread=65536 // threads, read_share=0.5).start()


# --- somebody on the way

class Relay:
    """Carries connections to one OSD frame by frame, and does to a frame what it was told to do."""

    def __init__(self, address):
        self.address, self.connections, self.attack, self.done = address, 0, None, None
        self.lock = threading.Lock()
        self.rekeyed = {"to": 0, "from": 0}
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            client = self.listener.accept()[0]
            try:
                osd = socket.create_connection(self.address, timeout=5)
            except OSError:
                client.close()
                continue
            osd.settimeout(None)
            self.connections += 1
            state = {"ended_by": None}
            for sockets, way in (((client, osd), "to"), ((osd, client), "from")):
                for one in sockets:
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._carry, args=[*sockets, way, state], daemon=True).start()

    def _carry(self, source, sink, way, state):
        try:
            greeting = take(source, 8) if way == "to" else b""
            length = take(source, 2)
            sink.sendall(greeting + length + take(source, int.from_bytes(length, "big")))
            held = b""
            while True:
                header = take(source, 16)
                control, payload, flags, _ = struct.unpack("<IIII", header)
                frame = header + take(source, control + TAG + (payload + TAG if payload else 0))
                self.rekeyed[way] += bool(flags & FLAG_LAST_OF_KEY)
                with self.lock:
                    attack = self.attack
                    is_meant = not held and attack and attack[0] == way and (payload > 0 or not attack[1].startswith("payload"))
                    if is_meant:
                        self.attack, self.done = None, state
                if is_meant and attack[1] == "exchange":
                    held = frame
                    continue
                try:
                    sink.sendall((changed(frame, control, attack[1]) if is_meant else frame) + held)
                except OSError:
                    state["ended_by"] = state["ended_by"] or {"to": "from", "from": "to"}[way]
                    raise
                held = b""
                if is_meant and attack[1] == "cut":
                    break
        except OSError:
            pass
        state["ended_by"] = state["ended_by"] or way
        for one in (source, sink):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def take(source, length):
    data = b""
    while len(data) < length:
        part = source.recv(length - len(data))
        if not part:
            raise ConnectionError("it ended")
        data += part
    return data


def changed(frame, control, what):
    def flipped(place, bit=1):
        return frame[:place] + bytes([frame[place] ^ bit]) + frame[place + 1:]
    return {
        "flags": lambda: flipped(8, FLAG_LAST_OF_KEY), "length": lambda: flipped(0, 4), "control": lambda: flipped(16 + control // 2),
        "tag": lambda: flipped(16 + control + TAG - 1), "payload": lambda: flipped(16 + control + TAG + 5),
        "payload tag": lambda: flipped(len(frame) - 1), "repeat": lambda: frame + frame, "leave out": lambda: b"",
        "shorten": lambda: frame[:-1], "cut": lambda: frame[:len(frame) // 2],
    }[what]()


ATTACKS = ["flags", "length", "control", "tag", "payload", "payload tag", "repeat", "leave out", "exchange", "shorten", "cut"]


def on_the_way(test, cluster):
    settings = json.loads((cluster.data / "cluster.json").read_text())
    etcdctl = ["etcdctl", "--endpoints", settings["state_endpoints"][0], "--user", f"{settings['state_user']}:{settings['state_password']}"]
    environment = dict(test.environment, ETCDCTL_API="3")
    relays = {}
    with test.step("clients are led through a relay to every OSD", fatal=True):
        for line in test.run(*etcdctl, "get", "--prefix", "/atoll/osd_up/", "--print-value-only", env=environment).stdout.splitlines():
            if line.strip():
                record = json.loads(line)
                host, port = record["address"].rsplit(":", 1)
                relay = relays[record["id"]] = Relay((host, int(port)))
                record["address"] = f"127.0.0.1:{relay.port}"
                test.run(*etcdctl, "put", f"/atoll/osd_up/{record['id']}", json.dumps(record), env=environment)
        expect(len(relays) == cluster.osds, f"{relays}")
        restart(cluster, "nbd")
    load = spread_load(cluster, "relayed", 4)
    wait_for("writes are acked", lambda: load.acked > 50 and load.reads > 50, 30)
    with test.step("both sides change their keys under load, on the same connections") as note:
        made = sum(relay.connections for relay in relays.values())
        cluster.cli("settings", "set", "frame_rekey_seconds", "1")
        wait_for("keys have changed", lambda: all(count >= 2 for relay in relays.values() for count in relay.rekeyed.values()), 20)
        expect(sum(relay.connections for relay in relays.values()) == made, "connections were made anew")
        cluster.cli("settings", "set", "frame_rekey_seconds", "3600")
        note(", ".join(f"{relay.rekeyed['to']}+{relay.rekeyed['from']}" for relay in relays.values()))
    for way, receiver in (("to", "the OSD"), ("from", "the client")):
        with test.step(f"frames {way} an OSD are changed, repeated, left out, cut, exchanged: {receiver} ends the connection") as note:
            for number, attack in enumerate(ATTACKS):
                relay = relays[number % len(relays)]
                made, relay.done, relay.attack = relay.connections, None, (way, attack)
                wait_for(f"{attack}: a frame comes by", lambda: relay.done, 10, 0.01)
                wait_for(f"{attack}: the connection ends", lambda: relay.done["ended_by"], 8, 0.01)
                # The relay sees the end at the side that was sent the frame.
                expected = way if attack == "cut" else {"to": "from", "from": "to"}[way]
                expect(relay.done["ended_by"] == expected, f"{attack}: it was ended on the way {relay.done['ended_by']} the OSD")
                wait_for(f"{attack}: a new connection", lambda: relay.connections > made, 10, 0.01)
            note(f"{len(ATTACKS)} attacks")
    with test.step("nothing wrong was given out, and all I/O went on") as note:
        acked = load.acked
        wait_for("writes are acked", lambda: load.acked > acked + 50, 30)
        expect(load.stop(60), "a thread hangs")
        expect(not load.wrong and not load.error_texts, f"{load.wrong[:3]} {load.error_texts[:3]}")
        with connect_patiently(lambda: cluster.nbd("relayed")) as connection:
            blocks = load.verify(connection)
        expect(not load.wrong, f"{load.wrong[:3]}")
        expect("does not fit; bytes were damaged or forged" in cluster.log_text(), "no log tells of the damaged frames")
        note(f"{load.acked} writes, {load.reads} reads, {blocks} blocks at rest")


def scenario(test):
    test.need(("tcpdump", "tcpdump"), ("etcdctl", "etcd-client"))
    cluster = test.cluster(osd_size="4G")
    plain = cluster.up_command
    cluster.up_command = lambda *more: plain("--frame-mode", "cluster=secure-128", *more)
    with test.step("atoll up --detach --frame-mode cluster=secure-128", fatal=True) as note:
        note(f"healthy after {cluster.up():.1f} s")
    test.check("status shows the frame mode of each role",
               cluster.json("status")["frame_modes"] == {"cluster": "secure-128", "client": "secure", "gateway": "secure"}
               and "cluster secure-128, client secure, gateway secure" in cluster.cli("status").stdout, cluster.cli("status").stdout)
    eavesdropping(test, cluster)
    other_modes(test, cluster)
    revoked_gateway(test, cluster)
    revoked_osd(test, cluster)
    on_the_way(test, cluster)
    with test.step("atoll down"):
        cluster.down()


if __name__ == "__main__":
    main(scenario)
