//! Copies of a PG that may not be whole: an OSD's report of its copy, and the copies from which an operator
//! resumes the PG.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::{Epoch, OsdId, PgId, Version};
use crate::records::PgRecord;

/// The copies from which a PG resumes although they may lack acknowledged writes, by an operator's decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptedCopies {
    /// The epoch of the record that the decision made. No named OSD had promised it before.
    pub epoch: Epoch,
    /// The copies, as they were when it was decided.
    pub copies: Vec<AcceptedCopy>,
}

/// A copy that an operator has accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptedCopy {
    /// The OSD that has it.
    pub osd: OsdId,
    /// The newest write of its history. A copy that ends elsewhere is another one.
    pub head: Version,
}

impl AcceptedCopies {
    /// The head of an OSD's copy, if that was accepted.
    pub fn head_of(&self, osd: OsdId) -> Option<Version> {
        self.copies.iter().find(|copy| copy.osd == osd).map(|copy| copy.head)
    }
}

/// Returns the record with which a PG resumes from these copies, in place of `record`. Its epoch is above
/// everything that was promised, so each of the copies follows it once. The copies are not empty; those of an
/// erasure-coded PG know their shards.
pub fn accepting(record: &PgRecord, mut copies: Vec<PgCopy>) -> PgRecord {
    // The one with the newest history leads.
    copies.sort_by_key(|copy| std::cmp::Reverse(copy.head));
    let promised = copies.iter().map(|copy| copy.promised).max().unwrap_or_default();
    let epoch = Epoch(record.epoch.max(promised).0 + 1);
    let members: Vec<OsdId> = copies.iter().map(|copy| copy.osd).collect();
    let shards: Vec<u8> = copies.iter().filter_map(|copy| copy.shard).collect();
    let accepted = copies.iter().map(|copy| AcceptedCopy { osd: copy.osd, head: copy.head }).collect();
    PgRecord {
        epoch,
        primary: members[0],
        last_active_members: members.clone(),
        last_active_shards: shards.clone(),
        members,
        shards,
        accepted: Some(AcceptedCopies { epoch, copies: accepted }),
        ..record.clone()
    }
}

/// Why a copy of a PG does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Incompleteness {
    /// Its objects do not match its history: a backfill has not ended, or metadata was damaged.
    Torn,
    /// Its device is an older copy of the OSD's device.
    OldDevice,
    /// It has not promised an epoch in which it served: its device was replaced, or is an older copy.
    LacksPromise,
    /// It lacks writes that all members had: its device has lost them.
    LacksCommitted,
    /// It has writes that were to be rolled back, and cannot do that.
    CannotRollBack,
    /// It was deleted while the PG was active elsewhere, which cluster state does not know any more.
    Deleted,
    /// It was no member when the PG was active elsewhere, which cluster state does not know any more.
    Outdated,
}

impl Incompleteness {
    /// Returns true if objects of the copy may differ from its history. Otherwise it is a past state of the PG.
    pub fn is_torn(self) -> bool {
        self == Incompleteness::Torn
    }
}

impl fmt::Display for Incompleteness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Incompleteness::Torn => "some of its objects may be missing or old: a backfill of it has not ended, or its metadata was damaged",
            Incompleteness::OldDevice => "its device is an older copy of the OSD's device",
            Incompleteness::LacksPromise => "its device was replaced, or is an older copy",
            Incompleteness::LacksCommitted => "its device has lost writes that all members had",
            Incompleteness::CannotRollBack => "it has writes that had to be rolled back, and could not be",
            Incompleteness::Outdated => {
                "it missed later members of the PG, which cluster state does not know: that was put back from an older snapshot"
            }
            Incompleteness::Deleted => {
                "it was deleted when the PG had moved to other OSDs, which cluster state does not know: that was put back from an older snapshot"
            }
        })
    }
}

/// An OSD's report of a PG that it is a part of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PgCopy {
    /// The PG's pool and index, such as 1.1f.
    pub pg: String,
    /// The OSD.
    pub osd: OsdId,
    /// Its role: `member`, or as primary `inactive`, `peering`, `recovering` or `active`.
    pub state: String,
    /// The epoch of the record that it knows.
    pub epoch: Epoch,
    /// The epoch that it has promised.
    pub promised: Epoch,
    /// The newest write of its history.
    pub head: Version,
    /// Sequence of the newest write that it knows all members to have had.
    pub committed_sequence: u64,
    /// In an erasure-coded PG that is not active, the sequence down to which it can roll back its newest writes.
    pub rolls_back_to: u64,
    /// Why its copy does not count, if it does not.
    pub incomplete: Option<Incompleteness>,
    /// In an erasure-coded PG, the shard that it holds; none if it holds none, or objects of several.
    pub shard: Option<u8>,
    /// Reasons for waiting, a sentence each.
    pub waits_for: Vec<String>,
    /// Age of this report when it was sent, in milliseconds.
    pub age_ms: u64,
}

impl PgCopy {
    /// Returns true if it is of this PG.
    pub fn is_of(&self, pg: PgId) -> bool {
        self.pg == pg.to_string()
    }

    /// Returns true if it serves clients' requests.
    pub fn serves(&self) -> bool {
        self.state == "active"
    }

    /// Returns true if the copy has no data of the PG.
    pub fn is_empty(&self) -> bool {
        self.head == Version::default()
    }
}
