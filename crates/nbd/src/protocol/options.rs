//! Parsing of a client's options and building of the replies (sections "Option types", "Option reply types").

use bytes::{BufMut, Bytes, BytesMut};

use super::constants::{
    CONTEXT_BASE_ALLOCATION, CONTEXT_BASE_WILDCARD, MAGIC_OPTION_REPLY, STRING_BYTES_MAX, info, option,
    option_reply,
};
use super::message_bytes;

/// A well-formed option.
pub(super) enum ClientOption {
    ExportName(String),
    Abort,
    List,
    Info(ExportQuery),
    Go(ExportQuery),
    StructuredReply,
    ListMetaContext(MetaQuery),
    SetMetaContext(MetaQuery),
}

/// Data of INFO and GO.
pub(super) struct ExportQuery {
    pub(super) name: String,
    pub(super) wants_name: bool,
    pub(super) wants_block_size: bool,
}

/// Data of LIST_META_CONTEXT and SET_META_CONTEXT.
pub(super) struct MetaQuery {
    pub(super) name: String,
    /// True if `base:allocation` is among the requested contexts.
    pub(super) allocation: bool,
}

/// Why an option was not accepted: the reply type and a text for people.
pub(super) struct Rejected {
    pub(super) reply: u32,
    pub(super) message: &'static str,
}

const fn invalid(message: &'static str) -> Rejected {
    Rejected { reply: option_reply::ERR_INVALID, message }
}

/// Parses the data of an option; STARTTLS is answered before it comes to that.
pub(super) fn parse(option: u32, data: &[u8]) -> Result<ClientOption, Rejected> {
    match option {
        option::EXPORT_NAME => Ok(ClientOption::ExportName(export_name(data)?)),
        // Data that does not belong here is ignored: the client is leaving.
        option::ABORT => Ok(ClientOption::Abort),
        option::LIST if !data.is_empty() => Err(invalid("LIST takes no data")),
        option::LIST => Ok(ClientOption::List),
        option::INFO => Ok(ClientOption::Info(export_query(data)?)),
        option::GO => Ok(ClientOption::Go(export_query(data)?)),
        option::STRUCTURED_REPLY if !data.is_empty() => Err(invalid("STRUCTURED_REPLY takes no data")),
        option::STRUCTURED_REPLY => Ok(ClientOption::StructuredReply),
        option::LIST_META_CONTEXT => Ok(ClientOption::ListMetaContext(meta_query(data, true)?)),
        option::SET_META_CONTEXT => Ok(ClientOption::SetMetaContext(meta_query(data, false)?)),
        option::EXTENDED_HEADERS => Err(Rejected {
            reply: option_reply::ERR_UNSUP,
            message: "this server does not support extended headers",
        }),
        _ => Err(Rejected { reply: option_reply::ERR_UNSUP, message: "this server does not know the option" }),
    }
}

/// Checks a name against the rules for strings (section "Conventions").
fn export_name(bytes: &[u8]) -> Result<String, Rejected> {
    if bytes.len() > STRING_BYTES_MAX {
        return Err(Rejected { reply: option_reply::ERR_TOO_BIG, message: "the export name is too long" });
    }
    match std::str::from_utf8(bytes) {
        Ok(name) if !name.contains('\0') => Ok(name.to_owned()),
        _ => Err(invalid("the export name is not text")),
    }
}

fn export_query(data: &[u8]) -> Result<ExportQuery, Rejected> {
    const SHORT: Rejected = invalid("the data ends early");
    let (name, rest) = split_string(data).ok_or(SHORT)?;
    let (count, requests) = rest.split_first_chunk::<2>().ok_or(SHORT)?;
    if requests.len() != 2 * usize::from(u16::from_be_bytes(*count)) {
        return Err(invalid("the number of information requests does not fit the data"));
    }
    let asks_for = |kind: u16| requests.chunks_exact(2).any(|request| request == kind.to_be_bytes());
    Ok(ExportQuery {
        name: export_name(name)?,
        wants_name: asks_for(info::NAME),
        wants_block_size: asks_for(info::BLOCK_SIZE),
    })
}

/// `is_list` distinguishes LIST_META_CONTEXT, where no query and the wildcard mean everything, from
/// SET_META_CONTEXT, where they mean nothing (section "The `base:` metadata namespace").
fn meta_query(data: &[u8], is_list: bool) -> Result<MetaQuery, Rejected> {
    const SHORT: Rejected = invalid("the data ends early");
    let (name, rest) = split_string(data).ok_or(SHORT)?;
    let (count, mut rest) = rest.split_first_chunk::<4>().ok_or(SHORT)?;
    let count = u32::from_be_bytes(*count);
    let mut allocation = is_list && count == 0;
    for _ in 0..count {
        // Ends after as many rounds as there are lengths in the data, whatever the count says.
        let (query, after) = split_string(rest).ok_or(SHORT)?;
        rest = after;
        // Names of other namespaces are ignored, as the document demands.
        allocation |=
            query == CONTEXT_BASE_ALLOCATION.as_bytes() || (is_list && query == CONTEXT_BASE_WILDCARD.as_bytes());
    }
    if !rest.is_empty() {
        return Err(invalid("data is left over after the last query"));
    }
    Ok(MetaQuery { name: export_name(name)?, allocation })
}

/// Returns a string after its 32-bit length, and the data behind it.
fn split_string(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = data.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_be_bytes(*length) as usize)
}

/// The replies to one option, to be sent together.
pub(super) struct Replies {
    option: u32,
    bytes: BytesMut,
}

impl Replies {
    pub(super) fn to(option: u32) -> Self {
        Replies { option, bytes: BytesMut::new() }
    }

    /// Appends one reply, its data given in parts.
    pub(super) fn add(&mut self, kind: u32, parts: &[&[u8]]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        self.bytes.put_u64(MAGIC_OPTION_REPLY);
        self.bytes.put_u32(self.option);
        self.bytes.put_u32(kind);
        // Names and messages are bounded, so this is far from the limit of the type.
        self.bytes.put_u32(length as u32);
        for part in parts {
            self.bytes.put_slice(part);
        }
    }

    /// Appends a last reply of success.
    pub(super) fn acknowledged(mut self) -> Bytes {
        self.add(option_reply::ACK, &[]);
        self.bytes.freeze()
    }

    /// Appends a last reply of failure.
    pub(super) fn failed(mut self, kind: u32, message: &str) -> Bytes {
        self.add(kind, &[message_bytes(message)]);
        self.bytes.freeze()
    }
}
