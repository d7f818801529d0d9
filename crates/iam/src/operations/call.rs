//! The call of an operation: its context and parameters, and its outcome.

use std::sync::Arc;

use atoll_types::identities::LastUsedRecord;

use super::answer::Answer;
use super::error::IamError;
use super::parameters::Parameters;
use crate::caller::Caller;
use crate::identities::{AccountEntry, Identities, Record, RecordName};

/// A record to write or to delete. All changes of one operation are made together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Writes a record.
    Put(Record),
    /// Deletes a record.
    Delete(RecordName),
}

/// Changes and answer of an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Empty if it only looked.
    pub changes: Vec<Change>,
    /// Answer for the caller.
    pub answer: Answer,
}

impl Outcome {
    pub(super) fn answer(answer: Answer) -> Result<Self, IamError> {
        Ok(Outcome { changes: Vec::new(), answer })
    }

    pub(super) fn put(record: Record, answer: Answer) -> Result<Self, IamError> {
        Ok(Outcome { changes: vec![Change::Put(record)], answer })
    }

    pub(super) fn delete(name: RecordName) -> Result<Self, IamError> {
        Ok(Outcome { changes: vec![Change::Delete(name)], answer: Answer::new() })
    }
}

/// A pair of keys that was made for an operation that may need one.
#[derive(Clone)]
pub struct NewAccessKey {
    /// The public half.
    pub access_key: String,
    /// The secret half, for the answer.
    pub secret: String,
    /// The secret half as the record has it.
    pub wrapped_secret: String,
}

/// Number of random bytes that an operation may need.
pub const RANDOM_BYTES: usize = 48;

/// Context of an operation.
#[derive(Clone)]
pub struct Context<'a> {
    /// Everything as it is.
    pub identities: &'a Identities,
    /// The account that acts; of operators, for which one they act.
    pub account: Arc<AccountEntry>,
    /// The caller; `None` for an operator, who may also use operations that AWS does not have.
    pub caller: Option<&'a Caller>,
    /// The time, in milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// For ids.
    pub random: [u8; RANDOM_BYTES],
    /// For operations that [`super::Operation::needs_access_key`].
    pub new_access_key: Option<&'a NewAccessKey>,
    /// Last use of the key that [`super::Operation::asks_last_use`] is about.
    pub last_used: Option<&'a LastUsedRecord>,
}

impl Context<'_> {
    pub(super) fn account_id(&self) -> &str {
        &self.account.record.id
    }

    /// A new id of AWS's form.
    pub(super) fn new_id(&self, prefix: &str) -> String {
        format!("{prefix}{}", random_text(&self.random[..17]))
    }
}

/// Capital letters and digits 2 to 7, one for each byte of randomness.
pub fn random_text(random: &[u8]) -> String {
    const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    random.iter().map(|byte| char::from(ALPHABET[usize::from(byte % 32)])).collect()
}

/// Kind of what has a name, a path, policies and tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HolderKind {
    User,
    Group,
    Role,
    Policy,
}

/// One operation with its parameters.
pub(crate) struct Call<'a> {
    pub(super) context: &'a Context<'a>,
    /// Kind of the subject, if the operation is the same for several.
    pub(super) kind: HolderKind,
    pub(super) parameters: Parameters,
}
