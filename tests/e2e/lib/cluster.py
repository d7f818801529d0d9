"""A cluster of real processes in one data directory, and clients of it."""

import contextlib
import glob
import json
import os
import pathlib
import re
import secrets
import signal
import socket
import ssl
import subprocess
import time
import urllib.request

import boto3
from botocore.client import Config

from lib.nbd import Nbd, connect_patiently
from lib.ports import free_port
from lib.processes import CLUSTER_MARK, is_alive, marked
from lib.waiting import CommandFailed, Failed, not_yet, wait_for

MIB, GIB = 1 << 20, 1 << 30
TROUBLE = ("panic", "ERROR", "WARN", "atoll: cannot")


class Cluster:
    """A cluster of real processes in one data directory."""

    def __init__(self, scenario, data, osds=3, osd_size="4G"):
        self.scenario, self.data, self.osds, self.osd_size = scenario, data, osds, osd_size
        self.mark = secrets.token_hex(16)
        self.s3_port, self.s3_tls_port, self.nbd_port, self.admin_port = (free_port() for _ in range(4))
        self.nbd_socket = data / "nbd.sock"
        # More options of 'atoll up', and more of the environment of all processes: one that seals with a nonce
        # that its key has met panics, and the scenario fails.
        self.options, self.variables = [], {"ATOLL_WATCH_NONCES": "1"}
        self.foreground = None
        self._credentials = None

    # --- life

    def up_command(self, *more):
        return [
            self.scenario.atoll,
            "up",
            "--data",
            self.data,
            "--osds",
            self.osds,
            "--osd-size",
            self.osd_size,
            "--s3-listen",
            f"127.0.0.1:{self.s3_port}",
            "--s3-tls-listen",
            f"127.0.0.1:{self.s3_tls_port}",
            "--admin-listen",
            f"127.0.0.1:{self.admin_port}",
            "--nbd-listen",
            f"unix:{self.nbd_socket}",
            "--nbd-listen",
            f"127.0.0.1:{self.nbd_port}",
            *self.options,
            *more,
        ]

    def environment(self):
        return dict(self.scenario.environment, **self.variables, **{CLUSTER_MARK: self.mark})

    def up(self, timeout=90):
        """Starts it in the background; returns the seconds that took."""
        started = time.monotonic()
        # A file, not a pipe: a supervisor that keeps the output open must not make us wait for it.
        with open(self.scenario.directory / f"{self.data.name}.up.log", "a+") as log:
            start = log.tell()
            try:
                code = subprocess.run(
                    [str(part) for part in self.up_command("--detach")],
                    env=self.environment(),
                    timeout=timeout,
                    cwd=self.scenario.directory,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                ).returncode
            except subprocess.TimeoutExpired:
                code = f"none after {timeout} s"
            if code != 0:
                log.seek(start)
                raise Failed(f"'atoll up --detach' failed, exit code {code}:\n{log.read()[-3000:]}")
        return time.monotonic() - started

    def start_up(self, **options):
        """'atoll up' as a process of its own; returns it at once."""
        log = self.scenario.directory / f"{self.data.name}.foreground.log"
        return self.scenario.start_logged(log, *self.up_command(), env=self.environment(), **options)

    def up_in_foreground(self, **options):
        self.foreground = self.start_up(**options)
        wait_for("the cluster is healthy", self.is_serving, 90)
        return self.foreground

    def is_serving(self):
        if self.foreground and self.foreground.poll() is not None:
            raise RuntimeError(f"'atoll up' ended with exit code {self.foreground.returncode}")
        # Neither files nor sockets are there at once, and servers that were killed are not there for a while.
        with not_yet(OSError, CommandFailed):
            if not json.loads((self.data / "processes.json").read_text())["healthy"]:
                return False
            self._credentials = None
            with urllib.request.urlopen(
                f"{self.credentials()['endpoint']}/-/health", timeout=5, context=self.trust()
            ) as answer:
                healthy = answer.status == 200
            with socket.socket(socket.AF_UNIX) as nbd:
                nbd.settimeout(5)
                nbd.connect(str(self.nbd_socket))
                return healthy and nbd.recv(8) == b"NBDMAGIC"

    def down(self, timeout=60):
        self.cli("down", timeout=timeout)
        # The supervisor itself may take a moment to be gone.
        wait_for("all processes have ended", lambda: not self.all_pids(), 2, 0.05)

    def process_ids(self):
        """What processes.json says: names and process ids."""
        record = json.loads((self.data / "processes.json").read_text())
        return {"supervisor": record["supervisor"]} | {child["name"]: child["pid"] for child in record["children"]}

    def children(self):
        return {name: pid for name, pid in self.process_ids().items() if name != "supervisor"}

    def all_pids(self):
        """Every process that was started for this cluster, also those that lost their supervisor."""
        return [pid for pid, mark in marked(CLUSTER_MARK).items() if mark == self.mark]

    def kill(self, name):
        """kill -9 of one process by its name; returns its process id."""
        pid = self.process_ids()[name]
        assert pid in self.all_pids(), f"process {pid} of processes.json ({name}) is not one of this cluster's"
        os.kill(pid, signal.SIGKILL)
        return pid

    def kill_all(self):
        """kill -9 of every process. The supervisor is stopped first and killed last: so it restarts
        none, and none ends by itself because it is gone."""
        pids = self.all_pids()
        with contextlib.suppress(OSError, ValueError, KeyError):
            supervisor = self.process_ids()["supervisor"]
            if supervisor in pids:
                os.kill(supervisor, signal.SIGSTOP)
                pids = sorted(self.all_pids(), key=lambda pid: pid == supervisor)
        while pids:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
            pids = self.all_pids()

    def restarted(self, name, old_pid, seconds=60):
        """Waits until the supervisor runs a new process of this name; returns the new process id."""

        def is_new():
            pid = self.process_ids().get(name)
            return pid if pid and pid != old_pid and is_alive(pid) else None

        return wait_for(f"{name} (was process {old_pid}) is restarted", is_new, seconds)

    def log_files(self):
        return sorted(glob.glob(f"{self.data}/**/*.log", recursive=True) + glob.glob(f"{self.data}.*.log"))

    def trouble(self, lines_max=12):
        """What the logs say about trouble."""
        said = []
        for path in self.log_files():
            with contextlib.suppress(OSError):
                text = pathlib.Path(path).read_text(errors="replace").splitlines()
                found = [line for line in text if any(word in line for word in TROUBLE)]
                # Without time and numbers many are the same.
                kinds = {re.sub(r"^\S+Z|[0-9a-f]{8,}|[0-9]+", "", line): line for line in found}
                if kinds:
                    said.append(f"{len(found)} lines of trouble in {path}, such as:")
                    said += ["  " + line[:300] for line in list(kinds.values())[-lines_max:]]
        return "\n".join(said)

    def log_text(self):
        """All logs of this cluster as one text."""
        text = ""
        for path in self.log_files():
            with contextlib.suppress(OSError):
                text += pathlib.Path(path).read_text(errors="replace")
        return text

    # --- clients

    def cli(self, *arguments, timeout=60, ok=(0,)):
        """`atoll ... --data DIR`, with the data directory behind the sub-command."""
        return self.scenario.run(self.scenario.atoll, *arguments, "--data", self.data, timeout=timeout, ok=ok)

    def json(self, *arguments, timeout=60):
        return json.loads(self.cli(*arguments, "--json", timeout=timeout).stdout)

    def create_image(self, name, size, *more):
        self.cli("image", "create", name, "--size", size, *more)

    def open_to_tcp(self, name, *more):
        """Lets clients of this host use an image over TCP without a certificate."""
        self.cli("image", "access", name, "--allow", "127.0.0.1", *more)

    def credentials(self):
        if not self._credentials:
            self._credentials = self.json("credentials")
        return self._credentials

    def forget_credentials(self):
        """They are asked for again, as when the endpoint may have changed."""
        self._credentials = None

    def trust(self):
        ca_file = self.credentials()["ca_file"]
        return ssl.create_default_context(cafile=ca_file) if ca_file else None

    def s3(self, attempts=1, access=None, secret=None, **options):
        credentials = self.credentials()
        config = Config(
            s3={"addressing_style": "path"},
            retries={"total_max_attempts": attempts},
            signature_version="s3v4",
            **{"connect_timeout": 5, "read_timeout": 60, "max_pool_connections": 64} | options,
        )
        return boto3.client(
            "s3",
            endpoint_url=credentials["endpoint"],
            region_name="us-east-1",
            config=config,
            aws_access_key_id=access or credentials["access_key"],
            verify=credentials["ca_file"] or None,
            aws_secret_access_key=secret or credentials["secret_key"],
        )

    def s3_environment(self):
        """For aws CLI, rclone (remote `atoll:`) and the conformance script."""
        credentials = self.credentials()
        environment = dict(
            self.scenario.environment,
            AWS_ACCESS_KEY_ID=credentials["access_key"],
            AWS_SECRET_ACCESS_KEY=credentials["secret_key"],
            AWS_DEFAULT_REGION="us-east-1",
            AWS_ENDPOINT_URL=credentials["endpoint"],
            RCLONE_CONFIG=str(self.scenario.directory / "rclone.conf"),
            RCLONE_CONFIG_ATOLL_TYPE="s3",
            RCLONE_CONFIG_ATOLL_PROVIDER="Other",
            RCLONE_CONFIG_ATOLL_ENDPOINT=credentials["endpoint"],
            RCLONE_CONFIG_ATOLL_ACCESS_KEY_ID=credentials["access_key"],
            RCLONE_CONFIG_ATOLL_SECRET_ACCESS_KEY=credentials["secret_key"],
            RCLONE_CONFIG_ATOLL_REGION="us-east-1",
            RCLONE_CONFIG_ATOLL_FORCE_PATH_STYLE="true",
            S3_ENDPOINT=credentials["endpoint"],
            S3_ACCESS_KEY=credentials["access_key"],
            S3_SECRET_KEY=credentials["secret_key"],
        )
        if credentials["endpoint"].startswith("https:"):
            environment |= {"AWS_CA_BUNDLE": credentials["ca_file"], "RCLONE_CA_CERT": credentials["ca_file"]}
        return environment

    def s3_tls_environment(self):
        """The same, for the endpoint with TLS."""
        endpoint, ca_file = f"https://127.0.0.1:{self.s3_tls_port}", str(self.data / "tls" / "ca.crt")
        return self.s3_environment() | {
            "AWS_ENDPOINT_URL": endpoint,
            "RCLONE_CONFIG_ATOLL_ENDPOINT": endpoint,
            "S3_ENDPOINT": endpoint,
            "AWS_CA_BUNDLE": ca_file,
            "RCLONE_CA_CERT": ca_file,
        }

    def read_image(self, image, offset, length):
        """Reads from an image as soon as it can be attached."""
        with connect_patiently(lambda: self.nbd(image)) as connection:
            return connection.read(offset, length)

    def nbd(self, image, tcp=False, **options):
        return Nbd(("127.0.0.1", self.nbd_port) if tcp else str(self.nbd_socket), image, **options)

    def nbd_uri(self, image, tcp=False):
        return f"nbd://127.0.0.1:{self.nbd_port}/{image}" if tcp else f"nbd+unix:///{image}?socket={self.nbd_socket}"

    # --- what listens where

    def listening_ports(self):
        """TCP ports on which each child listens, from /proc: {(name, port)}."""
        inodes = {}
        for table in ("tcp", "tcp6"):
            with contextlib.suppress(OSError):
                for line in pathlib.Path("/proc/net", table).read_text().splitlines()[1:]:
                    fields = line.split()
                    if fields[3] == "0A":
                        inodes[fields[9]] = int(fields[1].rsplit(":", 1)[1], 16)
        return {
            (name, inodes[inode])
            for name, pid in self.process_ids().items()
            for inode in socket_inodes(pid)
            if inode in inodes
        }


def socket_inodes(pid):
    """The sockets that a process has open, as /proc/net names them."""
    for descriptor in glob.glob(f"/proc/{pid}/fd/*"):
        with contextlib.suppress(OSError):
            target = os.readlink(descriptor)
            if target.startswith("socket:["):
                yield target[8:-1]
