//! `atoll policy simulate`: the decision about a request, and its reason.

use std::collections::BTreeMap;

use atoll_admin::identities::{self, Asker, GivenConditions};
use atoll_terminal::print_line;
use clap::Args;
use serde_json::json;

use crate::commands::arguments::OutputArguments;
use crate::commands::open_cluster::connected;
use crate::commands::output::print_json;

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll policy simulate --access-key AKIA... s3:GetObject photos/a.jpg
  atoll policy simulate --anonymous s3:ListBucket photos --condition s3:prefix=public/
  atoll policy simulate --access-key AKIA... s3:PutObject photos/a --condition aws:SourceIp=10.1.2.3
  atoll policy simulate --access-key AKIA... kms:Decrypt project-x

Owners, ACLs and tags of objects are kept with the objects and do not count here.

Exit codes: 0 the request would be allowed, 1 it would be denied.")]
pub struct SimulateArguments {
    #[command(flatten)]
    output: OutputArguments,
    #[command(flatten)]
    who: Who,
    /// Requested action, such as s3:GetObject
    action: String,
    /// BUCKET or BUCKET/KEY; for actions of kms: a key of the key service, by name or ARN
    resource: String,
    /// A condition key of the request; may be given several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_condition)]
    condition: Vec<(String, String)>,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct Who {
    /// Access key that signs the request
    #[arg(long)]
    access_key: Option<String>,
    /// Send the request without a signature
    #[arg(long)]
    anonymous: bool,
}

fn parse_condition(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("give KEY=VALUE, such as aws:SourceIp=10.1.2.3")?;
    Ok((key.to_ascii_lowercase(), value.to_owned()))
}

/// Runs a simulation.
pub fn simulate(arguments: &SimulateArguments) -> anyhow::Result<()> {
    let SimulateArguments { output, who, action, resource, condition } = arguments;
    let asker = who.access_key.clone().map_or(Asker::Anonymous, Asker::AccessKey);
    let mut conditions = BTreeMap::<String, Vec<String>>::new();
    for (key, value) in condition {
        conditions.entry(key.clone()).or_default().push(value.clone());
    }
    let conditions = GivenConditions(conditions);
    let bucket = resource.split('/').next().unwrap_or_default();
    let (decision, counts_acls) = connected(output, async |_, state| {
        let decision = identities::simulate(&state, &asker, action, resource, &conditions).await?;
        let is_of_key = action.to_ascii_lowercase().starts_with("kms:");
        Ok((decision, !is_of_key && identities::counts_acls(&state, bucket).await?))
    })?;
    if output.json {
        let reason = decision.reason.to_string();
        print_json(&json!({ "is_allowed": decision.is_allowed, "reason": reason, "acls_count": counts_acls }))?;
    } else {
        print_line!("{}", decision.reason);
        if counts_acls {
            print_line!("ACLs count in this bucket, and are not looked at here.");
        }
    }
    if decision.is_allowed { Ok(()) } else { Err(anyhow::anyhow!("the request would be denied")) }
}
