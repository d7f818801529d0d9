"""A cluster in a guest, whose OSDs and clients talk over RDMA that the guest's kernel does in software. This machine is
an NBD client of it, so what happens to the guest's RDMA is none of the client's business."""

import ctypes.util
import json
import pathlib
import shutil
import subprocess

from lib.guest import HOST_ADDRESS, Guest, libraries
from lib.nbd import Nbd
from lib.ports import free_port
from lib.waiting import wait_for

LIBRARIES = pathlib.Path("/usr/lib/x86_64-linux-gnu")
# The network of the adapter, which is the guest's own: `dummy0` drops what is for others.
ADDRESS = "10.9.0.1"
PROVIDERS = ("rxe",)
DISK_BYTES = 6 << 30
# Users of an adapter are told of its removal in the opposite order: RDMA-CM is to tell before uverbs waits for all.
MODULES = ("crc32c_generic", "crc32_generic", "virtio_blk", "ext4", "dummy", "ib_uverbs", "rdma_ucm", "rdma_rxe")


def is_installed():
    """Whether this machine has the libraries that the guest is to use."""
    return ctypes.util.find_library("fabric") is not None and all(driver(name).exists() for name in PROVIDERS)


def driver(name):
    """The library by which libibverbs uses a kind of adapter."""
    return next(iter(LIBRARIES.glob(f"libibverbs/lib{name}-rdmav*.so")), LIBRARIES / f"lib{name}-none.so")


def make_disk(scenario, path, programs):
    """A disk with programs, and room for the data of OSDs."""
    content = scenario.directory / "guest-disk"
    content.mkdir()
    for name, program in programs.items():
        shutil.copy(program, content / name)
    with open(path, "wb") as file:
        file.truncate(DISK_BYTES)
    subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", "-d", content, path], check=True)
    shutil.rmtree(content)


class RdmaGuest(Guest):
    """The guest, with soft-RoCE on a network of its own."""

    def __init__(self, scenario, programs):
        self.scenario, self.nbd_port = scenario, free_port()
        disk = scenario.directory / "guest.disk"
        make_disk(scenario, disk, {"atoll": scenario.atoll} | programs)
        files = {str(LIBRARIES / "libfabric.so.1"): LIBRARIES / "libfabric.so.1"}
        files |= {path: pathlib.Path(path) for path in libraries(scenario.atoll)}
        for name in PROVIDERS:
            files[str(driver(name))] = driver(name)
            files[f"/etc/libibverbs.d/{name}.driver"] = f"driver {name}\n".encode()
        super().__init__(
            scenario.directory,
            MODULES,
            {"rdma": "rdma", "ip": "ip"},
            files,
            memory_mib=3072,
            network=f",hostfwd=tcp:127.0.0.1:{self.nbd_port}-:10809",
            more=("-drive", f"file={disk},format=raw,if=virtio,cache=unsafe"),
        )
        self.run("mkdir -p /disk && mount -t ext4 /dev/vda /disk && ulimit -n 8192")
        self.run(f"/usr/bin/ip link set dummy0 up && /usr/bin/ip addr add {ADDRESS}/24 dev dummy0")
        self.add_adapter()

    def add_adapter(self):
        self.run("rdma link add rxe0 type rxe netdev dummy0")

    def remove_adapter(self):
        """Begins to remove it. Soft-RoCE is gone only when the last process that has used it has ended."""
        self.run("(rdma link delete rxe0; echo $? > /tmp/removed) < /dev/null > /dev/null 2>&1 &")

    def is_adapter_removed(self):
        return self.finish(self.start("grep -qs '^0$' /tmp/removed"))[1] == 0

    def up(self, transport="rdma"):
        """Starts a cluster."""
        self.run("export ATOLL_RDMA_PROVIDER=verbs ATOLL_DATA=/disk/d ATOLL_WATCH_NONCES=1 PATH=$PATH:/disk")
        listen = f"--listen {ADDRESS} --nbd-listen 0.0.0.0:10809 --s3-tls-listen off --admin-listen off"
        state = f"--etcd http://{HOST_ADDRESS}:{self.start_etcd()}"
        self.run(f"atoll up --osds 3 --osd-size 1G {listen} {state} --transport {transport} --detach", 200)

    def start_etcd(self):
        """Cluster state on this machine, because the guest is slow; gives its port."""
        port, data = free_port(), self.scenario.directory / "guest-etcd"
        clients = f"http://127.0.0.1:{port}"
        urls = ("--listen-client-urls", clients, "--advertise-client-urls", clients)
        log = self.scenario.directory / "guest-etcd.log"
        peers = ("--listen-peer-urls", f"http://127.0.0.1:{free_port()}")
        self.scenario.start_logged(log, "etcd", "--unsafe-no-fsync", "--data-dir", data, *urls, *peers)
        return port

    def create_image(self, name):
        """An image that this machine may use."""
        self.run(f"atoll image create {name} --size 256M && atoll image access {name} --allow 10.0.2.2")

    def json(self, command, seconds=60):
        output = self.run(f"atoll {command} --json", seconds)
        return json.loads(output[output.index("{") :])

    def links(self):
        return self.json("status")["links_by_transport"]

    def nbd(self, image, **options):
        return Nbd(("127.0.0.1", self.nbd_port), image, **options)

    def log_text(self):
        return self.run("cat /disk/d/log/*.log", check=False)

    def process_id(self, name):
        """The process id of one of the cluster's processes."""
        record = self.run("cat /disk/d/processes.json")
        children = json.loads(record[record.index("{") :])["children"]
        return next((child["pid"] for child in children if child["name"] == name), None)

    def kill(self, name):
        """kill -9 of one process, which the supervisor starts again."""
        self.run(f"kill -9 {self.process_id(name)}")

    def wait_for_links(self, transport, count=6, seconds=60):
        wait_for(f"{count} links by {transport}", lambda: self.links().get(transport, 0) >= count, seconds, 1)
