"""Hosts and an etcd in network namespaces of their own, joined by a bridge in another."""

import base64
import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import threading

from lib.authority import Authority
from lib.cluster import Cluster
from lib.nbd import Nbd, connect_patiently
from lib.processes import is_alive
from lib.waiting import Failed, wait_for

NETWORK = "10.99.0"
ETCD_IP = f"{NETWORK}.9"
NAMESPACE_PREFIX = "atoll-e2e-"


class Namespaces:
    """Network namespaces around a bridge, which is in one of its own: the machine's network stays as it is."""

    def __init__(self, scenario, prefix=None):
        self.scenario, self.prefix = scenario, prefix or f"{NAMESPACE_PREFIX}{os.getpid()}-"
        self.switch = self.add("switch")
        self.ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
        self.ip("-n", self.switch, "link", "set", "bridge", "up")

    def ip(self, *arguments):
        self.scenario.run("ip", *arguments, timeout=20)

    def add(self, name):
        namespace = self.prefix + name
        self.ip("netns", "add", namespace)
        self.scenario.at_end.callback(remove, namespace)
        self.ip("-n", namespace, "link", "set", "lo", "up")
        return namespace

    def add_host(self, name, address):
        namespace = self.add(name)
        self.ip("-n", self.switch, "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        self.ip("-n", self.switch, "link", "set", name, "master", "bridge", "up")
        self.ip("-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
        self.ip("-n", namespace, "link", "set", "eth0", "up")
        return namespace


def remove(namespace):
    subprocess.run(["ip", "netns", "del", namespace], check=False, stderr=subprocess.DEVNULL)


def remove_leftovers():
    """Removes the namespaces of test runs that have ended without doing so."""
    if not shutil.which("ip"):
        return
    listed = subprocess.run(["ip", "netns", "list"], check=False, capture_output=True, text=True).stdout
    for name in listed.split():
        if name.startswith(NAMESPACE_PREFIX) and not is_alive(int(name.split("-")[2])):
            remove(name)


def enter(namespace):
    """Moves this thread, and nothing else, into a namespace."""
    with open(f"/run/netns/{namespace}") as handle:
        if ctypes.CDLL(None, use_errno=True).setns(handle.fileno(), 0x40000000) != 0:
            raise OSError(ctypes.get_errno(), "setns")


def within(namespace, function):
    """Calls a function on a thread inside a namespace. What it connects stays connected there."""
    outcome = {}

    def run():
        try:
            enter(namespace)
            outcome["value"] = function()
        except BaseException as error:  # noqa: BLE001: the caller raises it
            outcome["error"] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(120)
    if "error" in outcome:
        raise outcome["error"]
    assert "value" in outcome, "it had not ended after 120 s"
    return outcome["value"]


class Host(Cluster):
    """One host's share of a cluster."""

    def __init__(self, scenario, namespace, name, address, directory=None):
        super().__init__(scenario, scenario.directory / (directory or name))
        self.namespace, self.name, self.address = namespace, name, address
        scenario.add(self)

    def command(self, *arguments):
        return ["ip", "netns", "exec", self.namespace, self.scenario.atoll, *arguments]

    def create_image(self, name, size, *more):
        """Its clients reach it over TCP without certificates."""
        super().create_image(name, size, *more)
        self.cli("image", "access", name, "--allow", f"{NETWORK}.0/24")

    def cli(self, *arguments, timeout=60, ok=(0,)):
        return self.scenario.run(
            *self.command(*arguments, "--data", self.data), timeout=timeout, ok=ok, env=self.environment()
        )

    def token_file(self, token):
        """A file with a join token: it has no place on a command line."""
        path = self.data.with_name(f"{self.data.name}.token")
        path.write_text(token)
        path.chmod(0o600)
        return path

    def start_up(self, *more, timeout=120):
        """'atoll up --detach', and what it printed."""
        arguments = [
            "up",
            "--detach",
            "--host",
            self.name,
            "--listen",
            self.address,
            "--s3-listen",
            f"{self.address}:9000",
            "--s3-tls-listen",
            f"{self.address}:9443",
            "--nbd-listen",
            f"{self.address}:10809",
            *more,
        ]
        path = self.scenario.directory / f"{self.data.name}.up.log"
        with open(path, "w") as log:
            code = subprocess.run(
                [str(part) for part in self.command(*arguments, "--data", self.data)],
                env=self.environment(),
                timeout=timeout,
                cwd=self.scenario.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            ).returncode
        if code != 0:
            raise Failed(f"'atoll up' on {self.name}: exit code {code}\n{path.read_text()[-2000:]}")
        return path.read_text()

    def healthy(self):
        return json.loads((self.data / "processes.json").read_text())["healthy"]

    def attach_new(self, image):
        self.create_image(image, "16M")
        return self.attach(image)

    def attach(self, image):
        return within(self.namespace, lambda: connect_patiently(lambda: Nbd((self.address, 10809), image), 30))

    def put(self, bucket, key, body):
        within(self.namespace, lambda: self.s3(attempts=3).put_object(Bucket=bucket, Key=key, Body=body))

    def get(self, bucket, key):
        return within(self.namespace, lambda: self.s3(attempts=3).get_object(Bucket=bucket, Key=key)["Body"].read())


class Etcd:
    """A real etcd that wants client certificates."""

    def __init__(self, scenario, namespace, hosts=("h1", "h2", "h3")):
        self.scenario, self.namespace, self.process = scenario, namespace, None
        self.directory = scenario.directory / "etcd"
        self.directory.mkdir()
        self.url = f"https://{ETCD_IP}:2379"
        authority = Authority(scenario, "etcd")
        for name, made in (("ca", authority), ("other-ca", Authority(scenario, "other-etcd"))):
            shutil.copy(made.certificate, self.directory / f"{name}.pem")
        for name in ("server", *hosts):
            paths = [self.directory / f"{name}.{ending}" for ending in ("pem", "key")]
            authority.sign(*paths, "serverAuth,clientAuth", f"IP:{ETCD_IP},IP:127.0.0.1")

    def start(self, **options):
        # 'ip netns exec' becomes the command that it runs, so this is etcd's own process.
        self.process = self.scenario.start_logged(
            self.directory / "log",
            "ip",
            "netns",
            "exec",
            self.namespace,
            "etcd",
            "--data-dir",
            self.directory / "data",
            "--listen-client-urls",
            self.url,
            "--advertise-client-urls",
            self.url,
            "--cert-file",
            "server.pem",
            "--key-file",
            "server.key",
            "--client-cert-auth",
            "--trusted-ca-file",
            "ca.pem",
            cwd=self.directory,
            **options,
        )
        wait_for("etcd answers", lambda: self.ctl("get", "x").returncode == 0, 30)

    def ctl(self, *arguments, ok=None):
        return self.scenario.run(
            "ip",
            "netns",
            "exec",
            self.namespace,
            "etcdctl",
            "--endpoints",
            self.url,
            "--cacert",
            "ca.pem",
            "--cert",
            "h1.pem",
            "--key",
            "h1.key",
            *arguments,
            cwd=self.directory,
            ok=ok,
            timeout=15,
            env=self.scenario.environment | {"ETCDCTL_API": "3"},
        )

    def records(self, prefix):
        found = json.loads(self.ctl("get", "--prefix", prefix, "-w", "json", ok=(0,)).stdout).get("kvs", [])
        return {
            base64.b64decode(entry["key"]).decode(): json.loads(base64.b64decode(entry["value"])) for entry in found
        }

    def client(self, host):
        return ["--etcd-cert", self.directory / f"{host}.pem", "--etcd-key", self.directory / f"{host}.key"]


def start_all(hosts, *more):
    """'atoll up' on all of them at once: none serves before there are members enough. `more` are functions that give
    further arguments for a host."""
    arguments = [[argument for of in more for argument in of(host)] for host in hosts]
    starts = [threading.Thread(target=host.start_up, args=own) for host, own in zip(hosts, arguments)]
    for start in starts:
        start.start()
    for start in starts:
        start.join()


@contextlib.contextmanager
def stopped(*pids):
    """SIGSTOP, and at the end SIGCONT."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
