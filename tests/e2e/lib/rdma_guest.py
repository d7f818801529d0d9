"""A cluster in a guest, whose OSDs and clients talk over RDMA that the guest's kernel does in software: soft-RoCE
(`rxe`) or soft-iWARP (`siw`). This machine is an NBD client of it, so what happens to the guest's RDMA is none of the
client's business."""

import contextlib
import ctypes.util
import json
import pathlib
import shutil
import subprocess

from lib.guest import HOST_ADDRESS, Guest, libraries
from lib.nbd import Nbd
from lib.ports import free_port
from lib.waiting import Failed, wait_for

LIBRARIES = pathlib.Path("/usr/lib/x86_64-linux-gnu")
# The network of the adapter, which is the guest's own: `dummy0` drops what is for others.
ADDRESS = "10.9.0.1"
PROVIDERS = {"rxe": "rdma_rxe", "siw": "siw"}
DISK_BYTES = 6 << 30
# Users of an adapter are told of its removal in the opposite order: RDMA-CM is to tell before uverbs waits for all.
MODULES = ("crc32c_generic", "crc32_generic", "virtio_blk", "ext4", "dummy", "ib_uverbs", "rdma_ucm")


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
    """The guest, with an adapter of a kind of `PROVIDERS` on a network of its own."""

    def __init__(self, scenario, programs, kind):
        self.scenario, self.kind, self.nbd_port = scenario, kind, free_port()
        # The kernel takes it away from processes that use it; soft-RoCE waits until they have ended.
        self.is_let_go = kind == "siw"
        disk = scenario.directory / f"guest-{kind}.disk"
        make_disk(scenario, disk, {"atoll": scenario.atoll} | programs)
        files = {str(LIBRARIES / "libfabric.so.1"): LIBRARIES / "libfabric.so.1"}
        files |= {path: pathlib.Path(path) for path in libraries(scenario.atoll)}
        for name in PROVIDERS:
            files[str(driver(name))] = driver(name)
            files[f"/etc/libibverbs.d/{name}.driver"] = f"driver {name}\n".encode()
        super().__init__(
            scenario.directory,
            (*MODULES, PROVIDERS[kind]),
            {name: name for name in ("rdma", "ip", "prlimit", "setpriv")},
            files,
            name=f"guest-{kind}",
            memory_mib=3072,
            network=f",hostfwd=tcp:127.0.0.1:{self.nbd_port}-:10809",
            more=("-drive", f"file={disk},format=raw,if=virtio,cache=unsafe"),
        )
        self.run("mkdir -p /disk && mount -t ext4 /dev/vda /disk && ulimit -n 8192 && ulimit -l unlimited")
        self.run(f"/usr/bin/ip link set dummy0 up && /usr/bin/ip addr add {ADDRESS}/24 dev dummy0")
        self.add_adapter()

    def add_adapter(self):
        self.run(f"rdma link add {self.kind}0 type {self.kind} netdev dummy0")

    def remove_adapter(self):
        """Begins to remove it. Soft-RoCE is gone only when the last process that has used it has ended."""
        remove = f"rm -f /tmp/removed; rdma link delete {self.kind}0; echo $? > /tmp/removed"
        self.run(f"({remove}) < /dev/null > /dev/null 2>&1 &")

    def is_adapter_removed(self):
        return self.finish(self.start("grep -qs '^0$' /tmp/removed"))[1] == 0

    def up(self, transport="rdma"):
        """Starts a cluster."""
        self.run("export ATOLL_RDMA_PROVIDER=verbs ATOLL_DATA=/disk/d ATOLL_WATCH_NONCES=1 PATH=$PATH:/disk")
        listen = f"--listen {ADDRESS} --nbd-listen 0.0.0.0:10809 --s3-tls-listen off --admin-listen off"
        state = f"--etcd http://{HOST_ADDRESS}:{self.start_etcd()}"
        # What a process locks is counted, as it is for users that are not root.
        may = "ulimit -l unlimited; /usr/bin/setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock"
        self.run(f"{may} atoll up --osds 3 --osd-size 1G {listen} {state} --transport {transport} --detach", 200)

    def start_etcd(self):
        """Cluster state on this machine, because the guest is slow; gives its port."""
        port, data = free_port(), self.scenario.directory / f"guest-etcd-{self.kind}"
        clients = f"http://127.0.0.1:{port}"
        urls = ("--listen-client-urls", clients, "--advertise-client-urls", clients)
        log = self.scenario.directory / f"guest-etcd-{self.kind}.log"
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

    def close(self):
        with contextlib.suppress(Failed, OSError):
            self.log_text()
        super().close()

    def process_id(self, name):
        """The process id of one of the cluster's processes."""
        output = self.run("cat /disk/d/processes.json")
        record = json.loads(output[output.index("{") :])
        children = {child["name"]: child["pid"] for child in record["children"]}
        return (children | {"supervisor": record["supervisor"]}).get(name)

    def limit_locked_memory(self, name, limit):
        """Sets how many bytes a process, and those that it starts, may lock; `unlimited` is a limit, too."""
        self.run(f"prlimit --pid {self.process_id(name)} --memlock={limit}:unlimited")

    def kill(self, name):
        """kill -9 of one process, which the supervisor starts again."""
        self.run(f"kill -9 {self.process_id(name)}")

    def wait_for_links(self, transport, count=6, seconds=60):
        wait_for(f"{count} links by {transport}", lambda: self.links().get(transport, 0) >= count, seconds, 1)
