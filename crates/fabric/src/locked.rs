//! How much memory this process may lock. The memory of a device is locked, so this is a limit of RDMA.

use std::fmt;

use rustix::process::{Resource, getrlimit};

/// The limit of locked memory (`RLIMIT_MEMLOCK`), in bytes; nothing if there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockedMemory(Option<u64>);

impl LockedMemory {
    /// That of this process, now.
    pub fn of_this_process() -> Self {
        LockedMemory(getrlimit(Resource::Memlock).current)
    }

    /// In bytes; nothing if there is no limit.
    pub fn bytes_max(self) -> Option<u64> {
        self.0
    }
}

impl fmt::Display for LockedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(bytes) => write!(
                f,
                "an RDMA device locks the memory that it uses, and this process may lock {} KiB \
                 (RLIMIT_MEMLOCK); raise the limit: LimitMEMLOCK=infinity in a systemd unit, or 'ulimit -l \
                 unlimited' before the start",
                bytes / 1024
            ),
            None => f.write_str("this process may lock all memory, so the system or the device has no more of it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_named_with_its_remedy() {
        let low = LockedMemory(Some(8 << 20)).to_string();
        assert!(low.contains("8192 KiB") && low.contains("LimitMEMLOCK=infinity"), "{low}");
        assert!(!LockedMemory(None).to_string().contains("raise"));
        assert_eq!(LockedMemory::of_this_process().bytes_max(), getrlimit(Resource::Memlock).current);
    }
}
