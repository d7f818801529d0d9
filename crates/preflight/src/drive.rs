//! Drives: the kernel's facts about them, and their rates of reads and durable writes.

mod judge;
mod measure;
mod remote;
mod settings;
mod target;
mod write_cache;

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use crate::facts::{Facts, last_name};
use crate::finding::{Finding, Verdict};
use crate::request::{Request, Stop};

use self::judge::{READ_CHECK, SWITCH_CHECK, SyncedRates, WRITE_CHECK, judge_reads, judge_switched, judge_writes};
use self::measure::{Durability, Rates, read_random, write_in_order};
use self::target::WriteTarget;
use self::write_cache::{Cache, Switch};

pub use judge::SyncedWriteClass;
pub use remote::remote_drive;

/// Disks with hardware behind them, real or virtual: no loop devices, RAM disks or stacked devices, nor the single paths
/// to an NVMe namespace, which the kernel hides.
pub(crate) fn disks(facts: &Facts) -> Vec<String> {
    let mut disks = facts.names("sys/block");
    let is_hidden = |disk: &str| facts.text(&format!("sys/block/{disk}/hidden")).as_deref() == Some("1");
    disks.retain(|disk| facts.exists(&format!("sys/block/{disk}/device")) && !is_hidden(disk));
    disks
}

/// Returns the kernel's facts about all disks. Nothing is read from them.
pub(crate) fn settings_of_all(facts: &Facts) -> Vec<Finding> {
    disks(facts).iter().flat_map(|disk| told_of(facts, disk)).collect()
}

fn told_of(facts: &Facts, disk: &str) -> Vec<Finding> {
    let mut findings = settings::findings(facts, disk);
    findings.extend(remote::finding(facts, disk));
    findings
}

/// The whole disk that a block device, file or directory is on; nothing if the kernel does not show
/// it, as with file systems that spread over several.
pub(crate) fn disk_of(facts: &Facts, path: &Path) -> Option<String> {
    let metadata = path.metadata().ok()?;
    let is_device = metadata.file_type().is_block_device();
    let number = if is_device { metadata.rdev() } else { metadata.dev() };
    disk_numbered(facts, &format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number)))
}

fn disk_numbered(facts: &Facts, number: &str) -> Option<String> {
    let place = facts.resolve(&format!("sys/dev/block/{number}"))?;
    let is_partition = place.join("partition").exists();
    Some(last_name(if is_partition { place.parent()? } else { &place }))
}

/// Everything about one device, file or directory that was asked for.
pub(crate) fn findings(facts: &Facts, path: &Path, request: &Request, stop: &Stop) -> Vec<Finding> {
    let subject = path.display().to_string();
    let is_device = match path.metadata() {
        Ok(metadata) => metadata.file_type().is_block_device(),
        Err(error) => return vec![failed("drive.access", &subject, &error.to_string())],
    };
    let disk = disk_of(facts, path);
    let mut findings = match &disk {
        Some(disk) => told_of(facts, disk),
        None => vec![
            Finding::not_visible("drive.settings", "which disk this is on, and how it is set, is not known")
                .on(&subject),
        ],
    };
    if is_device {
        findings.push(match read_random(path, request.duration, stop) {
            Ok(rates) => judge_reads(&subject, &rates),
            Err(error) => failed(READ_CHECK, &subject, &error.to_string()),
        });
    }
    if request.write_test && !stop.is_set() {
        findings.extend(write_findings(facts, path, disk.as_deref(), request, stop));
    }
    findings
}

fn failed(check: &'static str, subject: &str, error: &str) -> Finding {
    Finding::new(check, Verdict::Problem, error, "a drive that cannot be used cannot be measured, nor be an OSD's")
        .on(subject)
        .fix("name a drive, file or directory that this user may use (root may use all): --device PATH")
}

fn write_findings(facts: &Facts, path: &Path, disk: Option<&str>, request: &Request, stop: &Stop) -> Vec<Finding> {
    let subject = path.display().to_string();
    let measured = WriteTarget::open(facts, path, disk, request.wipe).and_then(|target| {
        let flag = write_in_order(&target, Durability::Flag, request.duration, stop)?;
        let call = write_in_order(&target, Durability::Call, request.duration, stop)?;
        Ok((target, flag, call))
    });
    let (target, flag, call) = match measured {
        Ok(measured) => measured,
        Err(error) => return vec![failed(WRITE_CHECK, &subject, &error.to_string())],
    };
    let mut findings =
        vec![judge_writes(&subject, SyncedRates { flag: &flag, call: &call }, facts.is_virtual_machine())];
    if request.toggle_write_cache && !stop.is_set() {
        findings.push(switched(facts, disk, &target, &flag, request, stop).on(subject));
    }
    findings
}

/// Measures with the write cache in its other state, and switches it back.
fn switched(
    facts: &Facts,
    disk: Option<&str>,
    target: &WriteTarget,
    before: &Rates,
    request: &Request,
    stop: &Stop,
) -> Finding {
    let Some((disk, switch)) = disk.and_then(|disk| Some((disk, Switch::find(facts, disk)?))) else {
        let meaning =
            "the volatile write cache of this drive cannot be switched from here; its maker's tool may do it";
        return Finding::new(
            SWITCH_CHECK,
            Verdict::NotVisible,
            "no switch is visible here (virtual machine?)",
            meaning,
        );
    };
    let measure = || -> Result<(Cache, Rates), String> {
        let was = switch.state()?;
        let _back = switch.set_for_now(was.other())?;
        let rates =
            write_in_order(target, Durability::Flag, request.duration, stop).map_err(|error| error.to_string())?;
        Ok((was, rates))
    };
    match measure() {
        Ok((was, after)) => judge_switched(disk, was, before, &after, &switch),
        Err(error) => {
            let meaning = "nothing is known of how the drive does with its cache in the other state";
            Finding::new(SWITCH_CHECK, Verdict::NotVisible, error, meaning).fix("run this as root")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::facts_of;
    use std::time::Duration;

    #[test]
    fn a_partition_is_on_its_disk() {
        let (keep, facts) = facts_of(&[("sys/devices/nvme0n1/nvme0n1p2/partition", "2")]);
        let links = keep.path().join("sys/dev/block");
        std::fs::create_dir_all(&links).unwrap();
        std::os::unix::fs::symlink("../../devices/nvme0n1", links.join("259:0")).unwrap();
        std::os::unix::fs::symlink("../../devices/nvme0n1/nvme0n1p2", links.join("259:2")).unwrap();
        assert_eq!(disk_numbered(&facts, "259:0").as_deref(), Some("nvme0n1"));
        assert_eq!(disk_numbered(&facts, "259:2").as_deref(), Some("nvme0n1"));
        assert_eq!(disk_numbered(&facts, "0:42"), None);
    }

    #[test]
    fn only_disks_with_hardware_are_looked_at() {
        let (_keep, facts) =
            facts_of(&[("sys/block/loop0/queue/scheduler", "[none]"), ("sys/block/sda/device/model", "x")]);
        assert_eq!(disks(&facts), ["sda"]);
    }

    /// A directory on a file system with `O_DIRECT`, which /tmp may not be on.
    fn direct_tempdir() -> std::io::Result<tempfile::TempDir> {
        tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR"))
    }

    fn request(write_test: bool, toggle_write_cache: bool) -> Request {
        let duration = Duration::from_millis(50);
        Request { duration, write_test, toggle_write_cache, ..Request::default() }
    }

    #[test]
    fn a_directory_is_measured_and_left_as_it_was() {
        let directory = direct_tempdir().unwrap();
        let (_keep, facts) = facts_of(&[]);
        let found = findings(&facts, directory.path(), &request(true, true), &Stop::default());
        let checks: Vec<(&str, Verdict)> = found.iter().map(|finding| (finding.check, finding.verdict)).collect();
        assert_eq!(checks[0], ("drive.settings", Verdict::NotVisible));
        assert_eq!(checks[1].0, WRITE_CHECK);
        assert_ne!(checks[1].1, Verdict::Problem, "{:?}", found[1]);
        assert!(found[1].figures["writes_per_s"] > 0.0);
        assert_eq!(checks[2], (SWITCH_CHECK, Verdict::NotVisible));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_keeps_its_content() {
        let directory = direct_tempdir().unwrap();
        let path = directory.path().join("precious");
        std::fs::write(&path, "precious").unwrap();
        let (_keep, facts) = facts_of(&[]);
        let found = findings(&facts, &path, &request(true, false), &Stop::default());
        assert_ne!(found[1].verdict, Verdict::Problem, "{:?}", found[1]);
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_missing_path_is_a_problem() {
        let (_keep, facts) = facts_of(&[]);
        let found = findings(&facts, Path::new("/nowhere/at/all"), &request(false, false), &Stop::default());
        assert_eq!(found[0].verdict, Verdict::Problem);
    }
}
