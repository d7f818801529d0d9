//! Usage of a store by each pool: it is reported, it survives checkpoints and replay, and it agrees with the
//! objects, which checks after random histories verify, too.

use atoll_buffers::BLOCK_BYTES;
use atoll_store::{CheckOptions, PoolUsage, check};
use atoll_types::ObjectName;

use crate::model::{Builder, pg_id};
use crate::small::Small;

impl Small {
    /// Objects and blocks of the pool.
    fn counted(&self) -> (u64, u64) {
        let PoolUsage { object_count, used_bytes } =
            self.store.pool_usage().unwrap().get(&pg_id(0).pool).copied().unwrap_or_default();
        assert_eq!(used_bytes % BLOCK_BYTES as u64, 0);
        (object_count, used_bytes / BLOCK_BYTES as u64)
    }
}

#[test]
fn objects_and_blocks_are_counted_as_they_come_and_go() {
    let mut small = Small::new();
    assert_eq!(small.counted(), (0, 0));
    small.submit("a", |builder| builder.write(0, 40, 0, 1, true));
    small.submit("b", Builder::create);
    assert_eq!(small.counted(), (2, 40));
    small.submit("a", |builder| builder.write(0, 50, 0, 3, true));
    assert_eq!(small.counted(), (2, 50), "blocks that are written again count once");
    small.submit("clone", |builder| builder.clone_from(&ObjectName::new("a").unwrap()));
    assert_eq!(small.counted(), (3, 50), "a clone shares them");
    small.submit("a", |builder| builder.zero(0, 8));
    assert_eq!(small.counted(), (3, 50), "the clone still has them");
    small.submit("clone", Builder::remove);
    assert_eq!(small.counted(), (2, 42));
    small.submit("a", Builder::remove);
    small.submit("b", Builder::remove);
    assert_eq!(small.counted(), (0, 0));
}

#[test]
fn counts_survive_checkpoints_and_replay() {
    let mut small = Small::new();
    small.submit("a", |builder| builder.write(0, 40, 0, 1, true));
    small.checkpoint();
    small.submit("b", |builder| builder.write(0, 2, 0, 3, true));
    small.submit("a", |builder| builder.truncate(30));
    small.settle();
    assert_eq!(small.counted(), (2, 32));
    for _ in 0..2 {
        small.reopen();
        assert_eq!(small.counted(), (2, 32));
    }
    let report = check(&mut small.disk, CheckOptions::default(), &mut |_, _, _| {}).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}
