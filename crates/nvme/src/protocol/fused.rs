//! Compare-and-write: two commands, one behind the other, that are done together or not at all.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::command::SubmissionEntry;
use super::io::{IoCommand, IoOperation};
use super::status::Status;
use super::types::{ByteRange, CommandId, IoKind};

const FIRST: u8 = 1;
const SECOND: u8 = 2;

/// The command right before the next one.
#[derive(Default, PartialEq, Eq)]
enum Before {
    /// Nothing that is fused.
    #[default]
    Nothing,
    /// The first of two.
    First { id: CommandId, range: ByteRange },
    /// A first one that was refused: its second must not be done.
    Refused,
}

struct Half {
    partner: Option<CommandId>,
    is_first: bool,
    data: Option<Bytes>,
}

/// The fused commands of a queue.
#[derive(Default)]
pub(super) struct Fusing {
    before: Before,
    /// Result of [`Fusing::check`], until [`Fusing::follow`].
    range: Option<ByteRange>,
    halves: BTreeMap<CommandId, Half>,
}

impl Fusing {
    /// Checks if a command fits the one before it.
    pub fn check(&mut self, command: &SubmissionEntry, io: &IoCommand) -> Result<(), Status> {
        self.range = Some(io.range);
        match command.fuse() {
            0 => Ok(()),
            FIRST if io.operation == IoOperation::Compare => io.check_atomic(),
            SECOND if io.operation == IoOperation::Write => match &self.before {
                Before::First { range, .. } if *range == io.range => Ok(()),
                Before::First { .. } => Err(Status::InvalidField),
                Before::Refused => Err(Status::FailedFused),
                Before::Nothing => Err(Status::MissingFused),
            },
            _ => Err(Status::InvalidField),
        }
    }

    /// A command was taken, or refused. Returns a first one that will never have its second.
    pub fn follow(&mut self, id: CommandId, command: &SubmissionEntry, is_taken: bool) -> Option<CommandId> {
        let before = std::mem::take(&mut self.before);
        let range = self.range.take();
        if let (Before::First { id: first, .. }, SECOND, true) = (&before, command.fuse(), is_taken) {
            self.halves.insert(id, Half { partner: Some(*first), is_first: false, data: None });
            self.halves.get_mut(first).expect("the first one waits").partner = Some(id);
            return None;
        }
        if command.fuse() == FIRST {
            self.before = match range {
                Some(range) if is_taken => {
                    self.halves.insert(id, Half { partner: None, is_first: true, data: None });
                    Before::First { id, range }
                }
                _ => Before::Refused,
            };
        }
        match before {
            Before::First { id: first, .. } => {
                self.halves.remove(&first);
                Some(first)
            }
            _ => None,
        }
    }

    /// Returns true if a command is one of a fused pair.
    pub fn is_fused(&self, id: CommandId) -> bool {
        self.halves.contains_key(&id)
    }

    /// The data of one half is there. Returns both, under the id of the first, when they can be done.
    pub fn data_is_there(&mut self, id: CommandId, offset: u64, data: Bytes) -> Option<(CommandId, IoKind)> {
        let half = self.halves.get_mut(&id).expect("the caller has looked");
        half.data = Some(data);
        let (partner, is_first) = (half.partner?, half.is_first);
        self.halves.get(&partner)?.data.as_ref()?;
        let (first, second) = if is_first { (id, partner) } else { (partner, id) };
        let mut take = |id| self.halves.remove(&id).and_then(|half| half.data);
        let (expected, data) = (take(first)?, take(second)?);
        Some((first, IoKind::CompareAndWrite { offset, expected, data, write: second }))
    }

    /// One half cannot be done. Returns the other, which then must not be.
    pub fn give_up(&mut self, id: CommandId) -> Option<CommandId> {
        let half = self.halves.remove(&id)?;
        if let Before::First { id: first, .. } = self.before
            && first == id
        {
            self.before = Before::Refused;
        }
        let partner = half.partner?;
        self.halves.remove(&partner).map(|_| partner)
    }
}
