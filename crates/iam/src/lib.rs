//! Identities and the policy engine: who signs a request, and whether policies, ACLs and the settings of
//! a bucket let it through. Pure: a request and the rules go in, a decision with its reason comes out.
//!
//! This crate knows the policy language of AWS and the records of identities. It may not know cluster
//! state, HTTP, S3's operations or clocks: times and random characters come in.

mod caller;
mod question;

pub use caller::{Account, Caller, CallerKind};
pub use question::{AclSide, ConditionValues, Question, ResourceSide};
