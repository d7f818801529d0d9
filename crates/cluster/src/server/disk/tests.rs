//! Damage to one of the two files costs nothing.

use std::fs;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::server::state::{Entry, Key};

const KEYS: usize = 400;

type Rows = Vec<(Vec<u8>, Vec<u8>, i64)>;

fn rows(state: &State) -> Rows {
    let row = |(key, entry): (&Key, &Arc<Entry>)| (key.to_vec(), entry.value.clone(), entry.mod_revision);
    state.keys.iter().map(row).collect()
}

/// A change of the key of this number.
fn put(disk: &mut Disk, state: &mut State, number: usize) {
    state.revision += 1;
    let key: Key = Arc::from(format!("/key/{number:05}").as_bytes());
    let value = format!("value {} of {number}", state.revision).into_bytes();
    let revision = state.revision;
    let entry = Arc::new(Entry { create_revision: revision, mod_revision: revision, version: 1, lease: 0, value });
    state.keys.insert(key.clone(), entry.clone());
    let mut batch = Batch::default();
    batch.keys = BTreeMap::from([(key, Some(entry))]);
    disk.commit(&batch, state).unwrap();
}

/// Returns a directory with both files, and their content.
fn filled() -> (tempfile::TempDir, Rows) {
    let directory = tempfile::tempdir().unwrap();
    let (mut disk, mut state, _) = Disk::open(directory.path()).unwrap();
    for number in 0..KEYS {
        put(&mut disk, &mut state, number);
    }
    (directory, rows(&state))
}

fn flip(path: &Path, at: usize, bit: u8) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1 << bit;
    fs::write(path, bytes).unwrap();
}

/// Opens a copy of the directory in which a bit of one of the files is another.
fn opened(from: &Path, name: &str, at: usize, bit: u8) -> Rows {
    let directory = tempfile::tempdir().unwrap();
    for file in [FIRST, SECOND] {
        fs::copy(from.join(file), directory.path().join(file)).unwrap();
    }
    flip(&directory.path().join(name), at, bit);
    let (mut disk, mut state, _) =
        Disk::open(directory.path()).unwrap_or_else(|error| panic!("bit {bit} at {at} of {name}: {error}"));
    let found = rows(&state);
    // It can be written, and both files are whole.
    put(&mut disk, &mut state, 0);
    drop(disk);
    for file in [FIRST, SECOND] {
        assert_eq!(rows(&StateFile::open(&directory.path().join(file)).unwrap().1.state), rows(&state));
    }
    found
}

#[test]
fn a_flipped_bit_in_either_file_costs_nothing() {
    let (directory, expected) = filled();
    let length = fs::metadata(directory.path().join(FIRST)).unwrap().len() as usize;
    // All of the header, and a place in each page behind it.
    let header = (0..320).step_by(3);
    let pages = (4_096..length).step_by(4_096).map(|page| page + page % 1_021);
    for (count, at) in header.chain(pages).filter(|at| *at < length).enumerate() {
        let name = if count % 4 == 3 { SECOND } else { FIRST };
        assert_eq!(opened(directory.path(), name, at, (count % 8) as u8), expected, "{name} at {at}");
    }
}

#[test]
fn a_file_that_is_gone_or_cut_or_from_the_past_is_made_anew() {
    let (directory, _) = filled();
    let path = |name: &str| directory.path().join(name);
    let past = fs::read(path(FIRST)).unwrap();
    let (mut disk, mut state, _) = Disk::open(directory.path()).unwrap();
    put(&mut disk, &mut state, 3);
    // What changes leases only does not raise the revision.
    let mut batch = Batch::default();
    batch.leases = BTreeMap::from([(5, Some((10, Some("low".into()))))]);
    let lease =
        super::super::state::LeaseState { granted_seconds: 10, owner: Some("low".into()), ..Default::default() };
    state.leases.insert(5, lease);
    disk.commit(&batch, &state).unwrap();
    drop(disk);
    let harms: [&dyn Fn(&Path); 4] = [
        &|path| fs::remove_file(path).unwrap(),
        &|path| fs::write(path, "").unwrap(),
        &|path| fs::File::options().write(true).open(path).unwrap().set_len(5_000).unwrap(),
        &|path| fs::write(path, &past).unwrap(),
    ];
    for (number, harm) in harms.iter().enumerate() {
        for name in [FIRST, SECOND] {
            harm(&path(name));
            let (_, found, _) = Disk::open(directory.path()).unwrap();
            assert_eq!(rows(&found), rows(&state), "{number} {name}");
            assert!(found.leases.contains_key(&5), "{number} {name}");
        }
    }
}

#[test]
fn a_file_without_a_count_of_commits_is_newer_by_its_revision() {
    let (directory, _) = filled();
    // An earlier release has written to the one file that it knows, and counts nothing.
    let first = directory.path().join(FIRST);
    let (file, mut content) = StateFile::open(&first).unwrap();
    content.state.revision += 1;
    file.commit(&Batch::default(), &content.state, content.commits).unwrap();
    drop(file);
    assert_eq!(Disk::open(directory.path()).unwrap().1.revision, content.state.revision);
    assert_eq!(StateFile::open(&directory.path().join(SECOND)).unwrap().1.state.revision, content.state.revision);
}

#[test]
fn damage_to_both_files_is_an_error_that_names_the_newest_snapshot() {
    let (directory, _) = filled();
    let snapshots = directory.path().join("snapshots");
    fs::create_dir(&snapshots).unwrap();
    fs::write(snapshots.join("state-17.snapshot"), "").unwrap();
    let damage = |name: &str| fs::write(directory.path().join(name), vec![7; 50_000]).unwrap();
    damage(FIRST);
    damage(SECOND);
    let error = Disk::open(directory.path()).map(drop).unwrap_err();
    assert!(error.is_lasting() && error.to_string().contains("state-17.snapshot"), "{error}");
    assert_eq!(fs::read(directory.path().join(FIRST)).unwrap(), vec![7; 50_000], "it stays as it is");
}

#[test]
fn without_room_for_the_second_file_the_first_goes_on() {
    let (directory, _) = filled();
    let (mut disk, mut state, _) = Disk::open(directory.path()).unwrap();
    // Nothing can be made at its place.
    disk.second = None;
    fs::remove_file(directory.path().join(SECOND)).unwrap();
    fs::create_dir(directory.path().join("state.copy.redb.new")).unwrap();
    put(&mut disk, &mut state, 1);
    assert!(disk.second.is_none() && disk.second_failed.is_some());
    fs::remove_dir(directory.path().join("state.copy.redb.new")).unwrap();
    put(&mut disk, &mut state, 2);
    assert!(disk.second.is_none(), "it is not tried with each commit");
    disk.second_failed = None;
    put(&mut disk, &mut state, 3);
    assert!(disk.second.is_some());
    drop(disk);
    fs::write(directory.path().join(FIRST), "").unwrap();
    assert_eq!(rows(&Disk::open(directory.path()).unwrap().1), rows(&state));
}

/// Users and roles are a part of the state: in both files, and in whatever is made of it.
#[test]
fn users_and_roles_are_where_keys_are() {
    let (directory, _) = filled();
    let (mut disk, mut state, _) = Disk::open(directory.path()).unwrap();
    assert!(state.auth.users.is_empty(), "files without the table open");
    Arc::make_mut(&mut state.auth).add_user("somebody", None).unwrap();
    let mut batch = Batch::default();
    batch.auth = Some(state.auth.clone());
    disk.commit(&batch, &state).unwrap();
    drop(disk);
    fs::remove_file(directory.path().join(FIRST)).unwrap();
    let (disk, from_second, identity) = Disk::open(directory.path()).unwrap();
    assert_eq!(from_second.auth, state.auth);
    drop(disk);
    let copy = directory.path().join("copy.redb");
    StateFile::write_new(&copy, &Content { state: from_second, identity, commits: 0 }).unwrap();
    assert_eq!(StateFile::open(&copy).unwrap().1.state.auth, state.auth);
}
