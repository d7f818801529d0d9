//! Operations on identities, by the names and rules of AWS's IAM: a snapshot and parameters go in, changes
//! of records and an answer come out.

mod access_keys;
mod accounts;
mod answer;
mod attached_policies;
mod error;
mod groups;
mod holders;
mod inline_policies;
mod kms_keys;
mod managed_policies;
mod oidc_providers;
mod paging;
mod parameters;
mod policy_changes;
mod policy_versions;
mod roles;
mod subject;
mod table;
mod tags;
mod users;

use std::sync::Arc;

use atoll_types::identities::LastUsedRecord;

pub use answer::{Answer, Value};
pub use error::IamError;
pub use parameters::{Parameters, check_document, document_size, is_tag_character};
pub use policy_changes::{PolicyChange, policy_changes};
pub use subject::Subject;

use crate::caller::Caller;
use crate::identities::{AccountEntry, Identities, Record, RecordName};
use holders::HolderKind;

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
    fn answer(answer: Answer) -> Result<Self, IamError> {
        Ok(Outcome { changes: Vec::new(), answer })
    }

    fn put(record: Record, answer: Answer) -> Result<Self, IamError> {
        Ok(Outcome { changes: vec![Change::Put(record)], answer })
    }

    fn delete(name: RecordName) -> Result<Self, IamError> {
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
    /// For operations that [`Operation::needs_access_key`].
    pub new_access_key: Option<&'a NewAccessKey>,
    /// Last use of the key that [`Operation::asks_last_use`] is about.
    pub last_used: Option<&'a LastUsedRecord>,
}

impl Context<'_> {
    fn account_id(&self) -> &str {
        &self.account.record.id
    }

    /// A new id of AWS's form.
    fn new_id(&self, prefix: &str) -> String {
        format!("{prefix}{}", random_text(&self.random[..17]))
    }
}

/// Capital letters and digits 2 to 7, one for each byte of randomness.
pub fn random_text(random: &[u8]) -> String {
    const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    random.iter().map(|byte| char::from(ALPHABET[usize::from(byte % 32)])).collect()
}

/// One operation with its parameters.
struct Call<'a> {
    context: &'a Context<'a>,
    /// Kind of the subject, if the operation is the same for several.
    kind: HolderKind,
    parameters: Parameters,
}

type Run = fn(&mut Call<'_>) -> Result<Outcome, IamError>;

/// An operation of AWS's IAM, or one of operators on accounts.
pub struct Operation {
    /// As AWS has it.
    pub name: &'static str,
    /// True if only operators have it.
    pub is_of_operators: bool,
    /// True if it changes something.
    pub is_change: bool,
    kind: HolderKind,
    about: subject::About,
    run: Run,
}

impl std::fmt::Debug for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Operation").field(&self.name).finish()
    }
}

impl Operation {
    /// The operation of this name.
    pub fn find(name: &str) -> Result<&'static Operation, IamError> {
        let found = table::OPERATIONS.iter().find(|operation| operation.name == name);
        found.ok_or_else(|| IamError::InvalidAction(name.to_owned()))
    }

    /// All of them.
    pub fn all() -> &'static [Operation] {
        table::OPERATIONS
    }

    /// Returns true if it needs [`Context::new_access_key`].
    pub fn needs_access_key(&self) -> bool {
        self.name == "CreateAccessKey"
    }

    /// The access key whose last use it needs in [`Context::last_used`].
    pub fn asks_last_use<'a>(&self, parameters: &'a Parameters) -> Option<&'a str> {
        (self.name == "GetAccessKeyLastUsed").then(|| parameters.get("AccessKeyId")).flatten()
    }

    /// The actions that a caller needs for it. As on AWS, one that makes something and gives it tags needs the action
    /// that tags such a thing, too.
    pub fn actions(&self, gives_tags: bool) -> Vec<String> {
        let made = self.name.strip_prefix("Create").filter(|_| gives_tags);
        std::iter::once(format!("iam:{}", self.name)).chain(made.map(|made| format!("iam:Tag{made}"))).collect()
    }

    /// Returns its subject, for decisions on the caller's rights.
    pub fn subject(&self, context: &Context<'_>, parameters: &Parameters) -> Subject {
        self.about.subject(context, parameters)
    }

    /// Does it. Whether the caller may is decided before.
    pub fn run(&self, context: &Context<'_>, parameters: Parameters) -> Result<Outcome, IamError> {
        let mut call = Call { context, kind: self.kind, parameters };
        let outcome = (self.run)(&mut call)?;
        call.parameters.finish()?;
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests;
