#!/usr/bin/env python3
"""Real files over S3 with rclone, aws CLI and boto3; every process killed in the middle of an upload;
everything acked is there afterwards, byte for byte. Then the S3 conformance checks.

    ATOLL_E2E_FILES=N   files of the first upload (2000)
"""
import hashlib, os, pathlib, random, re, shutil, subprocess, sys, time

from harness import MIB, REPOSITORY, Failed, expect, main, wait_for
from s3load import Uploader, digest, list_keys

FILE_BYTES_MAX = 8 * MIB
RCLONE = ["--transfers", 12, "--checkers", 12, "--s3-upload-cutoff", "5Mi", "--s3-chunk-size", "5Mi", "--retries", 1, "-v"]


def real_files(count, bytes_max):
    """Files of /usr/share in an order that mixes all kinds, a few large ones among them."""
    found = []
    for root, directories, names in os.walk("/usr/share"):
        directories.sort()
        for name in names:
            path = pathlib.Path(root, name)
            try:
                if path.is_file() and not path.is_symlink() and os.access(path, os.R_OK) and path.stat().st_size <= FILE_BYTES_MAX:
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
    expect(not problems, f"{len(problems)} of {len(sums)} objects are not right, such as\n" + "\n".join(problems[:10]))
    return len(sums)


def scenario(test):
    test.need(("rclone", "rclone"), ("aws", "awscli"))
    count = int(os.environ.get("ATOLL_E2E_FILES", 2000 * test.scale))
    files, _ = real_files(2 * count, int(240 * MIB * test.scale))
    first_files, second_files = files[::2], files[1::2]
    first_sums = copy_to(test.directory / "first", first_files)
    second_sums = copy_to(test.directory / "second", second_files)

    cluster = test.cluster(osd_size="8G")
    with test.step("atoll up --detach", fatal=True) as note:
        note(f"healthy after {cluster.up():.1f} s")
    with test.step("create buckets with boto3", fatal=True):
        s3 = cluster.s3()
        for bucket in ("files", "more", "acks"):
            s3.create_bucket(Bucket=bucket)
    environment = cluster.s3_environment()

    with test.step(f"rclone uploads {len(first_sums)} files of /usr/share") as note:
        started = time.monotonic()
        test.run("rclone", "copy", test.directory / "first", "atoll:files/first", *RCLONE, env=environment, timeout=300)
        seconds = time.monotonic() - started
        note(f"{len(first_sums) / seconds:.0f} files/s")
    with test.step("rclone check --download finds no difference") as note:
        done = test.run("rclone", "check", "--download", test.directory / "first", "atoll:files/first", "--checkers", 8,
                        env=environment, timeout=300)
        expect("0 differences found" in done.stderr, done.stderr[-1000:])
        note(f"{len(first_sums)} files")
    with test.step("rclone lists sizes and names as they are") as note:
        lines = test.run("rclone", "lsf", "-R", "--files-only", "--format", "sp", "atoll:files/first", env=environment).stdout
        listed = {line.split(";", 1)[1]: int(line.split(";", 1)[0]) for line in lines.splitlines()}
        wanted = {name: (test.directory / "first" / name).stat().st_size for name in first_sums}
        expect(listed == wanted, f"{len(listed)} listed, {len(wanted)} uploaded; differing: {list(set(listed.items()) ^ set(wanted.items()))[:5]}")

    with test.step("aws CLI: sync of a directory and a multipart upload") as note:
        tree = test.directory / "aws"
        aws_sums = copy_to(tree, first_files[:100])
        big = random.Random(5).randbytes(20 * MIB + 12345)
        (tree / "big ü.bin").write_bytes(big)
        aws_sums["big ü.bin"] = digest(big)
        test.run("aws", "s3", "sync", "--only-show-errors", tree, "s3://files/aws/", env=environment, timeout=180)
        note(f"{len(aws_sums)} files")
    with test.step("aws CLI: sync back gives equal files") as note:
        test.run("aws", "s3", "sync", "--only-show-errors", "s3://files/aws/", test.directory / "back", env=environment, timeout=180)
        back = {str(path.relative_to(test.directory / "back")): digest(path.read_bytes())
                for path in (test.directory / "back").rglob("*") if path.is_file()}
        expect(back == aws_sums, f"{len(back)} of {len(aws_sums)} came back; differing: {list(set(back.items()) ^ set(aws_sums.items()))[:5]}")

    # The second upload: boto3, whose acks are recorded as they come, and rclone beside it.
    uploader = Uploader(s3, "acks", threads=8)
    # rclone uploads several files in the time that boto3 takes for one, and must not be done by then.
    goal = max(50, len(second_sums) // 10)
    rng = random.Random(11)
    with test.step(f"kill -9 of every process after {goal} acks of a second upload", fatal=True) as note:
        log = test.directory / "rclone.log"
        rclone = test.start("rclone", "copy", test.directory / "second", "atoll:more/second", *RCLONE, "--low-level-retries", 1,
                            "--contimeout", "2s", "--timeout", "10s", "--log-file", log, env=environment,
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def items():
            for round_number in range(100):
                for name in second_sums:
                    # The later rounds replace what the first wrote.
                    yield f"b/{name}", (lambda name=name, n=round_number: (test.directory / "second" / name).read_bytes() + b"!" * n)

        uploader.start(items())
        wait_for("enough acks", lambda: len(uploader.ack_times) >= goal or not any(t.is_alive() for t in uploader.threads), 180, 0.01)
        time.sleep(rng.random() * 0.3)
        acked_before = len(uploader.acked)
        killed = cluster.all_pids()
        cluster.kill_all()
        expect(len(killed) >= 7, f"only {len(killed)} processes: cluster state, 3 OSDs, gateway, NBD and supervisor were expected")
        expect(uploader.stop(120), "the uploader hangs after the kill")
        expect(rclone.poll() != 0, "rclone had finished before the kill")
        # It would retry for minutes.
        rclone.kill()
        rclone.wait()
        note(f"{acked_before} keys acked, {sum(map(bool, uploader.open_ended.values()))} uploads cut off, {len(killed)} processes killed")

    with test.step("atoll up --detach after the kill", fatal=True) as note:
        note(f"healthy after {cluster.up():.1f} s")
    s3 = cluster.s3(attempts=3)
    environment = cluster.s3_environment()
    with test.step("the first upload is intact") as note:
        note(f"{compare_all(s3, 'files', 'first/', first_sums) + compare_all(s3, 'files', 'aws/', aws_sums)} objects compared")
    with test.step("every PUT that boto3 saw acked is intact, and what was cut off is whole or absent") as note:
        problems = uploader.problems(s3)
        expect(not problems, f"{len(problems)} of {len(uploader.acked)}, such as\n" + "\n".join(problems[:10]))
        note(f"{len(uploader.acked)} acked keys, {len(uploader.open_ended.keys() - uploader.acked.keys())} never acked")
    with test.step("the listing has every acked key and none that was never sent") as note:
        keys = list_keys(s3, "acks")
        expect(len(keys) == len(set(keys)), "a key is listed twice")
        expect(uploader.acked.keys() <= set(keys), f"missing: {sorted(uploader.acked.keys() - set(keys))[:5]}")
        expect(set(keys) <= uploader.open_ended.keys(), f"never sent: {sorted(set(keys) - uploader.open_ended.keys())[:5]}")
        note(f"{len(keys)} keys")
    with test.step("every file that rclone's log says copied is intact") as note:
        copied = re.findall(r"INFO  : (.*): (?:Multi-thread )?Copied \(", log.read_text())
        expect(len(copied) > 0, "rclone's log names no copied file")
        note(f"{compare_all(s3, 'more', 'second/', {name: second_sums[name] for name in copied})} objects")
    with test.step("rclone finishes the upload, and its check finds no difference"):
        test.run("rclone", "copy", test.directory / "second", "atoll:more/second", *RCLONE, env=environment, timeout=300)
        done = test.run("rclone", "check", "--download", test.directory / "second", "atoll:more/second", "--checkers", 8, env=environment, timeout=300)
        expect("0 differences found" in done.stderr, done.stderr[-1000:])
    with test.step("rclone purge empties and deletes a bucket"):
        test.run("rclone", "purge", "atoll:more", env=environment, timeout=180)
        names = [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]
        expect("more" not in names, f"still there: {names}")

    script = REPOSITORY / "crates" / "s3" / "tests" / "s3_conformance.py"
    with test.step("crates/s3/tests/s3_conformance.py") as note:
        done = test.run(sys.executable, script, env=environment, timeout=300, ok=None)
        failures = [line for line in done.stdout.splitlines() if line.startswith("FAIL")]
        last = (done.stdout.splitlines() or [""])[-1]
        if done.returncode != 0:
            raise Failed(f"{last}\n" + "\n".join(failures) + "\n" + done.stdout[done.stdout.find("FAIL"):][:4000] + done.stderr[-1000:])
        note(last)
    with test.step("atoll down"):
        cluster.down()


if __name__ == "__main__":
    main(scenario)
