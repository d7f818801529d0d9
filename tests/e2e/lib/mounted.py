"""Images as block devices of this machine, with file systems that its kernel mounts: nbdfuse shows an image as a file,
and a loop device makes a device of that."""

import contextlib
import json
import os
import pathlib
import subprocess
import tempfile

from lib.devices import Loops
from lib.processes import is_alive
from lib.waiting import not_yet, wait_for

# Not in the scenario's directory: users other than root must reach what is mounted, and sockets have short paths.
PREFIX = f"{tempfile.gettempdir()}/atoll-e2e-mounted-"


def why_not(scenario):
    """Why images cannot be block devices here; nothing if they can."""
    if os.geteuid() != 0:
        return "mounting takes root"
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        return f"no FUSE: {error}"
    return Loops(scenario).why_not()


def why_not_of(kind):
    """Why the kernel cannot mount such a file system; nothing if it can."""
    kinds = pathlib.Path("/proc/filesystems")
    if kind not in kinds.read_text().split():
        with contextlib.suppress(OSError):
            subprocess.run(["modprobe", kind], check=False, capture_output=True)
    return None if kind in kinds.read_text().split() else f"the kernel has no {kind}"


@contextlib.contextmanager
def attached(cluster, image):
    """The device that an image is meanwhile. At the end nobody uses the image any more."""
    scenario = cluster.scenario
    with contextlib.ExitStack() as stack:
        point = stack.enter_context(directory())
        log = scenario.directory / f"nbdfuse-{image}.log"
        process = scenario.start_logged(log, "nbdfuse", point / image, cluster.nbd_uri(image))
        stack.callback(end_nbdfuse, cluster, process, point, image)

        def serves():
            if process.poll() is not None:
                raise RuntimeError(f"nbdfuse ended with {process.returncode}: {log.read_text()[-1000:]}")
            with not_yet(OSError):
                return (point / image).exists()

        wait_for(f"nbdfuse shows {image}", serves, 60)
        device = scenario.run("losetup", "--find", "--show", point / image).stdout.strip()
        stack.callback(scenario.run, "losetup", "--detach", device)
        yield device


def end_nbdfuse(cluster, process, point, image):
    if process.poll() is None:
        unmount(cluster.scenario, point)
    process.wait(60)
    wait_for("the NBD server lets go", lambda: not cluster.json("image", "info", image)["writer"], 30)


@contextlib.contextmanager
def mounted(scenario, device, *options):
    """Where a device is mounted meanwhile."""
    with directory() as point:
        scenario.run("mount", *options, device, point)
        try:
            yield point
        finally:
            unmount(scenario, point)


def unmount(scenario, point):
    # Something that looks at all new devices and mounts may have it open for a moment.
    wait_for(f"{point} is unmounted", lambda: scenario.run("umount", point, ok=(0, 32)).returncode == 0, 30)


@contextlib.contextmanager
def directory():
    path = pathlib.Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        # Not with what is in it: that may still be mounted.
        path.rmdir()


def unmount_leftovers():
    """Unmounts and detaches what test runs have left that were killed; their nbdfuse has been ended before."""
    with contextlib.suppress(OSError, ValueError):
        listed = subprocess.run(["losetup", "--list", "--json"], check=False, capture_output=True, text=True).stdout
        for device in json.loads(listed or "{}").get("loopdevices", []):
            if is_leftover(device["back-file"]):
                # While it is mounted: it happens when that ends. Afterwards its file has no name to know it by.
                subprocess.run(["losetup", "--detach", device["name"]], check=False)
    points = [line.split()[1] for line in pathlib.Path("/proc/self/mounts").read_text().splitlines()]
    for path in (path for path in reversed(points) if is_leftover(path)):
        subprocess.run(["umount", "--lazy", path], check=False)
    for path in pathlib.Path(PREFIX).parent.glob(f"{pathlib.Path(PREFIX).name}*"):
        if is_leftover(str(path)):
            with contextlib.suppress(OSError):
                path.rmdir()


def is_leftover(path):
    """Whether the run that made a directory has ended."""
    if not path.startswith(PREFIX):
        return False
    owner = path.removeprefix(PREFIX).split("-")[0]
    return owner.isdigit() and not is_alive(int(owner))
