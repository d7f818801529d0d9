"""Images to files and back: raw, streams of changes, qcow2, pipes, copies; and files that are damaged."""

import json
import random
import subprocess
import time

import pytest
from lib.cluster import MIB
from lib.nbd import NbdError
from lib.verdicts import intact
from lib.waiting import wait_for

pytestmark = [pytest.mark.any_order, pytest.mark.needs("qemu-img")]

SIZE = 32 * MIB


@pytest.fixture(scope="module")
def cluster(scenario):
    """An image with two snapshots, and what they have."""
    cluster = scenario.cluster(osd_size="4G")
    cluster.up()
    rng, directory = random.Random(3), scenario.directory
    first = bytearray(SIZE)
    for _ in range(20):
        at, length = rng.randrange(SIZE // 4096) * 4096, rng.choice([4096, 65536, MIB])
        first[at : at + length] = rng.randbytes(min(length, SIZE - at))
    (directory / "monday").write_bytes(first)
    cluster.cli("image", "import", directory / "monday", "disk")
    cluster.cli("image", "snap", "create", "disk@monday")
    second = bytearray(first)
    with cluster.nbd("disk") as connection:
        for _ in range(10):
            at, data = rng.randrange(SIZE // 4096) * 4096, rng.choice([rng.randbytes(4096), bytes(4096)])
            connection.write(at, data)
            second[at : at + 4096] = data
        connection.trim(8 * MIB, 4 * MIB)
        second[8 * MIB : 12 * MIB] = bytes(4 * MIB)
    (directory / "tuesday").write_bytes(second)
    cluster.cli("image", "snap", "create", "disk@tuesday")
    return cluster


def content(cluster, day):
    return (cluster.scenario.directory / day).read_bytes()


def exported(cluster, source, *more):
    path = cluster.scenario.directory / "exported"
    path.unlink(missing_ok=True)
    cluster.cli("image", "export", source, path, *more)
    return path.read_bytes()


def test_raw_files_are_sparse_and_whole(cluster):
    path = cluster.scenario.directory / "raw"
    cluster.cli("image", "export", "disk@monday", path)
    intact(path.read_bytes() == content(cluster, "monday"), "other bytes")
    assert path.stat().st_blocks * 512 < SIZE
    assert "exists already" in cluster.cli("image", "export", "disk@monday", path, ok=(1,)).stderr
    assert not list(path.parent.glob("raw.partial*"))
    for more in [("--format", "qcow2"), ("--format", "changes"), ("--from", "monday")]:
        other = path.with_name("other")
        command = ["image", "export", "disk@tuesday", other, "--resume", *more]
        assert "leave --resume out" in cluster.cli(*command, ok=(1,)).stderr and not other.exists()


def test_pipes(cluster):
    atoll, data = cluster.scenario.atoll, cluster.data
    out, back = "image export disk@tuesday -", "image import - piped --size 32M"
    pipe = f"'{atoll}' {out} --data '{data}' | '{atoll}' {back} --data '{data}'"
    cluster.scenario.run("bash", "-c", f"set -o pipefail; {pipe}")
    intact(exported(cluster, "piped") == content(cluster, "tuesday"), "other bytes")
    assert "--size" in cluster.cli("image", "import", "-", "unknown", ok=(1,)).stderr


@pytest.fixture(scope="module")
def streams(cluster):
    """A directory with the changes from nothing to Monday, and those from Monday to Tuesday."""
    directory = cluster.scenario.directory
    cluster.cli("image", "export", "disk@monday", directory / "full", "--format", "changes")
    cluster.cli("image", "export", "disk@tuesday", directory / "diff", "--from", "monday")
    return directory


def test_changes_bring_a_copy_up_to_date(cluster, streams):
    directory = streams
    assert (directory / "diff").stat().st_size < 64 * 4096
    cluster.cli("image", "import", directory / "full", "copy")
    intact(exported(cluster, "copy@monday") == content(cluster, "monday"), "other bytes")
    cluster.cli("image", "import", directory / "diff", "copy")
    intact(exported(cluster, "copy@tuesday") == content(cluster, "tuesday"), "other bytes")
    again = cluster.cli("image", "import", directory / "diff", "copy", ok=(1,))
    assert "imported before" in again.stderr
    cluster.create_image("bare", "32M")
    assert "no snapshot 'monday'" in cluster.cli("image", "import", directory / "diff", "bare", ok=(1,)).stderr


def test_a_damaged_or_interrupted_import_is_an_error_and_can_be_begun_again(cluster, streams):
    directory = streams
    whole = (directory / "diff").read_bytes()
    cluster.cli("image", "import", directory / "full", "again")
    for name, damaged in (("cut", whole[:-20]), ("changed", whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:])):
        (directory / name).write_bytes(damaged)
        done = cluster.cli("image", "import", directory / name, "again", "--discard-changes", ok=(1,))
        assert "the stream is damaged" in done.stderr, done.stderr
    assert "--discard-changes" in cluster.cli("image", "import", directory / "diff", "again", ok=(1,)).stderr
    cluster.cli("image", "import", directory / "diff", "again", "--discard-changes")
    intact(exported(cluster, "again@tuesday") == content(cluster, "tuesday"), "other bytes")


@pytest.mark.nightly
def test_an_import_that_was_killed_goes_on(cluster):
    """Nobody can take the image for whole before."""
    data, part = random.Random(5).randbytes(64 * MIB), 4 * MIB
    command = [cluster.scenario.atoll, "image", "import", "-", "slow", "--size", "64M", "--data", cluster.data]
    process = cluster.scenario.start(*command, stdin=subprocess.PIPE, text=False, errors=None)
    process.stdin.write(data[:part])
    process.stdin.flush()
    wait_for("there is an image", lambda: any(image["name"] == "slow" for image in cluster.json("image", "ls")), 30)
    unfinished = ""
    for at in range(part, 60 * MIB, part):
        process.stdin.write(data[at : at + part])
        process.stdin.flush()
        time.sleep(1.1)
        unfinished = cluster.json("image", "info", "slow")["unfinished"]
        if "MiB are done" in unfinished:
            break
    assert "MiB are done" in unfinished, unfinished
    process.kill()
    process.wait()
    with pytest.raises(NbdError, match="is not done"):
        cluster.nbd("slow").close()
    assert "is not done" in cluster.cli("image", "snap", "create", "slow@s", ok=(1,)).stderr
    assert "something else" in cluster.cli("image", "cp", "disk@monday", "slow", "--resume", ok=(1,)).stderr
    done = subprocess.run([*command, "--resume"], input=data, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert b"64.0 MiB with data" not in done.stdout, "it began anew"
    intact(exported(cluster, "slow") == data, "other bytes")
    assert "is whole" in cluster.cli("image", "cp", "disk@monday", "slow", "--resume", ok=(1,)).stderr


def test_an_export_to_a_raw_file_goes_on(cluster):
    path = cluster.scenario.directory / "goes-on"
    partial, note = path.with_name("goes-on.partial"), path.with_name("goes-on.partial.json")
    details = cluster.json("image", "info", "disk")
    number = next(found["number"] for found in details["snapshots"] if found["name"] == "monday")
    # What is in the file so far is not read again: marks in it stay.
    partial.write_bytes(b"mark" * (4 * MIB))
    note.write_text(json.dumps({"source": f"snapshot {number} of image {details['id']}", "done_bytes": 16 * MIB}))
    assert "another export" in cluster.cli("image", "export", "disk@tuesday", path, "--resume", ok=(1,)).stderr
    cluster.cli("image", "export", "disk@monday", path, "--resume")
    found = path.read_bytes()
    intact(
        found[: 16 * MIB] == b"mark" * (4 * MIB) and found[16 * MIB :] == content(cluster, "monday")[16 * MIB :],
        "other bytes",
    )
    assert not partial.exists() and not note.exists()
    # Without --resume it begins anew, and an old note counts for nothing.
    path.unlink()
    partial.write_bytes(b"mark")
    note.write_text("{}")
    cluster.cli("image", "export", "disk@monday", path)
    intact(path.read_bytes() == content(cluster, "monday") and not note.exists(), "other bytes")
    # An export in another format takes the partial file, and with it the note.
    path.unlink()
    partial.write_bytes(b"mark")
    note.write_text("{}")
    cluster.cli("image", "export", "disk@monday", path, "--format", "changes")
    assert not partial.exists() and not note.exists()


def test_qcow2(cluster):
    path = cluster.scenario.directory / "disk.qcow2"
    cluster.cli("image", "export", "disk@tuesday", path, "--format", "qcow2")
    cluster.cli("image", "import", path, "from-qcow2")
    intact(exported(cluster, "from-qcow2") == content(cluster, "tuesday"), "other bytes")


def test_copies_and_sparsify(cluster):
    assert "may have changed" in cluster.cli("image", "cp", "disk", "copied", "--resume", ok=(1,)).stderr
    cluster.cli("image", "cp", "disk@tuesday", "copied", "--resume")
    intact(exported(cluster, "copied") == content(cluster, "tuesday"), "other bytes")
    before = cluster.json("image", "du", "copied")["used_bytes"]
    with cluster.nbd("copied") as connection:
        connection.write(0, bytes(MIB))
    cluster.cli("image", "lock", "break", "copied", "--yes")
    cluster.cli("image", "sparsify", "copied")
    assert cluster.json("image", "du", "copied")["used_bytes"] <= before
    intact(exported(cluster, "copied")[:MIB] == bytes(MIB), "other bytes")
