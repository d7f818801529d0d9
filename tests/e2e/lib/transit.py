"""The Transit engine of tests/transit, in a process of its own."""

import json
import subprocess
import sys
import urllib.request

from lib.ports import free_port
from lib.scenario import REPOSITORY
from lib.waiting import not_yet, wait_for

TOKEN = "token-of-the-test"


class Transit:
    """The server of tests/transit, in a process of its own."""

    def __init__(self, scenario):
        self.scenario, self.port = scenario, free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.token_file = scenario.directory / "transit-token"
        self.token_file.write_text(TOKEN + "\n")
        self.start()

    def start(self):
        self.process = self.scenario.start(
            sys.executable,
            REPOSITORY / "tests" / "transit" / "transit_server.py",
            "--listen",
            f"127.0.0.1:{self.port}",
            "--token",
            TOKEN,
            "--state",
            self.scenario.directory / "transit-state.json",
            stdout=subprocess.DEVNULL,
        )
        wait_for("the Transit server answers", self.answers, 20)

    def answers(self):
        with not_yet(OSError):
            return self.ask("/_test/requests")

    def stop(self):
        self.process.terminate()
        self.process.wait()

    def ask(self, path, body=None, token=None):
        request = urllib.request.Request(
            self.address + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"X-Vault-Token": token} if token else {},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read() or b"{}")

    def fail(self, kind, seconds=600, count=None):
        self.ask("/_test/failure", {"kind": kind, "seconds": seconds, "count": count})

    def decryptions(self):
        return self.ask("/_test/requests")["operations"].get("decrypt", 0)

    def options(self):
        return ["--kms-address", self.address, "--kms-token-file", self.token_file, "--kms-timeout-ms", "1500"]
