//! Names that others rely on after a power cut are made by this crate.

#![allow(clippy::unwrap_used)] // a test through and through

use std::fs;
use std::path::{Path, PathBuf};

/// Calls that make or change a name and do not sync its directory.
const CALLS: [&str; 5] = ["fs::rename(", "fs::hard_link(", "create_dir(", "create_dir_all(", "DirBuilder::new("];

/// Files in which nobody relies on them: logs, sockets, reports, a damaged file that is kept for whoever wants to see it.
const ALLOWED: [&str; 6] = [
    "crates/admin-socket/src/place.rs",
    "crates/audit/src/file.rs",
    "crates/cluster/src/server/disk.rs",
    "crates/files/src",
    "crates/lab/examples",
    "crates/lab/src",
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
fn names_are_made_durable_by_this_crate_alone() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let mut files = Vec::new();
    sources(&root.join("crates"), &mut files);
    sources(&root.join("atoll"), &mut files);
    let mut wrong = Vec::new();
    for file in &files {
        let name = file.strip_prefix(&root).unwrap().to_str().unwrap();
        let text = fs::read_to_string(file).unwrap();
        // Tests are at the end of a file.
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        if !ALLOWED.iter().any(|allowed| name.starts_with(allowed)) {
            let calls = CALLS.iter().filter(|call| code.contains(**call));
            wrong.extend(calls.map(|call| format!("{name}: {call}...)")));
        }
    }
    assert!(files.len() > 500, "the sources are found");
    assert!(wrong.is_empty(), "use atoll_files: {wrong:#?}");
}
