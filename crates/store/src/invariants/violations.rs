//! Every assertion fires: a table of states that must not be, each made on purpose.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::allocator::Zone;
use crate::check::tests::Fixture;
use crate::disk::DiskOperation;
use crate::invariants;
use crate::outbox::Purpose;
use crate::overlay::{Home, PendingBlock};

/// Part of an assertion's text, and a violation of it.
pub(crate) type Violation = (&'static str, fn(&mut Fixture));

const VIOLATIONS: &[Violation] = &[
    // Blocks.
    ("has one holder", |fixture| {
        let block = fixture.device_block("large", 0);
        fixture.store.space.give_up(&[block]);
    }),
    ("blocks without a holder are free", |fixture| {
        fixture.store.space.allocator().allocate(1, Zone::Data).unwrap();
    }),
    ("free blocks are counted", |fixture| fixture.store.space.allocator().miscount()),
    ("is released twice", |fixture| {
        let [(block, _)] = fixture.store.space.allocator().allocate(1, Zone::Data).unwrap()[..] else {
            panic!("one run")
        };
        fixture.store.space.allocator().release(block);
        fixture.store.space.allocator().release(block);
    }),
    ("a used block of", |fixture| {
        let block = fixture.device_block("large", 0);
        fixture.store.space.allocator().claim_in_use(block);
    }),
    ("gets and loses its first reference in turn", |fixture| {
        let block = fixture.device_block("large", 0);
        let metadata = &mut fixture.store.metadata;
        metadata.bitmap.set(&mut metadata.tree.pages, block, true);
    }),
    // Pages.
    ("pages in memory are counted", |fixture| fixture.store.metadata.tree.pages.miscount()),
    ("the next checkpoint writes page", |fixture| fixture.store.metadata.tree.pages.forget_changes()),
    ("only pages that are not in memory are read", |fixture| {
        let root = fixture.store.metadata.tree.root;
        fixture.store.metadata.tree.pages.claim_loading(root);
    }),
    // Small writes on their way.
    ("blocks in memory are counted", |fixture| fixture.store.overlay.miscount()),
    ("the places of all blocks are known", |fixture| {
        let block = fixture.device_block("small", 3);
        fixture.store.overlay.insert(block, dropped(Home::NoRecord));
        fixture.store.overlay.forget_places();
    }),
    ("are an object's", |fixture| {
        let (pending, block) = (dropped(Home::NoRecord), fixture.store.layout.data_start as u32 + 100_000);
        fixture.store.overlay.insert(block, pending);
    }),
    ("stay in memory until the log has them", |fixture| {
        let block = fixture.device_block("small", 3);
        fixture.store.overlay.insert(block, dropped(Home::NoRecord));
    }),
    // Requests.
    ("the checkpoint waits for its requests", |fixture| {
        fixture.store.outbox.request(Purpose::Checkpoint, DiskOperation::Sync);
    }),
    ("is read once, on demand", |fixture| {
        let number = fixture.store.metadata.tree.root;
        fixture
            .store
            .outbox
            .request(Purpose::Page { number, is_again: false }, DiskOperation::Read { offset: 0, block_count: 1 });
    }),
    // Checkpoints.
    ("the next checkpoint knows that", |fixture| fixture.store.pgs.forget_changes()),
    ("generations of the superblock follow each other", |fixture| {
        fixture.store.start_checkpoint();
        fixture.store.superblock.generation += 1;
        // What waits for its data gets into the log in the second turn.
        fixture.run();
        fixture.run();
    }),
    ("applies only durable records", |_| invariants::checkpoint_applies_durable_records_only(4, 6)),
    ("waits for writes that replaced", |_| invariants::superblock_comes_after_the_fence(Some(6), 7)),
    ("waits for all pages", |_| invariants::superblock_comes_after_all_pages(1, false)),
    ("waits for all pages", |_| invariants::superblock_comes_after_all_pages(0, true)),
];

pub(crate) fn dropped(home: Home) -> PendingBlock {
    PendingBlock { buffer: None, number: 1, home }
}

/// Causes one violation after the other and checks the text of the panic.
pub(crate) fn assert_noticed(violations: &[Violation]) {
    Fixture::busy().store.check_invariants();
    for (expected, violate) in violations {
        let mut fixture = Fixture::busy();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            violate(&mut fixture);
            fixture.store.check_invariants();
        }));
        let panic = outcome.expect_err(expected);
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default();
        assert!(said.contains(expected), "instead of '{expected}': {said}");
    }
}

#[test]
fn every_violation_is_noticed() {
    assert_noticed(VIOLATIONS);
}

/// A frozen page that was changed without being set aside first.
#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "is written as it was frozen")]
fn a_frozen_page_that_changed_is_noticed() {
    let mut fixture = Fixture::busy();
    fixture.store.start_checkpoint();
    let root = fixture.store.metadata.tree.root;
    fixture.store.metadata.tree.pages.garble(root);
    fixture.run();
}
