"""Data directories of earlier releases: what is in them, and how they are made."""

import io
import pathlib
import random

from lib.cluster import MIB
from lib.nbd import connect_patiently
from lib.verdicts import intact

FIXTURES = pathlib.Path(__file__).resolve().parents[1] / "fixtures"
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
            self.blocks |= {block + index: data[index * BLOCK : (index + 1) * BLOCK] for index in range(count)}
            yield block * BLOCK, data

    def _upload_in_parts(self, s3, key, body):
        place = {"Bucket": BUCKET, "Key": key}
        upload = s3.create_multipart_upload(**place)["UploadId"]
        tag = s3.upload_part(**place, UploadId=upload, PartNumber=7, Body=body)["ETag"]
        s3.complete_multipart_upload(
            **place, UploadId=upload, MultipartUpload={"Parts": [{"PartNumber": 7, "ETag": tag}]}
        )
        self.objects[key] = body, {}

    def verify(self, cluster):
        """Compares every byte; returns what was compared."""
        with connect_patiently(lambda: cluster.nbd(IMAGE)) as connection:
            assert connection.size == IMAGE_BYTES, f"the image has {connection.size} bytes"
            for first in range(0, IMAGE_BYTES // BLOCK, 256):
                found = io.BytesIO(connection.read(first * BLOCK, 256 * BLOCK))
                for block in range(first, first + 256):
                    intact(
                        found.read(BLOCK) == self.blocks.get(block, bytes(BLOCK)),
                        f"block {block} of the image is wrong",
                    )
        s3 = cluster.s3(attempts=3)
        listed = {entry["Key"]: entry["Size"] for entry in s3.list_objects_v2(Bucket=BUCKET)["Contents"]}
        intact(listed == {key: len(body) for key, (body, _) in self.objects.items()}, f"listed are {listed}")
        for key, (body, marks) in self.objects.items():
            found = s3.get_object(Bucket=BUCKET, Key=key)
            intact(found["Body"].read() == body and found["Metadata"] == marks, f"object '{key}' is wrong")
        return f"{len(self.blocks)} blocks, {len(self.objects)} objects"


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


def written():
    """What a fixture holds."""
    content = Content()
    for phase in (1, 2):
        content.write(Nowhere(), phase)
    return content


def make(scenario, path):
    """Writes a data directory with the binary at hand: with a checkpoint in it, and with a log that a
    start must replay."""
    cluster, content = scenario.cluster("fixture", osd_size=OSD_SIZE), Content()
    cluster.up()
    cluster.create_image(IMAGE, str(IMAGE_BYTES))
    content.write(cluster, 1)
    cluster.down()
    cluster.up()
    # A binary from before PGs could be split refuses it.
    cluster.cli("pool", "set", "images", "pg_num", "64", ok=None)
    content.write(cluster, 2)
    content.verify(cluster)
    cluster.kill_all()
    left_out = {"log", "nbd.sock", "processes.json", "supervisor.lock"}
    members = sorted(member.name for member in cluster.data.iterdir() if member.name not in left_out)
    # Numbered owners and no times: whoever unpacks it owns it.
    scenario.run(
        "tar",
        "--create",
        "--sparse",
        "--file",
        path.with_suffix(""),
        "--directory",
        cluster.data,
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--mtime=@0",
        "--sort=name",
        *members,
    )
    scenario.run("xz", "--force", "-9e", "--threads=1", path.with_suffix(""), timeout=600)
