//! The state after random histories and power cuts is sound, and can be described.

use std::ops::ControlFlow;

use atoll_store::{CheckOptions, DumpOptions, DumpRecord, check, dump};
use atoll_types::Mutation;

use crate::driver::{Driver, PG, key};

fn assert_clean(driver: &mut Driver, when: &str) {
    let report = check(&mut driver.disk, CheckOptions { data: true }, &mut |_, _, _| {}).unwrap();
    assert_eq!(report.problems, [], "{when}: {report:#?}");
    assert!(report.is_replayed && report.is_data_checked);
}

#[test]
fn random_histories_are_clean_after_every_power_cut() {
    for seed in 1..=12 {
        let mut driver = Driver::new(seed);
        for turn in 0..6 {
            if driver.random.chance(50) {
                driver.store.set_memory_budget(64 << 10, 64 << 10);
            }
            for _ in 0..driver.random.below(400) {
                if driver.store.has_log_room() {
                    driver.random_change();
                }
                if driver.random.chance(30) {
                    driver.store.flush();
                }
                if driver.random.chance(3) {
                    driver.store.start_checkpoint();
                }
                for _ in 0..driver.random.below(4) {
                    driver.step();
                }
                while driver.store.next_event().is_some() {}
            }
            driver.crash();
            assert_clean(&mut driver, &format!("seed {seed}, crash {turn}"));
            driver.reopen();
            assert_clean(&mut driver, &format!("seed {seed}, opened {turn}"));
        }
    }
}

#[test]
fn a_dump_tells_what_there_is() {
    let mut driver = Driver::new(1);
    driver.write("one", 2, 3, 7);
    driver.write("one", 30, 20, 8);
    driver.set_omap("one", "a", vec![1; 3000]);
    driver.set_omap("two", "b", vec![2]);
    let (object_bytes, shard_bytes) = (100_000, 50 * 4096);
    let shard_of = Mutation::SetShardOf { object_bytes, shard_bytes, seal_unit_bytes: 4096, seal_bytes: 4 };
    driver.submit("one", vec![shard_of], Vec::new());
    driver.run();
    let mut tell = |options: &DumpOptions| {
        let mut records = Vec::new();
        dump(&mut driver.disk, options, &mut |record| {
            records.push(record);
            ControlFlow::Continue(())
        })
        .unwrap();
        records
    };
    let all = tell(&DumpOptions::default());
    let objects = |records: &[DumpRecord]| {
        let object = |record: &DumpRecord| match record {
            DumpRecord::Object(object) => Some(object.clone()),
            _ => None,
        };
        records.iter().filter_map(object).collect::<Vec<_>>()
    };
    assert!(matches!(&all[0], DumpRecord::Superblock(copy) if copy.block == 0));
    assert!(
        all.iter().any(|record| matches!(record, DumpRecord::Layout(layout) if layout.log_records_replayed > 0))
    );
    assert!(all.iter().any(|record| matches!(record, DumpRecord::Pg { head, .. } if head == "e1.5")));
    let found = objects(&all);
    assert_eq!(found.iter().map(|object| &object.object[..]).collect::<Vec<_>>(), ["one", "two"]);
    assert_eq!((found[0].blocks, found[0].seals, found[0].omap_entries, found[0].omap_bytes), (23, 23, 1, 3000));
    assert_eq!((found[0].size_bytes, found[0].extents.len()), (50 * 4096, 0));
    assert_eq!(found.iter().map(|object| object.whole_bytes).collect::<Vec<_>>(), [Some(100_000), None]);

    let one = tell(&DumpOptions { pg: Some(PG), object: Some(key("one").name) });
    let found = objects(&one);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].omap_keys, ["a"]);
    assert_eq!(found[0].extents.iter().map(|extent| extent.crcs.len()).sum::<usize>(), 23);
    let other = DumpOptions { pg: Some(atoll_types::PgId { index: 4, ..PG }), object: None };
    assert_eq!(objects(&tell(&other)), []);
}
