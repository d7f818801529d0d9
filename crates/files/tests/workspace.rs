//! Names that others rely on after a power cut are made by this crate.

#![allow(clippy::unwrap_used)] // a test through and through

use std::fs;
use std::path::{Path, PathBuf};

/// Calls that make or change a name and do not sync its directory.
const CALLS: [&str; 5] = ["fs::rename(", "fs::hard_link(", "create_dir(", "create_dir_all(", "DirBuilder::new("];

/// Files whose durability does not matter: logs, sockets, reports, a damaged file that is kept for an examination.
const ALLOWED: [&str; 6] = [
    "crates/admin-socket/src/place.rs",
    "crates/audit/src/file.rs",
    "crates/cluster/src/server/disk.rs",
    "crates/files/src",
    "crates/lab/examples",
    "crates/lab/src",
];

/// Calls that make a file with a mode that depends on the umask, or that follow a symbolic link in its place.
const OPENING: [&str; 6] =
    [".create(true)", ".create_new(true)", "File::create(", "File::create_new(", ".mode(0o", "fs::write("];

/// Files that need no private mode: measurements, settings of the kernel, a file without a name.
const MAY_OPEN: [&str; 9] = [
    "atoll/src/commands/bench",
    "atoll/src/memory.rs",
    "crates/admin-socket/src/place.rs",
    "crates/bench",
    "crates/files/src",
    "crates/lab",
    "crates/preflight/src/drive",
    "crates/reactor/examples",
    "crates/store/examples",
];

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && !["tests", "target", "benches"].contains(&name) {
            sources(&path, found);
        } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
            found.push(path);
        }
    }
}

#[test]
fn files_are_made_by_this_crate_alone() {
    assert_eq!(calls_outside(&OPENING, &MAY_OPEN), Vec::<String>::new(), "use atoll_files");
}

#[test]
fn names_are_made_durable_by_this_crate_alone() {
    assert_eq!(calls_outside(&CALLS, &ALLOWED), Vec::<String>::new(), "use atoll_files");
}

/// Where these calls are in the code of the workspace, but for files whose names begin with those that are allowed.
fn calls_outside(calls: &[&str], allowed: &[&str]) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let mut files = Vec::new();
    sources(&root.join("crates"), &mut files);
    sources(&root.join("atoll"), &mut files);
    assert!(files.len() > 500, "the sources are found");
    let mut wrong = Vec::new();
    for file in &files {
        let name = file.strip_prefix(&root).unwrap().to_str().unwrap();
        let text = fs::read_to_string(file).unwrap();
        // Tests are at the end of a file.
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        if !allowed.iter().any(|allowed| name.starts_with(allowed)) {
            let found = calls.iter().filter(|call| code.contains(**call));
            wrong.extend(found.map(|call| format!("{name}: {call}...)")));
        }
    }
    wrong
}
