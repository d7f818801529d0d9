//! The command line: which commands there are.

use std::process::ExitCode;

use atoll_terminal::print_line;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::commands::admin::AdminCommand;
use crate::commands::approval::ApprovalCommand;
use crate::commands::arguments::{DataArgument, OutputArguments};
use crate::commands::audit::AuditCommand;
use crate::commands::bench::BenchCommand;
use crate::commands::bucket::BucketCommand;
use crate::commands::cluster::ClusterCommand;
use crate::commands::events::EventsArguments;
use crate::commands::flag::FlagCommand;
use crate::commands::gateway::GatewayCommand;
use crate::commands::health::HealthArguments;
use crate::commands::host::HostCommand;
use crate::commands::identity::account::AccountCommand;
use crate::commands::identity::group::GroupCommand;
use crate::commands::identity::policy::PolicyCommand;
use crate::commands::identity::role::RoleCommand;
use crate::commands::identity::user::UserCommand;
use crate::commands::image::ImageCommand;
use crate::commands::join::JoinArguments;
use crate::commands::key::KeyCommand;
use crate::commands::laboratory::LaboratoryArguments;
use crate::commands::metrics::MetricsCommand;
use crate::commands::nbd::NbdCommand;
use crate::commands::nvme::NvmeCommand;
use crate::commands::operator::OperatorCommand;
use crate::commands::osd::OsdCommand;
use crate::commands::pg::PgCommand;
use crate::commands::pool::PoolCommand;
use crate::commands::preflight::PreflightArguments;
use crate::commands::settings::SettingsCommand;
use crate::commands::slow::SlowArguments;
use crate::commands::state::StateCommand;
use crate::commands::status::CredentialsArguments;
use crate::commands::store::StoreCommand;
use crate::commands::top::TopArguments;
use crate::commands::up::UpArguments;
use crate::commands::{AuditedCommand, publish_heads};
use crate::commands::{
    admin, approval, audit, bench, bucket, cluster, events, flag, gateway, health, host, identity, image, join,
    key, laboratory, metrics, nbd, nvme, operator, osd, pg, pool, preflight, settings, slow, state, status, store,
    top, up,
};
use crate::watch;

/// Unified storage (block images and S3 objects) that is encrypted by default.
#[derive(Parser)]
#[command(name = "atoll", version, propagate_version = true, after_help = EXAMPLES)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  atoll up --data ./atoll-data                     start a whole cluster here, in the foreground
  atoll up --data ./atoll-data --detach            the same in the background
  atoll image create --data ./atoll-data disk1 --size 4G
  nbdinfo \"nbd+unix:///disk1?socket=$PWD/atoll-data/nbd.sock\"
  atoll bench block --data ./atoll-data --image disk1 --rw randwrite --bs 4k --qd 32 --seconds 10
  atoll health --data ./atoll-data
  atoll down --data ./atoll-data

Exit codes: 0 done, 1 failed (the reason is on stderr), 2 wrong usage; of 'atoll health' see its --help.";

#[derive(Subcommand)]
pub enum Command {
    /// Start a whole cluster on this machine
    Up(Box<UpArguments>),
    /// Stop the cluster of a data directory
    Down(DataArgument),
    /// Join a cluster that runs on other hosts
    Join(JoinArguments),
    /// Let hosts join, and revoke the keys of processes
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// List hosts and their rights, give them other passwords, and shut hosts out
    #[command(subcommand)]
    Host(HostCommand),
    /// Show the state of the cluster
    Status(OutputArguments),
    /// Show problems, their age and their remedy
    Health(HealthArguments),
    /// Show space by OSD
    Df(OutputArguments),
    /// Show the credentials for S3 clients
    Credentials(CredentialsArguments),
    /// List, create, add, drain, remove and run OSDs
    #[command(subcommand)]
    Osd(OsdCommand),
    /// Check or dump the store on a device that no OSD uses
    #[command(subcommand)]
    Store(StoreCommand),
    /// List, create, change and remove pools
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Show PGs (placement groups), and scrub them
    #[command(subcommand)]
    Pg(PgCommand),
    /// Suspend automatic actions of the cluster, such as rebalancing
    #[command(subcommand)]
    Flag(FlagCommand),
    /// Show and change settings of the whole cluster
    #[command(subcommand)]
    Settings(SettingsCommand),
    /// List, create, rotate and destroy the keys that wrap all other keys
    #[command(subcommand)]
    Key(KeyCommand),
    /// Create, list, resize and remove block images
    #[command(subcommand)]
    Image(ImageCommand),
    /// List buckets, and choose whether new objects in them are sealed
    #[command(subcommand)]
    Bucket(BucketCommand),
    /// Make, list, change and remove accounts, which own buckets
    #[command(subcommand)]
    Account(AccountCommand),
    /// Make, list and remove users, and their access keys
    #[command(subcommand)]
    User(UserCommand),
    /// Make, list, fill and remove groups of users
    #[command(subcommand)]
    Group(GroupCommand),
    /// Make, list and remove roles, which users and programs assume
    #[command(subcommand)]
    Role(RoleCommand),
    /// Show the rights of users, groups and roles, and the reason for a refused request
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Measure the cluster, its parts and the disks below it
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Check host readiness and suggest fixes: drives, CPU, memory, clock, io_uring, network
    Preflight(PreflightArguments),
    /// Search for failures of the PG protocol in simulated clusters
    #[command(disable_help_flag = true)]
    Sim(LaboratoryArguments),
    /// Show past events: failures, fail-overs, recoveries, commands
    Events(EventsArguments),
    /// Verify that no line of an audit log was changed or removed, and list the known logs
    #[command(subcommand)]
    Audit(AuditCommand),
    /// Show the current load of OSDs, pools, images, gateways and buckets
    Top(TopArguments),
    /// Show slow operations, and where their time went
    Slow(SlowArguments),
    /// Show the metrics of processes, and let Prometheus read them
    #[command(subcommand)]
    Metrics(MetricsCommand),
    /// Manage console operators
    #[command(subcommand)]
    Operator(OperatorCommand),
    /// List, approve and deny operations that need a second operator
    #[command(subcommand)]
    Approval(ApprovalCommand),
    /// Run the admin server (started by 'atoll up')
    #[command(subcommand)]
    Admin(AdminCommand),
    /// Save and restore cluster state, and run its embedded server (started by 'atoll up')
    #[command(subcommand)]
    State(StateCommand),
    /// Run the S3 gateway (started by 'atoll up')
    #[command(subcommand)]
    Gateway(GatewayCommand),
    /// Run the NBD server (started by 'atoll up')
    #[command(subcommand)]
    Nbd(NbdCommand),
    /// Run the NVMe/TCP target (started by 'atoll up --nvme-listen')
    #[command(subcommand)]
    Nvme(NvmeCommand),
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  atoll completion bash > /etc/bash_completion.d/atoll")]
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// All commands with all of their options.
fn command() -> clap::Command {
    watch::with_watch(Arguments::command())
}

/// Runs the command line of this process.
pub fn run() -> anyhow::Result<ExitCode> {
    let matches = command().get_matches();
    let run = || Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()).command.run();
    if let Some(pause) = watch::pause(&matches) {
        return watch::run(pause, run);
    }
    let audited = AuditedCommand::begin(&matches)?;
    let done = run();
    if let Some(audited) = audited {
        let (who, heads) = audited.end(&done);
        publish_heads(&who, &heads);
    }
    done
}

/// Runs a command line that is given as text.
fn execute(arguments: Vec<String>) -> anyhow::Result<ExitCode> {
    Arguments::try_parse_from(arguments)?.command.run()
}

impl Command {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Command::Health(arguments) => return health::run(&arguments),
            Command::Preflight(arguments) => return preflight::run(arguments),
            Command::Up(arguments) => return up::up(&arguments),
            Command::Down(data) => up::down(&data)?,
            Command::Join(arguments) => join::run(&arguments)?,
            Command::Cluster(command) => cluster::run(&command)?,
            Command::Host(command) => host::run(&command)?,
            Command::Status(output) => status::status(&output)?,
            Command::Df(output) => status::df(&output)?,
            Command::Credentials(arguments) => status::credentials(&arguments)?,
            Command::Osd(command) => osd::run(command)?,
            Command::Store(command) => store::run(&command)?,
            Command::Pool(command) => return pool::run(&command),
            Command::Pg(command) => pg::run(&command)?,
            Command::Flag(command) => flag::run(&command)?,
            Command::Settings(command) => settings::run(&command)?,
            Command::Image(command) => image::run(command)?,
            Command::Bucket(command) => bucket::run(&command)?,
            Command::Account(command) => identity::account::run(&command)?,
            Command::User(command) => identity::user::run(&command)?,
            Command::Group(command) => identity::group::run(&command)?,
            Command::Role(command) => identity::role::run(&command)?,
            Command::Policy(command) => identity::policy::run(&command)?,
            Command::Key(command) => key::run(&command)?,
            Command::Bench(command) => bench::run(command)?,
            Command::Sim(arguments) => laboratory::run("sim", &arguments)?,
            Command::Events(arguments) => events::run(&arguments)?,
            Command::Top(arguments) => top::run(&arguments)?,
            Command::Audit(command) => return audit::run(&command),
            Command::Slow(arguments) => slow::run(&arguments)?,
            Command::Metrics(command) => metrics::run(&command)?,
            Command::Operator(command) => operator::run(&command)?,
            Command::Approval(command) => approval::run(&command)?,
            Command::Admin(command) => admin::run(&command, execute)?,
            Command::State(command) => return state::run(&command),
            Command::Gateway(command) => gateway::run(&command)?,
            Command::Nbd(command) => nbd::run(command)?,
            Command::Nvme(command) => nvme::run(command)?,
            Command::Completion { shell } => {
                let mut script = Vec::new();
                clap_complete::generate(shell, &mut command(), "atoll", &mut script);
                print_line!("{}", String::from_utf8_lossy(&script).trim_end());
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
pub mod tests {
    use super::command;

    /// The words of all commands that do something.
    pub fn all_commands() -> Vec<Vec<String>> {
        fn add(command: &clap::Command, before: &[String], all: &mut Vec<Vec<String>>) {
            for inner in command.get_subcommands() {
                let words = [before, &[inner.get_name().to_owned()]].concat();
                match inner.has_subcommands() {
                    true => add(inner, &words, all),
                    false => all.push(words),
                }
            }
        }
        let mut all = Vec::new();
        add(&command(), &[], &mut all);
        all
    }
}
