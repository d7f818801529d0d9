"""Block images over NBD with fio, nbdcopy, nbdinfo, qemu-img, qemu-io and mkfs.ext4; data verified
after kill -9 of every process."""

import json
import pathlib
import random
import re
import shutil
import time

import pytest
from lib.cluster import MIB
from lib.fio import fio, qemu_io, sha256_of, write_note
from lib.load import BlockLoad
from lib.nbd import NbdError, connect_patiently
from lib.verdicts import DataFailure, intact
from lib.waiting import NotYet, wait_for

pytestmark = [
    pytest.mark.any_order,
    pytest.mark.needs("fio", "nbdinfo", "nbdcopy", "qemu-img", "qemu-io", "mkfs.ext4", "e2fsck"),
]


SMALL, LARGE = 64 * MIB, 256 * MIB
# fio writes everything once, then all processes are killed, then fio verifies.
JOBS = {
    "small": {"rw": "randwrite", "bs": "4k", "iodepth": 32, "size": SMALL, "randseed": 42},
    "large": {"rw": "write", "bs": "4M", "iodepth": 4, "size": LARGE, "randseed": 43, "verify_interval": 4096},
}


@pytest.fixture(scope="module")
def cluster(scenario):
    cluster = scenario.cluster(osd_size="8G")
    cluster.up()
    for name, size in (
        ("small", SMALL),
        ("large", LARGE),
        ("other", SMALL),
        ("loaded", "64M"),
        ("deep", "256M"),
        ("huge", "2T"),
    ):
        cluster.create_image(name, size)
    cluster.open_to_tcp("other")
    return cluster


@pytest.fixture(scope="module")
def killed(scenario, cluster):
    """kill -9 of every process after two fio jobs, and under a load whose acks are recorded; all starts again."""
    for name, job in JOBS.items():
        fio(scenario, cluster.nbd_uri(name), name, verify="crc32c", do_verify=0, **job)
    load = BlockLoad(lambda: cluster.nbd("loaded", timeout=30), threads=4, blocks_per_thread=512).start()
    wait_for("1000 acks", lambda: load.acked >= 1000, 60, 0.01)
    time.sleep(random.random() * 0.2)
    load.killed = len(cluster.all_pids())
    cluster.kill_all()
    assert load.stop(60), "a load thread hangs"
    load.seconds = cluster.up()
    return load


@pytest.fixture(scope="module")
def local(scenario):
    """A file system image of real files of this machine."""
    tree, local = scenario.directory / "tree", scenario.directory / "fs.raw"
    rng = random.Random(3)
    files = sorted(
        path for path in pathlib.Path("/usr/share/doc").rglob("*") if path.is_file() and not path.is_symlink()
    )
    for path in rng.sample(files, min(len(files), 1500)):
        target = tree / path.relative_to("/usr/share")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    (tree / "noise").write_bytes(rng.randbytes(32 * MIB))
    with open(local, "wb") as file:
        file.truncate(192 * MIB)
    scenario.run("mkfs.ext4", "-q", "-F", "-d", tree, local)
    return local


@pytest.fixture
def image(cluster, request):
    """An image of the test's own."""
    name = re.sub("[^a-z0-9]+", "-", request.node.name)[5:60].strip("-")
    cluster.create_image(name, "64M")
    return name


@pytest.fixture
def shared(cluster, image):
    """The same, which several clients may use over TCP and the Unix socket at once."""
    cluster.open_to_tcp(image, "--access", "multi-attach")
    return image


@pytest.fixture
def uri(cluster, image):
    return cluster.nbd_uri(image)


def test_no_wrong_byte_is_read_before_all_processes_are_killed(killed, note):
    """kill -9 of every process under a load: no wrong byte was read before."""
    intact(not killed.wrong, "\n".join(killed.wrong[:5]))
    note(f"{killed.acked} writes acked, {killed.open_ended} cut off, {killed.killed} processes killed")


def test_the_images_can_be_attached_again_after_the_kill(cluster, killed, note):
    """The images can be attached again."""
    started = time.monotonic()
    connect_patiently(lambda: cluster.nbd("loaded"), 60).close()
    note(f"healthy after {killed.seconds:.1f} s, attached {time.monotonic() - started:.1f} s later")


@pytest.mark.parametrize("name", JOBS)
def test_fio_verifies_what_it_wrote_before_the_kill(scenario, cluster, killed, name):
    """fio verifies what it wrote before all processes were killed."""
    fio(scenario, cluster.nbd_uri(name), name, verify="crc32c", verify_only=None, **JOBS[name])


def test_every_acked_write_is_there_after_the_kill(cluster, killed, note):
    """Every acked write of the other load is there, no byte is wrong."""
    with connect_patiently(lambda: cluster.nbd("loaded")) as connection:
        checked = killed.verify(connection)
    intact(not killed.wrong, f"{len(killed.wrong)} of {checked}:\n" + "\n".join(killed.wrong[:5]))
    note(f"{checked} blocks")


def test_fio_verifies_while_it_writes(scenario, cluster, note):
    """fio verifies while it writes, over TCP with several connections."""
    job = fio(
        scenario,
        cluster.nbd_uri("other", tcp=True),
        "tcp",
        verify="crc32c",
        rw="randrw",
        bs="4k",
        iodepth=16,
        numjobs=3,
        thread=None,
        size=SMALL // 8,
        offset_increment=SMALL // 4,
        randseed=7,
    )
    note(write_note(job))


def test_fio_with_unaligned_sizes_verifies(scenario, cluster):
    """fio with unaligned sizes verifies."""
    fio(
        scenario,
        cluster.nbd_uri("other"),
        "odd",
        verify="crc32c",
        rw="randwrite",
        bsrange="512-70k",
        blocksize_unaligned=None,
        iodepth=16,
        size=SMALL // 4,
        io_size=SMALL // 4,
        randseed=9,
    )


@pytest.mark.parametrize(
    "job",
    [
        dict(rw="randwrite", bs="4k", iodepth=2048, size="32M"),
        dict(rw="randread", bs="4k", iodepth=2048, size="32M"),
        dict(rw="write", bs="4M", iodepth=48, size="192M"),
        pytest.param(dict(rw="read", bs="4M", iodepth=48, size="192M"), marks=pytest.mark.nightly),
        dict(rw="read", bs="32M", iodepth=6, size="192M"),
        dict(rw="randrw", bs="64k", iodepth=256, numjobs=6, thread=None, size="16M"),
    ],
    ids=lambda job: f"{job['rw']}-{job['bs']}",
)
def test_fio_with_more_in_flight_than_the_server_takes(scenario, cluster, job, note):
    """More in flight than the server takes at once: it makes the client wait."""
    before = cluster.process_ids()
    result = fio(scenario, cluster.nbd_uri("deep"), "deep", timeout=90, **job)
    assert cluster.process_ids() == before, f"a process has died: {before} -> {cluster.process_ids()}"
    kind = result["write"] if "write" in job["rw"] else result["read"]
    note(f"{kind['iops']:.0f} IOPS, {kind['bw_bytes'] / 1e6:.0f} MB/s")


def test_nbdinfo_describes_the_export(scenario, cluster, shared, note):
    """nbdinfo describes the export."""
    for tcp in (False, True):
        export = json.loads(scenario.run("nbdinfo", "--json", cluster.nbd_uri(shared, tcp)).stdout)
        assert export["protocol"] == "newstyle-fixed" and export["structured"], f"no structured replies: {export}"
        export = export["exports"][0]
        assert export["export-size"] == 64 * MIB, f"size {export['export-size']}"
        for flag in ("can_flush", "can_fua", "can_trim", "can_zero", "can_multi_conn"):
            assert export[flag] is True, f"{flag} is {export[flag]}"
        assert export["is_read_only"] is False, "read-only"
    note(f"blocks {export['block_size_minimum']}/{export['block_size_preferred']}/{export['block_size_maximum']}")


def test_nbdinfo_list_shows_the_images(scenario, cluster):
    """nbdinfo --list shows the images."""
    listed = json.loads(scenario.run("nbdinfo", "--list", "--json", f"nbd+unix://?socket={cluster.nbd_socket}").stdout)
    names = {export["export-name"] for export in listed["exports"]}
    assert {"small", "large", "other", "huge"} <= names, f"listed: {names}"


def test_an_export_that_does_not_exist_is_refused_with_a_clear_error(cluster, note):
    """An export that does not exist is refused with a clear error."""
    with pytest.raises(NbdError, match="nobody") as refused:
        cluster.nbd("nobody").close()
    note(str(refused.value).split("refused: ", 1)[1][:100])


def test_qemu_img_info_over_nbd(scenario, uri):
    """qemu-img info over NBD."""
    info = json.loads(scenario.run("qemu-img", "info", "--output=json", uri).stdout)
    assert info["virtual-size"] == 64 * MIB, f"{info}"


def test_mkfs_ext4_makes_a_file_system_image_of_real_files(local, note):
    """mkfs.ext4 -d makes a file system image of real files."""
    note(f"{local.stat().st_size / MIB:.0f} MiB")


@pytest.mark.parametrize(("name", "tcp"), [("fs", False), ("fs-tcp", True)])
def test_nbdcopy_in_and_out(scenario, cluster, name, tcp, local, note):
    """nbdcopy in and out over the Unix socket and TCP: checksums equal."""
    cluster.create_image(name, "192M")
    if tcp:
        cluster.open_to_tcp(name)
    uri, back = cluster.nbd_uri(name, tcp), scenario.directory / f"{name}.back"
    started = time.monotonic()
    scenario.run("nbdcopy", "--connections=4", "--flush", local, uri, timeout=180)
    into = time.monotonic() - started
    started = time.monotonic()
    scenario.run("nbdcopy", "--connections=4", uri, back, timeout=180)
    intact(sha256_of(local) == sha256_of(back), "the copy differs")
    note(f"in {into:.1f} s, out {time.monotonic() - started:.1f} s")


def test_e2fsck_finds_no_fault_in_the_copy(scenario, cluster, local):
    """e2fsck finds no fault in the copy."""
    cluster.create_image("fs-checked", "192M")
    scenario.run("nbdcopy", "--connections=4", "--flush", local, cluster.nbd_uri("fs-checked"), timeout=180)
    scenario.run("nbdcopy", cluster.nbd_uri("fs-checked"), scenario.directory / "fs.checked", timeout=180)
    scenario.run("e2fsck", "-fn", scenario.directory / "fs.checked", failure=DataFailure)


def test_qemu_img_convert_from_and_to_an_image(scenario, cluster, local):
    """qemu-img convert from and to an image."""
    for name in ("fs-converted", "fs-back"):
        cluster.create_image(name, "192M")
    cluster.open_to_tcp("fs-back")
    scenario.run("nbdcopy", "--connections=4", "--flush", local, cluster.nbd_uri("fs-converted"), timeout=180)
    scenario.run(
        "qemu-img",
        "convert",
        "-O",
        "qcow2",
        cluster.nbd_uri("fs-converted"),
        scenario.directory / "fs.qcow2",
        timeout=180,
    )
    done = scenario.run(
        "qemu-img",
        "compare",
        "-f",
        "raw",
        "-F",
        "qcow2",
        local,
        scenario.directory / "fs.qcow2",
        ok=(0, 1),
        timeout=180,
    )
    intact("identical" in done.stdout, done.stdout)
    scenario.run(
        "qemu-img",
        "convert",
        "-n",
        "-f",
        "qcow2",
        "-O",
        "raw",
        scenario.directory / "fs.qcow2",
        cluster.nbd_uri("fs-back"),
        timeout=180,
    )
    done = scenario.run(
        "qemu-img", "compare", "-f", "raw", "-F", "raw", local, cluster.nbd_uri("fs-back", True), ok=(0, 1), timeout=180
    )
    intact("identical" in done.stdout, done.stdout)


def test_unaligned_writes_leave_their_neighbours_alone(scenario, cluster, uri):
    """Unaligned writes leave their neighbours alone (qemu-io)."""
    qemu_io(
        scenario,
        uri,
        "write -P 0x11 0 64k",
        "write -P 0xab 512 512",
        "write -P 0xcd 4000 200",
        "write -P 0xee 12287 1",
        "read -P 0x11 0 512",
        "read -P 0xab 512 512",
        "read -P 0x11 1024 2976",
        "read -P 0xcd 4000 200",
        "read -P 0x11 4200 8087",
        "read -P 0xee 12287 1",
        "read -P 0x11 12288 53248",
        "flush",
    )


def test_writes_across_the_border_of_two_objects(scenario, uri):
    """Writes across the border of two objects (4 MiB)."""
    qemu_io(
        scenario,
        uri,
        "write -P 0x21 4190208 8192",
        "write -P 0x22 4194000 700",
        "read -P 0x21 4190208 3792",
        "read -P 0x22 4194000 700",
        "read -P 0x21 4194700 3700",
        "read -P 0 4198400 4096",
    )


def test_the_images_end_and_nothing_beyond(scenario, cluster, image, uri):
    """The image's end, and nothing beyond."""
    qemu_io(scenario, uri, "write -P 0x33 67108352 512", "read -P 0x33 67108352 512")
    with cluster.nbd(image) as connection:
        for offset, length in ((64 * MIB, 1), (64 * MIB - 1, 2), (1 << 63, 4096)):
            for kind in ("read", "write", "trim", "zero"):
                with pytest.raises(NbdError) as refused:
                    getattr(connection, kind)(offset, bytes(length) if kind == "write" else length)
                assert refused.value.number in (22, 28), f"{kind} at {offset}+{length}: {refused.value}"
        intact(connection.read(64 * MIB - 1, 1) == b"\x33", "the connection is of no use after the refusals")


def test_trim_whole_blocks_read_as_zeros(scenario, uri):
    """TRIM: whole blocks read as zeros, neighbours stay."""
    qemu_io(
        scenario,
        uri,
        "write -P 0x44 8M 8M",
        "discard 10M 2M",
        "read -P 0x44 8M 2M",
        "read -P 0 10M 2M",
        "read -P 0x44 12M 4M",
        "discard 8390000 20000",
        "read -P 0x44 8M 1392",
        "read -P 0 8392704 16384",
    )


def test_write_zeroes_exactly_the_range_reads_as_zeros(scenario, uri):
    """WRITE_ZEROES: exactly the range reads as zeros."""
    qemu_io(
        scenario,
        uri,
        "write -P 0x55 16M 8M",
        "write -z 17M 2M",
        "read -P 0x55 16M 1M",
        "read -P 0 17M 2M",
        "read -P 0x55 19M 5M",
        "write -z -u 20972000 9000",
        "read -P 0x55 20971520 480",
        "read -P 0 20972000 9000",
        "read -P 0x55 20981000 100",
        "write -z 24M 40M",
        "read -P 0 24M 40M",
    )


def test_fua_writes_and_flushes(scenario, cluster, image, uri):
    """FUA writes and flushes."""
    qemu_io(scenario, uri, "write -f -P 0x66 1M 4k", "read -P 0x66 1M 4k", "flush")
    with cluster.nbd(image) as connection:
        connection.write(3 * MIB, b"f" * 4096, fua=True)
        connection.flush()
        intact(connection.read(3 * MIB, 4096) == b"f" * 4096, "other bytes")


def test_random_reads_writes_trims_and_zeroes_of_any_alignment_against_a_model(scenario, cluster, shared, note):
    """Random reads, writes, trims and zeroes of any alignment against a model."""
    note(f"{against_model(cluster, shared, int(1500 * scenario.scale))} operations on 3 connections")


def test_allocation_is_told_trimmed_and_unwritten_ranges_are_no_data(scenario, cluster, note):
    """Allocation is told: trimmed and unwritten ranges are no data (nbdinfo --map)."""
    cluster.create_image("sparse", "64M")
    qemu_io(scenario, cluster.nbd_uri("sparse"), "write -P 1 8M 4M")
    pieces = json.loads(scenario.run("nbdinfo", "--map", "--json", cluster.nbd_uri("sparse")).stdout)
    data = sum(piece["length"] for piece in pieces if piece["type"] == 0)
    assert data >= 4 * MIB and sum(piece["length"] for piece in pieces) == 64 * MIB, f"{pieces}"
    note(f"{data / MIB:g} of 64 MiB are data, 4 were written")


def against_model(cluster, image, count):
    """Random operations one after the other over several connections, compared with a byte array."""
    base, size = 32 * MIB, 9 * MIB
    rng, model = random.Random(17), bytearray(size)
    connections = [cluster.nbd(image, tcp=index == 2) for index in range(3)]
    connections[0].zero(base, size)
    for number in range(count):
        connection = rng.choice(connections)
        length = rng.choice((1, 511, 512, 4096, 5000, 65536, 200_000, rng.randrange(1, 1_500_000)))
        offset = rng.randrange(size - length)
        kind = rng.choice(("read", "read", "write", "write", "zero", "trim"))
        if kind == "write":
            data = rng.randbytes(length)
            connection.write(base + offset, data, fua=rng.random() < 0.1)
            model[offset : offset + length] = data
        elif kind == "zero":
            connection.zero(base + offset, length)
            model[offset : offset + length] = bytes(length)
        elif kind == "trim":
            connection.trim(base + offset, length)
            first, last = -(-offset // 4096) * 4096, (offset + length) // 4096 * 4096
            if first < last:
                model[first:last] = bytes(last - first)
        else:
            intact(
                connection.read(base + offset, length) == model[offset : offset + length],
                f"operation {number}: read {offset}+{length} differs from the model",
            )
    intact(
        b"".join(connections[0].read(base + at, MIB) for at in range(0, size, MIB)) == model, "the end state differs"
    )
    for connection in connections:
        connection.close()
    return count


def test_a_2_tib_image(cluster):
    """A 2 TiB image: far apart writes, all else zeros."""
    with cluster.nbd("huge") as connection:
        assert connection.size == 2 << 40, f"size {connection.size}"
        for place in (0, 1 << 40, (2 << 40) - 4096):
            connection.write(place, b"huge" * 1024)
        intact(
            all(connection.read(place, 4096) == b"huge" * 1024 for place in (0, 1 << 40, (2 << 40) - 4096)),
            "other bytes",
        )
        intact(connection.read((1 << 40) + 4096, 65536) == bytes(65536), "unwritten bytes are not zeros")


def test_resize_an_image_grows_under_no_client(cluster):
    """Resize: an image grows under no client, and the new part is zeros."""
    cluster.create_image("grown", "64M")
    with cluster.nbd("grown") as connection:
        connection.write(8 * MIB, b"\x01" * 4096)
    cluster.cli("image", "resize", "grown", "--size", "128M")
    with connect_patiently(lambda: cluster.nbd("grown")) as connection:
        assert connection.size == 128 * MIB, f"size {connection.size}"
        intact(
            connection.read(8 * MIB, 4096) == b"\x01" * 4096 and connection.read(100 * MIB, 4096) == bytes(4096),
            "other bytes",
        )


def test_a_second_writer_is_refused_while_a_client_is_attached(cluster, image, note):
    """A second writer is refused while a client is attached, with an error that says who holds it."""
    with cluster.nbd(image) as connection:
        before = connection.read(0, 4096)
        done = cluster.cli(
            "bench",
            "block",
            "--image",
            image,
            "--rw",
            "randwrite",
            "--bs",
            "4k",
            "--qd",
            "1",
            "--seconds",
            "1",
            "--json",
            ok=None,
        )
        assert done.returncode != 0, f"the second writer was let in: {done.stdout[:500]}"
        assert "in use" in done.stderr and image in done.stderr, f"not a clear error: {done.stderr}"
        intact(connection.read(0, 4096) == before, "the image has changed")
        connection.write(0, b"w" * 4096)
        intact(connection.read(0, 4096) == b"w" * 4096, "the first writer has lost the image")
    note(done.stderr.strip().splitlines()[-1][:120])


def test_an_attached_image_is_not_removed_under_its_client(cluster, image, note):
    """An attached image is not removed under its client."""
    with cluster.nbd(image) as connection:
        connection.write(0, b"w" * 4096)
        done = cluster.cli("image", "rm", image, ok=None)
        assert done.returncode != 0, "it was removed"
        intact(connection.read(0, 4096) == b"w" * 4096, "its data is gone")
    note((done.stderr.strip().splitlines() or [""])[-1][:120])


@pytest.mark.nightly
def test_after_the_client_has_gone_the_next_writer_gets_the_image(cluster, image, note):
    """After the client has gone the next writer gets the image."""

    def bench():
        done = cluster.cli(
            "bench",
            "block",
            "--image",
            image,
            "--rw",
            "randwrite",
            "--bs",
            "4k",
            "--qd",
            "8",
            "--seconds",
            "2",
            "--json",
            ok=None,
        )
        if done.returncode != 0 and "in use" in done.stderr:
            raise NotYet(done.stderr)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    cluster.nbd(image).close()
    started = time.monotonic()
    result = wait_for("bench block gets the image", bench, 45, 0.5)
    assert result["errors"] == 0 and result["iops"] > 0, f"{result}"
    for key in ("mb_per_s", "cpu_us_per_op"):
        assert isinstance(result[key], (int, float)), f"{key}: {result[key]}"
    assert result["latency_us"].keys() >= {"mean", "p50", "p99", "p999"}, f"{result['latency_us']}"
    note(f"{result['iops']:.0f} IOPS, {time.monotonic() - started - 2:.1f} s after the client had gone")


@pytest.mark.nightly
def test_a_client_is_refused_while_bench_block_holds_the_image(scenario, cluster, image, note):
    """A client is refused while bench block holds the image."""
    process = scenario.start(
        scenario.atoll,
        "bench",
        "block",
        "--data",
        cluster.data,
        "--image",
        image,
        "--rw",
        "randwrite",
        "--bs",
        "4k",
        "--qd",
        "1",
        "--seconds",
        "12",
        "--json",
    )
    wait_for(
        "the bench has the image", lambda: "bench" in json.dumps(cluster.json("image", "info", image)["writer"]), 10
    )
    with pytest.raises(NbdError, match="in use") as refused:
        # The server may wait a little for the image, but not for as long as the bench takes.
        cluster.nbd(image).close()
    output, errors = process.communicate(timeout=60)
    note(str(refused.value).split("refused: ", 1)[-1][:120])
    assert process.returncode == 0 and json.loads(output)["errors"] == 0, f"the bench was disturbed: {output} {errors}"


def test_image_rm_frees_the_name(cluster, image):
    """Image rm frees the name, and its data is gone."""

    with cluster.nbd(image) as connection:
        connection.write(0, b"o" * MIB)
    wait_for("the server lets go", lambda: not cluster.json("image", "info", image)["writer"], 45, 0.5)
    cluster.cli("image", "rm", image)
    names = {image["name"] for image in cluster.json("image", "ls")}
    assert image not in names, f"still listed: {names}"
    cluster.create_image(image, "64M")
    with cluster.nbd(image) as connection:
        intact(connection.read(0, MIB) == bytes(MIB), "the new image of the same name has old data")


@pytest.mark.nightly
def test_fio_verifies_once_more_after_a_restart(scenario, cluster, killed):
    """'atoll down' and 'atoll up': fio verifies once more."""
    cluster.down()
    cluster.up()
    fio(scenario, cluster.nbd_uri("large"), "large", verify="crc32c", verify_only=None, **JOBS["large"])
