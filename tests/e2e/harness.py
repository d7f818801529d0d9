"""What the end-to-end scenarios share: checks, a cluster of real processes, and tools.

A scenario is a script with a function that takes a `Test`; `main` gives it one. Every scenario keeps
to a directory of its own, to free ports of the loopback interface, and to processes that it started.
"""
import argparse, contextlib, glob, itertools, json, os, pathlib, re, resource, secrets, shutil, signal
import socket, ssl, subprocess, sys, time, traceback, urllib.request

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
MIB, GIB = 1 << 20, 1 << 30
SCENARIO_SECONDS_MAX = 1_200
# In the environment of every process of a cluster, so that those that lost their parent are found.
MARK = "ATOLL_E2E_CLUSTER"


class Failed(Exception):
    """A check does not hold."""


class Abort(Exception):
    """The scenario cannot go on."""


def expect(condition, message):
    if not condition:
        raise Failed(message)


class Note:
    """What a step says about itself on its line."""

    def __init__(self):
        self.text = ""

    def __call__(self, text):
        self.text = text


class Test:
    def __init__(self, name, arguments, directory=None):
        self.name, self.atoll, self.scale = name, str(pathlib.Path(arguments.atoll).resolve()), arguments.scale
        self.passed = self.failed = self.not_run = 0
        self.clusters, self.processes = [], []
        self.directory = directory or new_directory(name)
        # No credentials, settings or proxies of whoever runs the tests.
        self.environment = {name: value for name, value in os.environ.items()
                            if not name.startswith(("AWS_", "RCLONE_")) and not name.lower().endswith("_proxy")}
        nowhere = str(self.directory / "none")
        self.environment |= {"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": nowhere, "AWS_SHARED_CREDENTIALS_FILE": nowhere}
        check_direct_io(self.directory)

    @contextlib.contextmanager
    def step(self, name, fatal=False):
        """One check; an exception within is its failure. After a fatal one nothing else is tried."""
        note, started = Note(), time.monotonic()
        try:
            yield note
        except (Exception, subprocess.TimeoutExpired) as error:
            self.failed += 1
            detail = str(error) if isinstance(error, Failed) else traceback.format_exc()
            print(f"FAIL  {name} ({time.monotonic() - started:.1f} s)\n      " + detail.strip().replace("\n", "\n      "), flush=True)
            if fatal or isinstance(error, Abort):
                raise Abort(name) from None
        else:
            self.passed += 1
            seconds = f"{time.monotonic() - started:.1f} s"
            print(f"ok    {name} ({note.text + ', ' if note.text else ''}{seconds})", flush=True)

    def check(self, name, condition, why=""):
        with self.step(name):
            expect(condition, why or "it does not hold")

    def skip(self, name, why):
        """A check that cannot be made on this machine: said loudly and counted apart."""
        self.not_run += 1
        print(f"NOT RUN  {name}: {why}", flush=True)

    def need(self, *tools):
        """Tools as (command, Debian package); the scenario fails where one is missing."""
        missing = [f"{command} (install the package {package})" for command, package in tools if not shutil.which(command)]
        if missing:
            with self.step("needed tools are installed", fatal=True):
                raise Failed("missing: " + ", ".join(missing))

    def run(self, *command, timeout=120, ok=(0,), **options):
        """Runs a command to its end; its output is in the error if the exit code is not as wished."""
        options = {"env": self.environment, "stdin": subprocess.DEVNULL, "cwd": self.directory} | options
        command = [str(part) for part in command]
        try:
            done = subprocess.run(command, timeout=timeout, capture_output=True, text=True, errors="replace", **options)
        except subprocess.TimeoutExpired as error:
            output = b"".join(part for part in (error.stdout, error.stderr) if part)[-1500:].decode(errors="replace")
            raise Failed(f"{' '.join(command)}\nhad not ended after {timeout} s\n{output}") from None
        if ok is not None and done.returncode not in ok:
            raise Failed(f"{' '.join(command)}\nexit code {done.returncode}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}")
        return done

    def start(self, *command, **options):
        """Starts a command that is killed at the end of the scenario at the latest."""
        options = {"env": self.environment, "stdin": subprocess.DEVNULL, "cwd": self.directory,
                   "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "errors": "replace"} | options
        process = subprocess.Popen([str(part) for part in command], **options)
        self.processes.append(process)
        return process

    def cluster(self, name="d", **options):
        cluster = Cluster(self, self.directory / name, **options)
        self.clusters.append(cluster)
        return cluster

    def clean_up(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        for cluster in self.clusters:
            cluster.kill_all()
        if self.failed or os.environ.get("ATOLL_E2E_KEEP"):
            for cluster in self.clusters:
                cluster.print_logs()
            print(f"      kept for a look: {self.directory}", flush=True)
        else:
            shutil.rmtree(self.directory, ignore_errors=True)


def new_directory(name):
    """A directory for one run of a scenario."""
    base = pathlib.Path(os.environ.get("ATOLL_E2E_DIR") or REPOSITORY / "target" / "e2e")
    base.mkdir(parents=True, exist_ok=True)
    for old in base.glob(f"{name}-*"):
        # What a failed run left to be looked at, unless it is running now.
        owner = old.name.rsplit("-", 1)[1]
        if owner.isdigit() and not pathlib.Path("/proc", owner).exists():
            shutil.rmtree(old, ignore_errors=True)
    directory = base / f"{name}-{os.getpid()}"
    directory.mkdir()
    return directory


def main(function):
    """Runs a scenario from the command line."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    arguments = parser.parse_args()
    name = pathlib.Path(sys.argv[0]).stem

    def on_signal(number, _frame):
        raise Abort(f"signal {signal.Signals(number).name}" if number != signal.SIGALRM else f"more than {SCENARIO_SECONDS_MAX} s")

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
        signal.signal(number, on_signal)
    signal.alarm(int(SCENARIO_SECONDS_MAX * arguments.scale))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 8192:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, hard), hard))
    print(f"----  {name}", flush=True)
    started = time.monotonic()
    if not os.access(arguments.atoll, os.X_OK):
        sys.exit(f"{arguments.atoll} is not there; build it first or name it with --atoll")
    test = Test(name, arguments)
    try:
        function(test)
    except Abort as error:
        print(f"FAIL  {name} stopped early: {error}", flush=True)
        test.failed += 1
    except Exception:
        print(f"FAIL  {name} stopped early\n{traceback.format_exc()}", flush=True)
        test.failed += 1
    finally:
        signal.alarm(0)
        test.clean_up()
    print(f"      {name} took {time.monotonic() - started:.0f} s")
    not_run = f", {test.not_run} not run" if test.not_run else ""
    print(f"{test.passed} passed, {test.failed} failed{not_run}", flush=True)
    # Threads that still wait for a server that is gone do not keep the process.
    os._exit(1 if test.failed else 0)


def add_arguments(parser):
    parser.add_argument("--atoll", default=str(REPOSITORY / "target" / "release" / "atoll"), help="the binary to test")
    parser.add_argument("--quick", action="store_true", help="small sizes; the default")
    parser.add_argument("--scale", type=float, default=float(os.environ.get("ATOLL_E2E_SCALE", "1")),
                        help="times as much data and load as in quick mode (or ATOLL_E2E_SCALE)")


def check_direct_io(directory):
    path = directory / "direct"
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_DIRECT))
    except OSError as error:
        raise SystemExit(f"{directory} does not support O_DIRECT ({error.strerror}); set ATOLL_E2E_DIR to a directory on a disk")
    path.unlink(missing_ok=True)


# Another run beside this one begins elsewhere: what a killed process leaves free must stay free for it.
PORTS = itertools.count(20_000 + os.getpid() % 1_000 * 10)


def free_port():
    """A port that nobody has, below those that the kernel gives to sockets of its choice."""
    for port in PORTS:
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


def wait_for(what, condition, seconds=60, pause=0.1):
    """The first true value of a condition; its exceptions count as not yet."""
    deadline, last = time.monotonic() + seconds, None
    while True:
        try:
            value = condition()
            if value:
                return value
        except (Failed, OSError, ValueError, KeyError) as error:
            last = error
        if time.monotonic() > deadline:
            raise Failed(f"not after {seconds} s: {what}" + (f"; last error: {last}" if last else ""))
        time.sleep(pause)


def is_alive(pid):
    try:
        stat = pathlib.Path("/proc", str(pid), "stat").read_text()
    except OSError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] not in "ZX"


def resident_bytes(pid):
    return int(pathlib.Path("/proc", str(pid), "statm").read_text().split()[1]) * resource.getpagesize()


class Cluster:
    """A cluster of real processes in one data directory."""

    def __init__(self, test, data, osds=3, osd_size="4G"):
        self.test, self.data, self.osds, self.osd_size = test, data, osds, osd_size
        self.mark = secrets.token_hex(16)
        self.s3_port, self.s3_tls_port, self.nbd_port = free_port(), free_port(), free_port()
        self.nbd_socket = data / "nbd.sock"
        # More options of 'atoll up', and more of the environment of all processes: one that seals with a nonce
        # that its key has met panics, and the scenario fails.
        self.options, self.variables = [], {"ATOLL_WATCH_NONCES": "1"}
        self.foreground = None
        self._credentials = None

    # --- life

    def up_command(self, *more):
        return [self.test.atoll, "up", "--data", self.data, "--osds", self.osds, "--osd-size", self.osd_size,
                "--s3-listen", f"127.0.0.1:{self.s3_port}", "--s3-tls-listen", f"127.0.0.1:{self.s3_tls_port}", "--nbd-listen", f"unix:{self.nbd_socket}",
                "--nbd-listen", f"127.0.0.1:{self.nbd_port}", *self.options, *more]

    def environment(self):
        return dict(self.test.environment, **self.variables, **{MARK: self.mark})

    def up(self, timeout=90):
        """Starts it in the background; returns the seconds that took."""
        started = time.monotonic()
        # A file, not a pipe: a supervisor that keeps the output open must not make us wait for it.
        with open(self.test.directory / f"{self.data.name}.up.log", "a+") as log:
            start = log.tell()
            try:
                code = subprocess.run([str(part) for part in self.up_command("--detach")], env=self.environment(), timeout=timeout,
                                      cwd=self.test.directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log).returncode
            except subprocess.TimeoutExpired:
                code = f"none after {timeout} s"
            if code != 0:
                log.seek(start)
                raise Failed(f"'atoll up --detach' failed, exit code {code}:\n{log.read()[-3000:]}")
        return time.monotonic() - started

    def up_in_foreground(self, **options):
        log = open(self.test.directory / f"{self.data.name}.foreground.log", "a")
        self.foreground = self.test.start(*self.up_command(), env=self.environment(), stdout=log, stderr=log, **options)
        wait_for("the cluster is healthy", self.is_serving, 90)
        return self.foreground

    def is_serving(self):
        if self.foreground and self.foreground.poll() is not None:
            raise Abort(f"'atoll up' ended with exit code {self.foreground.returncode}")
        if not json.loads((self.data / "processes.json").read_text())["healthy"]:
            return False
        self._credentials = None
        with urllib.request.urlopen(f"{self.credentials()['endpoint']}/-/health", timeout=5, context=self.trust()) as answer:
            healthy = answer.status == 200
        with socket.socket(socket.AF_UNIX) as nbd:
            nbd.settimeout(5)
            nbd.connect(str(self.nbd_socket))
            return healthy and nbd.recv(8) == b"NBDMAGIC"

    def down(self, timeout=60):
        self.cli("down", timeout=timeout)
        expect(not self.all_pids(), f"still running after 'atoll down': {self.all_pids()}")

    def process_ids(self):
        """What processes.json says: names and process ids."""
        record = json.loads((self.data / "processes.json").read_text())
        return {"supervisor": record["supervisor"]} | {child["name"]: child["pid"] for child in record["children"]}

    def children(self):
        return {name: pid for name, pid in self.process_ids().items() if name != "supervisor"}

    def all_pids(self):
        """Every process that was started for this cluster, also those that lost their supervisor."""
        found = []
        for path in glob.glob("/proc/[0-9]*/environ"):
            try:
                environment = pathlib.Path(path).read_bytes()
            except OSError:
                continue
            pid = int(path.split("/")[2])
            if f"{MARK}={self.mark}".encode() in environment and is_alive(pid):
                found.append(pid)
        return found

    def kill(self, name):
        """kill -9 of one process by its name; returns its process id."""
        pid = self.process_ids()[name]
        expect(pid in self.all_pids(), f"process {pid} of processes.json ({name}) is not one of this cluster's")
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

    def print_logs(self, lines=12):
        """What the logs say about trouble."""
        for path in sorted(glob.glob(f"{self.data}/**/*.log", recursive=True) + glob.glob(f"{self.data}.*.log")):
            with contextlib.suppress(OSError):
                text = pathlib.Path(path).read_text(errors="replace").splitlines()
                trouble = [line for line in text if any(word in line for word in ("panic", "ERROR", "WARN", "atoll: cannot"))]
                # Without time and numbers many are the same.
                kinds = {re.sub(r"^\S+Z|[0-9a-f]{8,}|[0-9]+", "", line): line for line in trouble}
                if kinds:
                    print(f"      {len(trouble)} lines of trouble in {path}, such as:")
                    print("\n".join("        " + line[:300] for line in list(kinds.values())[-lines:]), flush=True)

    def log_text(self):
        """All logs of this cluster as one text."""
        text = ""
        for path in glob.glob(f"{self.data}/**/*.log", recursive=True) + glob.glob(f"{self.data}.*.log"):
            with contextlib.suppress(OSError):
                text += pathlib.Path(path).read_text(errors="replace")
        return text

    # --- clients

    def cli(self, *arguments, timeout=60, ok=(0,)):
        """`atoll ... --data DIR`, with the data directory behind the sub-command."""
        return self.test.run(self.test.atoll, *arguments, "--data", self.data, timeout=timeout, ok=ok)

    def json(self, *arguments, timeout=60):
        return json.loads(self.cli(*arguments, "--json", timeout=timeout).stdout)

    def create_image(self, name, size, *more):
        self.cli("image", "create", name, "--size", size, *more)

    def credentials(self):
        if not self._credentials:
            self._credentials = self.json("credentials")
        return self._credentials

    def trust(self):
        ca_file = self.credentials()["ca_file"]
        return ssl.create_default_context(cafile=ca_file) if ca_file else None

    def s3(self, attempts=1, access=None, secret=None, **options):
        import boto3
        from botocore.client import Config
        credentials = self.credentials()
        config = Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": attempts}, signature_version="s3v4",
                        **{"connect_timeout": 5, "read_timeout": 60, "max_pool_connections": 64} | options)
        return boto3.client("s3", endpoint_url=credentials["endpoint"], region_name="us-east-1", config=config,
                            aws_access_key_id=access or credentials["access_key"], verify=credentials["ca_file"] or None,
                            aws_secret_access_key=secret or credentials["secret_key"])

    def s3_environment(self):
        """For aws CLI, rclone (remote `atoll:`) and the conformance script."""
        credentials = self.credentials()
        environment = dict(
            self.test.environment, AWS_ACCESS_KEY_ID=credentials["access_key"], AWS_SECRET_ACCESS_KEY=credentials["secret_key"],
            AWS_DEFAULT_REGION="us-east-1", AWS_ENDPOINT_URL=credentials["endpoint"],
            RCLONE_CONFIG=str(self.test.directory / "rclone.conf"), RCLONE_CONFIG_ATOLL_TYPE="s3",
            RCLONE_CONFIG_ATOLL_PROVIDER="Other", RCLONE_CONFIG_ATOLL_ENDPOINT=credentials["endpoint"],
            RCLONE_CONFIG_ATOLL_ACCESS_KEY_ID=credentials["access_key"],
            RCLONE_CONFIG_ATOLL_SECRET_ACCESS_KEY=credentials["secret_key"], RCLONE_CONFIG_ATOLL_REGION="us-east-1",
            RCLONE_CONFIG_ATOLL_FORCE_PATH_STYLE="true",
            S3_ENDPOINT=credentials["endpoint"], S3_ACCESS_KEY=credentials["access_key"], S3_SECRET_KEY=credentials["secret_key"])
        if credentials["endpoint"].startswith("https:"):
            environment |= {"AWS_CA_BUNDLE": credentials["ca_file"], "RCLONE_CA_CERT": credentials["ca_file"]}
        return environment

    def s3_tls_environment(self):
        """The same, for the endpoint with TLS."""
        endpoint, ca_file = f"https://127.0.0.1:{self.s3_tls_port}", str(self.data / "tls" / "ca.crt")
        return self.s3_environment() | {"AWS_ENDPOINT_URL": endpoint, "RCLONE_CONFIG_ATOLL_ENDPOINT": endpoint, "S3_ENDPOINT": endpoint,
                                        "AWS_CA_BUNDLE": ca_file, "RCLONE_CA_CERT": ca_file}

    def nbd(self, image, tcp=False, **options):
        from nbdclient import Nbd
        return Nbd(("127.0.0.1", self.nbd_port) if tcp else str(self.nbd_socket), image, **options)

    def nbd_uri(self, image, tcp=False):
        return f"nbd://127.0.0.1:{self.nbd_port}/{image}" if tcp else f"nbd+unix:///{image}?socket={self.nbd_socket}"

    # --- what listens where

    def listening_ports(self):
        """TCP ports on which each child listens, from /proc: {(name, port)}."""
        listening = {}
        for table in ("tcp", "tcp6"):
            with contextlib.suppress(OSError):
                for line in pathlib.Path("/proc/net", table).read_text().splitlines()[1:]:
                    fields = line.split()
                    if fields[3] == "0A":
                        listening[fields[9]] = int(fields[1].rsplit(":", 1)[1], 16)
        found = set()
        for name, pid in self.process_ids().items():
            for descriptor in glob.glob(f"/proc/{pid}/fd/*"):
                with contextlib.suppress(OSError):
                    target = os.readlink(descriptor)
                    if target.startswith("socket:[") and target[8:-1] in listening:
                        found.add((name, listening[target[8:-1]]))
        return found
