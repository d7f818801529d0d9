"""OSDs whose devices are on another host: a cluster in a guest under QEMU, with the NVMe/TCP initiator of Debian's
kernel, on images of a cluster of this machine. A path is lost under load: the cluster in the guest goes on, and no
acked write is lost.
"""

import json
import re
import signal
import time

import pytest
from lib.guest import HOST_ADDRESS, Guest
from lib.load import BlockLoad
from lib.nbd import Nbd, connect_patiently
from lib.nvme import subsystems
from lib.nvme_guest import connect_command, device_of, host_name, identity_files
from lib.ports import free_port
from lib.waiting import CommandFailed, not_yet, under_load, wait_for

pytestmark = [
    pytest.mark.nightly,
    # All PGs peer anew in two emulated processors, which takes a minute and a half when the machine has more to do.
    # Each wait has its own limit.
    pytest.mark.limit(600),
    pytest.mark.needs("qemu-system-x86_64", "busybox", "nvme", "fio"),
]

HOST_ID = "7c2d7e0e-2a6c-4b55-9b7d-3a8f5f0c1a12"
HOST = host_name(HOST_ID)
DISKS = ("disk0", "disk1", "disk2")
LOST = 2
SILENCE_SECONDS, STALL_SECONDS_MAX = 6, 60
WRITES = 50


@pytest.fixture(scope="module")
def remote(scenario):
    """The cluster whose images are the devices."""
    cluster = scenario.cluster(osds=1, osd_size="8G")
    cluster.up()
    for name in DISKS:
        cluster.create_image(name, "1G")
        cluster.cli("image", "access", name, "--allow", HOST)
    return cluster


class Targets:
    """A target for each device, so that the path to one can be lost."""

    def __init__(self, scenario, cluster):
        self.scenario, self.cluster = scenario, cluster
        self.ports = [free_port() for _ in DISKS]
        self.processes = [self._start(port) for port in self.ports]

    def _start(self, port):
        log = self.scenario.directory / f"nvme-{port}.log"
        command = ("nvme", "run", "--data", self.cluster.data, "--listen", f"127.0.0.1:{port}")
        return self.scenario.start_logged(log, self.scenario.atoll, *command, env=self.cluster.environment())

    def lose(self, index):
        self.processes[index].send_signal(signal.SIGKILL)
        self.processes[index].wait()

    def give_back(self, index):
        self.processes[index] = self._start(self.ports[index])


@pytest.fixture(scope="module")
def targets(scenario, remote):
    return Targets(scenario, remote)


@pytest.fixture(scope="module")
def nbd_port():
    return free_port()


@pytest.fixture(scope="module")
def guest(scenario, nbd_port):
    files = identity_files(HOST_ID)
    modules, programs = ("nvme-core", "nvme-tcp"), {"nvme": "nvme", "atoll": scenario.atoll}
    forwarded = f",hostfwd=tcp:127.0.0.1:{nbd_port}-:{nbd_port}"
    with Guest(scenario.directory, modules, programs, files, memory_mib=3072, network=forwarded) as guest:
        yield guest


class InGuest:
    """The cluster in the guest."""

    def __init__(self, guest):
        self.guest = guest

    def cli(self, command, seconds=120, check=True):
        return self.guest.run(f"atoll {command} --data /atoll", seconds, check)

    def json(self, command):
        text = self.cli(f"{command} --json")
        return json.loads(text[re.search(r"^[\[{]", text, re.M).start() :])

    def log_lines(self, osd):
        return int(self.guest.run(f"wc -l < /atoll/log/osd.{osd}.log"))

    def says(self, osd, words, since):
        """Whether words are in its log, beyond so many lines. The guest looks: its console is slow."""
        command = f"tail -n +{since + 1} /atoll/log/osd.{osd}.log | grep -q '{words}'"
        return self.guest.finish(self.guest.start(command))[1] == 0

    def pid(self, osd):
        children = json.loads(self.guest.run("cat /atoll/processes.json"))["children"]
        return next((child["pid"] for child in children if child["name"] == f"osd.{osd}"), None)

    def is_whole(self):
        with not_yet(CommandFailed):
            return all(pg["members"] == pg["target"] for pg in self.json("pg ls"))


@pytest.fixture(scope="module")
def devices(guest, remote, targets):
    """The devices in the guest, in the order of the disks."""
    subsystem = subsystems(remote)
    found = []
    for name, port in zip(DISKS, targets.ports):
        connect = connect_command(subsystem(name), port, keep_alive_seconds=3, lost_seconds=-1)
        wait_for("the target answers", lambda connect=connect: guest.finish(guest.start(connect))[1] == 0, 60, 1)
        found.append(device_of(guest, subsystem(name)).removeprefix("/dev/"))
    return found


@pytest.fixture(scope="module")
def cluster(guest, devices, nbd_port):
    """The cluster in the guest, on these devices."""
    guest.run("export ATOLL_OSD_MEMORY_TARGET=256M ATOLL_LOG=info")
    cluster = InGuest(guest)
    for device in devices:
        cluster.cli(f"osd create --device /dev/{device}")
    options = f"--nbd-listen 0.0.0.0:{nbd_port} --s3-listen 127.0.0.1:8000 --admin-listen off"
    # OSDs of a slow guest may start after it has said that not all is well.
    cluster.cli(f"up --detach {options}", 240, False)
    wait_for("all PGs are whole", cluster.is_whole, 240, 2)
    cluster.cli("image create load --size 64M")
    cluster.cli(f"image access load --allow {HOST_ADDRESS}")
    cluster.cli(f"settings set device_silence_seconds {SILENCE_SECONDS}")
    yield cluster
    # For a look at the guest's log, if something failed.
    guest.run("cat /atoll/log/*.log", 120, False)


@pytest.fixture(scope="module")
def connect(nbd_port):
    return lambda: Nbd(("127.0.0.1", nbd_port), "load", timeout=180)


@pytest.fixture(scope="module")
def load(cluster, connect):
    load = BlockLoad(connect, threads=2, blocks_per_thread=200, seed=78).start()
    goes_on(load)
    yield load
    load.stop()


def goes_on(load):
    acked = load.acked
    wait_for("writes go on", lambda: load.acked >= acked + WRITES, STALL_SECONDS_MAX, 0.2)


def no_error(load):
    assert not load.wrong, load.wrong[:5]
    assert not load.error_texts, load.error_texts[:5]


def test_preflight_knows_remote_drives(guest, cluster, devices):
    """What the kernel does when the path is lost is told: as connected, it waits for ever."""
    report = json.loads(re.search(r"^\{.*", guest.run("atoll preflight --json", 120, False), re.S | re.M)[0])
    found = [finding for finding in report["findings"] if finding["check"] == "drive.remote"]
    assert sorted(finding["subject"] for finding in found) == sorted(devices)
    assert {finding["verdict"] for finding in found} == {"warning"}
    assert "NVMe over tcp, 1 path; without a path I/O fails never" in found[0]["found"]


@pytest.mark.parametrize("fails", [False, True])
def test_the_path_to_a_device_is_lost_under_load(guest, cluster, devices, targets, load, note, fails):
    """The OSD ends, because its device does not answer or because its I/O fails; the others go on; it comes back."""
    controller = re.match(r"(nvme\d+)n", devices[LOST])[1]
    guest.run(f"echo {4 if fails else -1} > /sys/class/nvme/{controller}/fast_io_fail_tmo")
    pid, lines, began = cluster.pid(LOST), cluster.log_lines(LOST), time.monotonic()
    targets.lose(LOST)
    words = "the device failed and is not trusted" if fails else "has not answered for .*; this OSD ends"
    wait_for("the OSD says why it ends", lambda: cluster.says(LOST, words, lines), STALL_SECONDS_MAX, 1)
    note(f"said after {time.monotonic() - began:.1f} s")
    goes_on(load)
    note(f"writes stalled {load.first_silence(began):.1f} s")
    assert load.first_silence(began) < STALL_SECONDS_MAX
    under_load(3)
    targets.give_back(LOST)
    began = time.monotonic()
    wait_for("the OSD is started again", lambda: cluster.pid(LOST) not in (None, pid), 120, 1)
    note(f"started again after {time.monotonic() - began:.1f} s")
    wait_for("all PGs are whole", cluster.is_whole, 180, 2)
    note(f"whole after {time.monotonic() - began:.1f} s")
    goes_on(load)
    no_error(load)


def test_every_acked_write_is_there(cluster, connect, load, note):
    """Every acked write is there, no byte is wrong."""
    assert load.stop(180), "a thread hangs"
    with connect_patiently(connect, 120) as connection:
        note(f"{load.verify(connection)} blocks")
    no_error(load)
