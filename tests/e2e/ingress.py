#!/usr/bin/env python3
"""Two gateways of one cluster behind HAProxy, with TLS passed through and with TLS ended there: clients
work through it, their addresses arrive, and a gateway that is killed under load fails no request that
may be tried again. The configurations are those of docs/ingress.md.
"""
import io, pathlib, random, re, signal, socket, threading, time, urllib.request

import boto3
from botocore.client import Config

from harness import MIB, REPOSITORY, expect, free_port, is_alive, main, wait_for

TEMPLATES = pathlib.Path(__file__).with_name("haproxy")
# What docs/ingress.md has in place of a test's ports and files.
EXAMPLE = {
    "passthrough": {"SOCKET": "/run/haproxy/admin.sock", "LISTEN": ":443", "CA": "/etc/haproxy/atoll-ca.crt",
                    "GATEWAY_1": "10.0.0.1:9443", "GATEWAY_2": "10.0.0.2:9443"},
    "termination": {"SOCKET": "/run/haproxy/admin.sock", "LISTEN": ":443", "CERTIFICATE": "/etc/haproxy/s3.pem",
                    "GATEWAY_1": "10.0.0.1:9000", "GATEWAY_2": "10.0.0.2:9000"},
}
LOAD_THREADS, LOAD_SECONDS = 8, 8
# The proxy speaks from 127.0.0.1, which gateways are told to trust; this is a client's address.
CLIENT = "127.0.0.2"


def fill_in(name, values):
    return re.sub(r"@([A-Z0-9_]+)@", lambda found: str(values[found[1]]), (TEMPLATES / f"{name}.cfg.in").read_text())


class Gateway:
    """A further gateway process of a cluster, which no supervisor restarts."""

    def __init__(self, cluster):
        self.cluster, self.plain, self.tls = cluster, free_port(), free_port()
        self.log = cluster.test.directory / "second-gateway.log"
        self.start()

    def start(self):
        with open(self.log, "a") as log:
            self.process = self.cluster.test.start(
                self.cluster.test.atoll, "gateway", "run", "--data", self.cluster.data, "--s3-listen", f"127.0.0.1:{self.plain}",
                "--s3-tls-listen", f"127.0.0.1:{self.tls}", env=self.cluster.environment(), stdout=log, stderr=log)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class Proxy:
    """A HAProxy of the test's own."""

    def __init__(self, test, name, values):
        self.test, self.name, self.port = test, name, free_port()
        self.socket = test.directory / f"{name}.sock"
        path = test.directory / f"{name}.cfg"
        path.write_text(fill_in(name, values | {"SOCKET": self.socket, "LISTEN": f"127.0.0.1:{self.port}"}))
        test.run("haproxy", "-c", "-q", "-f", path)
        self.log = test.directory / f"{name}.log"
        with open(self.log, "w") as log:
            self.process = test.start("haproxy", "-db", "-f", path, stdout=log, stderr=log)
        wait_for("both gateways are up", lambda: self.states() == {"gateway-1": "UP", "gateway-2": "UP"}, 20)

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
    config = Config(s3={"addressing_style": "path"}, retries={"mode": "standard"}, signature_version="s3v4",
                    connect_timeout=5, read_timeout=60, max_pool_connections=32)
    return boto3.client("s3", endpoint_url=proxy.url(), region_name="us-east-1", config=config, verify=credentials["ca_file"],
                        aws_access_key_id=credentials["access_key"], aws_secret_access_key=credentials["secret_key"])


class Load:
    """PUTs and GETs of small objects; every one must succeed and give back what was put."""

    def __init__(self, s3, bucket):
        self.s3, self.bucket, self.stopping = s3, bucket, False
        self.done, self.failures = 0, []
        self.threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(LOAD_THREADS)]
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
                expect(found.getvalue() == body, f"{key} came back changed")
                self.done += 2
            except Exception as error:
                self.failures.append(f"{key}: {error}")
            step += 1

    def stop(self):
        self.stopping = True
        for thread in self.threads:
            thread.join(70)
        return self


def through(test, cluster, second, proxy, bucket):
    name = proxy.name
    s3 = client(cluster, proxy)
    with test.step(f"{name}: PUT, GET, ranges, multipart through it", fatal=True) as note:
        s3.create_bucket(Bucket=bucket)
        body = random.Random(1).randbytes(20 * MIB)
        s3.put_object(Bucket=bucket, Key="one", Body=body)
        expect(s3.get_object(Bucket=bucket, Key="one")["Body"].read() == body, "it came back changed")
        expect(s3.get_object(Bucket=bucket, Key="one", Range="bytes=5000000-5000099")["Body"].read() == body[5_000_000:5_000_100], "a range differs")
        upload = s3.create_multipart_upload(Bucket=bucket, Key="parts")["UploadId"]
        parts = [{"PartNumber": number + 1, "ETag": s3.upload_part(
            Bucket=bucket, Key="parts", UploadId=upload, PartNumber=number + 1, Body=body[number * 8 * MIB:(number + 1) * 8 * MIB])["ETag"]} for number in range(3)]
        s3.complete_multipart_upload(Bucket=bucket, Key="parts", UploadId=upload, MultipartUpload={"Parts": parts})
        expect(s3.get_object(Bucket=bucket, Key="parts")["Body"].read() == body, "the parts came back changed")
        note("20 MiB")
    with test.step(f"{name}: the client's address arrives at the gateways, and that it came with TLS"):
        url = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "parts"}, ExpiresIn=300)
        for number in range(4):
            test.run("curl", "-sf", "--cacert", cluster.credentials()["ca_file"], "--interface", CLIENT, "-o", "/dev/null",
                     "-H", "X-Forwarded-For: 1.2.3.4", "-H", "X-Forwarded-Proto: http", url)
        logs = (cluster.data / "log" / "gateway.log").read_text() + second.log.read_text()
        lines = [line for line in logs.splitlines() if f"GET /{bucket}/parts" in line and f"client={CLIENT}:" in line]
        expect(len(lines) == 4 and all("is_encrypted=true" in line for line in lines), "\n".join(lines) or logs[-600:])
        expect("1.2.3.4" not in logs, "a client's own word was taken")
    with test.step(f"{name}: HTTP/2 through it"):
        done = test.run("curl", "-s", "--http2", "--cacert", cluster.credentials()["ca_file"], "-o", "/dev/null", "-w", "%{http_code} %{http_version}", url)
        expect(done.stdout == "200 2", done.stdout)
    killed(test, cluster, second, proxy, s3, bucket)
    drained(test, cluster, proxy, s3, bucket)


def killed(test, cluster, second, proxy, s3, bucket):
    """Both gateways are killed, one after the other: one comes back by itself."""
    name = proxy.name
    with test.step(f"{name}: kill -9 of each gateway under load fails no request that may be tried again") as note:
        load = Load(s3, bucket)
        time.sleep(LOAD_SECONDS / 4)
        second.kill()
        wait_for("the dead gateway is taken out", lambda: proxy.states()["gateway-2"].startswith("DOWN"), 10)
        during = load.done
        time.sleep(LOAD_SECONDS / 4)
        expect(load.done > during, "nothing went on without it")
        second.start()
        wait_for("it is taken in again", lambda: proxy.states()["gateway-2"] == "UP", 20)
        before = int(proxy.rows()["gateway-2"]["stot"])
        pid = cluster.kill("gateway")
        cluster.restarted("gateway", pid)
        time.sleep(LOAD_SECONDS / 4)
        wait_for("both are up", lambda: set(proxy.states().values()) == {"UP"}, 20)
        load.stop()
        expect(not load.failures, f"{len(load.failures)} failed: " + "; ".join(load.failures[:3]))
        expect(load.done > 50, f"only {load.done} requests")
        expect(int(proxy.rows()["gateway-2"]["stot"]) > before, "the gateway that came back got nothing to do")
        note(f"{load.done} requests")


def drained(test, cluster, proxy, s3, bucket):
    name = proxy.name
    with test.step(f"{name}: a gateway that is drained gets nothing new and is taken in again"):
        load = Load(s3, bucket)
        time.sleep(0.5)
        proxy.ask("set server gateways/gateway-2 state drain")
        wait_for("it has nothing left to do", lambda: name == "passthrough" or proxy.rows()["gateway-2"]["scur"] == "0", 10)
        before = int(proxy.rows()["gateway-2"]["stot"])
        for _ in range(6):
            urllib.request.urlopen(f"{proxy.url()}/-/health", timeout=10, context=cluster.trust()).close()
        expect(int(proxy.rows()["gateway-2"]["stot"]) == before, "it still gets something")
        proxy.ask("set server gateways/gateway-2 state ready")
        wait_for("it is up", lambda: proxy.states()["gateway-2"] == "UP", 10)
        load.stop()
        expect(not load.failures, "; ".join(load.failures[:3]))


def ingress(test):
    test.need(("haproxy", "haproxy"), ("curl", "curl"))
    document = (REPOSITORY / "docs" / "ingress.md").read_text()
    for name, values in EXAMPLE.items():
        shown = "\n".join(f"    {line}".rstrip() for line in fill_in(name, values).splitlines())
        test.check(f"docs/ingress.md shows {name}.cfg.in as it is", shown in document, "they differ")
    # Only the proxy's address is trusted; a line for each request, with the client's.
    test.environment |= {"ATOLL_TRUSTED_PROXIES": "127.0.0.1", "ATOLL_LOG": "info,s3s=off,access=debug"}
    cluster = test.cluster("d", osds=1, osd_size="2G")
    with test.step("a cluster, and a second gateway", fatal=True):
        cluster.up()
        second = Gateway(cluster)
        wait_for("it listens", lambda: socket.create_connection(("127.0.0.1", second.tls), timeout=1).close() or True, 20)
    ca_file = cluster.credentials()["ca_file"]
    certificate = test.directory / "s3.pem"
    certificate.write_text((cluster.data / "tls" / "server.crt").read_text() + (cluster.data / "tls" / "server.key").read_text())
    for name, values in (
            ("passthrough", {"CA": ca_file, "GATEWAY_1": f"127.0.0.1:{cluster.s3_tls_port}", "GATEWAY_2": f"127.0.0.1:{second.tls}"}),
            ("termination", {"CERTIFICATE": certificate, "GATEWAY_1": f"127.0.0.1:{cluster.s3_port}", "GATEWAY_2": f"127.0.0.1:{second.plain}"})):
        with test.step(f"{name}: haproxy finds both gateways healthy", fatal=True):
            proxy = Proxy(test, name, values)
        through(test, cluster, second, proxy, f"by-{name}")
        proxy.process.terminate()
    with test.step("both gateways and the cluster are still well"):
        expect(is_alive(second.process.pid), "the second gateway has ended")
        second.process.terminate()
        expect(second.process.wait(30) == 0, f"it ended with exit code {second.process.returncode}")
        cluster.down()


if __name__ == "__main__":
    main(ingress)
