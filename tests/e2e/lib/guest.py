"""A Linux guest under QEMU with Debian's kernel, which has what kernels of containers lack.

An initial file system made here holds the modules, busybox, and programs of this machine. The guest reaches this
machine's loopback at 10.0.2.2, and is driven by a shell on its serial console.
"""

import contextlib
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

from lib.fio import WRONG_BYTES
from lib.processes import RUN_MARK
from lib.verdicts import DataFailure
from lib.waiting import CommandFailed, Failed

HOST_ADDRESS = "10.0.2.2"
KERNELS = pathlib.Path(os.environ.get("ATOLL_GUEST_KERNELS", "/var/lib/atoll-test-guest"))
# Of every guest. Modules are loaded with those that they depend on, unless the kernel has them built in.
MODULES = ("virtio_pci", "virtio_net")
INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /tmp /run /etc
hostname guest
for module in $(cat /modules); do insmod /lib/modules/$module || echo "cannot load $module"; done
ip link set lo up
ip link set eth0 up
ip addr add 10.0.2.15/24 dev eth0
ip route add default via 10.0.2.2
stty -echo
# What the kernel says of a path that is lost stays out of what is read here; `dmesg` has it.
dmesg -n 1
echo GUEST-IS-UP
# A shell whose output is no terminal edits no lines: one that does takes the end of a job in the background for the
# end of its input, and ends.
sh 2>&1 | cat
"""


def find_kernel(module, kernels=KERNELS):
    """A kernel that has a module, and the directory of its modules."""
    for root in (kernels, pathlib.Path("/")):
        for image in sorted(root.glob("boot/vmlinuz-*"), reverse=True):
            modules = root / "lib/modules" / image.name.removeprefix("vmlinuz-")
            if list(modules.rglob(f"{module}.ko*")):
                return image, modules
    raise Failed(f"there is no kernel with {module} for a guest; 'make nightly-packages' gets one")


def kernel_has(module, option, kernels=KERNELS):
    """Whether the kernel that has a module was built with this option."""
    image, _ = find_kernel(module, kernels)
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


def module_files(modules, wanted):
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

    for name in (*MODULES, *wanted):
        add(name)
    return found.items()


def initial_file_system(modules, wanted_modules, programs, files):
    """An archive of modules, programs by the names that they get, and other files by their paths: their bytes, or where
    to copy them from."""
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
    for name, program in programs.items():
        path = shutil.which(program)
        put(f"usr/bin/{name}", file, pathlib.Path(path).read_bytes())
        needed.update(libraries(path))
    for path, data in files.items():
        if isinstance(data, pathlib.Path):
            needed.update(libraries(data) if ".so" in data.name else ())
            data = data.read_bytes()
        put(path.lstrip("/"), file, data)
    for path in sorted(needed - set(files)):
        put(path.lstrip("/"), file, pathlib.Path(path).read_bytes())
    loaded = module_files(modules, wanted_modules)
    for name, data in loaded:
        put(f"lib/modules/{name}.ko", file, data)
    put("modules", file, "\n".join(f"{name}.ko" for name, _ in loaded).encode())
    put("init", file, INIT.encode())
    return gzip.compress(cpio(entries), 1)


class Guest:
    """A guest that has loaded `modules`, the last of which decides what kernel is taken."""

    def __init__(
        self,
        directory,
        modules,
        programs,
        files,
        name="guest",
        memory_mib=768,
        network="",
        more=(),
        append="",
        kernels=KERNELS,
    ):
        image, module_directory = find_kernel(modules[-1], kernels)
        initrd = directory / f"{name}.initrd"
        initrd.write_bytes(initial_file_system(module_directory, modules, programs, files))
        self.log = directory / f"{name}.log"
        self.text, self.changed = "", threading.Condition()
        self.process = subprocess.Popen(
            [
                "qemu-system-x86_64",
                *("-accel", "tcg,thread=multi", "-cpu", "max,cx16=off", "-smp", "2", "-m", str(memory_mib)),
                *("-nographic", "-no-reboot", "-monitor", "none", "-serial", "stdio", "-vga", "none"),
                *("-netdev", f"user,id=net{network}", "-device", "virtio-net-pci,netdev=net,romfile="),
                *more,
                *("-kernel", str(image), "-initrd", str(initrd)),
                *("-append", f"console=ttyS0 quiet panic=-1 mitigations=off {append}"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # A run that is killed leaves no guest behind.
            env=os.environ | ({RUN_MARK: session} if (session := os.environ.get("ATOLL_E2E_SESSION")) else {}),
        )
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self._wait("GUEST-IS-UP", 120)
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        with contextlib.suppress(Failed, OSError):
            self.run("dmesg", 10)
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
            failure = DataFailure if WRONG_BYTES.search(output) else CommandFailed
            raise failure(f"in the guest: {command}\nexit code {code}\n{output[-3000:]}")
        return output
