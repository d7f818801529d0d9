//! Credits: the number of messages that each side may send. A message needs a buffer that the receiver has posted,
//! so a sender has at most as many under way as it was granted. Grants go with messages.
//!
//! The last credit of a side is kept for a message that gives at least [`RETURN_MIN`] credits back. So two sides that
//! both have much to send never wait for each other: a side that spends its last credit grants the other two at least.

use crate::error::FabricError;
use crate::message::CREDITS_MAX;

/// Messages that a new link grants.
pub const GRANT_FIRST: u32 = 4;
/// Messages that a busy link grants.
pub const GRANT_MAX: u32 = 32;
/// Fewer are not given back by a message of their own.
const RETURN_MIN: u32 = 2;

/// The state of both directions of one link, from one side.
#[derive(Debug)]
pub struct Credits {
    /// Messages that this side may send.
    available: u32,
    /// Messages that the peer may still send, or that are under way.
    outstanding: u32,
    /// Messages that have arrived and whose buffers are not free yet.
    held: u32,
    /// Messages that the peer may have in all.
    target: u32,
}

impl Credits {
    /// Returns the credits of a link whose peer was granted [`GRANT_FIRST`] messages.
    pub fn new() -> Self {
        Credits { available: 0, outstanding: GRANT_FIRST, held: 0, target: GRANT_FIRST }
    }

    /// Returns true if a message with bytes may be sent.
    pub fn may_send(&self) -> bool {
        self.available >= 2
    }

    /// Returns true if a message that only returns credits is due and may be sent.
    pub fn must_return(&self) -> bool {
        self.available >= 1 && self.owed() >= RETURN_MIN.max(self.target / 2)
    }

    /// Returns true if a message without bytes that returns `granted` credits may be sent. One that gives fewer
    /// would be spent for nothing, and the last one must not be.
    pub fn may_return(&self, granted: u32) -> bool {
        self.available >= 1 && granted >= RETURN_MIN
    }

    /// Returns the number of credits that could be granted now.
    pub fn owed(&self) -> u32 {
        self.target.saturating_sub(self.outstanding + self.held)
    }

    /// Returns the number of messages of the first grant that the peer could not send now, although none of its
    /// own is held up.
    pub fn first_missing(&self) -> u32 {
        GRANT_FIRST.saturating_sub(self.outstanding + self.held)
    }

    /// Notes a sent message that grants `granted` credits.
    pub fn sent(&mut self, granted: u32) {
        assert!(self.available > 0 && granted <= self.owed(), "only messages that may be sent are sent");
        assert!(self.available > 1 || granted >= RETURN_MIN, "the last credit gives the peer some");
        self.available -= 1;
        self.outstanding += granted;
    }

    /// The peer has granted more.
    pub fn granted(&mut self, credits: u32) -> Result<(), FabricError> {
        self.available += credits;
        match self.available > CREDITS_MAX {
            true => Err(FabricError::Peer(format!("it grants {} messages", self.available))),
            false => Ok(()),
        }
    }

    /// A message has arrived; an error if the peer was not granted it.
    pub fn arrived(&mut self) -> Result<(), FabricError> {
        if self.outstanding == 0 {
            return Err(FabricError::Peer("it sends more messages than it was granted".into()));
        }
        self.outstanding -= 1;
        self.held += 1;
        Ok(())
    }

    /// The buffer of a message is free again.
    pub fn released(&mut self) {
        self.held -= 1;
    }

    /// Messages that the peer may still send, or that are under way.
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Returns the peer's credits above [`GRANT_FIRST`].
    pub fn extra(&self) -> u32 {
        self.target - GRANT_FIRST
    }

    /// Returns the growth of the target after a message is taken: the peer has used most of its credits.
    pub fn wanted_growth(&self) -> u32 {
        let is_short = self.outstanding <= self.target / 4 && self.target < GRANT_MAX;
        if is_short { self.target.min(GRANT_MAX - self.target) } else { 0 }
    }

    /// Raises the peer's credits.
    pub fn grow(&mut self, by: u32) {
        self.target += by;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use rand_xoshiro::Xoshiro256StarStar;
    use rand_xoshiro::rand_core::{RngCore, SeedableRng};

    use super::*;

    /// One side with work, and the messages under way to it: the credits that each brings.
    struct Side {
        credits: Credits,
        to_send: u32,
        arriving: VecDeque<u32>,
        unread: u32,
    }

    impl Side {
        fn new(to_send: u32) -> Self {
            let mut credits = Credits::new();
            credits.granted(GRANT_FIRST).unwrap();
            Side { credits, to_send, arriving: VecDeque::new(), unread: 0 }
        }

        /// Sends one message if it may; the credits in it.
        fn send(&mut self) -> Option<u32> {
            self.send_with(GRANT_MAX)
        }

        /// The same, with memory for `memory` receives.
        fn send_with(&mut self, memory: u32) -> Option<u32> {
            let granted = self.credits.owed().min(memory);
            let has_bytes = self.to_send > 0 && self.credits.may_send();
            let returns = self.credits.must_return() && self.credits.may_return(granted);
            if !has_bytes && !returns {
                return None;
            }
            self.to_send -= u32::from(has_bytes);
            self.credits.sent(granted);
            Some(granted)
        }
    }

    #[test]
    fn two_sides_with_much_to_send_never_wait_for_each_other() {
        for seed in 0..200 {
            let mut random = Xoshiro256StarStar::seed_from_u64(seed);
            let mut sides = [Side::new(random.next_u32() % 300), Side::new(random.next_u32() % 300)];
            let mut idle = 0;
            while idle < 100 {
                let side = (random.next_u32() % 2) as usize;
                let before = (sides[0].to_send, sides[1].to_send);
                match random.next_u32() % 3 {
                    0 => {
                        if let Some(credits) = sides[side].send() {
                            sides[1 - side].arriving.push_back(credits);
                            idle = 0;
                        }
                    }
                    1 => {
                        if let Some(credits) = sides[side].arriving.pop_front() {
                            sides[side].credits.arrived().unwrap();
                            sides[side].credits.granted(credits).unwrap();
                            sides[side].unread += 1;
                            idle = 0;
                        }
                    }
                    _ => {
                        if sides[side].unread > 0 {
                            sides[side].unread -= 1;
                            sides[side].credits.released();
                            let growth = sides[side].credits.wanted_growth();
                            sides[side].credits.grow(growth);
                            idle = 0;
                        }
                    }
                }
                idle += u32::from(before == (sides[0].to_send, sides[1].to_send));
                let under_way = |from: usize| sides[1 - from].arriving.len() as u32;
                for from in 0..2 {
                    let receiver = &sides[1 - from].credits;
                    let promised: u32 = sides[from].arriving.iter().sum();
                    assert_eq!(receiver.outstanding, sides[from].credits.available + promised + under_way(from));
                    assert!(receiver.outstanding + receiver.held <= GRANT_MAX);
                }
            }
            assert_eq!((sides[0].to_send, sides[1].to_send), (0, 0), "seed {seed}");
        }
    }

    /// Memory for receives runs out on both sides, and comes back: messages in between bring the peer no credits,
    /// and neither side spends its last credit on one.
    #[test]
    fn sides_that_ran_out_of_memory_speak_again_when_there_is_some() {
        for seed in 0..200 {
            let mut random = Xoshiro256StarStar::seed_from_u64(seed);
            let mut sides = [Side::new(200), Side::new(200)];
            for step in 0..20_000 {
                let side = (random.next_u32() % 2) as usize;
                // For a while there is none, then little, then enough.
                let memory = [0, random.next_u32() % 2, GRANT_MAX][(step / 500).min(2)];
                if let Some(credits) = sides[side].send_with(memory) {
                    sides[1 - side].arriving.push_back(credits);
                }
                if let Some(credits) = sides[side].arriving.pop_front() {
                    sides[side].credits.arrived().unwrap();
                    sides[side].credits.granted(credits).unwrap();
                    sides[side].credits.released();
                    let growth = sides[side].credits.wanted_growth();
                    sides[side].credits.grow(growth);
                }
            }
            assert_eq!((sides[0].to_send, sides[1].to_send), (0, 0), "seed {seed}");
        }
    }

    #[test]
    fn a_peer_that_takes_or_gives_too_much_is_found_out() {
        let mut credits = Credits::new();
        for _ in 0..GRANT_FIRST {
            credits.arrived().unwrap();
        }
        assert!(credits.arrived().unwrap_err().to_string().contains("more messages than it was granted"));
        assert!(credits.granted(CREDITS_MAX).is_ok());
        assert!(credits.granted(1).is_err());
    }
}
