//! Reading another member's copy of a damaged range, and repairing the damage.

use atoll_buffers::BLOCK_BYTES;
use atoll_types::{Epoch, Mutation, ObjectName, OsdId, ReadOutcome, ReadRequest, Refusal, Transaction};
use atoll_wire::Message;
use bytes::Bytes;

use crate::actions::{Action, ClientId, Lookup, ObjectView, Token};
use crate::group::Pg;
use crate::replication::queue::{Waiting, WaitingRequest};
use crate::replication::reads::ReadPurpose;
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

impl Pg {
    /// Reads for another member. Such a read waits for no write, because the other member checks
    /// the data.
    pub(crate) fn read_when_loaded(
        &mut self,
        purpose: ReadPurpose,
        object: ObjectName,
        request: ReadRequest,
        view: &impl ObjectView,
    ) {
        let token = self.outbox.token();
        if view.is_read_loaded(self.config.id, &object, &request) {
            self.reads.begin(token, purpose);
            return self.outbox.push(Action::Read { token, object, request });
        }
        self.reads.begin_after_load(token, purpose, object.clone(), request.clone());
        self.outbox.push(Action::Load { token, lookup: Lookup::Read { object, request } });
    }

    pub(crate) fn read_next_copy(&mut self, mut read: CopyRead) {
        read.copies_left.retain(|member| self.membership.is_reachable(*member));
        let Some(member) = read.copies_left.pop() else {
            let detail = format!("blocks {:?} of '{}'", read.damaged_blocks, read.object);
            let refusal = Refusal::Corrupt { detail };
            return self.outbox.reply_read(read.client, read.sequence, Err(refusal), Bytes::new());
        };
        let Token(tag) = self.outbox.token();
        read.epoch = self.config.record.epoch;
        let message = Message::CopyRead {
            pg: self.config.id,
            epoch: self.config.record.epoch,
            tag,
            object: read.object.clone(),
            offset: read.offset,
            // Checksums are of whole blocks.
            length: read.length.next_multiple_of(BLOCK_BYTES as u32),
        };
        // The member that was asked stays at the end of the list, in case it goes away.
        read.copies_left.push(member);
        self.reads.begin_of_copy(tag, read);
        self.outbox.send(member, message);
    }

    /// A member is out of reach: reads that wait for its copy ask the next one.
    pub(crate) fn give_up_copy_reads(&mut self, member: OsdId) {
        for mut read in self.reads.take_asked_of(member) {
            read.copies_left.retain(|other| *other != member);
            self.read_next_copy(read);
        }
    }

    /// Another member's copy of a damaged range has come.
    pub(crate) fn copy_reply(
        &mut self,
        epoch: Epoch,
        tag: u64,
        result: Result<ReadOutcome, Refusal>,
        payload: Bytes,
        view: &impl ObjectView,
    ) {
        if epoch == self.config.record.epoch
            && self.shard_read(tag, result.clone().map(|outcome| (outcome, payload.clone())), view)
        {
            return;
        }
        let Some(mut read) = self.reads.of_copy_answered(tag, epoch) else { return };
        let request = ReadRequest::Data { offset: read.offset, length: read.length };
        // The copy may contain a newer write that is not committed, or the checksums are not in
        // memory any more: the read begins again.
        // The view may still show an object that a split just ordered moves to another PG.
        let is_in_flight = self.log.shows_in(&read.object, &request) || !self.outbox.view_is_current();
        if is_in_flight || !self.may_read(view) || !view.is_read_loaded(self.config.id, &read.object, &request) {
            let CopyRead { client, sequence, object, .. } = read;
            return self.enqueue(WaitingRequest::new(client, sequence, object, Waiting::Read(request)), view);
        }
        read.copies_left.pop();
        match result {
            Ok(outcome) if view.matches_checks(self.config.id, &read.object, read.offset, &payload) => {
                self.repair(&read, &payload);
                let asked = payload.slice(..payload.len().min(read.length as usize));
                self.outbox.reply_read(read.client, read.sequence, Ok(outcome), asked);
            }
            _ => self.read_next_copy(read),
        }
    }

    /// Writes the damaged blocks again, from a copy that fits this copy's checksums.
    fn repair(&mut self, read: &CopyRead, data: &Bytes) {
        let mut payload = Vec::new();
        let mut mutations = Vec::new();
        for block in &read.damaged_blocks {
            let offset = u64::from(*block) * BLOCK_BYTES as u64;
            let start = (offset - read.offset) as usize;
            let end = (start + BLOCK_BYTES).min(data.len());
            if start < end {
                payload.extend_from_slice(&data[start..end]);
                mutations.push(Mutation::Write { offset, length: (end - start) as u32, seals: None });
            }
        }
        let transaction = Transaction {
            pg: self.config.id,
            object: read.object.clone(),
            mutations,
            payload: payload.into(),
            payload_sealed: false,
            log: Vec::new(),
        };
        self.submit(Submission::Repair, transaction);
    }
}
