"""Raw block devices: what `atoll osd create` refuses and names, and a cluster on what it made."""

import hashlib
import json
import os
import pathlib
import struct

import pytest
from lib.cluster import GIB, MIB
from lib.devices import Loops
from lib.logs import said
from lib.verdicts import DataFailure, intact
from lib.waiting import wait_for

pytestmark = pytest.mark.needs("mkfs.ext4", "mkswap", "losetup", "mount", "cryptsetup")


OSD_BYTES = GIB
PARTITION_START, PARTITION_SECTORS = 2048, 65536


def ends(path):
    """A hash of the first and last MiB, read past the page cache of the device."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        first = file.read(MIB)
        file.seek(-MIB, os.SEEK_END)
        return hashlib.sha256(first + file.read(MIB)).hexdigest()


class Creator:
    """`atoll osd create` in one data directory."""

    def __init__(self, cluster):
        self.scenario, self.cluster = cluster.scenario, cluster

    def create(self, device, *more):
        return json.loads(self.cluster.cli("osd", "create", "--device", device, *more, "--json").stdout)

    def refused(self, device, *more, words):
        done = self.cluster.cli("osd", "create", "--device", device, *more, ok=None)
        assert done.returncode == 1, f"{device} {more}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        for word in words:
            assert word in done.stderr, f"{device} {more}: '{word}' is not in: {done.stderr}"
        assert "panicked" not in done.stderr, done.stderr
        return done.stderr.strip().replace(str(self.scenario.directory), "...")[:160]


FORMATS = [
    ("mkfs.ext4 -q -F {}", "an ext4 file system"),
    ("mkswap {}", "a swap area"),
    (
        "echo -n x | cryptsetup luksFormat -q --pbkdf pbkdf2 --pbkdf-force-iterations 1000 --key-file - {}",
        "a LUKS2 volume",
    ),
    ("printf 'precious' | dd of={} conv=notrunc status=none", "data of an unknown kind (from byte 0)"),
]


@pytest.fixture(scope="module")
def loops(scenario):
    """Loop devices, where the machine has them."""
    loops = Loops(scenario)
    scenario.at_end.callback(loops.detach_all)
    if reason := loops.why_not():
        pytest.skip(reason)
    return loops


@pytest.fixture(scope="module")
def files(scenario):
    """Makes OSDs of files, with two made already."""
    creator = Creator(scenario.cluster("files"))
    for number in range(2):
        creator.create(scenario.directory / f"osd-file-{number}", "--size", "1G")
    return creator


@pytest.fixture(scope="module")
def creator(scenario):
    """Makes OSDs of devices, none of which starts."""
    return Creator(scenario.cluster("refusals"))


class Raw:
    """A cluster on two devices of different sectors, one with a WAL device, and on a file; with an image."""

    def __init__(self, scenario, loops):
        self.cluster = scenario.cluster("raw")
        self.creator = Creator(self.cluster)
        self.small_sectors = loops.attach("raw-0", OSD_BYTES)
        self.large_sectors = loops.attach("raw-1", OSD_BYTES, "--sector-size", "4096")
        self.wal = loops.attach("raw-wal", 256 * MIB)
        self.creator.create(self.small_sectors)
        self.second = self.creator.create(self.large_sectors, "--wal-device", self.wal)
        self.third = self.creator.create(scenario.directory / "raw-2", "--size", "1G")
        self.cluster.up()
        self.data = os.urandom(3 * MIB)
        self.cluster.create_image("disk", "64M")
        with self.cluster.nbd("disk") as connection:
            connection.write(5 * MIB, self.data)

    def check_image(self):
        intact(self.cluster.read_image("disk", 5 * MIB, len(self.data)) == self.data, "the image has changed")


@pytest.fixture(scope="module")
def raw(scenario, loops):
    return Raw(scenario, loops)


def test_a_file_is_made(scenario, files, note):
    """A file is made, and is refused from then on, naming the store."""
    path = scenario.directory / "osd-file"
    made = files.create(path, "--size", "1G")
    assert made["device_bytes"] == GIB and path.stat().st_size == GIB, f"{made}"
    note(files.refused(path, words=["the Atoll store " + made["store_id"], "--wipe"]))
    again = files.create(path, "--wipe")
    assert again["id"] > made["id"] and again["store_id"] != made["store_id"], f"{again}"


def test_files_that_are_too_small(scenario, files, note):
    """Files that are too small, not there or no files at all are refused, and none is left."""
    path = scenario.directory / "too-small"
    files.create(path, "--size", "1G")
    small = scenario.directory / "small"
    note(files.refused(small, "--size", "1M", words=["1.0 MiB", "at least"]))
    assert not small.exists(), "the file that was made for it is left"
    files.refused(small, words=["--size"])
    files.refused("/dev/atoll-none", "--size", "1G", words=["/dev/atoll-none"])
    files.refused(path, "--size", "2G", words=["exists already"])
    files.refused("/dev/null", words=["neither a file nor a block device"])
    files.refused(scenario.directory, words=["neither a file nor a block device"])
    files.refused(path, "--wipe", "--id", "1", words=["osd.1 has a device already"])
    files.refused(path, "--wipe", "--wal-device", path, words=["same device"])


def test_atoll_up_does_not_leave_out_an_osd_that_was_made(scenario, files):
    """'atoll up' does not leave out an OSD that was made."""
    done = scenario.run(scenario.atoll, "up", "--data", files.cluster.data, "--osds", "1", "--detach", ok=None)
    assert done.returncode == 1 and "osd.1" in done.stderr, f"{done.returncode} {done.stderr}"


@pytest.mark.parametrize(("command", "name"), FORMATS)
def test_a_device_with_is_refused_and_stays_as_it_is(scenario, loops, creator, command, name, note):
    """A device with something on it is refused and stays as it is."""
    device = loops.attach("format", OSD_BYTES)
    scenario.run("sh", "-c", command.format(device))
    before = ends(device)
    note(creator.refused(device, words=[device, name, "--wipe"]))
    assert ends(device) == before, "the device was written"
    loops.detach(device)
    (scenario.directory / "format").unlink()


def test_wipe_makes_an_osd_of_it(scenario, loops, creator, note):
    """--wipe makes an OSD of it, and a second create names our store."""
    device = loops.attach("wiped", OSD_BYTES)
    scenario.run("mkfs.ext4", "-q", "-F", device)
    made = creator.create(device, "--wipe")
    note(creator.refused(device, words=["the Atoll store " + made["store_id"]]))
    found = scenario.run("wipefs", "--no-act", device).stdout.strip()
    assert not found, f"wipefs still finds {found}"
    loops.detach(device)


def test_a_mounted_device_is_refused_even_with_wipe(scenario, loops, creator, note):
    """A mounted device is refused even with --wipe, naming where, and stays as it is."""
    mounted, point = loops.attach("mounted", OSD_BYTES), scenario.directory / "mount"
    scenario.run("mkfs.ext4", "-q", "-F", mounted)
    point.mkdir()
    scenario.run("mount", mounted, point)
    try:
        (point / "file").write_text("precious")
        note(creator.refused(mounted, "--wipe", words=["mounted on", str(point)]))
        creator.refused(mounted, words=["mounted on"])
        other = scenario.directory / "beside-mounted"
        creator.refused(other, "--size", "1G", "--wal-device", mounted, words=["mounted on"])
    finally:
        scenario.run("umount", point)
    scenario.run("e2fsck", "-f", "-n", mounted, failure=DataFailure)
    loops.detach(mounted)


def test_a_device_with_partitions_is_refused_even_with_wipe(scenario, loops, creator, note):
    """A device with partitions is refused even with --wipe, naming them."""
    parted = loops.attach("parted", OSD_BYTES)
    # Not every kernel reads partition tables of loop devices; this tells it of one.
    scenario.run("addpart", parted, 1, PARTITION_START, PARTITION_SECTORS)
    try:
        note(creator.refused(parted, "--wipe", words=["has partitions", pathlib.Path(parted).name + "p1"]))
    finally:
        scenario.run("delpart", parted, 1)
    entry = struct.pack("<B3sB3sII", 0, bytes(3), 0x83, bytes(3), PARTITION_START, PARTITION_SECTORS)
    with open(parted, "r+b") as table:
        table.seek(446)
        table.write(entry + bytes(48) + b"\x55\xaa")
    creator.refused(parted, words=["an MBR partition table"])
    loops.detach(parted)


def test_a_device_that_is_too_small(loops, creator, note):
    """A device that is too small, read-only or has unusual sectors is refused."""
    for options, size_bytes, words in (
        (("--sector-size", "1024"), OSD_BYTES, ["1024 bytes"]),
        (("--read-only",), OSD_BYTES, ["read-only"]),
        ((), 100 * MIB, ["100.0 MiB", "at least"]),
    ):
        odd = loops.attach("odd" + "".join(options), size_bytes, *options)
        note(creator.refused(odd, "--wipe", words=words))
        loops.detach(odd)


def test_a_cluster_on_devices_with_sectors_of_512_and_4096_bytes(raw):
    """A cluster on devices with sectors of 512 and 4096 bytes, a WAL device and a file."""
    assert raw.second["wal_device"] == raw.wal and raw.second["wal_device_bytes"] == 256 * MIB, f"{raw.second}"
    third = raw.third
    assert [raw.second["id"], third["id"]] == [1, 2] and "osd.0, osd.1, osd.2" in third["next"], f"{third}"
    osds = [osd for host in raw.cluster.json("osd", "tree") for osd in host["osds"]]
    assert [osd["device_bytes"] for osd in osds] == 3 * [OSD_BYTES], f"{osds}"


def test_devices_in_use_are_refused(scenario, raw, note):
    """Devices in use are refused, also by another cluster, and cannot be mounted."""
    for device in (raw.small_sectors, raw.large_sectors, raw.wal):
        raw.creator.refused(device, "--wipe", "--id", "3", words=["leave --id out"])
        raw.creator.refused(device, "--wipe", words=["in use"])
        note(Creator(scenario.cluster("stranger")).refused(device, "--wipe", words=["in use"]))
    mounted = scenario.run("mount", raw.small_sectors, "/mnt", ok=None)
    assert mounted.returncode != 0, "a device of an OSD can be mounted"


def test_data_is_on_the_devices_after_a_restart(raw):
    """Data is on the devices after kill -9 of everything and a restart."""
    raw.cluster.kill_all()
    raw.cluster.up()
    raw.check_image()


def test_a_device_that_is_gone_is_not_replaced_by_a_file(raw, loops):
    """A device that is gone is not replaced by a file; a new one is filled."""
    cluster = raw.cluster
    cluster.down()
    loops.detach(raw.small_sectors)
    up = cluster.start_up()
    log = cluster.data / "log" / "osd.0.log"
    wait_for("the OSD says what is missing", lambda: "atoll: cannot use" in said(log))
    link = cluster.data / "osd-0" / "device"
    assert link.is_symlink() and not pathlib.Path(raw.small_sectors).is_file(), "a file was made in place of the device"
    link.unlink()
    made = raw.creator.create(loops.attach("raw-new", OSD_BYTES))
    assert made["id"] == 0 and "running cluster" in made["next"], f"{made}"
    wait_for("the cluster is healthy", cluster.is_serving, 90)
    assert up.poll() is None, "'atoll up' has ended"
    raw.check_image()
    cluster.down()
    up.wait(timeout=30)
