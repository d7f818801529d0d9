#!/usr/bin/env python3
"""What clients write is nowhere in clear in the data directory: not in the OSDs' files, not in cluster
state, not in logs; neither are the secret key and the passwords outside the files that hold them. What is
written to an image or bucket without sealing is in the devices, and nowhere else."""
import os, pathlib, random, stat

from harness import MIB, expect, main, wait_for

# 64 characters that no program writes by itself.
PATTERN = b"Atoll-keeps-its-secrets:Zq7fT1xWm0Lr9Bv4Kc8Hd2Np6Js3Yg5Ea#1984@!"[:64]
NAME = "an-object-name-that-may-be-found"
# What is written without sealing: to an image of three copies, to one of an erasure-coded pool, to a bucket.
CLEAR = {name: f"Atoll-stores-this-as-it-is-in-the-{name}".encode().ljust(64, b"+") for name in ("clear", "coded", "bucket")}


def data_of(path):
    """The parts of a file that are not holes, with some overlap."""
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        place = 0
        while place < end:
            try:
                place = os.lseek(file.fileno(), place, os.SEEK_DATA)
            except OSError:
                return
            hole = os.lseek(file.fileno(), place, os.SEEK_HOLE)
            while place < hole:
                length = min(hole - place, 16 * MIB)
                yield place, os.pread(file.fileno(), length + 128, place)
                place += length


def search(directory, needles):
    """Where the needles are: [(file, offset, needle)], and the bytes that were searched."""
    found, searched = [], 0
    for path in sorted(directory.rglob("*")):
        if not stat.S_ISREG(path.lstat().st_mode):
            continue
        for offset, data in data_of(path):
            searched += len(data)
            for needle in needles:
                if needle in data:
                    found.append((str(path.relative_to(directory)), offset + data.index(needle), needle))
    return found, searched


def write_in_clear(test, cluster):
    """Images and a bucket that were made without sealing, beside those with it."""
    with test.step("images without sealing, also in an erasure-coded pool, and a sealed one there, over NBD", fatal=True):
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
        cluster.create_image("coded-sealed", "64M", "--pool", "coded")
        with cluster.nbd("coded-sealed") as connection:
            connection.write(0, PATTERN * (8 * MIB // 64))
            connection.flush()
            expect(connection.read(0, MIB) == PATTERN * (MIB // 64), "other bytes come back")
    with test.step("image ls, info and bench say which is sealed"):
        sealed = {image["name"]: image["sealed"] for image in cluster.json("image", "ls")}
        expect(sealed == {"secrets": True, "clear": False, "coded": False, "coded-sealed": True}, f"{sealed}")
        expect(cluster.json("image", "info", "clear")["sealed"] is False, "image info")
        for image, sealing, words in (("on", "on", "image sealed per 4 KiB block"), ("off", "off", "image not sealed")):
            cluster.create_image(image, "64M", "--sealing", sealing)
            run = ("--rw", "randread", "--bs", "4k", "--qd", 4, "--seconds", 1, "--working-set", "1M")
            report = cluster.json("bench", "block", "--image", image, *run)
            expect(words in report["protections"] and not report["errors"], f"{report}")
        refused = cluster.cli("key", "destroy", "--image", "clear", "--force", ok=(1,))
        expect("is not sealed" in refused.stderr, refused.stderr)
    with test.step("a bucket without sealing, and an object in it that asks for SSE-S3", fatal=True):
        s3 = cluster.s3()
        s3.create_bucket(Bucket="clear")
        expect(cluster.json("bucket", "set", "clear", "sealing", "off")["new_objects_sealed"] is False, "bucket set")
        put = lambda **more: s3.put_object(Bucket="clear", Key="k", Body=CLEAR["bucket"] * MIB, **more)
        wait_for("gateways follow", lambda: "ServerSideEncryption" not in put(), 10)
        expect(s3.get_object(Bucket="clear", Key="k")["Body"].read() == CLEAR["bucket"] * MIB, "other bytes come back")
        expect("ServerSideEncryption" not in s3.head_object(Bucket="clear", Key="k"), "HEAD says that it is encrypted")
        asked = s3.put_object(Bucket="clear", Key="asked", Body=PATTERN * MIB, ServerSideEncryption="AES256")
        expect(asked["ServerSideEncryption"] == "AES256", f"{asked}")
        sealed = {bucket["name"]: bucket["new_objects_sealed"] for bucket in cluster.json("bucket", "ls")}
        expect(sealed == {"secrets": True, "clear": False}, f"{sealed}")


def read_in_clear(cluster, name, connection):
    whole = bytearray(CLEAR[name] * (8 * MIB // 64) + bytes(4 * MIB))
    whole[9 * MIB:9 * MIB + 4096] = CLEAR[name] * 64
    whole[10 * MIB + 777:10 * MIB + 777 + 192] = CLEAR[name] * 3
    whole[MIB:3 * MIB] = bytes(2 * MIB)
    expect(connection.read(0, 12 * MIB) == whole, f"other bytes come back from '{name}'")


def scenario(test):
    cluster = test.cluster(osd_size="4G")
    with test.step("atoll up --detach", fatal=True) as note:
        note(f"healthy after {cluster.up():.1f} s")
    credentials = cluster.credentials()
    megabyte = PATTERN * (MIB // 64)
    with test.step("the pattern goes in over NBD: large, small, unaligned, partly overwritten", fatal=True) as note:
        cluster.create_image("secrets", "256M")
        rng = random.Random(2)
        with cluster.nbd("secrets") as connection:
            for place in range(0, 64 * MIB, 4 * MIB):
                connection.write(place, megabyte * 4)
            for _ in range(500):
                connection.write(64 * MIB + rng.randrange(4000) * 4096, PATTERN * 64, fua=rng.random() < 0.2)
            for _ in range(200):
                connection.write(96 * MIB + rng.randrange(8 * MIB), PATTERN * rng.randrange(1, 64))
            connection.zero(8 * MIB, 4 * MIB)
            connection.trim(16 * MIB, 4 * MIB)
            connection.flush()
            expect(connection.read(0, MIB) == megabyte, "other bytes come back")
    with test.step("the pattern goes in over S3: small, large, multipart, aborted, copied, deleted", fatal=True):
        s3 = cluster.s3()
        s3.create_bucket(Bucket="secrets")
        for number in range(100):
            s3.put_object(Bucket="secrets", Key=f"small/{number}", Body=PATTERN * (number + 1))
        s3.put_object(Bucket="secrets", Key=NAME, Body=megabyte * 9 + PATTERN[:7])
        for key, finish in (("parts", True), ("aborted", False)):
            upload = s3.create_multipart_upload(Bucket="secrets", Key=key)["UploadId"]
            parts = [{"PartNumber": number, "ETag": s3.upload_part(Bucket="secrets", Key=key, UploadId=upload, PartNumber=number,
                                                                  Body=megabyte * 5)["ETag"]} for number in (1, 2, 3)]
            if finish:
                s3.complete_multipart_upload(Bucket="secrets", Key=key, UploadId=upload, MultipartUpload={"Parts": parts})
            else:
                s3.abort_multipart_upload(Bucket="secrets", Key=key, UploadId=upload)
        s3.copy_object(Bucket="secrets", Key="copy", CopySource={"Bucket": "secrets", "Key": NAME})
        s3.delete_object(Bucket="secrets", Key="small/7")
        expect(s3.get_object(Bucket="secrets", Key="parts")["Body"].read() == megabyte * 15, "other bytes come back")
    write_in_clear(test, cluster)
    secret = credentials["secret_key"].encode()
    for when in ("while it runs", "after kill -9", "after atoll down"):
        if when == "after kill -9":
            cluster.kill_all()
        elif when == "after atoll down":
            with test.step("atoll up and down, so that the logs are replayed and checkpoints written"):
                cluster.up()
                with cluster.nbd("secrets") as connection:
                    expect(connection.read(0, MIB) == megabyte, "other bytes come back")
                expect(cluster.s3().get_object(Bucket="secrets", Key="copy")["Body"].read() == megabyte * 9 + PATTERN[:7], "other bytes")
                expect(cluster.s3().get_object(Bucket="clear", Key="k")["Body"].read() == CLEAR["bucket"] * MIB, "other bytes")
                for name in ("clear", "coded"):
                    with cluster.nbd(name) as connection:
                        read_in_clear(cluster, name, connection)
                cluster.down()
        found = []
        with test.step(f"the pattern is in no file {when}") as note:
            # The middle of the pattern is in every piece of it that is not tiny.
            found, searched = search(cluster.data, [PATTERN[20:52], secret, *CLEAR.values()])
            places = [place for place in found if place[2] == PATTERN[20:52]]
            expect(not places, f"{len(places)} times, such as {places[:5]}")
            expect(searched > 300 * MIB, f"only {searched} bytes were there to search")
            note(f"{searched / MIB:.0f} MiB searched")
        with test.step(f"the S3 secret key is in one file that nobody else may read {when}") as note:
            files = sorted({file for file, _, needle in found if needle == secret})
            expect(files == ["credentials.json"], f"it is in {files}")
            mode = stat.S_IMODE((cluster.data / files[0]).stat().st_mode)
            expect(mode & 0o077 == 0, f"{files[0]} has mode {mode:o}")
            note(f"{files[0]}, mode {mode:o}")
        with test.step(f"what is not sealed is in the devices, and in no other file {when}") as note:
            for name, pattern in CLEAR.items():
                files = {file for file, _, needle in found if needle == pattern}
                copies = 2 if name == "coded" else cluster.osds
                expect(len(files) >= copies and all(file.endswith("/device") for file in files), f"'{name}' is in {sorted(files)}")
            note(f"{len(found)} places")
    with test.step("the search itself finds what is in clear"):
        (cluster.data / "probe").write_bytes(b"x" * (16 * MIB - 30) + PATTERN)
        expect(len(search(cluster.data, [PATTERN[20:52]])[0]) == 1, "it does not")
    with test.step("key files and the data directory are for their owner only"):
        open_files = [f"{path.relative_to(cluster.data)} {stat.S_IMODE(path.lstat().st_mode):o}" for path in cluster.data.rglob("*")
                      if any(word in path.name.lower() for word in ("key", "secret", "credential", "password", "token"))
                      and stat.S_IMODE(path.lstat().st_mode) & 0o077 and not path.is_dir()]
        expect(not open_files, f"{open_files}")


if __name__ == "__main__":
    main(scenario)
