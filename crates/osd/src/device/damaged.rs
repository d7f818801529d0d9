//! A store that met damaged metadata while it was in use, and does not open for that.

use std::path::Path;

use atoll_store::{OpenError, Store};
use atoll_types::PgId;
use atoll_types::pg_copies::Incompleteness;

use super::{AtRestError, BlockingDevice, DeviceKey};
use crate::daemon::random;

/// The devices of a store that no OSD uses, to be changed.
pub struct DamagedStore(BlockingDevice);

impl DamagedStore {
    /// Takes the data device and, if there is one, the log device, and unlocks them if they are encrypted.
    pub fn open(data: &Path, log: Option<&Path>, key: Option<&DeviceKey>) -> Result<Self, AtRestError> {
        Ok(DamagedStore(BlockingDevice::open(data, log)?.unlock(key)?))
    }

    /// Returns the remembered damage; none without one.
    pub fn remembered(&mut self) -> Result<Option<String>, OpenError> {
        Store::remembered_damage(&mut self.0)
    }

    /// Has it forget that, once each of its copies of PGs says that it is torn: any other copy is better. Returns the PGs.
    pub fn forget(&mut self) -> Result<Vec<PgId>, OpenError> {
        let incarnation = u64::from_le_bytes(random());
        Store::forget_damage(&mut self.0, incarnation, |pg| atoll_pg::mark_incomplete(pg, Incompleteness::Torn))
    }
}
