"""Images over NVMe/TCP with the initiator of the Linux kernel, nvme-cli and fio, in a guest under QEMU.

What fio writes is verified while the controller is reset, the target is killed, and one of two gateways is killed. In
the end the guest has to prove itself.
"""

import re
import signal

import pytest
from lib.cluster import MIB
from lib.guest import HOST_ADDRESS, Guest, kernel_has
from lib.nvme import serving_cluster, subsystems
from lib.nvme_guest import connect_command, device_of, host_name, identity_files
from lib.ports import free_port
from lib.waiting import under_load, wait_for

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.needs("qemu-system-x86_64", "busybox", "nvme", "fio"),
]

HOST_ID = "7c2d7e0e-2a6c-4b55-9b7d-3a8f5f0c1a11"
HOST = host_name(HOST_ID)
SIZE, JOB_BYTES = 64 * MIB, 48 * MIB


@pytest.fixture(scope="module")
def port():
    return free_port()


@pytest.fixture(scope="module")
def cluster(scenario, port):
    images = {"disk": (HOST,), "paths": (HOST,), "closed": ()}
    return serving_cluster(scenario, ("127.0.0.1", port), images, SIZE, osd_size="4G")


@pytest.fixture(scope="module")
def subsystem(cluster):
    return subsystems(cluster)


@pytest.fixture(scope="module")
def guest(scenario):
    modules, programs = ("nvme-core", "nvme-tcp"), {"nvme": "nvme", "fio": "fio"}
    with Guest(scenario.directory, modules, programs, identity_files(HOST_ID), append="nvme_core.multipath=Y") as guest:
        yield guest


def connect(guest, subsystem, port, *options):
    return guest.run(connect_command(subsystem, port, *options))


def connects(guest, subsystem, port):
    """Whether a gateway takes the guest's connection, which may be too early for it."""
    return guest.finish(guest.start(connect_command(subsystem, port)))[1] == 0


@pytest.fixture
def disk(guest, cluster, subsystem, port):
    """The device of image 'disk', connected for one test."""
    name = subsystem("disk")
    connect(guest, name, port, "--hdr-digest", "--data-digest")
    yield device_of(guest, name)
    assert "disconnected 1 controller" in guest.run(f"nvme disconnect -n {name}")


def fio(device, seconds=None, seed=5):
    """A job that writes everything once, in so many seconds, and then verifies it. (Of jobs that go on for some time
    fio finds its own overwrites wrong, on every device.)"""
    job = f"--rw=randwrite --bsrange=4k-64k --iodepth=16 --size={JOB_BYTES} --randseed={seed}"
    job += f" --rate={JOB_BYTES // seconds}" if seconds else ""
    verify = "--ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 --do_verify=1 --thread"
    return f"fio --name=job --filename={device} {verify} {job} --output-format=terse"


def test_nvme_cli_discovers_what_the_host_may_use(guest, cluster, subsystem, port):
    """nvme discover lists the images of this host, and no others."""
    listed = guest.run(f"nvme discover -t tcp -a {HOST_ADDRESS} -s {port}")
    assert sorted(re.findall(r"subnqn: *(\S+)", listed)) == [subsystem("disk"), subsystem("paths")]
    assert guest.finish(guest.start(connect_command(subsystem("closed"), port)))[1]


def test_the_kernel_takes_the_device_as_it_is(guest, disk):
    """The kernel sees size, block sizes, and what can be discarded."""
    queue = f"/sys/block/{disk[5:]}/queue"
    values = guest.run(
        f"cat /sys/block/{disk[5:]}/size {queue}/logical_block_size {queue}/physical_block_size "
        f"{queue}/discard_granularity {queue}/max_hw_sectors_kb {queue}/write_cache"
    )
    assert [line for line in values.split("\n") if line][-6:] == [
        str(SIZE // 512),
        "512",
        "4096",
        "4096",
        "1024",
        "write through",
    ]


def test_fio_verifies(guest, disk, note):
    """fio verifies what it has written, with digests."""
    note(guest.run(fio(disk), 200).strip()[:80])


def test_commands_of_nvme_cli(guest, disk):
    """flush, write zeroes, dsm and compare, from nvme-cli and blkdiscard."""
    guest.run("dd if=/dev/urandom of=/tmp/data bs=4096 count=4 2>/dev/null")
    guest.run(f"dd if=/tmp/data of={disk} bs=4096 oflag=direct conv=notrunc 2>/dev/null && sync")
    guest.run(f"nvme flush {disk}")
    guest.run(f"nvme compare {disk} -s 0 -c 31 -z 16384 -d /tmp/data")
    assert guest.finish(guest.start(f"nvme compare {disk} -s 1 -c 30 -z 15872 -d /tmp/data"))[1], "they differ"
    guest.run(f"nvme write-zeroes {disk} -s 0 -c 7")
    guest.run(f"nvme dsm {disk} --ad --slbs=8 --blocks=8")
    guest.run(f"blkdiscard -o 8192 -l 4096 {disk}")
    guest.run(f"dd if={disk} of=/tmp/back bs=4096 count=4 iflag=direct 2>/dev/null")
    guest.run("dd if=/dev/zero of=/tmp/want bs=4096 count=3 2>/dev/null")
    guest.run("dd if=/tmp/data bs=4096 skip=3 2>/dev/null >> /tmp/want")
    guest.run("cmp /tmp/back /tmp/want")
    for log in ("smart-log", "fw-log", "error-log", "effects-log", "ana-log", "id-ctrl"):
        guest.run(f"nvme {log} /dev/{re.match(r'/dev/(nvme[0-9]+)', disk)[1]}")
    guest.run(f"nvme id-ns {disk} && nvme list && nvme list-subsys")


def test_the_guest_hears_of_a_new_size(guest, cluster, disk):
    """A resize reaches the guest by itself."""
    cluster.cli("image", "resize", "disk", "--size", SIZE + 32 * MIB)
    size = lambda: str((SIZE + 32 * MIB) // 512) in guest.run(f"cat /sys/block/{disk[5:]}/size")
    wait_for("the guest sees the new size", size, 15, 0.5)


def test_fio_goes_on_over_resets(guest, disk):
    """fio verifies what it has written while the controller is reset several times."""
    controller = guest.run("ls /sys/class/nvme | head -1").split()[-1]
    resets = f"for n in 1 2 3; do sleep 2; nvme reset /dev/{controller}; done; echo > /tmp/was-reset"
    guest.run(f"({resets}) & {fio(disk, 12, seed=6)}", 200)
    guest.run("rm /tmp/was-reset")


def test_fio_goes_on_when_the_target_is_killed(guest, cluster, disk):
    """fio verifies what it has written although the target is killed under it, and started again."""
    running = guest.start(fio(disk, 15, seed=7))
    under_load(4)
    cluster.restarted("nvme", cluster.kill("nvme"))
    output, code = guest.finish(running, 200)
    assert code == 0, f"{output[-3000:]}\n{guest.run('dmesg | tail -40')}"


def test_fio_goes_on_when_one_of_two_gateways_is_killed(scenario, guest, cluster, subsystem, note):
    """With two gateways, fio sees no error when the one that has the image is killed, nor when it comes back."""
    ports, gateways = [free_port(), free_port()], []
    name = subsystem("paths")

    def start(port):
        log = scenario.directory / f"nvme-{port}.log"
        listen = ("--data", cluster.data, "--listen", f"127.0.0.1:{port}")
        return scenario.start_logged(log, scenario.atoll, "nvme", "run", *listen, env=cluster.environment())

    gateways = [start(port) for port in ports]
    for port in ports:
        wait_for("the gateway answers", lambda port=port: connects(guest, name, port), 30, 1)
    device = device_of(guest, name)
    states = lambda: guest.run(f"cat /sys/block/{device[5:].replace('n1', '')}*c*n1/ana_state /sys/class/nvme/*/state")
    note(" ".join(states().split()))
    running = guest.start(fio(device, 25))
    under_load(5)
    gateways[0].send_signal(signal.SIGKILL)
    gateways[0].wait()
    under_load(8)
    gateways[0] = start(ports[0])
    under_load(6)
    gateways[1].send_signal(signal.SIGKILL)
    gateways[1].wait()
    output, code = guest.finish(running, 240)
    assert code == 0, f"{output[-3000:]}\n{guest.run('dmesg | tail -40')}"
    assert "disconnected 2 controller" in guest.run(f"nvme disconnect -n {name}")
    gateways[0].kill()


@pytest.fixture(scope="module")
def secrets(cluster):
    """From now on the guest must prove itself: options of 'nvme connect' by which it does."""
    assert kernel_has("nvme-tcp", "CONFIG_NVME_HOST_AUTH"), (
        "the guest's kernel knows no DH-HMAC-CHAP; 'make nightly-packages'"
    )
    told = cluster.json("nvme", "host", "set", HOST, "--mutual", "--hash", "sha512")
    yield f"--dhchap-secret={told['secret']}", f"--dhchap-ctrl-secret={told['controller_secret']}"
    cluster.cli("nvme", "host", "rm", HOST)


def test_the_kernel_proves_itself_and_has_the_gateway_do_so(guest, cluster, subsystem, port, secrets, note):
    """fio verifies what it has written over queues that were authenticated both ways, over a reset and a new target."""
    name = subsystem("disk")
    connect(guest, name, port, *secrets)
    device = device_of(guest, name)
    running = guest.start(fio(device, 15, seed=8))
    under_load(3)
    controller = re.search(r"nvme\d+", guest.run("ls /sys/class/nvme"))[0]
    guest.run(f"nvme reset /dev/{controller}")
    cluster.restarted("nvme", cluster.kill("nvme"))
    output, code = guest.finish(running, 240)
    assert code == 0, f"{output[-3000:]}\n{guest.run('dmesg | tail -40')}"
    note(re.findall(r"authenticated.*", guest.run("dmesg"))[-1])
    assert "disconnected 1 controller" in guest.run(f"nvme disconnect -n {name}")


def test_the_kernel_is_refused_without_the_right_secrets(guest, subsystem, port, secrets):
    """Without a secret, with another, and when the gateway has another than the host expects."""
    name, (host, controller) = subsystem("disk"), secrets
    other = guest.run("nvme gen-dhchap-key").split()[-1]
    for options in ((), (f"--dhchap-secret={other}",), (host, f"--dhchap-ctrl-secret={other}")):
        output, code = guest.finish(guest.start(connect_command(name, port, *options)), 60)
        assert code != 0, f"{options}: {output}"
    connect(guest, name, port, host, controller)
    guest.run(f"nvme disconnect -n {name}")
