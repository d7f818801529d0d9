#!/usr/bin/env python3
"""Block images over NBD with fio, nbdcopy, nbdinfo, qemu-img, qemu-io and mkfs.ext4; data verified
after kill -9 of every process."""
import hashlib, json, pathlib, random, shutil, time

from harness import MIB, Failed, expect, main, wait_for
from nbdclient import BlockLoad, NbdError, connect_patiently


def sha256_of(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fio(test, uri, name, timeout=240, program=("fio",), **options):
    """Runs one fio job; returns its part of the JSON output."""
    output = test.directory / f"fio-{name}.json"
    output.unlink(missing_ok=True)
    arguments = [f"--{key}={value}" if value is not None else f"--{key}"
                 for key, value in options.items()]
    done = test.run(*program, f"--name={name}", "--ioengine=nbd", f"--uri={uri}", "--output-format=json", f"--output={output}",
                    *arguments, timeout=timeout, ok=None)
    if done.returncode != 0 or not output.exists():
        raise Failed(f"fio {name}: exit code {done.returncode}\n{done.stdout[-1500:]}{done.stderr[-1500:]}")
    text = output.read_text()
    job = json.loads(text[text.index("{"):])["jobs"][0]
    expect(job["error"] == 0, f"fio {name}: error {job['error']}")
    return job


def write_note(job):
    write = job["write"]
    return f"{write['iops']:.0f} IOPS, {write['bw_bytes'] / 1e6:.0f} MB/s"


def scenario(test):
    test.need(("fio", "fio"), ("nbdinfo", "libnbd-bin"), ("nbdcopy", "libnbd-bin"), ("qemu-img", "qemu-utils"),
              ("qemu-io", "qemu-utils"), ("mkfs.ext4", "e2fsprogs"), ("e2fsck", "e2fsprogs"))
    small, large = int(64 * MIB * test.scale), int(256 * MIB * test.scale)
    cluster = test.cluster(osd_size="8G")
    with test.step("atoll up --detach", fatal=True) as note:
        note(f"healthy after {cluster.up():.1f} s")
    with test.step("create images", fatal=True):
        for name, size in (("small", f"{small}"), ("large", f"{large}"), ("own", "64M"), ("fs", "192M"), ("fs-tcp", "192M"),
                           ("edges", "64M"), ("deep", "256M"), ("huge", "2T")):
            cluster.create_image(name, size)

    describe(test, cluster)

    # fio writes everything once, then all processes are killed, then fio verifies.
    jobs = {
        "small": dict(rw="randwrite", bs="4k", iodepth=32, size=small, randseed=42),
        "large": dict(rw="write", bs="4M", iodepth=4, size=large, randseed=43, verify_interval=4096),
    }
    for name, job in jobs.items():
        with test.step(f"fio {job['rw']} {job['bs']} iodepth {job['iodepth']}, verify=crc32c written") as note:
            note(write_note(fio(test, cluster.nbd_uri(name), name, verify="crc32c", do_verify=0, **job)))
    load = BlockLoad(lambda: cluster.nbd("own", timeout=30), threads=4, blocks_per_thread=512).start()
    with test.step("kill -9 of every process under a load whose acks are recorded", fatal=True) as note:
        wait_for("1000 acks", lambda: load.acked >= 1000, 60, 0.01)
        time.sleep(random.random() * 0.2)
        killed = len(cluster.all_pids())
        cluster.kill_all()
        expect(load.stop(60), "a load thread hangs")
        expect(not load.wrong, "\n".join(load.wrong[:5]))
        note(f"{load.acked} writes acked, {load.open_ended} cut off, {killed} processes killed")
    with test.step("atoll up --detach after the kill", fatal=True) as note:
        note(f"healthy after {cluster.up():.1f} s")
    with test.step("the images can be attached again") as note:
        started = time.monotonic()
        connect_patiently(lambda: cluster.nbd("own"), 60).close()
        note(f"after {time.monotonic() - started:.1f} s")
    for name, job in jobs.items():
        with test.step(f"fio verifies {job['rw']} {job['bs']}"):
            fio(test, cluster.nbd_uri(name), name, verify="crc32c", verify_only=None, **job)
    with test.step("every acked write of the other load is there, no byte is wrong") as note:
        with connect_patiently(lambda: cluster.nbd("own")) as connection:
            checked = load.verify(connection)
        expect(not load.wrong, f"{len(load.wrong)} of {checked}:\n" + "\n".join(load.wrong[:5]))
        note(f"{checked} blocks")
    with test.step("fio verifies while it writes, over TCP with several connections") as note:
        job = fio(test, cluster.nbd_uri("small", tcp=True), "tcp", verify="crc32c", rw="randrw", bs="4k", iodepth=16,
                  numjobs=3, thread=None, size=small // 8, offset_increment=small // 4, randseed=7)
        note(write_note(job))
    with test.step("fio with unaligned sizes verifies") as note:
        fio(test, cluster.nbd_uri("small"), "odd", verify="crc32c", rw="randwrite", bsrange="512-70k", blocksize_unaligned=None,
            iodepth=16, size=small // 4, io_size=small // 4, randseed=9)

    deep_queues(test, cluster)
    file_systems(test, cluster)
    edges(test, cluster)
    huge(test, cluster)
    one_writer(test, cluster)
    with test.step("atoll down and up: fio verifies once more"):
        cluster.down()
        cluster.up()
        fio(test, cluster.nbd_uri("large"), "large", verify="crc32c", verify_only=None, **jobs["large"])
        cluster.down()


def deep_queues(test, cluster):
    """More in flight than the server takes at once: it must make the client wait."""
    for job in (dict(rw="randwrite", bs="4k", iodepth=2048, size="32M"), dict(rw="randread", bs="4k", iodepth=2048, size="32M"),
                dict(rw="write", bs="4M", iodepth=48, size="192M"), dict(rw="read", bs="4M", iodepth=48, size="192M"),
                dict(rw="read", bs="32M", iodepth=6, size="192M"), dict(rw="randrw", bs="64k", iodepth=256, numjobs=6, thread=None, size="16M")):
        with test.step(f"fio {job['rw']} {job['bs']} with {job['iodepth']} in flight per connection, {job.get('numjobs', 1)} connections") as note:
            before = cluster.process_ids()
            try:
                result = fio(test, cluster.nbd_uri("deep"), "deep", timeout=90, **job)
            except Failed as error:
                time.sleep(1.5)
                raise Failed(f"{error}\nprocesses before {before}\nand after {cluster.process_ids()}") from None
            expect(cluster.process_ids() == before, f"a process has died: {before} -> {cluster.process_ids()}")
            kind = result["write"] if "write" in job["rw"] else result["read"]
            note(f"{kind['iops']:.0f} IOPS, {kind['bw_bytes'] / 1e6:.0f} MB/s")


def describe(test, cluster):
    with test.step("nbdinfo describes the export") as note:
        for tcp in (False, True):
            export = json.loads(test.run("nbdinfo", "--json", cluster.nbd_uri("edges", tcp)).stdout)
            expect(export["protocol"] == "newstyle-fixed" and export["structured"], f"no structured replies: {export}")
            export = export["exports"][0]
            expect(export["export-size"] == 64 * MIB, f"size {export['export-size']}")
            for flag in ("can_flush", "can_fua", "can_trim", "can_zero", "can_multi_conn"):
                expect(export[flag] is True, f"{flag} is {export[flag]}")
            expect(export["is_read_only"] is False, "read-only")
        note(f"blocks {export['block_size_minimum']}/{export['block_size_preferred']}/{export['block_size_maximum']}")
    with test.step("nbdinfo --list shows the images"):
        listed = json.loads(test.run("nbdinfo", "--list", "--json", f"nbd+unix://?socket={cluster.nbd_socket}").stdout)
        names = {export["export-name"] for export in listed["exports"]}
        expect({"small", "large", "edges", "huge"} <= names, f"listed: {names}")
    with test.step("an export that does not exist is refused with a clear error") as note:
        try:
            cluster.nbd("nobody").close()
            raise Failed("it was served")
        except NbdError as error:
            expect("nobody" in str(error), f"the error does not name it: {error}")
            note(str(error).split("refused: ", 1)[1][:100])
    with test.step("qemu-img info over NBD"):
        info = json.loads(test.run("qemu-img", "info", "--output=json", cluster.nbd_uri("edges")).stdout)
        expect(info["virtual-size"] == 64 * MIB, f"{info}")


def file_systems(test, cluster):
    tree, local = test.directory / "tree", test.directory / "fs.raw"
    with test.step("mkfs.ext4 -d makes a file system image of real files") as note:
        rng, total = random.Random(3), 0
        files = sorted(path for path in pathlib.Path("/usr/share/doc").rglob("*") if path.is_file() and not path.is_symlink())
        for path in rng.sample(files, min(len(files), 1500)):
            target = tree / path.relative_to("/usr/share")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            total += target.stat().st_size
        (tree / "noise").write_bytes(rng.randbytes(32 * MIB))
        with open(local, "wb") as file:
            file.truncate(192 * MIB)
        test.run("mkfs.ext4", "-q", "-F", "-d", tree, local)
        note(f"{total / MIB + 32:.0f} MiB of files")
    for name, tcp in (("fs", False), ("fs-tcp", True)):
        with test.step(f"nbdcopy in and out over {'TCP' if tcp else 'the Unix socket'}: checksums equal") as note:
            uri, back = cluster.nbd_uri(name, tcp), test.directory / f"{name}.back"
            started = time.monotonic()
            test.run("nbdcopy", "--connections=4", "--flush", local, uri, timeout=180)
            into = time.monotonic() - started
            started = time.monotonic()
            test.run("nbdcopy", "--connections=4", uri, back, timeout=180)
            expect(sha256_of(local) == sha256_of(back), "the copy differs")
            note(f"in {into:.1f} s, out {time.monotonic() - started:.1f} s")
    with test.step("e2fsck finds no fault in the copy"):
        test.run("e2fsck", "-fn", test.directory / "fs.back")
    with test.step("qemu-img convert from and to an image"):
        test.run("qemu-img", "convert", "-O", "qcow2", cluster.nbd_uri("fs"), test.directory / "fs.qcow2", timeout=180)
        done = test.run("qemu-img", "compare", "-f", "raw", "-F", "qcow2", local, test.directory / "fs.qcow2", timeout=180)
        expect("identical" in done.stdout, done.stdout)
        test.run("qemu-img", "convert", "-n", "-f", "qcow2", "-O", "raw", test.directory / "fs.qcow2", cluster.nbd_uri("fs-tcp"), timeout=180)
        done = test.run("qemu-img", "compare", "-f", "raw", "-F", "raw", local, cluster.nbd_uri("fs-tcp", True), timeout=180)
        expect("identical" in done.stdout, done.stdout)
    for path in test.directory.glob("fs*"):
        path.unlink()


def qemu_io(test, uri, *commands, ok=True):
    """Runs qemu-io commands; the patterns that they read must be there."""
    arguments = [part for command in commands for part in ("-c", command)]
    done = test.run("qemu-io", "-f", "raw", *arguments, uri, ok=None)
    text = done.stdout + done.stderr
    bad = done.returncode != 0 or "failed" in text.lower() or "error" in text.lower()
    if ok:
        expect(not bad, f"qemu-io {commands}\n{text}")
    return text


def edges(test, cluster):
    uri = cluster.nbd_uri("edges")
    with test.step("unaligned writes leave their neighbours alone (qemu-io)"):
        qemu_io(test, uri, "write -P 0x11 0 64k", "write -P 0xab 512 512", "write -P 0xcd 4000 200", "write -P 0xee 12287 1",
                "read -P 0x11 0 512", "read -P 0xab 512 512", "read -P 0x11 1024 2976", "read -P 0xcd 4000 200",
                "read -P 0x11 4200 8087", "read -P 0xee 12287 1", "read -P 0x11 12288 53248", "flush")
    with test.step("writes across the border of two objects (4 MiB)"):
        qemu_io(test, uri, "write -P 0x21 4190208 8192", "write -P 0x22 4194000 700", "read -P 0x21 4190208 3792",
                "read -P 0x22 4194000 700", "read -P 0x21 4194700 3700", "read -P 0 4198400 4096")
    with test.step("the image's end, and nothing beyond"):
        qemu_io(test, uri, "write -P 0x33 67108352 512", "read -P 0x33 67108352 512")
        with cluster.nbd("edges") as connection:
            for offset, length in ((64 * MIB, 1), (64 * MIB - 1, 2), (1 << 63, 4096)):
                for kind in ("read", "write", "trim", "zero"):
                    try:
                        getattr(connection, kind)(offset, bytes(length) if kind == "write" else length)
                        raise Failed(f"{kind} at {offset}+{length} was done")
                    except NbdError as error:
                        expect(error.number in (22, 28), f"{kind} at {offset}+{length}: {error}")
            expect(connection.read(64 * MIB - 1, 1) == b"\x33", "the connection is of no use after the refusals")
    with test.step("TRIM: whole blocks read as zeros, neighbours stay"):
        qemu_io(test, uri, "write -P 0x44 8M 8M", "discard 10M 2M", "read -P 0x44 8M 2M", "read -P 0 10M 2M", "read -P 0x44 12M 4M",
                "discard 8390000 20000", "read -P 0x44 8M 1392", "read -P 0 8392704 16384")
    with test.step("WRITE_ZEROES: exactly the range reads as zeros"):
        qemu_io(test, uri, "write -P 0x55 16M 8M", "write -z 17M 2M", "read -P 0x55 16M 1M", "read -P 0 17M 2M", "read -P 0x55 19M 5M",
                "write -z -u 20972000 9000", "read -P 0x55 20971520 480", "read -P 0 20972000 9000", "read -P 0x55 20981000 100",
                "write -z 24M 40M", "read -P 0 24M 40M")
    with test.step("FUA writes and flushes"):
        qemu_io(test, uri, "write -f -P 0x66 1M 4k", "read -P 0x66 1M 4k", "flush")
        with cluster.nbd("edges") as connection:
            connection.write(3 * MIB, b"f" * 4096, fua=True)
            connection.flush()
            expect(connection.read(3 * MIB, 4096) == b"f" * 4096, "other bytes")
    with test.step("random reads, writes, trims and zeroes of any alignment against a model") as note:
        note(f"{against_model(cluster, int(1500 * test.scale))} operations on 3 connections")
    with test.step("allocation is told: trimmed and unwritten ranges are no data (nbdinfo --map)") as note:
        cluster.create_image("sparse", "64M")
        qemu_io(test, cluster.nbd_uri("sparse"), "write -P 1 8M 4M")
        pieces = json.loads(test.run("nbdinfo", "--map", "--json", cluster.nbd_uri("sparse")).stdout)
        data = sum(piece["length"] for piece in pieces if piece["type"] == 0)
        expect(data >= 4 * MIB and sum(piece["length"] for piece in pieces) == 64 * MIB, f"{pieces}")
        note(f"{data / MIB:g} of 64 MiB are data, 4 were written")


def against_model(cluster, count):
    """Random operations one after the other over several connections, compared with a byte array."""
    base, size = 32 * MIB, 9 * MIB
    rng, model = random.Random(17), bytearray(size)
    connections = [cluster.nbd("edges", tcp=index == 2) for index in range(3)]
    connections[0].zero(base, size)
    for number in range(count):
        connection = rng.choice(connections)
        length = rng.choice((1, 511, 512, 4096, 5000, 65536, 200_000, rng.randrange(1, 1_500_000)))
        offset = rng.randrange(size - length)
        kind = rng.choice(("read", "read", "write", "write", "zero", "trim"))
        if kind == "write":
            data = rng.randbytes(length)
            connection.write(base + offset, data, fua=rng.random() < 0.1)
            model[offset:offset + length] = data
        elif kind == "zero":
            connection.zero(base + offset, length)
            model[offset:offset + length] = bytes(length)
        elif kind == "trim":
            connection.trim(base + offset, length)
            first, last = -(-offset // 4096) * 4096, (offset + length) // 4096 * 4096
            if first < last:
                model[first:last] = bytes(last - first)
        else:
            expect(connection.read(base + offset, length) == model[offset:offset + length],
                   f"operation {number}: read {offset}+{length} differs from the model")
    expect(b"".join(connections[0].read(base + at, MIB) for at in range(0, size, MIB)) == model, "the end state differs")
    for connection in connections:
        connection.close()
    return count


def huge(test, cluster):
    with test.step("a 2 TiB image: far apart writes, all else zeros"):
        with cluster.nbd("huge") as connection:
            expect(connection.size == 2 << 40, f"size {connection.size}")
            for place in (0, 1 << 40, (2 << 40) - 4096):
                connection.write(place, b"huge" * 1024)
            expect(all(connection.read(place, 4096) == b"huge" * 1024 for place in (0, 1 << 40, (2 << 40) - 4096)), "other bytes")
            expect(connection.read((1 << 40) + 4096, 65536) == bytes(65536), "unwritten bytes are not zeros")
    with test.step("resize: an image grows under no client, and the new part is zeros"):
        cluster.cli("image", "resize", "sparse", "--size", "128M")
        with connect_patiently(lambda: cluster.nbd("sparse")) as connection:
            expect(connection.size == 128 * MIB, f"size {connection.size}")
            expect(connection.read(8 * MIB, 4096) == b"\x01" * 4096 and connection.read(100 * MIB, 4096) == bytes(4096), "other bytes")


def one_writer(test, cluster):
    with test.step("a second writer is refused while a client is attached, with an error that says who holds it") as note:
        with cluster.nbd("own") as connection:
            before = connection.read(0, 4096)
            done = cluster.cli("bench", "block", "--image", "own", "--rw", "randwrite", "--bs", "4k", "--qd", "1", "--seconds", "1",
                               "--json", ok=None)
            expect(done.returncode != 0, f"the second writer was let in: {done.stdout[:500]}")
            expect("in use" in done.stderr and "own" in done.stderr, f"not a clear error: {done.stderr}")
            expect(connection.read(0, 4096) == before, "the image has changed")
            connection.write(0, b"w" * 4096)
            expect(connection.read(0, 4096) == b"w" * 4096, "the first writer has lost the image")
        note(done.stderr.strip().splitlines()[-1][:120])
    with test.step("an attached image is not removed under its client") as note:
        with cluster.nbd("own") as connection:
            done = cluster.cli("image", "rm", "own", ok=None)
            expect(done.returncode != 0, "it was removed")
            expect(connection.read(0, 4096) == b"w" * 4096, "its data is gone")
        note((done.stderr.strip().splitlines() or [""])[-1][:120])
    with test.step("after the client has gone the next writer gets the image") as note:
        def bench():
            done = cluster.cli("bench", "block", "--image", "own", "--rw", "randwrite", "--bs", "4k", "--qd", "8", "--seconds", "2",
                               "--json", ok=None)
            if done.returncode != 0:
                raise Failed(done.stderr)
            return json.loads(done.stdout)
        started = time.monotonic()
        result = wait_for("bench block gets the image", bench, 45, 0.5)
        expect(result["errors"] == 0 and result["iops"] > 0, f"{result}")
        for key in ("mb_per_s", "cpu_us_per_op"):
            expect(isinstance(result[key], (int, float)), f"{key}: {result[key]}")
        expect(result["latency_us"].keys() >= {"mean", "p50", "p99", "p999"}, f"{result['latency_us']}")
        note(f"{result['iops']:.0f} IOPS, {time.monotonic() - started - 2:.1f} s after the client had gone")
    with test.step("a client is refused while bench block holds the image") as note:
        process = test.start(test.atoll, "bench", "block", "--data", cluster.data, "--image", "own", "--rw", "randwrite", "--bs", "4k",
                             "--qd", "1", "--seconds", "12", "--json")
        wait_for("the bench has the image", lambda: "bench" in json.dumps(cluster.json("image", "info", "own")["writer"]), 10)
        said = "it was let in"
        try:
            # The server may wait a little for the image, but not for as long as the bench takes.
            cluster.nbd("own").close()
        except NbdError as error:
            said = str(error)
        output, errors = process.communicate(timeout=60)
        expect("in use" in said, f"{said}; the bench: {output} {errors}")
        note(said.split("refused: ", 1)[-1][:120])
        expect(process.returncode == 0 and json.loads(output)["errors"] == 0, f"the bench was disturbed: {output} {errors}")
    with test.step("image rm frees the name, and its data is gone"):
        def remove():
            cluster.cli("image", "rm", "own")
            return True
        wait_for("the image can be removed", remove, 45, 0.5)
        names = {image["name"] for image in cluster.json("image", "ls")}
        expect("own" not in names, f"still listed: {names}")
        cluster.create_image("own", "64M")
        with cluster.nbd("own") as connection:
            expect(connection.read(0, MIB) == bytes(MIB), "the new image of the same name has old data")


if __name__ == "__main__":
    main(scenario)
