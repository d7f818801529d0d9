"""Starts Transit servers for tests: ours, and a real OpenBao or Vault, set up alike."""

import http.client
import json
import os
import pathlib
import random
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

SERVER = pathlib.Path(__file__).parent / "transit_server.py"
ROOT_TOKEN = "root-token-of-the-tests"
START_TIMEOUT_SECONDS = 60


@dataclass
class Answer:
    status: int
    body: object
    headers: http.client.HTTPMessage

    @property
    def data(self):
        return self.body["data"]

    @property
    def errors(self):
        return self.body["errors"]


@dataclass
class Site:
    """One Transit mount with a role that may use it."""

    port: int
    mount: str = "transit"
    namespace: str = ""
    role: dict | None = None
    tls: ssl.SSLContext | None = None

    def connection(self, timeout_seconds=20):
        if self.tls is not None:
            return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout_seconds, context=self.tls)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_seconds)

    def ask(self, method, path, body=None, token=ROOT_TOKEN, namespace=None, headers=None, connection=None):
        """One request. A `body` of bytes is sent as it is, an iterator over bytes in chunks, else as JSON."""
        headers = dict(headers or {})
        if token:
            headers["X-Vault-Token"] = token
        namespace = self.namespace if namespace is None else namespace
        if namespace:
            headers["X-Vault-Namespace"] = namespace
        if isinstance(body, dict):
            body = json.dumps(body)
        on = connection or self.connection()
        try:
            on.request(method, path, body, headers)
            response = on.getresponse()
            content = response.read()
        finally:
            if connection is None:
                on.close()
        return Answer(response.status, json.loads(content) if content else None, response.headers)

    def transit(self, method, path, body=None, **more):
        return self.ask(method, f"/v1/{self.mount}/{path}", body, **more)

    def log_in(self):
        return self.ask("POST", "/v1/auth/approle/login", self.role, token=None)


def free_port():
    """A port that nobody has, nor the next one, which the real server takes for its cluster; below those
    that the kernel gives to sockets of its choice."""
    start = random.randrange(22_000, 31_000, 2)
    for port in [*range(start, 31_000, 2), *range(22_000, start, 2)]:
        try:
            for taken in (port, port + 1):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", taken))
        except OSError:
            continue
        return port
    raise AssertionError("there are no free ports")


class Process:
    """A server process; what it says goes to a file."""

    def __init__(self, command, home):
        self.output_path = os.path.join(home, "output")
        with open(self.output_path, "wb") as output:
            environment = {"PATH": os.environ.get("PATH", ""), "HOME": home}
            self.process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)

    def output(self):
        with open(self.output_path) as file:
            return file.read()

    def wait_for(self, pattern):
        """What the pattern's group matches, once the process has said it."""
        end = time.monotonic() + START_TIMEOUT_SECONDS
        while time.monotonic() < end:
            match = re.search(pattern, self.output())
            if match is not None:
                return match.group(1)
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        self.stop()
        raise AssertionError(f"the server did not say {pattern!r}:\n{self.output()}")

    def stop(self):
        """Ends the process; gives its status."""
        self.process.terminate()
        try:
            return self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


class OurServer:
    """One process of `transit_server.py`, which has one site."""

    def __init__(self, *options, mount="transit", namespace="", tls=None):
        self.home = tempfile.TemporaryDirectory(prefix="atoll-transit-")
        role = {"role_id": "role-of-the-tests", "secret_id": "secret-of-the-tests"}
        command = [sys.executable, str(SERVER), "--listen", "127.0.0.1:0", "--token", ROOT_TOKEN]
        command += ["--mount", mount, "--namespace", namespace]
        command += ["--approle", f"{role['role_id']}:{role['secret_id']}", *options]
        self.process = Process(command, self.home.name)
        port = int(self.process.wait_for(r"listening on https?://127\.0\.0\.1:(\d+)\n"))
        self.site = Site(port, mount, namespace, role, tls)

    def fail(self, kind, **more):
        answer = self.site.ask("POST", "/_test/failure", {"kind": kind, **more}, token=None)
        assert answer.status == 204, answer

    def operations(self):
        return self.site.ask("GET", "/_test/requests", token=None).body["operations"]

    def stop(self):
        status = self.process.stop()
        self.home.cleanup()
        return status


class RealServer:
    """A development server of OpenBao or Vault, all in memory, with the sites that the cases need."""

    def __init__(self, binary, initialized=True):
        self.home = tempfile.TemporaryDirectory(prefix="atoll-bao-")
        self.port = free_port()
        if not initialized:
            self.start([binary, "server", f"-config={self.configuration()}"])
            return
        command = [binary, "server", "-dev", "-dev-no-store-token", f"-dev-root-token-id={ROOT_TOKEN}"]
        self.start([*command, f"-dev-listen-address=127.0.0.1:{self.port}"])
        self.unseal_key = self.process.wait_for(r"Unseal Key: (\S+)")

    def start(self, command):
        self.process = Process(command, self.home.name)
        self.process.wait_for(r"(server started!)")

    def configuration(self):
        path = os.path.join(self.home.name, "configuration.hcl")
        with open(path, "w") as file:
            file.write('storage "inmem" {}\n')
            file.write("disable_mlock = true\n")
            file.write(f'listener "tcp" {{ address = "127.0.0.1:{self.port}"\n tls_disable = true }}\n')
        return path

    def set_up(self, mount="transit", namespace="", ttl="1h", max_ttl="2h"):
        """A site like that of `OurServer`; None if the server has no namespaces."""
        site = Site(self.port, mount, namespace)
        if namespace and site.ask("POST", f"/v1/sys/namespaces/{namespace}", {}, namespace="").status != 200:
            return None
        self.done(site.ask("POST", f"/v1/sys/mounts/{mount}", {"type": "transit"}))
        if "approle/" not in site.ask("GET", "/v1/sys/auth").data:
            self.done(site.ask("POST", "/v1/sys/auth/approle", {"type": "approle"}))
        rules = f'path "{mount}/*" {{ capabilities = ["create", "read", "update", "delete", "list"] }}'
        self.done(site.ask("PUT", f"/v1/sys/policies/acl/{mount}", {"policy": rules}))
        role = {"token_policies": mount, "token_ttl": ttl, "token_max_ttl": max_ttl}
        self.done(site.ask("POST", f"/v1/auth/approle/role/{mount}", role))
        role_id = site.ask("GET", f"/v1/auth/approle/role/{mount}/role-id").data["role_id"]
        secret_id = site.ask("POST", f"/v1/auth/approle/role/{mount}/secret-id", {}).data["secret_id"]
        site.role = {"role_id": role_id, "secret_id": secret_id}
        return site

    def done(self, answer):
        assert answer.status in (200, 204), answer

    def seal(self):
        self.done(Site(self.port).ask("PUT", "/v1/sys/seal", {}))

    def unseal(self):
        self.done(Site(self.port).ask("PUT", "/v1/sys/unseal", {"key": self.unseal_key}))
        end = time.monotonic() + START_TIMEOUT_SECONDS
        while Site(self.port).ask("GET", "/v1/sys/health", token=None).status != 200:
            assert time.monotonic() < end, "it does not come back after unsealing"
            time.sleep(0.05)

    def stop(self):
        self.process.stop()
        self.home.cleanup()
