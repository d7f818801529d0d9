"""Real files over S3 with rclone, aws CLI and boto3; every process killed in the middle of an upload;
everything acked is there afterwards, byte for byte. Then the S3 conformance checks.

    ATOLL_E2E_FILES=N   files of the first upload (500)
"""

import hashlib
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import time

import pytest
from lib.cluster import MIB
from lib.logs import said
from lib.s3 import Uploader, digest, list_keys
from lib.scenario import REPOSITORY
from lib.verdicts import intact
from lib.waiting import wait_for

pytestmark = pytest.mark.needs("rclone", "aws")


FILE_BYTES_MAX = 8 * MIB
RCLONE = [
    "--transfers",
    12,
    "--checkers",
    12,
    "--s3-upload-cutoff",
    "5Mi",
    "--s3-chunk-size",
    "5Mi",
    "--retries",
    1,
    "-v",
]


def real_files(count, bytes_max):
    """Files of /usr/share in an order that mixes all kinds, a few large ones among them."""
    found = []
    for root, directories, names in os.walk("/usr/share"):
        directories.sort()
        for name in names:
            path = pathlib.Path(root, name)
            try:
                if (
                    path.is_file()
                    and not path.is_symlink()
                    and os.access(path, os.R_OK)
                    and path.stat().st_size <= FILE_BYTES_MAX
                ):
                    str(path).encode()  # not a name that is not UTF-8: S3 has no way to say it
                    found.append((path, path.stat().st_size))
            except (OSError, UnicodeEncodeError):
                continue
    found.sort(key=lambda entry: hashlib.md5(str(entry[0]).encode()).digest())
    # Always some that go up in parts.
    large = [entry for entry in found if entry[1] > 5 * MIB][:3]
    chosen, total = [], 0
    for path, size in large + found:
        if len(chosen) < count and total + size <= bytes_max and (size <= 5 * MIB or (path, size) in large):
            chosen.append(path)
            total += size
    return list(dict.fromkeys(chosen)), total


def copy_to(directory, files):
    """A tree with copies of the files; {relative name: SHA-256}."""
    sums = {}
    for path in files:
        name = str(path).removeprefix("/usr/share/")
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        sums[name] = digest(target.read_bytes())
    return sums


def compare_all(s3, bucket, prefix, sums):
    """All objects equal to their files; returns how many."""
    reader = Uploader(s3, bucket)
    reader.acked = {prefix + name: sha for name, sha in sums.items()}
    problems = reader.problems(threads=8)
    assert not problems, f"{len(problems)} of {len(sums)} objects are not right, such as\n" + "\n".join(problems[:10])
    return len(sums)


class Files:
    """A cluster, and two trees of files of this machine: {relative name: SHA-256} of each."""

    def __init__(self, scenario):
        count = int(os.environ.get("ATOLL_E2E_FILES", 500 * scenario.scale))
        found, _ = real_files(2 * count, int(100 * MIB * scenario.scale))
        self.scenario, self.first_files = scenario, found[::2]
        self.first, self.second = scenario.directory / "first", scenario.directory / "second"
        self.first_sums, self.second_sums = copy_to(self.first, self.first_files), copy_to(self.second, found[1::2])
        self.cluster = scenario.cluster(osd_size="8G")
        self.cluster.up()
        self.s3 = self.cluster.s3()
        for bucket in ("files", "more", "acks"):
            self.s3.create_bucket(Bucket=bucket)

    def rclone(self, *arguments, timeout=300):
        return self.scenario.run("rclone", *arguments, env=self.cluster.s3_environment(), timeout=timeout)

    def aws(self, *arguments):
        return self.scenario.run("aws", "s3", *arguments, env=self.cluster.s3_environment(), timeout=180)

    def check_by_rclone(self, tree, place):
        done = self.rclone("check", "--download", tree, place, "--checkers", 8)
        assert "0 differences found" in done.stderr, done.stderr[-1000:]


@pytest.fixture(scope="module")
def files(scenario):
    return Files(scenario)


@pytest.fixture(scope="module")
def uploaded(files):
    """The first tree, uploaded by rclone."""
    started = time.monotonic()
    files.rclone("copy", files.first, "atoll:files/first", *RCLONE)
    files.seconds = time.monotonic() - started
    return files


@pytest.fixture(scope="module")
def synced(files):
    """A directory uploaded by aws CLI, with a large file: its sums."""
    tree = files.scenario.directory / "aws"
    sums = copy_to(tree, files.first_files[:100])
    large = random.Random(5).randbytes(20 * MIB + 12345)
    (tree / "big ü.bin").write_bytes(large)
    sums["big ü.bin"] = digest(large)
    files.aws("sync", "--only-show-errors", tree, "s3://files/aws/")
    return sums


@pytest.fixture(scope="module")
def killed(uploaded, synced):
    """kill -9 of every process in the middle of a second upload; all starts again."""
    return Killed(uploaded)


class Killed:
    """boto3, whose acks are recorded as they come, and rclone beside it, until all processes are killed."""

    def __init__(self, files):
        self.files, self.uploader = files, Uploader(files.s3, "acks", threads=8)
        self.log = files.scenario.directory / "rclone.log"
        # rclone uploads several files in the time that boto3 takes for one, and must not be done by then.
        goal = max(50, len(files.second_sums) // 10)
        rclone = self.start_rclone()
        self.uploader.start(self.items())
        self.wait_for_acks(goal)
        self.acked = len(self.uploader.acked)
        self.killed = files.cluster.all_pids()
        files.cluster.kill_all()
        assert self.uploader.stop(120), "the uploader hangs after the kill"
        self.rclone_code = rclone.poll()
        # It would retry for minutes.
        rclone.kill()
        rclone.wait()
        self.seconds = files.cluster.up()
        self.s3 = files.s3 = files.cluster.s3(attempts=3)

    def start_rclone(self):
        files = self.files
        impatient = ["--low-level-retries", 1, "--contimeout", "2s", "--timeout", "10s", "--log-file", self.log]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        command = ["rclone", "copy", files.second, "atoll:more/second", *RCLONE, *impatient]
        return files.scenario.start(*command, env=files.cluster.s3_environment(), **quiet)

    def items(self):
        for number in range(100):
            for name in self.files.second_sums:
                # The later rounds replace what the first wrote.
                yield f"b/{name}", lambda name=name, n=number: (self.files.second / name).read_bytes() + b"!" * n

    def copied(self):
        """The files that rclone's log says copied."""
        return re.findall(r"INFO  : (.*): (?:Multi-thread )?Copied \(", said(self.log))

    def wait_for_acks(self, goal):
        def enough():
            # rclone may still be about to begin when boto3 has acks enough.
            has_acks = len(self.uploader.ack_times) >= goal and self.copied()
            return has_acks or not any(t.is_alive() for t in self.uploader.threads)

        wait_for("enough acks", enough, 180, 0.01)
        time.sleep(random.Random(11).random() * 0.3)


def test_rclone_uploads_files(uploaded, note):
    """rclone uploads 2,000 files of /usr/share."""
    note(f"{len(uploaded.first_sums)} files, {len(uploaded.first_sums) / uploaded.seconds:.0f} files/s")


def test_rclone_check_finds_no_difference(uploaded):
    """rclone check --download finds no difference."""
    uploaded.check_by_rclone(uploaded.first, "atoll:files/first")


def test_rclone_lists_sizes_and_names_as_they_are(uploaded):
    """rclone lists sizes and names as they are."""
    lines = uploaded.rclone("lsf", "-R", "--files-only", "--format", "sp", "atoll:files/first").stdout.splitlines()
    listed = {line.split(";", 1)[1]: int(line.split(";", 1)[0]) for line in lines}
    wanted = {name: (uploaded.first / name).stat().st_size for name in uploaded.first_sums}
    differing = list(set(listed.items()) ^ set(wanted.items()))[:5]
    assert listed == wanted, f"{len(listed)} listed, {len(wanted)} uploaded; differing: {differing}"


def test_aws_cli_syncs_a_directory_there_and_back(files, synced, note):
    """aws CLI: sync of a directory and a multipart upload; sync back gives equal files."""
    back = files.scenario.directory / "back"
    files.aws("sync", "--only-show-errors", "s3://files/aws/", back)
    found = {str(path.relative_to(back)): digest(path.read_bytes()) for path in back.rglob("*") if path.is_file()}
    differing = list(set(found.items()) ^ set(synced.items()))[:5]
    assert found == synced, f"{len(found)} of {len(synced)} came back; differing: {differing}"
    note(f"{len(synced)} files")


def test_all_processes_are_killed_in_the_middle_of_an_upload(killed, note):
    """kill -9 of every process in the middle of uploads by boto3 and rclone."""
    count = len(killed.killed)
    assert count >= 7, f"only {count} processes: cluster state, 3 OSDs, gateway, NBD and supervisor were expected"
    assert killed.rclone_code != 0, "rclone had finished before the kill"
    cut_off = sum(map(bool, killed.uploader.open_ended.values()))
    note(f"{killed.acked} keys acked, {cut_off} uploads cut off, healthy after {killed.seconds:.1f} s")


def test_the_first_upload_is_intact(killed, synced, note):
    """The first upload is intact."""
    count = compare_all(killed.s3, "files", "first/", killed.files.first_sums)
    note(f"{count + compare_all(killed.s3, 'files', 'aws/', synced)} objects compared")


def test_every_put_that_was_acked_is_intact(killed, note):
    """Every PUT that boto3 saw acked is intact, and what was cut off is whole or absent."""
    uploader = killed.uploader
    problems = uploader.problems(killed.s3)
    assert not problems, f"{len(problems)} of {len(uploader.acked)}, such as\n" + "\n".join(problems[:10])
    note(f"{len(uploader.acked)} acked keys, {len(uploader.open_ended.keys() - uploader.acked.keys())} never acked")


def test_the_listing_has_every_acked_key_and_none_that_was_never_sent(killed, note):
    """The listing has every acked key and none that was never sent."""
    uploader, keys = killed.uploader, list_keys(killed.s3, "acks")
    assert len(keys) == len(set(keys)), "a key is listed twice"
    intact(uploader.acked.keys() <= set(keys), f"missing: {sorted(uploader.acked.keys() - set(keys))[:5]}")
    assert set(keys) <= uploader.open_ended.keys(), f"never sent: {sorted(set(keys) - uploader.open_ended.keys())[:5]}"
    note(f"{len(keys)} keys")


def test_every_file_that_rclones_log_says_copied_is_intact(killed, note):
    """Every file that rclone's log says copied is intact."""
    copied = killed.copied()
    assert len(copied) > 0, "rclone's log names no copied file"
    sums = {name: killed.files.second_sums[name] for name in copied}
    note(f"{compare_all(killed.s3, 'more', 'second/', sums)} objects")


@pytest.mark.nightly
def test_rclone_finishes_the_upload(killed):
    """rclone finishes the upload, and its check finds no difference."""
    killed.files.rclone("copy", killed.files.second, "atoll:more/second", *RCLONE)
    killed.files.check_by_rclone(killed.files.second, "atoll:more/second")


@pytest.mark.nightly
def test_rclone_purge_empties_and_deletes_a_bucket(killed):
    """rclone purge empties and deletes a bucket."""
    killed.files.rclone("purge", "atoll:more", timeout=180)
    names = [bucket["Name"] for bucket in killed.s3.list_buckets()["Buckets"]]
    assert "more" not in names, f"still there: {names}"


@pytest.mark.nightly
def test_the_conformance_checks_pass(files, note):
    """s3_conformance.py of the S3 crate passes."""
    script = next(REPOSITORY.glob("crates/*/tests/s3_conformance.py"))
    environment = files.cluster.s3_environment()
    done = files.scenario.run(sys.executable, script, env=environment, timeout=300, ok=None)
    failures = [line for line in done.stdout.splitlines() if line.startswith("FAIL")]
    assert done.returncode == 0, (
        "\n".join(failures) + done.stdout[done.stdout.find("FAIL") :][:4000] + done.stderr[-1000:]
    )
    note((done.stdout.splitlines() or [""])[-1])
    files.cluster.down()
