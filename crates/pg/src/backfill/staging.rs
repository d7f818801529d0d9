//! A member that catches up while the PG peers gets objects under other names ([`crate::staging`]).

use std::collections::BTreeMap;

use atoll_types::{LogEntry, Mutation, ObjectName, Transaction, Version};

use super::{Learner, Sent};
use crate::config::Configuration;
use crate::invariants;
use crate::outbox::Outbox;
use crate::own_object::{change, own_change};
use crate::staging::{Note, staged_names};

/// Data with which a member is staged.
pub(super) struct Staging {
    /// The names of the objects while they are staged.
    names: BTreeMap<ObjectName, ObjectName>,
    /// The newest write that the member has.
    since: Version,
    /// The writes that it lacks.
    entries: Vec<LogEntry>,
    /// Changes of the PG's own object, which come last.
    own: Vec<Mutation>,
}

impl Learner {
    /// Begins to stage a member that has everything up to `since` and lacks these writes: the objects as they
    /// are get other names.
    pub(super) fn begin_staging(
        &mut self,
        since: Version,
        entries: Vec<LogEntry>,
        config: &Configuration,
        outbox: &mut Outbox,
    ) {
        let (pg, epoch, osd) = (config.id, config.record.epoch, self.osd);
        outbox.warn(format!("backfilling {osd}, which has everything up to {since}"));
        let names = staged_names(pg, entries.iter());
        let note = Note::Coming { count: names.len() as u32 };
        self.send(own_change(pg, vec![note.set()]), Sent::Other, epoch, outbox);
        for (object, staged) in &names {
            let keep = vec![Mutation::ClonePreImage { copy: staged.clone() }];
            self.send(change(pg, object.clone(), keep), Sent::Other, epoch, outbox);
        }
        self.staging = Some(Staging { names: names.into_iter().collect(), since, entries, own: Vec::new() });
    }

    /// A change of an object, under the name that it has at the learner.
    pub(super) fn under_its_name(&self, mut change: Transaction) -> Transaction {
        if let Some(staging) = &self.staging {
            let staged = staging.names.get(&change.object);
            invariants::staged_parts_change_no_object(&change.object, staged);
            change.object = staged.cloned().unwrap_or(change.object);
        }
        change
    }
}

impl Staging {
    /// Keeps changes of the PG's own object until the end.
    pub(super) fn keep_own(&mut self, parts: Vec<Transaction>) {
        self.own.extend(parts.into_iter().flat_map(|part| part.mutations));
    }

    /// The last part: the history, and the note that all objects are there.
    pub(super) fn end(&mut self, config: &Configuration) -> Transaction {
        let note = Note::Whole { count: self.names.len() as u32, since: self.since };
        let mutations = std::mem::take(&mut self.own).into_iter().chain([note.set()]).collect();
        Transaction { log: std::mem::take(&mut self.entries), ..own_change(config.id, mutations) }
    }
}
