"""Images over NVMe/TCP with TLS, by the initiator of the Linux kernel in a guest under QEMU. Its handshakes does tlshd,
by GnuTLS, with keys that nvme-cli derives: those of Debian 13, which derive them as libnvme before 1.16 does, and those
of Debian 14."""

import re
import subprocess

import pytest
from lib.cluster import MIB
from lib.guest import HOST_ADDRESS, KERNELS, Guest, kernel_has
from lib.nvme import DISCOVERY, serving_cluster, subsystems
from lib.nvme_guest import connect_command, device_of, host_name, identity_files
from lib.ports import free_port

pytestmark = [pytest.mark.nightly, pytest.mark.needs("qemu-system-x86_64", "busybox")]

HOST_ID = "7c2d7e0e-2a6c-4b55-9b7d-3a8f5f0c1a12"
HOST = host_name(HOST_ID)
SIZE, DATA_MIB = 64 * MIB, 48
LIBRARIES = "usr/lib/x86_64-linux-gnu"
# What the kernel encrypts records with.
MODULES = ("gcm", "ghash-generic", "aesni-intel", "tls", "nvme-core", "nvme-tcp")


def programs_of(release, *programs):
    """Programs with their loader and libraries, as files of a guest."""
    root, loader = KERNELS / release, "/lib64/ld-linux-x86-64.so.2"
    files = {loader: root / f"usr{loader}"}
    for program in (root / "usr" / name for name in programs):
        files[f"/usr/bin/{program.name}"] = program
        command = [files[loader], "--library-path", root / LIBRARIES, "--list", program]
        listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        for library in re.findall(rf"{root / LIBRARIES}/(\S+)", listed):
            files[f"/lib/x86_64-linux-gnu/{library}"] = root / LIBRARIES / library
    # Not as paths, or the libraries of this machine would come along.
    return {path: file.read_bytes() for path, file in files.items()}


@pytest.fixture(scope="module")
def port():
    return free_port()


@pytest.fixture(scope="module")
def cluster(scenario, port):
    return serving_cluster(scenario, ("127.0.0.1", port), {"disk": (HOST,)}, SIZE, osd_size="4G")


@pytest.fixture(scope="module")
def subsystem(cluster):
    return subsystems(cluster)("disk")


@pytest.fixture(scope="module")
def guest(scenario, request):
    """With the programs of a Debian."""
    kernels = KERNELS / "forky" if request.param == "forky" else KERNELS
    has_tls = kernel_has("nvme-tcp", "CONFIG_NVME_TCP_TLS", kernels)
    assert has_tls, "the guest's kernel has no TLS; 'make nightly-packages'"
    files = programs_of(request.param, "sbin/tlshd", "sbin/nvme", "bin/keyctl") | identity_files(HOST_ID)
    files["/etc/tlshd.conf"] = b"[debug]\nloglevel=1\n[authenticate]\nkeyrings=.nvme\n"
    with Guest(scenario.directory, MODULES, {}, files, name=f"guest-{request.param}", kernels=kernels) as guest:
        guest.run("mkdir -p /etc/tlshd/tags.d; tlshd -s -c /etc/tlshd.conf > /tmp/tlshd.log 2>&1 &")
        yield guest


@pytest.fixture
def use_key(cluster, guest):
    """Sets a key of the guest, here and in its keyring, for some subsystems."""

    def use_key(hash_name, version, *subsystems):
        key = cluster.json("nvme", "host", "set-tls", HOST, "--hash", hash_name)["key"]
        # The kernel takes the first that it finds, of whatever version and hash function.
        guest.run("keyctl clear %:.nvme")
        for name in subsystems:
            insert = f"--subsysnqn={name} --identity={version} --keydata={key} --insert"
            guest.run(f"nvme check-tls-key --hostnqn={HOST} {insert}")
        return key

    return use_key


in_forky = pytest.mark.parametrize("guest", ["forky"], indirect=True)


def connect(guest, subsystem, port, *options):
    return guest.finish(guest.start(connect_command(subsystem, port, *options)), 60)


@pytest.mark.parametrize(
    ("guest", "hash_name", "version"),
    [
        ("trixie", "sha256", 0),
        ("trixie", "sha256", 1),
        ("forky", "sha256", 0),
        ("forky", "sha256", 1),
        ("forky", "sha384", 0),
        ("forky", "sha384", 1),
    ],
    indirect=["guest"],
)
def test_the_kernel_connects_with_tls(cluster, guest, subsystem, port, use_key, note, hash_name, version):
    """What was written is read, over a reset of the controller and a new target."""
    use_key(hash_name, version, subsystem)
    output, code = connect(guest, subsystem, port, "--tls")
    assert code == 0, f"{output}\n{guest.run('cat /tmp/tlshd.log; dmesg | tail -30')}"
    device = device_of(guest, subsystem)
    guest.run(f"dd if=/dev/urandom of=/tmp/data bs=1M count={DATA_MIB} 2>/dev/null", 120)
    guest.run(f"dd if=/tmp/data of={device} bs=256k oflag=direct conv=notrunc 2>/dev/null", 300)
    controller = re.search(r"nvme\d+", guest.run("ls /sys/class/nvme"))[0]
    guest.run(f"nvme reset /dev/{controller}")
    cluster.restarted("nvme", cluster.kill("nvme"))
    guest.run(f"dd if={device} bs=256k count={DATA_MIB * 4} iflag=direct 2>/dev/null | cmp - /tmp/data", 300)
    assert "disconnected 1 controller" in guest.run(f"nvme disconnect -n {subsystem}")
    note(f"{hash_name} {version}")


@in_forky
def test_the_kernel_is_refused_without_tls_and_with_another_key(cluster, guest, subsystem, port, use_key):
    """The key of the guest is replaced here and not there."""
    use_key("sha256", 0, subsystem)
    assert connect(guest, subsystem, port)[1] != 0
    cluster.cli("nvme", "host", "set-tls", HOST)
    assert connect(guest, subsystem, port, "--tls")[1] != 0
    log = (cluster.data / "log" / "nvme.log").read_text()
    assert "connects without TLS" in log and "failed_tls" in log


@in_forky
def test_discovery_says_that_tls_is_needed(guest, subsystem, port, use_key):
    """nvme discover asks with TLS and is told what needs it."""
    use_key("sha256", 1, DISCOVERY)
    listed = guest.run(f"nvme discover -t tcp -a {HOST_ADDRESS} -s {port} --tls")
    assert subsystem in listed and re.search(r"treq: *required", listed) and re.search(r"sectype: *tls13", listed)
