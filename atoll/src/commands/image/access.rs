//! Clients that may use an image through NBD and NVMe/TCP.

use atoll_terminal::print_line;
use atoll_types::records::{ExportAccess, ImageExport};
use clap::{Args, ValueEnum};
use serde_json::json;

use super::super::arguments::OutputArguments;
use super::super::output::print_json;
use super::{ImageAccess, TIMEOUT_MS};

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll image access disk1                                 show it
  atoll image access disk1 --allow vm1.example             over TCP only the client with this name in its certificate
  atoll image access disk1 --allow 10.0.0.0/8              over TCP also clients without a certificate from there
  atoll image access disk1 --allow nqn.2014-08.org.nvmexpress:uuid:3f1c...   over NVMe/TCP the host of this name
  atoll image access shared --access multi-attach          for cluster file systems
  atoll image access golden --access read-only
  atoll image access disk1 --reset                         one client at a time, over TCP with any certificate

Who may open the NBD server's Unix socket may use every image. Over TCP, clients need a certificate that the authority for
clients has signed (--tls-client-ca) unless their address is allowed here. NVMe hosts need to be allowed, by name or
address. A connected client that the image does not allow any more is cut off within seconds; the others stay.")]
pub struct AccessArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// The image
    pub name: String,
    /// Number of clients that may use it at once, for reading or writing
    #[arg(long, value_enum)]
    pub access: Option<AccessArgument>,
    /// A name in a client's certificate or of an NVMe host, an address or network, or '*' for every client; may be
    /// given several times, and replaces the previous list
    #[arg(long, value_name = "CLIENT")]
    pub allow: Vec<String>,
    /// Reset to the values of a new image, except for other options given here
    #[arg(long)]
    pub reset: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AccessArgument {
    /// One client reads and writes, over any number of connections
    Exclusive,
    /// Several clients read and write, and agree among themselves who writes where
    MultiAttach,
    /// Any number of clients read, and none writes
    ReadOnly,
}

/// `atoll image access`.
pub fn run(arguments: &AccessArguments) -> anyhow::Result<()> {
    let access = ImageAccess::new(&arguments.output.data, TIMEOUT_MS)?;
    let (record, _) = access.block_on_tokio(access.admin.get(&arguments.name))?;
    let mut export = if arguments.reset { ImageExport::default() } else { record.export.unwrap_or_default() };
    if let Some(wanted) = arguments.access {
        export.access = match wanted {
            AccessArgument::Exclusive => ExportAccess::Exclusive,
            AccessArgument::MultiAttach => ExportAccess::MultiAttach,
            AccessArgument::ReadOnly => ExportAccess::ReadOnly,
        };
    }
    if !arguments.allow.is_empty() {
        export.clients = arguments.allow.clone();
    }
    if arguments.reset || arguments.access.is_some() || !arguments.allow.is_empty() {
        access.block_on_tokio(access.admin.set_export(&arguments.name, &export))?;
    }
    if arguments.output.json {
        return print_json(&json!(export));
    }
    let text = match export.access {
        ExportAccess::Exclusive => "exclusive: one client reads and writes",
        ExportAccess::MultiAttach => "multi-attach: several clients read and write",
        ExportAccess::ReadOnly => "read-only",
    };
    print_line!("access   {text}");
    match &export.clients[..] {
        [] => print_line!("over TCP clients with a certificate of the authority for clients; no NVMe hosts"),
        clients => print_line!("over TCP {}", clients.join(", ")),
    }
    Ok(())
}
