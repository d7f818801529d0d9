//! Damage of metadata that is met while a store is in use. It is remembered in the superblock, so that the store
//! does not open again as if nothing were missing: a reader of an unreadable page fails, and no other notices.

use std::sync::Arc;

use atoll_buffers::BLOCK_BYTES;
use atoll_types::{PgId, Transaction};

use crate::disk::{Disk, DiskOperation, DiskResult, Segment};
use crate::error::OpenError;
use crate::outbox::Purpose;
use crate::recovery::load_superblock;
use crate::store::Store;
use crate::superblock::{DAMAGE_BYTES_MAX, Superblock};

impl Store {
    /// Metadata is damaged: nothing more is accepted, and the superblock is to say why. [`Store::is_noting_damage`] says
    /// when it does.
    pub(crate) fn poison_by_damage(&mut self, cause: String) {
        if self.poisoned.is_some() {
            return;
        }
        self.poison(cause.clone());
        self.damage_to_note = Some(shortened(cause));
        let writes_superblock =
            self.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.is_writing_superblock());
        if !writes_superblock {
            self.note_damage();
        }
    }

    /// Returns true if damage was found that the superblock does not have yet. The process may end when it does,
    /// or when the device does not take it.
    ///
    /// ```
    /// use atoll_store::{Disk, Store};
    ///
    /// fn before_the_process_ends(store: &mut Store, disk: &mut dyn Disk) {
    ///     while store.is_noting_damage()
    ///         && let Some(request) = store.next_request()
    ///     {
    ///         let result = disk.execute(request.device, request.operation);
    ///         store.complete(request.id, result);
    ///     }
    /// }
    /// ```
    pub fn is_noting_damage(&self) -> bool {
        self.damage_to_note.is_some()
    }

    /// Writes the superblock in force with the damage, over the copy that is not in force.
    fn note_damage(&mut self) {
        let Some(damage) = &self.damage_to_note else { return };
        let generation = self.superblock.generation + 1;
        let superblock = Superblock { generation, damage: damage.clone(), ..self.superblock.clone() };
        let offset = superblock.block() * BLOCK_BYTES as u64;
        let segments = vec![Segment { buffer: Arc::new(superblock.encode()), first_block: 0, block_count: 1 }];
        self.outbox.request(Purpose::DamageNote, DiskOperation::Write { offset, segments, durable: true });
    }

    /// The superblock has the damage, or the device did not take it, which changes nothing.
    pub(crate) fn damage_noted(&mut self, _: &DiskResult) {
        self.damage_to_note = None;
    }

    /// A request of the checkpoint has ended after damage was found: if it was for its superblock, it is the damage's turn.
    pub(crate) fn superblock_may_have_ended(&mut self, result: &DiskResult) {
        let Some(checkpoint) = self.checkpoint.take_if(|checkpoint| checkpoint.is_writing_superblock()) else {
            return;
        };
        if result.is_ok() {
            self.superblock = checkpoint.into_superblock();
        }
        self.note_damage();
    }
}

impl Store {
    /// Returns the damage of metadata that a store met and remembers from its use; none if it met none.
    pub fn remembered_damage(disk: &mut dyn Disk) -> Result<Option<String>, OpenError> {
        let (superblock, _) = load_superblock(disk)?;
        Ok(Some(superblock.damage).filter(|damage| !damage.is_empty()))
    }

    /// Has a store forget that it met damaged metadata, once a change of each of its PGs is durable, which is to say that
    /// the copy cannot be trusted. `incarnation` as for [`Store::open`]. If it meets the damage, it fails and remembers
    /// that, as before. Returns the PGs.
    pub fn forget_damage(
        disk: &mut dyn Disk,
        incarnation: u64,
        distrust: impl Fn(PgId) -> Transaction,
    ) -> Result<Vec<PgId>, OpenError> {
        let mut store = Store::recover(disk, incarnation)?;
        let pgs: Vec<PgId> = store.pgs().collect();
        for pg in &pgs {
            store.apply_blocking(disk, &distrust(*pg))?;
        }
        store.superblock.damage.clear();
        store.close(disk)?;
        Ok(pgs)
    }
}

/// Refuses a store whose metadata was found damaged.
pub(crate) fn refuse_damage(superblock: &Superblock) -> Result<(), OpenError> {
    match superblock.damage.is_empty() {
        true => Ok(()),
        false => Err(OpenError::Damaged { what: "the metadata", detail: superblock.damage.clone() }),
    }
}

fn shortened(mut text: String) -> String {
    let end = (0..=DAMAGE_BYTES_MAX.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    text.truncate(end.unwrap_or(0));
    text
}
