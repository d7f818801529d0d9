"""Two gateways of one cluster behind HAProxy, with TLS passed through and with TLS ended there: clients
work through it, their addresses arrive, and a gateway that is killed under load fails no request that
may be tried again. The configurations are those of docs/guide/ingress.md.
"""

import io
import pathlib
import random
import re
import socket
import threading
import urllib.parse
import urllib.request

import boto3
import pytest
from botocore.client import Config
from lib.cluster import MIB
from lib.gateway import Gateway
from lib.ports import free_port, is_listening
from lib.processes import is_alive
from lib.s3 import read
from lib.scenario import REPOSITORY
from lib.tiers import nightly_but
from lib.verdicts import intact
from lib.waiting import not_yet, under_load, wait_for

pytestmark = pytest.mark.needs("haproxy", "curl")


TEMPLATES = pathlib.Path(__file__).with_name("haproxy")
# What docs/guide/ingress.md has in place of a test's ports and files.
EXAMPLE = {
    "passthrough": {
        "SOCKET": "/run/haproxy/admin.sock",
        "LISTEN": ":443",
        "CA": "/etc/haproxy/atoll-ca.crt",
        "GATEWAY_1": "10.0.0.1:9443",
        "GATEWAY_2": "10.0.0.2:9443",
    },
    "termination": {
        "SOCKET": "/run/haproxy/admin.sock",
        "LISTEN": ":443",
        "CERTIFICATE": "/etc/haproxy/s3.pem",
        "GATEWAY_1": "10.0.0.1:9000",
        "GATEWAY_2": "10.0.0.2:9000",
    },
}
LOAD_THREADS, LOAD_SECONDS = 8, 2
# The proxy speaks from 127.0.0.1, which gateways are told to trust; this is a client's address.
CLIENT = "127.0.0.2"


def fill_in(name, values):
    return re.sub(r"@([A-Z0-9_]+)@", lambda found: str(values[found[1]]), (TEMPLATES / f"{name}.cfg.in").read_text())


class Proxy:
    """A HAProxy of the test's own."""

    def __init__(self, scenario, name, values):
        self.scenario, self.name, self.port = scenario, name, free_port()
        self.socket = scenario.directory / f"{name}.sock"
        path = scenario.directory / f"{name}.cfg"
        path.write_text(fill_in(name, values | {"SOCKET": self.socket, "LISTEN": f"127.0.0.1:{self.port}"}))
        scenario.run("haproxy", "-c", "-q", "-f", path)
        self.log = scenario.directory / f"{name}.log"
        with open(self.log, "w") as log:
            self.process = scenario.start("haproxy", "-db", "-f", path, stdout=log, stderr=log)
        wait_for("it answers", self.answers, 20)
        wait_for("both gateways are up", lambda: self.states() == {"gateway-1": "UP", "gateway-2": "UP"}, 20)

    def answers(self):
        """Its socket is there as soon as it has started."""
        with not_yet(FileNotFoundError, ConnectionRefusedError):
            return self.ask("show info")

    def ask(self, command):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(5)
            connection.connect(str(self.socket))
            connection.sendall(f"{command}\n".encode())
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()

    def states(self):
        return {name: row["status"] for name, row in self.rows().items()}

    def rows(self):
        lines = self.ask("show stat").lstrip("# ").splitlines()
        rows = [dict(zip(lines[0].split(","), line.split(","))) for line in lines[1:] if line]
        return {row["svname"]: row for row in rows if row["svname"].startswith("gateway-")}

    def url(self):
        return f"https://localhost:{self.port}"


def client(cluster, proxy):
    """With boto3's own idea of trying again: three attempts in all."""
    credentials = cluster.credentials()
    config = Config(
        s3={"addressing_style": "path"},
        retries={"mode": "standard"},
        signature_version="s3v4",
        connect_timeout=5,
        read_timeout=60,
        max_pool_connections=32,
    )
    return boto3.client(
        "s3",
        endpoint_url=proxy.url(),
        region_name="us-east-1",
        config=config,
        verify=credentials["ca_file"],
        aws_access_key_id=credentials["access_key"],
        aws_secret_access_key=credentials["secret_key"],
    )


class Load:
    """PUTs and GETs of small objects; every one must succeed and give back what was put."""

    def __init__(self, s3, bucket):
        self.s3, self.bucket, self.stopping = s3, bucket, False
        self.done, self.failures = 0, []
        self.threads = [
            threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(LOAD_THREADS)
        ]
        for thread in self.threads:
            thread.start()

    def _run(self, number):
        rng, step = random.Random(number), 0
        while not self.stopping:
            key, body = f"load/{number}/{step % 20}", rng.randbytes(rng.choice((100, 4096, 65_536, 300_000)))
            try:
                self.s3.put_object(Bucket=self.bucket, Key=key, Body=body)
                # A body that breaks off is read again by this call, as by 'aws s3 cp'.
                found = io.BytesIO()
                self.s3.download_fileobj(self.bucket, key, found)
                assert found.getvalue() == body, f"{key} came back changed"
                self.done += 2
            except Exception as error:
                self.failures.append(f"{key}: {error}")
            step += 1

    def stop(self):
        self.stopping = True
        for thread in self.threads:
            thread.join(70)
        return self


class Place:
    """A cluster with two gateways behind a proxy, a client of the proxy and a bucket."""

    def __init__(self, scenario, cluster, second, name):
        certificate = scenario.directory / "s3.pem"
        tls = cluster.data / "tls"
        certificate.write_text((tls / "server.crt").read_text() + (tls / "server.key").read_text())
        values = {
            "passthrough": {
                "CA": cluster.credentials()["ca_file"],
                "GATEWAY_1": f"127.0.0.1:{cluster.s3_tls_port}",
                "GATEWAY_2": f"127.0.0.1:{second.tls}",
            },
            "termination": {
                "CERTIFICATE": certificate,
                "GATEWAY_1": f"127.0.0.1:{cluster.s3_port}",
                "GATEWAY_2": f"127.0.0.1:{second.plain}",
            },
        }
        self.cluster, self.second, self.name = cluster, second, name
        self.proxy, self.bucket = Proxy(scenario, name, values[name]), f"by-{name}"
        self.s3 = client(cluster, self.proxy)
        self.s3.create_bucket(Bucket=self.bucket)
        self.s3.put_object(Bucket=self.bucket, Key="one", Body=b"content" * 1000)

    def url(self, key):
        return self.s3.generate_presigned_url("get_object", Params={"Bucket": self.bucket, "Key": key}, ExpiresIn=300)

    def served_by_second(self):
        """Sessions that the second gateway has got."""
        return int(self.proxy.rows()["gateway-2"]["stot"])

    def both_are_up(self):
        return set(self.proxy.states().values()) == {"UP"}


@pytest.fixture(scope="module")
def cluster(scenario):
    # Only the proxy's address is trusted; a line for each request, with the client's.
    scenario.environment |= {"ATOLL_TRUSTED_PROXIES": "127.0.0.1", "ATOLL_LOG": "info,s3s=off,access=debug"}
    cluster = scenario.cluster("d", osds=1, osd_size="2G")
    cluster.up()
    return cluster


@pytest.fixture(scope="module")
def second(cluster):
    """A second gateway."""
    second = Gateway(cluster)
    wait_for("it listens", lambda: is_listening(second.tls), 20)
    return second


@pytest.fixture(scope="module", params=nightly_but(["termination"], EXAMPLE))
def place(scenario, cluster, second, request):
    """HAProxy, which finds both gateways healthy."""
    place = Place(scenario, cluster, second, request.param)
    yield place
    place.proxy.process.terminate()


@pytest.mark.parametrize("name", EXAMPLE)
def test_the_document_shows_the_configuration_as_it_is(name):
    """docs/guide/ingress.md shows the configurations as they are."""
    [document] = (REPOSITORY / "docs").rglob("ingress.md")
    shown = "\n".join(f"    {line}".rstrip() for line in fill_in(name, EXAMPLE[name]).splitlines())
    fenced = fill_in(name, EXAMPLE[name]).strip()
    text = document.read_text()
    assert shown in text or fenced in text, f"{document} shows another {name}.cfg.in"


def test_put_get_ranges_and_multipart_go_through(place):
    """PUT, GET, ranges and multipart go through the proxy."""
    s3, bucket, body = place.s3, place.bucket, random.Random(1).randbytes(20 * MIB)
    s3.put_object(Bucket=bucket, Key="large", Body=body)
    intact(read(s3, bucket, "large") == body, "it came back changed")
    part = s3.get_object(Bucket=bucket, Key="large", Range="bytes=5000000-5000099")["Body"].read()
    assert part == body[5_000_000:5_000_100], "a range differs"
    upload = {"Bucket": bucket, "Key": "parts"}
    upload["UploadId"] = s3.create_multipart_upload(**upload)["UploadId"]
    pieces = [body[start : start + 8 * MIB] for start in range(0, len(body), 8 * MIB)]
    parts = [
        {"PartNumber": number, "ETag": s3.upload_part(**upload, PartNumber=number, Body=piece)["ETag"]}
        for number, piece in enumerate(pieces, 1)
    ]
    s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    intact(read(s3, bucket, "parts") == body, "the parts came back changed")


def test_the_clients_address_arrives_at_the_gateways(scenario, place):
    """The client's address arrives at the gateways, and that it came with TLS."""
    url, ca_file = place.url("one"), place.cluster.credentials()["ca_file"]
    lies = ["-H", "X-Forwarded-For: 1.2.3.4", "-H", "X-Forwarded-Proto: http"]
    for _ in range(4):
        scenario.run("curl", "-sf", "--cacert", ca_file, "--interface", CLIENT, "-o", "/dev/null", *lies, url)
    logs = (place.cluster.data / "log" / "gateway.log").read_text() + place.second.log.read_text()
    lines = [line for line in logs.splitlines() if f"GET /{place.bucket}/one" in line and f"client={CLIENT}:" in line]
    assert len(lines) == 4 and all("is_encrypted=true" in line for line in lines), "\n".join(lines) or logs[-600:]
    assert "1.2.3.4" not in logs, "a client's own word was taken"


def test_http_2_goes_through(scenario, place):
    """HTTP/2 goes through the proxy."""
    ca_file, told = place.cluster.credentials()["ca_file"], "%{http_code} %{http_version}"
    done = scenario.run("curl", "-s", "--http2", "--cacert", ca_file, "-o", "/dev/null", "-w", told, place.url("one"))
    assert done.stdout == "200 2", done.stdout


def test_kill_9_of_each_gateway_under_load_fails_no_request(place, note):
    """kill -9 of each gateway under load fails no request that may be tried again: one comes back by itself."""
    load, proxy, second = Load(place.s3, place.bucket), place.proxy, place.second
    under_load(LOAD_SECONDS)
    second.kill()
    wait_for("the dead gateway is taken out", lambda: proxy.states()["gateway-2"].startswith("DOWN"), 10)
    during = load.done
    wait_for("it goes on without it", lambda: load.done > during, 20)
    second.start()
    wait_for("it is taken in again", lambda: proxy.states()["gateway-2"] == "UP", 20)
    before = place.served_by_second()
    place.cluster.restarted("gateway", place.cluster.kill("gateway"))
    under_load(LOAD_SECONDS)
    wait_for("both are up", place.both_are_up, 20)
    load.stop()
    assert not load.failures, f"{len(load.failures)} failed: " + "; ".join(load.failures[:3])
    assert load.done > 50, f"only {load.done} requests"
    assert place.served_by_second() > before, "the gateway that came back got nothing to do"
    note(f"{load.done} requests")


def test_a_gateway_that_is_drained_gets_nothing_new(place):
    """A gateway that is drained gets nothing new and is taken in again."""
    load, proxy = Load(place.s3, place.bucket), place.proxy
    wait_for("it runs", lambda: load.done > 10)
    proxy.ask("set server gateways/gateway-2 state drain")
    # TLS that is passed through is one connection for many requests, which goes on.
    is_idle = lambda: place.name == "passthrough" or proxy.rows()["gateway-2"]["scur"] == "0"
    wait_for("it has nothing left to do", is_idle, 10)
    before = place.served_by_second()
    for _ in range(6):
        urllib.request.urlopen(f"{proxy.url()}/-/health", timeout=10, context=place.cluster.trust()).close()
    assert place.served_by_second() == before, "it still gets something"
    proxy.ask("set server gateways/gateway-2 state ready")
    wait_for("it is up", lambda: proxy.states()["gateway-2"] == "UP", 10)
    load.stop()
    assert not load.failures, "; ".join(load.failures[:3])


def test_both_gateways_and_the_cluster_are_still_well(cluster, second):
    """Both gateways and the cluster are still well."""
    assert is_alive(second.process.pid), "the second gateway has ended"
    second.process.terminate()
    assert second.process.wait(30) == 0, f"it ended with exit code {second.process.returncode}"
    cluster.down()
