//! Reading another member's copy of a damaged range, and repairing the damage.

use atoll_buffers::BLOCK_BYTES;
use atoll_types::{Epoch, Mutation, ObjectName, OsdId, PgId, ReadOutcome, ReadRequest, Refusal, Transaction};
use atoll_wire::Message;
use bytes::Bytes;

use crate::actions::{Action, ClientId, ObjectView, Token};
use crate::config::Configuration;
use crate::group::Pg;
use crate::outbox::Outbox;
use crate::peering::membership::Membership;
use crate::replication::queue::{Waiting, WaitingRequest};
use crate::replication::reads::{ReadPurpose, Reads, SpanRead};
use crate::submissions::Submission;

/// A read of a damaged range that goes from copy to copy.
pub(crate) struct CopyRead {
    /// The epoch of the question; the answer repeats it.
    pub epoch: Epoch,
    pub client: ClientId,
    pub sequence: u64,
    pub object: ObjectName,
    pub offset: u64,
    pub length: u32,
    pub damaged_blocks: Vec<u32>,
    pub copies_left: Vec<OsdId>,
}

impl CopyRead {
    /// Writes the damaged blocks again, from a copy that fits this copy's checksums.
    fn repair(&self, data: &Bytes, pg: PgId) -> Transaction {
        let mut payload = Vec::new();
        let mut mutations = Vec::new();
        for block in &self.damaged_blocks {
            let offset = u64::from(*block) * BLOCK_BYTES as u64;
            let start = (offset - self.offset) as usize;
            let end = (start + BLOCK_BYTES).min(data.len());
            if start < end {
                payload.extend_from_slice(&data[start..end]);
                mutations.push(Mutation::Write { offset, length: (end - start) as u32, seals: None });
            }
        }
        Transaction {
            pg,
            object: self.object.clone(),
            mutations,
            payload: payload.into(),
            payload_sealed: false,
            log: Vec::new(),
        }
    }
}

impl Reads {
    /// Asks the next member for its copy, or refuses the read if there is none.
    pub fn ask_next(
        &mut self,
        mut read: CopyRead,
        membership: &Membership,
        config: &Configuration,
        outbox: &mut Outbox,
    ) {
        read.copies_left.retain(|member| membership.is_reachable(*member));
        let Some(member) = read.copies_left.pop() else {
            let detail = format!("blocks {:?} of '{}'", read.damaged_blocks, read.object);
            return outbox.reply_read(read.client, read.sequence, Err(Refusal::Corrupt { detail }), Bytes::new());
        };
        let (Token(tag), epoch) = (outbox.token(), config.record.epoch);
        read.epoch = epoch;
        // Checksums are of whole blocks.
        let length = read.length.next_multiple_of(BLOCK_BYTES as u32);
        let (object, offset) = (read.object.clone(), read.offset);
        // The member that was asked stays at the end of the list, in case it goes away.
        read.copies_left.push(member);
        self.begin_of_copy(tag, read);
        let (pg, asks_in_place, keeps) = (config.id, false, false);
        outbox.send(member, Message::CopyRead { pg, epoch, tag, object, offset, length, asks_in_place, keeps });
    }

    /// A member is out of reach: reads that wait for its copy ask the next one.
    pub fn give_up(
        &mut self,
        member: OsdId,
        membership: &Membership,
        config: &Configuration,
        outbox: &mut Outbox,
    ) {
        for mut read in self.take_asked_of(member) {
            read.copies_left.retain(|other| *other != member);
            self.ask_next(read, membership, config, outbox);
        }
    }
}

impl Pg {
    /// Reads for another member, or for an operation on shards. Such a read waits for no write,
    /// because who asked checks the data.
    pub(crate) fn read_span(&mut self, read: SpanRead, view: &impl ObjectView) {
        if read.asks_in_place {
            // Blocks that only a pre-image shares can be overwritten in place once that is forgotten.
            self.delete_pre_images();
            let is_behind = self.erasure.as_ref().is_some_and(|erasure| erasure.overwrites.are_waiting());
            if is_behind || !self.outbox.view_is_current() || !view.has_room(self.config.id) {
                return self.reads.begin_later(read);
            }
        }
        let (token, pg) = (self.outbox.token(), self.config.id);
        if let Some(lookup) = read.missing(pg, view) {
            self.reads.begin_after_load(token, read);
            return self.outbox.push(Action::Load { token, lookup });
        }
        let request = read.request();
        let SpanRead { asker, object, offset, length, asks_in_place } = read;
        let in_place = if asks_in_place { view.blocks_in_place(pg, &object, offset, length) } else { 0 };
        self.reads.begin(token, ReadPurpose::Span { asker, in_place });
        self.outbox.push(Action::Read { token, object, request });
    }

    /// Begins reads that waited until the view shows everything that came before them.
    pub(crate) fn read_waiting_spans(&mut self, view: &impl ObjectView) {
        for read in self.reads.take_waiting() {
            self.read_span(read, view);
        }
    }

    /// Another member's copy of a damaged range has come.
    pub(crate) fn copy_reply(
        &mut self,
        epoch: Epoch,
        tag: u64,
        result: Result<ReadOutcome, Refusal>,
        (in_place, payload): (u32, Bytes),
        view: &impl ObjectView,
    ) {
        if epoch == self.config.record.epoch
            && self.shard_read(tag, result.clone().map(|outcome| (outcome, payload.clone())), in_place, view)
        {
            return;
        }
        let Some(mut read) = self.reads.of_copy_answered(tag, epoch) else { return };
        let request = ReadRequest::checked_data(read.offset, read.length);
        // The copy may contain a newer write that is not committed, or the checksums are not in
        // memory any more: the read begins again.
        // A split may have moved the object to another PG, or the view still shows one that it will move.
        let is_in_flight = self.log.shows_in(&read.object, &request) || !self.outbox.view_is_current();
        let has_gone = self.has_gone(&read.object, &request, view);
        if is_in_flight
            || has_gone
            || !self.may_read(view)
            || !view.is_read_loaded(self.config.id, &read.object, &request)
        {
            let CopyRead { client, sequence, object, .. } = read;
            return self.enqueue(WaitingRequest::new(client, sequence, object, Waiting::Read(request)), view);
        }
        read.copies_left.pop();
        match result {
            Ok(outcome) if view.matches_checks(self.config.id, &read.object, read.offset, &payload) => {
                self.submit(Submission::Repair, read.repair(&payload, self.config.id));
                let asked = payload.slice(..payload.len().min(read.length as usize));
                self.outbox.reply_read(read.client, read.sequence, Ok(outcome), asked);
            }
            _ => self.reads.ask_next(read, &self.membership, &self.config, &mut self.outbox),
        }
    }
}
