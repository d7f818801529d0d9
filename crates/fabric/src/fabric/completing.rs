//! Operations complete.

use crate::device::Operation;
use crate::error::FabricError;
use crate::fabric::{Event, Fabric, LinkId};
use crate::link::{Arrived, Link, Reading, Stage};
use crate::memory::MessageBuffer;
use crate::message::{HEADER_BYTES, Head};
use crate::sys::Completion;

/// Result of a look at completions.
#[derive(Default)]
pub(super) struct Taken {
    pub count: usize,
    /// There may be room for waiting sends.
    pub makes_room: bool,
}

impl Fabric {
    /// Takes completed operations.
    pub(super) fn take_completions(&mut self, events: &mut Vec<Event>) -> Taken {
        let mut taken = Taken::default();
        let mut completions = std::mem::take(&mut self.completions);
        for index in 0..self.devices.len() {
            while let Some(queue) = self.devices[index].completions.clone() {
                let has_more = queue.read(&mut completions).unwrap_or_else(|error| {
                    self.fail_device(index, &error, events);
                    false
                });
                taken.count += completions.len();
                for completion in completions.drain(..) {
                    taken.makes_room |= self.completed(index, completion, events);
                }
                if !has_more {
                    break;
                }
            }
        }
        self.completions = completions;
        taken
    }

    /// True for sends and reads, for which others may wait.
    fn completed(&mut self, index: usize, completion: Completion, events: &mut Vec<Event>) -> bool {
        let Completion { context, result } = completion;
        let Some(operation) = self.devices[index].take(context) else { return true };
        let is_room_made = !matches!(operation, Operation::Receive { .. });
        match operation {
            Operation::Send { link: id, buffer } => {
                self.devices[index].sends.give_back(buffer);
                let link = self.end_operation(id, context);
                link.sends -= 1;
                match result {
                    Ok(_) => {
                        self.due.insert(id);
                        self.changed.insert(id);
                    }
                    Err(error) => self.fail(id, error, events),
                }
            }
            Operation::Receive { link: None, buffer } => {
                self.devices[index].posted -= 1;
                match result {
                    Ok(length) => self.arrived_somewhere(index, buffer, length, events),
                    // The link whose message it was to be tells of its end by itself.
                    Err(_) => self.post_again(index, buffer),
                }
            }
            Operation::Receive { link: Some(id), buffer } => {
                let link = self.end_operation(id, context);
                link.posted -= 1;
                match result {
                    Ok(length) => self.arrived(id, buffer, length, events),
                    Err(error) => {
                        self.devices[index].receives.give_back(buffer);
                        self.receive_failed(id, error, events);
                    }
                }
            }
            Operation::Read { link: id, mut read } => {
                self.devices[index].end_read(&mut read, result.is_ok());
                let link = self.end_operation(id, context);
                link.reading = Reading::Nothing;
                match result {
                    Ok(_) => {
                        link.reading = Reading::Done(read);
                        self.changed.insert(id);
                    }
                    Err(error) => self.fail(id, error, events),
                }
            }
        }
        is_room_made
    }

    /// The link of an operation that is complete. Operations of closed links are forgotten when those are closed.
    fn end_operation(&mut self, id: LinkId, context: u64) -> &mut Link {
        let link = self.links.get_mut(&id).expect("operations are forgotten with their link");
        link.operations.retain(|other| *other != context);
        link
    }

    /// A receive of a link's own ends without a message: the link has ended, or fails.
    fn receive_failed(&mut self, id: LinkId, error: FabricError, events: &mut Vec<Event>) {
        let is_end = matches!(&error, FabricError::Failed { code: libc::ECANCELED, .. });
        match self.links.get_mut(&id) {
            Some(link) if is_end && link.stage == Stage::Open => {
                link.is_ended = true;
                self.changed.insert(id);
            }
            _ => self.fail(id, error, events),
        }
    }

    fn post_again(&mut self, index: usize, buffer: MessageBuffer) {
        let device = &mut self.devices[index];
        if device.post(None, buffer).is_some() {
            device.posted += 1;
        }
    }

    /// A message has arrived by a shared receive. It says itself whose it is.
    fn arrived_somewhere(&mut self, index: usize, buffer: MessageBuffer, length: usize, events: &mut Vec<Event>) {
        let token = Head::token_of(self.devices[index].receives.bytes(&buffer, length));
        match token.and_then(|token| self.by_token.get(&token).copied()) {
            Some(id) if self.links[&id].device == index => self.arrived(id, buffer, length, events),
            // Of a link that is closed, or of a peer that makes things up.
            _ => self.post_again(index, buffer),
        }
    }

    fn arrived(&mut self, id: LinkId, buffer: MessageBuffer, length: usize, events: &mut Vec<Event>) {
        let link = self.links.get_mut(&id).expect("the caller has looked it up");
        let device = &mut self.devices[link.device];
        let decoded = Head::decode(device.receives.bytes(&buffer, length));
        let checked = decoded.and_then(|(head, end)| {
            if head.token != link.own_token {
                return Err(FabricError::Peer("a message has a token that is not this link's".into()));
            }
            link.credits.arrived()?;
            if device.shared.is_some() {
                device.granted -= 1;
            }
            link.credits.granted(head.credits.into())?;
            if head.done as usize > link.referred.len() {
                return Err(FabricError::Peer(format!(
                    "it has read {} references that it was not given",
                    head.done
                )));
            }
            for referred in link.referred.drain(..head.done as usize) {
                link.referred_bytes -= referred.length();
                device.referred_bytes -= referred.length();
                link.is_waiting = false;
            }
            Ok((head, end))
        });
        let (head, end) = match checked {
            Ok(checked) => checked,
            Err(error) => {
                device.receives.give_back(buffer);
                let index = link.device;
                self.fail(id, error, events);
                // It may have taken a receive that was for another link.
                let device = &mut self.devices[index];
                if device.shared.is_some() {
                    device.post_shared(device.granted);
                }
                return;
            }
        };
        let has_bytes = end > HEADER_BYTES || head.reference.is_some();
        if has_bytes && !matches!(link.stage, Stage::Finishing(_)) {
            link.arrived.push_back(Arrived { buffer, from: HEADER_BYTES, end, reference: head.reference });
        } else {
            device.receives.give_back(buffer);
            link.credits.released();
        }
        self.due.insert(id);
        self.changed.insert(id);
    }
}
