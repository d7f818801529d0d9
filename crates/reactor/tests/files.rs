//! Files: what may be opened, and that a cipher sees every byte in both ways to the device.

#![allow(clippy::unwrap_used)]

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use atoll_base::{BLOCK_BYTES, BlockBuffer};
use atoll_reactor::{DirectFile, Event, FileOperation, Reactor, SectorCipher};

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

/// What is on the device: every block's value, or a panic if a block is mixed.
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
