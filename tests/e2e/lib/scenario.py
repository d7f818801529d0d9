"""One scenario: a directory of its own, processes and clusters, all of which end with it."""

import contextlib
import os
import pathlib
import resource
import shutil
import subprocess

from lib.cluster import Cluster
from lib.processes import RUN_MARK
from lib.second_runs import SECOND_RUN
from lib.verdicts import Panicked
from lib.waiting import CommandFailed

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
ATOLL = REPOSITORY / "target" / "release" / "atoll"
OPEN_FILES = 8192


class Scenario:
    """What the tests of one module work with."""

    def __init__(self, name, atoll=ATOLL, scale=1.0, directory=None):
        self.name, self.atoll, self.scale = name, str(pathlib.Path(atoll).resolve()), scale
        self.clusters, self.processes, self.at_end = [], [], contextlib.ExitStack()
        self.directory = directory or new_directory(name)
        # No credentials, settings or proxies of the user who runs the tests.
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("AWS_", "RCLONE_")) and not name.lower().endswith("_proxy")
        }
        nowhere = str(self.directory / "none")
        self.environment |= {
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": nowhere,
            "AWS_SHARED_CREDENTIALS_FILE": nowhere,
        }
        if session := os.environ.get("ATOLL_E2E_SESSION"):
            self.environment[RUN_MARK] = session
        check_direct_io(self.directory)
        allow_open_files()

    def run(self, *command, timeout=120, ok=(0,), failure=CommandFailed, **options):
        """Runs a command to its end; if its exit code is not one of `ok` that is a `failure`, with its output."""
        options = {"env": self.environment, "stdin": subprocess.DEVNULL, "cwd": self.directory} | options
        command = [str(part) for part in command]
        try:
            done = subprocess.run(command, timeout=timeout, capture_output=True, text=True, errors="replace", **options)
        except subprocess.TimeoutExpired as error:
            output = b"".join(part for part in (error.stdout, error.stderr) if part)[-1500:].decode(errors="replace")
            raise CommandFailed(f"{' '.join(command)}\nhad not ended after {timeout} s\n{output}") from None
        if ok is not None and done.returncode not in ok:
            said = f"{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
            raise failure(f"{' '.join(command)}\nexit code {done.returncode}\n{said}")
        return done

    def start(self, *command, **options):
        """Starts a command that is killed at the end of the scenario at the latest."""
        defaults = {
            "env": self.environment,
            "stdin": subprocess.DEVNULL,
            "cwd": self.directory,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
            "errors": "replace",
        }
        process = subprocess.Popen([str(part) for part in command], **defaults | options)
        self.processes.append(process)
        return process

    def start_logged(self, log, *command, **options):
        """The same, with its output appended to a file."""
        with open(log, "a") as file:
            return self.start(*command, stdout=file, stderr=file, **options)

    def cluster(self, name="d", **options):
        """A cluster that is not started yet."""
        return self.add(Cluster(self, self.directory / name, **options))

    def add(self, cluster):
        """Has a cluster ended with the scenario."""
        self.clusters.append(cluster)
        return cluster

    def trouble(self):
        """What the logs of all clusters say about trouble."""
        return "\n".join(text for cluster in self.clusters if (text := cluster.trouble()))

    def no_panic(self):
        """No process of any cluster has panicked."""
        lines = [line for cluster in self.clusters for line in cluster.log_text().splitlines() if "panicked" in line]
        if lines:
            raise Panicked("\n".join(lines[:5]))

    def clean_up(self, keep):
        """Ends everything; the directory stays for a look if `keep`."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        for cluster in self.clusters:
            cluster.kill_all()
        self.at_end.close()
        if keep:
            print(f"kept for a look: {self.directory}", flush=True)
        else:
            shutil.rmtree(self.directory, ignore_errors=True)


def base_directory():
    """Where scenarios keep their data: on a disk, as OSDs open their devices with O_DIRECT."""
    return pathlib.Path(os.environ.get("ATOLL_E2E_DIR") or REPOSITORY / "target" / "e2e")


def new_directory(name):
    """A directory for one run of a scenario, instead of those that ended runs have left to be looked at.
    A second run leaves them."""
    base = base_directory()
    base.mkdir(parents=True, exist_ok=True)
    for old in base.glob(f"{name}-*"):
        owner = old.name.rsplit("-", 1)[1]
        is_over = owner.isdigit() and not pathlib.Path("/proc", owner).exists()
        if is_over and SECOND_RUN not in os.environ:
            shutil.rmtree(old, ignore_errors=True)
    directory = base / f"{name}-{os.getpid()}"
    directory.mkdir()
    return directory


def check_direct_io(directory):
    """Fails where a file system does not support O_DIRECT."""
    path = directory / "direct"
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_DIRECT))
    except OSError as error:
        raise SystemExit(
            f"{directory} does not support O_DIRECT ({error.strerror}); set ATOLL_E2E_DIR to a directory on a disk"
        ) from None
    path.unlink(missing_ok=True)


def allow_open_files():
    """As many open files as scenarios with many connections need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < OPEN_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(OPEN_FILES, hard), hard))


def add_arguments(parser):
    """What tools that measure a cluster are told."""
    parser.add_argument("--atoll", default=str(ATOLL), help="the binary")
    scale = float(os.environ.get("ATOLL_E2E_SCALE", "1"))
    parser.add_argument("--scale", type=float, default=scale, help="times as much load (or ATOLL_E2E_SCALE)")
