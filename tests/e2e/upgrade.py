#!/usr/bin/env python3
"""Data directories that earlier releases have written, and killed with -9: this one starts on each,
reads every byte, writes, and starts again. What a later release has written is refused.

The directories are tests/e2e/fixtures/*.tar.xz; tools/upgrade_fixture.py makes them.
"""
import io, json, pathlib, random, struct, tarfile

from harness import MIB, expect, free_port, main
from nbdclient import connect_patiently

FIXTURES = pathlib.Path(__file__).with_name("fixtures")
OSD_SIZE = "1G"
IMAGE, IMAGE_BYTES, BLOCK = "disk", 32 * MIB, 4096
BUCKET = "bucket"
# Of one object's metadata and of its data: around a block, a segment, and what goes past the log.
SIZES = [0, 1, 100, 4095, 4096, 4097, 65_535, 65_536, 65_537, 150_000]


class Content:
    """What is written in phases, each known by its number alone."""

    def __init__(self):
        self.blocks, self.objects = {}, {}

    def write(self, cluster, phase):
        rng = random.Random(phase)
        with connect_patiently(lambda: cluster.nbd(IMAGE)) as connection:
            for offset, data in self._block_writes(rng):
                connection.write(offset, data)
            zeroed = rng.choice(sorted(self.blocks))
            connection.zero(zeroed * BLOCK, BLOCK)
            self.blocks[zeroed] = bytes(BLOCK)
            connection.flush()
        s3 = cluster.s3(attempts=3)
        if phase == 1:
            s3.create_bucket(Bucket=BUCKET)
        for number, size in enumerate(SIZES):
            # Every other one replaces one of the phase before.
            key = f"dir/{number}-{'same' if number % 2 else phase} ö"
            body, marks = rng.randbytes(size), {"phase": str(phase)}
            s3.put_object(Bucket=BUCKET, Key=key, Body=body, Metadata=marks, ContentType="text/x-atoll")
            self.objects[key] = body, marks
        gone = rng.choice(sorted(self.objects))
        s3.delete_object(Bucket=BUCKET, Key=gone)
        del self.objects[gone]
        self._upload_in_parts(s3, f"parts-{phase}", rng.randbytes(50_000))

    def _block_writes(self, rng):
        """Single blocks, some of them again and again, and one write that does not ride in the log."""
        near = [rng.randrange(IMAGE_BYTES // BLOCK) for _ in range(12)]
        writes = [(rng.choice(near), 1) for _ in range(24)] + [(rng.randrange(256), 20)]
        for block, count in writes:
            data = rng.randbytes(count * BLOCK)
            self.blocks |= {block + index: data[index * BLOCK:(index + 1) * BLOCK] for index in range(count)}
            yield block * BLOCK, data

    def _upload_in_parts(self, s3, key, body):
        place = {"Bucket": BUCKET, "Key": key}
        upload = s3.create_multipart_upload(**place)["UploadId"]
        tag = s3.upload_part(**place, UploadId=upload, PartNumber=7, Body=body)["ETag"]
        s3.complete_multipart_upload(**place, UploadId=upload, MultipartUpload={"Parts": [{"PartNumber": 7, "ETag": tag}]})
        self.objects[key] = body, {}

    def verify(self, cluster):
        """Compares every byte; returns what was compared."""
        with connect_patiently(lambda: cluster.nbd(IMAGE)) as connection:
            expect(connection.size == IMAGE_BYTES, f"the image has {connection.size} bytes")
            for first in range(0, IMAGE_BYTES // BLOCK, 256):
                found = io.BytesIO(connection.read(first * BLOCK, 256 * BLOCK))
                for block in range(first, first + 256):
                    expect(found.read(BLOCK) == self.blocks.get(block, bytes(BLOCK)), f"block {block} of the image is wrong")
        s3 = cluster.s3(attempts=3)
        listed = {entry["Key"]: entry["Size"] for entry in s3.list_objects_v2(Bucket=BUCKET)["Contents"]}
        expect(listed == {key: len(body) for key, (body, _) in self.objects.items()}, f"listed are {listed}")
        for key, (body, marks) in self.objects.items():
            found = s3.get_object(Bucket=BUCKET, Key=key)
            expect(found["Body"].read() == body and found["Metadata"] == marks, f"object '{key}' is wrong")
        return f"{len(self.blocks)} blocks, {len(self.objects)} objects"


def make(test, path):
    """Writes a data directory with the binary at hand: with a checkpoint in it, and with a log that a
    start must replay."""
    cluster, content = test.cluster("fixture", osd_size=OSD_SIZE), Content()
    cluster.up()
    cluster.create_image(IMAGE, str(IMAGE_BYTES))
    content.write(cluster, 1)
    cluster.down()
    cluster.up()
    # A binary from before groups could be split refuses it.
    cluster.cli("pool", "set", "images", "pg_num", "64", ok=None)
    content.write(cluster, 2)
    content.verify(cluster)
    cluster.kill_all()
    left_out = {"log", "nbd.sock", "processes.json", "supervisor.lock"}
    members = sorted(member.name for member in cluster.data.iterdir() if member.name not in left_out)
    # Numbered owners and no times: whoever unpacks it owns it.
    test.run("tar", "--create", "--sparse", "--file", path.with_suffix(""), "--directory", cluster.data, "--owner=0", "--group=0",
             "--numeric-owner", "--mtime=@0", "--sort=name", *members)
    test.run("xz", "--force", "-9e", "--threads=1", path.with_suffix(""), timeout=600)


def unpack(test, fixture):
    cluster = test.cluster(fixture.name.split(".")[0], osd_size=OSD_SIZE)
    cluster.data.mkdir(mode=0o700)
    with tarfile.open(fixture) as archive:
        archive.extractall(cluster.data, filter="tar")
    # The port of the embedded server may be taken here.
    path = cluster.data / "cluster.json"
    settings = json.loads(path.read_text())
    address = f"127.0.0.1:{free_port()}"
    settings |= {"state_listen": address, "state_endpoints": [f"http://{address}"]}
    path.write_text(json.dumps(settings))
    return cluster


def check_stores(cluster):
    for device in sorted(cluster.data.glob("osd-*/device")):
        cluster.test.run(cluster.test.atoll, "store", "check", "--device", device, "--data", timeout=300)


def refuse_later(test, cluster):
    """Formats of later releases, made up by raising the numbers."""
    with test.step("a cluster.json of a later release is refused") as note:
        path = cluster.data / "cluster.json"
        before = path.read_text()
        path.write_text(json.dumps(json.loads(before) | {"format": 2}))
        for command in (cluster.up_command(), [test.atoll, "status", "--data", cluster.data]):
            done = test.run(*command, env=cluster.environment(), ok=(1,))
            expect("format 2" in done.stderr and "release" in done.stderr, done.stderr)
        note(done.stderr.strip()[-100:])
        path.write_text(before)
    with test.step("a store of a later release is refused") as note:
        device = cluster.data / "osd-0" / "device"
        with open(device, "r+b") as file:
            for copy in (0, 1):
                file.seek(copy * BLOCK + 8)
                version = struct.unpack("<I", file.read(4))[0]
                file.seek(copy * BLOCK + 8)
                file.write(struct.pack("<I", version + 1))
        for command in (["store", "check", "--device", device], ["osd", "run", "--data", cluster.data, "--id", "0"]):
            done = test.run(test.atoll, *command, ok=(1,))
            said = done.stdout + done.stderr
            expect(f"format version {version + 1}" in said and "release" in said, said)
        note(f"format version {version + 1}")


def scenario(test):
    fixtures = sorted(FIXTURES.glob("*.tar.xz"))
    test.check("there are data directories of earlier releases", fixtures, f"none in {FIXTURES}")
    for fixture in fixtures:
        content = Content()
        replay(content)
        cluster = unpack(test, fixture)
        name = fixture.name
        with test.step(f"{name}: this release starts on it", fatal=True) as note:
            note(f"{fixture.stat().st_size >> 10} KiB, healthy after {cluster.up():.1f} s")
        with test.step(f"{name}: every byte is there") as note:
            note(content.verify(cluster))
        with test.step(f"{name}: it is written on, and nothing is wrong after a restart") as note:
            content.write(cluster, 3)
            content.verify(cluster)
            cluster.down()
            check_stores(cluster)
            cluster.up()
            note(content.verify(cluster))
        with test.step(f"{name}: its groups split") as note:
            for pool in ("images", "objects"):
                cluster.cli("pool", "set", pool, "pg_num", "128")
            note(content.verify(cluster))
            cluster.down()
            check_stores(cluster)
    refuse_later(test, cluster)


class Nowhere:
    """Stands for a cluster whose content is written already."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def __getattr__(self, _name):
        return lambda *_arguments, **_options: self

    def __getitem__(self, _name):
        return self


def replay(content):
    """What a fixture holds."""
    for phase in (1, 2):
        content.write(Nowhere(), phase)


if __name__ == "__main__":
    main(scenario)
