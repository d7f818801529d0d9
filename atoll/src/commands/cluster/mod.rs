//! Members of the cluster: join tokens of hosts, keys of processes, and signatures of records.

mod grants;
mod key;
mod sign;
pub mod token;

use clap::Subcommand;

use self::key::PeerKeyCommand;
use self::sign::SignArguments;
use self::token::TokenCommand;

#[derive(Subcommand)]
pub enum ClusterCommand {
    /// Create, list and revoke tokens with which hosts join
    #[command(subcommand)]
    Token(TokenCommand),
    /// List and revoke the keys with which OSDs, gateways and other clients connect to OSDs
    #[command(subcommand)]
    Key(PeerKeyCommand),
    /// Show which records of cluster state are not signed by a holder of the key service, and sign them
    Sign(SignArguments),
}

/// Runs a command about who belongs to the cluster.
pub fn run(command: &ClusterCommand) -> anyhow::Result<()> {
    match command {
        ClusterCommand::Token(command) => token::run(command),
        ClusterCommand::Key(command) => key::run(command),
        ClusterCommand::Sign(arguments) => sign::run(arguments),
    }
}
