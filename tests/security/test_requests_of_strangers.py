"""What strangers send to S3, the console and NBD to be taken for something else: requests that hide in others, XML that
grows, paths that lead out, bytes that come slowly."""

import contextlib
import hashlib
import secrets
import select
import socket
import ssl
import time
import urllib.parse
from pathlib import Path

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from lib.garbage import DRIPS, Drip
from lib.nbd import NbdError
from lib.processes import resident_bytes

HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
PUT = b"PUT /kept/k HTTP/1.1\r\nHost: x\r\n"
GROWTH_BYTES_MAX = 256 << 20
REFUSED_SECONDS_MAX = 10
# Of each listener: seconds until strangers are cut off, however slowly they send.
SLOW_SECONDS_MAX = {"gateway": 30, "admin": 30, "nbd": 20}


def chunked(body, more=b""):
    return PUT + more + b"Transfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n" + HIDDEN


def of_length(*lines, body=b""):
    return PUT + b"".join(lines) + b"\r\n" + body + HIDDEN


# Requests that say twice, or in an unusual way, how long they are: with another behind each of them.
SMUGGLED = {
    "a length and chunks": chunked(b"", b"Content-Length: 5\r\n"),
    "chunks and a length": of_length(b"Transfer-Encoding: chunked\r\n", b"Content-Length: 39\r\n", body=b"0\r\n\r\n"),
    "a length and chunks of a form, which is read": b"POST / HTTP/1.1\r\nHost: x\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"e\r\nAction=Unknown\r\n0\r\n\r\n" + HIDDEN,
    "two lengths": of_length(b"Content-Length: 0\r\n", b"Content-Length: 34\r\n"),
    "two lengths in one line": of_length(b"Content-Length: 0, 34\r\n"),
    "a length with a sign": of_length(b"Content-Length: +0\r\n"),
    "a length in hexadecimal": of_length(b"Content-Length: 0x0\r\n"),
    "a length with a space in it": of_length(b"Content-Length: 0 0\r\n"),
    "a negative length": of_length(b"Content-Length: -1\r\n"),
    "a space before the colon": of_length(b"Content-Length : 0\r\n"),
    "a line that goes on": of_length(b"X-A: b\r\n Content-Length: 34\r\n", b"Content-Length: 0\r\n"),
    "a line that goes on at the first": PUT[:-2] + b"\r\n Content-Length: 34\r\n\r\n" + HIDDEN,
    "a line feed in a line": of_length(b"X-A: b\nContent-Length: 34\r\n", b"Content-Length: 0\r\n"),
    "a carriage return in a line": of_length(b"X-A: b\rContent-Length: 34\r\n"),
    "a zero byte in a line": of_length(b"X-A: b\0Content-Length: 34\r\n"),
    "another coding": of_length(b"Transfer-Encoding: xchunked\r\n"),
    "a coding behind chunks": of_length(b"Transfer-Encoding: chunked, identity\r\n", body=b"0\r\n\r\n"),
    "chunks twice": of_length(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", body=b"0\r\n\r\n"),
    "a vertical tab": of_length(b"Transfer-Encoding: \x0bchunked\r\n"),
    "chunks of HTTP/1.0": chunked(b"").replace(b"HTTP/1.1", b"HTTP/1.0", 1),
    "a size that is too large": chunked(b"1ffffffffffffffff\r\n"),
    "a size with a sign": chunked(b"+1\r\nx\r\n"),
    "a size with a prefix": chunked(b"0x1\r\nx\r\n"),
    "no size": chunked(b"\r\nx\r\n"),
    "a line feed in an extension": chunked(b"1;a\nb\r\nx\r\n"),
    "an extension that does not end": chunked(b"1;" + b"a" * 100_000 + b"\r\nx\r\n"),
    "no end of a chunk": chunked(b"1\r\nxyz"),
}


@pytest.fixture(scope="module")
def cluster(scenario):
    cluster = scenario.cluster("strangers", osds=1, osd_size="2G")
    cluster.up()
    cluster.create_image("plain", "64M")
    s3 = cluster.s3()
    s3.create_bucket(Bucket="kept")
    s3.put_object(Bucket="kept", Key="k", Body=b"kept")
    return cluster


@pytest.fixture(scope="module", params=["S3", "console"])
def connect(request, cluster, address):
    """A connection to a listener of HTTP."""
    context = ssl.create_default_context(cafile=address.ca_file)

    def dial():
        if request.param == "S3":
            return socket.create_connection(("127.0.0.1", cluster.s3_port), timeout=10)
        plain = socket.create_connection(("127.0.0.1", cluster.admin_port), timeout=10)
        return context.wrap_socket(plain, server_hostname="127.0.0.1")

    return dial


def said(connection, seconds=10):
    """All that comes until the other side closes, and whether it did."""
    answer = b""
    connection.settimeout(seconds)
    with contextlib.suppress(ConnectionError, ssl.SSLEOFError):
        while part := connection.recv(65536):
            answer += part
            if len(answer) > 1 << 20:
                break
    return answer


@pytest.mark.parametrize("what", SMUGGLED)
def test_no_request_hides_in_another(connect, what):
    """The connection is closed: what comes behind it is not read as a request."""
    with contextlib.closing(connect()) as connection:
        with contextlib.suppress(ConnectionError, ssl.SSLEOFError):
            connection.sendall(SMUGGLED[what])
        answer = said(connection)
    assert answer.count(b"HTTP/1.") <= 1, f"two answers to {what}: {answer[:2000]}"
    assert not answer or answer.split()[1][:1] == b"4", answer[:500]


def test_two_requests_are_two(connect):
    """What is well-formed is served: otherwise the test above would show nothing."""
    with contextlib.closing(connect()) as connection:
        connection.sendall(HIDDEN * 2)
        answer, began = b"", time.monotonic()
        while answer.count(b"HTTP/1.1") < 2 and time.monotonic() < began + 10:
            answer += connection.recv(65536)
    assert answer.count(b"HTTP/1.1") == 2, answer[:2000]


def signed(cluster, method, path, body, **headers):
    """Status and body of the answer to a signed request with any body."""
    credentials = cluster.credentials()
    request = AWSRequest(method, credentials["endpoint"] + path, data=body, headers=headers)
    request.headers["x-amz-content-sha256"] = hashlib.sha256(body).hexdigest()
    S3SigV4Auth(Credentials(credentials["access_key"], credentials["secret_key"]), "s3", "us-east-1").add_auth(request)
    lines = [f"{method} {path} HTTP/1.1", f"Host: {urllib.parse.urlparse(credentials['endpoint']).netloc}"]
    lines += [f"{name}: {value}" for name, value in request.headers.items() if name.lower() != "host"]
    lines += [f"Content-Length: {len(body)}", "Connection: close", "", ""]
    with socket.create_connection(("127.0.0.1", cluster.s3_port), timeout=30) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall("\r\n".join(lines).encode() + body)
        answer = said(connection, 30)
    return int(answer.split()[1]), answer


def tagging(value, head=b""):
    inside = b"<TagSet><Tag><Key>k</Key><Value>" + value + b"</Value></Tag></TagSet>"
    return b'<?xml version="1.0"?>' + head + b"<Tagging>" + inside + b"</Tagging>"


def laughs():
    entities = b'<!ENTITY a0 "ha">' + b"".join(
        b'<!ENTITY a%d "%s">' % (level, b"&a%d;" % (level - 1) * 10) for level in range(1, 12)
    )
    return tagging(b"&a11;", b"<!DOCTYPE Tagging [" + entities + b"]>")


XML = {
    "entities of entities": laughs(),
    "an entity of a file": tagging(b"&f;", b'<!DOCTYPE Tagging [<!ENTITY f SYSTEM "file:///etc/passwd">]>'),
    "depth": b"<Tagging>" + b"<TagSet>" * 500_000,
    "depth that ends": b"<a>" * 300_000 + b"</a>" * 300_000,
    "size": tagging(b"x" * (5 << 20)),
    "a value that is long": tagging(b"x" * (3 << 20)),
    "attributes": b"<Tagging " + b" ".join(b'a%d="b"' % number for number in range(300_000)) + b"/>",
    "no end of a comment": b"<Tagging><!--" + b"-" * 1_000_000,
    "a name that is long": b"<" + b"a" * 2_000_000,
    "bytes that are no text": b"<Tagging>\xff\xfe\x00</Tagging>",
}


@pytest.mark.parametrize("what", XML)
def test_xml_is_bounded(cluster, what):
    """It is refused soon, brings in nothing from elsewhere, and takes no memory."""
    pid = cluster.process_ids()["gateway"]
    before, began = resident_bytes(pid), time.monotonic()
    status, answer = signed(cluster, "PUT", "/kept?tagging", XML[what])
    assert 400 <= status < 500 and b"root:" not in answer, (status, answer[:500])
    assert time.monotonic() - began < REFUSED_SECONDS_MAX
    assert cluster.process_ids()["gateway"] == pid
    assert resident_bytes(pid) - before < GROWTH_BYTES_MAX


def test_nothing_is_fetched_for_xml(cluster):
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = b"http://127.0.0.1:%d/x" % server.getsockname()[1]
        signed(cluster, "PUT", "/kept?tagging", tagging(b"x", b'<!DOCTYPE Tagging SYSTEM "' + place + b'">'))
        entity = b'<!DOCTYPE Tagging [<!ENTITY f SYSTEM "' + place + b'">]>'
        status, _ = signed(cluster, "PUT", "/kept?tagging", tagging(b"&f;", entity))
        assert status == 400
        assert not select.select([server], [], [], 0.5)[0], "somebody asks for it"


def test_policies_are_bounded(cluster):
    for body in (b"[" * 15_000, b'{"a":' * 3_000, b'{"Statement":' + b"[" * 10_000 + b"]" * 10_000 + b"}"):
        status, answer = signed(cluster, "PUT", "/kept?policy", body)
        assert status == 400, (status, answer[:500])


OUT = ["../" * 8, "..%2f" * 8, "%2e%2e/" * 8, "%2e%2e%2f" * 8, "..%5c" * 8, "%252e%252e%252f" * 8, "%00/", "//" * 8]


@pytest.mark.parametrize("out", OUT)
def test_paths_lead_nowhere_else(connect, out):
    for start in ("/", "/kept/", "/assets/", "/api/v1/../"):
        with contextlib.closing(connect()) as connection:
            connection.sendall(f"GET {start}{out}etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            answer = said(connection)
        assert answer.startswith(b"HTTP/1.1 ") and b"root:" not in answer, answer[:500]


def test_keys_with_dots_are_keys(cluster):
    s3, name = cluster.s3(), f"atoll-{secrets.token_hex(8)}"
    keys = [f"{'../' * 12}tmp/{name}", f"/tmp/{name}", f"./../{name}", f"a/../../{name}", f"{name}\\..\\x", f"{name}/."]
    for number, key in enumerate(keys):
        s3.put_object(Bucket="kept", Key=key, Body=b"%d" % number)
    for number, key in enumerate(keys):
        assert s3.get_object(Bucket="kept", Key=key)["Body"].read() == b"%d" % number, key
    assert {entry["Key"] for entry in s3.list_objects_v2(Bucket="kept")["Contents"]} >= set(keys)
    assert not Path("/tmp", name).exists() and not list(cluster.data.parent.rglob(f"*{name}*"))


@pytest.mark.parametrize("name", ["../plain", "plain/../plain", "/etc/passwd", "plain\0", "\0", "x" * 4_096, "%70lain"])
def test_exports_are_images_only(cluster, name):
    with pytest.raises((NbdError, ConnectionError)), cluster.nbd(name):
        pass
    with cluster.nbd("plain") as connection:
        connection.read(0, 4096)


@pytest.mark.nightly
def test_who_sends_slowly_is_cut_off(cluster):
    """A byte a second, as long as it is taken."""
    ports = {"gateway": cluster.s3_port, "admin": cluster.admin_port, "nbd": cluster.nbd_port}
    began, ended = time.monotonic(), {}
    with contextlib.ExitStack() as held:
        drips = {
            name: Drip(DRIPS[name], held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10)))
            for name, port in ports.items()
        }
        while len(ended) < len(drips) and time.monotonic() < began + 45:
            for name, drip in drips.items():
                drip.send_a_byte()
                if name not in ended and (drip.is_over or select.select([drip.connection], [], [], 0)[0]):
                    ended[name] = time.monotonic() - began
            time.sleep(1)
    assert set(ended) == set(drips), f"still open: {set(drips) - set(ended)}"
    late = {name: seconds for name, seconds in ended.items() if seconds > SLOW_SECONDS_MAX[name] + 5}
    assert not late, late
