//! Rules of checkpoints and of replay, each with the smallest history in which breaking it loses or
//! invents something. Random histories come to some of them once in a very long time.

use atoll_buffers::BLOCK_BYTES;
use atoll_codec::crc32c;
use atoll_store::{CheckOptions, Device, Disk, OpenError, Store, WAL_BYTES_MIN, check};
use atoll_types::ObjectName;

use crate::model::{Builder, content, pg_id};
use crate::small::{Small, is_record};
use crate::verify::listed;

/// Blocks that a write replaces in memory while a checkpoint runs are not applied any more, and their record is
/// trimmed: the superblock must wait until the record of the new write is durable.
#[test]
fn a_superblock_waits_for_the_writes_that_replaced_what_it_trims() {
    let mut small = Small::new();
    small.submit("object", |builder| builder.write(0, 1, 0, 1, true));
    small.store.flush();
    // Its record is not durable, so the checkpoint cannot apply the block yet.
    small.store.start_checkpoint();
    let durable = small.state.clone();
    small.submit("object", |builder| builder.write(0, 1, 0, 3, true));
    let record = small.store.next_request().expect("the first record was not written");
    assert!(is_record(&record));
    let result = small.disk.execute(record.device, record.operation);
    small.store.complete(record.id, result);
    small.complete_all_but(is_record);
    small.state = durable;
    small.reopen();
}

/// A small write goes to its block again and again. As long as its record may be lost, the block must keep its
/// previous content.
#[test]
fn a_checkpoint_applies_only_what_is_durable_in_the_log() {
    let mut small = Small::new();
    small.submit("object", |builder| builder.write(0, 1, 0, 1, true));
    small.checkpoint();
    let durable = small.state.clone();
    small.submit("object", |builder| builder.write(0, 1, 0, 3, true));
    small.store.flush();
    small.store.start_checkpoint();
    small.complete_all_but(is_record);
    small.state = durable;
    small.reopen();
}

/// A transaction that frees blocks may be lost as long as no superblock without them is in force.
#[test]
fn freed_blocks_are_used_again_only_after_the_superblock() {
    let mut small = Small::new();
    small.submit("old", |builder| builder.write(0, 40, 0, 1, true));
    small.checkpoint();
    let durable = small.state.clone();
    small.submit("old", Builder::remove);
    small.store.flush();
    small.store.start_checkpoint();
    small.fill_device(is_record);
    small.state = durable;
    small.reopen();
}

/// Records that a checkpoint will make superfluous are needed until it is in force.
#[test]
fn the_log_is_not_overwritten_before_the_superblock() {
    // What is always kept free of the smallest log is more than a checkpoint lets in.
    let wal_bytes = 4 * WAL_BYTES_MIN;
    let mut small = Small::with_log_apart(wal_bytes);
    let lap = wal_bytes / (17 * BLOCK_BYTES as u64);
    for index in 0..2 * lap {
        if !small.store.has_log_room() {
            break;
        }
        small.submit("object", |builder| builder.write(0, 16, 0, 1 + 100 * index, true));
        // The checkpoint that begins when the log is half full does not come to its end.
        small.complete_all_but(|request| !is_record(request));
    }
    assert!(small.store.is_checkpointing());
    small.reopen();
}

/// The superblock refers to blocks that were written without being synced.
#[test]
fn a_superblock_waits_for_everything_that_it_refers_to() {
    let mut small = Small::new();
    small.submit("object", |builder| builder.write(0, 1, 0, 1, true));
    small.settle();
    small.store.start_checkpoint();
    small.complete_all_but(|_| false);
    // Nothing that was not synced is kept.
    small.disk.forget_unsynced();
    small.reopen();
}

/// The ring still holds the records of the run before. Those behind the newest one have the numbers
/// that replay looks for.
#[test]
fn records_of_an_older_run_are_not_replayed() {
    let mut small = Small::new();
    for seed in [1, 3] {
        small.submit("object", |builder| builder.write(0, 1, 0, seed, true));
        small.settle();
    }
    small.reopen();
    small.submit("object", |builder| builder.write(0, 1, 0, 5, true));
    small.settle();
    small.reopen();
}

/// Behind the newest record are those of the ring's last lap.
#[test]
fn records_of_an_older_lap_are_not_replayed() {
    let mut small = Small::new();
    let lap = WAL_BYTES_MIN / (17 * BLOCK_BYTES as u64);
    for index in 0..lap * 3 / 2 {
        small.submit("object", |builder| builder.write(0, 16, 0, 1 + 100 * index, true));
        small.settle();
        if index % 40 == 0 {
            small.checkpoint();
        }
    }
    small.reopen();
}

/// Without the newest superblock the one before would be taken, and the log that follows that one
/// has been trimmed. The records say which one was in force.
#[test]
fn a_lost_superblock_is_noticed_by_the_records_written_under_it() {
    let mut small = Small::new();
    small.submit("object", |builder| builder.write(0, 1, 0, 1, true));
    small.checkpoint();
    small.submit("object", |builder| builder.write(0, 1, 0, 3, true));
    small.settle();
    // Of the two places one holds the newest, and only without that one opening is refused.
    let is_refused = [0, 1].map(|place| {
        let mut disk = small.disk.clone();
        disk.set_block(Device::Data, place, &[0; BLOCK_BYTES]);
        matches!(Store::open(&mut disk, 9), Err(OpenError::Damaged { what: "the superblock", .. }))
    });
    assert!(is_refused[0] != is_refused[1], "{is_refused:?}");
}

/// The log may hold a small write to a block that the checkpoint has freed already. The block may
/// have got a metadata page since, so replay must not write to it.
#[test]
fn replay_does_not_write_to_blocks_that_were_freed() {
    let mut small = Small::new();
    // Both are in no record yet when the checkpoint freezes the state that holds them.
    small.submit("object", |builder| builder.write(0, 1, 0, 1, true));
    small.submit("object", Builder::remove);
    small.store.start_checkpoint();
    small.settle();
    let copies = |small: &Small| {
        let blocks = small.disk.blocks(Device::Data);
        blocks.iter().filter(|&&block| small.disk.block(Device::Data, block) == content(1)).count()
    };
    let before = copies(&small);
    small.reopen();
    assert_eq!(copies(&small), before, "only the log may hold what was freed");
}

/// A record whose checksum is good is not believed either.
#[test]
fn a_record_that_writes_outside_the_data_is_damage() {
    const HEADER_BYTES: usize = 52;
    let mut small = Small::new();
    small.submit("object", |builder| builder.write(0, 1, 0, 1, true));
    small.settle();
    let devices = [Device::Data, Device::Log]
        .map(|device| small.disk.blocks(device).into_iter().map(move |block| (device, block)));
    let is_log = |&(device, block): &(Device, u64)| small.disk.block(device, block).starts_with(b"AWAL");
    let (device, place) = devices.into_iter().flatten().find(is_log).expect("there is one record");
    let sound = small.disk.block(device, place);
    let number = |from: usize| u32::from_le_bytes(sound[from..from + 4].try_into().unwrap());
    let end = HEADER_BYTES + number(40) as usize;
    // The text ends with the first block of the only run, its length, and the block's checksum.
    assert_eq!(number(end - 8), 1);
    for (block, is_sound) in [(number(end - 12), true), (0, false), (1, false), (u32::MAX - 1, false)] {
        let mut bytes = sound;
        bytes[end - 12..end - 8].copy_from_slice(&block.to_le_bytes());
        let check = crc32c(&bytes[8..end]);
        bytes[4..8].copy_from_slice(&check.to_le_bytes());
        let mut disk = small.disk.clone();
        disk.set_block(device, place, &bytes);
        match Store::open(&mut disk, 9) {
            Ok(_) => assert!(is_sound, "block {block}"),
            Err(OpenError::Damaged { what: "the log", .. }) => assert!(!is_sound, "block {block}"),
            Err(error) => panic!("block {block}: {error}"),
        }
    }
}

/// The block of a page that is gone will belong to something else, so the page table must not refer to
/// it, also if no other page of its index block has changed.
#[test]
fn the_page_table_forgets_pages_that_are_gone() {
    // Locations in one index block.
    const INDEX_ENTRIES: u32 = 510;
    let mut small = Small::new();
    let key = |index: u32| format!("key{index:04}").into_bytes().into();
    // Each value fills a leaf, and leaves get their numbers in the order of the keys.
    let mut keys = 0;
    let mut fill = |small: &mut Small, pages: u32| {
        while small.store.usage().metadata_page_count < pages {
            small.submit("object", |builder| {
                (keys..keys + 20).for_each(|index| builder.omap_set(key(index), vec![1; 3600].into()));
            });
            keys += 20;
        }
        keys
    };
    let in_second_block = fill(&mut small, INDEX_ENTRIES + 30) - 10;
    fill(&mut small, 2 * INDEX_ENTRIES + 1);
    small.checkpoint();
    let pages = check_pages(&mut small);
    // Whatever else changes is in the first block, or in the third: the object's header, the branch
    // above the leaf, the PG's log.
    small.submit("object", |builder| builder.omap_remove(key(in_second_block)));
    small.checkpoint();
    assert_eq!(check_pages(&mut small), pages - 1, "a page is gone");
    small.reopen();
}

/// The pages of a sound store.
fn check_pages(small: &mut Small) -> u64 {
    let report = check(&mut small.disk, CheckOptions::default(), &mut |_, _, _| {}).unwrap();
    assert_eq!(report.problems, []);
    report.metadata_pages
}

/// A list says how many blocks an object shares with its clones, and knows it after a restart, too.
#[test]
fn a_list_counts_the_blocks_that_objects_share() {
    let mut small = Small::new();
    let source = ObjectName::new("source").unwrap();
    let counts = |small: &mut Small| -> Vec<_> {
        let objects = listed(&mut small.store, &mut small.disk, pg_id(0), "").unwrap();
        objects.iter().map(|object| (object.block_count, object.shared_block_count)).collect()
    };
    small.submit("source", |builder| builder.write(0, 70, 0, 1, true));
    assert_eq!(counts(&mut small), [(70, 0)]);
    small.submit("clone", |builder| builder.clone_from(&source));
    assert_eq!(counts(&mut small), [(70, 70), (70, 70)]);
    small.submit("clone", |builder| builder.write(10, 20, 0, 2, true));
    small.submit("clone", |builder| builder.zero(40, 5));
    assert_eq!(counts(&mut small), [(65, 45), (70, 45)]);
    small.submit("second", |builder| builder.clone_from(&source));
    assert_eq!(counts(&mut small), [(65, 45), (70, 70), (70, 70)]);
    small.checkpoint();
    small.reopen();
    assert_eq!(counts(&mut small), [(65, 45), (70, 70), (70, 70)]);
    small.submit("source", Builder::remove);
    assert_eq!(counts(&mut small), [(65, 45), (70, 45)]);
    small.submit("second", Builder::remove);
    assert_eq!(counts(&mut small), [(65, 0)]);
}
