"""What clients write is nowhere in clear in the data directory: not in the OSDs' files, not in cluster
state, not in logs; neither are the secret key and the passwords outside the files that hold them. What is
written to an image or bucket without sealing is in the devices, and nowhere else."""

import random
import stat

import pytest
from lib.cluster import MIB, Cluster
from lib.s3 import read
from lib.search import search
from lib.verdicts import intact
from lib.waiting import wait_for

# 64 characters that no program writes by itself.
PATTERN = b"Atoll-keeps-its-secrets:Zq7fT1xWm0Lr9Bv4Kc8Hd2Np6Js3Yg5Ea#1984@!"[:64]
NAME = "an-object-name-that-may-be-found"
MEGABYTE, MIDDLE = PATTERN * (MIB // 64), PATTERN[20:52]
# What is written without sealing: to an image of three copies, to one of an erasure-coded pool, to a bucket.
CLEAR = {
    name: f"Atoll-stores-this-as-it-is-in-the-{name}".encode().ljust(64, b"+") for name in ("clear", "coded", "bucket")
}


def write_blocks(cluster):
    """The pattern goes in over NBD: large, small, unaligned, partly overwritten."""
    cluster.create_image("secrets", "256M")
    rng = random.Random(2)
    with cluster.nbd("secrets") as connection:
        for place in range(0, 64 * MIB, 4 * MIB):
            connection.write(place, MEGABYTE * 4)
        for _ in range(500):
            connection.write(64 * MIB + rng.randrange(4000) * 4096, PATTERN * 64, fua=rng.random() < 0.2)
        for _ in range(200):
            connection.write(96 * MIB + rng.randrange(8 * MIB), PATTERN * rng.randrange(1, 64))
        connection.zero(8 * MIB, 4 * MIB)
        connection.trim(16 * MIB, 4 * MIB)
        connection.flush()
        intact(connection.read(0, MIB) == MEGABYTE, "other bytes come back")


def write_objects(s3):
    """The pattern goes in over S3: small, large, multipart, aborted, copied, deleted."""
    s3.create_bucket(Bucket="secrets")
    for number in range(100):
        s3.put_object(Bucket="secrets", Key=f"small/{number}", Body=PATTERN * (number + 1))
    s3.put_object(Bucket="secrets", Key=NAME, Body=MEGABYTE * 9 + PATTERN[:7])
    upload_in_parts(s3, "parts", lambda **upload: s3.complete_multipart_upload(**upload))
    upload_in_parts(s3, "aborted", lambda MultipartUpload, **upload: s3.abort_multipart_upload(**upload))
    s3.copy_object(Bucket="secrets", Key="copy", CopySource={"Bucket": "secrets", "Key": NAME})
    s3.delete_object(Bucket="secrets", Key="small/7")
    intact(s3.get_object(Bucket="secrets", Key="parts")["Body"].read() == MEGABYTE * 15, "other bytes come back")


def upload_in_parts(s3, key, finish):
    upload = {"Bucket": "secrets", "Key": key}
    upload["UploadId"] = s3.create_multipart_upload(**upload)["UploadId"]
    parts = [
        {"PartNumber": number, "ETag": s3.upload_part(**upload, PartNumber=number, Body=MEGABYTE * 5)["ETag"]}
        for number in (1, 2, 3)
    ]
    finish(**upload, MultipartUpload={"Parts": parts})


def write_images_in_clear(cluster):
    """Images without sealing, also in an erasure-coded pool."""
    cluster.cli("pool", "create", "coded", "--ec", "2+1", "--pg-num", 16, "--failure-domain", "osd")
    for name in ("clear", "coded"):
        pool = ("--pool", "coded") if name == "coded" else ()
        cluster.create_image(name, "64M", "--sealing", "off", *pool)
        with cluster.nbd(name) as connection:
            connection.write(0, CLEAR[name] * (8 * MIB // 64))
            connection.write(9 * MIB, CLEAR[name] * 64)
            connection.write(10 * MIB + 777, CLEAR[name] * 3)
            connection.zero(MIB, MIB)
            connection.trim(2 * MIB, MIB)
            connection.flush()
            read_in_clear(cluster, name, connection)


def write_bucket_in_clear(cluster):
    """A bucket without sealing."""
    s3 = cluster.s3()
    s3.create_bucket(Bucket="clear")
    assert cluster.json("bucket", "set", "clear", "sealing", "off")["new_objects_sealed"] is False, "bucket set"
    put = lambda: s3.put_object(Bucket="clear", Key="k", Body=CLEAR["bucket"] * MIB)
    wait_for("gateways follow", lambda: "ServerSideEncryption" not in put(), 10)


def read_in_clear(cluster, name, connection):
    whole = bytearray(CLEAR[name] * (8 * MIB // 64) + bytes(4 * MIB))
    whole[9 * MIB : 9 * MIB + 4096] = CLEAR[name] * 64
    whole[10 * MIB + 777 : 10 * MIB + 777 + 192] = CLEAR[name] * 3
    whole[MIB : 3 * MIB] = bytes(2 * MIB)
    intact(connection.read(0, 12 * MIB) == whole, f"other bytes come back from '{name}'")


def read_all(cluster):
    """What is sealed and what is not comes back as it was written."""
    intact(cluster.read_image("secrets", 0, MIB) == MEGABYTE, "other bytes come back")
    s3 = cluster.s3()
    intact(read(s3, "secrets", "copy") == MEGABYTE * 9 + PATTERN[:7], "other bytes")
    intact(read(s3, "clear", "k") == CLEAR["bucket"] * MIB, "other bytes")
    for name in ("clear", "coded"):
        with cluster.nbd(name) as connection:
            read_in_clear(cluster, name, connection)


@pytest.fixture(scope="module")
def cluster(scenario):
    """With all that is to be looked for, sealed and not."""
    cluster = scenario.cluster(osd_size="4G")
    cluster.up()
    write_blocks(cluster)
    write_objects(cluster.s3())
    write_images_in_clear(cluster)
    write_bucket_in_clear(cluster)
    return cluster


class Searched:
    """What was found in the files of the data directory, and how many bytes were looked at."""

    def __init__(self, cluster):
        self.cluster, self.secret = cluster, cluster.credentials()["secret_key"].encode()
        # The middle of the pattern is in every piece of it that is not tiny.
        self.found, self.bytes = search(cluster.data, [MIDDLE, self.secret, *CLEAR.values()])

    def files(self, needle):
        return sorted({file for file, _, found in self.found if found == needle})


def replay(cluster):
    """Start and stop, so that the logs are replayed and checkpoints written."""
    cluster.up()
    read_all(cluster)
    cluster.down()


WHEN = {"while it runs": lambda cluster: None, "after kill -9": Cluster.kill_all, "after atoll down": replay}


@pytest.fixture(scope="module", params=WHEN)
def searched(cluster, request):
    WHEN[request.param](cluster)
    return Searched(cluster)


@pytest.mark.nightly
def test_an_image_in_an_erasure_coded_pool_is_sealed_too(cluster):
    """An image in an erasure-coded pool is sealed, too, and reads as it was written."""
    cluster.create_image("coded-sealed", "64M", "--pool", "coded")
    with cluster.nbd("coded-sealed") as connection:
        connection.write(0, PATTERN * (8 * MIB // 64))
        connection.flush()
        intact(connection.read(0, MIB) == PATTERN * (MIB // 64), "other bytes come back")


def test_image_ls_info_and_bench_say_which_is_sealed(cluster):
    """Image ls, info and bench say which is sealed."""
    sealed = {image["name"]: image["sealed"] for image in cluster.json("image", "ls")}
    assert {"secrets": True, "clear": False, "coded": False}.items() <= sealed.items(), f"{sealed}"
    assert cluster.json("image", "info", "clear")["sealed"] is False, "image info"
    for image, sealing, words in (("on", "on", "image sealed per 4 KiB block"), ("off", "off", "image not sealed")):
        cluster.create_image(image, "64M", "--sealing", sealing)
        run = ("--rw", "randread", "--bs", "4k", "--qd", 4, "--seconds", 1, "--working-set", "1M")
        report = cluster.json("bench", "block", "--image", image, *run)
        assert words in report["protections"] and not report["errors"], f"{report}"


def test_the_key_of_an_image_without_sealing_is_not_destroyed(cluster):
    """That would destroy nothing: its blocks are in clear."""
    refused = cluster.cli("key", "destroy", "--image", "clear", "--force", ok=(1,))
    assert "is not sealed" in refused.stderr, refused.stderr


def test_a_bucket_without_sealing_gives_out_what_was_put(cluster):
    """A bucket without sealing gives out what was put, and seals an object that asks for SSE-S3."""
    s3 = cluster.s3()
    intact(s3.get_object(Bucket="clear", Key="k")["Body"].read() == CLEAR["bucket"] * MIB, "other bytes come back")
    assert "ServerSideEncryption" not in s3.head_object(Bucket="clear", Key="k"), "HEAD says that it is encrypted"
    asked = s3.put_object(Bucket="clear", Key="asked", Body=PATTERN * MIB, ServerSideEncryption="AES256")
    assert asked["ServerSideEncryption"] == "AES256", f"{asked}"
    sealed = {bucket["name"]: bucket["new_objects_sealed"] for bucket in cluster.json("bucket", "ls")}
    assert sealed == {"secrets": True, "clear": False}, f"{sealed}"


def test_the_pattern_is_in_no_file(searched, note):
    """The pattern is in no file while it runs, after kill -9, and after a stop."""
    places = [place for place in searched.found if place[2] == MIDDLE]
    assert not places, f"{len(places)} times, such as {places[:5]}"
    assert searched.bytes > 300 * MIB, f"only {searched.bytes} bytes were there to search"
    note(f"{searched.bytes / MIB:.0f} MiB searched")


def test_the_s3_secret_key_is_in_one_file_that_nobody_else_may_read(searched, note):
    """The S3 secret key is in one file that nobody else may read."""
    files = searched.files(searched.secret)
    assert files == ["credentials.json"], f"it is in {files}"
    mode = stat.S_IMODE((searched.cluster.data / files[0]).stat().st_mode)
    assert mode & 0o077 == 0, f"{files[0]} has mode {mode:o}"
    note(f"{files[0]}, mode {mode:o}")


def test_what_is_not_sealed_is_in_the_devices(searched, note):
    """What is not sealed is in the devices, and in no other file."""
    for name, pattern in CLEAR.items():
        files = searched.files(pattern)
        copies = 2 if name == "coded" else searched.cluster.osds
        assert len(files) >= copies and all(file.endswith("/device") for file in files), f"'{name}' is in {files}"
    note(f"{len(searched.found)} places")


def test_the_search_itself_finds_what_is_in_clear(cluster):
    """The search itself finds what is in clear."""
    (cluster.data / "probe").write_bytes(b"x" * (16 * MIB - 30) + PATTERN)
    assert len(search(cluster.data, [MIDDLE])[0]) == 1, "it does not"


def test_key_files_and_the_data_directory_are_for_their_owner_only(cluster):
    """Key files and the data directory are for their owner only."""
    open_files = [
        f"{path.relative_to(cluster.data)} {stat.S_IMODE(path.lstat().st_mode):o}"
        for path in cluster.data.rglob("*")
        if any(word in path.name.lower() for word in ("key", "secret", "credential", "password", "token"))
        and stat.S_IMODE(path.lstat().st_mode) & 0o077
        and not path.is_dir()
    ]
    assert not open_files, f"{open_files}"
