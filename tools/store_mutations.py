#!/usr/bin/env python3
"""Puts one deliberate bug after the other into a copy of the store and says which tests notice.

    tools/store_mutations.py            # all of them
    tools/store_mutations.py fence log  # those whose names contain one of the words

The tests must pass without a bug and fail with each of them. A bug may make a store loop or take
memory without end, so each run is limited in both. Copy and builds are in
CARGO_TARGET_DIR/mutations or ./target/mutations.
"""

import fcntl
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = Path("crates/store/src")
MEMORY_BYTES = 14 << 30
RUN_SECONDS = 900
TEST = "cargo test --release -q -p atoll-store --lib --test store --no-fail-fast".split()
# Short histories first: what they notice need not be looked for by the random ones.
STAGES = [["--", "directed::", "regressions::", "little_memory::", "metadata::", "full_of_metadata_pages"], []]

# Name of the bug, file, what stands there, what stands there instead.
MUTATIONS = [
    # What a checkpoint may do when.
    ("fence skipped", "checkpoint.rs",
     "if oldest.is_none_or(|number| number >= checkpoint.fence_number) {",
     "if oldest.is_none_or(|number| number >= checkpoint.fence_number) || true {"),
    ("records applied that are not durable", "checkpoint.rs",
     "if self.wal_durable_through() + 1 >= checkpoint.superblock.wal_sequence {", "if true {"),
    ("freed blocks released at once", "checkpoint.rs",
     "checkpoint.freed = std::mem::take(&mut self.freed);",
     "for block in std::mem::take(&mut self.freed) { self.allocator.release(block); }"),
    ("superblock before sync", "checkpoint.rs",
     "self.request_of(checkpoint, Request::Other, DiskOperation::Sync);", "let _ = DiskOperation::Sync;"),
    ("log trimmed when the checkpoint begins", "checkpoint.rs",
     "checkpoint.wal_trim_to = self.wal_appended_blocks();",
     "checkpoint.wal_trim_to = self.wal_appended_blocks(); self.trim_wal(checkpoint.wal_trim_to);"),
    ("given up pages kept in the table", "checkpoint.rs",
     "checkpoint.freed.push(location.block);\n            self.page_table.page_moved(number);",
     "checkpoint.freed.push(location.block);\n            let _ = number;"),
    ("frozen pages not set aside", "metadata/pages.rs",
     "self.set_aside.insert(number, page);", "drop(page);"),
    # Small writes on their way.
    ("newer bytes forgotten when older ones are applied", "checkpoint.rs",
     "self.overlay.remove_if_from(block, number);", "let _ = number; self.overlay.remove(block);"),
    ("bytes dropped from memory before the log has them", "overlay.rs",
     "Home::Log { sequence, .. } if sequence <= durable_through => {",
     "Home::Log { sequence, .. } if sequence <= durable_through || true => {"),
    ("shared blocks overwritten in place", "plan.rs",
     "(meta != HOLE && !is_shared).then_some", "(meta != HOLE && (!is_shared || true)).then_some"),
    ("kept copies overwritten in place", "plan.rs",
     "Remove | Zero { .. } | Truncate { .. } | KeepAs { .. })", "Remove | Zero { .. } | Truncate { .. })"),
    ("older copies of the name kept", "plan.rs",
     "remove_other(changes, object, copy)?;\n    changes.clone_object", "changes.clone_object"),
    ("seals of another shape kept", "plan.rs",
     "if changed.seal_shape() != info.seal_shape() {", "if false {"),
    ("undo forgotten that may be needed", "groups.rs",
     "skip_while(|entry| entry.version > through)", "skip_while(|_| false)"),
    ("log forgotten in memory only", "groups.rs",
     "self.unsaved_count = self.log.len();\n        self.was_reset = true;",
     "self.unsaved_count = self.log.len();"),
    # Replay.
    ("large writes leave stale bytes at replay", "recovery.rs",
     "blocks.for_each(|block| self.overlay.remove(block));", "let _ = blocks;"),
    ("freed blocks keep stale bytes at replay", "recovery.rs",
     "self.overlay.retain(|block| bitmap.is_referenced(pages, block));", "let _ = (bitmap, pages);"),
    ("records of other runs replayed", "recovery.rs",
     "header.head.incarnation == incarnation && header.head.sequence == sequence",
     "incarnation != 0 && header.head.sequence == sequence"),
    ("records of the last lap replayed", "recovery.rs",
     "header.head.incarnation == incarnation && header.head.sequence == sequence",
     # A lap has 240 of the records that the test writes. What takes any record goes round for ever.
     "header.head.incarnation == incarnation\n"
     "        && (header.head.sequence == sequence || header.head.sequence + 240 == sequence && position > 0)"),
    ("generation in records ignored", "recovery.rs",
     "let denies_superblock = head.generation > superblock.generation;", "let denies_superblock = false;"),
    ("durable-through in records ignored", "recovery.rs",
     "&& head.durable_through >= missing;", "&& head.durable_through >= missing && false;"),
    ("transactions of the checkpoint replayed", "recovery.rs",
     "if logged.number > pg.applied_number {", "if logged.number > 0 {"),
    ("committed out of order", "group_commit.rs",
     "while self.wal.in_flight.front().is_some_and(|batch| batch.is_durable) {",
     "while self.wal.in_flight.front().is_some() {"),
    ("places outside the data believed", "recovery.rs",
     "blocks.find(|&block| !self.metadata.bitmap.covers(block))", "blocks.find(|_| false)"),
    # Memory and room.
    ("pages dropped that somebody waits with", "metadata/pages.rs", "|| is_needed {", "|| is_needed && false {"),
    ("full page table ignored", "store.rs",
     "self.reserve_blocks() as usize || self.page_room() <= RESERVE_PAGES", "self.reserve_blocks() as usize"),
    # Checksums and the like.
    ("blocks outside the data believed", "metadata/changes.rs",
     "!bitmap.covers(block.device_block)", "!bitmap.covers(block.device_block) && false"),
    ("bitmap not cleared", "metadata/mod.rs",
     "self.bitmap.set(&mut self.tree.pages, block, false);", "let _ = block;"),
    ("index block CRC not checked", "metadata/page_table.rs", "crc32c(bytes) == location.crc && ", ""),
    ("page CRC not checked", "metadata/pages.rs",
     "if crc32c(block.as_slice()) != frame.location.crc {",
     "if crc32c(block.as_slice()) != frame.location.crc && false {"),
    ("block CRC not checked", "read.rs",
     "if is_checked && crc32c(bytes) != read.expected[index].crc {", "if is_checked && false {"),
]


def copy_of_the_tree(target: Path):
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    listing = "git ls-files -z --cached --others --exclude-standard"
    # With fresh times (-m): cargo takes what an earlier copy left built for this one otherwise.
    subprocess.run(f"{listing} | tar --null -cf - -T - | tar -xmf - -C '{target}'", shell=True, cwd=ROOT, check=True)


def limits():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def run(tree: Path, environment):
    """Whether the tests passed, and what noticed if they did not."""
    build = subprocess.run([*TEST, "--no-run"], cwd=tree, env=environment, capture_output=True, text=True)
    if build.returncode:
        sys.exit(f"it does not build:\n{build.stderr}")
    for stage in STAGES:
        passed, noticed = run_stage(stage, tree, environment)
        if not passed:
            break
    return passed, noticed


def run_stage(stage, tree: Path, environment):
    process = subprocess.Popen([*TEST, *stage], cwd=tree, env=environment, text=True, start_new_session=True,
                               preexec_fn=limits, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        output, _ = process.communicate(timeout=RUN_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return False, ["no end after %d s" % RUN_SECONDS] + failed_tests(output)
    return process.returncode == 0, failed_tests(output) or ["exit code %d" % process.returncode]


def failed_tests(output):
    # Tests that hang are never listed at the end; what panics says so at once.
    panicked = re.findall(r"thread '([\w:]+)' .*panicked", output)
    listed = re.findall(r"^    ([\w:]+)$", output, re.MULTILINE) + re.findall(r"^test (\S+) .*FAILED", output, re.MULTILINE)
    return sorted({name for name in panicked + listed if "::" in name})


def main():
    words = sys.argv[1:]
    chosen = [mutation for mutation in MUTATIONS if not words or any(word in mutation[0] for word in words)]
    place = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "mutations"
    tree = place / "tree"
    # Apart, so that nobody takes a store with a bug for the one that was built last.
    environment = dict(os.environ, CARGO_TARGET_DIR=str(place / "build"), CARGO_INCREMENTAL="1",
                       CARGO_PROFILE_RELEASE_DEBUG="false")
    place.mkdir(parents=True, exist_ok=True)
    lock = open(place / "lock", "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    copy_of_the_tree(tree)
    if not words:
        passed, noticed = run(tree, environment)
        if not passed:
            sys.exit(f"the tests fail without a bug: {noticed}")
    survivors = 0
    for name, file, pattern, replacement in chosen:
        path = tree / SOURCE / file
        sound = path.read_text()
        if sound.count(pattern) != 1:
            sys.exit(f"{name}: {file} has {sound.count(pattern)} places like this: {pattern}")
        path.write_text(sound.replace(pattern, replacement))
        started = time.monotonic()
        passed, noticed = run(tree, environment)
        path.write_text(sound)
        survivors += passed
        outcome = "NOT NOTICED" if passed else ", ".join(noticed)
        print(f"{name} ({time.monotonic() - started:.0f} s): {outcome}", flush=True)
    print(f"{len(chosen)} bugs, {survivors} not noticed")
    sys.exit(survivors > 0)


if __name__ == "__main__":
    main()
