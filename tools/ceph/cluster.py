"""One Ceph cluster on 127.0.0.1: a monitor, a manager, OSDs on sparse files, and on demand an S3 gateway.

Nothing that makes writes durable is changed from Ceph's defaults. What is set, and why, is in `configuration`.
"""
import itertools, json, os, pathlib, random, secrets, shutil, socket, subprocess, time, urllib.error, urllib.request, uuid

from installation import Failure, installed_version, last_lines
from processes import Processes

ENTER = str(pathlib.Path(__file__).resolve().with_name("enter.sh"))
MARK = "atoll-ceph-cluster"
POOL = "bench"
GATEWAY_POOLS = ["default.rgw.buckets.data", "default.rgw.buckets.index"]
COMMAND_SECONDS_MAX = 180
READY_SECONDS_MAX = 180
# Subsystems whose debug messages Ceph gathers in memory by default (levels 1 to 5).
DEBUG = ("asok auth bdev bluefs bluestore buffer client context crush filer finisher heartbeatmap journaler memdb mgr mgrc mon monc ms "
         "none objclass objectcacher objecter optracker osd paxos perfcounter rados rbd reserver rgw rocksdb striper throttle timer tp").split()
FITTED = "".join(f"debug_{one} = 0/0\n" for one in DEBUG) + """osd_op_num_shards = {processors}
osd_op_num_threads_per_shard = 1
ms_async_op_threads = {processors}
"""


def up(wanted, root, directory, say):
    """Starts a cluster; what the last line of `tools/ceph/ceph up` says of it."""
    version = installed_version(root)
    if version is None:
        raise Failure(f"there is no Ceph in {root}: run `tools/ceph/ceph install --root {root}`")
    if wanted.copies > wanted.osds:
        raise Failure(f"{wanted.copies} copies need as many OSDs, and there are {wanted.osds}: raise --osds or lower --copies")
    if directory.exists() and any(directory.iterdir()):
        raise Failure(f"{directory} is not empty: name another --dir, or end the cluster in it with `down --dir {directory}`")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MARK).write_text(version + "\n")
    try:
        return Cluster(wanted, root, directory, say).start(version)
    except BaseException:
        say(logs(directory))
        down(directory, say)
        raise


def down(directory, say):
    """Ends a cluster's processes and removes its directory. It is no error if there is none."""
    if not directory.exists():
        return
    if not (directory / MARK).exists():
        raise Failure(f"{directory} is not a directory that `up` made: it is left as it is")
    if killed := Processes(directory).end():
        say(f"these did not end by themselves and were killed: {killed}")
    shutil.rmtree(directory)


def logs(directory):
    """The end of each server's own output, for one who has to find out why a cluster did not start."""
    found = [(file.name, last_lines(file.read_text(errors="replace"))) for file in sorted(directory.glob("*.output"))]
    return "\n".join(f"--- {name}\n{text}" for name, text in found if text)


def free_ports(count):
    """Ports that nobody listens on, below those that the kernel gives to outgoing connections: one of them might take it meanwhile."""
    tried = random.sample(range(30000, 32768), 100)
    found = list(itertools.islice(filter(is_free, tried), count))
    if len(found) < count:
        raise Failure("all ports from 30000 to 32767 that were tried are in use: end what listens there")
    return found


def is_free(port):
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Cluster:
    def __init__(self, wanted, root, directory, say):
        self.wanted, self.root, self.directory, self.say = wanted, root, directory, say
        self.processes = Processes(directory)
        self.fsid = str(uuid.uuid4())
        self.monitor_port, self.gateway_port = free_ports(2)

    def start(self, version):
        wanted = self.wanted
        for place in ("etc/ceph", "var/lib/ceph/mon", "var/lib/ceph/mgr/ceph-x", "var/lib/ceph/osd",
                      "var/lib/ceph/radosgw/ceph-rgw.bench", "var/log/ceph", "run/ceph"):
            (self.directory / place).mkdir(parents=True)
        if wanted.media == "ssd":
            (self.directory / "rotational").write_text("0\n")
        self.write("etc/ceph/ceph.conf", self.configuration())
        self.start_monitor()
        self.start_manager()
        for number in range(wanted.osds):
            self.start_osd(number)
        self.make_pool(POOL, wanted.pg_num, "rbd")
        facts = {"title": f"Ceph Reef, {wanted.osds} OSDs, {wanted.frames} frames", "version": version, "protections": self.protections()}
        if wanted.rgw:
            facts["s3"] = self.start_gateway()
        self.wait_for("all PGs active and clean", self.is_clean)
        client = {"command": [ENTER, str(self.root), str(self.directory), "fio"], "pool": POOL, "client": "admin", "conf": "/etc/ceph/ceph.conf"}
        return facts | {"servers": self.processes.by_role(), "fio_rbd": client}

    def configuration(self):
        wanted = self.wanted
        frames = "".join(f"ms_{who}_mode = {wanted.frames}\n" for who in ("cluster", "service", "client"))
        fitted = FITTED.format(processors=os.cpu_count()) if wanted.fitted else ""
        return f"""[global]
{fitted}fsid = {self.fsid}
mon_initial_members = a
mon_host = [v2:127.0.0.1:{self.monitor_port}]
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
ms_bind_msgr1 = false
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
# The default, true, is for clients older than any here, and the cluster warns of it.
auth_allow_insecure_global_id_reclaim = false
# Frames of all connections; the default prefers crc, except to monitors.
{frames}
# Copies on different OSDs, which are all on this host.
osd_crush_chooseleaf_type = 0
osd_pool_default_size = {wanted.copies}
mon_allow_pool_size_one = {"true" if wanted.copies == 1 else "false"}
# Pools keep the number of groups that they were made with, or runs would differ.
osd_pool_default_pg_autoscale_mode = off
osd_pool_default_pg_num = 8
# Ceph's default is 4 GiB for each OSD, more than a small machine has.
osd_memory_target = {wanted.osd_memory}
bluestore_block_size = {wanted.osd_size}
# The optional modules listen on ports of their own.
mgr_initial_modules =

[client]
# librbd's cache acknowledges writes that no OSD has.
rbd_cache = false

[client.rgw.bench]
rgw_frontends = beast endpoint=127.0.0.1:{self.gateway_port}
"""

    def protections(self):
        wanted = self.wanted
        frames = "messenger v2 secure (AES-128-GCM)" if wanted.frames == "secure" else "messenger v2 crc (not encrypted)"
        media = "Ceph's settings for flash" if wanted.media == "ssd" else "Ceph's settings by what the disk says of itself"
        media += ", no debug messages, threads as many as processors" if wanted.fitted else ", Ceph's debug levels and threads"
        return (f"{wanted.copies} copies, every ack durable on all, BlueStore on files with its default flushes and CRC-32C, {frames}, "
                f"cephx, {media}, no client cache; data is not sealed by clients and not encrypted at rest")

    def start_monitor(self):
        self.say("starting the monitor")
        admin, monitor = "/etc/ceph/ceph.client.admin.keyring", "/etc/ceph/mon.keyring"
        caps = [word for service in ("mon", "osd", "mgr", "mds") for word in ("--cap", service, "allow *")]
        self.run("ceph-authtool", "--create-keyring", monitor, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *")
        self.run("ceph-authtool", "--create-keyring", admin, "--gen-key", "-n", "client.admin", *caps)
        self.run("ceph-authtool", monitor, "--import-keyring", admin)
        self.run("monmaptool", "--create", "--fsid", self.fsid, "--addv", "a", f"[v2:127.0.0.1:{self.monitor_port}]", "/etc/ceph/monmap")
        self.run("ceph-mon", "--mkfs", "-i", "a", "--monmap", "/etc/ceph/monmap", "--keyring", monitor)
        self.serve("other", "mon", "ceph-mon", "-f", "-i", "a")
        self.wait_for("the monitor's quorum", lambda: self.ask("quorum_status")["quorum_names"] == ["a"])

    def start_manager(self):
        self.say("starting the manager")
        caps = ("mon", "allow profile mgr", "osd", "allow *", "mds", "allow *")
        self.write("var/lib/ceph/mgr/ceph-x/keyring", self.run("ceph", "auth", "get-or-create", "mgr.x", *caps))
        self.serve("other", "mgr", "ceph-mgr", "-f", "-i", "x")

    def start_osd(self, number):
        self.say(f"starting osd.{number}")
        identity = str(uuid.uuid4())
        given = self.run("ceph", "osd", "new", identity).strip()
        if given != str(number):
            raise Failure(f"the monitor made osd.{given}, not osd.{number}")
        place = f"var/lib/ceph/osd/ceph-{number}"
        (self.directory / place).mkdir()
        caps = ("mon", "allow profile osd", "mgr", "allow profile osd", "osd", "allow *")
        self.write(f"{place}/keyring", self.run("ceph", "auth", "get-or-create", f"osd.{number}", *caps))
        # In the foreground, since it would go on after this command has been interrupted.
        self.run("ceph-osd", "-f", "-i", str(number), "--mkfs", "--osd-uuid", identity)
        self.serve("osd", f"osd.{number}", "ceph-osd", "-f", "-i", str(number))
        self.wait_for(f"osd.{number}", lambda: self.ask("osd stat")["num_up_osds"] == number + 1)

    def make_pool(self, name, pg_num, application):
        self.run("ceph", "osd", "pool", "create", name, str(pg_num), str(pg_num))
        self.run("ceph", "osd", "pool", "application", "enable", name, application)

    def start_gateway(self):
        self.say("starting the S3 gateway")
        # The gateway makes the others that it needs, which are small.
        for name in GATEWAY_POOLS:
            self.make_pool(name, self.wanted.pg_num, "rgw")
        caps = ("mon", "allow rw", "osd", "allow rwx", "mgr", "allow rw")
        self.write("var/lib/ceph/radosgw/ceph-rgw.bench/keyring", self.run("ceph", "auth", "get-or-create", "client.rgw.bench", *caps))
        self.serve("gateway", "rgw", "radosgw", "-f", "-n", "client.rgw.bench")
        endpoint = f"http://127.0.0.1:{self.gateway_port}"
        self.wait_for("the S3 gateway", lambda: urllib.request.urlopen(endpoint, timeout=5).status == 200)
        access_key, secret_key = secrets.token_hex(10).upper(), secrets.token_hex(20)
        self.run("radosgw-admin", "user", "create", "--uid=bench", "--display-name=bench", f"--access-key={access_key}", f"--secret={secret_key}")
        return {"endpoint": endpoint, "access_key": access_key, "secret_key": secret_key, "ca_file": None}

    def is_clean(self):
        groups = self.ask("pg stat")["pg_summary"]
        states = {state["name"]: state["num"] for state in groups["num_pg_by_state"]}
        return states.get("active+clean") == groups["num_pgs"] == sum(pool["pg_num"] for pool in self.ask("osd pool ls detail"))

    def write(self, place, text):
        file = self.directory / place
        file.write_text(text)
        file.chmod(0o600)

    def inside(self, *command):
        return [ENTER, str(self.root), str(self.directory), *command]

    def run(self, *command):
        """Runs a command in the chroot; its standard output."""
        try:
            done = subprocess.run(self.inside(*command), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise Failure(f"`{' '.join(command)}` did not end within {COMMAND_SECONDS_MAX} s")
        if done.returncode:
            raise Failure(f"`{' '.join(command)}` failed: {last_lines(done.stderr or done.stdout)}")
        return done.stdout

    def ask(self, question):
        return json.loads(self.run("ceph", "--connect-timeout", "10", *question.split(), "--format", "json"))

    def serve(self, role, name, *command):
        self.processes.start(role, self.inside(*command), self.directory / f"{name}.output")

    def wait_for(self, what, is_ready):
        until, last = time.monotonic() + READY_SECONDS_MAX, None
        while time.monotonic() < until:
            if ended := self.processes.ended():
                raise Failure(f"a server has ended ({ended}) while waiting for {what}; its log is above")
            try:
                if is_ready():
                    return
            except (Failure, urllib.error.URLError, ConnectionError) as failure:
                last = failure
            time.sleep(0.5)
        raise Failure(f"waited {READY_SECONDS_MAX} s in vain for {what}" + (f"; the last error: {last}" if last else ""))
