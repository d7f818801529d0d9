//! Arguments of `atoll preflight`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use atoll_preflight::{PORT_DEFAULT, PeerAddress};
use clap::Args;

const HELP: &str = "\
Examples:
  atoll preflight                                                    this host, without touching its drives
  atoll preflight --device /dev/nvme0n1 --device /dev/sda            and read tests of two drives
  atoll preflight --device /srv --write-test                         durable writes in a file that is made and removed
  atoll preflight --device /dev/nvme0n1 --write-test --wipe --toggle-write-cache
  atoll preflight --listen 10.0.0.2                                  on one host, until Ctrl-C, and then on another:
  atoll preflight --peer 10.0.0.2 --json | jq '.findings[] | select(.verdict == \"problem\")'

Each finding is ok, not visible (as much is in virtual machines), advice, a warning or a problem, with what it
means and how to fix it; docs/preflight.md explains them all. Exit codes: 0 deployable, 1 problems were found or
it failed, 2 wrong usage.";

#[derive(Args)]
#[command(after_help = HELP)]
pub struct PreflightArguments {
    /// A block device, or a file or directory on it; may be given several times. Block devices are read for some
    /// seconds [default: only the settings of all disks]
    #[arg(long, value_name = "PATH")]
    pub device: Vec<PathBuf>,
    /// Measure durable writes, too: in a new file in the directory or beside the file; on a block device, over
    /// what it holds
    #[arg(long, requires = "device")]
    pub write_test: bool,
    /// Let the write test destroy what block devices hold
    #[arg(long, requires = "write_test")]
    pub wipe: bool,
    /// Switch each drive's volatile write cache off (or on), measure again, and switch it back
    #[arg(long, requires = "write_test")]
    pub toggle_write_cache: bool,
    /// A host on which 'atoll preflight --listen' runs; may be given several times
    #[arg(long, value_name = "HOST[:PORT]")]
    pub peer: Vec<PeerAddress>,
    /// Check nothing; answer the probes of other hosts on TCP and UDP of this address [port: 7477]
    #[arg(long, value_name = "IP[:PORT]", value_parser = parse_listen, conflicts_with_all = ["device", "peer"])]
    pub listen: Option<SocketAddr>,
    /// How long each measurement takes [default: 3]; with --listen, when to end [default: 3600]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: Option<u64>,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
}

fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok((ip, PORT_DEFAULT).into());
    }
    text.parse()
        .map_err(|_| format!("'{text}' is not an address: use IP or IP:PORT, such as 10.0.0.2:{PORT_DEFAULT}"))
}
