//! Where facts about the host come from: files of the kernel, under a root that tests can replace.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Longer files are cut; the kernel's tables of many processors stay below.
const TEXT_BYTES_MAX: u64 = 4 << 20;
const NAMES_MAX: usize = 100_000;

/// The files in which the kernel describes the host.
pub struct Facts {
    root: PathBuf,
}

impl Facts {
    /// Returns the facts of this host.
    pub fn of_this_host() -> Self {
        Facts { root: "/".into() }
    }

    /// Returns the facts of files below another directory.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Facts { root: root.into() }
    }

    /// Where a file is. Its name is relative to the root, such as `proc/cpuinfo`.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// A file's text without white space at its ends; nothing if it is not there or is empty.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        let mut bytes = Vec::new();
        File::open(self.path(name)).ok()?.take(TEXT_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        let text = String::from_utf8_lossy(&bytes).trim().to_owned();
        (!text.is_empty()).then_some(text)
    }

    /// A file that holds one number.
    pub(crate) fn number(&self, name: &str) -> Option<i64> {
        self.text(name)?.parse().ok()
    }

    /// Names in a directory, sorted, numbers within them by their value.
    pub(crate) fn names(&self, directory: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(directory)).into_iter().flatten().flatten().take(NAMES_MAX);
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        // Shorter first brings cpu2 before cpu10.
        names.sort_by_key(|name| (name.len(), name.clone()));
        names
    }

    /// Names in a directory that are a prefix and a number, such as `cpu0`.
    pub(crate) fn numbered(&self, directory: &str, prefix: &str) -> Vec<String> {
        let mut names = self.names(directory);
        names.retain(|name| name.strip_prefix(prefix).is_some_and(|number| number.parse::<u32>().is_ok()));
        names
    }

    pub(crate) fn exists(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// Where a link leads in the end.
    pub(crate) fn resolve(&self, name: &str) -> Option<PathBuf> {
        fs::canonicalize(self.path(name)).ok()
    }

    /// Returns true if a hypervisor announces itself. Without such a word nothing is known.
    pub(crate) fn is_virtual_machine(&self) -> bool {
        self.cpu_flags().is_some_and(|flags| flags.iter().any(|flag| flag == "hypervisor"))
    }

    /// Returns the features of the first processor, in the kernel's words.
    pub(crate) fn cpu_flags(&self) -> Option<Vec<String>> {
        let text = self.text("proc/cpuinfo")?;
        let line = text.lines().find(|line| line.starts_with("flags") || line.starts_with("Features"))?;
        Some(line.split_once(':')?.1.split_whitespace().map(str::to_owned).collect())
    }
}

/// The last part of a path, as text.
pub(crate) fn last_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// A directory of facts for tests: names and texts.
#[cfg(test)]
pub(crate) fn facts_of(files: &[(&str, &str)]) -> (tempfile::TempDir, Facts) {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let facts = Facts::at(directory.path());
    (directory, facts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_and_missing_ones_are_nothing() {
        let (_keep, facts) = facts_of(&[("sys/a", "12\n"), ("sys/b", "\n"), ("sys/c", "x")]);
        assert_eq!(facts.number("sys/a"), Some(12));
        assert_eq!(facts.text("sys/b"), None);
        assert_eq!(facts.number("sys/c"), None);
        assert_eq!(facts.text("sys/none"), None);
    }

    #[test]
    fn numbered_names_are_in_order() {
        let (_keep, facts) = facts_of(&[("c/cpu10/x", "1"), ("c/cpu2/x", "1"), ("c/cpufreq/x", "1")]);
        assert_eq!(facts.numbered("c", "cpu"), ["cpu2", "cpu10"]);
    }

    #[test]
    fn hypervisors_say_so() {
        let (_keep, facts) = facts_of(&[("proc/cpuinfo", "model name : x\nflags\t\t: fpu aes hypervisor\n")]);
        assert!(facts.is_virtual_machine());
        let (_keep, facts) = facts_of(&[("proc/cpuinfo", "flags\t\t: fpu aes\n")]);
        assert!(!facts.is_virtual_machine());
    }
}
