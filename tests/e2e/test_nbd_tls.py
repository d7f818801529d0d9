"""NBD over TLS with nbdinfo, nbdcopy, qemu-img and fio; who is refused, and what does not get through."""

import contextlib
import json
import random
import socket
import ssl
import struct
import threading

import pytest
from lib.authority import Authority
from lib.cluster import MIB
from lib.fio import fio, fio_that_trusts, sha256_of
from lib.nbd import (
    ERROR_TLS_REQUIRED,
    OPTION_GO,
    OPTION_MAGIC,
    OPTION_STARTTLS,
    READ,
    REQUEST_MAGIC,
    Nbd,
    NbdError,
)
from lib.verdicts import intact
from lib.waiting import wait_for

pytestmark = pytest.mark.needs("fio", "nbdinfo", "nbdcopy", "qemu-img", "openssl")


OPTION_EXPORT_NAME, OPTION_LIST = 1, 3
REPLY_ACK = 1


def uri(cluster, image, directory, tcp=True):
    place = (
        f"nbds://127.0.0.1:{cluster.nbd_port}/{image}?"
        if tcp
        else f"nbds+unix:///{image}?socket={cluster.nbd_socket}&tls-hostname=localhost&"
    )
    return f"{place}tls-certificates={directory}"


def context(authority, directory=None, maximum=ssl.TLSVersion.TLSv1_3):
    made = ssl.create_default_context(cafile=authority.certificate)
    made.maximum_version = maximum
    if directory:
        made.load_cert_chain(directory / "client-cert.pem", directory / "client-key.pem")
    return made


def refused(scenario, *command):
    """Runs a client that must fail; returns what it says."""
    done = scenario.run(*command, timeout=20, ok=None)
    assert done.returncode != 0, f"{' '.join(map(str, command))}\nwas served:\n{done.stdout[-500:]}"
    return (done.stdout + done.stderr).strip()


@pytest.fixture(scope="module")
def own(scenario):
    return Authority(scenario, "own")


@pytest.fixture(scope="module")
def other(scenario):
    return Authority(scenario, "other")


@pytest.fixture(scope="module")
def server(scenario, own):
    """The server's certificate and key."""
    directory = scenario.directory / "d" / "tls"
    directory.parent.mkdir(mode=0o700)
    directory.mkdir()
    own.sign(directory / "server.crt", directory / "server.key", "serverAuth")
    return directory / "server.crt", directory / "server.key"


@pytest.fixture(scope="module")
def cluster(scenario, server):
    """With a certificate in DIR/tls."""
    cluster = scenario.cluster(osds=1, osd_size="2G")
    cluster.up()
    for name in ("first", "second"):
        cluster.create_image(name, "32M")
        # Scenarios use them over TCP and the Unix socket at once.
        cluster.open_to_tcp(name, "--access", "multi-attach")
    cluster.started = cluster.process_ids()
    return cluster


@pytest.fixture(scope="module")
def strict(scenario, cluster, own):
    """The same cluster, which wants TLS and client certificates."""
    cluster.down()
    cluster.variables |= {"ATOLL_NBD_TLS": "required", "ATOLL_NBD_TLS_CLIENT_CA": str(own.certificate)}
    cluster.up()
    return cluster


@pytest.fixture(scope="module")
def trusting(own):
    """What a client needs that trusts the server."""
    return own.client_directory("trusting")


@pytest.fixture(scope="module")
def local(scenario):
    """A file of 32 MiB."""
    path = scenario.directory / "local"
    path.write_bytes(random.Random(5).randbytes(32 * MIB))
    return path


def is_of(cluster, authority):
    """Whether the server presents a certificate of this authority."""
    with contextlib.suppress(ssl.SSLCertVerificationError):
        cluster.nbd("first", tcp=True, tls=context(authority)).close()
        return True
    return False


def test_nbdinfo_over_tls_on_tcp_and_the_unix_socket(scenario, cluster, own, trusting):
    """nbdinfo over TLS on TCP and the Unix socket, and plain."""
    for place, is_secured in (
        (uri(cluster, "first", trusting), True),
        (uri(cluster, "first", trusting, tcp=False), True),
        (cluster.nbd_uri("first", tcp=True), False),
        (cluster.nbd_uri("first"), False),
    ):
        found = json.loads(scenario.run("nbdinfo", "--json", place).stdout)
        assert found["TLS"] is is_secured and found["structured"] is True, f"{place}: {found}"
        assert found["exports"][0]["export-size"] == 32 * MIB, f"{found}"


def test_nbdcopy_in_and_out_over_tls(scenario, cluster, local, trusting):
    """nbdcopy in and out over TLS: checksums equal."""
    back = scenario.directory / "back"
    for image, tcp in (("first", True), ("second", False)):
        place = uri(cluster, image, trusting, tcp)
        scenario.run("nbdcopy", "--connections=4", "--flush", local, place)
        # Requests of 32 MiB are the longest that there are.
        scenario.run("nbdcopy", "--connections=2", f"--request-size={32 * MIB}", place, back)
        intact(sha256_of(local) == sha256_of(back), f"{image}: the copy differs")
        scenario.run("nbdcopy", cluster.nbd_uri(image), back)
        intact(sha256_of(local) == sha256_of(back), f"{image}: it reads otherwise without TLS")


def test_qemu_img_info_convert_and_compare_over_tls(scenario, cluster, local, trusting):
    """qemu-img info, convert and compare over TLS."""
    scenario.run("nbdcopy", "--flush", local, uri(cluster, "first", trusting))
    credentials = ("--object", f"tls-creds-x509,id=tls0,endpoint=client,dir={trusting}")
    place = f"driver=nbd,host=127.0.0.1,port={cluster.nbd_port},export=first,tls-creds=tls0"
    info = json.loads(scenario.run("qemu-img", "info", *credentials, "--output=json", "--image-opts", place).stdout)
    assert info["virtual-size"] == 32 * MIB, f"{info}"
    copy = scenario.directory / "first.qcow2"
    scenario.run("qemu-img", "convert", *credentials, "--image-opts", "-O", "qcow2", place, copy)
    done = scenario.run("qemu-img", "compare", "-f", "raw", "-F", "qcow2", local, copy, ok=(0, 1))
    intact("identical" in done.stdout, done.stdout)


def test_fio_writes_and_verifies_over_tls(scenario, cluster, trusting, note):
    """fio writes and verifies over TLS, with more in flight than the server takes."""
    for name, job in (
        ("small", dict(rw="randrw", bs="4k", iodepth=2048, size="8M")),
        ("large", dict(rw="write", bs="4M", iodepth=24, size="32M")),
    ):
        place = f"nbds://127.0.0.1:{cluster.nbd_port}/second"
        write = fio(
            scenario, place, name, timeout=60, program=fio_that_trusts(scenario, trusting), verify="crc32c", **job
        )["write"]
        note(f"{write['iops']:.0f} IOPS of {job['bs']}")


def test_2_000_reads_and_300_writes_sent_before_any_answer_is_taken(cluster, own):
    """2,000 reads and 300 writes sent before any answer is taken."""
    in_one_go(cluster, context(own))


def test_a_client_that_knows_only_tls_1_2(cluster, own, other):
    """A client that knows only TLS 1.2."""
    with cluster.nbd("first", tcp=True, tls=context(own, maximum=ssl.TLSVersion.TLSv1_2)) as connection:
        assert connection.socket.version() == "TLSv1.2", connection.socket.version()
        connection.write(4096, b"2" * 100_000)
        intact(connection.read(4096, 100_000) == b"2" * 100_000, "other bytes")


def test_clients_that_trust_another_authority_refuse_the_server(scenario, cluster, other, note):
    """Clients that trust another authority refuse the server."""
    distrusting = other.client_directory("distrusting")
    note(refused(scenario, "nbdinfo", uri(cluster, "first", distrusting)).splitlines()[-1][-90:])
    refused(
        scenario,
        "qemu-img",
        "info",
        "--object",
        f"tls-creds-x509,id=tls0,endpoint=client,dir={distrusting}",
        "--image-opts",
        f"driver=nbd,host=127.0.0.1,port={cluster.nbd_port},export=first,tls-creds=tls0",
    )


def in_one_go(cluster, tls):
    """More requests than may be in flight, and all their bytes at once: what TLS has opened and the
    session does not take yet must wait and not be lost."""
    with cluster.nbd("second", tcp=True, tls=tls) as connection:
        blocks = [bytes([number & 0xFF]) * 4096 for number in range(300)]
        requests = [
            struct.pack(">IHHQQI", REQUEST_MAGIC, 0, 1, number, number * 4096, 4096) + block
            for number, block in enumerate(blocks)
        ]
        connection.socket.sendall(b"".join(requests))
        replies = {struct.unpack(">IIQ", connection._take(16))[1:] for _ in blocks}
        assert replies == {(0, number) for number in range(300)}, "not every write was answered"
        connection.socket.sendall(
            b"".join(
                struct.pack(">IHHQQI", REQUEST_MAGIC, 0, READ, number, number % 300 * 4096, 4096)
                for number in range(2000)
            )
        )
        for _ in range(2000):
            _magic, error, cookie = struct.unpack(">IIQ", connection._take(16))
            assert error == 0 and connection._take(4096) == blocks[cookie % 300], (
                f"read {cookie}: error {error}, or other bytes"
            )


@contextlib.contextmanager
def greeted(cluster):
    """A raw connection on which the server has spoken and the client has sent its flags."""
    with socket.create_connection(("127.0.0.1", cluster.nbd_port), timeout=20) as raw:
        greeting = raw.recv(18, socket.MSG_WAITALL)
        assert greeting[:16] == b"NBDMAGICIHAVEOPT", f"{greeting}"
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


def test_plain_options_sent_along_with_starttls_end_the_connection_unanswered(cluster):
    """Plain options sent along with STARTTLS end the connection unanswered."""
    with greeted(cluster) as raw:
        raw.sendall(option(OPTION_STARTTLS) + go("first"))
        received = rest_of(raw)
        assert received == b"", f"an answer of {len(received)} bytes: {received[:60]}"


def test_plain_options_sent_after_starttls_are_an_error_of_tls(cluster):
    """Plain options sent after STARTTLS are an error of TLS, and never answered."""
    with greeted(cluster) as raw:
        raw.sendall(option(OPTION_STARTTLS))
        acknowledged = raw.recv(20, socket.MSG_WAITALL)
        assert struct.unpack(">QIII", acknowledged)[1:] == (OPTION_STARTTLS, REPLY_ACK, 0), f"{acknowledged}"
        raw.sendall(go("first"))
        received = rest_of(raw)
        assert received[:1] == b"\x15" and len(received) == 7, f"not one alert: {received[:60]}"


def test_random_bytes_in_place_of_tls_records(cluster):
    """Random bytes in place of TLS records."""
    for seed in range(40):
        with greeted(cluster) as raw, contextlib.suppress(ConnectionError):
            raw.sendall(option(OPTION_STARTTLS))
            raw.recv(20, socket.MSG_WAITALL)
            noise = random.Random(seed).randbytes(4000)
            raw.sendall(noise if seed % 2 else b"\x16\x03\x01\x0f\x9b" + noise)
            # The server may have ended the connection by now.
            with contextlib.suppress(OSError):
                raw.shutdown(socket.SHUT_WR)
            assert b"IHAVEOPT" not in rest_of(raw), "an answer"


def test_a_bit_flipped_on_the_way_to_the_server_ends_the_connection_and_changes(cluster, own):
    """A bit flipped on the way to the server ends the connection and changes nothing."""
    with cluster.nbd("first") as plain:
        held = plain.read(0, MIB)
        with (
            FlippingProxy(cluster.nbd_port) as proxy,
            Nbd(("127.0.0.1", proxy.port), "first", tls=context(own)) as connection,
        ):
            connection.write(0, held[:4096])
            proxy.flip_next("to server", 1500)
            with pytest.raises((ssl.SSLError, ConnectionError)):
                connection.write(0, b"x" * 4096)
        intact(plain.read(0, MIB) == held, "the write was done")
    wait_for("the log has it", lambda: "TLS was broken" in cluster.log_text(), 10)


def test_a_bit_flipped_on_the_way_to_the_client_is_noticed_there(cluster, own):
    """A bit flipped on the way to the client is noticed there."""
    with (
        FlippingProxy(cluster.nbd_port) as proxy,
        Nbd(("127.0.0.1", proxy.port), "first", tls=context(own)) as connection,
    ):
        proxy.flip_next("to client", 1500)
        with pytest.raises(ssl.SSLError):
            connection.read(0, 4096)


def test_the_nbd_server_has_outlived_all_that(cluster, own):
    """The NBD server has outlived all that."""
    assert cluster.process_ids() == cluster.started, f"{cluster.started} -> {cluster.process_ids()}"
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


def test_a_new_certificate_counts_for_new_connections(cluster, own, other, server):
    """A new certificate counts for new connections, and old ones go on."""

    with cluster.nbd("first", tcp=True, tls=context(own)) as old:
        other.sign(*server, "serverAuth")
        wait_for("the new certificate is presented", lambda: is_of(cluster, other), 10)
        assert not is_of(cluster, own), "the old certificate is presented still"
        old.read(0, 4096)
    own.sign(*server, "serverAuth")
    wait_for("the first authority's again", lambda: is_of(cluster, own), 10)


def test_a_broken_certificate_is_logged(cluster, own, server):
    """A broken certificate is logged, and the one before stays."""
    server[0].write_text("-----BEGIN CERTIFICATE-----\nbroken\n")
    wait_for("the log has it", lambda: "use the previous certificate" in cluster.log_text(), 10)
    assert is_of(cluster, own), "the certificate that was read before is gone"
    own.sign(*server, "serverAuth")


@pytest.mark.parametrize("tcp", [True, False])
def test_plain_clients_are_refused_with_a_clear_error(scenario, strict, tcp, note):
    """Plain clients are refused on TCP and on the Unix socket with a clear error."""
    said = refused(scenario, "nbdcopy", strict.nbd_uri("first", tcp), "null:")
    assert "requires TLS" in said or "requires encryption" in said, said
    refused(scenario, "qemu-img", "info", strict.nbd_uri("first", tcp))
    with pytest.raises(NbdError, match="requires TLS") as error:
        strict.nbd("first", tcp).close()
    assert error.value.number == ERROR_TLS_REQUIRED, error.value
    note(said.splitlines()[-1][:120])


def test_without_tls_no_names_are_told(strict):
    """Without TLS no names are told, and EXPORT_NAME is cut off."""
    with greeted(strict) as raw:
        raw.sendall(option(OPTION_LIST))
        _magic, number, kind, length = struct.unpack(">QIII", raw.recv(20, socket.MSG_WAITALL))
        assert (number, kind) == (OPTION_LIST, 0x8000_0005), f"reply {kind:#x} to option {number}"
        assert b"first" not in raw.recv(length, socket.MSG_WAITALL), "a name was told"
        raw.sendall(option(OPTION_EXPORT_NAME, b"first"))
        assert rest_of(raw) == b"", "an answer"


def test_with_a_client_certificate(scenario, strict, own):
    """With a client certificate: nbdcopy, qemu-img."""
    with_certificate = own.client_directory("with", signer=own)
    back = scenario.directory / "back"
    for tcp in (True, False):
        scenario.run("nbdcopy", uri(strict, "second", with_certificate, tcp), back)
    credentials = ("--object", f"tls-creds-x509,id=tls0,endpoint=client,dir={with_certificate}")
    place = f"driver=nbd,host=127.0.0.1,port={strict.nbd_port},export=second,tls-creds=tls0"
    scenario.run(
        "qemu-img", "convert", *credentials, "--image-opts", "-O", "raw", place, scenario.directory / "converted"
    )
    intact(sha256_of(back) == sha256_of(scenario.directory / "converted"), "the copies differ")


@pytest.mark.parametrize("signer", [None, "other"], ids=["no certificate", "a certificate of another authority"])
def test_clients_without_the_right_certificate_are_refused(scenario, strict, signer, other, own, note):
    """Clients with no certificate, or with one of another authority, are refused."""
    directory = own.client_directory(f"signed-by-{signer}", signer=other if signer else None)
    note(refused(scenario, "nbdinfo", uri(strict, "first", directory)).splitlines()[-1][-100:])
    refused(scenario, "nbdinfo", uri(strict, "first", directory, tcp=False))
    for maximum in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            strict.nbd("first", tcp=True, tls=context(own, directory if signer else None, maximum)).close()
