//! Identifiers and versions.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use arrayvec::ArrayString;
use serde::{Deserialize, Serialize};

use crate::limits;

/// Number of an OSD, unique in the cluster for its lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OsdId(pub u32);

impl fmt::Display for OsdId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "osd.{}", self.0)
    }
}

/// Number of a pool, unique in the cluster for its lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PoolId(pub u32);

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A PG: `index` is below the pool's `pg_num`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PgId {
    /// The pool that the PG belongs to.
    pub pool: PoolId,
    /// The PG's number within its pool.
    pub index: u32,
}

impl PgId {
    fn order(self) -> u64 {
        u64::from(self.pool.0) << 32 | u64::from(self.index)
    }
}

/// By pool, then by index; in one step, because an OSD looks its PGs up many times per operation.
impl Ord for PgId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order().cmp(&other.order())
    }
}

impl PartialOrd for PgId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for PgId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:x}", self.pool.0, self.index)
    }
}

impl FromStr for PgId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (pool, index) = text.split_once('.')?;
            Some(PgId { pool: PoolId(pool.parse().ok()?), index: u32::from_str_radix(index, 16).ok()? })
        };
        parse().ok_or_else(|| format!("'{text}' is not a PG id such as 1.1f"))
    }
}

/// Generation of a PG's configuration; every change of the PG's record raises it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}", self.0)
    }
}

/// Position of a write in its PG's history, ordered by epoch and then by sequence. The sequence continues across
/// epochs, so it never repeats within a PG.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Version {
    /// The epoch in which the primary ordered the write.
    pub epoch: Epoch,
    /// Position within the PG's history, starting at 1; 0 means "nothing written".
    pub sequence: u64,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.sequence)
    }
}

/// Names one request of one client session, so that a retry is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    /// Random number drawn by the client when it starts.
    pub session: u64,
    /// Counts the session's requests.
    pub sequence: u64,
}

/// Name of an object within its pool: 1 to [`limits::OBJECT_NAME_BYTES_MAX`] bytes of UTF-8.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ObjectName(Text);

/// Room for the names of images' objects, which OSDs hold in logs in large numbers: allocating each apart would
/// take more time than the rest of its entry.
const SHORT_BYTES_MAX: usize = 32;

/// The length alone decides which of them a name is.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Text {
    Short(ArrayString<SHORT_BYTES_MAX>),
    Long(Arc<str>),
}

impl ObjectName {
    /// Checks the length and wraps the name; `None` when it is empty or too long.
    pub fn new(name: &str) -> Option<Self> {
        let allowed = 1..=limits::OBJECT_NAME_BYTES_MAX;
        let text = || ArrayString::from(name).map_or_else(|_| Text::Long(name.into()), Text::Short);
        allowed.contains(&name.len()).then(|| ObjectName(text()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Text::Short(text) => text,
            Text::Long(text) => text,
        }
    }
}

impl PartialOrd for ObjectName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ObjectName {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl fmt::Debug for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ObjectName").field(&self.as_str()).finish()
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pg_ids_print_and_parse() {
        let pg = PgId { pool: PoolId(2), index: 0x1f };
        assert_eq!(pg.to_string(), "2.1f");
        assert_eq!("2.1f".parse::<PgId>().unwrap(), pg);
        assert!("2".parse::<PgId>().is_err());
        assert!("2.xyz".parse::<PgId>().is_err());
    }

    #[test]
    fn versions_order_by_epoch_first() {
        let old = Version { epoch: Epoch(1), sequence: 9 };
        let new = Version { epoch: Epoch(2), sequence: 3 };
        assert!(old < new);
    }

    #[test]
    fn object_names_are_bounded() {
        assert!(ObjectName::new("").is_none());
        assert!(ObjectName::new(&"x".repeat(limits::OBJECT_NAME_BYTES_MAX)).is_some());
        assert!(ObjectName::new(&"x".repeat(limits::OBJECT_NAME_BYTES_MAX + 1)).is_none());
    }

    #[test]
    fn object_names_of_any_length_come_back_and_are_in_order() {
        let text = "é".repeat(limits::OBJECT_NAME_BYTES_MAX / 2);
        let names: Vec<&str> = (2..=text.len()).step_by(2).map(|length| &text[..length]).collect();
        let of = |text: &&str| ObjectName::new(text).unwrap();
        assert!(names.iter().all(|text| of(text).as_str() == *text && of(text) == of(text).clone()));
        assert!(names.iter().map(of).is_sorted_by(|before, after| before < after));
    }
}
