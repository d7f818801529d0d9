"""TLS of the S3 gateway: its own authority and certificates, versions, HTTP/2, certificates by name and
their change while a download goes on, client certificates, and a gateway that speaks nothing else.
"""

import json
import random
import re
import shutil
import signal
import socket
import stat
import subprocess

import pytest
from lib.cluster import MIB
from lib.ports import free_port, is_listening
from lib.s3 import read
from lib.verdicts import intact
from lib.waiting import wait_for

pytestmark = pytest.mark.needs("curl", "openssl", "aws")


class Gateway:
    """A further gateway process of a cluster with TLS options of its own."""

    def __init__(self, scenario, cluster, name, *options):
        self.scenario, self.port = scenario, free_port()
        self.log = scenario.directory / f"{name}.log"
        with open(self.log, "w") as log:
            self.process = scenario.start(
                scenario.atoll,
                "gateway",
                "run",
                "--data",
                cluster.data,
                "--s3-listen",
                "off",
                "--s3-tls-listen",
                f"127.0.0.1:{self.port}",
                *options,
                env=scenario.environment | cluster.variables,
                stdout=log,
                stderr=log,
            )
        wait_for(f"{name} listens", self.listens, 20)

    def listens(self):
        assert self.process.poll() is None, self.log.read_text()[-600:]
        return is_listening(self.port)


def s_client(scenario, port, *options, ok=(0,)):
    """What openssl says of a handshake."""
    done = scenario.run("openssl", "s_client", "-connect", f"127.0.0.1:{port}", *options, ok=None, timeout=20)
    said = done.stdout + done.stderr
    assert ok is None or done.returncode in ok, f"exit code {done.returncode}\n{said[-1200:]}"
    return said


def subject(scenario, port, name=None):
    said = s_client(scenario, port, *(["-servername", name] if name else ["-noservername"]), ok=None)
    found = re.search(r"subject=.*?CN ?= ?(\S+)", said)
    assert found, said[-600:]
    return found[1]


def curl(scenario, *options, ok=(0,)):
    return scenario.run("curl", "-sS", *options, ok=ok, timeout=60)


SEEN = ["-w", "%{http_code} HTTP/%{http_version}"]


@pytest.fixture(scope="module")
def cluster(scenario):
    cluster = scenario.cluster("d", osds=1, osd_size="1G")
    cluster.up()
    return cluster


@pytest.fixture(scope="module")
def port(cluster):
    return cluster.s3_tls_port


@pytest.fixture(scope="module")
def ca_file(cluster):
    return cluster.credentials()["ca_file"]


@pytest.fixture(scope="module")
def body():
    return random.Random(5).randbytes(20 * MIB)


@pytest.fixture(scope="module")
def file(scenario, body):
    path = scenario.directory / "file"
    path.write_bytes(body)
    return path


@pytest.fixture(scope="module")
def s3(cluster, body):
    """A client over TLS, and a bucket with an object."""
    credentials = cluster.credentials()
    cluster._credentials = credentials | {"endpoint": credentials["tls_endpoint"]}
    s3 = cluster.s3()
    cluster._credentials = credentials
    s3.create_bucket(Bucket="bucket")
    s3.put_object(Bucket="bucket", Key="one", Body=body)
    return s3


@pytest.fixture(scope="module")
def certificates(scenario):
    """A directory of certificates for two host names."""
    directory = scenario.directory / "certificates"
    issue(scenario, directory, "server", ["first.example"])
    issue(scenario, directory, "two", ["two.example", "*.two.example"])
    return directory


@pytest.fixture(scope="module")
def by_name(scenario, cluster, certificates):
    """A gateway with them."""
    gateway = Gateway(scenario, cluster, "by-name", "--tls-certs", certificates)
    yield gateway
    gateway.process.terminate()


@pytest.fixture(scope="module")
def clients(scenario):
    """A directory of client certificates: of an authority, and of a stranger."""
    directory = scenario.directory / "clients"
    issue(scenario, directory, "authority", ["authority"])
    issue(scenario, directory, "client", ["client"], "authority")
    issue(scenario, directory, "stranger", ["stranger"])
    return directory


@pytest.fixture(scope="module")
def stopped_cluster(cluster, s3):
    cluster.down()
    return cluster


def test_atoll_up_makes_an_authority_and_a_certificate(scenario, cluster):
    """'atoll up' makes an authority and a certificate."""
    directory = cluster.data / "tls"
    for name, mode in (("ca.key", 0o600), ("server.key", 0o600), ("ca.crt", 0o644), ("server.crt", 0o644)):
        found = stat.S_IMODE((directory / name).stat().st_mode)
        assert found == mode, f"{name} has mode {found:o}"
    scenario.run(
        "openssl",
        "verify",
        "-x509_strict",
        "-purpose",
        "sslserver",
        "-CAfile",
        directory / "ca.crt",
        directory / "server.crt",
    )
    names = scenario.run("openssl", "x509", "-in", directory / "server.crt", "-noout", "-ext", "subjectAltName").stdout
    for name in (
        "DNS:localhost",
        "IP Address:127.0.0.1",
        "IP Address:0:0:0:0:0:0:0:1",
        f"DNS:{socket.gethostname().lower()}",
    ):
        assert name in names, f"{name} is not in {names}"


def test_commands_name_the_endpoint_and_the_authority(cluster):
    """Commands name the endpoint and the authority."""
    endpoint, ca_file = f"https://127.0.0.1:{cluster.s3_tls_port}", str(cluster.data / "tls" / "ca.crt")
    credentials, status = cluster.json("credentials"), cluster.json("status")
    assert (credentials["tls_endpoint"], credentials["ca_file"]) == (endpoint, ca_file), f"{credentials}"
    assert (status["s3_tls_endpoint"], status["ca_file"]) == (endpoint, ca_file), f"{status}"
    for command in ("credentials", "status"):
        said = cluster.cli(command).stdout
        assert endpoint in said and ca_file in said, said


@pytest.mark.parametrize(("option", "version"), [("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")])
def test_tls_1_2_and_1_3_are_spoken(scenario, cluster, option, version, ca_file, port):
    """TLS 1.2 and 1.3 are spoken, and the certificate is right."""
    said = s_client(
        scenario, port, option, "-brief", "-CAfile", ca_file, "-verify_return_error", "-verify_ip", "127.0.0.1"
    )
    assert f"Protocol version: {version}" in said and "Verification: OK" in said, said


def test_tls_1_0_and_1_1_are_refused(scenario, port):
    """TLS 1.0 and 1.1 are refused."""
    for option in ("-tls1", "-tls1_1"):
        said = s_client(scenario, port, option, "-cipher", "ALL:@SECLEVEL=0", ok=(1,))
        assert "SSL alert number" in said and "no protocols available" not in said, said[-600:]


def test_plain_http_on_the_tls_port_is_refused(scenario, cluster, ca_file, port):
    """Plain HTTP on the TLS port is refused, TLS on the plain port, too, and strangers' trust."""
    curl(scenario, f"http://127.0.0.1:{port}/-/health", ok=(1, 52, 56))
    curl(scenario, "-k", f"https://127.0.0.1:{cluster.s3_port}/-/health", ok=(35,))
    curl(scenario, f"https://127.0.0.1:{port}/-/health", ok=(60,))
    curl(
        scenario,
        "--cacert",
        ca_file,
        "--resolve",
        f"other.example:{port}:127.0.0.1",
        f"https://other.example:{port}/-/health",
        ok=(60,),
    )


def test_sessions_are_resumed(scenario, port):
    """Sessions are resumed."""
    session = scenario.directory / "session"
    for option in ("-tls1_2", "-tls1_3"):
        # A session of TLS 1.3 comes behind the handshake.
        process = scenario.start(
            "openssl", "s_client", "-connect", f"127.0.0.1:{port}", option, "-sess_out", session, stdin=subprocess.PIPE
        )
        process.stdin.write("GET /-/health HTTP/1.1\r\nHost: x\r\n\r\n")
        process.stdin.flush()
        wait_for("a session", lambda: session.exists() and session.stat().st_size > 0, 10)
        process.kill()
        said = s_client(scenario, port, option, "-sess_in", session)
        assert "Reused, TLSv1" in said, said[-800:]
        session.unlink()


def test_boto3_over_tls(s3, file, body):
    """boto3 over TLS: PUT, GET, multipart."""
    intact(read(s3, "bucket", "one") == body, "it came back changed")
    s3.upload_file(str(file), "bucket", "parts")
    intact(read(s3, "bucket", "parts") == body, "it came back changed")


def test_aws_s3_cp_over_tls(scenario, cluster, s3, body, file):
    """aws s3 cp over TLS, there and back."""
    environment = cluster.s3_tls_environment()
    scenario.run("aws", "s3", "cp", file, "s3://bucket/aws", env=environment)
    scenario.run("aws", "s3", "cp", "s3://bucket/aws", scenario.directory / "back", env=environment)
    assert (scenario.directory / "back").read_bytes() == body, "it came back changed"


@pytest.mark.parametrize(("option", "version"), [("--http2", "HTTP/2"), ("--http1.1", "HTTP/1.1")])
def test_put_and_get_of_20_mib_with_curl(scenario, cluster, s3, file, body, option, version, ca_file):
    """PUT and GET of 20 MiB with curl over HTTP/2 and HTTP/1.1."""
    place = {"Bucket": "bucket", "Key": f"by-{version}"}
    url = s3.generate_presigned_url("put_object", Params=place)
    said = curl(scenario, option, "--cacert", ca_file, "-T", file, *SEEN, url).stdout
    assert said == f"200 {version}", said
    back = scenario.directory / "back"
    said = curl(
        scenario, option, "--cacert", ca_file, "-o", back, *SEEN, s3.generate_presigned_url("get_object", Params=place)
    ).stdout
    assert said == f"200 {version}" and back.read_bytes() == body, said


def test_http_2_many_requests_over_one_connection(scenario, s3, body, ca_file):
    """HTTP/2: many requests over one connection, refusals among them."""
    good = s3.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "one"})
    files = [
        part
        for number in range(12)
        for part in ("-o", scenario.directory / f"many-{number}", good if number % 3 else missigned(good))
    ]
    said = curl(
        scenario,
        "--http2",
        "--parallel",
        "--cacert",
        ca_file,
        "-w",
        "%{http_code} %{num_connects} %{http_version}\n",
        *files,
    ).stdout.splitlines()
    codes = sorted(line.split()[0] for line in said)
    assert codes == ["200"] * 8 + ["403"] * 4, f"{said}"
    assert all(line.endswith(" 2") for line in said) and sum(int(line.split()[1]) for line in said) <= 3, f"{said}"
    for number in range(12):
        found = (scenario.directory / f"many-{number}").read_bytes()
        assert (found == body) == bool(number % 3), f"{number}: {len(found)} bytes"


def test_http_2_a_refused_upload_does_not_break_the_connection_for_others(scenario, s3, file, ca_file):
    """HTTP/2: a refused upload does not break the connection for others."""
    refused = missigned(s3.generate_presigned_url("put_object", Params={"Bucket": "bucket", "Key": "no"}))
    said = curl(scenario, "--http2", "--cacert", ca_file, "-T", file, "-o", "/dev/null", *SEEN, refused).stdout
    assert said == "403 HTTP/2", said


def test_http_2_the_answer_to_head_has_no_body(scenario, s3, ca_file):
    """HTTP/2: the answer to HEAD has no body, found or not."""
    for key, status in (("one", "200"), ("missing", "404")):
        url = s3.generate_presigned_url("head_object", Params={"Bucket": "bucket", "Key": key})
        said = curl(scenario, "--http2", "--head", "--cacert", ca_file, "-o", "/dev/null", *SEEN, url).stdout
        assert said == f"{status} HTTP/2", f"{key}: {said}"


def missigned(url):
    return re.sub(r"Signature=(.)", lambda found: "Signature=" + ("0" if found[1] != "0" else "1"), url)


def issue(scenario, directory, name, names, authority=None, days=2):
    """A certificate, self-signed or of an authority."""
    directory.mkdir(exist_ok=True)
    key, certificate = directory / f"{name}.key", directory / f"{name}.crt"
    signer = ["-CA", directory / f"{authority}.crt", "-CAkey", directory / f"{authority}.key"] if authority else []
    scenario.run(
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        days,
        "-subj",
        f"/CN={names[0]}",
        "-addext",
        "subjectAltName=" + ",".join(f"DNS:{name}" for name in names),
        *(["-addext", "basicConstraints=critical,CA:FALSE"] if authority else []),
        *signer,
        "-keyout",
        key,
        "-out",
        certificate,
    )
    return certificate, key


def test_each_host_name_has_its_certificate(scenario, cluster, by_name):
    """Each host name has its certificate."""
    for name, expected in (
        (None, "first.example"),
        ("first.example", "first.example"),
        ("two.example", "two.example"),
        ("bucket.two.example", "two.example"),
        ("unknown.example", "first.example"),
    ):
        found = subject(scenario, by_name.port, name)
        assert found == expected, f"{name}: {found}"


def test_new_certificates_are_used_by_new_connections_while_a_download_goes_on(
    scenario, s3, body, by_name, certificates, note
):
    """New certificates are used by new connections while a download goes on."""
    url = s3.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "one"})
    back = scenario.directory / "slow"
    download = scenario.start(
        "curl", "-sSk", "--limit-rate", "2M", "--connect-to", f"::127.0.0.1:{by_name.port}", "-o", back, url
    )
    wait_for("it has begun", lambda: back.exists() and back.stat().st_size > 0)
    issue(scenario, certificates, "server", ["second.example"])
    wait_for("the new certificate", lambda: subject(scenario, by_name.port) == "second.example", 10)
    assert download.poll() is None, "the download ended before the certificate changed: this tests nothing"
    (certificates / "server.crt").write_text("-----BEGIN CERTIFICATE-----\nbroken")
    wait_for("the log says that it is broken", lambda: "server.crt is not usable PEM" in by_name.log.read_text(), 10)
    assert subject(scenario, by_name.port) == "second.example", "the certificate of before is not in use"
    issue(scenario, certificates, "server", ["third.example"])
    by_name.process.send_signal(signal.SIGHUP)
    wait_for("the third one", lambda: subject(scenario, by_name.port) == "third.example", 10)
    assert download.wait(60) == 0 and back.read_bytes() == body, "the download broke off"
    note("20 MiB")


@pytest.fixture(scope="module", params=["optional", "required"])
def asking(scenario, cluster, clients, request):
    """A gateway that asks for client certificates, and speaks TLS 1.3 only."""
    options = ["--tls-client-ca", clients / "authority.crt", "--tls-client-auth", request.param, "--tls-min", "1.3"]
    gateway = Gateway(scenario, cluster, request.param, *options)
    gateway.is_strict = request.param == "required"
    yield gateway
    gateway.process.terminate()


@pytest.mark.parametrize("name", [None, "client", "stranger"])
def test_client_certificates_are_asked_for(scenario, cluster, clients, asking, name):
    """Client certificates are optional or required; one of a stranger is refused."""
    files = ["--cert", clients / f"{name}.crt", "--key", clients / f"{name}.key"] if name else []
    is_served = name == "client" or (name is None and not asking.is_strict)
    url = f"https://127.0.0.1:{asking.port}/-/health"
    # With TLS 1.3 curl learns of it by whatever it does next.
    codes = (0,) if is_served else (35, 55, 56)
    curl(scenario, "--cacert", cluster.credentials()["ca_file"], *files, url, ok=codes)


def test_tls_min_1_3_refuses_tls_1_2(scenario, asking):
    """--tls-min 1.3 refuses TLS 1.2."""
    said = s_client(scenario, asking.port, "-tls1_2", ok=(1,))
    assert "protocol version" in said, said[-600:]


def test_a_taken_tls_port_is_refused(scenario, stopped_cluster):
    """A taken TLS port is refused, and it is said what to do."""
    with socket.create_server(("127.0.0.1", stopped_cluster.s3_tls_port)):
        done = scenario.run(*stopped_cluster.up_command("--detach"), env=stopped_cluster.environment(), ok=(1,))
        assert "--s3-tls-listen off" in done.stderr and str(stopped_cluster.s3_tls_port) in done.stderr, done.stderr


def test_s3_listen_off_only_tls_is_served(scenario, stopped_cluster):
    """--s3-listen off: only TLS is served, with the certificate of before."""
    before = {path.name: path.read_bytes() for path in (stopped_cluster.data / "tls").iterdir()}
    scenario.run(
        scenario.atoll,
        "up",
        "--data",
        stopped_cluster.data,
        "--s3-listen",
        "off",
        "--detach",
        env=stopped_cluster.environment(),
        timeout=90,
    )
    assert {path.name: path.read_bytes() for path in (stopped_cluster.data / "tls").iterdir()} == before, (
        "certificates have changed"
    )
    ports = {port for name, port in stopped_cluster.listening_ports() if name == "gateway"}
    assert ports == {stopped_cluster.s3_tls_port}, f"{ports}"
    stopped_cluster._credentials = None
    assert stopped_cluster.credentials()["endpoint"] == f"https://127.0.0.1:{stopped_cluster.s3_tls_port}", (
        f"{stopped_cluster.credentials()}"
    )
    assert stopped_cluster.s3().get_object(Bucket="bucket", Key="one")["ContentLength"] == 20 * MIB, "another object"
    stopped_cluster.down()


def test_a_data_directory_from_before_tls_gets_certificates(scenario, stopped_cluster):
    """A data directory from before TLS gets certificates; --tls-name is in them."""
    shutil.rmtree(stopped_cluster.data / "tls")
    settings = json.loads((stopped_cluster.data / "cluster.json").read_text())
    del settings["s3_tls_listen"], settings["tls_names"]
    (stopped_cluster.data / "cluster.json").write_text(
        json.dumps(settings | {"s3_listen": f"127.0.0.1:{stopped_cluster.s3_port}"})
    )
    scenario.run(
        *stopped_cluster.up_command("--tls-name", "s3.example", "--detach"),
        env=stopped_cluster.environment(),
        timeout=90,
    )
    stopped_cluster._credentials = None
    port = stopped_cluster.s3_tls_port
    curl(
        scenario,
        "--cacert",
        stopped_cluster.credentials()["ca_file"],
        "--resolve",
        f"s3.example:{port}:127.0.0.1",
        f"https://s3.example:{port}/-/health",
    )
    stopped_cluster.down()


def test_neither_listener_is_no_choice(scenario, stopped_cluster):
    """Neither listener is no choice."""
    done = scenario.run(
        scenario.atoll,
        "up",
        "--data",
        stopped_cluster.data,
        "--s3-listen",
        "off",
        "--s3-tls-listen",
        "off",
        env=stopped_cluster.environment(),
        ok=(1,),
    )
    assert "leave no address" in done.stderr, done.stderr
