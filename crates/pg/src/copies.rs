//! Reading another member's copy of a damaged range, and mending the damage.

use atoll_base::{
    BLOCK_BYTES, Epoch, Mutation, ObjectName, OsdId, ReadOutcome, ReadRequest, Refusal, Transaction,
};
use atoll_wire::Message;
use bytes::Bytes;

use crate::actions::{Action, ClientId, Lookup, ObjectView, Token};
use crate::group::{Pg, ReadPurpose};
use crate::submissions::Submission;
use crate::waiting::{Waiting, WaitingRequest};

/// A read of a damaged range that goes from copy to copy.
pub(crate) struct CopyRead {
    /// The epoch under which it was asked for; the answer repeats it.
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
    /// Reads for another member. It keeps no order with anything, because the other member checks
    /// what it gets.
    pub(crate) fn read_when_loaded(
        &mut self,
        purpose: ReadPurpose,
        object: ObjectName,
        request: ReadRequest,
        view: &impl ObjectView,
    ) {
        let token = self.token();
        if view.is_read_loaded(self.id, &object, &request) {
            self.reads.insert(token, purpose);
            return self.actions.push_back(Action::Read { token, object, request });
        }
        self.copies_loading.insert(token, (purpose, object.clone(), request.clone()));
        self.actions.push_back(Action::Load { token, lookup: Lookup::Read { object, request } });
    }

    pub(crate) fn read_next_copy(&mut self, mut read: CopyRead) {
        read.copies_left.retain(|member| self.membership.is_reachable(*member));
        let Some(member) = read.copies_left.pop() else {
            let detail = format!("blocks {:?} of '{}'", read.damaged_blocks, read.object);
            let refusal = Refusal::Corrupt { detail };
            return self.reply_read(read.client, read.sequence, Err(refusal), Bytes::new());
        };
        let Token(tag) = self.token();
        read.epoch = self.record.epoch;
        let message = Message::CopyRead {
            pg: self.id,
            epoch: self.record.epoch,
            tag,
            object: read.object.clone(),
            offset: read.offset,
            // Whole blocks, because checks are of whole blocks.
            length: read.length.next_multiple_of(BLOCK_BYTES as u32),
        };
        // Whom it went to is kept at the end of the list, for when that member goes away.
        read.copies_left.push(member);
        self.copy_reads.insert(tag, read);
        self.send(member, message);
    }

    /// A member went away; reads that wait for its copy go on to the next.
    pub(crate) fn give_up_copy_reads(&mut self, member: OsdId) {
        let waiting = self.copy_reads.extract_if(.., |_, read| read.copies_left.last() == Some(&member));
        for (_, mut read) in waiting.collect::<Vec<_>>() {
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
        if epoch == self.record.epoch
            && self.shard_read(tag, result.clone().map(|outcome| (outcome, payload.clone())), view)
        {
            return;
        }
        // Tags start anew with the process; an epoch does not come back.
        if self.copy_reads.get(&tag).is_none_or(|read| read.epoch != epoch) {
            return;
        }
        let Some(mut read) = self.copy_reads.remove(&tag) else { return };
        let request = ReadRequest::Data { offset: read.offset, length: read.length };
        // The copy may hold a newer write that is not committed, or there is nothing in memory to
        // check it against: read again from the start.
        let is_in_flight = self.in_flight.iter().any(|write| write.shows_in(&read.object, &request));
        if is_in_flight || !self.may_read(view) || !view.is_read_loaded(self.id, &read.object, &request) {
            let CopyRead { client, sequence, object, .. } = read;
            return self.enqueue(WaitingRequest::new(client, sequence, object, Waiting::Read(request)), view);
        }
        read.copies_left.pop();
        match result {
            Ok(outcome) if view.matches_checks(self.id, &read.object, read.offset, &payload) => {
                self.repair(&read, &payload);
                let asked = payload.slice(..payload.len().min(read.length as usize));
                self.reply_read(read.client, read.sequence, Ok(outcome), asked);
            }
            _ => self.read_next_copy(read),
        }
    }

    /// Writes the damaged blocks anew from a copy that passed this copy's checks.
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
            pg: self.id,
            object: read.object.clone(),
            mutations,
            payload: payload.into(),
            payload_sealed: false,
            log: Vec::new(),
        };
        self.submit(Submission::Repair, transaction);
    }
}
