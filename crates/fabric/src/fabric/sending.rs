//! Bytes go out: copied into messages, or by reference.

use std::collections::VecDeque;

use bytes::{Buf, Bytes};

use crate::credits::GRANT_FIRST;
use crate::device::Device;
use crate::error::FabricError;
use crate::fabric::{Fabric, LinkId, REFERENCES_MAX, Settings};
use crate::link::Link;
use crate::memory::MessageBuffer;
use crate::message::{HEADER_BYTES, Head, MESSAGE_BYTES_MAX, REFERENCE_BYTES, REFERRED_BYTES_MAX, Reference};

/// The next message from the front of a queue.
enum Piece {
    /// This many bytes of it are copied.
    Copied(usize),
    /// It is referred to.
    Referred,
    /// It waits: for the next message, or for the peer to read.
    Waiting,
}

impl Fabric {
    /// Takes bytes off the front of `queue` as far as there is room for them; gives their number. An error says that
    /// the link is gone.
    pub fn send(&mut self, id: LinkId, queue: &mut VecDeque<Bytes>) -> Result<usize, FabricError> {
        if self.links.get(&id).is_some_and(|link| link.is_ended && link.failure.is_none()) {
            // Nobody is there to read it. What has come before the end is still given out.
            return Ok(queue.drain(..).map(|piece| piece.len()).sum());
        }
        let mut taken = 0;
        while !queue.is_empty() && self.may_send(id)? {
            let link = self.links.get_mut(&id).expect("looked up above");
            let device = &mut self.devices[link.device];
            let Some(mut buffer) = device.sends.take() else {
                self.block(id);
                break;
            };
            let (end, reference, bytes) = fill(link, device, &mut buffer, queue, &self.settings);
            if bytes == 0 {
                self.devices[self.links[&id].device].sends.give_back(buffer);
                break;
            }
            taken += bytes;
            self.send_message(id, buffer, end, reference)?;
        }
        Ok(taken)
    }

    fn parts(&mut self, id: LinkId) -> (&mut Link, &mut Device) {
        let link = self.links.get_mut(&id).expect("the caller has looked it up");
        let device = &mut self.devices[link.device];
        (link, device)
    }

    /// Returns true if a message with bytes may be sent now.
    fn may_send(&mut self, id: LinkId) -> Result<bool, FabricError> {
        let Some(link) = self.links.get_mut(&id) else { return Err(FabricError::Ended) };
        if let Some(failure) = link.failure.take() {
            link.is_ended = true;
            return Err(failure);
        }
        Ok(link.is_open() && link.to_send.is_none() && link.credits.may_send() && self.has_send_room(id))
    }

    fn has_send_room(&self, id: LinkId) -> bool {
        let link = &self.links[&id];
        // One operation of the endpoint is left for a read.
        link.sends + 1 < self.devices[link.device].sizes.transmits
    }

    /// Returns true if [`Fabric::send`] would take something, as far as known without looking at the bytes.
    pub fn has_room(&self, id: LinkId) -> bool {
        let Some(link) = self.links.get(&id) else { return true };
        let is_waiting_for_peer = link.referred.len() >= REFERENCES_MAX || link.is_waiting;
        link.failure.is_some()
            || (link.is_open()
                && link.to_send.is_none()
                && link.credits.may_send()
                && self.has_send_room(id)
                && !is_waiting_for_peer
                && self.devices[link.device].sends.available() > 0)
    }

    /// Bytes that the peer is to read and has not read yet.
    pub fn referred_bytes(&self, id: LinkId) -> usize {
        self.links.get(&id).map_or(0, |link| link.referred_bytes)
    }

    /// Puts the head to the bytes in `buffer`, and sends the message.
    fn send_message(
        &mut self,
        id: LinkId,
        mut buffer: MessageBuffer,
        end: usize,
        reference: Option<Reference>,
    ) -> Result<(), FabricError> {
        let credits = self.grant(id);
        let (link, device) = self.parts(id);
        let head = Head {
            token: link.token_of_peer,
            credits: credits as u16,
            done: std::mem::take(&mut link.done),
            reference,
        };
        let length = head.encode(device.sends.bytes_mut(&mut buffer), end);
        link.credits.sent(credits);
        link.to_send = Some((buffer, length));
        self.send_made(id)
    }

    /// Sends the message that is made, or leaves it for later.
    fn send_made(&mut self, id: LinkId) -> Result<(), FabricError> {
        let (link, device) = self.parts(id);
        let (Some(endpoint), Some((buffer, length))) = (&link.endpoint, link.to_send.take()) else {
            return Ok(());
        };
        match device.send(id, endpoint, buffer, length) {
            Ok(Ok(context)) => {
                link.operations.push(context);
                link.sends += 1;
                Ok(())
            }
            Ok(Err(buffer)) => {
                link.to_send = Some((buffer, length));
                self.block(id);
                Ok(())
            }
            Err(error) => {
                link.is_ended = true;
                self.fail(id, FabricError::Ended, &mut Vec::new());
                Err(error)
            }
        }
    }

    /// Grants the peer its due credits, and posts receives for them; returns their number.
    fn grant(&mut self, id: LinkId) -> u32 {
        let granted = self.could_grant(id);
        let (_, device) = self.parts(id);
        if device.shared.is_some() {
            device.granted += granted as usize;
        }
        granted
    }

    /// Returns the credits that the peer could be granted: its due, as far as there are receives.
    fn could_grant(&mut self, id: LinkId) -> u32 {
        match self.grantable(id) {
            0 => 0,
            count => count.min(self.post_receives(id, count)),
        }
    }

    /// Returns the credits that the peer may have: beyond its first grant at most as many as leave all other links
    /// theirs. A busy link keeps its grant when it is idle, and the others could never send again.
    fn grantable(&mut self, id: LinkId) -> u32 {
        let credits = &self.links[&id].credits;
        let (owed, first) = (credits.owed(), credits.first_missing());
        let most = self.links.len() * GRANT_FIRST as usize + owed as usize;
        if owed <= first || self.devices[self.links[&id].device].receives.has_plenty(most) {
            return owed;
        }
        let of_others = self.first_missing_of_others(id);
        let free = self.free_receives(id, of_others + owed as usize);
        let beyond = free.saturating_sub(of_others + first as usize);
        first + (owed - first).min(u32::try_from(beyond).unwrap_or(u32::MAX))
    }

    /// Messages of first grants that peers of the other links of its device could not send now.
    fn first_missing_of_others(&self, id: LinkId) -> usize {
        let device = self.links[&id].device;
        let others = self.links.iter().filter(|(other, link)| **other != id && link.device == device);
        others.map(|(_, link)| link.credits.first_missing() as usize).sum()
    }

    /// Returns the number of receives that are not promised to a peer, up to `wanted`.
    fn free_receives(&mut self, id: LinkId, wanted: usize) -> usize {
        let (link, device) = self.parts(id);
        let posted = match device.shared {
            Some(_) => device.posted.saturating_sub(device.granted),
            None => link.posted.saturating_sub(link.credits.outstanding()) as usize,
        };
        posted + device.receives.make_free(wanted.saturating_sub(posted))
    }

    /// Posts receives for `count` messages beyond those that were granted; gives for how many there are some.
    fn post_receives(&mut self, id: LinkId, count: u32) -> u32 {
        let (link, device) = self.parts(id);
        if device.shared.is_some() {
            let wanted = device.granted + count as usize;
            return (device.post_shared(wanted).saturating_sub(device.granted)) as u32;
        }
        let Some(endpoint) = &link.endpoint else { return 0 };
        while link.posted < link.credits.outstanding() + count {
            let Some(buffer) = device.receives.take() else { break };
            let Some(context) = device.post(Some((id, endpoint)), buffer) else { break };
            link.operations.push(context);
            link.posted += 1;
        }
        link.posted.saturating_sub(link.credits.outstanding())
    }

    /// Posts receives for the first grant of a new link; false if there is no memory for them.
    pub(super) fn has_receives(&mut self, id: LinkId) -> bool {
        self.post_receives(id, 0);
        let of_others = self.first_missing_of_others(id);
        if self.free_receives(id, of_others) < of_others {
            return false;
        }
        let link = &self.links[&id];
        let device = &self.devices[link.device];
        match device.shared {
            Some(_) => device.posted >= device.granted,
            None => link.posted >= link.credits.outstanding(),
        }
    }

    /// Sends the prepared message, and the acknowledgements that the peer waits for, if there are enough.
    pub(super) fn acknowledge(&mut self, id: LinkId) {
        let Some(link) = self.links.get(&id).filter(|link| link.is_open() && !link.is_ended) else { return };
        if link.to_send.is_some() {
            // A failure is kept for the user of the link.
            let _ = self.send_made(id);
        }
        let Some(link) = self.links.get(&id).filter(|link| link.is_open()) else { return };
        let (must_return, tells_done) = (link.credits.must_return(), link.done > 0 && link.credits.may_send());
        if link.to_send.is_some() || !(must_return || tells_done) {
            return;
        }
        if !tells_done {
            // Without memory for receives there is nothing to give back, and the credit is kept until there is.
            let granted = self.could_grant(id);
            if !self.links[&id].credits.may_return(granted) {
                return self.block(id);
            }
        }
        let buffer = if self.has_send_room(id) { self.parts(id).1.sends.take() } else { None };
        match buffer {
            Some(buffer) => {
                let _ = self.send_message(id, buffer, HEADER_BYTES, None);
            }
            None => self.block(id),
        }
    }
}

/// Fills a message with bytes off the front of `queue`. Returns their end in the message, the reference after
/// them, and the number of taken bytes in all.
fn fill(
    link: &mut Link,
    device: &mut Device,
    buffer: &mut MessageBuffer,
    queue: &mut VecDeque<Bytes>,
    settings: &Settings,
) -> (usize, Option<Reference>, usize) {
    let (mut at, mut taken) = (HEADER_BYTES, 0);
    while let Some(front) = queue.front_mut() {
        match piece(link, device, front, at, settings) {
            Piece::Copied(bytes) => {
                device.sends.bytes_mut(buffer)[at..at + bytes].copy_from_slice(&front[..bytes]);
                front.advance(bytes);
                link.copied_bytes = link.copied_bytes.saturating_sub(bytes);
                at += bytes;
                taken += bytes;
            }
            Piece::Waiting => break,
            Piece::Referred => {
                let part = front.split_to(front.len().min(REFERRED_BYTES_MAX));
                let bytes = part.len();
                match device.refer(part) {
                    Ok((referred, reference)) => {
                        link.referred_bytes += bytes;
                        link.referred.push_back(referred);
                        if front.is_empty() {
                            queue.pop_front();
                        }
                        return (at, Some(reference), taken + bytes);
                    }
                    Err(part) => {
                        // What cannot be registered is copied; it is not tried again for each message.
                        link.copied_bytes = bytes;
                        if front.is_empty() {
                            *front = part;
                        } else {
                            queue.push_front(part);
                        }
                        continue;
                    }
                }
            }
        }
        if queue.front().is_some_and(Bytes::is_empty) {
            queue.pop_front();
        }
        if at == MESSAGE_BYTES_MAX {
            break;
        }
    }
    (at, None, taken)
}

fn piece(link: &mut Link, device: &Device, front: &Bytes, at: usize, settings: &Settings) -> Piece {
    let copied = Piece::Copied(front.len().min(MESSAGE_BYTES_MAX - at));
    if front.len() < settings.reference_bytes_min || link.copied_bytes > 0 {
        return copied;
    }
    let length = front.len().min(REFERRED_BYTES_MAX);
    if device.referred_bytes + length > settings.referred_bytes_total_max {
        link.copied_bytes = length;
        return copied;
    }
    let is_much =
        link.referred.len() >= REFERENCES_MAX || link.referred_bytes + length > settings.referred_bytes_max;
    link.is_waiting = is_much && !link.referred.is_empty();
    if link.is_waiting || at + REFERENCE_BYTES > MESSAGE_BYTES_MAX { Piece::Waiting } else { Piece::Referred }
}
