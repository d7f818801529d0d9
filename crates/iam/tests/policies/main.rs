//! Policies: parsing them, and their decisions, by the rules of AWS.

#![allow(clippy::unwrap_used)]

mod conditions;
mod decisions;
mod keys;
mod parsing;
mod principals;
mod reference;
mod support;
