//! Files: rules of opening, and that a cipher sees every byte in both ways to the device.

#![allow(clippy::unwrap_used)]

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};
use atoll_reactor::{DirectFile, Event, FileOperation, Reactor, SectorCipher};
use bytes::Bytes;

const DATA_OFFSET: u64 = 3 * BLOCK_BYTES as u64;

/// Adds to every byte the number of its sector and a key: wrong offsets show as well as no cipher.
struct XorCipher;

impl XorCipher {
    fn apply(offset: u64, bytes: &mut [u8]) {
        for (index, sector) in bytes.chunks_mut(BLOCK_BYTES).enumerate() {
            let key = 0x5a ^ (offset / BLOCK_BYTES as u64 + index as u64) as u8;
            sector.iter_mut().for_each(|byte| *byte ^= key);
        }
    }
}

impl SectorCipher for XorCipher {
    fn encrypt_into(&mut self, offset: u64, plain: &[u8], sealed: &mut [u8]) {
        sealed.copy_from_slice(plain);
        Self::apply(offset, sealed);
    }

    fn decrypt(&mut self, offset: u64, bytes: &mut [u8]) {
        Self::apply(offset, bytes);
    }
}

fn blocks(values: &[u8]) -> BlockBuffer {
    BlockBuffer::from_bytes(&values.iter().flat_map(|&value| [value; BLOCK_BYTES]).collect::<Vec<u8>>())
}

/// Returns every block's value on the device, or panics if a block is mixed.
fn raw_blocks(path: &Path) -> Vec<u8> {
    let bytes = std::fs::read(path).unwrap();
    let value = |block: &[u8]| {
        assert!(block.iter().all(|byte| *byte == block[0]), "a block is mixed");
        block[0]
    };
    bytes.chunks(BLOCK_BYTES).map(value).collect()
}

fn ring(reactor: &mut Reactor) -> Option<BlockBuffer> {
    let mut events = Vec::new();
    reactor.poll(None, &mut events).unwrap();
    match events.pop() {
        Some(Event::File { result, .. }) => result.unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_cipher_is_used_by_the_blocking_way_and_by_the_ring() {
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = directory.path().join("device");
    std::fs::write(&path, vec![9; 8 * BLOCK_BYTES]).unwrap();
    let file = DirectFile::open(&path).unwrap().with_cipher(Box::new(XorCipher), DATA_OFFSET);
    assert_eq!(file.size_bytes(), 5 * BLOCK_BYTES as u64);
    file.write_at(BLOCK_BYTES as u64, blocks(&[1, 2]).as_slice()).unwrap();
    assert_eq!(raw_blocks(&path), [9, 9, 9, 9, 1 ^ 0x5a ^ 1, 2 ^ 0x5a ^ 2, 9, 9]);
    assert_eq!(file.read_at(BLOCK_BYTES as u64, 2).unwrap().as_slice(), blocks(&[1, 2]).as_slice());

    let mut reactor = Reactor::new().unwrap();
    let id = reactor.add_file(file);
    let shared = Arc::new(blocks(&[3, 4, 5]));
    let pieces = vec![(Arc::clone(&shared), 2, 1), (Arc::clone(&shared), 0, 2)];
    reactor.start_file(id, 1, FileOperation::Write { offset: 2 * BLOCK_BYTES as u64, pieces, durable: true });
    assert!(ring(&mut reactor).is_none());
    assert_eq!(raw_blocks(&path)[4..], [1 ^ 0x5a ^ 1, 5 ^ 0x5a ^ 2, 3 ^ 0x5a ^ 3, 4 ^ 0x5a ^ 4]);
    assert_eq!(shared.as_slice(), blocks(&[3, 4, 5]).as_slice(), "the store's buffer stays plain");
    reactor.start_file(id, 2, FileOperation::Read { offset: BLOCK_BYTES as u64, block_count: 4 });
    assert_eq!(ring(&mut reactor).unwrap().as_slice(), blocks(&[1, 5, 3, 4]).as_slice());
}

#[test]
fn bytes_are_written_from_wherever_they_are() {
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    // Large enough to be started before the turn ends.
    let count = 100;
    let values: Vec<u8> = (0..count as u8).collect();
    for (is_aligned, with_cipher) in [(true, false), (false, false), (true, true), (false, true)] {
        let path = directory.path().join("device");
        std::fs::write(&path, vec![0; (count + 4) * BLOCK_BYTES]).unwrap();
        let file = DirectFile::open(&path).unwrap();
        let (file, skipped) = match with_cipher {
            true => (file.with_cipher(Box::new(XorCipher), DATA_OFFSET), 4),
            false => (file, 1),
        };
        let mut reactor = Reactor::new().unwrap();
        let id = reactor.add_file(file);
        let buffer = blocks(&values);
        let bytes = match is_aligned {
            true => Bytes::from_owner(buffer),
            false => Bytes::from([&[7][..], buffer.as_slice()].concat()).slice(1..),
        };
        reactor.start_file(id, 1, FileOperation::WriteBytes { offset: BLOCK_BYTES as u64, bytes });
        assert!(ring(&mut reactor).is_none());
        let key = |sector: u8| if with_cipher { 0x5a ^ (sector + 1) } else { 0 };
        let expected: Vec<u8> = values.iter().map(|&value| value ^ key(value)).collect();
        assert_eq!(raw_blocks(&path)[skipped..][..count], expected);
    }
}

/// Both ways, also behind the bytes before encrypted data.
#[test]
fn blocks_of_a_file_are_given_back() {
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = directory.path().join("device");
    for (with_cipher, in_ring) in [(false, false), (false, true), (true, false), (true, true)] {
        std::fs::write(&path, vec![9; 64 * BLOCK_BYTES]).unwrap();
        let file = DirectFile::open(&path).unwrap();
        let allocated_bytes = file.allocated_bytes().expect("it is a file");
        let (file, begin) = match with_cipher {
            true => (file.with_cipher(Box::new(XorCipher), DATA_OFFSET), 16 + DATA_OFFSET as usize / BLOCK_BYTES),
            false => (file, 16),
        };
        let offset = 16 * BLOCK_BYTES as u64;
        let mut reactor = Reactor::new().unwrap();
        if in_ring {
            let id = reactor.add_file(file);
            reactor.start_file(id, 1, FileOperation::Discard { offset, block_count: 32 });
            assert!(ring(&mut reactor).is_none());
        } else {
            file.discard(offset, 32).unwrap();
        }
        let expected: Vec<u8> = (0..64).map(|at| if (begin..begin + 32).contains(&at) { 0 } else { 9 }).collect();
        assert_eq!(raw_blocks(&path), expected, "and it is as long as before");
        // The ring may keep the file for a moment, and with it its lock.
        let left = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&path).unwrap()) * 512;
        assert_eq!(allocated_bytes - left, 32 * BLOCK_BYTES as u64);
    }
}

#[test]
fn a_turn_takes_some_completions_and_leaves_none_behind() {
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = directory.path().join("device");
    std::fs::write(&path, vec![0; BLOCK_BYTES]).unwrap();
    let mut reactor = Reactor::new().unwrap();
    let id = reactor.add_file(DirectFile::open(&path).unwrap());
    let mut tags = std::collections::BTreeSet::new();
    for tag in 0..400 {
        reactor.start_file(id, tag, FileOperation::Read { offset: 0, block_count: 1 });
        tags.insert(tag);
    }
    let mut turns = 0;
    while !tags.is_empty() {
        let mut events = Vec::new();
        reactor.poll(None, &mut events).unwrap();
        for event in events {
            let Event::File { tag, .. } = event else { panic!("{event:?}") };
            assert!(tags.remove(&tag));
        }
        turns += 1;
    }
    assert!(turns > 10, "what a few completions give rise to must not wait for all");
}

#[test]
fn only_files_and_block_devices_open_and_only_once() {
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let refusal = |path: &Path| DirectFile::open(path).err().unwrap();
    for path in [directory.path(), Path::new("/dev/null")] {
        let error = refusal(path);
        assert!(error.to_string().contains("neither a file nor a block device"), "{error}");
    }
    assert_eq!(refusal(&directory.path().join("none")).kind(), ErrorKind::NotFound);

    let path = directory.path().join("device");
    std::fs::write(&path, vec![0; 3 * BLOCK_BYTES + 100]).unwrap();
    let first = DirectFile::open(&path).unwrap();
    assert_eq!(first.size_bytes(), 3 * BLOCK_BYTES as u64, "a part of a block cannot be used");
    let error = refusal(&path);
    assert_eq!(error.kind(), ErrorKind::ResourceBusy);
    assert!(error.to_string().contains("another process uses this device"), "{error}");
}
