"""Every command that README.md and the guide show works as it is written.

A page is read from its beginning to its end, in one bash for each machine that it has, and each command must succeed.
Most pages go on with the cluster of the first page, as they say. What they want besides (devices, files, servers of
others) the tests give them. Commands that are not run, or not as they are written, are in the lists below with the
reason, and an entry that fits no command is an error.
"""

import os
import re
import shutil
import sys
import time

import pytest
from lib.authority import Authority
from lib.cluster import GIB, MIB
from lib.devices import Loops
from lib.documented import ACTIONS, Machine, Shell, blocks, commands
from lib.net import ETCD_IP, NAMESPACE_PREFIX, NETWORK, Etcd, Namespaces
from lib.scenario import REPOSITORY
from lib.waiting import Failed, wait_for

pytestmark = [
    pytest.mark.root,
    pytest.mark.needs(
        "aws",
        "cryptsetup",
        "curl",
        "etcd",
        "fio",
        "haproxy",
        "ip",
        "jq",
        "losetup",
        "nbdcopy",
        "nbdinfo",
        "openssl",
        "promtool",
        "qemu-img",
        "socat",
        "zstd",
    ),
]

README, GUIDE = "README.md", "docs/guide"
# In the order of the book.
PAGES = [README, *re.findall(r"(?<=\(guide/)[\w-]+\.md", (REPOSITORY / "docs/SUMMARY.md").read_text())]
PAGES = [page if page == README else f"{GUIDE}/{page}" for page in PAGES]


def of_guide(entries):
    return {f"{GUIDE}/{name}.md": of_page for name, of_page in entries.items()}


# By page and command, the latter without its comment and on one line; a '*' at the end stands for any rest.
NOT_RUN = {README: {"make build && *": "it compiles for minutes; the program to test is on the PATH"}} | of_guide(
    {
        "install": {
            "make packages": "it changes the machine",
            "cargo build *": "it compiles for minutes; the program to test is on the PATH",
            "export PATH=*": "of what that has built",
        },
        "keys": {
            "atoll key destroy --bucket records *": "test_retained_keys.py does that",
            "atoll approval *": "test_retained_keys.py does that",
        },
        "benchmarks": {
            "atoll bench run encryption-*": "a quarter of an hour, or hours; test_bench.py runs a small matrix",
            "atoll bench run redundancy *": "hours",
            "sudo *": "hours, in the repository, with Ceph and an earlier release",
            "tools/ceph/*": "it installs Ceph from Debian's mirrors",
        },
    }
)
# What is run instead, and why.
NO_SYSTEMD = ("haproxy -c -f /etc/haproxy/haproxy.cfg && haproxy -D -f /etc/haproxy/haproxy.cfg", "there is no systemd")
LITTLE = "--size 1G --working-set 64M --workloads 4k-randwrite-qd32 --rounds 1 --runtime 1 --fio"
INSTEAD = of_guide(
    {
        "ingress": {"haproxy -c -f /etc/haproxy/haproxy.cfg && systemctl reload haproxy": NO_SYSTEMD},
        "several-hosts": {
            f"scp /srv/atoll/keys/kms.json token-of-{host} {host}:/run/": (
                f"cp /srv/atoll/keys/kms.json token-of-{host} $MACHINES/{host}/run/",
                "there is no sshd",
            )
            for host in ("h2", "h3")
        },
        "running": {
            f"atoll bench recovery --osd 3 --size 10G{more}": (
                f"atoll bench recovery --osd 3 --size 64M --seconds 1{more}",
                "it takes minutes and 40 GB",
            )
            for more in ("", " --idle")
        },
        "benchmarks": {
            "atoll bench store --device /mnt/nvme/bench.store --fio": (
                f"atoll bench store --device /mnt/nvme/bench.store {LITTLE}",
                "it takes seven minutes",
            ),
            "atoll bench store --device /dev/nvme0n1 --wipe *": (
                f"atoll bench store --device /dev/nvme0n1 --wipe --json {LITTLE}",
                "the device of the tests has 4 GiB",
            ),
        },
    }
)
# What only the slow tier runs (in the quick one other scenarios do the like), and what the quick one replaces.
SLOW_PAGES = [
    f"{GUIDE}/{name}.md"
    for name in (
        "benchmarks",
        "devices",
        "images",
        "ingress",
        "keys",
        "pools",
        "preflight",
        "running",
        "several-hosts",
        "troubleshooting",
    )
]
SLOW = of_guide({"keys": {"atoll up --kms-address *"}, "running": {"atoll bench recovery *"}})
QUICKLY = of_guide(
    {
        "images": {"fio --name=try *": ("--size=256m", "--size=8m")},
        "preflight": {
            "atoll preflight --device *": ("preflight", "preflight --seconds 1"),
            "atoll preflight --peer *": ("preflight", "preflight --seconds 1"),
        },
    }
)
# Commands that run until Ctrl-C: what their output says when they are ready, and when they are ended.
AT_ONCE, AT_THE_END = "at once", "at the end of the page"
UNTIL_CTRL_C = of_guide(
    {
        "first-cluster": {"atoll up": ("Ctrl-C here", AT_ONCE)},
        "preflight": {"atoll preflight --listen 10.0.0.2": ("10.0.0.2", AT_THE_END)},
        "running": {"atoll health --watch": (".", AT_ONCE)},
        "several-hosts": {"etcd *": ("ready to serve client requests|serving client traffic", AT_THE_END)},
    }
)
# Exit codes that say something else than failure.
EXIT_CODES = of_guide(
    {
        "running": {"atoll health": (0, 1, 2), "atoll health --json": (0, 1, 2)},
        "preflight": {"atoll preflight*": (0, 1)},
    }
)
LISTS = (NOT_RUN, INSTEAD, SLOW, QUICKLY, UNTIL_CTRL_C, EXIT_CODES)


def fits(name, command):
    words = command.words
    return words.startswith(name[:-1]) if name.endswith("*") else words == name


def entry(entries, command):
    """What a list says of a command, or nothing."""
    of_page = entries.get(command.page, {})
    name = next((name for name in of_page if fits(name, command)), None)
    return name and (of_page[name] if isinstance(of_page, dict) else name)


# --- what readers have


def give_images(readers, machine):
    readers.scenario.run("qemu-img", "create", "-q", "-f", "qcow2", machine.directory / "debian.qcow2", "64M")


def give_s3(_readers, machine):
    (machine.directory / "photo.jpg").write_bytes(b"a photo" * 1000)


def give_keys(readers, machine):
    """A key service at https://vault:8200, with a token of an agent and an AppRole."""
    if machine.name == "first":
        return
    directory, authority = machine.directory, Authority(readers.scenario, machine.name)
    authority.sign(directory / "vault.pem", directory / "vault.key", "serverAuth", "DNS:vault")
    shutil.copy(authority.certificate, directory / "ca.pem")
    with open(machine.root / "etc" / "hosts", "a") as hosts:
        hosts.write("127.0.0.1 vault\n")
    for path in ("run/vault-agent/token", "etc/atoll/secret-id"):
        (machine.root / path).parent.mkdir()
        (machine.root / path).write_text(f"{TOKEN}\n")
    options = ["--listen", "127.0.0.1:8200", "--tls-cert", "vault.pem", "--tls-key", "vault.key", "--token", TOKEN]
    if machine.name == "approle":
        options += ["--namespace", "storage", "--approle", f"ID:{TOKEN}"]
    server = readers.scenario.start_logged(
        directory / "vault.log",
        *("ip", "netns", "exec", machine.namespace, sys.executable, REPOSITORY / "tests/transit/transit_server.py"),
        *options,
        cwd=directory,
    )
    wait_for("the key service listens", lambda: "8200" in (directory / "vault.log").read_text(), 20)
    assert server.poll() is None


def give_devices(readers, machine):
    for name in ("nvme-A", "ata-B", "nvme-C-part1"):
        readers.add_device(machine, f"disk/by-id/{name}", 2 * GIB)
    (machine.root / "mnt" / "disk3").mkdir()
    (machine.root / "media" / "stick").mkdir()
    (machine.root / "media" / "stick" / "osd.key").write_bytes(bytes(range(64)))
    (machine.root / "media" / "stick" / "osd.txt").write_text("a long passphrase\n")


def give_several_hosts(readers, machine):
    """Certificates of the etcd and the hosts, and a device."""
    authority = readers.authority()
    own = "server" if machine.name == "etcd" else machine.name
    for name in ("ca.pem", f"{own}.pem", f"{own}.key"):
        shutil.copy(authority / name, machine.directory)
    machine.environment["MACHINES"] = str(machine.root.parent)
    if machine.name == "h3":
        readers.add_device(machine, "disk/by-id/nvme-A", 2 * GIB)


def give_ingress(_readers, machine):
    """As the package of HAProxy does."""
    (machine.root / "run" / "haproxy").mkdir()
    (machine.root / "etc" / "haproxy").mkdir(exist_ok=True)


def give_monitoring(_readers, machine):
    """The repository's files, and what the package of Prometheus has made."""
    shutil.copytree(REPOSITORY / "monitoring", machine.directory / "monitoring")
    (machine.root / "etc" / "prometheus").mkdir(exist_ok=True)


def give_preflight(readers, machine):
    for name in ("nvme0n1", "sda"):
        readers.add_device(machine, name, 64 * MIB)


def give_benchmarks(readers, machine):
    readers.add_device(machine, "nvme0n1", 4 * GIB)
    (machine.root / "mnt" / "nvme").mkdir()
    for name in ("encryption-block", "before", "after"):
        shutil.copy(REPOSITORY / "records/encryption-block-short.jsonl", machine.directory / f"{name}.jsonl")


GIVEN = of_guide(
    {
        "images": give_images,
        "s3": give_s3,
        "keys": give_keys,
        "devices": give_devices,
        "several-hosts": give_several_hosts,
        "ingress": give_ingress,
        "monitoring": give_monitoring,
        "preflight": give_preflight,
        "benchmarks": give_benchmarks,
    }
)
TOKEN = "token-of-the-test"
HOSTS = {"etcd": ETCD_IP} | {f"h{number}": f"{NETWORK}.{number}" for number in (1, 2, 3)}


# --- reading


class Readers:
    """Those who read all pages, and their machines."""

    def __init__(self, scenario, name, as_written):
        self.scenario, self.directory, self.as_written = scenario, scenario.directory / name, as_written
        self.namespaces = Namespaces(scenario, f"{NAMESPACE_PREFIX}{os.getpid()}-{name}-")
        self.machines, self.loops, self.etcd = {}, Loops(scenario), None
        scenario.at_end.callback(self.loops.detach_all)

    def machine(self, name, page):
        """The machine of this name, with what the reader of the page has on it."""
        if name not in self.machines:
            host = HOSTS.get(name)
            namespace = self.namespaces.add_host(name, host) if host else self.namespaces.add(name)
            self.machines[name] = Machine(self.scenario, name, namespace, self.directory / name)
        machine = self.machines[name]
        if page in GIVEN and page not in machine.given:
            GIVEN[page](self, machine)
            machine.given.add(page)
        return machine

    def authority(self):
        """Where the certificates of an etcd and its clients are."""
        if not self.etcd:
            self.etcd = Etcd(self.scenario, None)
        return self.etcd.directory

    def add_device(self, machine, name, size_bytes):
        if reason := self.loops.why_not():
            pytest.skip(reason)
        file = f"{self.directory.name}/device-{len(self.loops.attached)}"
        machine.add_device(name, self.loops.attach(file, size_bytes))

    def read(self, page, usual):
        """Runs all commands of a page; those that name no machine are for the usual one."""
        shells = {}
        for name in {command.machine or usual for command in commands(page)}:
            self.machine(name, page)
        try:
            for command in commands(page):
                name = command.machine or usual
                if name not in shells:
                    shells[name] = Shell(self.machine(name, page))
                self.perform(shells[name], command)
        finally:
            for shell in reversed(shells.values()):
                shell.end()
            for name in set(shells) - {usual}:
                self.machines[name].end()

    def perform(self, shell, command):
        """Runs a command as the lists have it."""
        if entry(NOT_RUN, command) or (not self.as_written and entry(SLOW, command)):
            return
        text, place = command.text, command.place
        if instead := entry(INSTEAD, command):
            text = instead[0]
        if (quickly := entry(QUICKLY, command)) and not self.as_written:
            text = text.replace(*quickly)
        if ctrl_c := entry(UNTIL_CTRL_C, command):
            ready, when = ctrl_c
            shell.begin(command.words, ready, place)
            if when == AT_ONCE:
                shell.press_ctrl_c(command.words)
            return
        if action := ACTIONS[command.language]:
            path = shell.machine.root / "text-of-the-page"
            path.write_text(text)
            text = action.replace("TEXT", str(path))
        shell.run(text, place, entry(EXIT_CODES, command) or (0,))

    def end(self):
        for machine in self.machines.values():
            machine.end()


@pytest.fixture(scope="module")
def readers(scenario, request):
    found = Readers(scenario, request.param, as_written=request.param == "slow")
    yield found
    found.end()


@pytest.fixture(scope="module")
def first(readers):
    """The cluster of the first page."""
    readers.read(FIRST, "first")
    return "first"


@pytest.fixture(scope="module")
def wide(readers):
    """A cluster as on seven hosts in three racks, with hard disks."""
    shell = Shell(readers.machine("wide", ""))
    shell.run("atoll up --osds 7 --osd-size 4G --detach")
    for number in range(7):
        shell.run(f"atoll osd set-location {number} --host h{number} --rack r{number % 3}")
        shell.run(f"atoll osd add {number} --device-class hdd")
    shell.end()
    return "wide"


@pytest.fixture(scope="module")
def usual(page, request):
    """The machine on which the commands of a page run that name no other."""
    name = page.rsplit("/", 1)[-1].removesuffix(".md").lower()
    return request.getfixturevalue(CLUSTERS[name]) if name in CLUSTERS else name


# The pages that go on with a cluster that is there.
CLUSTERS = dict.fromkeys(
    (
        "first-cluster",
        "images",
        "s3",
        "keys",
        "rotation",
        "running",
        "console",
        "monitoring",
        "benchmarks",
        "troubleshooting",
    ),
    "first",
)
CLUSTERS["pools"] = "wide"
FIRST = f"{GUIDE}/first-cluster.md"


# --- the tests


@pytest.mark.parametrize("page", PAGES)
def test_blocks_say_what_they_hold(page):
    """Blocks say what they hold, so that none is left out unseen."""
    wrong = [f"{page}:{block.line}: '{block.language}'" for block in blocks(page) if block.language not in ACTIONS]
    lines, is_inside = (REPOSITORY / page).read_text().splitlines(), False
    for number, line in enumerate(lines, 1):
        is_inside ^= line.startswith("```")
        if not is_inside and line.startswith("    ") and not lines[number - 2].strip():
            wrong.append(f"{page}:{number}: a block without a fence")
    assert not wrong, wrong


def test_all_pages_are_read():
    """All pages of the guide are in the book, and read."""
    assert sorted(PAGES[1:]) == sorted(f"{GUIDE}/{path.name}" for path in (REPOSITORY / GUIDE).glob("*.md"))


def test_entries_of_the_lists_fit_commands():
    """Each entry of the lists above fits a command."""
    unused = [
        f"{page}: {name}"
        for entries in LISTS
        for page, of_page in entries.items()
        for name in of_page
        if not any(fits(name, command) for command in commands(page))
    ]
    assert not unused, unused


@pytest.mark.parametrize("readers", ["quick"], indirect=True, scope="module")
@pytest.mark.parametrize("text", ["false", "false && true", "false; true", "false | true", "echo $unknown", "(exit 3)"])
def test_a_command_that_fails_is_noticed(readers, text):
    """A command that fails ends the reading of a page, wherever in its line that is."""
    shell = Shell(readers.machine("failing", ""))
    with pytest.raises(Failed, match="exit code [1-9]"):
        shell.run(text)
    shell.end()


CASES = [pytest.param("quick", page, id=page) for page in PAGES if page not in SLOW_PAGES]
CASES += [pytest.param("slow", page, id=f"all of {page}", marks=pytest.mark.nightly) for page in PAGES]


@pytest.mark.parametrize(("readers", "page"), CASES, indirect=["readers"], scope="module")
@pytest.mark.limit(900)
def test_commands_work(readers, page, usual, note):
    """The commands of a page work, one after the other."""
    if page != FIRST:
        started = time.monotonic()
        readers.read(page, usual)
        note(f"{time.monotonic() - started:.1f} s")


WAYS = [
    pytest.param("quick", "terminal", id="terminal", marks=pytest.mark.nightly),
    pytest.param("quick", "detach", id="detach"),
    pytest.param("slow", "log", id="log", marks=pytest.mark.nightly),
]
PRINTED = re.compile(r"^    (\S(?:.*\\\n)*.*)$", re.MULTILINE)


@pytest.mark.parametrize(("readers", "way"), WAYS, indirect=["readers"], scope="module")
def test_what_up_prints_can_be_pasted(readers, way):
    """Each command that 'atoll up' prints, on lines that are indented by four spaces, works when it is pasted."""
    machine = readers.machine(way, "")
    # The reader has this one.
    with open(machine.directory / "disk.raw", "wb") as file:
        file.truncate(MIB)
    started, other = Shell(machine), Shell(machine)
    try:
        if way == "detach":
            said = started.run("atoll up --detach")
        else:
            command = "script -qefc 'atoll up' /dev/null" if way == "terminal" else "atoll up"
            said = started.begin(command, "Ctrl-C here").read_text()
        pasted = [other.run(text.replace("--size=256m", "--size=8m"), "pasted") for text in PRINTED.findall(said)]
        assert pasted, f"it prints no commands:\n{said}"
    finally:
        machine.end()
