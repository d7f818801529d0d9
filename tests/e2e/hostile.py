#!/usr/bin/env python3
"""Hostile input on every port, wrong keys and passwords, a full device, and damaged bytes on a device.

    ATOLL_E2E_PARTS=ports,full,rot   which parts to run
    ATOLL_E2E_FULL_SIZE=1G           size of the devices that are filled
"""
import collections, contextlib, http.client, itertools, json, os, random, re, select, socket, struct, time, urllib.parse
from concurrent.futures import ThreadPoolExecutor

from botocore.exceptions import ClientError

import noise
from harness import MIB, Failed, expect, is_alive, main, resident_bytes, wait_for
from nbdclient import ENOSPC, OPTION_MAGIC, REQUEST_MAGIC, BlockLoad, NbdError, connect_patiently
from s3load import Uploader, digest

SHORT_CONNECTIONS = 1000
IDLE_CONNECTIONS = 250
GROWTH_BYTES_MAX = 512 * MIB


# --- ports

def send(address, data, ending="close", answer_seconds=1.0):
    """Sends bytes over a new connection and ends it in some way; returns the first bytes of the answer."""
    with socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET) as connection:
        connection.settimeout(5)
        answer = b""
        try:
            connection.connect(address)
            connection.sendall(data)
            if ending == "half-close":
                connection.shutdown(socket.SHUT_WR)
            if ending == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif ending != "close":
                connection.settimeout(answer_seconds)
                answer = connection.recv(65536)
        except OSError:
            pass
        return answer


def seeds(name, cluster):
    """Beginnings of conversations as each port knows them, to be cut and changed."""
    option = struct.pack(">QII", OPTION_MAGIC, 7, 4 + 5 + 2) + struct.pack(">I", 5) + b"plain" + struct.pack(">H", 0)
    hello = struct.pack(">I", 3)
    def request(kind, offset, length, data=b"", flags=0):
        return struct.pack(">IHHQQI", REQUEST_MAGIC, flags, kind, 7, offset, length) + data
    nbd = [hello + option + request(0, 0, 4096) + request(2, 0, 0), hello + option + request(6, 0, 4096, b"", 0xFFFF),
           hello + option + request(0, 0, 0xFFFFFFFF), hello + option + request(77, 0, 0), hello + option + request(0, 1 << 63, 1 << 31),
           hello + option + request(1, 8 * MIB, 0xFFFFFFFF, b"z" * 70_000), hello + struct.pack(">QII", OPTION_MAGIC, 7, 0xFFFFFFFF),
           hello + struct.pack(">QII", OPTION_MAGIC, 3, 0) * 500, hello + struct.pack(">QII", OPTION_MAGIC, 10, 4 + 5 + 4) + struct.pack(">I5sI", 5, b"plain", 0xFFFFFFFF),
           struct.pack(">I", 0xFFFFFFFF), hello + struct.pack(">QII", OPTION_MAGIC, 5, 0) + b"\x16\x03\x01\x02\x00\x01"]
    http1 = [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"PUT /b/k HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
             b"PUT /b/k HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nshort", b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
             b"PUT /b/k HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFF\r\nabc",
             b"PUT /b/k HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
             b"GET /%00%ff%2e%2e%2f HTTP/1.1\r\nHost: x\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000 + b"\r\n",
             b"POST /b?delete HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n<Delete><Object><Key", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(300)]
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    def frame(kind, flags, stream, data):
        return struct.pack(">I", len(data))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + data
    http2 = [preface + frame(4, 0, 0, b""), preface + frame(4, 0, 0, b"") + frame(1, 4, 1, b"\x82\x86\x84" + bytes(40)),
             preface + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01", preface + frame(4, 0, 0, b"") + frame(6, 0, 0, bytes(8)) * 2000,
             preface + frame(4, 0, 0, b"") + b"".join(frame(1, 4, 2 * i + 1, b"\x82") + frame(3, 0, 2 * i + 1, bytes(4)) for i in range(1000)),
             preface + frame(4, 0, 0, struct.pack(">HI", 4, 0xFFFFFFFF)) + frame(8, 0, 0, b"\x7f\xff\xff\xff") * 3]
    atoll = [noise.GREETING, noise.GREETING + b"\xff\xff" + bytes(600), noise.GREETING + b"\x00\x61" + os.urandom(97), noise.GREETING + b"\x00\x00" * 4,
             b"ATOLL\0\0\x01" + bytes(200), noise.GREETING + b"\x02\x00" + os.urandom(512), noise.GREETING[:3]]
    every = [b"\0", b"\n", bytes(100_000), b"\xff" * 70_000]
    if name.startswith("osd"):
        return every + atoll
    return every + {"nbd": nbd, "gateway": http1, "cluster-state": http2 + http1[:3]}.get(name, http1 + http2 + nbd + atoll)


def pour(name, address, cluster, rounds, rng):
    """Truncated, changed and random input."""
    corpus, count = seeds(name, cluster), 0
    for _ in range(rounds):
        for seed in corpus:
            for data in (seed, seed[:rng.randrange(len(seed) + 1)], changed(seed, rng)):
                send(address, data, rng.choice(("close", "reset", "close", "half-close")), 0.02)
                count += 1
    for size in (1, 7, 100, 4096, 65536, MIB) * rounds:
        send(address, rng.randbytes(size), rng.choice(("close", "reset", "half-close")), 0.02)
        count += 1
    return count


def changed(data, rng):
    data = bytearray(data)
    for _ in range(rng.randrange(1, 9)):
        if data:
            data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def ports(test):
    cluster = test.cluster("ports", osd_size="4G")
    with test.step("atoll up --detach", fatal=True) as note:
        note(f"healthy after {cluster.up():.1f} s")
    with test.step("some data", fatal=True):
        cluster.create_image("plain", "64M")
        cluster.create_image("load", "64M")
        s3 = cluster.s3()
        s3.create_bucket(Bucket="bucket")
        uploader = Uploader(s3, "bucket")
        for number in range(60):
            uploader.put(f"kept/{number}", random.Random(number).randbytes(1 + number * 3000))
        image = random.Random(1).randbytes(4 * MIB)
        with cluster.nbd("plain") as connection:
            connection.write(0, image)
    before = cluster.process_ids()
    first = dict(before)
    memory = {name: resident_bytes(pid) for name, pid in before.items()}
    listening = sorted(cluster.listening_ports())
    targets = [(name, ("127.0.0.1", port)) for name, port in listening] + [("nbd", str(cluster.nbd_socket))]
    with test.step("every child listens somewhere: OSDs, gateway, NBD, cluster state") as note:
        kinds = {name for name, _ in listening}
        expect(kinds >= {"osd.0", "osd.1", "osd.2", "gateway", "nbd", "cluster-state"}, f"{listening}")
        note(", ".join(f"{name}:{port}" for name, port in listening))

    load = BlockLoad(lambda: cluster.nbd("load"), threads=2, blocks_per_thread=200).start()
    rng = random.Random(99)
    for name, address in targets:
        with test.step(f"truncated, changed and random input on {label(name, address)}") as note:
            note(f"{pour(name, address, cluster, max(1, int(2 * test.scale)), rng)} connections")
            alive(cluster, before)
    for name, address in targets:
        with test.step(f"{SHORT_CONNECTIONS} short connections to {label(name, address)}") as note:
            with ThreadPoolExecutor(16) as pool:
                list(pool.map(lambda n: send(address, b"x" * (n % 3), "reset" if n % 2 else "close"), range(SHORT_CONNECTIONS)))
            alive(cluster, before)
    with test.step("slow and idle connections to every port; others are served meanwhile") as note:
        note(slow(cluster, targets))
        alive(cluster, before)
    with test.step("the load beside all this saw no error and no wrong byte") as note:
        expect(load.stop(60), "a thread hangs")
        expect(not load.wrong and not load.error_texts, f"{load.wrong[:3]} {load.error_texts[:3]}")
        with cluster.nbd("load") as connection:
            load.verify(connection)
        expect(not load.wrong, f"{load.wrong[:3]}")
        slowest = max((seconds for _, seconds in load.slowest), default=0)
        note(f"{load.acked} writes, slowest {slowest:.2f} s")
    wrong_credentials(test, cluster)
    with test.step("all processes are still the same as before all this"):
        alive(cluster, first)
    with test.step("memory has not grown without bound") as note:
        growth = {name: resident_bytes(pid) - memory[name] for name, pid in cluster.process_ids().items()}
        expect(all(value < GROWTH_BYTES_MAX for value in growth.values()), f"{growth}")
        note(", ".join(f"{name} {value / MIB:+.0f} MiB" for name, value in growth.items()))
    with test.step("no descriptor is left open for connections that are gone") as note:
        # A listener and its clients of long standing remain.
        def few():
            return all(len(os.listdir(f"/proc/{pid}/fd")) < 150 for pid in cluster.process_ids().values())
        wait_for("few open descriptors", few, 60, 0.5)
        note(", ".join(f"{name} {len(os.listdir(f'/proc/{pid}/fd'))}" for name, pid in cluster.process_ids().items()))
    with test.step("data is still right, new clients are served"):
        problems = uploader.problems(cluster.s3())
        expect(not problems, f"{problems[:5]}")
        with cluster.nbd("plain") as connection:
            expect(connection.read(0, 4 * MIB) == image, "the image has changed")
        cluster.json("status")
    with test.step("no panic in any log"):
        text = cluster.log_text()
        expect("panicked" not in text, text[max(0, text.find("panicked") - 300):][:1000])
    cluster.kill_all()


def label(name, address):
    return f"{name} ({address[1] if isinstance(address, tuple) else 'Unix socket'})"


def alive(cluster, before):
    """All processes are those of `before`; one that has died is told once."""
    # The supervisor notices a death within a fraction of a second.
    time.sleep(0.3)
    dead = [name for name, pid in before.items() if not is_alive(pid)]
    if dead:
        wait_for("the dead are replaced", lambda: all(pid and is_alive(pid) for pid in cluster.process_ids().values()), 30)
    now = cluster.process_ids()
    changes = [f"{name} {pid} -> {now.get(name)}" for name, pid in before.items() if now.get(name) != pid]
    before.clear()
    before.update(now)
    text = cluster.log_text()
    panic = text[text.rfind("panicked at") - 40:][:300] if "panicked at" in text else "no panic in the logs"
    expect(not changes, f"died and was restarted: {', '.join(changes)}\n{panic}")


def slow(cluster, targets):
    """Idle connections, and some that send a byte now and then, on all ports at once."""
    held, told = [], []
    before = time.monotonic()
    try:
        for name, address in targets:
            for number in range(IDLE_CONNECTIONS):
                connection = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
                connection.settimeout(5)
                held.append(connection)
                connection.connect(address)
        drips = []
        for name, address in targets:
            for number in range(8):
                connection = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
                connection.settimeout(5)
                connection.connect(address)
                held.append(connection)
                seed = {"gateway": b"GET / HTTP/1.1\r\nHost: x\r\nx-a: " + b"a" * 1000, "nbd": struct.pack(">I", 3) + struct.pack(">QII", OPTION_MAGIC, 7, 300),
                        "cluster-state": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(100)}.get(name, noise.GREETING + b"\x00\x61" + bytes(97))
                drips.append([name, connection, seed, 0, None])
        end = time.monotonic() + 8
        while time.monotonic() < end:
            for drip in drips:
                if drip[4] is None:
                    try:
                        drip[1].send(drip[2][drip[3] % len(drip[2]):][:1])
                        drip[3] += 1
                    except OSError:
                        drip[4] = time.monotonic() - before
            # Served meanwhile, and in time.
            started = time.monotonic()
            cluster.s3().get_object(Bucket="bucket", Key="kept/3")["Body"].read()
            with cluster.nbd("plain") as connection:
                connection.read(0, 65536)
            cluster.json("status")
            told.append(time.monotonic() - started)
            time.sleep(0.5)
        return f"{len(held)} connections held; GET, NBD read and status took at most {max(told):.2f} s"
    finally:
        for connection in held:
            connection.close()


def wrong_credentials(test, cluster):
    credentials = cluster.credentials()
    cases = {
        "an unknown access key": (cluster.s3(access="AKIDOESNOTEXIST00000"), "InvalidAccessKeyId"),
        "a wrong secret key": (cluster.s3(secret="wrong" + credentials["secret_key"][5:]), "SignatureDoesNotMatch"),
    }
    for what, (client, code) in cases.items():
        with test.step(f"S3 with {what}: {code}"):
            for call in (client.list_buckets, lambda: client.get_object(Bucket="bucket", Key="kept/1"), lambda: client.put_object(Bucket="bucket", Key="bad", Body=b"x"),
                         lambda: client.delete_object(Bucket="bucket", Key="kept/1")):
                try:
                    call()
                    raise Failed("it was served")
                except ClientError as error:
                    expect(error.response["Error"]["Code"] == code, f"{error}")
                    expect(error.response["ResponseMetadata"]["HTTPStatusCode"] == 403, f"{error.response}")
    place = urllib.parse.urlparse(credentials["endpoint"])

    def http(method, target, headers=None, body=None):
        kind = http_client(place.scheme)
        connection = kind(place.hostname, place.port, timeout=20, **({"context": cluster.trust()} if place.scheme == "https" else {}))
        with contextlib.closing(connection):
            connection.request(method, target, body=body, headers=headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()

    with test.step("S3 without a signature: AccessDenied"):
        for method, target in (("GET", "/"), ("GET", "/bucket/kept/1"), ("PUT", "/bucket/bad"), ("DELETE", "/bucket/kept/1"), ("GET", "/bucket?list-type=2")):
            status, body = http(method, target, body=b"x" if method == "PUT" else None)
            expect(status == 403 and b"<Code>AccessDenied</Code>" in body, f"{method} {target}: {status} {body[:300]}")
    with test.step("oversized headers: a clear S3 error"):
        for headers in ({"x-amz-meta-big": "v" * 60_000}, {f"x-amz-meta-{n}": "v" * 100 for n in range(200)}):
            status, body = http("GET", "/", headers)
            expect(400 <= status < 500 and b"<Code>" in body, f"{status} {body[:300]}")
        status, body = http("GET", "/bucket/" + "k" * 3000)
        expect(400 <= status < 500, f"{status} {body[:300]}")
    with test.step("metadata, keys and parts over their limits: a clear S3 error") as note:
        s3, codes = cluster.s3(), []
        for arguments in ({"Key": "meta", "Metadata": {"big": "v" * 3000}}, {"Key": "k" * 1025}, {"Key": ""}):
            try:
                s3.put_object(Bucket="bucket", Body=b"x", **arguments)
                raise Failed(f"it was taken: {str(arguments)[:60]}")
            except ClientError as error:
                status = error.response["ResponseMetadata"]["HTTPStatusCode"]
                expect(400 <= status < 500, f"{error}")
                codes.append(error.response["Error"]["Code"])
            except Exception as error:
                # boto3 itself refuses an empty key.
                expect(arguments["Key"] == "", f"{error!r}")
        note(", ".join(codes))

    state_ports = sorted(port for name, port in cluster.listening_ports() if name == "cluster-state")
    if not state_ports:
        test.check("cluster state listens on TCP", False, "no port was found")
    test.need(("etcdctl", "etcd-client"))
    for port in state_ports:
        for what, user in (("no password", None), ("a wrong password", "root:wrong"), ("a wrong user", "nobody:nothing")):
            with test.step(f"cluster state (port {port}) with {what}: refused") as note:
                login = ["--user", user] if user else []
                environment = dict(test.environment, ETCDCTL_API="3")
                refused = ""
                for command in (["get", "--prefix", "/", "--print-value-only=false"], ["put", "/atoll/users/evil", "{}"], ["del", "--prefix", "/atoll/"]):
                    done = test.run("etcdctl", "--endpoints", f"127.0.0.1:{port}", "--command-timeout=4s", "--dial-timeout=2s", *login, *command,
                                    env=environment, ok=None, timeout=30)
                    expect(done.returncode != 0, f"{command} was done: {done.stdout[:300]}")
                    expect("atoll" not in done.stdout, f"{command} told {done.stdout[:300]}")
                    refused = refused or (done.stderr.strip().splitlines() or [""])[-1]
                note(re.sub(r".*(desc|error|Error)[\"': =]+", "", refused)[:80])
    wrong_noise_keys(test, cluster)


def http_client(scheme):
    return http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection


def knock(port, first, seconds):
    """Sends the first message of a handshake; returns the answer and whether the OSD closed."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.settimeout(seconds)
        connection.sendall(first)
        answer = b""
        try:
            while part := connection.recv(4096):
                answer += part
            return answer, True
        except ConnectionResetError:
            return answer, True
        except TimeoutError:
            return answer, False


def wrong_noise_keys(test, cluster):
    with test.step("a handshake with a key that is not authorised: every OSD closes, nothing is served") as note:
        noise.self_test()
        public = osd_public_keys(test, cluster)
        expect(len(public) == 3, f"{public.keys()}")
        ports_of = {name: port for name, port in cluster.listening_ports() if name in public}
        client = bytes.fromhex((cluster.data / "keys" / "client.key").read_text().strip())
        answers = []
        for name, port in sorted(ports_of.items()):
            # The right key, so that it is clear that the others fail because of their keys.
            answer, closed = knock(port, noise.Initiator(public[name], client).first_message(), 1.5)
            expect(answer and not closed, f"{name} refuses the right key: {answer!r}")
            wrong_mode = noise.Initiator(public[name], client).first_message(b"\2")
            wrong_prologue = noise.Initiator(public[name], client, prologue=b"ATOLL\0\0\x01").first_message()
            for what, first in (("an unknown key", noise.Initiator(public[name]).first_message()), ("a wrong responder key", noise.Initiator(os.urandom(32), client).first_message()),
                                ("a key of zeros", noise.Initiator(public[name], bytes(32)).first_message()), ("another frame mode", wrong_mode), ("another prologue", wrong_prologue)):
                answer, closed = knock(port, first + os.urandom(300), 10)
                expect(closed, f"{name} keeps a connection with {what}")
                expect(len(answer) < 100, f"{name} talks to {what}: {answer!r}")
                answers.append(len(answer))
        note(f"{len(answers)} attempts, answers of {sorted(set(answers))} bytes")
    with test.step("a handshake that never ends is cut off, however it drips") as note:
        waits = []
        for name, port in sorted(cluster.listening_ports()):
            if name == "osd.0":
                with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                    started, data = time.monotonic(), noise.GREETING + b"\x00\x61" + bytes(90)
                    for number in range(25):
                        try:
                            connection.send(data[number:number + 1])
                        except OSError:
                            break
                        if select.select([connection], [], [], 1)[0]:
                            break
                    else:
                        raise Failed(f"{name} still listens after {time.monotonic() - started:.0f} s of a handshake that sends a byte a second")
                    waits.append(time.monotonic() - started)
        note(f"after {max(waits):.0f} s")


def osd_public_keys(test, cluster):
    """Public keys by OSD, from cluster state."""
    settings = json.loads((cluster.data / "cluster.json").read_text())
    done = test.run("etcdctl", "--endpoints", settings["state_endpoints"][0], "--user", f"{settings['state_user']}:{settings['state_password']}",
                    "get", "--prefix", "/atoll/osds/", "--print-value-only", env=dict(test.environment, ETCDCTL_API="3"))
    records = [json.loads(line) for line in done.stdout.splitlines() if line.strip()]
    return {f"osd.{record['id']}": bytes.fromhex(record["public_key"]) for record in records}


# --- a full device

def full(test):
    device = os.environ.get("ATOLL_E2E_FULL_SIZE", "1G")
    cluster = test.cluster("full", osd_size=device)
    with test.step(f"atoll up --detach with small devices ({device})", fatal=True) as note:
        note(f"healthy after {cluster.up():.1f} s")
    s3 = cluster.s3(read_timeout=120)
    s3.create_bucket(Bucket="full")
    cluster.create_image("disk", "8G")
    uploader = Uploader(s3, "full", threads=4)
    noise_bytes = random.Random(8).randbytes(16 * MIB)
    old = [noise_bytes[place // 16:][:4 * MIB] for place in range(0, 64 * MIB, 4 * MIB)]
    blocks = {}
    with test.step("an image with 64 MiB, before the fill", fatal=True):
        with cluster.nbd("disk") as connection:
            for number, data in enumerate(old):
                connection.write(number * 4 * MIB, data)
                blocks[number * 4 * MIB] = data
    before = cluster.process_ids()
    refusals, sizes, numbers = [], {}, itertools.count()
    with test.step("S3 PUTs until the cluster is full: a clear error") as note:
        # Large ones first, then small ones into what is left, until nothing is taken any more.
        for size in (8 * MIB, MIB, 65536, 100):
            in_a_row = 0

            def put(_):
                nonlocal in_a_row
                if in_a_row >= 12:
                    return
                number = next(numbers)
                start = random.Random(number).randrange(8 * MIB)
                key, data = f"o/{number:06}", number.to_bytes(8, "big") + noise_bytes[start:start + size - 8]
                sha, sizes[key] = digest(data), len(data)
                try:
                    s3.put_object(Bucket="full", Key=key, Body=data)
                    uploader.acked[key] = sha
                    in_a_row = 0
                except ClientError as error:
                    in_a_row += 1
                    refusals.append((error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Code"], str(error)))

            with ThreadPoolExecutor(4) as pool:
                list(pool.map(put, range(3000)))
        total = sum(sizes[key] for key in uploader.acked)
        expect(refusals, f"{total / MIB:.0f} MiB were taken without an error")
        codes = {(status, code) for status, code, _ in refusals}
        note(f"{len(uploader.acked)} objects of {total / MIB:.0f} MiB acked; {codes}")
        expect(codes <= {(507, "InsufficientStorage"), (507, "InsufficientCapacity")}, f"not clear: {refusals[:3]}")
        expect(total > 300 * MIB, f"full after {total / MIB:.0f} MiB on devices of {device}")
    with test.step("the image can be attached while the cluster is full, and read"):
        with cluster.nbd("disk", timeout=120) as connection:
            for place, data in blocks.items():
                expect(connection.read(place, len(data)) == data, f"other bytes at {place}")
    with test.step("NBD writes while the cluster is full: ENOSPC, never a hang or another error") as note:
        with cluster.nbd("disk", timeout=120) as connection:
            ends, acked = collections.Counter(), 0
            for number in range(600):
                length = (MIB, 4096, 65536)[number % 3]
                place, data = 1024 * MIB + number * MIB, bytes([number % 251 + 1]) * length
                try:
                    connection.write(place, data)
                    blocks[place] = data
                    acked += 1
                except NbdError as error:
                    ends[error.number] += 1
                    if ends.total() >= 200:
                        break
            note(f"{acked} acked, {ends.total()} refused")
            expect(set(ends) == {ENOSPC}, f"{ends}")
    with test.step("everything that was acked is readable while it is full") as note:
        problems = uploader.problems(cluster.s3())
        expect(not problems, f"{len(problems)}: {problems[:5]}")
        check_blocks(cluster, blocks)
        note(f"{len(uploader.acked)} objects, {len(blocks)} blocks")
    with test.step("no process died of it, and status tells that it is full") as note:
        alive(cluster, before)
        text = cluster.cli("status").stdout + cluster.cli("df").stdout
        expect(re.search(r"full|space|100 ?%|9\d(\.\d+)? ?%", text, re.IGNORECASE), text)
    with test.step("TRIM works while it is full"):
        with cluster.nbd("disk") as connection:
            connection.trim(0, 32 * MIB)
            for place in [place for place in blocks if place < 32 * MIB]:
                del blocks[place]
            expect(connection.read(MIB, 4096) == bytes(4096), "trimmed blocks are not zeros")
    with test.step("DELETE works while it is full") as note:
        doomed = sorted(uploader.acked)[::2]
        for key in doomed[:20]:
            s3.delete_object(Bucket="full", Key=key)
            del uploader.acked[key]
        for at in range(20, len(doomed), 1000):
            chunk = doomed[at:at + 1000]
            result = s3.delete_objects(Bucket="full", Delete={"Objects": [{"Key": key} for key in chunk]})
            expect(not result.get("Errors"), f"{len(result.get('Errors', []))} of {len(chunk)}: {result.get('Errors', [])[:2]}")
            for key in chunk:
                del uploader.acked[key]
        note(f"{len(doomed)} objects deleted")
    started = time.monotonic()
    yield
    with test.step("deletes give room again: 40 MiB of PUTs and a block write") as note:
        last = ""

        def room():
            nonlocal last
            try:
                for number in range(5):
                    data = noise_bytes[number:number + 8 * MIB]
                    s3.put_object(Bucket="full", Key=f"again/{number}", Body=data)
                    uploader.acked[f"again/{number}"] = digest(data)
                return True
            except ClientError as error:
                last = str(error)

        try:
            wait_for("PUTs work again", room, 180, 2)
        except Failed:
            raise Failed(f"no room after 180 s: {last}\n{cluster.cli('df').stdout}") from None
        with cluster.nbd("disk") as connection:
            connection.write(7000 * MIB, noise_bytes[:MIB])
            blocks[7000 * MIB] = noise_bytes[:MIB]
        note(f"after {time.monotonic() - started:.0f} s")
    with test.step("kill -9 of everything and a restart with a nearly full device: nothing is lost") as note:
        cluster.kill_all()
        seconds = cluster.up()
        problems = uploader.problems(cluster.s3(attempts=3))
        expect(not problems, f"{len(problems)}: {problems[:5]}")
        check_blocks(cluster, blocks)
        note(f"healthy after {seconds:.1f} s")
    cluster.kill_all()


def check_blocks(cluster, blocks):
    with connect_patiently(lambda: cluster.nbd("disk", timeout=120)) as connection:
        for place, data in sorted(blocks.items()):
            expect(connection.read(place, len(data)) == data, f"the image has other bytes at {place}")


# --- damage on a device

def dump(test, device, *arguments):
    """What a stopped OSD's store holds, by `atoll store dump`."""
    done = test.run(test.atoll, "store", "dump", "--device", device, "--json", *arguments)
    return [json.loads(line) for line in done.stdout.splitlines()]


def data_offsets(test, device, rng):
    """Offsets of blocks with data of objects. Damage of metadata is another matter: it makes the OSD refuse to serve."""
    objects = [record for record in dump(test, device) if record["record"] == "object" and record["blocks"]]
    found = []
    for of in rng.sample(objects, min(60, len(objects))):
        for record in dump(test, device, "--pg", of["pg"], "--object", of["object"]):
            for extent in record.get("extents", ()):
                found += [(extent["device_block"] + index) * 4096 for index in range(len(extent["crcs"]))]
    return found


def rot(test):
    cluster = test.cluster("rot", osd_size="4G")
    with test.step("atoll up --detach", fatal=True) as note:
        note(f"healthy after {cluster.up():.1f} s")
    image, uploader = bytearray(96 * MIB), None
    with test.step("an image and objects", fatal=True):
        cluster.create_image("rot", "96M")
        rng = random.Random(4)
        with cluster.nbd("rot") as connection:
            for place in range(0, 64 * MIB, 4 * MIB):
                image[place:place + 4 * MIB] = rng.randbytes(4 * MIB)
                connection.write(place, bytes(image[place:place + 4 * MIB]))
            for _ in range(2000):
                place, data = 64 * MIB + rng.randrange(32 * 256) * 4096, rng.randbytes(4096)
                image[place:place + 4096] = data
                connection.write(place, data)
        s3 = cluster.s3()
        s3.create_bucket(Bucket="rot")
        uploader = Uploader(s3, "rot")
        for number in range(80):
            uploader.put(f"o/{number}", rng.randbytes((100, 5000, 65536, 300_000, 2 * MIB)[number % 5]))
        expect(not uploader.errors, f"{uploader.errors[:3]}")
    for osd in (1, 0):
        device = cluster.data / f"osd-{osd}" / "device"
        with test.step(f"atoll down; one byte changed in many blocks of osd.{osd}'s data region", fatal=True) as note:
            cluster.down()
            rng = random.Random(osd)
            used = data_offsets(test, device, rng)
            expect(len(used) > 5000, f"only {len(used)} blocks with data were found")
            chosen = rng.sample(used, len(used) // 20)
            with open(device, "r+b") as file:
                for offset in chosen:
                    place = offset + rng.randrange(4096)
                    byte = os.pread(file.fileno(), 1, place)[0]
                    os.pwrite(file.fileno(), bytes([byte ^ 1 << rng.randrange(8)]), place)
                os.fsync(file.fileno())
            note(f"{len(chosen)} of {len(used)} blocks")
        with test.step("atoll store check --data finds the damage and says where it is") as note:
            found = test.run(test.atoll, "store", "check", "--device", device, "--data", "--json", ok=(1,))
            count = json.loads(found.stdout)["problem_count"]
            expect(count == len(chosen), f"{count} problems, {len(chosen)} blocks were damaged")
            note(f"{count} problems")
        with test.step("atoll up with the damaged device", fatal=True) as note:
            note(f"healthy after {cluster.up():.1f} s")
        with test.step("everything is read as it was written") as note:
            check_all(cluster, image, uploader)
        with test.step("the damage is told in the log and by status") as note:
            lines = [line for line in cluster.log_text().splitlines() if re.search(r"corrupt|damaged|checksum", line, re.IGNORECASE)]
            expect(lines, "no line in any log tells it")
            count = wait_for("status counts damaged blocks", lambda: cluster.json("status")["corrupt_block_count"], 30, 1)
            expect(cluster.json("status")["health"] != "ok", "health is 'ok' all the same")
            note(f"{len(lines)} lines in the logs, {count} blocks in status")
        with test.step("writes over damaged blocks work, everything else stays as it is"):
            rng = random.Random(50 + osd)
            with cluster.nbd("rot") as connection:
                for _ in range(300):
                    # Also such as cover blocks in part, for which the rest has to be read.
                    length = rng.choice((512, 4096, 5000, 65536))
                    place = rng.randrange(96 * MIB - length)
                    image[place:place + length] = rng.randbytes(length)
                    connection.write(place, bytes(image[place:place + length]))
            check_all(cluster, image, uploader)
    with test.step("the second OSD was damaged after the first: repaired copies serve, restart included"):
        cluster.down()
        cluster.up()
        check_all(cluster, image, uploader)
    cluster.kill_all()


def check_all(cluster, image, uploader):
    with connect_patiently(lambda: cluster.nbd("rot")) as connection:
        for place in range(0, len(image), MIB):
            try:
                found = connection.read(place, MIB)
            except NbdError as error:
                raise Failed(f"a read failed: {error}") from None
            if found != image[place:place + MIB]:
                wrong = next(at for at in range(0, MIB, 4096) if found[at:at + 4096] != image[place + at:place + at + 4096])
                raise Failed(f"WRONG DATA at byte {place + wrong} of the image")
    problems = uploader.problems(cluster.s3(attempts=2))
    expect(not problems, f"{len(problems)}: {problems[:5]}")


def scenario(test):
    parts = os.environ.get("ATOLL_E2E_PARTS", "ports,full,rot").split(",")
    filled = full(test) if "full" in parts else iter(())
    next(filled, None)
    if "ports" in parts:
        ports(test)
    if "rot" in parts:
        rot(test)
    next(filled, None)


if __name__ == "__main__":
    main(scenario)
