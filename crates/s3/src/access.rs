//! Access decisions: from an operation and its request to a question for the policy engine, and from the engine's
//! decision to S3's answer. The engine itself is `atoll-iam`.

mod actions;
mod conditions;
mod gate;
mod key_use;
mod permit;

pub(crate) use actions::{
    AclNeed, BYPASS_GOVERNANCE, DELETE_OBJECT, GET_LEGAL_HOLD, GET_OBJECT, GET_RETENTION, GET_TAGGING,
    LIST_BUCKET, Rule, SET_TAGS, Target, extra_rules, rule_of,
};
pub(crate) use conditions::{RequestConditions, region_of_header};
pub(crate) use gate::{FORM, FormRequest, Gate};
pub(crate) use key_use::{KeyUse, SealedFor};
pub(crate) use permit::{Asked, Asking, GRANT_TO_OTHERS, Permit, access_denied};
