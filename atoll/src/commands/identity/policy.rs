//! Commands about policies.

use std::path::PathBuf;

use atoll_admin::{AdminError, identities};
use atoll_iam::operations::Parameters;
use atoll_terminal::print_line;
use clap::{Args, Subcommand};

use super::simulate::{SimulateArguments, simulate};
use super::{AccountArguments, ask, members, perform, read_document, rows};
use crate::commands::open_cluster::connected;
use crate::commands::output::{print_json, print_table};

/// Versions of a managed policy.
const VERSIONS_MAX: usize = 5;

#[derive(Subcommand)]
pub enum PolicyCommand {
    /// List managed policies: those of the account, and those that are always there
    Ls(AccountArguments),
    /// Make a managed policy from a file
    #[command(after_help = "\
Example:
  atoll policy create one-bucket policy.json

policy.json, in the language of AWS:
  {\"Version\": \"2012-10-17\", \"Statement\": [{\"Effect\": \"Allow\", \"Action\": [\"s3:GetObject\", \"s3:ListBucket\"],
   \"Resource\": [\"arn:aws:s3:::photos\", \"arn:aws:s3:::photos/*\"]}]}")]
    Create(DocumentArguments),
    /// Replace the document of a managed policy
    Update(DocumentArguments),
    /// Print the document of a managed policy, or of an inline policy of a user, group or role
    #[command(
        after_help = "Examples:\n  atoll policy show AmazonS3ReadOnlyAccess\n  atoll policy show home --user ann"
    )]
    Show {
        #[command(flatten)]
        policy: PolicyArguments,
        #[command(flatten)]
        holder: OptionalHolder,
    },
    /// Remove a managed policy that is attached to nothing
    Rm(PolicyArguments),
    /// Attach a managed policy to a user, group or role
    #[command(after_help = "Example:\n  atoll policy attach AmazonS3ReadOnlyAccess --group readers")]
    Attach(HolderArguments),
    /// Take it back
    Detach(HolderArguments),
    /// Give a user, group or role a policy of its own
    #[command(after_help = "Example:\n  atoll policy put home home.json --user ann")]
    Put {
        #[command(flatten)]
        holder: HolderArguments,
        /// The policy: a file, or - for standard input
        file: PathBuf,
    },
    /// Remove a policy of a user's, group's or role's own
    Drop(HolderArguments),
    /// Show if a request would be allowed, and why
    Simulate(SimulateArguments),
}

#[derive(Args, Clone)]
pub struct PolicyArguments {
    #[command(flatten)]
    arguments: AccountArguments,
    /// The policy, by name or ARN
    name: String,
}

#[derive(Args, Clone)]
pub struct DocumentArguments {
    #[command(flatten)]
    policy: PolicyArguments,
    /// The policy document: a file, or - for standard input
    file: PathBuf,
}

/// A policy, and whose.
#[derive(Args, Clone)]
pub struct HolderArguments {
    #[command(flatten)]
    policy: PolicyArguments,
    #[command(flatten)]
    holder: Holder,
}

#[derive(Args, Clone)]
#[group(required = true, multiple = false)]
struct Holder {
    /// Inline policy of this user
    #[arg(long)]
    user: Option<String>,
    /// Inline policy of this group
    #[arg(long)]
    group: Option<String>,
    /// Inline policy of this role
    #[arg(long)]
    role: Option<String>,
}

impl Holder {
    /// Its kind, as AWS names it, and its name.
    fn named(&self) -> (&'static str, &str) {
        named([&self.user, &self.group, &self.role]).expect("the command line takes exactly one")
    }
}

/// The holder of an inline policy; none for a managed policy.
#[derive(Args, Clone)]
#[group(multiple = false)]
pub struct OptionalHolder {
    /// Inline policy of this user
    #[arg(long)]
    user: Option<String>,
    /// Inline policy of this group
    #[arg(long)]
    group: Option<String>,
    /// Inline policy of this role
    #[arg(long)]
    role: Option<String>,
}

fn named(holders: [&Option<String>; 3]) -> Option<(&'static str, &str)> {
    let kinds = ["User", "Group", "Role"].into_iter().zip(holders);
    kinds.into_iter().find_map(|(kind, name)| Some((kind, name.as_deref()?)))
}

/// Runs a command about policies.
pub fn run(command: &PolicyCommand) -> anyhow::Result<()> {
    match command {
        PolicyCommand::Ls(arguments) => {
            perform(arguments, "ListPolicies", Parameters::default().with("Scope", "All"), |answer| {
                let rows = rows(answer, "Policies", &["PolicyName", "AttachmentCount", "DefaultVersionId", "Arn"]);
                print_table(&["NAME", "ATTACHED", "VERSION", "ARN"], &rows);
            })
        }
        PolicyCommand::Create(document) => {
            let DocumentArguments { policy, file } = document;
            let parameters = Parameters::default()
                .with("PolicyName", &policy.name)
                .with("PolicyDocument", read_document(file)?);
            perform(&policy.arguments, "CreatePolicy", parameters, |answer| {
                print_line!("made {}", answer.text_at(&["Policy", "Arn"]).unwrap_or("-"));
            })
        }
        PolicyCommand::Update(document) => update(document),
        PolicyCommand::Show { policy, holder } => match named([&holder.user, &holder.group, &holder.role]) {
            None => show(policy),
            Some(holder) => show_own(policy, holder),
        },
        PolicyCommand::Rm(policy) => {
            let parameters = Parameters::default().with("PolicyArn", arn(policy)?);
            perform(&policy.arguments, "DeletePolicy", parameters, |_| print_line!("removed '{}'", policy.name))
        }
        PolicyCommand::Attach(holder) => attach(holder, "Attach", "has"),
        PolicyCommand::Detach(holder) => attach(holder, "Detach", "no longer has"),
        PolicyCommand::Put { holder, file } => {
            own(holder, "Put", "has", Parameters::default().with("PolicyDocument", read_document(file)?))
        }
        PolicyCommand::Drop(holder) => own(holder, "Delete", "no longer has", Parameters::default()),
        PolicyCommand::Simulate(arguments) => simulate(arguments),
    }
}

fn arn(policy: &PolicyArguments) -> anyhow::Result<String> {
    connected(&policy.arguments.output, async |_, state| {
        let all = identities::current(&state).await?;
        let account = identities::find_account(&all, policy.arguments.account.as_deref())?;
        Ok(identities::policy_arn(&all, &account, &policy.name)?)
    })
}

/// A policy has five versions at most: the oldest makes room.
fn update(document: &DocumentArguments) -> anyhow::Result<()> {
    let DocumentArguments { policy, file } = document;
    let named = Parameters::default().with("PolicyArn", arn(policy)?);
    let text = read_document(file)?;
    let account = policy.arguments.account.as_deref();
    let answer = connected(&policy.arguments.output, async |open, state| {
        let keys = open.keys()?;
        let perform = async |operation, parameters| {
            identities::perform(&state, &*keys, account, operation, parameters).await
        };
        let found = perform("ListPolicyVersions", named.clone()).await?;
        let versions = members(&found, "Versions");
        if versions.len() >= VERSIONS_MAX {
            let mut old = versions.iter().filter(|version| super::text(version, "IsDefaultVersion") == "false");
            if let Some(oldest) = old.next_back() {
                let id = super::text(oldest, "VersionId");
                perform("DeletePolicyVersion", named.clone().with("VersionId", id)).await?;
            }
        }
        let new = named.with("PolicyDocument", text).with("SetAsDefault", "true");
        Ok(perform("CreatePolicyVersion", new).await?)
    })?;
    if policy.arguments.output.json {
        return print_json(&answer);
    }
    print_line!("{} counts now", answer.text_at(&["PolicyVersion", "VersionId"]).unwrap_or("-"));
    Ok(())
}

fn show(policy: &PolicyArguments) -> anyhow::Result<()> {
    let document = connected(&policy.arguments.output, async |_, state| {
        let all = identities::current(&state).await?;
        let account = identities::find_account(&all, policy.arguments.account.as_deref())?;
        let arn = identities::policy_arn(&all, &account, &policy.name)?;
        let missing =
            || AdminError::NoSuchPolicy { account: account.record.name.clone(), policy: policy.name.clone() };
        Ok(all.managed_document(&account.record.id, &arn).ok_or_else(missing)?.to_owned())
    })?;
    print_line!("{document}");
    Ok(())
}

fn show_own(policy: &PolicyArguments, (kind, name): (&str, &str)) -> anyhow::Result<()> {
    let parameters = Parameters::default().with(format!("{kind}Name"), name).with("PolicyName", &policy.name);
    let answer = ask(&policy.arguments, &format!("Get{kind}Policy"), parameters)?;
    print_line!("{}", answer.text_at(&["PolicyDocument"]).unwrap_or("{}"));
    Ok(())
}

fn attach(arguments: &HolderArguments, verb: &str, done: &str) -> anyhow::Result<()> {
    let HolderArguments { policy, holder } = arguments;
    let (kind, name) = holder.named();
    let parameters = Parameters::default().with(format!("{kind}Name"), name).with("PolicyArn", arn(policy)?);
    perform(&policy.arguments, &format!("{verb}{kind}Policy"), parameters, |_| {
        print_line!("{} '{name}' {done} policy '{}'", kind.to_lowercase(), policy.name);
    })
}

fn own(arguments: &HolderArguments, verb: &str, done: &str, more: Parameters) -> anyhow::Result<()> {
    let HolderArguments { policy, holder } = arguments;
    let (kind, name) = holder.named();
    let parameters = more.with(format!("{kind}Name"), name).with("PolicyName", &policy.name);
    perform(&policy.arguments, &format!("{verb}{kind}Policy"), parameters, |_| {
        print_line!("{} '{name}' {done} policy '{}' of its own", kind.to_lowercase(), policy.name);
    })
}
