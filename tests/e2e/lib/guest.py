"""A Linux guest under QEMU with Debian's kernel, whose NVMe/TCP initiator and fio are the real ones.

The guest has no disk: an initial file system made here holds the modules, busybox, nvme-cli and fio of this machine.
It reaches this machine's loopback at 10.0.2.2, and is driven by a shell on its serial console.
"""

import gzip
import lzma
import os
import pathlib
import re
import secrets
import shutil
import stat
import subprocess
import threading
import time

from lib.waiting import Failed

HOST_ADDRESS = "10.0.2.2"
KERNELS = pathlib.Path(os.environ.get("ATOLL_GUEST_KERNELS", "/var/lib/atoll-test-guest"))
PROGRAMS = ("nvme", "fio")
# With those that they depend on, unless the kernel has them built in.
MODULES = ("virtio_pci", "virtio_net", "nvme-core", "nvme-tcp")
INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /tmp /run /etc/nvme
for module in $(cat /modules); do insmod /lib/modules/$module || echo "cannot load $module"; done
ip link set lo up
ip link set eth0 up
ip addr add 10.0.2.15/24 dev eth0
ip route add default via 10.0.2.2
echo HOSTNQN > /etc/nvme/hostnqn
echo HOSTID > /etc/nvme/hostid
export PS1= PS2=
stty -echo
echo GUEST-IS-UP
exec sh
"""


def find_kernel():
    """The kernel and the directory of its modules."""
    for root in (KERNELS, pathlib.Path("/")):
        for image in sorted(root.glob("boot/vmlinuz-*"), reverse=True):
            modules = root / "lib/modules" / image.name.removeprefix("vmlinuz-")
            if list(modules.rglob("nvme-tcp.ko*")):
                return image, modules
    raise Failed("there is no kernel for a guest; 'make nightly-packages' gets one")


def kernel_has(option):
    """Whether the guest's kernel was built with this."""
    image, _ = find_kernel()
    config = image.with_name(image.name.replace("vmlinuz", "config"))
    return f"{option}=y" in config.read_text().split("\n")


def cpio(entries):
    """An archive in the format 'newc'. Entries are (name, mode, data)."""
    out = bytearray()

    def add(name, mode, data, inode):
        name = name.encode() + b"\0"
        fields = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0)
        out.extend(b"070701" + b"".join(b"%08X" % field for field in fields) + name)
        out.extend(bytes(-len(out) % 4))
        out.extend(data)
        out.extend(bytes(-len(out) % 4))

    for inode, (name, mode, data) in enumerate(entries, 1):
        add(name, mode, data, inode)
    add("TRAILER!!!", 0, b"", 0)
    return bytes(out)


def libraries(program):
    """The shared libraries of a program, with its loader."""
    listed = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    return sorted(set(re.findall(r"(/\S+)", listed)))


def module_files(modules):
    """The modules that are to be loaded, in their order, with their names."""
    paths = {path.name.split(".ko")[0].replace("_", "-"): path for path in modules.rglob("*.ko*")}
    found = {}

    def add(name):
        name = name.replace("_", "-")
        if name in found or name not in paths:
            return
        data = paths[name].read_bytes()
        data = lzma.decompress(data) if paths[name].suffix == ".xz" else data
        depends = re.search(rb"\0depends=([^\0]*)\0", data)
        for needed in filter(None, depends[1].decode().split(",") if depends else ()):
            add(needed)
        found[name] = data

    for name in MODULES:
        add(name)
    return found.items()


def initial_file_system(modules, host_nqn, host_id, programs=()):
    directory, file, link = stat.S_IFDIR | 0o755, stat.S_IFREG | 0o755, stat.S_IFLNK | 0o777
    entries, folders = [], set()

    def put(name, mode, data):
        parent = pathlib.PurePath(name).parent
        for folder in reversed([parent, *parent.parents]):
            if str(folder) not in (".", *folders):
                folders.add(str(folder))
                entries.append((str(folder), directory, b""))
        entries.append((name, mode, data))

    for folder in ("proc", "sys", "dev"):
        put(f"{folder}/.keep", file, b"")
    put("bin/busybox", file, pathlib.Path(shutil.which("busybox")).read_bytes())
    put("bin/sh", link, b"busybox")
    needed = set()
    for program in (*PROGRAMS, *map(str, programs)):
        path = shutil.which(program)
        put(f"usr/bin/{pathlib.Path(path).name}", file, pathlib.Path(path).read_bytes())
        needed.update(libraries(path))
    for path in sorted(needed):
        put(path.lstrip("/"), file, pathlib.Path(path).read_bytes())
    loaded = module_files(modules)
    for name, data in loaded:
        put(f"lib/modules/{name}.ko", file, data)
    put("modules", file, "\n".join(f"{name}.ko" for name, _ in loaded).encode())
    put("init", file, INIT.replace("HOSTNQN", host_nqn).replace("HOSTID", host_id).encode())
    return gzip.compress(cpio(entries), 1)


class Guest:
    def __init__(self, directory, host_nqn, host_id, memory_mib=768, programs=(), ports=()):
        """More programs of this machine, by their paths, and ports of the guest that are on this machine's loopback."""
        image, modules = find_kernel()
        initrd = directory / "guest.initrd"
        initrd.write_bytes(initial_file_system(modules, host_nqn, host_id, programs))
        forwards = "".join(f",hostfwd=tcp:127.0.0.1:{port}-:{port}" for port in ports)
        self.log = directory / "guest.log"
        self.text, self.changed = "", threading.Condition()
        self.process = subprocess.Popen(
            [
                "qemu-system-x86_64",
                *("-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", str(memory_mib)),
                *("-nographic", "-no-reboot", "-monitor", "none", "-serial", "stdio", "-vga", "none"),
                *("-netdev", f"user,id=net{forwards}", "-device", "virtio-net-pci,netdev=net,romfile="),
                *("-kernel", str(image), "-initrd", str(initrd)),
                *("-append", "console=ttyS0 quiet panic=-1 nvme_core.multipath=Y mitigations=off"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        threading.Thread(target=self._read, daemon=True).start()
        self._wait("GUEST-IS-UP", 120)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.process.kill()
        self.process.wait()
        self.log.write_text(self.text)

    def _read(self):
        while data := self.process.stdout.read1(65536):
            with self.changed:
                self.text += data.decode(errors="replace").replace("\r", "")
                self.changed.notify_all()

    def _wait(self, pattern, seconds, start=0):
        deadline = time.monotonic() + seconds
        with self.changed:
            while not (found := re.compile(pattern).search(self.text, start)):
                left = deadline - time.monotonic()
                if left <= 0 or self.process.poll() is not None:
                    raise Failed(f"the guest does not say '{pattern}':\n{self.text[start:][-3000:]}")
                self.changed.wait(min(left, 1))
        return found

    def start(self, command):
        """Runs a command of the shell; `finish` waits for it."""
        mark = secrets.token_hex(8)
        start = len(self.text)
        # The mark must not be found in what the kernel says of the command itself.
        line = f"{{ {command}\n}}; echo {mark[:8]}''{mark[8:]}=$?\n"
        self.process.stdin.write(line.encode())
        self.process.stdin.flush()
        return start, mark

    def finish(self, started, seconds=60):
        """What it has printed, and its exit code."""
        start, mark = started
        found = self._wait(rf"{mark}=(\d+)", seconds, start)
        return self.text[start : found.start()], int(found[1])

    def run(self, command, seconds=60, check=True):
        output, code = self.finish(self.start(command), seconds)
        if check and code:
            raise Failed(f"in the guest: {command}\nexit code {code}\n{output[-3000:]}")
        return output
