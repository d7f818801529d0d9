#!/usr/bin/env python3
"""Raw block devices: what `atoll osd create` refuses and names, and a cluster on what it made."""
import contextlib, hashlib, json, os, pathlib, struct, subprocess

from harness import GIB, MIB, expect, main, wait_for
from nbdclient import connect_patiently

OSD_BYTES = GIB
PARTITION_START, PARTITION_SECTORS = 2048, 65536


class Loops:
    """Loop devices over sparse files, all detached at the end."""

    def __init__(self, test):
        self.test, self.attached = test, {}

    def attach(self, name, size_bytes, *options):
        path = self.test.directory / name
        with open(path, "ab") as file:
            file.truncate(size_bytes)
        device = self.test.run("losetup", "--find", "--show", *options, path).stdout.strip()
        self.attached[device] = path
        return device

    def detach(self, device):
        self.test.run("losetup", "--detach", device)
        del self.attached[device]

    def detach_all(self):
        for device in list(self.attached):
            with contextlib.suppress(Exception):
                self.detach(device)

    def why_not(self):
        """Why there are no loop devices here; nothing if there are."""
        try:
            self.detach(self.attach("probe", MIB))
        except Exception as error:
            return "no loop devices: " + str(error).strip().splitlines()[-1]


def ends(path):
    """A hash of the first and last MiB, read past the page cache of the device."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        first = file.read(MIB)
        file.seek(-MIB, os.SEEK_END)
        return hashlib.sha256(first + file.read(MIB)).hexdigest()


class Creator:
    """`atoll osd create` in one data directory."""

    def __init__(self, test, cluster):
        self.test, self.cluster = test, cluster

    def create(self, device, *more):
        return json.loads(self.cluster.cli("osd", "create", "--device", device, *more, "--json").stdout)

    def refused(self, device, *more, words):
        done = self.cluster.cli("osd", "create", "--device", device, *more, ok=None)
        expect(done.returncode == 1, f"{device} {more}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        for word in words:
            expect(word in done.stderr, f"{device} {more}: '{word}' is not in: {done.stderr}")
        expect("panicked" not in done.stderr, done.stderr)
        return done.stderr.strip().replace(str(self.test.directory), "...")[:160]


def files(test):
    creator = Creator(test, test.cluster("files"))
    path = test.directory / "osd-file"
    with test.step("a file is made, and is refused from then on, naming the store") as note:
        made = creator.create(path, "--size", "1G")
        expect(made["id"] == 0 and made["device_bytes"] == GIB and path.stat().st_size == GIB, f"{made}")
        note(creator.refused(path, words=["the Atoll store " + made["store_id"], "--wipe"]))
        again = creator.create(path, "--wipe")
        expect(again["id"] == 1 and again["store_id"] != made["store_id"], f"{again}")
    with test.step("files that are too small, not there or no files at all are refused, and none is left") as note:
        small = test.directory / "small"
        note(creator.refused(small, "--size", "1M", words=["1.0 MiB", "at least"]))
        expect(not small.exists(), "the file that was made for it is left")
        creator.refused(small, words=["--size"])
        creator.refused("/dev/atoll-none", "--size", "1G", words=["/dev/atoll-none"])
        creator.refused(path, "--size", "2G", words=["exists already"])
        creator.refused("/dev/null", words=["neither a file nor a block device"])
        creator.refused(test.directory, words=["neither a file nor a block device"])
        creator.refused(path, "--wipe", "--id", "1", words=["osd.1 has a device already"])
        creator.refused(path, "--wipe", "--wal-device", path, words=["same device"])
    with test.step("'atoll up' does not leave out an OSD that was made"):
        done = test.run(test.atoll, "up", "--data", creator.cluster.data, "--osds", "1", "--detach", ok=None)
        expect(done.returncode == 1 and "osd.1" in done.stderr, f"{done.returncode} {done.stderr}")


def refusals(test, loops):
    creator = Creator(test, test.cluster("refusals"))
    formats = [("mkfs.ext4 -q -F {}", "an ext4 file system"), ("mkswap {}", "a swap area"),
               ("echo -n x | cryptsetup luksFormat -q --pbkdf pbkdf2 --pbkdf-force-iterations 1000 --key-file - {}", "a LUKS2 volume"),
               ("printf 'precious' | dd of={} conv=notrunc status=none", "data of an unknown kind (from byte 0)")]
    for number, (command, name) in enumerate(formats):
        with test.step(f"a device with {name} is refused and stays as it is") as note:
            device = loops.attach(f"format-{number}", OSD_BYTES)
            test.run("sh", "-c", command.format(device))
            before = ends(device)
            note(creator.refused(device, words=[device, name, "--wipe"]))
            expect(ends(device) == before, "the device was written")
            loops.detach(device)
    device = loops.attach("wiped", OSD_BYTES)
    with test.step("--wipe makes an OSD of it, and a second create names our store") as note:
        test.run("mkfs.ext4", "-q", "-F", device)
        made = creator.create(device, "--wipe")
        note(creator.refused(device, words=["the Atoll store " + made["store_id"]]))
        found = test.run("wipefs", "--no-act", device).stdout.strip()
        expect(not found, f"wipefs still finds {found}")
    with test.step("a mounted device is refused even with --wipe, naming where, and stays as it is") as note:
        mounted, point = loops.attach("mounted", OSD_BYTES), test.directory / "mount"
        test.run("mkfs.ext4", "-q", "-F", mounted)
        point.mkdir()
        test.run("mount", mounted, point)
        try:
            (point / "file").write_text("precious")
            note(creator.refused(mounted, "--wipe", words=["mounted on", str(point)]))
            creator.refused(mounted, words=["mounted on"])
            creator.refused(device, "--wipe", "--wal-device", mounted, words=["mounted on"])
        finally:
            test.run("umount", point)
        test.run("e2fsck", "-f", "-n", mounted)
        loops.detach(mounted)
    with test.step("a device with partitions is refused even with --wipe, naming them") as note:
        parted = loops.attach("parted", OSD_BYTES)
        # Not every kernel reads partition tables of loop devices; this tells it of one.
        test.run("addpart", parted, 1, PARTITION_START, PARTITION_SECTORS)
        try:
            note(creator.refused(parted, "--wipe", words=["has partitions", pathlib.Path(parted).name + "p1"]))
        finally:
            test.run("delpart", parted, 1)
        entry = struct.pack("<B3sB3sII", 0, bytes(3), 0x83, bytes(3), PARTITION_START, PARTITION_SECTORS)
        with open(parted, "r+b") as table:
            table.seek(446)
            table.write(entry + bytes(48) + b"\x55\xaa")
        creator.refused(parted, words=["an MBR partition table"])
        loops.detach(parted)
    with test.step("a device that is too small, read-only or has unusual sectors is refused") as note:
        for options, size_bytes, words in ((("--sector-size", "1024"), OSD_BYTES, ["1024 bytes"]), (("--read-only",), OSD_BYTES, ["read-only"]),
                                           ((), 100 * MIB, ["100.0 MiB", "at least"])):
            odd = loops.attach("odd" + "".join(options), size_bytes, *options)
            note(creator.refused(odd, "--wipe", words=words))
            loops.detach(odd)
    loops.detach(device)


def cluster_on_devices(test, loops):
    cluster = test.cluster("raw")
    creator = Creator(test, cluster)
    small_sectors, large_sectors = loops.attach("raw-0", OSD_BYTES), loops.attach("raw-1", OSD_BYTES, "--sector-size", "4096")
    wal = loops.attach("raw-wal", 256 * MIB)
    with test.step("a cluster on devices with sectors of 512 and 4096 bytes, a WAL device and a file", fatal=True) as note:
        creator.create(small_sectors)
        second = creator.create(large_sectors, "--wal-device", wal)
        expect(second["wal_device"] == wal and second["wal_device_bytes"] == 256 * MIB, f"{second}")
        third = creator.create(test.directory / "raw-2", "--size", "1G")
        expect([second["id"], third["id"]] == [1, 2] and "osd.0, osd.1, osd.2" in third["next"], f"{third}")
        note(f"healthy after {cluster.up():.1f} s")
        osds = [osd for host in cluster.json("osd", "tree") for osd in host["osds"]]
        expect([osd["device_bytes"] for osd in osds] == 3 * [OSD_BYTES], f"{osds}")
    data = os.urandom(3 * MIB)
    with test.step("data is on the devices after a restart, and devices in use are refused") as note:
        cluster.create_image("disk", "64M")
        with cluster.nbd("disk") as connection:
            connection.write(5 * MIB, data)
        for device in (small_sectors, large_sectors, wal):
            creator.refused(device, "--wipe", "--id", "3", words=["leave --id out"])
            creator.refused(device, "--wipe", words=["in use"])
            said = Creator(test, test.cluster("stranger")).refused(device, "--wipe", words=["in use"])
        note(said)
        expect(test.run("mount", small_sectors, "/mnt", ok=None).returncode != 0, "a device of an OSD can be mounted")
        cluster.kill_all()
        cluster.up()
        with connect_patiently(lambda: cluster.nbd("disk")) as connection:
            expect(connection.read(5 * MIB, len(data)) == data, "the image has changed")
    with test.step("a device that is gone is not replaced by a file; a new one is filled") as note:
        cluster.down()
        loops.detach(small_sectors)
        up = test.start(*cluster.up_command(), env=cluster.environment())
        log = cluster.data / "log" / "osd.0.log"
        wait_for("the OSD says what is missing", lambda: "atoll: cannot use" in log.read_text())
        link = cluster.data / "osd-0" / "device"
        expect(link.is_symlink() and not pathlib.Path(small_sectors).is_file(), "a file was made in place of the device")
        link.unlink()
        made = creator.create(loops.attach("raw-new", OSD_BYTES))
        expect(made["id"] == 0 and "running cluster" in made["next"], f"{made}")
        wait_for("the cluster is healthy", cluster.is_serving, 90)
        expect(up.poll() is None, "'atoll up' has ended")
        with connect_patiently(lambda: cluster.nbd("disk")) as connection:
            expect(connection.read(5 * MIB, len(data)) == data, "the image has changed")
        cluster.down()
        up.wait(timeout=30)


def scenario(test):
    test.need(("mkfs.ext4", "e2fsprogs"), ("mkswap", "util-linux"), ("losetup", "mount"), ("mount", "mount"), ("cryptsetup", "cryptsetup-bin"))
    files(test)
    loops = Loops(test)
    reason = loops.why_not()
    if reason:
        test.skip("what is refused on block devices", reason)
        test.skip("a cluster on block devices", reason)
        return
    try:
        refusals(test, loops)
        cluster_on_devices(test, loops)
    finally:
        for cluster in test.clusters:
            cluster.kill_all()
        loops.detach_all()


if __name__ == "__main__":
    main(scenario)
