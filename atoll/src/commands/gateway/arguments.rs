//! How S3 clients come in.

use std::net::SocketAddr;
use std::num::NonZero;
use std::path::PathBuf;

use atoll_audit::Target;
use atoll_node::{LISTEN_OFF, is_dns_name};
use atoll_s3::TrustedProxy;
use atoll_types::access::ObjectOwnership;
use clap::{Args, ValueEnum};

use crate::commands::audit_log::AuditRoomArguments;

/// Where the S3 gateway of `atoll up` listens.
#[derive(Args, Clone)]
pub struct S3ListenArguments {
    /// Where the S3 gateway listens for plain HTTP [default: 127.0.0.1:9000]
    #[arg(long, value_name = "IP:PORT|off", value_parser = parse_listen)]
    pub s3_listen: Option<String>,
    /// Where the S3 gateway listens for HTTPS, with DIR/tls/server.crt [default: 127.0.0.1:9443]
    #[arg(long, value_name = "IP:PORT|off", value_parser = parse_listen)]
    pub s3_tls_listen: Option<String>,
    /// A further name or address by which clients reach this host, such as that of a load balancer, for this
    /// host's generated certificate; may be given several times
    #[arg(long, value_name = "NAME", value_parser = parse_tls_name)]
    pub tls_name: Vec<String>,
}

/// How one gateway process serves.
#[derive(Args, Clone)]
pub struct GatewayArguments {
    /// Listen here for plain HTTP [default: the address given to 'atoll up']
    #[arg(long, value_name = "IP:PORT|off", value_parser = parse_listen)]
    pub s3_listen: Option<String>,
    /// Listen here for HTTPS [default: the address given to 'atoll up']
    #[arg(long, value_name = "IP:PORT|off", value_parser = parse_listen)]
    pub s3_tls_listen: Option<String>,
    /// Directory with certificates: a client gets the pair NAME.crt and NAME.key whose certificate is for the host
    /// that it asks for, or else 'server' [default: DIR/tls]. They are read again when they change, and on SIGHUP
    #[arg(long, value_name = "DIR", env = "ATOLL_TLS_CERTS")]
    pub tls_certs: Option<PathBuf>,
    /// Ask clients for certificates of this authority (PEM)
    #[arg(long, value_name = "FILE", env = "ATOLL_TLS_CLIENT_CA")]
    pub tls_client_ca: Option<PathBuf>,
    /// Require client certificates or not; a certificate that is shown is checked in any case
    #[arg(long, value_name = "WHEN", env = "ATOLL_TLS_CLIENT_AUTH", default_value = "required")]
    pub tls_client_auth: ClientAuthArgument,
    /// The oldest version of TLS that is spoken
    #[arg(long, value_name = "VERSION", env = "ATOLL_TLS_MIN", default_value = "1.2")]
    pub tls_min: TlsVersionArgument,
    /// How long a key of a bucket is used without asking the key service again
    #[arg(long, value_name = "SECONDS", env = "ATOLL_KEY_LIFETIME_SECONDS", default_value_t = 3_600)]
    pub key_lifetime_seconds: u64,
    /// Longest time that requests are served while cluster state does not confirm rights: rights that were removed
    /// meanwhile count until then
    #[arg(
        long,
        value_name = "SECONDS",
        env = "ATOLL_S3_IDENTITY_LIFETIME_SECONDS",
        default_value_t = 30,
        value_parser = clap::value_parser!(u32).range(5..=86_400)
    )]
    pub identity_lifetime_seconds: u32,
    /// How long data that was replaced or deleted is kept for GETs that are still reading it, the same for all
    /// gateways; it is removed within the same time again, at most a minute
    #[arg(long, value_name = "SECONDS", env = "ATOLL_GARBAGE_GRACE_SECONDS", default_value_t = 60)]
    pub garbage_grace_seconds: u64,
    /// Addresses and networks of proxies that are believed: their PROXY headers, X-Forwarded-For, and that a request
    /// came to them over TLS (X-Forwarded-Proto)
    #[arg(long, value_name = "IP|CIDR", env = "ATOLL_TRUSTED_PROXIES", value_delimiter = ',')]
    pub trusted_proxies: Vec<TrustedProxy>,
    /// Where a line of JSON for each request goes: a file, or the URL of a collector that takes them by POST,
    /// or 'off' [default: DIR/log/s3-audit.jsonl]
    #[arg(long, value_name = "FILE|URL|off", env = "ATOLL_S3_AUDIT_LOG")]
    pub audit_log: Option<Target>,
    #[command(flatten)]
    pub audit_room: AuditRoomArguments,
    /// Owner of the objects in new buckets, unless the request that makes a bucket names one
    #[arg(
        long,
        value_name = "OWNERSHIP",
        env = "ATOLL_S3_OBJECT_OWNERSHIP",
        default_value = "bucket-owner-enforced"
    )]
    pub object_ownership: ObjectOwnershipArgument,
    /// Accept signature version 2 on forms and presigned URLs. Older clients make it by default. It uses HMAC-SHA1
    /// and does not cover bodies
    #[arg(long, value_name = "on|off", env = "ATOLL_S3_SIGNATURE_VERSION_2", default_value = "on")]
    pub signature_version_2: Switch,
    /// Threads that serve requests, each with connections of its own to OSDs [default: one for each two processors,
    /// 1 to 8]
    #[arg(long, value_name = "NUMBER", env = "ATOLL_S3_THREADS", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub threads: Option<u16>,
}

/// As many processors have one thread that serves requests: more threads on fewer processors have less to do
/// together, and OSDs and hashers need some, too.
const PROCESSORS_PER_THREAD: usize = 2;
const DEFAULT_THREADS_MAX: usize = 8;

impl GatewayArguments {
    /// How many threads serve requests.
    pub fn threads(&self) -> usize {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        let default = (processors / PROCESSORS_PER_THREAD).clamp(1, DEFAULT_THREADS_MAX);
        self.threads.map_or(default, usize::from)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ObjectOwnershipArgument {
    /// Everything belongs to the owner of the bucket; ACLs are off, as on S3
    BucketOwnerEnforced,
    /// Objects belong to their writer, or to the owner of the bucket if it gets full control
    BucketOwnerPreferred,
    /// Objects belong to their writer; ACLs are on, as with RGW
    ObjectWriter,
}

impl From<ObjectOwnershipArgument> for ObjectOwnership {
    fn from(argument: ObjectOwnershipArgument) -> Self {
        match argument {
            ObjectOwnershipArgument::BucketOwnerEnforced => ObjectOwnership::BucketOwnerEnforced,
            ObjectOwnershipArgument::BucketOwnerPreferred => ObjectOwnership::BucketOwnerPreferred,
            ObjectOwnershipArgument::ObjectWriter => ObjectOwnership::ObjectWriter,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// They are taken
    On,
    /// They are refused
    Off,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ClientAuthArgument {
    /// Clients without a certificate are served, too
    Optional,
    /// They are refused
    Required,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TlsVersionArgument {
    /// TLS 1.2 and 1.3
    #[value(name = "1.2")]
    V12,
    /// TLS 1.3
    #[value(name = "1.3")]
    V13,
}

pub fn parse_listen(text: &str) -> Result<String, String> {
    if text == LISTEN_OFF {
        return Ok(text.into());
    }
    let address = text.parse::<SocketAddr>();
    address
        .map(|address| address.to_string())
        .map_err(|_| "give an address such as 127.0.0.1:9000, or 'off'".into())
}

fn parse_tls_name(text: &str) -> Result<String, String> {
    let is_fit = text.parse::<std::net::IpAddr>().is_ok() || is_dns_name(text);
    is_fit.then(|| text.to_owned()).ok_or_else(|| format!("'{text}' is neither a host name nor an IP address"))
}
