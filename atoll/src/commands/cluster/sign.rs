//! Signing the records of cluster state: shows them and the rights that each grants before signing.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context;
use atoll_authority::{Finding, RecordState, sign_all, sign_records, survey, without_signature};
use atoll_cluster::ClusterClient;
use atoll_coordinator::unix_ms;
use atoll_node::remember_signed;
use atoll_terminal::print_line;
use clap::Args;
use serde_json::{Value, json};

use super::grants::grants;
use crate::commands::arguments::OutputArguments;
use crate::commands::open_cluster::{OpenCluster, tokio_runtime};
use crate::commands::output::{print_json, print_table};

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll cluster sign                            show unsigned records and the rights that they grant
  atoll cluster sign --yes                      sign them; from then on no other is accepted
  atoll cluster sign --record /atoll/users/AK1  sign one that is refused, after you have looked at it
  atoll cluster sign --remove /atoll/users/AK1  remove one that is refused, or accept that it was removed by hand
  atoll cluster sign --yes --refused            sign all that are refused, as when /atoll/authority is gone

New clusters are signed from their first start. A cluster of an earlier release is signed once, when all of its hosts
run this release: gateways of earlier ones write records without signatures, which the others then refuse.")]
pub struct SignArguments {
    #[command(flatten)]
    output: OutputArguments,
    /// Sign the shown records
    #[arg(long, conflicts_with = "record")]
    yes: bool,
    /// Sign refused records, too, although no holder of the key service wrote them
    #[arg(long, requires = "yes")]
    refused: bool,
    /// Sign this record as it is, although it was not written by a holder of the key service
    #[arg(long, value_name = "KEY")]
    record: Vec<String>,
    /// Remove this record, which is refused, or accept that it is not there any more
    #[arg(long, value_name = "KEY", conflicts_with_all = ["yes", "record"])]
    remove: Vec<String>,
}

/// `atoll cluster sign`.
pub fn run(arguments: &SignArguments) -> anyhow::Result<()> {
    tokio_runtime()?.block_on(sign(arguments))
}

async fn sign(arguments: &SignArguments) -> anyhow::Result<()> {
    let mut open = OpenCluster::open(&arguments.output.data)?;
    let authority = open.directory.authority(&open.cluster);
    let authority = authority.context("this host has no keys/kms.json: sign on a host that runs a gateway")?;
    let service = open.keys()?;
    let state = open.connect().await?.without_guard();
    if !arguments.record.is_empty() {
        sign_records(&state, service, &arguments.record).await?;
        return report(arguments, arguments.record.len() as u64, &[]);
    }
    let findings = survey(&state, &authority).await?;
    if !arguments.remove.is_empty() {
        // The manifest forgets it, too.
        return remove(arguments, &state.with_guard(Arc::new(authority)), &findings).await;
    }
    let unsigned: Vec<Finding> = findings.into_iter().filter(|found| found.state != RecordState::Signed).collect();
    if !arguments.yes {
        return report(arguments, 0, &unsigned);
    }
    let signed = sign_all(&state, service, arguments.refused, unix_ms(), &|_| {}).await?;
    remember_signed(&open.directory, &mut open.cluster, &state).await?;
    let authority = open.directory.authority(&open.cluster).context("the key service's file is gone")?;
    let findings = survey(&state, &authority).await?;
    let refused: Vec<Finding> = findings.into_iter().filter(|found| found.state != RecordState::Signed).collect();
    report(arguments, signed, &refused)
}

async fn remove(arguments: &SignArguments, state: &ClusterClient, findings: &[Finding]) -> anyhow::Result<()> {
    let refused: BTreeMap<&str, i64> = findings
        .iter()
        .filter(|finding| finding.is_refused())
        .map(|finding| (finding.stored.key.as_str(), finding.stored.mod_revision))
        .collect();
    for name in &arguments.remove {
        let revision = refused.get(name.as_str()).with_context(|| {
            format!("{name} is no record that is refused, so it is removed by its own command; 'atoll cluster sign' lists them")
        })?;
        state.delete_if(name, *revision).await?;
    }
    match arguments.output.json {
        true => print_json(&json!({ "removed": arguments.remove })),
        false => {
            print_line!("removed {}", arguments.remove.join(", "));
            Ok(())
        }
    }
}

fn report(arguments: &SignArguments, signed: u64, unsigned: &[Finding]) -> anyhow::Result<()> {
    let state = |finding: &Finding| match &finding.state {
        RecordState::Signed => "signed".to_owned(),
        RecordState::Unnamed => "signed; its removal by hand would not be noticed".to_owned(),
        RecordState::SignedForHolders => "signed, and OSDs cannot verify it".to_owned(),
        RecordState::Unsigned => "not signed".to_owned(),
        RecordState::Refused(cause) => format!("refused: {cause}"),
    };
    let given = |finding: &Finding| {
        if finding.stored.value.is_empty() {
            return "is not there".to_owned();
        }
        let record = without_signature(&finding.stored.value);
        serde_json::from_slice::<Value>(&record)
            .map_or_else(|_| "cannot be read".to_owned(), |record| grants(&finding.stored.key, &record))
    };
    if arguments.output.json {
        let record = |finding: &Finding| json!({ "key": finding.stored.key, "gives": given(finding), "state": state(finding) });
        return print_json(&json!({
            "signed": signed,
            "not_signed": unsigned.iter().map(record).collect::<Vec<_>>(),
        }));
    }
    if !unsigned.is_empty() {
        let row = |finding: &Finding| vec![finding.stored.key.clone(), given(finding), state(finding)];
        print_table(&["RECORD", "GIVES", "STATE"], &unsigned.iter().map(row).collect::<Vec<_>>());
    }
    let count = |state: RecordState| unsigned.iter().filter(|finding| finding.state == state).count();
    let waiting = count(RecordState::Unsigned) + count(RecordState::SignedForHolders);
    let unnamed = count(RecordState::Unnamed);
    let refused = unsigned.iter().filter(|finding| finding.is_refused()).count();
    if signed > 0 {
        print_line!("signed {signed} records");
    }
    if waiting > 0 {
        print_line!(
            "{waiting} records are not signed, or not for all; check the rights that they grant, then sign them: \
             atoll cluster sign --yes"
        );
    }
    if unnamed > 0 {
        print_line!(
            "{unnamed} records are not named in the manifest; have their removal noticed: atoll cluster sign --yes"
        );
    }
    if refused > 0 {
        print_line!(
            "{refused} records are refused; remove one, or sign it if it is right: atoll cluster sign --remove KEY, or --record KEY"
        );
    }
    if unsigned.is_empty() && signed == 0 {
        print_line!("all records are signed");
    }
    Ok(())
}
