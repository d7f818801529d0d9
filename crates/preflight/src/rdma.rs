//! Requirements of RDMA: memory that this process may lock, because adapters read and write it without asking.

use atoll_types::size::format_size;

use crate::facts::Facts;
use crate::finding::{Finding, Verdict};

/// Largest memory that an OSD registers with one adapter (docs/internals/rdma.md, Bounds), and some for queues.
const LOCKED_BYTES_WANTED: u64 = 640 << 20;
/// The bit of CAP_IPC_LOCK, with which no limit holds.
const IPC_LOCK_BIT: u32 = 14;

/// Findings of a host whose OSDs use RDMA by this provider of libfabric, if they do. The limit of locked memory is this
/// process's, which those that it starts have, too.
pub(crate) fn findings(facts: &Facts, provider: Option<&str>, locked_bytes_max: Option<u64>) -> Vec<Finding> {
    provider.map(|provider| locked_memory(facts, provider, locked_bytes_max)).into_iter().collect()
}

fn may_lock_all(facts: &Facts) -> bool {
    let status = facts.text("proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|text| u64::from_str_radix(text.trim(), 16).ok())
        .is_some_and(|bits| bits >> IPC_LOCK_BIT & 1 == 1)
}

fn locked_memory(facts: &Facts, provider: &str, limit: Option<u64>) -> Finding {
    let check = "rdma.locked_memory";
    let Some(limit) = limit else {
        let found = "no limit of locked memory";
        return Finding::new(check, Verdict::Ok, found, "adapters may use memory up to Atoll's own bounds");
    };
    let found = format!("at most {} of locked memory", format_size(limit));
    let finding = |verdict, meaning: String| {
        Finding::new(check, verdict, found.clone(), meaning).figure("locked_bytes_max", limit as f64)
    };
    if may_lock_all(facts) {
        return finding(Verdict::Ok, "this user has CAP_IPC_LOCK, for whom the limit does not hold".into());
    }
    if limit >= LOCKED_BYTES_WANTED {
        return finding(Verdict::Ok, "enough for all that an OSD registers with an adapter".into());
    }
    let meaning = format!(
        "an OSD registers up to {} with an adapter (libfabric's provider '{provider}'): beyond the limit data is copied, \
         and peers for which there is no more memory use TCP",
        format_size(LOCKED_BYTES_WANTED)
    );
    finding(Verdict::Warning, meaning)
        .fix("LimitMEMLOCK=infinity in the systemd unit, or 'ulimit -l unlimited' before 'atoll up'")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::facts_of;

    fn verdict(capabilities: &str, limit: Option<u64>) -> Verdict {
        let status = format!("Name:\tatoll\nCapEff:\t{capabilities}\n");
        let (_keep, facts) = facts_of(&[("proc/self/status", &status)]);
        let [finding] = &findings(&facts, Some("verbs"), limit)[..] else { panic!("one finding is expected") };
        assert_eq!(finding.fix.is_some(), finding.verdict == Verdict::Warning);
        finding.verdict
    }

    #[test]
    fn a_low_limit_of_locked_memory_is_a_warning_where_it_holds() {
        assert_eq!(verdict("0000000000000000", None), Verdict::Ok);
        assert_eq!(verdict("0000000000000000", Some(LOCKED_BYTES_WANTED)), Verdict::Ok);
        assert_eq!(verdict("0000000000000000", Some(8 << 20)), Verdict::Warning);
        assert_eq!(verdict("00000000a80425fb", Some(8 << 20)), Verdict::Warning, "a container's root");
        assert_eq!(verdict("000001ffffffffff", Some(8 << 20)), Verdict::Ok);
        assert_eq!(verdict("unknown", Some(8 << 20)), Verdict::Warning);
    }

    #[test]
    fn hosts_without_rdma_have_no_rdma_findings() {
        let (_keep, facts) = facts_of(&[]);
        assert!(findings(&facts, None, Some(0)).is_empty());
    }
}
