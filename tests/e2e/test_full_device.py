"""A cluster whose devices are full: clear errors, everything stays readable, and deletes give room again.

ATOLL_E2E_FULL_SIZE=1G   size of the devices that are filled
"""

import collections
import itertools
import json
import os
import random
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from botocore.exceptions import ClientError
from lib.cluster import MIB
from lib.nbd import ENOSPC, NbdError, connect_patiently
from lib.s3 import Uploader, digest
from lib.verdicts import intact
from lib.waiting import NotYet, wait_for

DEVICE = os.environ.get("ATOLL_E2E_FULL_SIZE", "1G")
BUCKET = "full"
# What was deleted is kept for so long.
GARBAGE_GRACE_SECONDS = 8
REFUSALS_IN_A_ROW = 12


class Full:
    """A cluster with an image and an empty bucket, and what was acked of both."""

    def __init__(self, cluster):
        self.cluster, self.s3 = cluster, cluster.s3(read_timeout=120)
        self.s3.create_bucket(Bucket=BUCKET)
        cluster.create_image("disk", "8G")
        self.uploader, self.noise = Uploader(self.s3, BUCKET, threads=4), random.Random(8).randbytes(16 * MIB)
        self.blocks, self.before = {}, cluster.process_ids()
        with cluster.nbd("disk") as connection:
            for place in range(0, 64 * MIB, 4 * MIB):
                self.write(connection, place, self.noise[place // 16 :][: 4 * MIB])
        cluster.cli("pool", "create", "coded", "--ec", "2+1", "--pg-num", "8")
        cluster.create_image("coded", "1G", "--pool", "coded")
        # Of the second half of each object nothing is there.
        self.coded = {place: self.noise[place // 16 :][: 2 * MIB] for place in range(0, 32 * MIB, 4 * MIB)}
        with cluster.nbd("coded") as connection:
            for place, data in self.coded.items():
                connection.write(place, data)
                # The object is as long as it can be, so that what is between is a hole within it.
                connection.write(place + 4 * MIB - 65536, data[:65536])
        self.refusals, self.acked_bytes = [], 0

    def write(self, connection, place, data):
        connection.write(place, data)
        self.blocks[place] = data

    def fill(self):
        """Large objects first, then small ones into what is left, until nothing is taken any more."""
        numbers = itertools.count()
        for size in (8 * MIB, MIB, 65536, 100):
            filler = Filler(self, size, numbers)
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(filler.put, range(3000)))
            self.acked_bytes += filler.acked_bytes

    def check_objects(self, **options):
        problems = self.uploader.problems(self.cluster.s3(**options))
        assert not problems, f"{len(problems)}: {problems[:5]}"

    def check_blocks(self):
        with connect_patiently(lambda: self.cluster.nbd("disk", timeout=120)) as connection:
            for place, data in sorted(self.blocks.items()):
                intact(connection.read(place, len(data)) == data, f"the image has other bytes at {place}")
        with connect_patiently(lambda: self.cluster.nbd("coded", timeout=120)) as connection:
            for place, data in sorted(self.coded.items()):
                intact(connection.read(place, len(data)) == data, f"the coded image has other bytes at {place}")


class Filler:
    """Puts objects of one size until several in a row are refused."""

    def __init__(self, full, size, numbers):
        self.full, self.size, self.numbers = full, size, numbers
        self.in_a_row = self.acked_bytes = 0
        self.lock = threading.Lock()

    def put(self, _):
        if self.in_a_row >= REFUSALS_IN_A_ROW:
            return
        number = next(self.numbers)
        start = random.Random(number).randrange(8 * MIB)
        key, data = f"o/{number:06}", number.to_bytes(8, "big") + self.full.noise[start : start + self.size - 8]
        try:
            self.full.s3.put_object(Bucket=BUCKET, Key=key, Body=data)
        except ClientError as error:
            with self.lock:
                self.in_a_row += 1
                status = error.response["ResponseMetadata"]["HTTPStatusCode"]
                self.full.refusals.append((status, error.response["Error"]["Code"], str(error)))
            return
        with self.lock:
            self.full.uploader.acked[key] = digest(data)
            self.in_a_row, self.acked_bytes = 0, self.acked_bytes + len(data)


@pytest.fixture(scope="module")
def full(scenario):
    """A cluster that takes nothing any more."""
    cluster = scenario.cluster("full", osd_size=DEVICE)
    cluster.variables["ATOLL_GARBAGE_GRACE_SECONDS"] = str(GARBAGE_GRACE_SECONDS)
    cluster.up()
    full = Full(cluster)
    full.fill()
    return full


@pytest.fixture(scope="module")
def emptied(full):
    """The same with half of the objects deleted, and half of the image trimmed."""
    with full.cluster.nbd("disk") as connection:
        connection.trim(0, 32 * MIB)
        for place in [place for place in full.blocks if place < 32 * MIB]:
            del full.blocks[place]
    doomed = sorted(full.uploader.acked)[::2]
    for key in doomed[:20]:
        full.s3.delete_object(Bucket=BUCKET, Key=key)
        del full.uploader.acked[key]
    for at in range(20, len(doomed), 1000):
        chunk = doomed[at : at + 1000]
        result = full.s3.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": key} for key in chunk]})
        assert not result.get("Errors"), f"{len(result['Errors'])} of {len(chunk)}: {result['Errors'][:2]}"
        for key in chunk:
            del full.uploader.acked[key]
    full.emptied_at = time.monotonic()
    return full


def test_s3_puts_until_the_cluster_is_full(full, note):
    """S3 PUTs until the cluster is full: a clear error."""
    assert full.refusals, f"{full.acked_bytes / MIB:.0f} MiB were taken without an error"
    codes = {(status, code) for status, code, _ in full.refusals}
    note(f"{len(full.uploader.acked)} objects of {full.acked_bytes / MIB:.0f} MiB acked; {codes}")
    assert codes <= {(507, "InsufficientStorage"), (507, "InsufficientCapacity")}, f"not clear: {full.refusals[:3]}"
    assert full.acked_bytes > 300 * MIB, f"full after {full.acked_bytes / MIB:.0f} MiB on devices of {DEVICE}"


def test_the_image_can_be_attached_and_read_while_the_cluster_is_full(full):
    """The image can be attached while the cluster is full, and read."""
    with full.cluster.nbd("disk", timeout=120) as connection:
        for place, data in full.blocks.items():
            intact(connection.read(place, len(data)) == data, f"other bytes at {place}")


def write_until_refused(full, connection):
    """Writes to new blocks, and returns how many were acked and how the others ended."""
    ends, acked = collections.Counter(), 0
    for number in range(600):
        length = (MIB, 4096, 65536)[number % 3]
        try:
            full.write(connection, 1024 * MIB + number * MIB, bytes([number % 251 + 1]) * length)
            acked += 1
        except NbdError as error:
            ends[error.number] += 1
            if ends.total() >= 200:
                break
    return acked, ends


def test_nbd_writes_while_the_cluster_is_full(full, note):
    """NBD writes while the cluster is full: ENOSPC, never a hang or another error."""
    with full.cluster.nbd("disk", timeout=120) as connection:
        acked, ends = write_until_refused(full, connection)
    note(f"{acked} acked, {ends.total()} refused")
    assert set(ends) == {ENOSPC}, f"{ends}"


def test_overwrites_of_what_is_there_go_on_while_it_is_full(full):
    """What a guest's file system notes of a delete can be written: small and large overwrites of mapped blocks."""
    with full.cluster.nbd("disk", timeout=120) as connection:
        for number in range(200):
            length = (4096, 65536, MIB)[number % 3]
            place = number % 16 * 4 * MIB
            data = full.noise[number * 4096 :][:length]
            connection.write(place, data)
            full.blocks[place] = data + full.blocks[place][length:]


def refused_by_a_full_osd(connection, place, data):
    """Whether a write to a hole is refused. What is taken is trimmed again."""
    try:
        connection.write(place, data)
    except NbdError as error:
        if error.number != ENOSPC:
            raise
        return True
    connection.trim(place, len(data))
    return False


def test_overwrites_go_on_in_an_erasure_coded_pool_and_writes_into_holes_do_not(full):
    """Of what an image has there, small overwrites go on, also across chunks; nothing else is taken."""
    with full.cluster.nbd("coded", timeout=120) as connection:
        for number in range(120):
            place, length = number % 8 * 4 * MIB, (4096, 16384, 65536)[number % 3]
            at = number * 12288 % (MIB - 65536) // 4096 * 4096
            data = full.noise[number * 4096 :][:length]
            connection.write(place + at, data)
            old = full.coded[place]
            full.coded[place] = old[:at] + data + old[at + length :]

        def nothing_is_taken():
            # Uploads that were refused are removed in the background, which may have made room since.
            with full.cluster.nbd("disk", timeout=120) as other:
                write_until_refused(full, other)
            for place in full.coded:
                for length in (4096, MIB):
                    if not refused_by_a_full_osd(connection, place + 5 * MIB // 2, full.noise[:length]):
                        raise NotYet(f"taken: {length} at {place}")
            if not refused_by_a_full_osd(connection, 512 * MIB, full.noise[:4096]):
                raise NotYet("taken: in an object that is not there")
            return True

        wait_for("nothing is taken in holes", nothing_is_taken, 60, 1)
        for place, data in full.coded.items():
            intact(connection.read(place, len(data)) == data, f"other bytes at {place}")
            intact(connection.read(place + 5 * MIB // 2, MIB) == bytes(MIB), f"a write that was refused at {place}")


def health_of(cluster):
    return json.loads(cluster.cli("health", "--json", ok=(0, 1, 2)).stdout)


def test_status_df_and_health_agree_that_it_is_full(full):
    """They say the same, and say it soon."""
    cluster = full.cluster

    def agree():
        status, df, health = cluster.json("status"), cluster.json("df"), health_of(cluster)
        used = sum(osd["used_bytes"] for osd in df)
        codes = [problem["code"] for problem in health["problems"]]
        return status["used_bytes"] == used and "OSD_FULL" in codes and health["status"] == status["health"] == "error"

    # They are asked one after the other, and OSDs report every three seconds: what is removed in the background may be
    # in one answer and not in another.
    wait_for("status, df and health agree", agree, 20)


def test_full_percent_gives_room_for_a_while(full):
    """Raising it lets new data in, with a warning; set back, it does not."""
    cluster = full.cluster
    assert "WARNING" in cluster.cli("settings", "set", "full_percent", "97").stderr
    assert "50 to 97" in cluster.cli("settings", "set", "full_percent", "98", ok=(1,)).stderr

    def can_write():
        with cluster.nbd("disk", timeout=120) as connection:
            try:
                full.write(connection, 3072 * MIB, b"room" * 1024)
            except NbdError as error:
                if error.number != ENOSPC:
                    raise
                return False
            return True

    wait_for("there is room", can_write, 20)
    assert "FULL_PERCENT_RAISED" in [problem["code"] for problem in health_of(cluster)["problems"]]
    assert "WARNING" not in cluster.cli("settings", "set", "full_percent", "95").stderr


@pytest.mark.nightly
def test_everything_that_was_acked_is_readable_while_it_is_full(full, note):
    """Everything that was acked is readable while it is full."""
    full.check_objects()
    full.check_blocks()
    note(f"{len(full.uploader.acked)} objects, {len(full.blocks)} blocks")


def test_no_process_died_of_it_and_status_tells_that_it_is_full(full):
    """No process died of it, and status tells that it is full."""
    assert full.cluster.process_ids() == full.before, full.cluster.log_text()[-600:]
    text = full.cluster.cli("status").stdout + full.cluster.cli("df").stdout
    assert re.search(r"full|space|100 ?%|9\d(\.\d+)? ?%", text, re.IGNORECASE), text


def test_trims_go_on_in_an_erasure_coded_pool(full):
    """Large and small ones; what lies beside them can be overwritten at once. It gives room, so that it goes last of
    those that need full devices."""
    with full.cluster.nbd("coded", timeout=120) as connection:
        for place, data in full.coded.items():
            connection.trim(place + MIB, MIB)
            connection.write(place, full.noise[:4096])
            connection.trim(place + 8192, 4096)
            connection.write(place + 16384, full.noise[:4096])
            expected = full.noise[:4096] + data[4096:8192] + bytes(4096) + data[12288:16384]
            expected += full.noise[:4096] + data[20480:MIB]
            full.coded[place] = expected + bytes(MIB)
        for place, data in full.coded.items():
            intact(connection.read(place, len(data)) == data, f"other bytes at {place}")


@pytest.mark.nightly
def test_trim_and_delete_work_while_it_is_full(emptied):
    """TRIM and DELETE work while it is full: trimmed blocks are zeros, deleted objects are gone."""
    with emptied.cluster.nbd("disk") as connection:
        intact(connection.read(MIB, 4096) == bytes(4096), "trimmed blocks are not zeros")
    listed = emptied.s3.list_objects_v2(Bucket=BUCKET, MaxKeys=1000)["Contents"]
    assert {entry["Key"] for entry in listed} <= emptied.uploader.acked.keys(), "deleted objects are listed"


@pytest.mark.nightly
@pytest.mark.limit(600)
def test_deletes_give_room_again(emptied, note):
    """Deletes give room again: 40 MiB of PUTs and a block write."""

    def room():
        for number in range(5):
            data = emptied.noise[number : number + 8 * MIB]
            try:
                emptied.s3.put_object(Bucket=BUCKET, Key=f"again/{number}", Body=data)
            except ClientError as error:
                raise NotYet(f"{error}\n{emptied.cluster.cli('df').stdout}") from None
            emptied.uploader.acked[f"again/{number}"] = digest(data)
        return True

    wait_for("PUTs work again", room, 180, 2)
    with emptied.cluster.nbd("disk") as connection:
        emptied.write(connection, 7000 * MIB, emptied.noise[:MIB])
    with emptied.cluster.nbd("coded") as connection:
        connection.write(MIB, emptied.noise[:MIB])
        emptied.coded[0] = emptied.coded[0][:MIB] + emptied.noise[:MIB]
    note(f"after {time.monotonic() - emptied.emptied_at:.0f} s")


@pytest.mark.nightly
def test_nothing_is_lost_by_kill_9_and_a_restart_with_a_nearly_full_device(emptied, note):
    """kill -9 of everything and a restart with a nearly full device: nothing is lost."""
    emptied.cluster.kill_all()
    note(f"healthy after {emptied.cluster.up():.1f} s")
    emptied.check_objects(attempts=3)
    emptied.check_blocks()
