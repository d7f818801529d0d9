#!/usr/bin/env python3
"""NBD over TLS with nbdinfo, nbdcopy, qemu-img and fio; who is refused, and what does not get through."""
import contextlib, json, os, random, socket, ssl, struct, threading

from harness import MIB, Failed, expect, main, wait_for
from nbd_fio import fio, sha256_of
from nbdclient import ERROR_TLS_REQUIRED, OPTION_GO, OPTION_MAGIC, OPTION_STARTTLS, READ, REQUEST_MAGIC, Nbd, NbdError

OPTION_EXPORT_NAME, OPTION_LIST = 1, 3
REPLY_ACK = 1


class Authority:
    """A certificate authority made with openssl, and certificates that it signs."""

    def __init__(self, test, name):
        self.test, self.directory = test, test.directory / f"authority-{name}"
        self.directory.mkdir()
        self.certificate = self.directory / "ca-cert.pem"
        self.openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", f"/CN=authority {name}",
                     "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign",
                     "-keyout", self.directory / "ca-key.pem", "-out", self.certificate)

    def openssl(self, *arguments):
        self.test.run("openssl", *arguments)

    def sign(self, certificate, key, usage):
        request = self.directory / "request.pem"
        self.openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={usage}", "-keyout", key, "-out", request)
        extensions = self.directory / "extensions"
        extensions.write_text(f"subjectAltName=IP:127.0.0.1,DNS:localhost\nbasicConstraints=critical,CA:FALSE\n"
                              f"keyUsage=critical,digitalSignature\nextendedKeyUsage={usage}\n")
        # Whoever follows the files may never see a half-written one.
        self.openssl("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.directory / "ca-key.pem", "-CAcreateserial",
                     "-days", "2", "-extfile", extensions, "-out", f"{certificate}.new")
        os.rename(f"{certificate}.new", certificate)

    def client_directory(self, name, signer=None):
        """What libnbd and QEMU take: this authority, and a certificate if somebody signs one."""
        directory = self.test.directory / f"client-{name}"
        directory.mkdir()
        (directory / "ca-cert.pem").write_bytes(self.certificate.read_bytes())
        if signer:
            signer.sign(directory / "client-cert.pem", directory / "client-key.pem", "clientAuth")
        return directory


def uri(cluster, image, directory, tcp=True):
    place = f"nbds://127.0.0.1:{cluster.nbd_port}/{image}?" if tcp else f"nbds+unix:///{image}?socket={cluster.nbd_socket}&tls-hostname=localhost&"
    return f"{place}tls-certificates={directory}"


def context(authority, directory=None, maximum=ssl.TLSVersion.TLSv1_3):
    made = ssl.create_default_context(cafile=authority.certificate)
    made.maximum_version = maximum
    if directory:
        made.load_cert_chain(directory / "client-cert.pem", directory / "client-key.pem")
    return made


def refused(test, *command):
    """Runs a client that must fail; returns what it says."""
    done = test.run(*command, timeout=20, ok=None)
    expect(done.returncode != 0, f"{' '.join(map(str, command))}\nwas served:\n{done.stdout[-500:]}")
    return (done.stdout + done.stderr).strip()


def scenario(test):
    test.need(("fio", "fio"), ("nbdinfo", "libnbd-bin"), ("nbdcopy", "libnbd-bin"), ("qemu-img", "qemu-utils"), ("openssl", "openssl"))
    cluster = test.cluster(osds=1, osd_size="2G")
    own, other = Authority(test, "own"), Authority(test, "other")
    (cluster.data / "tls").mkdir(parents=True)
    server = cluster.data / "tls" / "server.crt", cluster.data / "tls" / "server.key"
    own.sign(*server, "serverAuth")
    with test.step("atoll up --detach with a certificate in DIR/tls", fatal=True):
        cluster.up()
        for name in ("first", "second"):
            cluster.create_image(name, "32M")
    offered(test, cluster, own, other)
    hostile(test, cluster, own)
    renewed(test, cluster, own, other, server)
    with test.step("atoll down, and up with TLS and client certificates required", fatal=True):
        cluster.down()
        test.environment |= {"ATOLL_NBD_TLS": "required", "ATOLL_NBD_TLS_CLIENT_CA": str(own.certificate)}
        cluster.up()
    required(test, cluster, own, other)


def offered(test, cluster, own, other):
    trusting = own.client_directory("trusting")
    with test.step("nbdinfo over TLS on TCP and the Unix socket, and plain"):
        for place, is_secured in ((uri(cluster, "first", trusting), True), (uri(cluster, "first", trusting, tcp=False), True),
                                  (cluster.nbd_uri("first", tcp=True), False), (cluster.nbd_uri("first"), False)):
            found = json.loads(test.run("nbdinfo", "--json", place).stdout)
            expect(found["TLS"] is is_secured and found["structured"] is True, f"{place}: {found}")
            expect(found["exports"][0]["export-size"] == 32 * MIB, f"{found}")
    with test.step("nbdcopy in and out over TLS: checksums equal") as note:
        local, back = test.directory / "local", test.directory / "back"
        local.write_bytes(random.Random(5).randbytes(32 * MIB))
        for image, tcp in (("first", True), ("second", False)):
            place = uri(cluster, image, trusting, tcp)
            test.run("nbdcopy", "--connections=4", "--flush", local, place)
            # Requests of 32 MiB are the longest that there are.
            test.run("nbdcopy", "--connections=2", f"--request-size={32 * MIB}", place, back)
            expect(sha256_of(local) == sha256_of(back), f"{image}: the copy differs")
            test.run("nbdcopy", cluster.nbd_uri(image), back)
            expect(sha256_of(local) == sha256_of(back), f"{image}: it reads otherwise without TLS")
    with test.step("qemu-img info, convert and compare over TLS"):
        credentials = ("--object", f"tls-creds-x509,id=tls0,endpoint=client,dir={trusting}")
        place = f"driver=nbd,host=127.0.0.1,port={cluster.nbd_port},export=first,tls-creds=tls0"
        info = json.loads(test.run("qemu-img", "info", *credentials, "--output=json", "--image-opts", place).stdout)
        expect(info["virtual-size"] == 32 * MIB, f"{info}")
        copy = test.directory / "first.qcow2"
        test.run("qemu-img", "convert", *credentials, "--image-opts", "-O", "qcow2", place, copy)
        done = test.run("qemu-img", "compare", "-f", "raw", "-F", "qcow2", local, copy)
        expect("identical" in done.stdout, done.stdout)
    with test.step("fio writes and verifies over TLS, with more in flight than the server takes") as note:
        for name, job in (("small", dict(rw="randrw", bs="4k", iodepth=2048, size="8M")), ("large", dict(rw="write", bs="4M", iodepth=24, size="32M"))):
            place = f"nbds://127.0.0.1:{cluster.nbd_port}/second"
            write = fio(test, place, name, timeout=60, program=fio_that_trusts(test, trusting), verify="crc32c", **job)["write"]
            note(f"{write['iops']:.0f} IOPS of {job['bs']}")
    with test.step("2,000 reads and 300 writes sent before any answer is taken"):
        in_one_go(cluster, context(own))
    with test.step("a client that knows only TLS 1.2"):
        with cluster.nbd("first", tcp=True, tls=context(own, maximum=ssl.TLSVersion.TLSv1_2)) as connection:
            expect(connection.socket.version() == "TLSv1.2", connection.socket.version())
            connection.write(4096, b"2" * 100_000)
            expect(connection.read(4096, 100_000) == b"2" * 100_000, "other bytes")
    with test.step("clients that trust another authority refuse the server") as note:
        distrusting = other.client_directory("distrusting")
        note(refused(test, "nbdinfo", uri(cluster, "first", distrusting)).splitlines()[-1][-90:])
        refused(test, "qemu-img", "info", "--object", f"tls-creds-x509,id=tls0,endpoint=client,dir={distrusting}", "--image-opts",
                f"driver=nbd,host=127.0.0.1,port={cluster.nbd_port},export=first,tls-creds=tls0")


def fio_that_trusts(test, directory):
    """fio takes no directory of certificates; libnbd finds one in the home directory, unless for root."""
    home = test.directory / "home"
    (home / ".pki").mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (home / ".pki" / "libnbd").symlink_to(directory)
    in_name_only = ("unshare", "--user") if os.geteuid() == 0 else ()
    return ("env", f"HOME={home}", *in_name_only, "fio")


def in_one_go(cluster, tls):
    """More requests than may be in flight, and all their bytes at once: what TLS has opened and the
    session does not take yet must wait and not be lost."""
    with cluster.nbd("second", tcp=True, tls=tls) as connection:
        blocks = [bytes([number & 0xFF]) * 4096 for number in range(300)]
        requests = [struct.pack(">IHHQQI", REQUEST_MAGIC, 0, 1, number, number * 4096, 4096) + block for number, block in enumerate(blocks)]
        connection.socket.sendall(b"".join(requests))
        replies = {struct.unpack(">IIQ", connection._take(16))[1:] for _ in blocks}
        expect(replies == {(0, number) for number in range(300)}, "not every write was answered")
        connection.socket.sendall(b"".join(struct.pack(">IHHQQI", REQUEST_MAGIC, 0, READ, number, number % 300 * 4096, 4096) for number in range(2000)))
        for _ in range(2000):
            _magic, error, cookie = struct.unpack(">IIQ", connection._take(16))
            expect(error == 0 and connection._take(4096) == blocks[cookie % 300], f"read {cookie}: error {error}, or other bytes")


@contextlib.contextmanager
def greeted(cluster):
    """A raw connection on which the server has spoken and the client has sent its flags."""
    with socket.create_connection(("127.0.0.1", cluster.nbd_port), timeout=20) as raw:
        greeting = raw.recv(18, socket.MSG_WAITALL)
        expect(greeting[:16] == b"NBDMAGICIHAVEOPT", f"{greeting}")
        raw.sendall(struct.pack(">I", 3))
        yield raw


def option(number, data=b""):
    return struct.pack(">QII", OPTION_MAGIC, number, len(data)) + data


def rest_of(raw):
    """What the server sends until it closes the connection."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while part := raw.recv(65536):
            received += part
    return received


def go(image):
    return option(OPTION_GO, struct.pack(">I", len(image)) + image.encode() + struct.pack(">H", 0))


def hostile(test, cluster, own):
    before = cluster.process_ids()
    with test.step("plain options sent along with STARTTLS end the connection unanswered"):
        with greeted(cluster) as raw:
            raw.sendall(option(OPTION_STARTTLS) + go("first"))
            received = rest_of(raw)
            expect(received == b"", f"an answer of {len(received)} bytes: {received[:60]}")
    with test.step("plain options sent after STARTTLS are an error of TLS, and never answered"):
        with greeted(cluster) as raw:
            raw.sendall(option(OPTION_STARTTLS))
            acknowledged = raw.recv(20, socket.MSG_WAITALL)
            expect(struct.unpack(">QIII", acknowledged)[1:] == (OPTION_STARTTLS, REPLY_ACK, 0), f"{acknowledged}")
            raw.sendall(go("first"))
            received = rest_of(raw)
            expect(received[:1] == b"\x15" and len(received) == 7, f"not one alert: {received[:60]}")
    with test.step("random bytes in place of TLS records"):
        for seed in range(40):
            with greeted(cluster) as raw, contextlib.suppress(ConnectionError):
                raw.sendall(option(OPTION_STARTTLS))
                raw.recv(20, socket.MSG_WAITALL)
                noise = random.Random(seed).randbytes(4000)
                raw.sendall(noise if seed % 2 else b"\x16\x03\x01\x0f\x9b" + noise)
                raw.shutdown(socket.SHUT_WR)
                expect(b"IHAVEOPT" not in rest_of(raw), "an answer")
    with test.step("a bit flipped on the way to the server ends the connection and changes nothing"):
        with cluster.nbd("first") as plain:
            held = plain.read(0, MIB)
            with FlippingProxy(cluster.nbd_port) as proxy, Nbd(("127.0.0.1", proxy.port), "first", tls=context(own)) as connection:
                connection.write(0, held[:4096])
                proxy.flip_next("to server", 1500)
                try:
                    connection.write(0, b"x" * 4096)
                    raise Failed("the write was answered")
                except OSError:
                    pass
            expect(plain.read(0, MIB) == held, "the write was done")
        wait_for("the log has it", lambda: "TLS was broken" in cluster.log_text(), 10)
    with test.step("a bit flipped on the way to the client is noticed there"):
        with FlippingProxy(cluster.nbd_port) as proxy, Nbd(("127.0.0.1", proxy.port), "first", tls=context(own)) as connection:
            proxy.flip_next("to client", 1500)
            try:
                connection.read(0, 4096)
                raise Failed("the client took it")
            except ssl.SSLError:
                pass
    with test.step("the NBD server has outlived all that"):
        expect(cluster.process_ids() == before, f"{before} -> {cluster.process_ids()}")
        with cluster.nbd("first", tcp=True, tls=context(own)) as connection:
            connection.read(0, 4096)


class FlippingProxy:
    """Passes one TCP connection on, and changes one bit of it when told to."""

    def __init__(self, port):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port, self.target, self.armed, self.sockets = self.listener.getsockname()[1], port, {}, []

    def __enter__(self):
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def __exit__(self, *_):
        for one in [self.listener, *self.sockets]:
            one.close()

    def flip_next(self, way, offset):
        """In the next bytes that go this way, as soon as there are as many."""
        self.armed[way] = offset

    def _run(self):
        client = self.listener.accept()[0]
        server = socket.create_connection(("127.0.0.1", self.target))
        self.sockets += [client, server]
        threading.Thread(target=self._pass, args=[server, client, "to client"], daemon=True).start()
        self._pass(client, server, "to server")

    def _pass(self, source, target, way):
        with contextlib.suppress(OSError):
            while part := bytearray(source.recv(65536)):
                if self.armed.get(way, len(part)) < len(part):
                    part[self.armed.pop(way)] ^= 4
                target.sendall(part)
            target.shutdown(socket.SHUT_WR)


def renewed(test, cluster, own, other, server):
    def is_of(authority):
        with contextlib.suppress(ssl.SSLCertVerificationError):
            cluster.nbd("first", tcp=True, tls=context(authority)).close()
            return True

    with test.step("a new certificate counts for new connections, and old ones go on") as note:
        with cluster.nbd("first", tcp=True, tls=context(own)) as old:
            other.sign(*server, "serverAuth")
            wait_for("the new certificate is presented", lambda: is_of(other), 10)
            expect(not is_of(own), "the old certificate is presented still")
            old.read(0, 4096)
    with test.step("a broken certificate is logged, and the one before stays"):
        server[0].write_text("-----BEGIN CERTIFICATE-----\nbroken\n")
        wait_for("the log has it", lambda: "go on with the certificate that was read before" in cluster.log_text(), 10)
        expect(is_of(other), "the certificate that was read before is gone")
    own.sign(*server, "serverAuth")


def required(test, cluster, own, other):
    with_certificate, without = own.client_directory("with", signer=own), own.client_directory("without")
    foreign = own.client_directory("foreign", signer=other)
    for tcp in (True, False):
        with test.step(f"plain clients are refused on {'TCP' if tcp else 'the Unix socket'} with a clear error") as note:
            said = refused(test, "nbdcopy", cluster.nbd_uri("first", tcp), "null:")
            expect("requires TLS" in said or "requires encryption" in said, said)
            refused(test, "qemu-img", "info", cluster.nbd_uri("first", tcp))
            try:
                cluster.nbd("first", tcp).close()
                raise Failed("it was served")
            except NbdError as error:
                expect(error.number == ERROR_TLS_REQUIRED and "requires TLS" in str(error), str(error))
            note(said.splitlines()[-1][:120])
    with test.step("without TLS no names are told, and EXPORT_NAME is cut off"):
        with greeted(cluster) as raw:
            raw.sendall(option(OPTION_LIST))
            _magic, number, kind, length = struct.unpack(">QIII", raw.recv(20, socket.MSG_WAITALL))
            expect((number, kind) == (OPTION_LIST, 0x8000_0005), f"reply {kind:#x} to option {number}")
            expect(b"first" not in raw.recv(length, socket.MSG_WAITALL), "a name was told")
            raw.sendall(option(OPTION_EXPORT_NAME, b"first"))
            expect(rest_of(raw) == b"", "an answer")
    with test.step("with a client certificate: nbdcopy, qemu-img"):
        back = test.directory / "back"
        for tcp in (True, False):
            test.run("nbdcopy", uri(cluster, "second", with_certificate, tcp), back)
        credentials = ("--object", f"tls-creds-x509,id=tls0,endpoint=client,dir={with_certificate}")
        place = f"driver=nbd,host=127.0.0.1,port={cluster.nbd_port},export=second,tls-creds=tls0"
        test.run("qemu-img", "convert", *credentials, "--image-opts", "-O", "raw", place, test.directory / "converted")
        expect(sha256_of(back) == sha256_of(test.directory / "converted"), "the copies differ")
    for directory, what in ((without, "no certificate"), (foreign, "a certificate of another authority")):
        with test.step(f"clients with {what} are refused") as note:
            note(refused(test, "nbdinfo", uri(cluster, "first", directory)).splitlines()[-1][-100:])
            refused(test, "nbdinfo", uri(cluster, "first", directory, tcp=False))
            for maximum in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
                chain = directory if directory == foreign else None
                try:
                    cluster.nbd("first", tcp=True, tls=context(own, chain, maximum)).close()
                    raise Failed(f"served over {maximum}")
                except (ssl.SSLError, ConnectionError):
                    pass


if __name__ == "__main__":
    main(scenario)
