//! The table of docs/reference/rights.md has the roles of hosts, and the crates of each kind of process use no
//! other keys that they name.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use atoll_cluster::roles::{KINDS, Kind, Role};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn short(roles: &[Role]) -> String {
    if roles == Role::ALL {
        return "all".into();
    }
    let names: Vec<&str> = roles.iter().map(|role| role.name().strip_prefix("atoll-").unwrap()).collect();
    if names.is_empty() { "-".into() } else { names.join(", ") }
}

#[test]
fn the_page_has_the_table() {
    let page = fs::read_to_string(root().join("docs/reference/rights.md")).unwrap();
    let said: BTreeSet<Vec<&str>> = page
        .lines()
        .filter(|line| line.starts_with("| `/atoll/"))
        .map(|line| line.split('|').skip(1).take(3).map(str::trim).collect())
        .collect();
    let rows: Vec<[String; 3]> = KINDS.iter().map(row).collect();
    let expected: BTreeSet<Vec<&str>> = rows.iter().map(|row| row.iter().map(String::as_str).collect()).collect();
    assert_eq!(said, expected);
}

#[test]
fn the_page_says_what_absence_means() {
    use atoll_cluster::kinds::{self, Absence, Protection};
    let page = fs::read_to_string(root().join("docs/reference/formats.md")).unwrap();
    let (_, section) = page.split_once("#### The manifest").unwrap();
    let said: BTreeSet<&str> = section.lines().filter(|line| line.starts_with("| `/atoll/")).collect();
    let row = |(key, protection): &(&str, Protection)| {
        let (reason, is_named) = match protection.absence()? {
            Absence::Denies(reason) => (reason, "-"),
            Absence::Named(what) => (what, "named"),
        };
        let verifiers = if matches!(protection, Protection::SignedForAll(_)) { "all" } else { "holders" };
        Some(format!("| `{key}` | {reason} | {is_named} | {verifiers} |"))
    };
    let rows: Vec<String> = kinds::KINDS.iter().filter_map(row).collect();
    assert_eq!(said, rows.iter().map(String::as_str).collect());
}

fn row(kind: &Kind) -> [String; 3] {
    let writers = if kind.is_own { "own".into() } else { short(kind.writers) };
    [format!("`{}`", kind.keys), short(kind.readers), writers]
}

/// Returns the meaning of the names in `keys`: the constants, and the functions that begin with one.
fn names() -> BTreeMap<String, &'static Kind> {
    let source = fs::read_to_string(root().join("crates/cluster/src/keys.rs")).unwrap();
    let kind_of = |key: &str| KINDS.iter().find(|kind| kind.keys == key);
    let mut kinds = BTreeMap::new();
    for line in source.lines().filter_map(|line| line.strip_prefix("pub const ")) {
        let Some((name, value)) = line.split_once(": &str = ") else { continue };
        if let Some(kind) = kind_of(value.trim_end_matches(';').trim_matches('"')) {
            kinds.insert(name.to_owned(), kind);
        }
    }
    let mut function = String::new();
    for line in source.lines() {
        if let Some(signature) = line.strip_prefix("pub fn ") {
            function = signature.split('(').next().unwrap().to_owned();
        }
        if let Some((_, format)) = line.split_once("format!(\"{")
            && let Some(kind) = kinds.get(format.split('}').next().unwrap()).copied()
        {
            kinds.insert(function.clone(), kind);
        }
    }
    kinds
}

const WRITES: [&str; 9] = [
    ".put(",
    ".put_with_lease(",
    ".put_leased(",
    ".create(",
    ".create_with_lease(",
    ".compare_and_swap(",
    ".delete(",
    ".delete_if(",
    "ensure(state, ",
];

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() && !name.contains("tests") {
            sources(&path, found);
        } else if name.ends_with(".rs") && !name.contains("tests") {
            found.push(path);
        }
    }
}

/// Each use of a key's name in a crate, and whether it is written there.
fn uses(crate_name: &str) -> Vec<(String, bool)> {
    let mut files = Vec::new();
    sources(&root().join("crates").join(crate_name).join("src"), &mut files);
    let mut found = Vec::new();
    for file in files {
        let text = fs::read_to_string(file).unwrap();
        let text = text.split("#[cfg(test)]").next().unwrap();
        for (at, _) in text.match_indices("keys::") {
            let name: String =
                text[at + 6..].chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
            let before = text[..at].trim_end().trim_end_matches('&');
            found.push((name, WRITES.iter().any(|call| before.ends_with(call))));
        }
    }
    found
}

/// A process that writes, or reads, keys outside of its role would be refused by its cluster.
#[test]
fn processes_do_what_their_roles_let_them() {
    let names = names();
    let crates: [(&str, &[Role]); 6] = [
        ("osd", &[Role::Osd]),
        ("coordinator", &[Role::Coordinator]),
        ("gateway", &[Role::Gateway]),
        ("image", &[Role::Nbd, Role::Nvme]),
        ("nbd", &[Role::Nbd]),
        ("nvme", &[Role::Nvme]),
    ];
    let mut written = 0;
    for (crate_name, roles) in crates {
        for (name, is_write) in uses(crate_name) {
            let Some(kind) = names.get(&name) else { continue };
            for role in roles {
                assert!(
                    kind.readers.contains(role),
                    "{crate_name} names {}, which {role:?} may not read",
                    kind.keys
                );
                let may = !is_write || kind.writers.contains(role);
                assert!(may, "{crate_name} writes {}, which {role:?} may not", kind.keys);
            }
            written += usize::from(is_write);
        }
    }
    assert!(names.len() > 60 && written > 30, "it looks at something: {} names, {written} writes", names.len());
}

#[test]
fn grants_are_what_etcd_keeps_apart() {
    for role in Role::ALL {
        let grants = atoll_cluster::roles::grants(role);
        let ranges: BTreeSet<_> = grants.iter().map(|grant| (&grant.key, &grant.range_end)).collect();
        assert_eq!(ranges.len(), grants.len(), "{role:?}: of one range given twice the first would be lost");
    }
}
