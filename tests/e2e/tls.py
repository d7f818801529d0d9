#!/usr/bin/env python3
"""TLS of the S3 gateway: its own authority and certificates, versions, HTTP/2, certificates by name and
their change while a download goes on, client certificates, and a gateway that speaks nothing else.
"""
import json, random, re, shutil, signal, socket, stat, subprocess

from harness import MIB, expect, free_port, main, wait_for


class Gateway:
    """A further gateway process of a cluster with TLS options of its own."""

    def __init__(self, test, cluster, name, *options):
        self.test, self.port = test, free_port()
        self.log = test.directory / f"{name}.log"
        with open(self.log, "w") as log:
            self.process = test.start(test.atoll, "gateway", "run", "--data", cluster.data, "--s3-listen", "off",
                                      "--s3-tls-listen", f"127.0.0.1:{self.port}", *options, env=cluster.environment(), stdout=log, stderr=log)
        wait_for(f"{name} listens", self.listens, 20)

    def listens(self):
        expect(self.process.poll() is None, self.log.read_text()[-600:])
        return not socket.create_connection(("127.0.0.1", self.port), timeout=1).close()


def s_client(test, port, *options, ok=(0,)):
    """What openssl says of a handshake."""
    done = test.run("openssl", "s_client", "-connect", f"127.0.0.1:{port}", *options, ok=None, timeout=20)
    said = done.stdout + done.stderr
    expect(ok is None or done.returncode in ok, f"exit code {done.returncode}\n{said[-1200:]}")
    return said


def subject(test, port, name=None):
    said = s_client(test, port, *(["-servername", name] if name else ["-noservername"]), ok=None)
    found = re.search(r"subject=.*?CN ?= ?(\S+)", said)
    expect(found, said[-600:])
    return found[1]


def curl(test, *options, ok=(0,)):
    return test.run("curl", "-sS", *options, ok=ok, timeout=60)


def own_files(test, cluster):
    directory = cluster.data / "tls"
    with test.step("'atoll up' makes an authority and a certificate"):
        for name, mode in (("ca.key", 0o600), ("server.key", 0o600), ("ca.crt", 0o644), ("server.crt", 0o644)):
            found = stat.S_IMODE((directory / name).stat().st_mode)
            expect(found == mode, f"{name} has mode {found:o}")
        test.run("openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", directory / "ca.crt", directory / "server.crt")
        names = test.run("openssl", "x509", "-in", directory / "server.crt", "-noout", "-ext", "subjectAltName").stdout
        for name in ("DNS:localhost", "IP Address:127.0.0.1", "IP Address:0:0:0:0:0:0:0:1", f"DNS:{socket.gethostname().lower()}"):
            expect(name in names, f"{name} is not in {names}")
    with test.step("commands name the endpoint and the authority"):
        endpoint, ca_file = f"https://127.0.0.1:{cluster.s3_tls_port}", str(directory / "ca.crt")
        credentials, status = cluster.json("credentials"), cluster.json("status")
        expect((credentials["tls_endpoint"], credentials["ca_file"]) == (endpoint, ca_file), f"{credentials}")
        expect((status["s3_tls_endpoint"], status["ca_file"]) == (endpoint, ca_file), f"{status}")
        for command in ("credentials", "status"):
            said = cluster.cli(command).stdout
            expect(endpoint in said and ca_file in said, said)


def versions(test, cluster):
    port, ca_file = cluster.s3_tls_port, cluster.credentials()["ca_file"]
    for option, version in (("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")):
        with test.step(f"{version} is spoken, and the certificate is right"):
            said = s_client(test, port, option, "-brief", "-CAfile", ca_file, "-verify_return_error", "-verify_ip", "127.0.0.1")
            expect(f"Protocol version: {version}" in said and "Verification: OK" in said, said)
    with test.step("TLS 1.0 and 1.1 are refused"):
        for option in ("-tls1", "-tls1_1"):
            said = s_client(test, port, option, "-cipher", "ALL:@SECLEVEL=0", ok=(1,))
            expect("SSL alert number" in said and "no protocols available" not in said, said[-600:])
    with test.step("plain HTTP on the TLS port is refused, TLS on the plain port, too, and strangers' trust"):
        curl(test, f"http://127.0.0.1:{port}/-/health", ok=(1, 52, 56))
        curl(test, "-k", f"https://127.0.0.1:{cluster.s3_port}/-/health", ok=(35,))
        curl(test, f"https://127.0.0.1:{port}/-/health", ok=(60,))
        curl(test, "--cacert", ca_file, "--resolve", f"other.example:{port}:127.0.0.1", f"https://other.example:{port}/-/health", ok=(60,))
    with test.step("sessions are resumed"):
        session = test.directory / "session"
        for option in ("-tls1_2", "-tls1_3"):
            # A session of TLS 1.3 comes behind the handshake.
            process = test.start("openssl", "s_client", "-connect", f"127.0.0.1:{port}", option, "-sess_out", session, stdin=subprocess.PIPE)
            process.stdin.write("GET /-/health HTTP/1.1\r\nHost: x\r\n\r\n")
            process.stdin.flush()
            wait_for("a session", lambda: session.exists() and session.stat().st_size > 0, 10)
            process.kill()
            said = s_client(test, port, option, "-sess_in", session)
            expect("Reused, TLSv1" in said, said[-800:])
            session.unlink()


def clients(test, cluster):
    credentials = cluster.credentials()
    tls = {"endpoint_url": credentials["tls_endpoint"]}
    body = random.Random(5).randbytes(20 * MIB)
    file = test.directory / "file"
    file.write_bytes(body)
    cluster._credentials = credentials | {"endpoint": tls["endpoint_url"]}
    s3 = cluster.s3()
    with test.step("boto3 over TLS: PUT, GET, multipart"):
        s3.create_bucket(Bucket="bucket")
        s3.put_object(Bucket="bucket", Key="one", Body=body)
        expect(s3.get_object(Bucket="bucket", Key="one")["Body"].read() == body, "it came back changed")
        s3.upload_file(str(file), "bucket", "parts")
        expect(s3.get_object(Bucket="bucket", Key="parts")["Body"].read() == body, "it came back changed")
    with test.step("aws s3 cp over TLS, there and back"):
        environment = cluster.s3_environment()
        test.run("aws", "s3", "cp", file, "s3://bucket/aws", env=environment)
        test.run("aws", "s3", "cp", "s3://bucket/aws", test.directory / "back", env=environment)
        expect((test.directory / "back").read_bytes() == body, "it came back changed")
    http(test, cluster, s3, file, body)
    return s3, body


def http(test, cluster, s3, file, body):
    ca_file = cluster.credentials()["ca_file"]
    seen = ["-w", "%{http_code} HTTP/%{http_version}"]
    for option, version in (("--http2", "HTTP/2"), ("--http1.1", "HTTP/1.1")):
        with test.step(f"{version}: PUT and GET of 20 MiB with curl"):
            place = {"Bucket": "bucket", "Key": f"by-{version}"}
            url = s3.generate_presigned_url("put_object", Params=place)
            said = curl(test, option, "--cacert", ca_file, "-T", file, *seen, url).stdout
            expect(said == f"200 {version}", said)
            back = test.directory / "back"
            said = curl(test, option, "--cacert", ca_file, "-o", back, *seen, s3.generate_presigned_url("get_object", Params=place)).stdout
            expect(said == f"200 {version}" and back.read_bytes() == body, said)
    with test.step("HTTP/2: many requests over one connection, refusals among them"):
        good = s3.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "one"})
        files = [part for number in range(12) for part in ("-o", test.directory / f"many-{number}", good if number % 3 else missigned(good))]
        said = curl(test, "--http2", "--parallel", "--cacert", ca_file, "-w", "%{http_code} %{num_connects} %{http_version}\n", *files).stdout.splitlines()
        codes = sorted(line.split()[0] for line in said)
        expect(codes == ["200"] * 8 + ["403"] * 4, f"{said}")
        expect(all(line.endswith(" 2") for line in said) and sum(int(line.split()[1]) for line in said) <= 3, f"{said}")
        for number in range(12):
            found = (test.directory / f"many-{number}").read_bytes()
            expect((found == body) == bool(number % 3), f"{number}: {len(found)} bytes")
    with test.step("HTTP/2: a refused upload does not break the connection for others"):
        refused = missigned(s3.generate_presigned_url("put_object", Params={"Bucket": "bucket", "Key": "no"}))
        said = curl(test, "--http2", "--cacert", ca_file, "-T", file, "-o", "/dev/null", *seen, refused).stdout
        expect(said == "403 HTTP/2", said)
    with test.step("HTTP/2: the answer to HEAD has no body, found or not"):
        for key, status in (("one", "200"), ("missing", "404")):
            url = s3.generate_presigned_url("head_object", Params={"Bucket": "bucket", "Key": key})
            said = curl(test, "--http2", "--head", "--cacert", ca_file, "-o", "/dev/null", *seen, url).stdout
            expect(said == f"{status} HTTP/2", f"{key}: {said}")


def missigned(url):
    return re.sub(r"Signature=(.)", lambda found: "Signature=" + ("0" if found[1] != "0" else "1"), url)


def issue(test, directory, name, names, authority=None, days=2):
    """A certificate, self-signed or of an authority."""
    directory.mkdir(exist_ok=True)
    key, certificate = directory / f"{name}.key", directory / f"{name}.crt"
    signer = ["-CA", directory / f"{authority}.crt", "-CAkey", directory / f"{authority}.key"] if authority else []
    test.run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", days,
             "-subj", f"/CN={names[0]}", "-addext", "subjectAltName=" + ",".join(f"DNS:{name}" for name in names),
             *(["-addext", "basicConstraints=critical,CA:FALSE"] if authority else []), *signer, "-keyout", key, "-out", certificate)
    return certificate, key


def by_name(test, cluster, s3, body):
    directory = test.directory / "certificates"
    issue(test, directory, "server", ["first.example"])
    issue(test, directory, "two", ["two.example", "*.two.example"])
    gateway = Gateway(test, cluster, "by-name", "--tls-certs", directory)
    with test.step("each host name has its certificate"):
        for name, expected in ((None, "first.example"), ("first.example", "first.example"), ("two.example", "two.example"),
                               ("bucket.two.example", "two.example"), ("unknown.example", "first.example")):
            found = subject(test, gateway.port, name)
            expect(found == expected, f"{name}: {found}")
    with test.step("new certificates are used by new connections while a download goes on") as note:
        url = s3.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "one"})
        back = test.directory / "slow"
        download = test.start("curl", "-sSk", "--limit-rate", "4M", "--connect-to", f"::127.0.0.1:{gateway.port}", "-o", back, url)
        wait_for("it has begun", lambda: back.exists() and back.stat().st_size > 0)
        issue(test, directory, "server", ["second.example"])
        wait_for("the new certificate", lambda: subject(test, gateway.port) == "second.example", 10)
        expect(download.poll() is None, "the download ended before the certificate changed: this tests nothing")
        (directory / "server.crt").write_text("-----BEGIN CERTIFICATE-----\nbroken")
        wait_for("the log says that it is broken", lambda: "server.crt is not usable PEM" in gateway.log.read_text(), 10)
        expect(subject(test, gateway.port) == "second.example", "the certificate of before is not in use")
        issue(test, directory, "server", ["third.example"])
        gateway.process.send_signal(signal.SIGHUP)
        wait_for("the third one", lambda: subject(test, gateway.port) == "third.example", 10)
        expect(download.wait(60) == 0 and back.read_bytes() == body, "the download broke off")
        note("20 MiB")
    gateway.process.terminate()


def client_certificates(test, cluster):
    directory = test.directory / "clients"
    issue(test, directory, "authority", ["authority"])
    issue(test, directory, "client", ["client"], "authority")
    issue(test, directory, "stranger", ["stranger"])
    mine, strange = ([part for kind in ("crt", "key") for part in (f"--{'cert' if kind == 'crt' else 'key'}", directory / f"{name}.{kind}")]
                     for name in ("client", "stranger"))
    ca_file = cluster.credentials()["ca_file"]
    # With TLS 1.3 curl learns of it by whatever it does next.
    refused = (35, 55, 56)
    for when, without in (("optional", (0,)), ("required", refused)):
        gateway = Gateway(test, cluster, when, "--tls-client-ca", directory / "authority.crt", "--tls-client-auth", when, "--tls-min", "1.3")
        url = f"https://127.0.0.1:{gateway.port}/-/health"
        with test.step(f"client certificates are {when}"):
            for certificate, codes in (([], without), (mine, (0,)), (strange, refused)):
                curl(test, "--cacert", ca_file, *certificate, url, ok=codes)
        if when == "required":
            with test.step("--tls-min 1.3 refuses TLS 1.2"):
                said = s_client(test, gateway.port, "-tls1_2", ok=(1,))
                expect("protocol version" in said, said[-600:])
        gateway.process.terminate()


def only_tls(test, cluster):
    with test.step("a taken TLS port is refused, and it is said what to do"):
        cluster.down()
        with socket.create_server(("127.0.0.1", cluster.s3_tls_port)):
            done = test.run(*cluster.up_command("--detach"), env=cluster.environment(), ok=(1,))
            expect("--s3-tls-listen off" in done.stderr and str(cluster.s3_tls_port) in done.stderr, done.stderr)
    before = {path.name: path.read_bytes() for path in (cluster.data / "tls").iterdir()}
    with test.step("--s3-listen off: only TLS is served, with the certificate of before"):
        test.run(test.atoll, "up", "--data", cluster.data, "--s3-listen", "off", "--detach", env=cluster.environment(), timeout=90)
        expect({path.name: path.read_bytes() for path in (cluster.data / "tls").iterdir()} == before, "certificates have changed")
        ports = {port for name, port in cluster.listening_ports() if name == "gateway"}
        expect(ports == {cluster.s3_tls_port}, f"{ports}")
        cluster._credentials = None
        expect(cluster.credentials()["endpoint"] == f"https://127.0.0.1:{cluster.s3_tls_port}", f"{cluster.credentials()}")
        expect(cluster.s3().get_object(Bucket="bucket", Key="one")["ContentLength"] == 20 * MIB, "another object")
        cluster.down()
    with test.step("a data directory from before TLS gets certificates; --tls-name is in them"):
        shutil.rmtree(cluster.data / "tls")
        settings = json.loads((cluster.data / "cluster.json").read_text())
        del settings["s3_tls_listen"], settings["tls_names"]
        (cluster.data / "cluster.json").write_text(json.dumps(settings | {"s3_listen": f"127.0.0.1:{cluster.s3_port}"}))
        test.run(*cluster.up_command("--tls-name", "s3.example", "--detach"), env=cluster.environment(), timeout=90)
        cluster._credentials = None
        port = cluster.s3_tls_port
        curl(test, "--cacert", cluster.credentials()["ca_file"], "--resolve", f"s3.example:{port}:127.0.0.1", f"https://s3.example:{port}/-/health")
    with test.step("neither listener is no choice"):
        cluster.down()
        done = test.run(test.atoll, "up", "--data", cluster.data, "--s3-listen", "off", "--s3-tls-listen", "off", env=cluster.environment(), ok=(1,))
        expect("leave no address" in done.stderr, done.stderr)


def tls(test):
    test.need(("curl", "curl"), ("openssl", "openssl"), ("aws", "awscli by pip"))
    cluster = test.cluster("d", osds=1, osd_size="1G")
    with test.step("atoll up", fatal=True):
        cluster.up()
    own_files(test, cluster)
    versions(test, cluster)
    s3, body = clients(test, cluster)
    by_name(test, cluster, s3, body)
    client_certificates(test, cluster)
    only_tls(test, cluster)


if __name__ == "__main__":
    main(tls)
