#!/usr/bin/env python3
"""A cluster of many hosts on one machine, for the benchmark of scaling: each host is a network namespace with one
OSD, a gateway and an NBD server, and may use so much of a core and so much bandwidth and no more.

    tools/hosts/driver.py up --dir DIR --hosts 4|8|12 [--cpu-percent 10] [--bandwidth-mbit 200] [--osd-size 2G] [--pool-ec K+M]
    tools/hosts/driver.py down --dir DIR

'up' prints as its last line a JSON object that says where the cluster is (docs/benchmarks.md, "Scaling"), and leaves
it running in the background. Clients run in a namespace of their own without limits: 'clients.wrap' is the command
that goes there. Cluster state is in an etcd in a further namespace, without limits too. It needs root, iproute2,
etcd-server, etcd-client and openssl. 'down' ends all of it and removes DIR.
"""
import argparse, concurrent.futures, hashlib, json, os, pathlib, shutil, subprocess, sys

import caps

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "e2e"))
from lib.scenario import REPOSITORY, Scenario  # noqa: E402
from lib.waiting import wait_for  # noqa: E402
from lib.net import ETCD_IP, NETWORK, Etcd, Host, Namespaces  # noqa: E402

HOSTS_MIN, HOSTS_MAX = 3, 64
CLIENT_IP = f"{NETWORK}.200"
TOOLS = {"ip": "iproute2", "tc": "iproute2", "etcd": "etcd-server", "etcdctl": "etcd-client", "openssl": "openssl"}
# PGs of a pool per host, so that load is spread as evenly over twelve hosts as over four.
GROUPS_PER_HOST = 16
STARTS_AT_ONCE = 4


class CappedHost(Host):
    """A host whose processes are in a cgroup."""

    def __init__(self, test, namespaces, groups, number):
        address = f"{NETWORK}.{100 + number}"
        super().__init__(test, namespaces.add_host(f"h{number}", address), f"h{number}", address)
        self.groups = groups
        self.variables = {"ATOLL_OSD_MEMORY_TARGET": "256M"}

    def command(self, *arguments):
        return self.groups.enter_first(self.name, super().command(*arguments))


def say(text):
    print(text, file=sys.stderr, flush=True)


def name_of(directory):
    """The name of the cgroup, and of namespaces up to their last part: known from the directory alone."""
    return f"atoll-hosts-{hashlib.sha256(str(directory).encode()).hexdigest()[:6]}"


def up(arguments):
    directory = arguments.dir
    reason = caps.check_fit(arguments.hosts, arguments.cpu_percent)
    if reason and not arguments.uncapped:
        sys.exit(reason)
    missing = sorted({package for tool, package in TOOLS.items() if not shutil.which(tool)})
    if missing:
        sys.exit(f"install the packages {' '.join(missing)}")
    if not os.access(arguments.atoll, os.X_OK):
        sys.exit(f"{arguments.atoll} is not there; build it first or name it with --atoll")
    try:
        directory.mkdir(parents=True)
    except FileExistsError:
        sys.exit(f"{directory} is there already; end the cluster in it with 'down --dir {directory}', or name another directory")
    except OSError as error:
        sys.exit(f"cannot make {directory}: {error.strerror}")
    try:
        record = start(directory, arguments)
    except BaseException as error:
        say(f"{type(error).__name__}: {error}")
        down(directory)
        sys.exit(1)
    print(json.dumps(record), flush=True)


def start(directory, arguments):
    test = Scenario("hosts", arguments.atoll, directory=directory)
    groups = caps.CpuGroups(name_of(directory))
    groups.make(["etcd", *(f"h{number}" for number in range(1, arguments.hosts + 1))])
    namespaces = Namespaces(test, name_of(directory) + "-")
    etcd = Etcd(test, namespaces.add_host("etcd", ETCD_IP), hosts=("h1",))
    client = namespaces.add_host("client", CLIENT_IP)
    etcd.start(start_new_session=True)
    groups.add("etcd", etcd.process.pid)
    hosts = [CappedHost(test, namespaces, groups, number) for number in range(1, arguments.hosts + 1)]
    start_hosts(hosts, etcd, arguments)
    spread(hosts[0], len(hosts))
    # Only now: a start would take long with so little.
    for host in [] if arguments.uncapped else hosts:
        groups.limit(host.name, arguments.cpu_percent)
        caps.limit_bandwidth(host.namespace, "eth0", arguments.bandwidth_mbit)
        caps.limit_bandwidth(namespaces.switch, host.name, arguments.bandwidth_mbit)
    return describe(hosts, etcd, client, arguments)


def start_hosts(hosts, etcd, arguments):
    first, *others = hosts
    data_pool = ["--ec", arguments.pool_ec] if arguments.pool_ec else []
    size = ["--osds", "1", "--osd-size", arguments.osd_size]
    first.start_up("--etcd", etcd.url, "--etcd-ca", etcd.directory / "ca.pem", *etcd.client("h1"), "--failure-domain", "host", *size, *data_pool)

    def join(host):
        token = json.loads(first.cli("cluster", "token", "create", "--json").stdout)["token"]
        host.start_up("--join", host.token_file(token), *etcd.client("h1"), *size, "--key-service", first.data / "keys" / "kms.json")
        say(f"{host.name} has joined")

    with concurrent.futures.ThreadPoolExecutor(STARTS_AT_ONCE) as starts:
        for _ in starts.map(join, others):
            pass
    for host in hosts:
        wait_for(f"{host.name} is healthy", host.healthy, 120)


def spread(first, host_count):
    """Enough PGs, each where it is to be."""
    pg_num = 1 << (GROUPS_PER_HOST * host_count - 1).bit_length()
    for pool in first.json("pool", "ls"):
        if pool["pg_num"] < pg_num:
            first.cli("pool", "set", pool["name"], "pg_num", pg_num)
    say("waiting until all PGs are where they are to be")
    wait_for("all PGs are clean", lambda: is_settled(first, pg_num), 240, pause=2)


def is_settled(first, pg_num):
    pgs = first.json("pg", "ls")
    made = {pool["name"]: sum(pg["pg"].startswith(f"{pool['id']}.") for pg in pgs) for pool in first.json("pool", "ls")}
    return min(made.values()) >= pg_num and not first.json("pg", "ls", "--not-clean")


def describe(hosts, etcd, client, arguments):
    """The driver's answer."""
    servers = {"osd": [], "gateway": [], "other": [etcd.process.pid]}
    for host in hosts:
        for name, pid in host.process_ids().items():
            kind = "osd" if name.startswith("osd.") else "gateway" if name == "gateway" else "other"
            servers[kind].append(pid)
    first, credentials = hosts[0], hosts[0].credentials()
    objects = f"EC {arguments.pool_ec}" if arguments.pool_ec else "3 copies"
    record = {
        "title": f"Atoll, {len(hosts)} hosts" + ("" if arguments.uncapped else f" with {arguments.cpu_percent:g} % of a core and {arguments.bandwidth_mbit:g} Mbit/s"),
        "version": first.scenario.run(first.scenario.atoll, "--version").stdout.split()[-1],
        "protections": f"images 3 copies, objects {objects}, on different hosts, every ack durable (RWF_DSYNC) on all, CRC-32C per 4 KiB, "
                       "secure frames, images and objects sealed, plain HTTP to the gateways",
        "servers": servers,
        "s3": {"endpoint": credentials["endpoint"], "access_key": credentials["access_key"], "secret_key": credentials["secret_key"], "ca_file": None},
        "s3_endpoints": [f"http://{host.address}:9000" for host in hosts],
        "atoll": {"data": str(first.data)},
        "clients": {"wrap": ["ip", "netns", "exec", client]},
    }
    if not arguments.uncapped:
        period_us, quota_us = caps.period_and_quota_us(arguments.cpu_percent)
        record["caps"] = {"cpu_percent": arguments.cpu_percent, "cpu_period_us": period_us, "cpu_quota_us": quota_us, "bandwidth_mbit": arguments.bandwidth_mbit}
    return record


def down(directory):
    """Ends everything; what is not there (any more) is left out."""
    name = name_of(directory)
    caps.CpuGroups(name).remove_all()
    for line in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.splitlines():
        namespace = line.split()[0]
        if namespace.startswith(name + "-"):
            subprocess.run(["ip", "netns", "del", namespace], check=True)
    shutil.rmtree(directory, ignore_errors=True)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    starting = commands.add_parser("up", help="start a cluster and leave it running")
    starting.add_argument("--atoll", default=str(REPOSITORY / "target" / "release" / "atoll"), help="the binary")
    starting.set_defaults(scale=1)
    starting.add_argument("--hosts", type=int, default=4, help=f"{HOSTS_MIN} to {HOSTS_MAX} (4)")
    starting.add_argument("--cpu-percent", type=float, default=10, help="of one core, for all processes of a host together (10)")
    starting.add_argument("--bandwidth-mbit", type=float, default=200, help="of a host, in each direction (200)")
    starting.add_argument("--uncapped", action="store_true", help="no limits: for CPU time and bytes per operation, not for throughput")
    starting.add_argument("--osd-size", default="2G", help="of each host's OSD, a sparse file (2G)")
    starting.add_argument("--pool-ec", metavar="K+M", help="objects in K data and M parity shards instead of three copies")
    ending = commands.add_parser("down", help="end it and remove its directory")
    for command in (starting, ending):
        command.add_argument("--dir", type=lambda text: pathlib.Path(text).resolve(), required=True, help="the cluster's directory")
    arguments = parser.parse_args()
    if arguments.command == "up":
        if not HOSTS_MIN <= arguments.hosts <= HOSTS_MAX:
            parser.error(f"--hosts {arguments.hosts}: from {HOSTS_MIN} to {HOSTS_MAX}")
        if arguments.cpu_percent < 1 or arguments.bandwidth_mbit < 1:
            parser.error("--cpu-percent and --bandwidth-mbit are 1 at least")
    return arguments


def main():
    arguments = parse()
    if os.geteuid() != 0:
        sys.exit("network namespaces and cgroups need root: run this with sudo")
    if arguments.command == "up":
        up(arguments)
    else:
        down(arguments.dir)


if __name__ == "__main__":
    main()
