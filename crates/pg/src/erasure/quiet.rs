//! Makes durable, when the PG is quiet, that all members have its newest write. No later write does, and knowledge
//! in memory alone is lost when all stop: devices that then forget the write, and are more than the parity covers,
//! would undo it.

use atoll_types::{Epoch, Mutation, PgId, Version};
use bytes::Bytes;

use crate::actions::ObjectView;
use crate::group::Pg;
use crate::own_object::{COMMITTED_KEY, own_change, own_object};
use crate::replication::log::Log;
use crate::submissions::Submission;

/// For how long no write is committed before the last one is noted: one note per quiet time, and none under load.
const QUIET_MS: u64 = 1_000;

/// Newest write that is noted as committed.
#[derive(Default)]
pub(crate) struct QuietNote {
    /// The sequence noted, or submitted to be.
    noted: u64,
    /// The newest sequence that is committed, and since when it has been.
    newest: Option<(u64, u64)>,
}

impl QuietNote {
    /// The note in this copy. One of a write that is not in the log says nothing: the log reaches further, or the history
    /// has been set back by hand.
    pub fn find(id: PgId, view: &impl ObjectView) -> Self {
        let value = view.omap_value(id, &own_object(), COMMITTED_KEY).ok().flatten();
        let noted = value.as_ref().and_then(version_in);
        let is_in_log = |version: &Version| view.log(id).iter().any(|entry| entry.version == *version);
        QuietNote { noted: noted.filter(is_in_log).map_or(0, |version| version.sequence), newest: None }
    }

    /// The sequence noted to be committed.
    pub fn noted(&self) -> u64 {
        self.noted
    }

    /// Nothing is noted any more.
    pub fn forget(&mut self) {
        *self = QuietNote::default();
    }

    /// Returns true if the newest write of the history is known to be committed, without a note.
    pub fn is_due(&self, log: &Log) -> bool {
        log.committed_sequence() == log.last_sequence() && log.committed_sequence() > self.noted
    }

    /// Returns the write to note now.
    fn take_due(&mut self, log: &Log, now_ms: u64) -> bool {
        if !self.is_due(log) {
            return false;
        }
        let committed = log.committed_sequence();
        let (newest, since_ms) = *self.newest.get_or_insert((committed, now_ms));
        if newest != committed {
            self.newest = Some((committed, now_ms));
        } else if now_ms >= since_ms + QUIET_MS {
            self.noted = committed;
            return true;
        }
        false
    }
}

impl Pg {
    /// Notes the committed sequence, if the PG has been quiet for a while.
    pub(crate) fn note_quiet(&mut self, view: &impl ObjectView) {
        let head = view.head(self.config.id);
        let is_shown = head.sequence == self.log.last_sequence() && !self.promises.is_incomplete();
        let Some(erasure) = self.erasure.as_mut().filter(|_| is_shown) else { return };
        if erasure.quiet.take_due(&self.log, view.now_ms()) {
            let value = [head.epoch.0.to_be_bytes(), head.sequence.to_be_bytes()].concat();
            let key = Bytes::from_static(COMMITTED_KEY);
            let note = own_change(self.config.id, vec![Mutation::OmapSet { key, value: value.into() }]);
            self.submit_write(Submission::NoteCommitted, note.into());
        }
    }

    /// There are no notes: the store did not take one, or the copy is gone. Missing ones are made again.
    pub(crate) fn forget_notes(&mut self) {
        self.config.pg_num_noted = 0;
        if let Some(erasure) = &mut self.erasure {
            erasure.quiet.forget();
        }
    }
}

fn version_in(value: &Bytes) -> Option<Version> {
    let (epoch, sequence) = value.split_at_checked(8)?;
    let number = |bytes: &[u8]| Some(u64::from_be_bytes(bytes.try_into().ok()?));
    Some(Version { epoch: Epoch(number(epoch)?), sequence: number(sequence)? })
}
