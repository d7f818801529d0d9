//! Keeping the process inside its memory target: all other memory is measured, and the store's caches get the
//! rest.

/// Memory targets below this leave no room for caches worth having, in bytes.
pub const MEMORY_TARGET_BYTES_MIN: u64 = 256 << 20;

/// Memory for the store's caches, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Budgets {
    /// For metadata pages.
    pub pages_bytes: u64,
    /// For data that is not at its place yet.
    pub pending_bytes: u64,
}

/// Shares out a target. `resident_bytes` is the process' present memory, with `cached_bytes` of the store's caches
/// in it.
pub(crate) fn share(target_bytes: u64, resident_bytes: u64, cached_bytes: u64) -> Budgets {
    let others_bytes = resident_bytes.saturating_sub(cached_bytes);
    // However much the rest takes, the store must be able to work.
    let caches_bytes = target_bytes.saturating_sub(others_bytes).max(target_bytes / 8);
    let pending_bytes = caches_bytes / 4;
    Budgets { pages_bytes: caches_bytes - pending_bytes, pending_bytes }
}

/// Memory that the process keeps for its next buffers, in bytes. Sending and receiving in long runs needs this
/// much at a time; fresh pages for it would cost more than the work with them.
pub(crate) fn kept_bytes(target_bytes: u64) -> usize {
    (target_bytes / 5).clamp(32 << 20, 256 << 20) as usize
}

/// Memory that the process takes, in bytes; 0 if the system does not say.
pub(crate) fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kibibytes = text.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix("kB"));
    kibibytes.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_get_what_the_rest_leaves() {
        const MIB: u64 = 1 << 20;
        let all = |budgets: Budgets| budgets.pages_bytes + budgets.pending_bytes;
        assert_eq!(all(share(1024 * MIB, 300 * MIB, 100 * MIB)), 824 * MIB);
        assert_eq!(all(share(1024 * MIB, 1100 * MIB, 900 * MIB)), 824 * MIB);
        assert_eq!(all(share(1024 * MIB, 5000 * MIB, 0)), 128 * MIB);
    }

    #[test]
    fn the_system_says_how_much_memory_the_process_takes() {
        let filled = vec![1_u8; 64 << 20];
        assert!(resident_bytes() > filled.len() as u64);
    }
}
