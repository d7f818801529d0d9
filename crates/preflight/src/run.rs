//! All checks, in their order.

use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

use atoll_fabric::LockedMemory;

use crate::facts::Facts;
use crate::finding::{Finding, Report};
use crate::request::{Request, Stop};
use crate::{clock, cpu, drive, io_uring, memory, network, rdma, wake_up};

/// Why nothing was looked at.
#[derive(Debug, thiserror::Error)]
pub enum PreflightError {
    /// A write test would destroy the content of a block device.
    #[error(
        "the write test would destroy the content of {}; repeat with --wipe to confirm, or name a directory on \
         it, in which a file is made and removed",
        path.display()
    )]
    WouldDestroy {
        /// The block device.
        path: PathBuf,
    },
    /// It was stopped before its end.
    #[error("stopped before the end; the incomplete measurements would be misleading and are not shown")]
    Stopped,
}

/// Looks at everything. `progress` gets the name of each check before it begins.
pub fn run(
    facts: &Facts,
    request: &Request,
    stop: &Stop,
    progress: &dyn Fn(&str),
) -> Result<Report, PreflightError> {
    refuse_destruction(request)?;
    progress("processor, memory, clock and io_uring");
    let mut findings: Vec<Finding> = cpu::findings(facts);
    findings.extend(wake_up::findings(facts));
    findings.extend(memory::findings(facts));
    findings.extend(clock::findings(facts));
    findings.extend(io_uring::findings(facts, &io_uring::Process::this()));
    let locked = LockedMemory::of_this_process();
    findings.extend(rdma::findings(facts, request.rdma_provider.as_deref(), locked.bytes_max()));
    if request.devices.is_empty() {
        findings.extend(drive::settings_of_all(facts));
    }
    for device in &request.devices {
        if stop.is_set() {
            break;
        }
        progress(&device.display().to_string());
        findings.extend(drive::findings(facts, device, request, stop));
    }
    findings.extend(network::card_findings(facts));
    for peer in &request.peers {
        if stop.is_set() {
            break;
        }
        progress(&peer.to_string());
        findings.extend(network::peer_findings(peer, request, stop));
    }
    if stop.is_set() { Err(PreflightError::Stopped) } else { Ok(Report::new(findings)) }
}

/// Before anything is written anywhere.
fn refuse_destruction(request: &Request) -> Result<(), PreflightError> {
    if !request.write_test || request.wipe {
        return Ok(());
    }
    let is_device = |path: &&PathBuf| path.metadata().is_ok_and(|found| found.file_type().is_block_device());
    match request.devices.iter().find(is_device) {
        Some(path) => Err(PreflightError::WouldDestroy { path: path.clone() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::facts_of;
    use crate::finding::Verdict;

    #[test]
    fn checks_without_readable_facts_are_not_visible() {
        let (_keep, facts) = facts_of(&[]);
        let report = run(&facts, &Request::default(), &Stop::default(), &|_| ()).unwrap();
        let of = |check: &str| report.findings.iter().find(|finding| finding.check == check).unwrap();
        for check in ["cpu.governor", "cpu.encryption", "memory.size", "clock.source", "network.card"] {
            assert_eq!(of(check).verdict, Verdict::NotVisible, "{check}");
        }
    }

    #[test]
    fn every_bad_finding_says_how_to_fix_it() {
        let (_keep, facts) = facts_of(&[
            ("proc/cpuinfo", "flags : fpu"),
            ("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 1000 kB\nSwapTotal: 1000 kB\n"),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave"),
            ("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet"),
            ("proc/sys/kernel/osrelease", "5.4.0"),
            ("proc/sys/kernel/io_uring_disabled", "2"),
            ("sys/block/sda/device/model", "x"),
            ("sys/block/sda/queue/write_cache", "write back"),
            ("sys/block/sda/queue/scheduler", "[bfq]"),
            ("sys/block/sda/queue/rotational", "0"),
        ]);
        let report = run(&facts, &Request::default(), &Stop::default(), &|_| ()).unwrap();
        assert!(!report.deployable);
        let bad: Vec<&Finding> =
            report.findings.iter().filter(|finding| finding.verdict >= Verdict::Advice).collect();
        assert!(bad.len() >= 9, "{bad:#?}");
        for finding in bad {
            assert!(finding.fix.is_some() && !finding.meaning.is_empty(), "{finding:?}");
        }
    }

    #[test]
    fn a_run_that_was_stopped_shows_nothing() {
        let stop = Stop::default();
        stop.set();
        let (_keep, facts) = facts_of(&[]);
        assert!(matches!(run(&facts, &Request::default(), &stop, &|_| ()), Err(PreflightError::Stopped)));
    }
}
