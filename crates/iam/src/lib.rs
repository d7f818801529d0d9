//! Identities and the policy engine: signers of requests, and decisions by policies, ACLs and the settings of a
//! bucket. Pure: a request and the rules go in, a decision with its reason comes out.
//!
//! This crate knows the policy language of AWS and the records of identities. It may not know cluster
//! state, HTTP, S3's operations or clocks: times and random characters come in.

pub mod acl;
pub mod arn;
mod caller;
mod caller_identity;
mod condition;
mod condition_values;
mod context;
mod decide;
mod evaluate;
mod fault;
mod identities;
mod json;
mod names;
mod operand;
pub mod operations;
pub mod pattern;
mod policy;
mod policy_kind;
mod principal;
mod public;
mod question;
mod reason;
mod statement;
mod template;
mod timestamp;

pub use caller::Caller;
pub use caller_identity::{Account, CallerIdentity, CallerKind, TrustPrincipal};
pub use condition_values::ConditionValues;
pub use decide::{AssumeQuestion, KeyQuestion, decide, decide_assume_role, decide_key, trusts};
pub use identities::session::{Session, SessionPrincipal};
pub use identities::{
    AWS_MANAGED_POLICIES, AccessKeyEntry, AccountEntry, AwsManagedPolicy, Entry, Identities, KeyLookup,
    KmsKeyEntry, ManagedPolicyEntry, NamedPolicy, Record, RecordName, StoredPolicy, aws_managed_policy,
    first_account_record, provider_id,
};
pub use policy::{Policy, PolicyError};
pub use policy_kind::PolicyKind;
pub use question::{AclSide, Question, ResourceSide};
pub use reason::{Decision, Grant, PolicySource, Reason, StatementRef};
