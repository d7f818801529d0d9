//! Small overwrites at a member, which reads the replaced data itself: it makes the pre-image of it, and a parity
//! shard adds the difference to it. Writes behind such a write wait, so that the history keeps its order.

use std::collections::VecDeque;

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};
use atoll_types::limits::PG_IN_FLIGHT_MAX;
use atoll_types::{
    Epoch, LogEntry, Mutation, ObjectName, OsdId, PreImage, ReadOutcome, Refusal, Seals, SharedTransaction,
    Transaction, Version,
};
use bytes::Bytes;

use super::fetch::check;
use super::parts::Part;
use super::shape::Span;
use super::update::INLINE_PRE_IMAGE_BYTES_MAX;
use crate::actions::ObjectView;
use crate::group::Pg;
use crate::replication::reads::{SpanAsker, SpanRead};
use crate::submissions::Submission;

/// Bytes that are kept for writes that may follow. Larger data is read once more.
const KEPT_BYTES_MAX: usize = 256 << 10;

/// Data of a member that a small overwrite replaces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replaced {
    pub span: Span,
    /// The payload and the seals are to be added to the replaced data.
    pub is_difference: bool,
}

/// How long a shard is, and the shape of its seals.
pub(super) type ShardShape = (u64, Option<(u32, u16)>);

/// A write of the history that the primary has sent, and that is not submitted.
struct Arrived {
    primary: OsdId,
    epoch: Epoch,
    transaction: SharedTransaction,
    /// Replaced data that must be read for it; `None` if the transaction is whole.
    replaced: Option<(Replaced, ShardShape)>,
    /// The read data.
    old: Option<Part>,
}

/// Data that a member has read for a primary that is about to order a write of the same span.
struct Kept {
    tag: u64,
    outcome: ReadOutcome,
    data: Bytes,
}

/// Small overwrites whose old bytes this member reads.
#[derive(Default)]
pub(crate) struct Overwrites {
    /// In the order of the history. The first one waits for its bytes.
    arrived: VecDeque<Arrived>,
    /// Oldest first, all of one epoch.
    kept: VecDeque<Kept>,
    kept_epoch: Epoch,
    kept_bytes: usize,
}

impl Arrived {
    fn version(&self) -> Version {
        self.transaction.log[0].version
    }

    fn is_ready(&self) -> bool {
        self.replaced.is_none() || self.old.is_some()
    }

    /// The write with all its bytes.
    fn completed(self) -> SharedTransaction {
        match (self.replaced, self.old) {
            (Some((replaced, (_, seal_shape))), Some(old)) => {
                complete(&self.transaction, replaced, seal_shape, old).into()
            }
            _ => self.transaction,
        }
    }
}

impl Overwrites {
    /// The sequence of the last write of this epoch that has not been submitted.
    pub fn last_sequence(&self, epoch: Epoch) -> Option<u64> {
        self.arrived.back().filter(|write| write.epoch == epoch).map(|write| write.version().sequence)
    }

    /// Returns true if writes have come that are not submitted.
    pub fn are_waiting(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Returns true if as many have come as a primary may have in flight.
    pub fn are_full(&self) -> bool {
        self.arrived.len() >= PG_IN_FLIGHT_MAX
    }

    /// Appends a write. Those of other epochs are void: the primary of this one does not know them.
    fn push(&mut self, write: Arrived) {
        self.arrived.retain(|other| other.epoch == write.epoch);
        self.arrived.push_back(write);
    }

    fn keep(&mut self, epoch: Epoch, tag: u64, outcome: ReadOutcome, data: Bytes) {
        if epoch != self.kept_epoch {
            *self = Overwrites { arrived: std::mem::take(&mut self.arrived), ..Overwrites::default() };
            self.kept_epoch = epoch;
        }
        self.kept_bytes += data.len();
        self.kept.push_back(Kept { tag, outcome, data });
        while self.kept_bytes > KEPT_BYTES_MAX
            && let Some(oldest) = self.kept.pop_front()
        {
            self.kept_bytes -= oldest.data.len();
        }
    }

    fn take_kept(&mut self, epoch: Epoch, tag: u64) -> Option<(ReadOutcome, Bytes)> {
        let at = self.kept.iter().position(|kept| kept.tag == tag && self.kept_epoch == epoch)?;
        let kept = self.kept.remove(at)?;
        self.kept_bytes -= kept.data.len();
        Some((kept.outcome, kept.data))
    }
}

impl Pg {
    /// This OSD has read a span for a primary that is about to order a write of it.
    pub(crate) fn keep_for_write(&mut self, epoch: Epoch, tag: u64, (outcome, data): &(ReadOutcome, Bytes)) {
        if let Some(erasure) = &mut self.erasure {
            erasure.overwrites.keep(epoch, tag, outcome.clone(), data.clone());
        }
    }

    /// A whole write of the history has come. Gives it back if it can be submitted now; otherwise it waits
    /// behind those whose old bytes are being read.
    pub(crate) fn behind_overwrites(
        &mut self,
        (primary, epoch, transaction): (OsdId, Epoch, SharedTransaction),
    ) -> Option<(OsdId, Epoch, SharedTransaction)> {
        let waiting = self.erasure.as_mut().map(|erasure| &mut erasure.overwrites);
        match waiting.filter(|overwrites| overwrites.last_sequence(epoch).is_some()) {
            None => Some((primary, epoch, transaction)),
            Some(overwrites) => {
                overwrites.push(Arrived { primary, epoch, transaction, replaced: None, old: None });
                None
            }
        }
    }

    /// A small overwrite has come, whose replaced data this member reads, unless that was kept.
    pub(crate) fn overwrite(
        &mut self,
        (primary, epoch): (OsdId, Epoch),
        transaction: SharedTransaction,
        committed: Version,
        (replaced, tag): (Replaced, u64),
        view: &impl ObjectView,
    ) {
        // No primary sends one that does not fit.
        let Some(shape) = fitting_shape(&transaction, &replaced) else { return };
        let (version, object) = (transaction.log[0].version, transaction.object.clone());
        if !self.takes_write(epoch, version) {
            return;
        }
        let Some(erasure) = &mut self.erasure else { return };
        let kept = erasure.overwrites.take_kept(epoch, tag);
        let old = kept.and_then(|kept| check(Ok(kept), replaced.span, shape.0, shape.1).ok());
        let must_read = old.is_none();
        let replaced_here = Some((replaced, shape));
        erasure.overwrites.push(Arrived { primary, epoch, transaction, replaced: replaced_here, old });
        if must_read {
            let (asker, offset) = (SpanAsker::Write { version }, replaced.span.start);
            let (length, asks_in_place) = (replaced.span.length() as u32, false);
            self.read_span(SpanRead { asker, object, offset, length, asks_in_place }, view);
        } else {
            self.submit_arrived();
        }
        self.forget_pre_images(committed);
    }

    /// The replaced data of a write has been read, or cannot be.
    pub(crate) fn replaced_bytes_came(&mut self, version: Version, answer: Result<(ReadOutcome, Bytes), Refusal>) {
        let Some(erasure) = &mut self.erasure else { return };
        let mut arrived = erasure.overwrites.arrived.iter_mut();
        let Some(write) = arrived.find(|write| write.version() == version) else { return };
        let Some((replaced, (shard_bytes, seal_shape))) = write.replaced else { return };
        match check(answer, replaced.span, shard_bytes, seal_shape) {
            Ok(part) => {
                write.old = Some(part);
                self.submit_arrived();
            }
            Err(cause) if write.epoch == self.promises.epoch() => {
                let (object, primary) = (write.transaction.object.clone(), write.primary);
                self.replaced_bytes_are_unreadable(object, primary, &cause);
            }
            // It is void, and so is what is behind it.
            Err(_) => {
                erasure.overwrites.arrived.retain(|write| write.epoch == self.promises.epoch());
                self.submit_arrived();
            }
        }
    }

    /// Without the old bytes there is no pre-image: the write is not taken, as if the store had refused it.
    /// Histories are compared again, and then the primary brings all bytes.
    fn replaced_bytes_are_unreadable(&mut self, object: ObjectName, primary: OsdId, cause: &str) {
        let me = self.config.me;
        self.outbox.warn(format!(
            "{me} cannot read the data of '{object}' that a write replaces ({cause}); other shards will give it"
        ));
        if let Some(erasure) = &mut self.erasure {
            erasure.overwrites.arrived.clear();
        }
        self.intake.note_unreadable(object);
        self.intake.refuse(primary);
    }

    /// Submits the writes whose old bytes are there, in the order of the history.
    fn submit_arrived(&mut self) {
        let Some(erasure) = &mut self.erasure else { return };
        let mut ready = Vec::new();
        while let Some(write) = erasure.overwrites.arrived.pop_front_if(|write| write.is_ready()) {
            ready.push(write);
        }
        for write in ready {
            let (primary, epoch, version) = (write.primary, write.epoch, write.version());
            // A primary of a later epoch has been told of a history without it.
            let is_void = epoch != self.promises.epoch() || !self.intake.is_whole() || self.stray.has_begun();
            if is_void || version.sequence != self.log.last_sequence() + 1 {
                continue;
            }
            let transaction = write.completed();
            self.submit_with_pre_image(Submission::Replica { primary, epoch, version }, transaction);
        }
    }
}

/// Returns the shard's shape by an overwrite's pre-image, if the overwrite is valid.
pub(super) fn fitting_shape(transaction: &Transaction, replaced: &Replaced) -> Option<ShardShape> {
    let [LogEntry { pre_image: Some(pre_image), object, .. }] = &transaction.log[..] else { return None };
    let shape = pre_image.mutations.iter().find_map(|mutation| match *mutation {
        Mutation::SetShardOf { shard_bytes, seal_unit_bytes, seal_bytes, .. } => {
            Some((shard_bytes, (seal_unit_bytes > 0).then_some((seal_unit_bytes, seal_bytes))))
        }
        _ => None,
    });
    let (shard_bytes, seal_shape) = shape?;
    let Span { start, end } = replaced.span;
    let unit = seal_shape.map_or(BLOCK_BYTES as u64, |(unit, _)| u64::from(unit));
    let step = unit.max(BLOCK_BYTES as u64);
    let fits = *object == transaction.object
        && start < end
        && end <= shard_bytes
        && replaced.span.length() <= INLINE_PRE_IMAGE_BYTES_MAX
        && start.is_multiple_of(step)
        && end.is_multiple_of(step)
        && pre_image.payload.is_empty();
    let adds = |(offset, length, seals): (u64, u32, Option<&Seals>)| {
        let seal_bytes =
            seal_shape.map_or(0, |(_, width)| replaced.span.length() / unit as usize * usize::from(width));
        Span::of(offset, length) == replaced.span
            && transaction.payload.len() == replaced.span.length()
            && seals.map(|seals| (seals.unit_bytes, seals.seal_bytes)) == seal_shape
            && seals.is_none_or(|seals| seals.bytes.len() == seal_bytes)
    };
    let is_sum = match &transaction.mutations[..] {
        _ if !replaced.is_difference => true,
        [Mutation::Write { offset, length, seals }] => adds((*offset, *length, seals.as_ref())),
        _ => false,
    };
    (fits && is_sum).then_some((shard_bytes, seal_shape))
}

/// A small overwrite with its pre-image and its new bytes.
pub(super) fn complete(
    transaction: &Transaction,
    replaced: Replaced,
    seal_shape: Option<(u32, u16)>,
    old: Part,
) -> Transaction {
    let mut transaction = transaction.clone();
    if replaced.is_difference {
        add(&mut transaction, &old);
    }
    let (offset, length) = (replaced.span.start, old.data.len() as u32);
    let seals = seal_shape.map(|(unit_bytes, seal_bytes)| Seals { unit_bytes, seal_bytes, bytes: old.seals });
    let pre_image =
        transaction.log[0].pre_image.get_or_insert(PreImage { mutations: Vec::new(), payload: Bytes::new() });
    // The version is set last.
    let at = pre_image.mutations.len().saturating_sub(1);
    pre_image.mutations.insert(at, Mutation::Write { offset, length, seals });
    pre_image.payload = old.data;
    transaction
}

/// Adds the replaced data to the difference, which gives the new bytes and seals.
fn add(transaction: &mut Transaction, old: &Part) {
    let mut data = BlockBuffer::from_bytes(&old.data);
    atoll_ec::xor_into(data.as_mut_slice(), &transaction.payload);
    transaction.payload = data.into_bytes(old.data.len());
    if let [Mutation::Write { seals: Some(seals), .. }] = &mut transaction.mutations[..] {
        let mut bytes = old.seals.to_vec();
        atoll_ec::xor_into(&mut bytes, &seals.bytes);
        seals.bytes = bytes.into();
    }
}
