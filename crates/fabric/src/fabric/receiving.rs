//! Bytes come in: out of messages, or read from the peer's memory.

use atoll_buffers::{BLOCK_BYTES, BlockBuffer, Received};

use crate::error::FabricError;
use crate::fabric::{Fabric, LinkId, READ_BYTES_MAX};
use crate::link::{Arrived, Link, Read, ReadTarget, Reading};
use crate::message::Reference;

impl Fabric {
    /// Returns true if [`Fabric::receive`] would return something.
    pub fn has_news(&self, id: LinkId) -> bool {
        self.links.get(&id).is_none_or(Link::has_news)
    }

    /// Takes bytes that have arrived: those of messages, about `bytes_max` at most, or those that a read has
    /// brought into the long run that `received` waits for. Gives their number; the caller looks at them before it
    /// calls again. While a read is under way, the long run is lent to it. An error says that the link is gone:
    /// [`FabricError::Ended`], that the peer has closed it and everything that came before is given out.
    pub fn receive(
        &mut self,
        id: LinkId,
        received: &mut Received,
        bytes_max: usize,
    ) -> Result<usize, FabricError> {
        let bytes = self.take_arrived(id, received, bytes_max)?;
        if self.due.remove(&id) {
            self.acknowledge(id);
        }
        Ok(bytes)
    }

    fn take_arrived(
        &mut self,
        id: LinkId,
        received: &mut Received,
        bytes_max: usize,
    ) -> Result<usize, FabricError> {
        let Some(link) = self.links.get_mut(&id) else { return Err(FabricError::Ended) };
        if let Some(failure) = link.failure.take() {
            link.is_ended = true;
            return Err(failure);
        }
        match std::mem::take(&mut link.reading) {
            Reading::Nothing => {}
            waiting @ (Reading::UnderWay | Reading::Blocked) => {
                link.reading = waiting;
                return Ok(0);
            }
            Reading::Done(read) => {
                let bytes = read.length;
                give(read, received);
                link.read_bytes += bytes;
                self.drop_if_taken(id);
                return Ok(bytes);
            }
        }
        let mut taken = 0;
        while taken < bytes_max {
            let link = self.links.get_mut(&id).expect("looked up above");
            let Some(front) = link.arrived.front_mut() else { break };
            let device = &self.devices[link.device];
            let bytes = device.receives.bytes(&front.buffer, front.end);
            received.push(&bytes[front.from..]);
            taken += front.end - front.from;
            front.from = front.end;
            if front.reference.is_some() {
                // Who waits for what is read shall first say where it goes.
                if taken == 0 {
                    self.start_read(id, received)?;
                }
                return Ok(taken);
            }
            self.drop_if_taken(id);
        }
        let link = &self.links[&id];
        if taken == 0 && link.arrived.is_empty() && link.is_ended {
            return Err(FabricError::Ended);
        }
        Ok(taken)
    }

    /// Frees the front message if everything it stands for is taken.
    fn drop_if_taken(&mut self, id: LinkId) {
        let link = self.links.get_mut(&id).expect("the caller has looked it up");
        let Some(Arrived { from, end, reference, .. }) = link.arrived.front() else { return };
        let referred = reference.map_or(0, |reference| reference.length as usize);
        if from < end || link.read_bytes < referred {
            return;
        }
        link.done += u32::from(reference.is_some());
        link.read_bytes = 0;
        let device = &mut self.devices[link.device];
        if let Some(arrived) = link.arrived.pop_front() {
            device.receives.give_back(arrived.buffer);
            link.credits.released();
        }
        let growth = link.credits.wanted_growth();
        if growth > 0 && device.extra + growth as usize <= self.settings.extra_grant_max {
            device.extra += growth as usize;
            link.credits.grow(growth);
        }
        self.due.insert(id);
    }

    /// Starts the read of the front message's reference.
    fn start_read(&mut self, id: LinkId, received: &mut Received) -> Result<(), FabricError> {
        let link = self.links.get_mut(&id).expect("the caller has looked it up");
        let reference = link.arrived.front().and_then(|arrived| arrived.reference);
        let (Some(reference), Some(endpoint)) = (reference, &link.endpoint) else { return Ok(()) };
        if link.is_ended {
            // Nobody is there to be read from.
            return Err(FabricError::Ended);
        }
        let left = (reference.length as usize - link.read_bytes).min(READ_BYTES_MAX);
        let (target, length) = match received.lend_long_run() {
            Some(mut long_run) => {
                let length = left.min(long_run.room().len());
                (ReadTarget::LongRun(long_run), length)
            }
            None => (ReadTarget::Aside(BlockBuffer::for_overwriting(left.div_ceil(BLOCK_BYTES))), left),
        };
        let from = Reference { address: reference.address + link.read_bytes as u64, ..reference };
        let read = Read { target, length, _region: None, aside: None };
        match self.devices[link.device].read(id, endpoint, read, from) {
            Ok(Ok(context)) => {
                link.operations.push(context);
                link.reading = Reading::UnderWay;
                Ok(())
            }
            Ok(Err(mut read)) => {
                read.length = 0;
                give(read, received);
                link.reading = Reading::Blocked;
                self.block(id);
                Ok(())
            }
            Err(error) => {
                link.is_ended = true;
                Err(error)
            }
        }
    }
}

/// Hands the bytes of a read to the receiver.
fn give(read: Read, received: &mut Received) {
    match read.target {
        ReadTarget::LongRun(long_run) => received.return_long_run(long_run, read.length),
        ReadTarget::Aside(buffer) => received.push(&buffer.as_slice()[..read.length]),
    }
}
