"""Images to files and back: raw, streams of changes, qcow2, pipes, copies; and files that are damaged."""

import random

import pytest
from lib.cluster import MIB

pytestmark = pytest.mark.needs("qemu-img")

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
    assert path.read_bytes() == content(cluster, "monday")
    assert path.stat().st_blocks * 512 < SIZE
    assert "cannot create" in cluster.cli("image", "export", "disk@monday", path, ok=(1,)).stderr


def test_pipes(cluster):
    atoll, data = cluster.scenario.atoll, cluster.data
    out, back = "image export disk@tuesday -", "image import - piped --size 32M"
    pipe = f"'{atoll}' {out} --data '{data}' | '{atoll}' {back} --data '{data}'"
    cluster.scenario.run("bash", "-c", f"set -o pipefail; {pipe}")
    assert exported(cluster, "piped") == content(cluster, "tuesday")
    assert "--size" in cluster.cli("image", "import", "-", "unknown", ok=(1,)).stderr


def test_changes_bring_a_copy_up_to_date(cluster):
    directory = cluster.scenario.directory
    cluster.cli("image", "export", "disk@monday", directory / "full", "--format", "changes")
    cluster.cli("image", "export", "disk@tuesday", directory / "diff", "--from", "monday")
    assert (directory / "diff").stat().st_size < 64 * 4096
    cluster.cli("image", "import", directory / "full", "copy")
    assert exported(cluster, "copy@monday") == content(cluster, "monday")
    cluster.cli("image", "import", directory / "diff", "copy")
    assert exported(cluster, "copy@tuesday") == content(cluster, "tuesday")
    again = cluster.cli("image", "import", directory / "diff", "copy", ok=(1,))
    assert "imported before" in again.stderr
    assert "no snapshot 'monday'" in cluster.cli("image", "import", directory / "diff", "piped", ok=(1,)).stderr


def test_a_damaged_or_interrupted_import_is_an_error_and_can_be_begun_again(cluster):
    directory = cluster.scenario.directory
    whole = (directory / "diff").read_bytes()
    cluster.cli("image", "import", directory / "full", "again")
    for name, damaged in (("cut", whole[:-20]), ("changed", whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:])):
        (directory / name).write_bytes(damaged)
        done = cluster.cli("image", "import", directory / name, "again", "--discard-changes", ok=(1,))
        assert "the stream is damaged" in done.stderr, done.stderr
    assert "--discard-changes" in cluster.cli("image", "import", directory / "diff", "again", ok=(1,)).stderr
    cluster.cli("image", "import", directory / "diff", "again", "--discard-changes")
    assert exported(cluster, "again@tuesday") == content(cluster, "tuesday")


def test_qcow2(cluster):
    path = cluster.scenario.directory / "disk.qcow2"
    cluster.cli("image", "export", "disk@tuesday", path, "--format", "qcow2")
    cluster.cli("image", "import", path, "from-qcow2")
    assert exported(cluster, "from-qcow2") == content(cluster, "tuesday")


def test_copies_and_sparsify(cluster):
    cluster.cli("image", "cp", "disk@tuesday", "copied")
    assert exported(cluster, "copied") == content(cluster, "tuesday")
    before = cluster.json("image", "du", "copied")["used_bytes"]
    with cluster.nbd("copied") as connection:
        connection.write(0, bytes(MIB))
    cluster.cli("image", "lock", "break", "copied", "--yes")
    cluster.cli("image", "sparsify", "copied")
    assert cluster.json("image", "du", "copied")["used_bytes"] <= before
    assert exported(cluster, "copied")[:MIB] == bytes(MIB)
