//! Which blocks are accessed, and how.

use serde::{Deserialize, Serialize};

/// Which blocks are accessed, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AccessPattern {
    /// Writes at random places.
    #[serde(rename = "randwrite")]
    RandomWrite,
    /// Reads at random places.
    #[serde(rename = "randread")]
    RandomRead,
    /// Writes in order.
    #[serde(rename = "write")]
    Write,
    /// Reads in order.
    #[serde(rename = "read")]
    Read,
    /// Reads and writes at random places.
    #[serde(rename = "randrw")]
    RandomMixed,
    /// Reads and writes in order.
    #[serde(rename = "rw")]
    Mixed,
}

impl AccessPattern {
    /// All there are.
    pub const ALL: [AccessPattern; 6] = [
        AccessPattern::RandomWrite,
        AccessPattern::RandomRead,
        AccessPattern::Write,
        AccessPattern::Read,
        AccessPattern::RandomMixed,
        AccessPattern::Mixed,
    ];

    /// The name that fio uses.
    pub fn name(self) -> &'static str {
        match self {
            AccessPattern::RandomWrite => "randwrite",
            AccessPattern::RandomRead => "randread",
            AccessPattern::Write => "write",
            AccessPattern::Read => "read",
            AccessPattern::RandomMixed => "randrw",
            AccessPattern::Mixed => "rw",
        }
    }

    /// Returns true for patterns of writes alone.
    pub fn is_write(self) -> bool {
        matches!(self, AccessPattern::RandomWrite | AccessPattern::Write)
    }

    /// Returns true for patterns of reads and writes.
    pub fn is_mixed(self) -> bool {
        matches!(self, AccessPattern::RandomMixed | AccessPattern::Mixed)
    }

    /// Returns true for random places.
    pub fn is_random(self) -> bool {
        matches!(self, AccessPattern::RandomWrite | AccessPattern::RandomRead | AccessPattern::RandomMixed)
    }
}

impl std::str::FromStr for AccessPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = AccessPattern::ALL.into_iter().find(|known| known.name() == text);
        found.ok_or_else(|| {
            format!("'{text}' is not a pattern: use randwrite, randread, write, read, randrw or rw")
        })
    }
}
