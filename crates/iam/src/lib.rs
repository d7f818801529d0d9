//! Identities and the policy engine: who signs a request, and whether policies, ACLs and the settings of
//! a bucket let it through. Pure: a request and the rules go in, a decision with its reason comes out.
//!
//! This crate knows the policy language of AWS and the records of identities. It may not know cluster
//! state, HTTP, S3's operations or clocks: times and random characters come in.

pub mod acl;
mod caller;
mod condition;
mod context;
mod decide;
mod evaluate;
mod fault;
mod json;
mod operand;
pub mod pattern;
mod policy;
mod principal;
mod public;
mod question;
mod reason;
mod statement;
mod template;
mod timestamp;

pub use caller::{Account, Caller, CallerKind};
pub use decide::{AssumeQuestion, TrustPrincipal, decide, decide_assume_role, trusts};
pub use policy::{Policy, PolicyError, PolicyKind};
pub use question::{AclSide, ConditionValues, Question, ResourceSide};
pub use reason::{Decision, Grant, PolicySource, Reason, StatementRef};
