//! Negotiation: from the greeting until an export is chosen (section "Handshake").

use std::collections::VecDeque;

use atoll_exports::{OpenError, OpenErrorKind};
use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::constants::{
    CLIENT_FLAGS_BYTES, CONTEXT_BASE_ALLOCATION, CONTEXT_BASE_ALLOCATION_ID, EXPORT_NAME_PADDING_BYTES,
    EXPORTS_LISTED_MAX, MAGIC_INIT, MAGIC_OPTION, OPTION_DATA_BYTES_MAX, OPTION_HEADER_BYTES, STRING_BYTES_MAX,
    client_flag, handshake_flag, info, option, option_reply,
};
use super::options::{ClientOption, ExportQuery, MetaQuery, Rejected, Replies, parse};
use super::transmission::{Transmission, transmission_flags};
use super::{
    Action, CloseReason, ExportInfo, OpenPurpose, Progress, ProtocolError, SessionConfig, TlsPolicy, array_at,
};

/// State of the session before transmission.
pub(super) struct Handshake {
    /// The client's flags, once they are here.
    client_flags: Option<u32>,
    structured_replies: bool,
    /// The export for which `base:allocation` was chosen.
    allocation_for: Option<String>,
    options_seen: u32,
    /// TLS has begun.
    is_secured: bool,
    awaiting: Option<Awaiting>,
}

/// An option that waits for the shell.
enum Awaiting {
    ExportName { name: String },
    Describe { option: u32, query: ExportQuery },
    MetaContext { option: u32, query: MetaQuery },
    List,
}

/// The server's first bytes (section "Newstyle negotiation").
pub(super) fn greeting() -> Bytes {
    let mut bytes = BytesMut::with_capacity(18);
    bytes.put_u64(MAGIC_INIT);
    bytes.put_u64(MAGIC_OPTION);
    bytes.put_u16(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
    bytes.freeze()
}

impl Handshake {
    pub(super) fn new() -> Self {
        Handshake {
            client_flags: None,
            structured_replies: false,
            allocation_for: None,
            options_seen: 0,
            is_secured: false,
            awaiting: None,
        }
    }

    /// Returns true if the client has to wait for the shell.
    pub(super) fn is_awaiting(&self) -> bool {
        self.awaiting.is_some()
    }

    /// Takes one message out of `buffer`.
    pub(super) fn step(
        &mut self,
        config: &SessionConfig,
        buffer: &mut BytesMut,
        actions: &mut VecDeque<Action>,
    ) -> Result<Progress, CloseReason> {
        if self.client_flags.is_none() {
            return self.client_flags(buffer);
        }
        if buffer.len() < OPTION_HEADER_BYTES {
            return Ok(Progress::Needs(OPTION_HEADER_BYTES));
        }
        let magic = u64::from_be_bytes(array_at(buffer, 0));
        let option = u32::from_be_bytes(array_at(buffer, 8));
        let length = u32::from_be_bytes(array_at(buffer, 12));
        if magic != MAGIC_OPTION {
            return Err(ProtocolError::OptionMagic(magic).into());
        }
        if length as usize > OPTION_DATA_BYTES_MAX {
            let max = OPTION_DATA_BYTES_MAX;
            return Err(ProtocolError::OptionTooLong { option, length, max }.into());
        }
        let total = OPTION_HEADER_BYTES + length as usize;
        if buffer.len() < total {
            return Ok(Progress::Needs(total));
        }
        let message = buffer.split_to(total);
        self.options_seen += 1;
        if self.options_seen > config.options_max {
            return Err(ProtocolError::TooManyOptions(config.options_max).into());
        }
        if let Some(refusal) = self.demand_tls(config, option)? {
            actions.push_back(Action::Send(refusal));
            return Ok(Progress::Consumed);
        }
        let data = &message[OPTION_HEADER_BYTES..];
        match option {
            option::STARTTLS => self.start_tls(config, data, buffer.len(), actions)?,
            _ => self.option(config, option, parse(option, data), actions)?,
        }
        Ok(Progress::Consumed)
    }

    /// The answer to everything but STARTTLS and ABORT where TLS is required and has not begun (section "FORCEDTLS
    /// mode"). The option's data is not looked at.
    fn demand_tls(&self, config: &SessionConfig, option: u32) -> Result<Option<Bytes>, CloseReason> {
        if config.tls != TlsPolicy::Required || self.is_secured {
            return Ok(None);
        }
        match option {
            option::STARTTLS | option::ABORT => Ok(None),
            option::EXPORT_NAME => Err(ProtocolError::TlsRequired.into()),
            _ => Ok(Some(Replies::to(option).failed(
                option_reply::ERR_TLS_REQD,
                "this server requires TLS; connect with it (such as by nbds:// or nbds+unix://)",
            ))),
        }
    }

    /// Answers STARTTLS. `unread_bytes` came with it: they were not encrypted, so they end the session
    /// rather than being answered as if they had been.
    fn start_tls(
        &mut self,
        config: &SessionConfig,
        data: &[u8],
        unread_bytes: usize,
        actions: &mut VecDeque<Action>,
    ) -> Result<(), CloseReason> {
        let replies = Replies::to(option::STARTTLS);
        let is_fixed = self.client_flags.is_some_and(|flags| flags & client_flag::FIXED_NEWSTYLE != 0);
        let refusal = if !data.is_empty() {
            Some((option_reply::ERR_INVALID, "STARTTLS takes no data"))
        } else if self.is_secured {
            Some((option_reply::ERR_INVALID, "TLS has begun already"))
        } else if config.tls == TlsPolicy::Unavailable {
            Some((option_reply::ERR_POLICY, "TLS is not set up on this server"))
        } else if !is_fixed {
            Some((option_reply::ERR_POLICY, "TLS needs a client that speaks fixed newstyle"))
        } else {
            None
        };
        if let Some((reply, message)) = refusal {
            actions.push_back(Action::Send(replies.failed(reply, message)));
            return Ok(());
        }
        if unread_bytes > 0 {
            return Err(ProtocolError::BytesBeforeTls(unread_bytes).into());
        }
        // What was agreed on before TLS may come from an attacker (section "Option types").
        *self = Handshake {
            client_flags: self.client_flags,
            options_seen: self.options_seen,
            is_secured: true,
            ..Handshake::new()
        };
        actions.extend([Action::Send(replies.acknowledged()), Action::StartTls]);
        Ok(())
    }

    /// Section "Client flags". A client that does not claim fixed newstyle is served all the same: the
    /// document leaves that open, and such a client sends nothing but EXPORT_NAME anyway.
    fn client_flags(&mut self, buffer: &mut BytesMut) -> Result<Progress, CloseReason> {
        if buffer.len() < CLIENT_FLAGS_BYTES {
            return Ok(Progress::Needs(CLIENT_FLAGS_BYTES));
        }
        let flags = buffer.get_u32();
        if flags & !(client_flag::FIXED_NEWSTYLE | client_flag::NO_ZEROES) != 0 {
            return Err(ProtocolError::UnknownClientFlags(flags).into());
        }
        self.client_flags = Some(flags);
        Ok(Progress::Consumed)
    }

    fn option(
        &mut self,
        config: &SessionConfig,
        option: u32,
        parsed: Result<ClientOption, Rejected>,
        actions: &mut VecDeque<Action>,
    ) -> Result<(), CloseReason> {
        if option == option::SET_META_CONTEXT {
            // Replaces what was chosen before, even if it fails.
            self.allocation_for = None;
        }
        let send = match parsed {
            Err(_) if option == option::EXPORT_NAME => {
                return Err(ProtocolError::ExportName(STRING_BYTES_MAX).into());
            }
            Err(Rejected { reply, message }) => Replies::to(option).failed(reply, message),
            Ok(ClientOption::Abort) => {
                actions.push_back(Action::Send(Replies::to(option).acknowledged()));
                return Err(CloseReason::Aborted);
            }
            Ok(ClientOption::StructuredReply) => {
                self.structured_replies = true;
                Replies::to(option).acknowledged()
            }
            Ok(ClientOption::List) => {
                self.awaiting = Some(Awaiting::List);
                actions.push_back(Action::ListExports);
                return Ok(());
            }
            Ok(ClientOption::ExportName(_)) if config.block_bytes_min > 1 => {
                return Err(ProtocolError::BlockSizeRequired(config.block_bytes_min).into());
            }
            Ok(ClientOption::ExportName(name)) => {
                actions.push_back(Action::OpenExport { name: name.clone(), purpose: OpenPurpose::Serve });
                self.awaiting = Some(Awaiting::ExportName { name });
                return Ok(());
            }
            // Checked before the export is opened, so that nothing has to be given back.
            Ok(ClientOption::Go(query)) if config.block_bytes_min > 1 && !query.wants_block_size => {
                let mut replies = Replies::to(option);
                add_block_size(&mut replies, config);
                replies.failed(option_reply::ERR_BLOCK_SIZE_REQD, "ask for the block sizes and keep to them")
            }
            Ok(ClientOption::Go(query)) => {
                self.describe(option, query, OpenPurpose::Serve, actions);
                return Ok(());
            }
            Ok(ClientOption::Info(query)) => {
                self.describe(option, query, OpenPurpose::Inspect, actions);
                return Ok(());
            }
            Ok(ClientOption::ListMetaContext(_) | ClientOption::SetMetaContext(_)) if !self.structured_replies => {
                Replies::to(option).failed(option_reply::ERR_INVALID, "negotiate structured replies first")
            }
            Ok(ClientOption::ListMetaContext(query) | ClientOption::SetMetaContext(query)) => {
                let purpose = OpenPurpose::Inspect;
                actions.push_back(Action::OpenExport { name: query.name.clone(), purpose });
                self.awaiting = Some(Awaiting::MetaContext { option, query });
                return Ok(());
            }
        };
        actions.push_back(Action::Send(send));
        Ok(())
    }

    fn describe(&mut self, option: u32, query: ExportQuery, purpose: OpenPurpose, actions: &mut VecDeque<Action>) {
        actions.push_back(Action::OpenExport { name: query.name.clone(), purpose });
        self.awaiting = Some(Awaiting::Describe { option, query });
    }

    /// Resumes after [`Action::OpenExport`]; returns the next phase if transmission begins.
    pub(super) fn export_opened(
        &mut self,
        config: &SessionConfig,
        result: Result<ExportInfo, OpenError>,
        actions: &mut VecDeque<Action>,
    ) -> Result<Option<Transmission>, CloseReason> {
        if let Ok(export) = &result {
            assert!(export.size_bytes <= i64::MAX as u64, "an export of {} bytes", export.size_bytes);
        }
        let awaiting = self.awaiting.take();
        let (option, error) = match (awaiting, result) {
            (None | Some(Awaiting::List), _) => panic!("bug in the shell: no export was asked for"),
            (Some(Awaiting::ExportName { name }), Ok(export)) => {
                actions.push_back(Action::Send(self.export_name_reply(&export)));
                return Ok(Some(self.begin(export, &name)));
            }
            (Some(Awaiting::ExportName { .. }), Err(error)) => return Err(CloseReason::ExportRefused(error)),
            (Some(Awaiting::Describe { option, query }), Ok(export)) => {
                actions.push_back(Action::Send(self.description(config, option, &query, &export)));
                return Ok((option == option::GO).then(|| self.begin(export, &query.name)));
            }
            (Some(Awaiting::MetaContext { option, query }), Ok(_)) => {
                actions.push_back(Action::Send(self.meta_contexts(option, query)));
                return Ok(None);
            }
            (Some(Awaiting::Describe { option, .. } | Awaiting::MetaContext { option, .. }), Err(error)) => {
                (option, error)
            }
        };
        let reply = match error.kind {
            OpenErrorKind::Unknown => option_reply::ERR_UNKNOWN,
            OpenErrorKind::NotAllowed
            | OpenErrorKind::InUse
            | OpenErrorKind::Unavailable
            | OpenErrorKind::Changed => option_reply::ERR_POLICY,
        };
        actions.push_back(Action::Send(Replies::to(option).failed(reply, &error.message)));
        Ok(None)
    }

    /// Resumes after [`Action::ListExports`].
    pub(super) fn exports_listed(&mut self, names: &[String], actions: &mut VecDeque<Action>) {
        assert!(matches!(self.awaiting.take(), Some(Awaiting::List)), "bug in the shell: no list was asked for");
        let mut replies = Replies::to(option::LIST);
        let send = if names.len() > EXPORTS_LISTED_MAX {
            replies
                .failed(option_reply::ERR_TOO_BIG, "there are too many exports to list; ask for one by its name")
        } else {
            for name in names {
                assert!(name.len() <= STRING_BYTES_MAX, "an export name of {} bytes", name.len());
                replies.add(option_reply::SERVER, &[&(name.len() as u32).to_be_bytes(), name.as_bytes()]);
            }
            replies.acknowledged()
        };
        actions.push_back(Action::Send(send));
    }

    fn begin(&self, export: ExportInfo, name: &str) -> Transmission {
        // Contexts chosen for another export do not count.
        let allocation = self.allocation_for.as_deref() == Some(name);
        Transmission::new(export, self.structured_replies, allocation)
    }

    fn export_name_reply(&self, export: &ExportInfo) -> Bytes {
        let mut bytes = BytesMut::with_capacity(10 + EXPORT_NAME_PADDING_BYTES);
        bytes.put_u64(export.size_bytes);
        bytes.put_u16(transmission_flags(export, self.structured_replies));
        if self.client_flags.is_none_or(|flags| flags & client_flag::NO_ZEROES == 0) {
            bytes.put_bytes(0, EXPORT_NAME_PADDING_BYTES);
        }
        bytes.freeze()
    }

    fn description(&self, config: &SessionConfig, option: u32, query: &ExportQuery, export: &ExportInfo) -> Bytes {
        let mut replies = Replies::to(option);
        let flags = transmission_flags(export, self.structured_replies);
        let size = export.size_bytes.to_be_bytes();
        replies.add(option_reply::INFO, &[&info::EXPORT.to_be_bytes(), &size, &flags.to_be_bytes()]);
        if query.wants_name {
            replies.add(option_reply::INFO, &[&info::NAME.to_be_bytes(), query.name.as_bytes()]);
        }
        // Sent unasked too: it costs nothing and clients ignore what they did not ask for.
        add_block_size(&mut replies, config);
        replies.acknowledged()
    }

    fn meta_contexts(&mut self, option: u32, query: MetaQuery) -> Bytes {
        let mut replies = Replies::to(option);
        let is_set = option == option::SET_META_CONTEXT;
        if query.allocation {
            // The id of a mere listing is reserved and should be zero.
            let id = if is_set { CONTEXT_BASE_ALLOCATION_ID } else { 0 };
            replies.add(option_reply::META_CONTEXT, &[&id.to_be_bytes(), CONTEXT_BASE_ALLOCATION.as_bytes()]);
        }
        if is_set && query.allocation {
            self.allocation_for = Some(query.name);
        }
        replies.acknowledged()
    }
}

fn add_block_size(replies: &mut Replies, config: &SessionConfig) {
    replies.add(
        option_reply::INFO,
        &[
            &info::BLOCK_SIZE.to_be_bytes(),
            &config.block_bytes_min.to_be_bytes(),
            &config.block_bytes_preferred.to_be_bytes(),
            &config.payload_bytes_max.to_be_bytes(),
        ],
    );
}
