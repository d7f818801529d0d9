//! Policies: how they are parsed, and what they decide, by the rules of AWS.

#![allow(clippy::unwrap_used)]

mod conditions;
mod decisions;
mod keys;
mod parsing;
mod principals;
mod reference;
mod support;
