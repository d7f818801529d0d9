"""Images over NVMe/TCP: single commands, rights, holds and hostile input, by a small initiator of the tests. What the
kernel's initiator does is in test_nvme_guest.py."""

import contextlib
import os
import random
import signal
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from lib.cluster import MIB
from lib.nbd import NbdError, connect_patiently
from lib.net import stopped
from lib.nvme import (
    ASYNC_EVENT,
    KEEP_ALIVE,
    SET_FEATURES,
    Controller,
    NvmeError,
    Queue,
    Terminated,
    discover,
    host_name,
    serving_cluster,
    subsystems,
)
from lib.ports import free_port, is_listening
from lib.verdicts import intact
from lib.waiting import wait_for

pytestmark = pytest.mark.any_order

HOST, OTHER = map(host_name, "12")
OPTIMIZED, INACCESSIBLE_STATE = 1, 3
INVALID_PARAMETERS, BUSY, INVALID_HOST = 0x182, 0x181, 0x184
INACCESSIBLE, COMPARE_FAILURE, FAILED_FUSED, WRITE_PROTECTED = 0x302, 0x285, 0x09, 0x20
INVALID_NAMESPACE = 0x0B


@pytest.fixture(scope="module")
def address():
    return "127.0.0.1", free_port()


@pytest.fixture(scope="module")
def cluster(scenario, address):
    images = {"disk": (HOST, OTHER), "other": (HOST, OTHER), "closed": (), "paths": (HOST, OTHER)}
    return serving_cluster(scenario, address, images, "64M", osd_size="4G")


@pytest.fixture(scope="module")
def subsystem(cluster):
    return subsystems(cluster)


@pytest.fixture
def connect(cluster, address, subsystem):
    def connect(image="disk", host=HOST, at=None, **options):
        return Controller(at or address, subsystem(image), host, **options)

    return connect


def refused(status, call, *arguments, **options):
    with pytest.raises(NvmeError) as error:
        call(*arguments, **options).close()
    assert error.value.status == status, error.value


def test_discovery_lists_what_the_host_may_use(cluster, address, subsystem):
    """The discovery log names what the host may use, and where."""
    assert sorted(discover(address, HOST)) == [(subsystem(name), address) for name in ("disk", "other", "paths")]
    assert discover(address, "nqn.2014-08.org.nvmexpress:uuid:stranger") == []


@pytest.mark.parametrize("digests", range(4))
def test_reads_and_writes(connect, digests):
    """What is written is read, in capsules and by R2T, with and without digests."""
    rng = random.Random(digests)
    with connect(digests=digests) as disk:
        assert disk.size == 64 * MIB
        for offset, length, in_capsule in (
            (0, 4096, True),
            (4096, 4096, False),
            (512 * 13, 512 * 3, True),
            (MIB * 4 - 4096, 65536, False),
            (MIB * 8, 32768, True),
        ):
            data = rng.randbytes(length)
            disk.write(offset, data, in_capsule)
            intact(disk.read(offset, length) == data, "other bytes")
        disk.flush()


def test_one_large_write(connect):
    """A write of the largest size is one transfer."""
    data = random.Random(7).randbytes(MIB)
    with connect() as disk:
        disk.write(MIB, data)
        intact(disk.read(MIB, MIB) == data, "other bytes")
        refused(0x02, disk.write, 0, bytes(MIB + 512))


def test_zeroes_and_trims_read_as_zeros(connect):
    """Write Zeroes and TRIM leave zeros, and nothing beside them."""
    with connect() as disk:
        disk.write(0, b"\1" * 65536)
        disk.zero(4096, 8192)
        disk.trim((16384, 4096), (32768, 4096))
        expected = bytearray(b"\1" * 65536)
        for start, length in ((4096, 8192), (16384, 4096), (32768, 4096)):
            expected[start : start + length] = bytes(length)
        intact(disk.read(0, 65536) == expected, "other bytes")


def test_compare_and_write(connect):
    """Compare-and-write writes only what is as expected."""
    with connect() as disk:
        disk.write(0, b"\1" * 4096)
        assert disk.compare_and_write(512, b"\1" * 512, b"\2" * 512) == [0, 0]
        assert disk.compare_and_write(512, b"\1" * 512, b"\3" * 512) == [COMPARE_FAILURE, FAILED_FUSED]
        intact(disk.read(0, 4096) == b"\1" * 512 + b"\2" * 512 + b"\1" * 3072, "other bytes")
        disk.compare(512, b"\2" * 512)
        refused(COMPARE_FAILURE, disk.compare, 512, b"\1" * 512)


def test_compare_and_write_counts_right_with_several_writers(connect):
    """Increments by compare-and-write over several queues are never lost."""
    rounds, at = 40, 8 * MIB

    def count():
        with connect() as disk:
            done = 0
            while done < rounds:
                now = disk.read(at, 512)
                value = struct.pack("<Q504x", struct.unpack("<Q504x", now)[0] + 1)
                done += disk.compare_and_write(at, now, value) == [0, 0]

    with connect() as disk:
        disk.zero(at, 4096)
        threads = [threading.Thread(target=count) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        intact(struct.unpack("<Q504x", disk.read(at, 512))[0] == 3 * rounds, "other bytes")


def test_hosts_that_are_not_named_are_refused(cluster, connect):
    """Only named hosts connect, and there is nothing for names that are none."""
    refused(INVALID_HOST, connect, "closed")
    refused(INVALID_HOST, connect, "disk", host="nqn.2014-08.org.nvmexpress:uuid:stranger")
    refused(INVALID_PARAMETERS, connect, "none")
    cluster.cli("image", "access", "closed", "--allow", "127.0.0.0/8")
    connect("closed").close()


def test_one_host_at_a_time(cluster, connect):
    """An image is for one host at a time, over any number of connections, and not for NBD meanwhile."""
    with connect(), connect():
        refused(BUSY, connect, host=OTHER)
        with pytest.raises(NbdError, match="in use"):
            cluster.nbd("disk").close()

    def other_can_connect():
        with contextlib.suppress(NvmeError):
            connect(host=OTHER).close()
            return True

    wait_for("the other host can connect", other_can_connect, 20, 0.5)


def test_an_image_that_nbd_has_is_busy(cluster, connect):
    """While an NBD client has the image, hosts are told to come later."""
    with cluster.nbd("other"):
        refused(BUSY, connect, "other")


def test_snapshots_and_read_only_images(cluster, connect):
    """A snapshot can be read by several hosts, and not written."""
    with connect("other") as disk:
        disk.write(0, b"\5" * 4096)
    cluster.cli("image", "snap", "create", "other@one")
    with connect("other@one") as one, connect("other@one", host=OTHER) as two:
        intact(one.read(0, 4096) == two.read(0, 4096) == b"\5" * 4096, "other bytes")
        assert one.identify(0, 1)[99] & 1, "it says that it is write-protected"
        refused(WRITE_PROTECTED, one.write, 0, bytes(4096))


def test_a_host_hears_of_a_new_size(cluster, connect):
    """A resize is an event, and the log page says which namespace."""
    with connect("other") as disk:
        disk.admin.command(SET_FEATURES, (0x0B, 0x900))
        disk.admin.send(disk.admin.sqe(ASYNC_EVENT))
        cluster.cli("image", "resize", "other", "--size", "96M")
        assert disk.admin.response()[1] == 0x04_00_02
        assert disk.log(4, 4096)[:8] == struct.pack("<II", 1, 0)
        assert disk.size == 96 * MIB
        disk.write(80 * MIB, b"\6" * 4096)


def test_a_silent_host_is_given_up(connect):
    """A host that says nothing for twice its keep-alive time loses its controller; one that speaks does not."""
    with connect(keep_alive_ms=1000) as silent, connect(keep_alive_ms=1000) as speaks:

        def is_closed():
            speaks.admin.command(KEEP_ALIVE)
            silent.admin.socket.settimeout(0.3)
            try:
                return silent.admin.socket.recv(1) == b""
            except TimeoutError:
                return False
            except ConnectionResetError:
                return True

        wait_for("the controller of the silent host ends", is_closed, 10)
        speaks.read(0, 4096)


def test_resets_end_io_queues(connect):
    """When the controller is disabled its I/O queues are gone, and can be made again."""
    with connect() as disk:
        disk.set_property(0x14, 0x460000)
        with pytest.raises(ConnectionError):
            disk.read(0, 512)
        assert disk.get_property(0x1C) == 0


def test_nothing_of_a_former_queue_is_done_after_what_follows_it(cluster, connect):
    """A host whose connections break while a trim is in flight connects again and writes: what it wrote stays."""
    former = connect()
    former.write(0, b"\1" * 4096)

    def go_on():
        disk = connect()
        disk.write(8 * MIB, b"\2" * 4096)
        return disk

    with ThreadPoolExecutor(1) as pool:
        with stopped(cluster.process_ids()["osd.0"]):
            # One range after the other, and the first one waits for the OSD.
            former.io.send(former.trim_entry((0, 4 * MIB), (8 * MIB, 4096)))
            time.sleep(0.2)
            former.close()
            goes_on = pool.submit(go_on)
            time.sleep(0.8)
        with goes_on.result(60) as disk:
            time.sleep(0.5)
            intact(disk.read(8 * MIB, 4096) == b"\2" * 4096, "other bytes")


def test_hostile_input_ends_that_connection_only(connect, address):
    """Noise and wrong PDUs end a connection with a reason, and harm nobody else."""
    rng = random.Random(1)
    with connect() as disk:
        for number in range(60):
            with Queue(address) as queue:
                kind = rng.choice([0, 2, 4, 6, 6, 4, 77])
                pdu = bytearray(queue.pdu(4, rng.randbytes(64), rng.randbytes(rng.choice([0, 512, 8192]))))
                pdu[0] = kind
                for _ in range(rng.randrange(3)):
                    pdu[rng.randrange(16)] = rng.randrange(256)
                try:
                    queue.socket.sendall(pdu if number % 3 else rng.randbytes(4096))
                    # The target may have ended the connection by now.
                    with contextlib.suppress(OSError):
                        queue.socket.shutdown(socket.SHUT_WR)
                    while True:
                        queue.response()
                except (Terminated, ConnectionError, NvmeError, AssertionError, struct.error):
                    pass
        disk.write(0, b"\7" * 4096)
        intact(disk.read(0, 4096) == b"\7" * 4096, "other bytes")


def test_data_that_was_not_asked_for_ends_the_connection(connect):
    """A data PDU without an R2T is a fatal error, which the host is told."""
    with connect() as disk:
        disk.io.socket.sendall(disk.io.pdu(6, struct.pack("<HHIII", 1, 1, 0, 512, 0), bytes(512), 4))
        with pytest.raises(Terminated) as error:
            disk.io.response()
        assert error.value.status == 1
        # The admin queue is another connection.
        disk.admin.command(KEEP_ALIVE)


def ana_state(controller):
    return controller.log(0x0C, 52)[32]


@pytest.fixture
def gateways(scenario, cluster, connect):
    """Two gateways beside the cluster's own, each with a controller; the first has the image 'paths'."""
    started = []
    for is_first in (True, False):
        port = free_port()
        log, listen = scenario.directory / f"nvme-{port}.log", f"127.0.0.1:{port}"
        command = (scenario.atoll, "nvme", "run", "--data", cluster.data, "--listen", listen)
        process = scenario.start_logged(log, *command, env=cluster.environment())
        wait_for("a gateway listens", lambda port=port: is_listening(port), 30)
        controller = connect("paths", at=("127.0.0.1", port))
        started.append((process, controller))
        if is_first:
            wait_for("it has the image", lambda c=controller: ana_state(c) == OPTIMIZED, 20)
    yield started
    for process, controller in started:
        controller.close()
        process.kill()
        process.wait()


def test_a_second_gateway_takes_over(cluster, gateways, connect):
    """A second gateway shows the image as inaccessible while the first has it, and takes it when that is killed."""
    (first, one), (_, two) = gateways
    with one, two:
        assert one.identify(0, 1)[104:120] == two.identify(0, 1)[104:120], "both show the same namespace"
        assert one.identify(1)[4:24] == two.identify(1)[4:24]
        assert (ana_state(one), ana_state(two)) == (OPTIMIZED, INACCESSIBLE_STATE)
        one.write(0, b"\1" * 4096)
        refused(INACCESSIBLE, two.read, 0, 4096)
        assert cluster.json("image", "info", "paths")["writer"]["nvme_host"] == HOST
        refused(BUSY, connect, "paths", host=OTHER, at=two.address)
        two.admin.command(SET_FEATURES, (0x0B, 0x900))
        two.admin.send(two.admin.sqe(ASYNC_EVENT))
        first.kill()
        first.wait()
        assert two.admin.response()[1] == 0x0C_03_02
        assert ana_state(two) == OPTIMIZED
        intact(two.read(0, 4096) == b"\1" * 4096, "other bytes")
        two.write(0, b"\2" * 4096)


@pytest.mark.nightly
def test_a_gateway_that_was_paused_writes_nothing_more(gateways):
    """A gateway that is stopped for longer than its lease has lost the image: what its host sends is not done."""
    (first, one), (_, two) = gateways
    with one, two:
        one.write(0, b"\3" * 4096)
        os.kill(first.pid, signal.SIGSTOP)
        entry = one.io.sqe(1, (0, 0, 7), 1, b"\4" * 4096)
        one.io.send(entry)
        wait_for("the second gateway has the image", lambda: ana_state(two) == OPTIMIZED, 40)
        two.write(0, b"\5" * 4096)
        os.kill(first.pid, signal.SIGCONT)
        refused(INACCESSIBLE, one.io.response)
        intact(two.read(0, 4096) == b"\5" * 4096, "other bytes")
        wait_for("the first gateway knows", lambda: ana_state(one) == INACCESSIBLE_STATE, 10)


def has_no_namespace(controller):
    return controller.identify(2)[:4] == bytes(4)


def test_a_controller_whose_lock_was_broken_has_no_namespace(cluster, connect):
    """A gateway does not take an image again for a host when its lock was broken; the host connects anew."""
    with connect("paths") as disk:
        disk.write(0, b"\1" * 4096)
        disk.admin.command(SET_FEATURES, (0x0B, 0x100))
        disk.admin.send(disk.admin.sqe(ASYNC_EVENT))
        cluster.cli("image", "lock", "break", "paths", "--yes")
        assert disk.admin.response()[1] == 0x04_00_02
        assert has_no_namespace(disk)
        refused(INVALID_NAMESPACE, disk.write, 0, b"\2" * 4096)
    with connect("paths") as disk:
        intact(disk.read(0, 4096) == b"\1" * 4096, "other bytes")


@pytest.mark.nightly
def test_an_image_that_others_have_changed_is_not_given_back(cluster, gateways, connect):
    """Controllers of gateways that stood still while an NBD client wrote have no namespace any more."""
    (first, one), (second, two) = gateways
    with one, two:
        one.write(0, b"\3" * 4096)
        with stopped(first.pid), stopped(second.pid):
            with connect_patiently(lambda: cluster.nbd("paths"), 40) as disk:
                disk.write(0, b"\4" * 4096)
            wait_for("NBD lets go", lambda: cluster.json("image", "info", "paths")["writer"] is None, 20)
        for controller in (one, two):
            wait_for("it has no namespace", lambda c=controller: has_no_namespace(c), 20)
            refused(INVALID_NAMESPACE, controller.write, 0, b"\5" * 4096)
        with connect("paths", at=one.address) as disk:
            intact(disk.read(0, 4096) == b"\4" * 4096, "other bytes")
            disk.write(0, b"\6" * 4096)
