//! Arguments that several commands share.

use std::path::PathBuf;

use atoll_types::records::FailureDomain;
use atoll_types::{ObjectName, OsdId};
use clap::{Args, ValueEnum};

#[derive(Args, Clone)]
pub struct DataArgument {
    /// The cluster's data directory
    #[arg(long, value_name = "DIR", env = "ATOLL_DATA", default_value = "./atoll-data")]
    pub data: PathBuf,
}

#[derive(Args, Clone)]
pub struct OutputArguments {
    #[command(flatten)]
    pub data: DataArgument,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
}

/// `3` or `osd.3`.
pub fn parse_osd_id(text: &str) -> Result<OsdId, String> {
    let number = text.strip_prefix("osd.").unwrap_or(text);
    number.parse().map(OsdId).map_err(|_| format!("'{text}' is not an OSD: use its number, as 3 or osd.3"))
}

pub fn parse_object_name(text: &str) -> Result<ObjectName, String> {
    ObjectName::new(text).ok_or_else(|| "an object's name has 1 to 255 bytes".into())
}

#[derive(Clone, Copy, ValueEnum)]
pub enum FailureDomainArgument {
    Osd,
    Host,
    Rack,
    Zone,
}

impl From<FailureDomainArgument> for FailureDomain {
    fn from(argument: FailureDomainArgument) -> Self {
        match argument {
            FailureDomainArgument::Osd => FailureDomain::Osd,
            FailureDomainArgument::Host => FailureDomain::Host,
            FailureDomainArgument::Rack => FailureDomain::Rack,
            FailureDomainArgument::Zone => FailureDomain::Zone,
        }
    }
}

/// `4+2`: data and parity shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErasureCode {
    pub data: u32,
    pub parity: u32,
}

/// The cluster decides if it has enough failure domains for the code.
pub fn parse_erasure_code(text: &str) -> Result<ErasureCode, String> {
    let numbers = text.split_once('+').and_then(|(data, parity)| Some((data.parse().ok()?, parity.parse().ok()?)));
    let (data, parity) = numbers.ok_or_else(|| {
        "a code is K+M, such as 4+2: K data shards (2 to 16) and M parity shards (1 to 4); any M of them may be lost"
            .to_owned()
    })?;
    Ok(ErasureCode { data, parity })
}

/// Encryption and authentication of data in the gateway or NBD server, before it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SealingArgument {
    On,
    Off,
}

impl SealingArgument {
    pub fn is_on(self) -> bool {
        self == SealingArgument::On
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes() {
        assert_eq!(parse_erasure_code("4+2"), Ok(ErasureCode { data: 4, parity: 2 }));
        for wrong in ["", "4", "4+", "+2", "4+2+1", "4-2", "-4+2", "4 + 2", "a+b", "99999999999+1"] {
            assert!(parse_erasure_code(wrong).unwrap_err().contains("such as 4+2"), "{wrong}");
        }
    }
}
