//! Commands about identities that sign S3 requests, and their rights. Each is an operation of AWS's IAM that an
//! operator does for an account.

pub mod account;
pub mod group;
pub mod keys;
pub mod policy;
pub mod role;
mod simulate;
pub mod user;

use std::path::Path;

use anyhow::Context;
use atoll_admin::identities;
use atoll_iam::operations::{Answer, Parameters, Value};
use atoll_terminal::print_line;
use clap::Args;

use super::arguments::OutputArguments;
use super::open_cluster::connected;
use super::output::print_json;

/// Where, and for which account.
#[derive(Args, Clone)]
pub struct AccountArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// The account, by name or number [default: the first]
    #[arg(long, value_name = "ACCOUNT", env = "ATOLL_ACCOUNT")]
    pub account: Option<String>,
}

/// Does an operation; with `--json` prints its whole answer, otherwise hands it to `print`.
fn perform(
    arguments: &AccountArguments,
    operation: &str,
    parameters: Parameters,
    print: impl FnOnce(&Answer),
) -> anyhow::Result<()> {
    let answer = ask(arguments, operation, parameters)?;
    if arguments.output.json {
        return print_json(&answer);
    }
    print(&answer);
    Ok(())
}

/// Does an operation; lists are whole.
fn ask(arguments: &AccountArguments, operation: &str, parameters: Parameters) -> anyhow::Result<Answer> {
    connected(&arguments.output, async |open, state| {
        let (keys, account) = (open.keys()?, arguments.account.as_deref());
        let is_list = operation.starts_with("List") && operation != "ListAccounts" || operation == "GetGroup";
        Ok(match is_list {
            true => identities::list(&state, &*keys, account, operation, parameters).await?,
            false => identities::perform(&state, &*keys, account, operation, parameters).await?,
        })
    })
}

/// Returns the results of several operations on one object as one answer.
fn ask_all(arguments: &AccountArguments, operations: &[&str], parameters: &Parameters) -> anyhow::Result<Answer> {
    let mut all = Answer::new();
    for operation in operations {
        let Answer(found) = ask(arguments, operation, parameters.clone())?;
        // Of each, all lists are whole.
        all.0.extend(found.into_iter().filter(|(name, _)| *name != "IsTruncated" || *operation == "GetGroup"));
    }
    Ok(all)
}

/// Prints the policies of a user, group or role.
fn print_policies(answer: &Answer) {
    for row in rows(answer, "AttachedPolicies", &["PolicyName", "PolicyArn"]) {
        print_line!("policy  {}", row.join("  "));
    }
    for name in names(answer, "PolicyNames") {
        print_line!("policy  {name}  (of its own)");
    }
}

/// The members of a list of an answer.
fn members<'a>(answer: &'a Answer, list: &str) -> Vec<&'a Answer> {
    let Some(Value::List(members)) = answer.get(list) else { return Vec::new() };
    let fields = |member: &'a Value| match member {
        Value::Fields(fields) => Some(fields),
        _ => None,
    };
    members.iter().filter_map(fields).collect()
}

/// The texts of a list of an answer.
fn names<'a>(answer: &'a Answer, list: &str) -> Vec<&'a str> {
    let Some(Value::List(members)) = answer.get(list) else { return Vec::new() };
    let text = |member: &'a Value| match member {
        Value::Text(text) => Some(text.as_str()),
        _ => None,
    };
    members.iter().filter_map(text).collect()
}

fn text<'a>(answer: &'a Answer, name: &str) -> &'a str {
    answer.text_at(&[name]).unwrap_or("-")
}

/// One row of a table for each member of a list.
fn rows(answer: &Answer, list: &str, columns: &[&str]) -> Vec<Vec<String>> {
    let row = |member: &Answer| columns.iter().map(|column| text(member, column).to_owned()).collect();
    members(answer, list).into_iter().map(row).collect()
}

/// A policy from a file, or from standard input.
pub fn read_document(path: &Path) -> anyhow::Result<String> {
    if path == Path::new("-") {
        return std::io::read_to_string(std::io::stdin()).context("the policy on standard input cannot be read");
    }
    std::fs::read_to_string(path).with_context(|| format!("the policy {} cannot be read", path.display()))
}
