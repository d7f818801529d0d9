//! Transmission: requests in, replies out (section "Transmission").

use std::collections::{BTreeMap, VecDeque};

use bytes::{Buf, Bytes, BytesMut};

use super::constants::{MAGIC_REQUEST, REQUEST_HEADER_BYTES, command, command_flag, transmission_flag};
use super::{
    Action, CloseReason, ErrorCode, ExportInfo, Outcome, Progress, ProtocolError, Request, RequestId, RequestKind,
    SessionConfig, array_at, replies,
};

/// Most bytes of a refused payload that the shell is asked for at once.
const DISCARD_BYTES_MAX: usize = 64 << 10;

/// The flags of an export (section "Transmission flags").
pub(super) fn transmission_flags(export: &ExportInfo, structured_replies: bool) -> u16 {
    use transmission_flag::*;
    let mut flags = HAS_FLAGS | SEND_FLUSH | SEND_FUA;
    // FAST_ZERO is always understood, if only to be refused: the document allows that expressly, and it
    // lets a client learn the answer quickly.
    flags |= if export.read_only { READ_ONLY } else { SEND_TRIM | SEND_WRITE_ZEROES | SEND_FAST_ZERO };
    if export.multi_conn {
        flags |= CAN_MULTI_CONN;
    }
    if structured_replies {
        flags |= SEND_DF;
    }
    flags
}

/// The phase after an export was chosen.
pub(super) struct Transmission {
    export: ExportInfo,
    structured_replies: bool,
    allocation: bool,
    in_flight: BTreeMap<RequestId, InFlight>,
    payload_in_flight_bytes: u64,
    next_id: u64,
    discard: Option<Discard>,
    /// DISC has come; the session ends with the last reply.
    disconnecting: bool,
}

struct InFlight {
    cookie: u64,
    expects: Expects,
    payload_bytes: u64,
}

/// Content of a successful outcome.
enum Expects {
    Nothing,
    Data { offset: u64, length: u32 },
    Extents { length: u32, one: bool },
}

/// The payload of a refused WRITE. The refusal waits for its end because some clients take no reply to a
/// request that they are still sending.
struct Discard {
    cookie: u64,
    remaining_bytes: usize,
    refusal: Refusal,
}

struct Refusal {
    code: ErrorCode,
    message: &'static str,
}

/// A request before its payload (section "Request message").
struct Header {
    flags: u16,
    command: u16,
    cookie: u64,
    offset: u64,
    length: u32,
}

impl Header {
    fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

impl Transmission {
    pub(super) fn new(export: ExportInfo, structured_replies: bool, allocation: bool) -> Self {
        assert!(structured_replies || !allocation, "metadata contexts need structured replies");
        Transmission {
            export,
            structured_replies,
            allocation,
            in_flight: BTreeMap::new(),
            payload_in_flight_bytes: 0,
            next_id: 0,
            discard: None,
            disconnecting: false,
        }
    }

    pub(super) fn requests_in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Returns true if no request may be taken.
    pub(super) fn is_full(&self, config: &SessionConfig) -> bool {
        self.disconnecting
            || self.in_flight.len() >= config.requests_in_flight_max
            || self.payload_in_flight_bytes >= config.payload_in_flight_bytes_max
    }

    /// Takes one request out of `buffer`.
    pub(super) fn step(
        &mut self,
        config: &SessionConfig,
        buffer: &mut BytesMut,
        actions: &mut VecDeque<Action>,
    ) -> Result<Progress, CloseReason> {
        if self.discard.is_some() {
            return Ok(self.discard_payload(buffer, actions));
        }
        if buffer.len() < REQUEST_HEADER_BYTES {
            return Ok(Progress::Needs(REQUEST_HEADER_BYTES));
        }
        let magic = u32::from_be_bytes(array_at(buffer, 0));
        if magic != MAGIC_REQUEST {
            return Err(ProtocolError::RequestMagic(magic).into());
        }
        let header = Header {
            flags: u16::from_be_bytes(array_at(buffer, 4)),
            command: u16::from_be_bytes(array_at(buffer, 6)),
            cookie: u64::from_be_bytes(array_at(buffer, 8)),
            offset: u64::from_be_bytes(array_at(buffer, 16)),
            length: u32::from_be_bytes(array_at(buffer, 24)),
        };
        if header.command == command::DISC {
            buffer.advance(REQUEST_HEADER_BYTES);
            self.disconnecting = true;
            return if self.in_flight.is_empty() {
                Err(CloseReason::Disconnected)
            } else {
                Ok(Progress::Consumed)
            };
        }
        let is_write = header.command == command::WRITE;
        if is_write && header.length > config.payload_bytes_max {
            buffer.advance(REQUEST_HEADER_BYTES);
            self.refuse(
                header.cookie,
                ErrorCode::Invalid,
                "the WRITE is longer than the maximum payload",
                actions,
            );
            let (length, max) = (header.length, config.payload_bytes_max);
            return Err(ProtocolError::WriteTooLong { length, max }.into());
        }
        let payload_bytes = if is_write { header.length as usize } else { 0 };
        if let Err(refusal) = self.check(config, &header) {
            buffer.advance(REQUEST_HEADER_BYTES);
            self.discard = Some(Discard { cookie: header.cookie, remaining_bytes: payload_bytes, refusal });
            return Ok(self.discard_payload(buffer, actions));
        }
        let total = REQUEST_HEADER_BYTES + payload_bytes;
        if buffer.len() < total {
            return Ok(Progress::Needs(total));
        }
        buffer.advance(REQUEST_HEADER_BYTES);
        let data = buffer.split_to(payload_bytes).freeze();
        self.accept(&header, data, actions);
        Ok(Progress::Consumed)
    }

    fn discard_payload(&mut self, buffer: &mut BytesMut, actions: &mut VecDeque<Action>) -> Progress {
        let Some(mut discard) = self.discard.take() else { return Progress::Consumed };
        let here = discard.remaining_bytes.min(buffer.len());
        buffer.advance(here);
        discard.remaining_bytes -= here;
        if discard.remaining_bytes == 0 {
            self.refuse(discard.cookie, discard.refusal.code, discard.refusal.message, actions);
            return Progress::Consumed;
        }
        let needed = discard.remaining_bytes.min(DISCARD_BYTES_MAX);
        self.discard = Some(discard);
        Progress::Needs(needed)
    }

    /// Checks if the export can carry a request out (sections "Request types", "Error values").
    fn check(&self, config: &SessionConfig, header: &Header) -> Result<(), Refusal> {
        use command_flag::*;
        let refuse = |code, message| Err(Refusal { code, message });
        // FUA is allowed with every command, also where it means nothing (section "Command flags").
        let (flags, changes, length_max) = match header.command {
            command::READ => {
                (if self.structured_replies { FUA | DF } else { FUA }, false, config.payload_bytes_max)
            }
            command::WRITE => (FUA, true, config.payload_bytes_max),
            command::FLUSH => (FUA, false, 0),
            command::TRIM => (FUA, true, config.effect_bytes_max),
            command::WRITE_ZEROES => (FUA | NO_HOLE | FAST_ZERO, true, config.effect_bytes_max),
            command::BLOCK_STATUS if self.allocation => (FUA | REQ_ONE, false, config.effect_bytes_max),
            command::BLOCK_STATUS => return refuse(ErrorCode::Invalid, "no metadata context was negotiated"),
            command::CACHE => return refuse(ErrorCode::Invalid, "CACHE is not supported"),
            _ => return refuse(ErrorCode::Invalid, "the command is unknown"),
        };
        if header.flags & !flags != 0 {
            return refuse(ErrorCode::Invalid, "a flag is unknown or does not belong to the command");
        }
        if changes && self.export.read_only {
            return refuse(ErrorCode::NotPermitted, "the export is read-only");
        }
        if header.command == command::FLUSH && (header.offset, header.length) != (0, 0) {
            return refuse(ErrorCode::Invalid, "FLUSH takes neither offset nor length");
        }
        if header.length > length_max {
            let code = if header.command == command::READ { ErrorCode::Invalid } else { ErrorCode::Overflow };
            return refuse(code, "the length is over the maximum");
        }
        let in_range =
            header.offset.checked_add(u64::from(header.length)).is_some_and(|end| end <= self.export.size_bytes);
        if !in_range {
            let is_write = matches!(header.command, command::WRITE | command::WRITE_ZEROES);
            let code = if is_write { ErrorCode::NoSpace } else { ErrorCode::Invalid };
            return refuse(code, "the range is beyond the end of the export");
        }
        let block = config.block_bytes_min;
        if !header.offset.is_multiple_of(u64::from(block)) || !header.length.is_multiple_of(block) {
            return refuse(ErrorCode::Invalid, "the range is not aligned to the minimum block size");
        }
        if header.command == command::BLOCK_STATUS && header.length == 0 {
            // An answer needs at least one descriptor, and none may be empty.
            return refuse(ErrorCode::Invalid, "a block status request needs a length");
        }
        if header.has(FAST_ZERO) && !self.export.fast_zero {
            return refuse(ErrorCode::NotSupported, "zeroing is not faster than writing here");
        }
        Ok(())
    }

    fn accept(&mut self, header: &Header, data: Bytes, actions: &mut VecDeque<Action>) {
        let (offset, length) = (header.offset, header.length);
        if length == 0 && header.command != command::FLUSH {
            // The document leaves this open. There is nothing to do, and a content chunk may not be empty.
            self.succeed(header.cookie, actions);
            return;
        }
        let fua = header.has(command_flag::FUA);
        let (kind, expects, payload_bytes) = match header.command {
            command::READ => {
                (RequestKind::Read { offset, length }, Expects::Data { offset, length }, u64::from(length))
            }
            command::WRITE => (RequestKind::Write { offset, data, fua }, Expects::Nothing, u64::from(length)),
            command::FLUSH => (RequestKind::Flush, Expects::Nothing, 0),
            command::TRIM => (RequestKind::Trim { offset, length, fua }, Expects::Nothing, 0),
            command::WRITE_ZEROES => {
                let no_hole = header.has(command_flag::NO_HOLE);
                let fast = header.has(command_flag::FAST_ZERO);
                (RequestKind::WriteZeroes { offset, length, fua, no_hole, fast }, Expects::Nothing, 0)
            }
            command::BLOCK_STATUS => {
                let one = header.has(command_flag::REQ_ONE);
                let kind = RequestKind::BlockStatus { offset, length, one_extent: one };
                (kind, Expects::Extents { length, one }, 0)
            }
            other => unreachable!("command {other} has passed the check"),
        };
        let id = RequestId(self.next_id);
        self.next_id += 1;
        self.payload_in_flight_bytes += payload_bytes;
        self.in_flight.insert(id, InFlight { cookie: header.cookie, expects, payload_bytes });
        actions.push_back(Action::Request(Request { id, cookie: header.cookie, kind }));
    }

    /// Drops a request whose client is gone.
    pub(super) fn forget(&mut self, id: RequestId) {
        self.take(id);
    }

    fn take(&mut self, id: RequestId) -> InFlight {
        let Some(request) = self.in_flight.remove(&id) else {
            panic!("bug in the shell: {id:?} is not in flight");
        };
        self.payload_in_flight_bytes -= request.payload_bytes;
        request
    }

    /// Sends the reply to a request. The error is the end of the session.
    pub(super) fn reply(
        &mut self,
        id: RequestId,
        outcome: Outcome,
        actions: &mut VecDeque<Action>,
    ) -> Result<(), CloseReason> {
        let InFlight { cookie, expects, .. } = self.take(id);
        match (expects, outcome) {
            (_, Outcome::Failed { code, message }) => self.refuse(cookie, code, &message, actions),
            (Expects::Nothing, Outcome::Done) => self.succeed(cookie, actions),
            (Expects::Data { offset, length }, Outcome::Data(data)) => {
                assert_eq!(data.len(), length as usize, "bug in the shell: data of another length than asked");
                actions.push_back(Action::Send(replies::data_header(
                    self.structured_replies,
                    cookie,
                    offset,
                    length,
                )));
                actions.push_back(Action::Send(data));
            }
            (Expects::Extents { length, one }, Outcome::Extents(extents)) => {
                actions.push_back(Action::Send(replies::status(cookie, length, one, &extents)));
            }
            (_, Outcome::Done) => panic!("bug in the shell: {id:?} wants data or extents"),
            (_, Outcome::Data(_) | Outcome::Extents(_)) => {
                panic!("bug in the shell: the outcome of {id:?} is that of another kind of request")
            }
        }
        if self.disconnecting && self.in_flight.is_empty() {
            return Err(CloseReason::Disconnected);
        }
        Ok(())
    }

    fn succeed(&self, cookie: u64, actions: &mut VecDeque<Action>) {
        actions.push_back(Action::Send(replies::success(self.structured_replies, cookie)));
    }

    fn refuse(&self, cookie: u64, code: ErrorCode, message: &str, actions: &mut VecDeque<Action>) {
        actions.push_back(Action::Send(replies::failure(self.structured_replies, cookie, code, message)));
    }
}
