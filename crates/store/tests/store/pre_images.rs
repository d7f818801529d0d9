//! Pre-images, as clones of objects and in log entries: each rule with the smallest history that
//! needs it.

use atoll_buffers::BLOCK_BYTES;
use atoll_store::{CheckOptions, ObjectKey, Store, StoreError, check};
use atoll_types::limits::CONTROL_BYTES_MAX;
use atoll_types::operation::PG_META_OBJECT;
use atoll_types::{Epoch, LogEntry, Mutation, ObjectName, PgId, PreImage, Touched, Transaction, Version};
use bytes::Bytes;

use crate::model::{Builder, pg_id};
use crate::small::Small;
use crate::verify::{look, look_and_submit, run, verify_log, verify_pg};

fn name(text: &str) -> ObjectName {
    ObjectName::new(text).unwrap()
}

/// Checks that the store shows the content of the model, and the content of the device is sound.
fn verify(small: &mut Small) {
    verify_pg(&mut small.store, &mut small.disk, 0, &small.state, 1).unwrap();
    let report = check(&mut small.disk, CheckOptions { data: true }, &mut |_, _, _| {}).unwrap();
    assert_eq!(report.problems, []);
}

#[test]
fn small_writes_leave_a_pre_image_alone() {
    let mut small = Small::new();
    let copy = name("@kept/1");
    small.submit("object", |builder| builder.write(0, 4, 0, 1, true));
    small.checkpoint();
    small.submit("object", |builder| {
        builder.clone_pre_image(&copy);
        builder.write(1, 1, 0, 101, true);
    });
    verify(&mut small);
    // The first write replaces a block of the object alone, the second one a block that it shares.
    for block in [1, 2] {
        small.submit("object", |builder| builder.write(block, 1, 0, 200 + block as u64 * 2 + 1, true));
        verify(&mut small);
        small.settle();
        small.reopen();
        verify(&mut small);
        small.checkpoint();
        verify(&mut small);
    }
    assert!(small.state.objects[&copy].blocks != small.state.objects[&name("object")].blocks);
}

#[test]
fn a_pre_image_of_nothing_is_nothing() {
    let mut small = Small::new();
    let copy = name("@kept/1");
    small.submit("object", |builder| {
        builder.clone_pre_image(&copy);
        builder.write(0, 1, 0, 1, true);
    });
    verify(&mut small);
    // An older clone of that name exists, of something else.
    small.submit("object", |builder| builder.clone_pre_image(&copy));
    assert!(small.state.objects.contains_key(&copy));
    small.submit("another", |builder| {
        builder.clone_pre_image(&copy);
        builder.write(0, 1, 0, 3, true);
    });
    assert!(!small.state.objects.contains_key(&copy));
    verify(&mut small);
    small.settle();
    small.reopen();
    verify(&mut small);
}

#[test]
fn removing_a_missing_object_changes_nothing() {
    let mut small = Small::new();
    small.submit("object", |builder| builder.write(0, 3, 0, 1, true));
    small.submit(PG_META_OBJECT, |builder| builder.remove_other(&name("@kept/1")));
    verify(&mut small);
    assert_eq!(small.store.usage().object_count, 1);
    small.settle();
    small.reopen();
    verify(&mut small);
}

#[test]
fn removed_pre_images_leave_no_blocks_behind() {
    let mut small = Small::new();
    small.submit("object", |builder| builder.write(0, 20, 0, 1, true));
    small.checkpoint();
    let blocks_of_data = |small: &Small| {
        let usage = small.store.usage();
        usage.used_bytes / BLOCK_BYTES as u64 - u64::from(usage.metadata_page_count)
    };
    let before = blocks_of_data(&small);
    for turn in 0..5 {
        small.submit("object", |builder| {
            builder.clone_pre_image(&name(&format!("@kept/{turn}")));
            builder.truncate(10);
            builder.write(0, 20, 0, 101 + turn * 100, true);
        });
    }
    small.settle();
    assert_eq!(blocks_of_data(&small), before + 5 * 20);
    small.submit(PG_META_OBJECT, |builder| {
        (0..5).for_each(|turn| builder.remove_other(&name(&format!("@kept/{turn}"))));
        builder.reset_log(3);
    });
    small.checkpoint();
    verify(&mut small);
    assert_eq!(blocks_of_data(&small), before);
}

/// The object would be gone, or would free the blocks that the same transaction writes in place.
#[test]
fn an_object_is_not_its_own_pre_image() {
    let mut small = Small::new();
    small.submit("object", |builder| builder.write(0, 1, 0, 1, true));
    let object = name("object");
    let write = Mutation::Write { offset: 0, length: BLOCK_BYTES as u32, seals: None };
    for of_itself in
        [Mutation::ClonePreImage { copy: object.clone() }, Mutation::RemoveOther { object: object.clone() }]
    {
        let transaction = Transaction {
            pg: pg_id(0),
            object: object.clone(),
            mutations: vec![of_itself, write.clone()],
            payload: vec![7; BLOCK_BYTES].into(),
            payload_sealed: true,
            log: Vec::new(),
        };
        assert!(matches!(small.store.submit(&transaction), Err(StoreError::Invalid { .. })));
    }
    verify(&mut small);
}

/// Power is lost while a history is rolled back: the roll back of its newest writes is repeated on the remains of
/// the roll back of older ones.
#[test]
fn a_repeated_roll_back_may_find_less() {
    let mut small = Small::new();
    let block = BLOCK_BYTES as u64;
    let pre_image = |small: &mut Small, object: &str, mutations: Vec<Mutation>| {
        let (object, payload, log) = (name(object), Bytes::new(), Vec::new());
        let transaction = Transaction { pg: pg_id(0), object, mutations, payload, payload_sealed: true, log };
        small.store.submit(&transaction)
    };
    small.submit("object", |builder| builder.write(0, 2, 0, 1, false));
    let truncate = Mutation::Truncate { size_bytes: 3 * block };
    let (object_bytes, shard_bytes) = (30_000, 5 * block);
    let shard_of = Mutation::SetShardOf { object_bytes, shard_bytes, seal_unit_bytes: 0, seal_bytes: 0 };
    for object in ["object", "nothing"] {
        let refusal = pre_image(&mut small, object, vec![truncate.clone()]);
        assert!(matches!(refusal, Err(StoreError::Invalid { .. })), "clients must know what there is");
        pre_image(&mut small, object, vec![truncate.clone(), shard_of.clone()]).unwrap();
    }
    let version = Version { epoch: Epoch(1), sequence: 1 };
    pre_image(
        &mut small,
        "object",
        vec![Mutation::Truncate { size_bytes: 9 * block }, Mutation::SetVersion { version }],
    )
    .unwrap();
    // The same as if nothing had been cut.
    let mut builder = Builder::new(0, &name("object"), &small.state);
    builder.shard_of(5, 30_000, false);
    let mut state = builder.state().clone();
    let mut builder = Builder::new(0, &name("nothing"), &state);
    builder.shard_of(5, 30_000, false);
    state = builder.state().clone();
    small.state = state;
    verify(&mut small);
    small.checkpoint();
    small.reopen();
}

/// The first sealed write of an object is rolled back, and a later one leaves the rest of the object
/// as it is: seals of the first one must not show.
#[test]
fn seals_of_another_shape_are_gone() {
    let mut small = Small::new();
    small.submit("object", |builder| {
        builder.shard_of(40, 100_000, false);
        builder.write(0, 40, 0, 1, false);
    });
    small.submit("object", |builder| builder.write(3, 30, 0, 101, true));
    small.submit("object", |builder| builder.shard_of(40, 100_000, false));
    verify(&mut small);
    small.checkpoint();
    verify(&mut small);
    small.submit("object", |builder| builder.write(9, 1, 0, 201, true));
    verify(&mut small);
    small.settle();
    small.reopen();
}

#[test]
fn long_pre_images_fit_the_log_and_its_segments() {
    for pre_image_bytes in [0, 1, 64 << 10, CONTROL_BYTES_MAX - BLOCK_BYTES] {
        let mut small = Small::new();
        // More than a segment of the log, unless they are very long.
        for sequence in 1..=if pre_image_bytes < 1 << 20 { 40 } else { 4 } {
            small.submit("object", |builder| {
                builder.write(0, 16, 0, 2 * sequence + 1, true);
                if sequence % 3 > 0 {
                    let payload = Bytes::from(vec![sequence as u8; pre_image_bytes]);
                    builder.pre_image(vec![Mutation::Truncate { size_bytes: sequence }], payload);
                }
            });
            if sequence == 3 {
                small.settle();
                small.reopen();
            }
        }
        small.settle();
        verify(&mut small);
        small.reopen();
        small.checkpoint();
        verify(&mut small);
        small.reopen();
    }
}

#[test]
fn forgotten_pre_images_may_come_back_but_nothing_else_is_lost() {
    let mut small = Small::new();
    let pre_image = |builder: &mut Builder| builder.pre_image(vec![Mutation::Remove], Bytes::from_static(b"data"));
    let forget = |small: &mut Small, sequence| {
        small.store.forget_pre_images(pg_id(0), Version { epoch: Epoch(1), sequence });
        small.state.pre_images_forgotten = sequence;
        verify_log(&small.store, 0, &small.state);
    };
    for sequence in 1..=50 {
        small.submit("object", |builder| {
            builder.create();
            pre_image(builder);
        });
        if sequence % 7 == 0 {
            forget(&mut small, sequence - 3);
        }
        if sequence % 20 == 0 {
            small.checkpoint();
        }
    }
    let with_pre_image =
        |small: &Small| small.store.log(pg_id(0)).filter(|entry| entry.pre_image.is_some()).count();
    assert_eq!(with_pre_image(&small), 4);
    small.settle();
    small.reopen();
    assert!(with_pre_image(&small) > 4, "segments are written once");
    forget(&mut small, 46);
    assert_eq!(with_pre_image(&small), 4);
}

/// A PG whose log has pre-images is split: both have the history, and so its pre-images.
#[test]
fn a_split_off_pg_can_roll_back_its_history() {
    let mut small = Small::new();
    for sequence in 1..=40 {
        small.submit(&format!("object{sequence}"), |builder| {
            builder.write(0, 1, 0, sequence * 2 + 1, true);
            builder.pre_image(vec![Mutation::Remove], vec![sequence as u8; 5000].into());
        });
    }
    let split = Mutation::Split { pg_num_before: 1, pg_num: 2, is_whole: true };
    let pre_image = PreImage {
        mutations: vec![Mutation::Split { pg_num_before: 1, pg_num: 1, is_whole: false }],
        payload: Bytes::new(),
    };
    let version = Version { epoch: Epoch(1), sequence: 41 };
    let (own, mutations) = (name(PG_META_OBJECT), vec![split]);
    let touched = Touched::by(&mutations);
    let entry = LogEntry {
        version,
        request: None,
        object: own.clone(),
        touched,
        committed_sequence: 0,
        pre_image: Some(pre_image.clone()),
    };
    let log = vec![entry];
    let payload = Bytes::new();
    let transaction = Transaction { pg: pg_id(0), object: own, mutations, payload, payload_sealed: true, log };
    let whole: Vec<LogEntry> = small.store.log(pg_id(0)).cloned().chain(transaction.log.clone()).collect();
    look_and_submit(&mut small.store, &mut small.disk, &transaction);
    let has_all = |store: &Store, pg: PgId| store.log(pg).eq(&whole);
    assert!(has_all(&small.store, pg_id(0)) && has_all(&small.store, pg_id(1)));
    // What one of them forgets the other one keeps.
    small.store.forget_pre_images(pg_id(1), version);
    assert!(has_all(&small.store, pg_id(0)) && !has_all(&small.store, pg_id(1)));
    (0..8).for_each(|_| {
        small.store.flush();
        run(&mut small.store, &mut small.disk);
    });
    for incarnation in 2..5 {
        let mut store = Store::open(&mut small.disk, incarnation).unwrap();
        assert!(has_all(&store, pg_id(0)));
        let others: Vec<_> = store.log(pg_id(1)).map(|entry| entry.version.sequence).collect();
        assert_eq!(others, (1..=41).collect::<Vec<_>>());
        // An object that went to the other PG can be removed there by what the first one's log says.
        let other = name("object7");
        let pg = (0..2).find(|index| pg_id(*index).holds(&other, 2)).unwrap();
        let key = ObjectKey { pg: pg_id(pg), name: other };
        assert!(look(&mut store, &mut small.disk, |store| store.object(&key)).unwrap().is_some());
    }
    let mut store = Store::open(&mut small.disk, 9).unwrap();
    let back = Transaction { mutations: pre_image.mutations, log: Vec::new(), ..transaction };
    look_and_submit(&mut store, &mut small.disk, &back);
    let head = Version { epoch: Epoch(1), sequence: 40 };
    let last = Transaction { mutations: vec![Mutation::ResetLog { head }], ..back };
    look_and_submit(&mut store, &mut small.disk, &last);
    store.close(&mut small.disk).unwrap();
    let mut store = Store::open(&mut small.disk, 10).unwrap();
    assert!(store.log(pg_id(0)).eq(&whole[..40]));
    assert_eq!((store.head(pg_id(1)), store.log(pg_id(1)).count()), (Version::default(), 0));
    let names = look(&mut store, &mut small.disk, |store| store.names_after(pg_id(0), None, 100)).unwrap();
    assert_eq!(names.iter().filter(|name| name.as_str() != PG_META_OBJECT).count(), 40);
}

#[test]
fn pre_images_that_come_again_behind_a_reset_are_forgotten_again() {
    let mut small = Small::new();
    let (pg, version) = (pg_id(0), Version { epoch: Epoch(1), sequence: 1 });
    let pre_image = Some(PreImage { mutations: vec![Mutation::Remove], payload: Bytes::new() });
    let (object, touched) = (name("object"), Touched { whole: true, ..Touched::default() });
    let entry =
        LogEntry { version, request: None, object: object.clone(), touched, committed_sequence: 0, pre_image };
    let submit = |small: &mut Small, object, mutations| {
        let log = vec![entry.clone()];
        let transaction = Transaction { pg, object, mutations, payload: Bytes::new(), payload_sealed: false, log };
        small.store.submit(&transaction).unwrap();
        assert!(small.store.log(pg).all(|entry| entry.pre_image.is_some()));
        small.store.forget_pre_images(pg, version);
        assert!(small.store.log(pg).all(|entry| entry.pre_image.is_none()), "it is forgotten");
    };
    // It hears of what was committed before it has the write.
    small.store.forget_pre_images(pg, Version { epoch: Epoch(1), sequence: 7 });
    submit(&mut small, object, vec![Mutation::Create]);
    // A member that begins anew gets the history once more.
    submit(&mut small, name(PG_META_OBJECT), vec![Mutation::ResetLog { head: Version::default() }]);
}
