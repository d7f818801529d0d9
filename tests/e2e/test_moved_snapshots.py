"""Images move to other pools with their snapshots, while they are written and processes are killed."""

import random
import signal
import subprocess

import pytest
from lib.cluster import MIB
from lib.load import BlockLoad
from lib.nbd import connect_patiently
from lib.verdicts import intact
from lib.waiting import wait_for

BLOCK = 4096
SIZE = 32 * MIB
# What the load writes to; the model knows the rest.
LOADED = 4 * MIB


@pytest.fixture(scope="module")
def cluster(scenario):
    cluster = scenario.cluster(osds=3, osd_size="4G")
    cluster.up()
    cluster.cli("pool", "create", "coded", "--ec", "2+1", "--pg-num", "8")
    cluster.cli("pool", "create", "second", "--size", "3", "--pg-num", "8")
    return cluster


def let_go(cluster, image):
    wait_for("the NBD server lets go", lambda: not cluster.json("image", "info", image)["writer"], 30)


class Modelled:
    """An image, and byte arrays that say what it and its snapshots hold from `LOADED` on."""

    def __init__(self, cluster, name, *more):
        self.cluster, self.name, self.rng = cluster, name, random.Random(name)
        self.model, self.snapshots = bytearray(SIZE), {}
        cluster.create_image(name, SIZE, *more)

    def change(self, times=8):
        """Writes and discards, small and large."""
        with self.cluster.nbd(self.name) as connection:
            for _ in range(times):
                first = self.rng.randrange(LOADED // BLOCK, len(self.model) // BLOCK)
                count = min(self.rng.choice([1, 3, 40, 700]), len(self.model) // BLOCK - first)
                at, length = first * BLOCK, count * BLOCK
                data = self.rng.randbytes(BLOCK) * count if self.rng.random() < 0.7 else bytes(length)
                change = connection.write if any(data) else self.rng.choice([connection.zero, connection.trim])
                change(at, data if any(data) else length)
                self.model[at : at + length] = data

    def snapshot(self, snapshot):
        self.cluster.cli("image", "snap", "create", f"{self.name}@{snapshot}")
        self.snapshots[snapshot] = bytes(self.model)

    def resize(self, size):
        let_go(self.cluster, self.name)
        self.cluster.cli("image", "resize", self.name, "--size", str(size), "--allow-shrink")
        self.model = self.model[:size] + bytes(max(0, size - len(self.model)))

    def with_history(self, snapshots=4):
        """Snapshots of it smaller, larger and unchanged, with discards in between."""
        for number in range(snapshots):
            self.change()
            if number == 1:
                self.resize(20 * MIB)
            if number == 2:
                self.resize(SIZE)
            self.snapshot(f"s{number}")
        self.snapshot("moved")
        return self

    def check(self, image=True):
        for snapshot, model in self.snapshots.items():
            self._check(f"{self.name}@{snapshot}", model)
        if image:
            self._check(self.name, self.model)

    def _check(self, export, model):
        with self.cluster.nbd(export, timeout=120) as connection:
            found = b"".join(connection.read(at, MIB) for at in range(0, len(model), MIB))
        for at in range(LOADED, len(model), BLOCK):
            intact(found[at : at + BLOCK] == model[at : at + BLOCK], f"{at} of {export} differs")

    def described(self):
        """What is known of its snapshots."""
        snapshots = self.cluster.json("image", "info", self.name)["snapshots"]
        return [{key: one[key] for key in ("name", "size_bytes", "created_unix_ms")} for one in snapshots]


def let_go_of_snapshots(cluster, name):
    wait_for("nobody reads it", lambda: not cluster.json("image", "info", name)["watchers"], 30)


def leftovers(cluster, name):
    images = [image["name"] for image in cluster.json("image", "ls", "--fast")]
    return [image for image in images if image.startswith(f"{name}.")] + cluster.json("image", "trash", "ls")


def migrating(cluster, name, *more):
    command = [cluster.scenario.atoll, "image", "migrate", name, *more, "--data", cluster.data]
    return subprocess.Popen(command, env=cluster.environment(), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


@pytest.mark.nightly
def test_snapshots_move_with_an_image_that_is_written(cluster, note):
    """To an erasure-coded pool, under load, with the NBD server and the command killed on the way; and back."""
    disk = Modelled(cluster, "live").with_history()
    before = disk.described()
    load = BlockLoad(lambda: cluster.nbd("live", timeout=120), threads=4, blocks_per_thread=256).start()
    wait_for("some acks", lambda: load.acked > 200, 60, 0.01)
    let_go_of_snapshots(cluster, "live")
    moving = migrating(cluster, "live", "--pool", "coded", "--rate", "100K")
    wait_for("it moves", lambda: cluster.json("image", "info", "live")["pool_name"] == "coded", 30, 0.05)
    assert disk.described() == before
    for _ in range(2):
        cluster.kill("nbd")
        acked = load.acked
        wait_for("more acks", lambda acked=acked: load.acked > acked + 100, 60, 0.01)
        disk.check(image=False)
    moving.send_signal(signal.SIGKILL)
    moving.wait()
    assert cluster.json("image", "info", "live")["flattening"], "it was over before anything was killed"
    disk.change()
    cluster.cli("image", "migrate", "live", "--pool", "coded", timeout=240)
    disk.check()
    assert disk.described() == before
    wait_for("the old data goes", lambda: not leftovers(cluster, "live"), 30)
    let_go_of_snapshots(cluster, "live")
    cluster.cli("image", "migrate", "live", "--pool", "images", "--sealing", "off", timeout=240)
    assert load.stop(), "a load thread hangs"
    intact(not load.wrong, load.wrong[:3])
    disk.check()
    with cluster.nbd("live", timeout=120) as connection:
        count = load.verify(connection)
    intact(not load.wrong, load.wrong[:3])
    assert not leftovers(cluster, "live") and disk.described() == before
    note(f"{load.acked} acks, {count} blocks, {load.open_ended} without an answer")


@pytest.mark.nightly
def test_a_move_with_snapshots_is_cancelled(cluster):
    """With writes and discards in both places, and the NBD server killed on the way back; then it moves after all."""
    disk = Modelled(cluster, "wavering").with_history(3)
    before = disk.described()
    let_go_of_snapshots(cluster, "wavering")
    cluster.cli("image", "migrate", "wavering", "--pool", "coded", "--rate", "2M", "--no-wait")
    disk.change()
    cluster.cli("image", "migrate", "wavering", "--cancel", "--rate", "10K", "--no-wait")
    assert "is being moved" in cluster.cli("image", "snap", "rm", "wavering@s0", ok=(1,)).stderr
    disk.change(3)
    disk.check()
    cluster.kill("nbd")
    connect_patiently(lambda: cluster.nbd("wavering", timeout=120)).close()
    disk.change()
    # Clients' writes may have brought everything back by now.
    cluster.cli("image", "migrate", "wavering", "--cancel", timeout=240, ok=(0, 1))
    info = cluster.json("image", "info", "wavering")
    assert (info["pool_name"], info["flattening"], disk.described()) == ("images", None, before)
    disk.check()
    let_go_of_snapshots(cluster, "wavering")
    cluster.cli("image", "migrate", "wavering", "--pool", "second", timeout=240)
    disk.check()
    wait_for("the old data goes", lambda: not leftovers(cluster, "wavering"), 30)


@pytest.mark.nightly
def test_what_snapshots_share_is_copied_once(cluster):
    """An idle image takes after a move what it took before, and a killed copier has copied for the next one."""
    disk = Modelled(cluster, "frugal").with_history()
    let_go(cluster, "frugal")
    usage = cluster.json("image", "du", "frugal")
    moving = migrating(cluster, "frugal", "--pool", "second", "--rate", "2M")
    wait_for("it copies", lambda: (cluster.json("image", "info", "frugal")["flattening"] or {}).get("done_bytes"), 60)
    moving.send_signal(signal.SIGKILL)
    moving.wait()
    cluster.cli("image", "migrate", "frugal", "--pool", "second", timeout=240)
    assert cluster.json("image", "du", "frugal") == usage
    disk.check()
    assert not leftovers(cluster, "frugal")


@pytest.mark.nightly
def test_a_clone_moves_with_snapshots_that_show_its_parent(cluster):
    """Of a flattened clone only its older snapshots do; afterwards nothing needs the parent."""
    golden = Modelled(cluster, "golden")
    golden.change()
    golden.snapshot("v1")
    let_go(cluster, "golden")
    cluster.cli("image", "clone", "golden@v1", "vm")
    vm = Modelled.__new__(Modelled)
    vm.cluster, vm.name, vm.rng, vm.model, vm.snapshots = cluster, "vm", random.Random(9), bytearray(golden.model), {}
    vm.snapshot("early")
    vm.change()
    vm.snapshot("later")
    cluster.cli("image", "flatten", "vm", timeout=120)
    vm.change()
    vm.snapshot("flat")
    let_go(cluster, "vm")
    cluster.cli("image", "migrate", "vm", "--pool", "coded", timeout=240)
    cluster.cli("image", "snap", "rm", "golden@v1")
    cluster.cli("image", "rm", "golden")
    vm.check()
    let_go_of_snapshots(cluster, "vm")
    let_go(cluster, "vm")
    for snapshot in ["later", "early", "flat"]:
        cluster.cli("image", "snap", "rollback", f"vm@{snapshot}")
        vm.model = bytearray(vm.snapshots[snapshot])
        vm.check()
        let_go(cluster, "vm")
        let_go_of_snapshots(cluster, "vm")
    cluster.cli("image", "snap", "rm", "vm", "--all")
    cluster.cli("image", "rm", "vm")


@pytest.mark.nightly
def test_changes_since_a_snapshot_are_the_same_after_a_move(cluster, tmp_path):
    disk = Modelled(cluster, "backed").with_history(3)
    let_go(cluster, "backed")
    export = lambda to: cluster.cli("image", "export", "backed@s2", to, "--from", "s1", "--format", "changes")
    export(tmp_path / "before.chg")
    cluster.cli("image", "migrate", "backed", "--pool", "coded", "--rate", "1M", "--no-wait")
    export(tmp_path / "meanwhile.chg")
    cluster.cli("image", "migrate", "backed", "--pool", "coded", timeout=240)
    export(tmp_path / "after.chg")
    first, *others = [(tmp_path / f"{when}.chg").read_bytes() for when in ["before", "meanwhile", "after"]]
    assert all(other == first for other in others) and len(first) > MIB
    disk.check()


@pytest.mark.nightly
def test_what_a_move_does_not_allow_is_refused(cluster):
    disk = Modelled(cluster, "fixed").with_history(2)
    refused = lambda *arguments: cluster.cli("image", *arguments, ok=(1,)).stderr
    cluster.cli("image", "clone", "fixed@s0", "twig")
    assert "snapshot 's0' of image 'fixed' has clones" in refused("migrate", "fixed", "--pool", "coded")
    cluster.cli("image", "flatten", "twig", timeout=120)
    with cluster.nbd("fixed@s1") as connection:
        connection.read(0, BLOCK)
        assert "in use" in refused("migrate", "fixed", "--pool", "coded")
    let_go_of_snapshots(cluster, "fixed")
    let_go(cluster, "fixed")
    cluster.cli("image", "migrate", "fixed", "--pool", "coded", "--no-wait", "--rate", "100K")
    cluster.read_image("fixed", 0, BLOCK)
    for command in [
        ["snap", "create", "fixed@s"],
        ["snap", "create", "fixed@s", "twig@s"],
        ["snap", "rm", "fixed@s1"],
        ["snap", "rollback", "fixed@s1"],
        ["clone", "fixed@s1", "other"],
        ["trash", "mv", "fixed"],
    ]:
        message = refused(*command)
        assert "is being moved" in message, (command, message)
    cluster.cli("image", "snap", "rename", "fixed@s1", "renamed")
    disk.snapshots["renamed"] = disk.snapshots.pop("s1")
    # Its writer goes on copying; who reads a snapshot keeps the old place until it is done.
    with cluster.nbd("fixed@renamed") as connection:
        disk.change()
        disk.check()
        connection.read(0, BLOCK)
    cluster.cli("image", "migrate", "fixed", "--pool", "coded", timeout=240)
    disk.check()
    assert not leftovers(cluster, "fixed")
