//! Verifies that lines of a log are as they were written.

use std::collections::BTreeMap;
use std::io::{self, BufRead};

use serde_json::Value;

use crate::chain::{BEGINS, Digest, HEAD, digest_of, is_signed};

/// Problems that are named. More are counted.
const NAMED_MAX: usize = 20;

/// A line that is known from elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownHead {
    /// The run of a process.
    pub run: String,
    /// The number of the line.
    pub number: u64,
    /// Its digest, in hexadecimal.
    pub digest: String,
    /// When it was written.
    pub unix_ms: u64,
    /// It must be in this log, if it is not too old for it.
    pub is_of_log: bool,
}

/// Findings in logs.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Lines that fit the line before them.
    pub lines: u64,
    /// Lines of releases that made no chains, before the first of one.
    pub unchained_lines: u64,
    /// By its id, each run of a process.
    pub runs: BTreeMap<String, RunVerdict>,
    /// Contradictions, by file and line.
    pub problems: Vec<String>,
    /// Problems that are not named.
    pub more_problems: u64,
    /// Lines that are known from elsewhere and were found as they are known.
    pub known_lines: u64,
    /// Runs without a record elsewhere.
    pub unknown_runs: Vec<String>,
    /// Lines that are known from elsewhere, by run and number.
    known: BTreeMap<String, BTreeMap<u64, KnownHead>>,
    /// The time of the oldest line.
    oldest_unix_ms: Option<u64>,
    /// A file is not there whose lines come before the next one.
    missing_file: Option<String>,
}

/// Findings about one run of a process.
#[derive(Debug, Default)]
pub struct RunVerdict {
    /// The public key that it names, in hexadecimal.
    pub key: Option<String>,
    /// True if its first line is there. Otherwise older lines were set aside and are gone, or were taken away.
    pub has_beginning: bool,
    /// The number of its latest line.
    pub last_number: u64,
    /// Number of the last signed line.
    pub signed_up_to: Option<u64>,
    latest: Digest,
    /// A line of it is known from elsewhere.
    is_known: bool,
}

/// A line taken apart.
struct Linked<'a> {
    base: &'a str,
    chain: Digest,
    run: String,
    number: u64,
    record: Value,
}

fn take_apart(line: &str) -> Option<Linked<'_>> {
    let (base, chain) = line.strip_suffix("\"}")?.rsplit_once(",\"chain\":\"")?;
    let chain = hex::decode(chain).ok()?.try_into().ok()?;
    let record: Value = serde_json::from_str(line).ok()?;
    let (run, number) = (record["run"].as_str()?.to_owned(), record["number"].as_u64()?);
    Some(Linked { base, chain, run, number, record })
}

impl Verdict {
    /// Compares with lines that are known from elsewhere.
    pub fn knowing(heads: impl IntoIterator<Item = KnownHead>) -> Self {
        let mut known: BTreeMap<String, BTreeMap<u64, KnownHead>> = BTreeMap::new();
        for head in heads {
            known.entry(head.run.clone()).or_default().insert(head.number, head);
        }
        Verdict { known, ..Verdict::default() }
    }

    /// Ends a log, whose files were all read, if there were any: reports known lines that are missing.
    pub fn end(&mut self, name: &str) {
        for (run, heads) in std::mem::take(&mut self.known) {
            let Some((number, head)) = heads.last_key_value() else { continue };
            match self.runs.get(&run) {
                Some(found) if found.last_number >= *number => {}
                Some(found) => self.add_problem(format!(
                    "{name}: run {run} ends with line {}, and line {number} is known elsewhere: its end was cut off",
                    found.last_number
                )),
                // Older files were set aside, and the oldest go.
                None if self.oldest_unix_ms.is_some_and(|oldest| head.unix_ms < oldest) || !head.is_of_log => {}
                None => self.add_problem(format!(
                    "{name}: run {run} is missing, although line {number} of it is known elsewhere: the file was \
                     replaced, or one was removed"
                )),
            }
            if let Some(found) = self.runs.get_mut(&run) {
                found.is_known = true;
            }
        }
        let unknown = self.runs.iter().filter(|(_, run)| !run.is_known && run.signed_up_to.is_some());
        self.unknown_runs = unknown.map(|(id, _)| id.clone()).collect();
    }

    fn add_problem(&mut self, problem: String) {
        match self.problems.len() < NAMED_MAX {
            true => self.problems.push(problem),
            false => self.more_problems += 1,
        }
    }

    /// Compares a line with its known digest.
    fn compare(&mut self, linked: &Linked<'_>) -> Result<(), String> {
        if let Some(time) = linked.record["time_unix_ms"].as_u64() {
            self.oldest_unix_ms = Some(self.oldest_unix_ms.map_or(time, |oldest| oldest.min(time)));
        }
        let known = self.known.get(&linked.run).and_then(|heads| heads.get(&linked.number));
        match known {
            Some(head) if head.digest != hex::encode(linked.chain) => Err(format!(
                "line {} of run {} differs from the one that is known elsewhere: the log was rewritten",
                linked.number, linked.run
            )),
            Some(_) => {
                self.known_lines += 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Looks at the lines of a log, the older files first. `name` is for problems.
    pub fn read(&mut self, name: &str, lines: impl BufRead) -> io::Result<()> {
        for (index, line) in lines.lines().enumerate() {
            if let Err(problem) = self.take(&line?) {
                self.add_problem(format!("{name}:{}: {problem}", index + 1));
            }
        }
        Ok(())
    }

    /// Notes that a file between the last one and the next one is missing. That is no problem if lines continue: a
    /// process that is killed while it sets files aside leaves a number out.
    pub fn misses(&mut self, name: &str) {
        self.missing_file = Some(name.to_owned());
    }

    /// Returns true if there are no contradictions.
    pub fn is_whole(&self) -> bool {
        self.problems.is_empty()
    }

    /// Lines that no signature covers: the latest ones of each run.
    pub fn unsigned_lines(&self) -> u64 {
        let unsigned = |run: &RunVerdict| run.last_number - run.signed_up_to.unwrap_or(0);
        self.runs.values().map(unsigned).sum()
    }

    fn take(&mut self, line: &str) -> Result<(), String> {
        let Some(linked) = take_apart(line) else {
            if !self.runs.is_empty() {
                return Err("the line is in no chain".into());
            }
            self.unchained_lines += 1;
            return Ok(());
        };
        self.link(&linked)?;
        // Whatever fits its neighbours may be another line than there was.
        self.compare(&linked)
    }

    fn link(&mut self, linked: &Linked<'_>) -> Result<(), String> {
        let is_first = linked.record["operation"] == BEGINS && linked.number == 0;
        let known = self.runs.get(&linked.run).map(|run| (run.last_number + 1, run.latest));
        let missing_file = self.missing_file.take().filter(|_| known.is_none());
        let expected = known.or(is_first.then_some((0, [0; 32])));
        let run = self.runs.entry(linked.run.clone()).or_default();
        run.has_beginning |= is_first && known.is_none();
        // Records may have a field of this name, too.
        let says_key = [BEGINS, HEAD].iter().any(|operation| linked.record["operation"] == *operation);
        if let Some(key) = linked.record["key"].as_str().filter(|_| says_key)
            && run.key.get_or_insert_with(|| key.to_owned()) != key
        {
            return Err("another key than that of the lines before".into());
        }
        let before = run.latest;
        (run.last_number, run.latest) = (linked.number, linked.chain);
        match expected {
            // The lines before were set aside long ago, and this one cannot be compared.
            None if missing_file.is_none() => return Ok(()),
            None => {}
            Some((number, _)) if linked.number != number => {
                return Err(format!(
                    "line {number} of run {} should be here, and {} is",
                    linked.run, linked.number
                ));
            }
            Some((_, latest)) if digest_of(&latest, linked.base) != linked.chain => {
                return Err(format!("line {} of run {} was changed", linked.number, linked.run));
            }
            Some(_) => self.lines += 1,
        }
        if linked.record["operation"] == HEAD {
            run.take_head(linked, &before)?;
        }
        match missing_file {
            Some(name) => Err(format!("{name} is not there, and another run begins behind it: it was taken away")),
            None => Ok(()),
        }
    }
}

impl RunVerdict {
    fn take_head(&mut self, linked: &Linked<'_>, before: &Digest) -> Result<(), String> {
        let text =
            |field: &str| hex::decode(linked.record[field].as_str().unwrap_or_default()).unwrap_or_default();
        let number = linked.record["head_number"].as_u64().unwrap_or(u64::MAX);
        let is_right = number.checked_add(1) == Some(linked.number)
            && text("head") == before
            && is_signed(&text("key"), &linked.run, number, before, &text("signature"));
        if !is_right {
            return Err(format!("the signature of line {number} of run {} is wrong", linked.run));
        }
        // It covers itself, since nothing in it is of worth without what it signs.
        self.signed_up_to = Some(linked.number);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::chain::{Chain, ChainKey};

    fn log() -> Vec<String> {
        log_of(&ChainKey::random().unwrap())
    }

    fn log_of(key: &Arc<ChainKey>) -> Vec<String> {
        let mut chain = Chain::new(key, "test").unwrap();
        let mut lines: Vec<String> = chain.beginning(1).into_iter().collect();
        lines.extend(
            (0..5).map(|number| chain.link(&format!("{{\"user\":\"ann\",\"key\":\"local:{number}\"}}\n"))),
        );
        lines.extend(chain.head(2, false));
        lines.push(chain.link("{\"user\":\"rob\"}\n"));
        lines
    }

    fn verdict(lines: &[String]) -> Verdict {
        let mut verdict = Verdict::default();
        verdict.read("log", lines.concat().as_bytes()).unwrap();
        verdict
    }

    #[test]
    fn what_was_written_is_whole() {
        let found = verdict(&log());
        assert!(found.is_whole(), "{found:?}");
        assert_eq!((found.lines, found.unsigned_lines(), found.runs.len()), (8, 1, 1));
        let two = [&log()[..4], &log()[..], &["{\"old\":1}\n".to_owned()]].concat();
        assert_eq!(verdict(&two).problems, ["log:13: the line is in no chain"]);
        let older = [&["{\"old\":1}\n".to_owned()][..], &log()].concat();
        assert!(verdict(&older).is_whole() && verdict(&older).unchained_lines == 1);
    }

    #[test]
    fn each_change_of_each_line_is_found() {
        let whole = log();
        for index in 1..whole.len() {
            let mut changed = whole.clone();
            changed[index] = changed[index].replacen("\"", "\"x", 1);
            assert!(!verdict(&changed).is_whole(), "line {index} was changed");
            // What comes last can be taken away until it is signed; that is what heads elsewhere are for.
            if index + 1 < whole.len() {
                let mut cut = whole.clone();
                cut.remove(index);
                assert!(!verdict(&cut).is_whole(), "line {index} was taken out");
                let mut swapped = whole.clone();
                swapped.swap(index, index + 1);
                assert!(!verdict(&swapped).is_whole(), "lines {index} and the next were exchanged");
            }
            let mut doubled = whole.clone();
            doubled.insert(index, whole[index].clone());
            assert!(!verdict(&doubled).is_whole(), "line {index} is there twice");
        }
    }

    /// Returns cluster state's record of a log: the line with the signature.
    fn known(lines: &[String]) -> Vec<KnownHead> {
        let head = lines.iter().rfind(|line| line.contains(HEAD)).unwrap();
        let linked = take_apart(head.trim_end()).unwrap();
        let (run, number) = (linked.run, linked.number);
        vec![KnownHead { run, number, digest: hex::encode(linked.chain), unix_ms: 2, is_of_log: true }]
    }

    fn compared(heads: &[KnownHead], lines: &[String]) -> Verdict {
        let mut verdict = Verdict::knowing(heads.to_vec());
        verdict.read("log", lines.concat().as_bytes()).unwrap();
        verdict.end("log");
        verdict
    }

    /// Rewrites a chain from the beginning, as an intruder with the process' key: the same run, other lines, right
    /// signatures.
    fn made_anew(
        whole: &[String],
        key: &Arc<ChainKey>,
        change: impl Fn(usize, &str) -> Option<String>,
    ) -> Vec<String> {
        let mut chain = Chain::of_run(key, &run_of(&whole[0]));
        let mut lines: Vec<String> = chain.beginning(1).into_iter().collect();
        for (index, line) in whole.iter().enumerate().skip(1) {
            let (object, _) = line.split_once(",\"run\"").unwrap();
            match line.contains(HEAD) {
                true => lines.extend(chain.head(2, false)),
                false => lines.extend(change(index, &format!("{object}}}\n")).map(|line| chain.link(&line))),
            }
        }
        lines
    }

    #[test]
    fn what_root_of_the_host_does_to_a_log_is_found_by_what_is_known_elsewhere() {
        let key = ChainKey::random().unwrap();
        let whole = log_of(&key);
        let heads = known(&whole);
        let found = compared(&heads, &whole);
        assert!(found.is_whole() && found.known_lines == 1 && found.unknown_runs.is_empty(), "{found:?}");
        let same = |_: usize, line: &str| Some(line.to_owned());
        assert_eq!(made_anew(&whole, &key, same), whole, "the attack is what it says");
        let changed = made_anew(&whole, &key, |index, line| {
            Some(line.replacen("ann", if index == 3 { "eve" } else { "ann" }, 1))
        });
        let removed = made_anew(&whole, &key, |index, line| (index != 3).then(|| line.to_owned()));
        let mut swapped = whole.clone();
        swapped.swap(2, 3);
        let swapped = made_anew(&swapped, &key, same);
        for (what, lines) in [("changed", &changed), ("removed", &removed), ("swapped", &swapped)] {
            assert!(verdict(lines).is_whole(), "{what}: by itself the log fits");
            assert!(!compared(&heads, lines).is_whole(), "{what}");
        }
        let cut = compared(&heads, &whole[..4]);
        assert!(cut.problems.iter().any(|problem| problem.contains("cut off")), "{cut:?}");
        let replaced = compared(&heads, &log());
        assert!(replaced.problems.iter().any(|problem| problem.contains("replaced")), "{replaced:?}");
        assert_eq!(replaced.unknown_runs.len(), 1);
        assert!(!compared(&heads, &[]).is_whole(), "the file is gone");
        // The end, behind what is known, is what the next head is for.
        assert!(compared(&heads, &whole[..7]).is_whole());
    }

    #[test]
    fn a_run_that_is_older_than_the_log_may_be_gone() {
        let old = KnownHead { run: "old".into(), number: 7, digest: String::new(), unix_ms: 0, is_of_log: true };
        assert!(compared(std::slice::from_ref(&old), &log()).is_whole());
        let newer = KnownHead { unix_ms: 3, ..old.clone() };
        assert!(!compared(std::slice::from_ref(&newer), &log()).is_whole());
        let of_another = KnownHead { is_of_log: false, ..newer };
        assert!(compared(&[of_another], &log()).is_whole());
    }

    #[test]
    fn who_makes_a_chain_anew_has_another_key() {
        let (whole, forged) = (log(), log());
        let key = |lines: &[String]| verdict(lines).runs.into_values().next().and_then(|run| run.key);
        assert_ne!(key(&whole), key(&forged));
        // The lines of one chain under the run of another.
        let (run, other) = (run_of(&whole[0]), run_of(&forged[0]));
        let mixed: Vec<String> = forged.iter().map(|line| line.replace(&other, &run)).collect();
        assert!(!verdict(&mixed).is_whole());
    }

    fn run_of(line: &str) -> String {
        take_apart(line.trim_end()).unwrap().run
    }
}
