//! Operations on identities, by the names and rules of AWS's IAM: a snapshot and parameters go in, changes
//! of records and an answer come out.

mod access_keys;
mod accounts;
mod answer;
mod attached_policies;
mod call;
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

pub use answer::{Answer, Value};
pub use call::{Change, Context, NewAccessKey, Outcome, RANDOM_BYTES, random_text};
pub use error::IamError;
pub use parameters::{Parameters, check_document, document_size, is_tag_character};
pub use policy_changes::{PolicyChange, policy_changes};
pub use subject::Subject;

use call::{Call, HolderKind};

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
