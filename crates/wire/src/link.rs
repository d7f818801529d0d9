//! One end of one connection: the handshake, then messages in frames. The shell feeds received bytes and sends the
//! queue.

use std::collections::VecDeque;

use atoll_buffers::Received;
use atoll_codec::{CodecError, Writer};
use atoll_types::frames::FrameMode;
use bytes::Bytes;

use crate::frame::{FrameDecoder, FrameEncoder, FrameError, PayloadSeal, SendQueue};
use crate::handshake::{Handshake, HandshakeError, HandshakeInput, KeyPair, PublicKey, SessionKeys};
use crate::invariants;
use crate::messages::{Message, Messages};

/// Why a connection must be closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The handshake failed.
    #[error("handshake: {0}")]
    Handshake(#[from] HandshakeError),
    /// Bytes that are not a frame, or a frame whose check does not fit.
    #[error("frame: {0}")]
    Frame(#[from] FrameError),
    /// A frame that does not hold a message.
    #[error("message: {0}")]
    Message(#[from] CodecError),
}

/// Results of received bytes.
#[derive(Debug)]
pub enum LinkInput {
    /// A peer wants to open this link: check that the key is authorised, and [`Link::answer`] or close. Only the
    /// side that was connected to sees this.
    Asked {
        /// The peer's static key.
        peer: PublicKey,
        /// The frame mode that it wants.
        mode: FrameMode,
    },
    /// The peer has answered, and so shown that it holds the key that was looked for. Only the side
    /// that connects sees this.
    Ready {
        /// The peer's static key.
        peer: PublicKey,
    },
    /// A message.
    Message(Message),
}

enum State {
    Handshaking(Box<Handshake>),
    Open(Box<Open>),
}

struct Open {
    encoder: FrameEncoder,
    decoder: FrameDecoder,
    /// Messages that go into the next frame, encoded.
    gathered: Writer,
    /// Messages of the last frame that were not taken yet.
    received: Option<Messages>,
}

/// Size of gathered messages at which a frame is made: more save nothing.
const GATHERED_BYTES_MAX: usize = 8 << 10;

impl Open {
    /// Adds a message to the next frame, and makes the frame if the message has a payload or there are many. Only
    /// the last of a frame can have a payload.
    fn send(&mut self, message: &Message, queue: &mut SendQueue) -> Result<(), FrameError> {
        let (payload, seal) = message.payload();
        let before = self.gathered.len();
        message.encode(&mut self.gathered);
        if before > 0 && self.gathered.len() > GATHERED_BYTES_MAX {
            let long = self.gathered.split_off(before);
            self.make_frame(&Bytes::new(), PayloadSeal::None, queue)?;
            self.gathered.raw(&long);
        }
        if payload.is_empty() { Ok(()) } else { self.make_frame(&payload, seal, queue) }
    }

    fn make_frame(&mut self, payload: &Bytes, seal: PayloadSeal, queue: &mut SendQueue) -> Result<(), FrameError> {
        self.encoder.encode(self.gathered.as_slice(), payload, seal, queue)?;
        self.gathered.clear();
        Ok(())
    }

    fn receive(&mut self, received: &mut Received) -> Result<Option<Message>, LinkError> {
        let messages = match &mut self.received {
            Some(messages) => messages,
            none => {
                let Some(frame) = self.decoder.decode(received)? else { return Ok(None) };
                none.insert(Messages::new(frame))
            }
        };
        let message = messages.take()?;
        self.received.take_if(|messages| messages.is_empty());
        Ok(Some(message))
    }
}

/// One end of one connection.
pub struct Link {
    state: State,
    mode: FrameMode,
    queue: SendQueue,
    /// Messages sent before the handshake was done.
    early: VecDeque<Message>,
}

impl Link {
    /// The side that connects, to the holder of `remote`. `ephemeral` must be fresh random bytes.
    pub fn initiate(local: &KeyPair, remote: &PublicKey, mode: FrameMode, ephemeral: [u8; 32]) -> Self {
        let (handshake, first) = Handshake::initiate(local, remote, mode, ephemeral);
        let mut link = Self::new(handshake, mode);
        link.queue.push_copy(&first);
        link
    }

    /// The side that was connected to. `ephemeral` must be fresh random bytes.
    pub fn respond(local: &KeyPair, ephemeral: [u8; 32]) -> Self {
        Self::new(Handshake::respond(local, ephemeral), FrameMode::default())
    }

    fn new(handshake: Handshake, mode: FrameMode) -> Self {
        let state = State::Handshaking(Box::new(handshake));
        Link { state, mode, queue: SendQueue::default(), early: VecDeque::new() }
    }

    /// Answers a peer whose key is authorised, with the frame mode that is right for it. After an error the
    /// connection must be closed, once the queue was sent: it contains the reason for the peer.
    pub fn answer(&mut self, right: FrameMode) -> Result<(), LinkError> {
        let State::Handshaking(handshake) = &mut self.state else {
            return Err(HandshakeError::OutOfTurn.into());
        };
        let (reply, keys) = handshake.answer(right);
        self.queue.push_copy(&reply);
        self.mode = right;
        self.open(&keys?)
    }

    /// The mode of the frames, once the link is open.
    pub fn mode(&self) -> FrameMode {
        self.mode
    }

    /// Changes the key of sent frames soon: the shell calls this when the key is old. The peer changes the key of
    /// its own frames.
    pub fn rekey(&mut self) {
        if let State::Open(open) = &mut self.state {
            open.encoder.rekey();
        }
    }

    /// Returns true if the handshake is done.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// Queues a message. After an error the connection must be closed.
    pub fn send(&mut self, message: Message) -> Result<(), LinkError> {
        match &mut self.state {
            State::Handshaking(_) => self.early.push_back(message),
            State::Open(open) => open.send(&message, &mut self.queue)?,
        }
        Ok(())
    }

    /// Bytes to send now. Messages without payloads that were sent since the last call share a frame. After an
    /// error the connection must be closed.
    pub fn take_output(&mut self) -> Result<VecDeque<Bytes>, LinkError> {
        if let State::Open(open) = &mut self.state
            && !open.gathered.is_empty()
        {
            open.make_frame(&Bytes::new(), PayloadSeal::None, &mut self.queue)?;
        }
        Ok(self.queue.take())
    }

    /// Returns true if there is something to send.
    pub fn has_output(&self) -> bool {
        !self.queue.is_empty() || matches!(&self.state, State::Open(open) if !open.gathered.is_empty())
    }

    /// Returns true if the frame of the last message has further messages. They are taken without further bytes.
    pub fn has_received_more(&self) -> bool {
        matches!(&self.state, State::Open(open) if open.received.is_some())
    }

    /// Returns the number of bytes that the next frame still needs, as far as known.
    pub fn missing_bytes(&self, received: &Received) -> usize {
        match &self.state {
            State::Handshaking(_) => 0,
            State::Open(open) => open.decoder.missing_bytes(received),
        }
    }

    /// Takes the next input out of `received`, or `None` if it is not there whole. After an error
    /// the connection must be closed.
    pub fn receive(&mut self, received: &mut Received) -> Result<Option<LinkInput>, LinkError> {
        match &mut self.state {
            State::Open(open) => Ok(open.receive(received)?.map(LinkInput::Message)),
            State::Handshaking(handshake) => match handshake.receive(received)? {
                HandshakeInput::Incomplete => Ok(None),
                HandshakeInput::Asked { peer, mode } => Ok(Some(LinkInput::Asked { peer, mode })),
                HandshakeInput::Done { keys, peer } => {
                    self.open(&keys)?;
                    Ok(Some(LinkInput::Ready { peer }))
                }
            },
        }
    }

    fn open(&mut self, keys: &SessionKeys) -> Result<(), LinkError> {
        invariants::a_link_opens_once(self.is_open());
        let encoder = FrameEncoder::new(self.mode, &keys.send);
        let decoder = FrameDecoder::new(self.mode, &keys.receive);
        let (gathered, received) = (Writer::default(), None);
        self.state = State::Open(Box::new(Open { encoder, decoder, gathered, received }));
        std::mem::take(&mut self.early).into_iter().try_for_each(|message| self.send(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carry(from: &mut Link, to: &mut Link) -> Vec<LinkInput> {
        let mut bytes = Received::default();
        from.take_output().unwrap().iter().for_each(|chunk| bytes.push(chunk));
        let mut inputs = Vec::new();
        while !bytes.is_empty() || to.has_received_more() {
            inputs.push(to.receive(&mut bytes).unwrap().expect("only whole messages are sent"));
        }
        inputs
    }

    #[test]
    fn messages_flow_both_ways_in_all_modes() {
        for mode in [FrameMode::Secure, FrameMode::Secure128, FrameMode::Crc] {
            let (left_key, right_key) = (KeyPair::from_private([1; 32]), KeyPair::from_private([2; 32]));
            let mut left = Link::initiate(&left_key, &right_key.public(), mode, [3; 32]);
            let mut right = Link::respond(&right_key, [4; 32]);
            left.send(Message::Ping { tag: 1 }).unwrap();
            let asked = carry(&mut left, &mut right);
            let [LinkInput::Asked { peer, mode: wanted }] = asked[..] else { panic!("{asked:?}") };
            assert!(peer == left_key.public() && wanted == mode && !right.is_open());
            right.answer(mode).unwrap();
            right.send(Message::Pong { tag: 9, room: atoll_types::Room::Enough }).unwrap();
            let answers = carry(&mut right, &mut left);
            assert!(matches!(
                answers[..],
                [LinkInput::Ready { .. }, LinkInput::Message(Message::Pong { tag: 9, .. })]
            ));
            assert_eq!((left.mode(), right.mode()), (mode, mode));
            for tag in 1..5 {
                let messages = carry(&mut left, &mut right);
                assert!(matches!(messages[..], [LinkInput::Message(Message::Ping { tag: seen })] if seen == tag));
                left.rekey();
                left.send(Message::Ping { tag: tag + 1 }).unwrap();
            }
            assert!(right.answer(mode).is_err(), "it was answered");
        }
    }

    fn opened() -> (Link, Link) {
        let (left_key, right_key) = (KeyPair::from_private([1; 32]), KeyPair::from_private([2; 32]));
        let mut left = Link::initiate(&left_key, &right_key.public(), FrameMode::Secure, [3; 32]);
        let mut right = Link::respond(&right_key, [4; 32]);
        carry(&mut left, &mut right);
        right.answer(FrameMode::Secure).unwrap();
        carry(&mut right, &mut left);
        (left, right)
    }

    fn read_reply(sequence: u64, payload: &'static [u8]) -> Message {
        let version = atoll_types::Version::default();
        let outcome = atoll_types::ReadOutcome::Data { object_bytes: 5, version, seals: None };
        Message::ReadReply {
            sequence,
            opens_seals: false,
            result: Ok(outcome),
            payload: Bytes::from_static(payload),
        }
    }

    #[test]
    fn messages_of_a_turn_share_frames_and_keep_their_order() {
        let (mut left, mut right) = opened();
        let sent = [
            Message::Ping { tag: 1 },
            Message::Ping { tag: 2 },
            read_reply(3, b"three"),
            read_reply(4, b"four"),
            Message::Ping { tag: 5 },
            read_reply(6, b""),
        ];
        sent.iter().for_each(|message| left.send(message.clone()).unwrap());
        assert!(left.has_output());
        let inputs = carry(&mut left, &mut right).into_iter();
        let received = inputs.map(|input| match input {
            LinkInput::Message(message) => message,
            input => panic!("{input:?}"),
        });
        assert!(received.eq(sent), "each message comes with its own payload");
        assert!(!left.has_output() && !right.has_received_more());

        (0..100).for_each(|tag| left.send(Message::Ping { tag }).unwrap());
        let bytes: usize = left.take_output().unwrap().iter().map(Bytes::len).sum();
        assert_eq!(bytes, 16 + 100 * 9 + 16, "one header and one check for all");
        (0..2000).for_each(|tag| left.send(Message::Ping { tag }).unwrap());
        let bytes: usize = left.take_output().unwrap().iter().map(Bytes::len).sum();
        assert_eq!(bytes, 3 * (16 + 16) + 2000 * 9, "frames are bounded");
    }

    #[test]
    fn the_peer_learns_the_right_mode() {
        let right_key = KeyPair::from_private([2; 32]);
        let left_key = KeyPair::from_private([1; 32]);
        let mut left = Link::initiate(&left_key, &right_key.public(), FrameMode::Crc, [3; 32]);
        let mut right = Link::respond(&right_key, [4; 32]);
        carry(&mut left, &mut right);
        assert!(right.answer(FrameMode::Secure).is_err() && !right.is_open());
        let mut bytes = Received::default();
        right.take_output().unwrap().iter().for_each(|chunk| bytes.push(chunk));
        let error = left.receive(&mut bytes).unwrap_err().to_string();
        assert!(error.contains("the peer wants secure frames, this side wants crc"), "{error}");
    }
}
