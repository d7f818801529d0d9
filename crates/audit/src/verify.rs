//! Whether lines of a log are as they were written.

use std::collections::BTreeMap;
use std::io::{self, BufRead};

use serde_json::Value;

use crate::chain::{BEGINS, Digest, HEAD, digest_of, is_signed};

/// Problems that are named. More are counted.
const NAMED_MAX: usize = 20;

/// What was found in logs.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Lines that fit the line before them.
    pub lines: u64,
    /// Lines of releases that made no chains, before the first of one.
    pub unchained_lines: u64,
    /// By its id, each run of a process.
    pub runs: BTreeMap<String, RunVerdict>,
    /// What does not fit, by file and line.
    pub problems: Vec<String>,
    /// Problems that are not named.
    pub more_problems: u64,
}

/// What was found of one run of a process.
#[derive(Debug, Default)]
pub struct RunVerdict {
    /// The public key that it names, in hexadecimal.
    pub key: Option<String>,
    /// Whether its first line is there. Otherwise older lines were set aside and are gone, or were taken away.
    pub has_beginning: bool,
    /// The number of its latest line.
    pub last_number: u64,
    /// Up to which number lines are signed.
    pub signed_up_to: Option<u64>,
    latest: Digest,
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
    /// Looks at the lines of a log, the older files first. `name` is for problems.
    pub fn read(&mut self, name: &str, lines: impl BufRead) -> io::Result<()> {
        for (index, line) in lines.lines().enumerate() {
            if let Err(problem) = self.take(&line?) {
                match self.problems.len() < NAMED_MAX {
                    true => self.problems.push(format!("{name}:{}: {problem}", index + 1)),
                    false => self.more_problems += 1,
                }
            }
        }
        Ok(())
    }

    /// Whether nothing was found that does not fit.
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
        let is_first = linked.record["operation"] == BEGINS && linked.number == 0;
        let known = self.runs.get(&linked.run).map(|run| (run.last_number + 1, run.latest));
        let expected = known.or(is_first.then_some((0, [0; 32])));
        let run = self.runs.entry(linked.run.clone()).or_default();
        run.has_beginning |= is_first && known.is_none();
        if let Some(key) = linked.record["key"].as_str()
            && run.key.get_or_insert_with(|| key.to_owned()) != key
        {
            return Err("another key than that of the lines before".into());
        }
        let before = run.latest;
        (run.last_number, run.latest) = (linked.number, linked.chain);
        match expected {
            // The lines before were set aside long ago, and this one cannot be compared.
            None => return Ok(()),
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
            run.take_head(&linked, &before)?;
        }
        Ok(())
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
    use super::*;
    use crate::chain::{Chain, ChainKey};

    fn log() -> Vec<String> {
        let key = ChainKey::random().unwrap();
        let (mut chain, first) = Chain::begin(&key, "test", 1).unwrap();
        let mut lines = vec![first];
        lines.extend((0..5).map(|number| chain.link(&format!("{{\"user\":\"ann\",\"what\":{number}}}\n"))));
        lines.extend(chain.head(2));
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
