#!/usr/bin/env python3
"""Puts one deliberate bug after the other into a copy of the placement-group protocol and says
which seed of the simulator notices it first.

    tools/pg_mutations.py             # all of them
    tools/pg_mutations.py lease tail  # those whose names contain one of the words

All seeds must pass without a bug, and one of them must fail with each. Scenarios that notice a bug
are named too. The copy is in CARGO_TARGET_DIR/pg-mutations or ./target/pg-mutations.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = Path("crates/pg/src")
SEEDS = int(os.environ.get("ATOLL_SIM_RUNS", "20000"))
RUN_SECONDS = 1800
TEST = "cargo test --release -q -p atoll-sim --test seeds --test scenarios --test erasure --no-fail-fast".split()

# Name of the bug, file, what stands there, what stands there instead.
MUTATIONS = [
    # Writes.
    ("acknowledged before all members have it", "client_requests.rs",
     "is_some_and(|write| write.missing.is_empty())", "is_some_and(|write| write.missing.len() <= 1)"),
    ("a write goes on after a refused one", "client_requests.rs", "|| self.history_broken.is_some()", ""),
    ("scrubs go on after a refused write", "submissions.rs",
     "self.scrub = None;\n        // What follows cannot", "// What follows cannot"),
    ("scrubs begin after a refused write", "scrub.rs",
     "self.history_broken.is_none() && !self.is_splitting", "!self.is_splitting"),
    ("a refused write stays in flight", "submissions.rs", "self.abandon(version);", "let _ = version;"),
    ("writes not held back while an object is copied", "client_requests.rs",
     "|| self.learners.are_copying(object)", ""),
    # Ticks.
    ("at rest although requests wait", "rest.rs", "&& self.waiting.is_empty()", ""),
    ("at rest after a refused write", "rest.rs", "&& self.history_broken.is_none()", ""),
    ("at rest with an answer owed", "rest.rs", "&& !self.promises.owes_answer()", ""),
    ("at rest where others are wanted", "rest.rs", "self.leads() && self.is_on_target();", "self.leads();"),
    ("at rest while the primary is away", "rest.rs", "&& self.is_usable(self.record.primary);", ";"),
    ("at rest with an old copy", "rest.rs", "|| !self.holds_something(view))", "|| self.holds_something(view))"),
    ("at rest before a split", "rest.rs", "&& !needs_split &&", "&& (!needs_split || true) &&"),
    ("at rest before others hear that all have everything", "rest.rs", "!self.has_news_of_committed() &&", ""),
    ("at rest with two members of one shard", "rest.rs", "&& self.surplus_member().is_none();", ";"),
    ("at rest with what was kept", "coded/mod.rs", "&& self.committed == self.forgotten", ""),
    ("at rest while writes are taken back", "coded/mod.rs", "&& self.roll_back.is_none()", ""),
    ("at rest in the midst of a scrub", "rest.rs", "&& !self.is_scrubbing()", ""),
    # Reads.
    ("reads without a lease", "client_requests.rs",
     "view.now_ms() < view.lease_held_until_ms(*member))", "view.now_ms() < view.lease_held_until_ms(*member) || true)"),
    ("reads of what is in flight", "client_requests.rs",
     "_ => self.in_flight.iter().any(|write| write.shows_in(&request.object, read)),", "_ => false,"),
    ("refusals that rest on what is in flight", "client_requests.rs",
     "self.in_flight.iter().any(|write| rests_on(&write.object)) ||",
     "self.in_flight.iter().any(|write| rests_on(&write.object) && false) ||"),
    ("clones refused because of what is in flight", "client_requests.rs",
     "|| sources.contains(object)", "|| sources.contains(object) && false"),
    ("another copy's bytes not checked", "copies.rs",
     "Ok(outcome) if view.matches_checks(self.id, &read.object, read.offset, &payload) => {", "Ok(outcome) => {"),
    # Leases.
    ("leases held for as long as they are granted", "leases.rs", "const HELD_MS: u64 = 900;", "const HELD_MS: u64 = 1_000;"),
    ("a new primary answered before the lease has run out", "promises.rs",
     "let is_bound = view.now_ms() < promises.bound_until_ms && !promises.bound_to.is_empty();", "let is_bound = false;"),
    ("leases forgotten at a restart", "promises.rs",
     "bound_until_ms: view.lease_granted_until_ms(None),", "bound_until_ms: 0,"),
    ("whom it may be bound to forgotten at a restart", "promises.rs",
     "None if !self.has_answered => self.bound_to.extend(active_members),", "None if !self.has_answered => {}"),
    ("released by whoever says so first", "promises.rs",
     "if epoch == self.promises.epoch && self.promises.bound_to.remove(&from) {",
     "if epoch == self.promises.epoch {\n            self.promises.bound_to.clear();"),
    ("an old primary releases and goes on", "promises.rs",
     "if epoch > self.record.epoch && self.is_primary() && self.state != PgState::Inactive {",
     "if epoch > self.record.epoch && self.is_primary() && self.state == PgState::Inactive {"),
    # Promises.
    ("answered before the promise is durable", "promises.rs",
     "if !promises.is_owed || !promises.is_durable() || is_bound {",
     "if !promises.is_owed || is_bound {"),
    ("questions of lower epochs heeded", "promises.rs",
     "if epoch < self.promises.epoch {\n            return;", "if epoch < self.promises.epoch && false {\n            return;"),
    ("writes of lower epochs heeded", "group.rs",
     "if epoch == self.promises.epoch && follows {", "if follows {"),
    ("fillings of lower epochs heeded", "group.rs",
     "if epoch == self.promises.epoch && self.broken_sync != Some((epoch, tag)) {",
     "if self.broken_sync != Some((epoch, tag)) {"),
    ("answers under lower epochs counted", "peering.rs",
     "if !self.is_primary() || epoch != self.record.epoch {", "if !self.is_primary() {"),
    # Peering.
    ("the oldest head leads", "peering.rs",
     "electors.max_by_key(|(_, head)| **head);", "electors.min_by_key(|(_, head)| **head);"),
    ("heads compared by sequence only", "peering.rs", "&& *head > own_head", "&& head.sequence > own_head.sequence"),
    ("others than electors lead", "peering.rs",
     ".filter(|(osd, _)| self.electors().contains(osd));", ".filter(|_| true);"),
    ("peering does not wait for all members", "peering.rs",
     "self.peering.own_promise == Some(epoch) && everyone_answered", "self.peering.own_promise == Some(epoch) && (everyone_answered || true)"),
    ("serves before cluster state says so", "peering.rs",
     "if self.record.activated_epoch != self.record.epoch {\n            return self.propose_activation(view);\n        }",
     "if self.record.activated_epoch != self.record.epoch {\n            self.propose_activation(view);\n        }"),
    ("peers under an epoch of another life", "membership.rs",
     "if all_usable && is_current && self.membership.proposed == Some(self.record.epoch) {", "if all_usable && is_current {"),
    ("promises lowered by old records", "membership.rs",
     "let is_current = self.promises.epoch <= self.record.epoch;", "let is_current = true;"),
    ("retries not recognised after a take-over", "peering.rs",
     "self.retries.record(request, Ok(()), entry.version);", "let _ = request;"),
    ("what was in flight survives another primary", "promises.rs", "self.disown_in_flight();", ""),
    ("rolled-back writes remembered as done", "group.rs", "self.retries.forget_successes();", ""),
    # Who may lead and be a member.
    ("lost devices not noticed", "promises.rs",
     "record.last_active_members.contains(&self.me) && self.promises.epoch < record.activated_epoch",
     "record.last_active_members.contains(&self.me) && self.promises.epoch < record.activated_epoch && false"),
    ("lost devices not noticed by those who are asked", "promises.rs",
     "if active_members.contains(&self.me) && self.promises.epoch < active_epoch {",
     "if active_members.contains(&self.me) && self.promises.epoch < active_epoch && false {"),
    ("lost devices not noticed by anybody", "promises.rs",
     "pub(crate) fn notice_lost_device(&mut self) {", "pub(crate) fn notice_lost_device(&mut self) {\n        self.promises.is_incomplete |= false;\n        return;\n    }\n    #[allow(dead_code)]\n    fn unused(&mut self) {"),
    ("whoever is left takes over", "membership.rs",
     "let has_source = self.copies_on(sources) >= self.copies_needed();", "let has_source = sources.count() < 99;"),
    ("incomplete members count", "membership.rs",
     "self.membership.is_reachable(osd) && !self.membership.incomplete.contains(&osd)", "self.membership.is_reachable(osd)"),
    # Filling.
    ("the incomplete flag is not set", "promises.rs",
     'Mutation::OmapSet { key: Bytes::from_static(INCOMPLETE_KEY), value: Bytes::from_static(b"1") }',
     'Mutation::OmapSet { key: Bytes::from_static(b"other"), value: Bytes::from_static(b"1") }'),
    ("complete before the last object is durable", "learners.rs",
     "!(self.missing.is_empty() && self.copying.is_empty() && self.failed.is_empty())",
     "!(self.missing.is_empty() && self.failed.is_empty())"),
    ("complete although objects could not be read", "learners.rs",
     "!(self.missing.is_empty() && self.copying.is_empty() && self.failed.is_empty())",
     "!(self.missing.is_empty() && self.copying.is_empty())"),
    ("incomplete copies trusted", "learners.rs", "if !answer.is_complete {\n        return None;\n    }", ""),
    ("objects that only the learner has are kept", "learners.rs",
     "if own.remove(&name) != Some(version) ||",
     "if own.remove(&name).is_some_and(|own| own != version) ||"),
    ("divergent tails not rolled back", "learners.rs",
     "for entry in their_log.iter().filter(|entry| entry.version.sequence > common.sequence) {",
     "for entry in their_log.iter().take(0) {"),
    ("logs not cut back", "learners.rs",
     "vec![incomplete(), Mutation::ResetLog { head: common }, splits]",
     "vec![incomplete(), Mutation::ResetLog { head: answer.head }, splits]"),
    ("data sent for objects still missing", "learners.rs",
     "if !self.lacks(object) && !clones_missing {", "if self.is_listed() && !clones_missing {"),
    ("clones of what is missing", "learners.rs",
     "matches!(mutation, Mutation::CloneFrom { source } if self.lacks(source))",
     "matches!(mutation, Mutation::CloneFrom { source } if self.lacks(source) && false)"),
    ("writes while objects are listed forgotten", "learners.rs",
     "let missing = own.into_keys().chain(written).chain([meta_object()]);",
     "let missing = own.into_keys().chain(written.into_iter().take(0)).chain([meta_object()]);"),
    ("fences not copied", "learners.rs",
     "chain(written).chain([meta_object()]);", "chain(written);"),
    ("partial copies have a version", "learners/copying.rs",
     "transactions[0].mutations.insert(0, Mutation::SetVersion { version });", "let _ = version;"),
    ("the last part does not wait for the others", "learners/copying.rs",
     "self.send_to_learner(osd, but_last, Sent::ButLast(object, Box::new(last)));",
     "self.send_to_learner(osd, but_last, Sent::Other);\n        self.send_to_learner(osd, last, Sent::Object(object));"),
    ("filling goes on after a refused write", "submissions.rs",
     "self.learners.clear();\n                self.me", "self.me"),
    ("who led before is told of what could not be taken", "group.rs",
     "let leader = self.promises.asked_by.unwrap_or(leader);", ""),
    # Taking back.
    ("what the store did not take back stays", "group.rs", "self.try_roll_back_again(view);", ""),
    ("taken back although another leads", "promises.rs", "self.end_roll_back();", ""),
    ("active before what was taken back is gone", "coded/peering.rs", "if self.is_taking_back() {", "if false {"),
    ("the place of a write that was not taken back given away", "coded/undo.rs",
     "self.last_sequence = view.head(self.id).sequence;", ""),
    ("kept for good after a refused roll back", "coded/undo.rs", "coded.kept = kept;", "let _ = kept;"),
    ("removed before it is used to take back", "coded/undo.rs", "map_or(0, |at| at + 1)", "map_or(0, |at| at)"),
    ("taken back before what waits for the log", "coded/undo.rs", "|| !view.has_room(self.id)", ""),
    # Splits.
    ("a split does not wait for all members", "split.rs", "if !is_in_flight {", "if true {"),
    ("what is split off is served as before", "client_requests.rs",
     "if pg_num > self.pg_num() && !request.objects().all(|object| self.has_place_for(object, pg_num)) {", "if false {"),
    ("fences do not wait for a split", "client_requests.rs",
     "|| object.as_str() == PG_META_OBJECT && self.pg_num_here(view) > self.pg_num()", ""),
    ("fences not asked of how many groups theirs is one", "client_requests.rs",
     "Condition::PgNum { pg_num } => *pg_num == self.pg_num(),", "Condition::PgNum { .. } => true,"),
    ("whatever lacks a split counts as whole", "learners.rs",
     "&& matches!(behind[..], [entry] if is_split(entry));", "&& behind.iter().any(|entry| is_split(entry));"),
    ("copies not told of splits", "learners.rs",
     "vec![incomplete(), Mutation::ResetLog { head: common }, splits]", "vec![incomplete(), Mutation::ResetLog { head: common }]"),
    ("copies from before a split levelled by the log", "learners.rs",
     "let common = common.filter(|_| has_seen_splits);", "let _ = has_seen_splits;"),
    ("a split is repeated when the new group goes on by itself", "learners.rs",
     "let lacks_split_only = pg_num_here > pg_num\n            && common", "let _ = pg_num;\n        let lacks_split_only = common"),
    ("a new group is active with too high an epoch", "split.rs", "activated_epoch: head.epoch,", "activated_epoch: record.epoch,"),
    ("late copies of refused requests done", "client_requests.rs", "if epoch < self.led_since {", "if false {"),
    ("who leads is judged by an old record", "group.rs",
     "self.is_primary() && self.promises.epoch <= self.record.epoch", "self.is_primary()"),
    ("what follows a refused part counts", "submissions.rs",
     "self.broken_sync = Some((epoch, tag));", "let _ = (epoch, tag);"),
]


def copy_of_the_tree(target: Path):
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    listing = "git ls-files -z --cached --others --exclude-standard"
    # With fresh times (-m): cargo takes what an earlier copy left built for this one otherwise.
    subprocess.run(f"{listing} | tar --null -cf - -T - | tar -xmf - -C '{target}'", shell=True, cwd=ROOT, check=True)


def run(tree: Path, environment):
    """Whether all passed, and what noticed if it did not."""
    build = subprocess.run([*TEST, "--no-run"], cwd=tree, env=environment, capture_output=True, text=True)
    if build.returncode:
        return False, [f"it does not build:\n{build.stderr}"]
    try:
        test = subprocess.run([*TEST, "--", "--nocapture"], cwd=tree, env=environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=RUN_SECONDS)
    except subprocess.TimeoutExpired:
        return False, [f"no end after {RUN_SECONDS} s"]
    if test.returncode == 0:
        return True, []
    seeds = [f"seed {seed} ({cause[:60]})" for seed, cause in re.findall(r"^seed (\d+): (.*)$", test.stdout, re.MULTILINE)]
    scenarios = {name for name in re.findall(r"thread '(\w+)' .*panicked", test.stdout) if not name.startswith(("histories", "erasure_coded"))}
    return False, seeds + [f"scenario {name}" for name in sorted(scenarios)]


def main():
    words = sys.argv[1:]
    chosen = [mutation for mutation in MUTATIONS if not words or any(word in mutation[0] for word in words)]
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    tree = target / "pg-mutations"
    # Crates of others are shared with the usual build. The copy's own have another path, so cargo
    # keeps them apart.
    environment = dict(os.environ, CARGO_TARGET_DIR=str(target), CARGO_INCREMENTAL="1", ATOLL_SIM_RUNS=str(SEEDS),
                       ATOLL_SIM_ONCE="1", ATOLL_SIM_FAILURES="1", RUST_BACKTRACE="0")
    copy_of_the_tree(tree)
    for name, file, pattern, _ in chosen:
        count = (tree / SOURCE / file).read_text().count(pattern)
        if count != 1:
            sys.exit(f"{name}: {file} has {count} places like this: {pattern}")
    if not words:
        passed, noticed = run(tree, dict(environment, ATOLL_SIM_RUNS="400"))
        if not passed:
            sys.exit(f"the tests fail without a bug: {noticed}")
    survivors = 0
    for name, file, pattern, replacement in chosen:
        path = tree / SOURCE / file
        sound = path.read_text()
        path.write_text(sound.replace(pattern, replacement))
        started = time.monotonic()
        passed, noticed = run(tree, environment)
        path.write_text(sound)
        survivors += passed
        outcome = "NOT NOTICED" if passed else ", ".join(noticed)
        print(f"{name} ({time.monotonic() - started:.0f} s): {outcome}", flush=True)
    print(f"{len(chosen)} bugs, {survivors} not noticed in {SEEDS} seeds")
    sys.exit(survivors > 0)


if __name__ == "__main__":
    main()
