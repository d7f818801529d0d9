//! The kernel's facts about a disk: its volatile write cache, scheduler and sectors.

use crate::facts::Facts;
use crate::finding::{Finding, Verdict};

pub(super) fn findings(facts: &Facts, disk: &str) -> Vec<Finding> {
    let checks = [write_cache, forced_access, scheduler, sectors];
    checks.map(|check| check(facts, disk).on(disk)).into()
}

/// How to switch a disk's volatile cache off for good.
pub(super) fn cache_off_command(disk: &str) -> String {
    if let Some(controller) = nvme_controller(disk) {
        return format!("nvme set-feature /dev/{controller} --feature-id=6 --value=0 --save");
    }
    if disk.starts_with("vd") || disk.starts_with("xvd") {
        return "a cache mode of the virtual disk without a write-back cache (QEMU cache=directsync or cache.writeback=off), \
                on the host"
            .into();
    }
    format!("hdparm -W 0 /dev/{disk} (SATA), or sdparm --set WCE=0 --save /dev/{disk} (SAS)")
}

/// The controller of an NVMe namespace: `nvme0` of `nvme0n1`.
pub(super) fn nvme_controller(disk: &str) -> Option<&str> {
    let (controller, namespace) = disk.split_at(disk.rfind('n').filter(|at| *at > 0)?);
    let is_number = |text: &str| text.parse::<u32>().is_ok();
    (is_number(controller.strip_prefix("nvme")?) && is_number(&namespace[1..])).then_some(controller)
}

fn write_cache(facts: &Facts, disk: &str) -> Finding {
    let check = "drive.write_cache";
    let Some(mode) = facts.text(&format!("sys/block/{disk}/queue/write_cache")) else {
        return Finding::not_visible(check, "whether the drive has a volatile write cache is not known");
    };
    match mode.as_str() {
        "write through" => {
            let meaning = "no volatile cache, as far as the kernel knows: a write that is done is durable. If this was written \
                           to queue/write_cache by hand, the kernel no longer flushes a cache that may well be there";
            Finding::new(check, Verdict::Ok, "no volatile write cache (write through)", meaning)
        }
        "write back" => {
            let meaning = "each durable write also flushes the cache (or forces its way through it). Drives with capacitors \
                           answer that at once; others may be many times faster without the cache: measure both";
            let finding = Finding::new(check, Verdict::Advice, "a volatile write cache (write back)", meaning);
            finding.fix(format!(
                "atoll preflight --device PATH-ON-IT --write-test --toggle-write-cache; if it is faster without: {}",
                cache_off_command(disk)
            ))
        }
        _ => Finding::not_visible(
            check,
            format!("the kernel calls the write cache '{mode}', which is not known here"),
        ),
    }
}

/// Finds if a single write can be forced through the volatile cache (FUA).
fn forced_access(facts: &Facts, disk: &str) -> Finding {
    let check = "drive.forced_access";
    let of_queue = |name: &str| facts.text(&format!("sys/block/{disk}/queue/{name}"));
    let (Some(mode), Some(fua)) = (of_queue("write_cache"), of_queue("fua")) else {
        return Finding::not_visible(check, "whether the drive takes writes past its cache (FUA) is not known");
    };
    if mode != "write back" {
        return Finding::new(
            check,
            Verdict::Ok,
            "no cache to force writes through",
            "a write that is done is durable",
        );
    }
    if fua == "1" {
        let meaning = "a record of the log is one request: only it goes past the cache";
        return Finding::new(check, Verdict::Ok, "the drive takes writes past its cache (FUA)", meaning);
    }
    let meaning = "each record of the log is two requests, a write and a flush of the whole cache, and the flush \
        waits for a thread of the kernel. drive.synced_writes measures the cost";
    let finding = Finding::new(check, Verdict::Advice, "no writes past the cache (no FUA)", meaning);
    finding.fix(format!(
        "the log on a drive that has it (osd create --wal-device), or without the cache: {}",
        cache_off_command(disk)
    ))
}

/// The scheduler in force, which the kernel puts in brackets.
fn chosen(schedulers: &str) -> Option<&str> {
    schedulers.split_whitespace().find_map(|name| name.strip_prefix('[')?.strip_suffix(']'))
}

fn scheduler(facts: &Facts, disk: &str) -> Finding {
    let check = "drive.scheduler";
    let of_queue = |name: &str| format!("sys/block/{disk}/queue/{name}");
    let schedulers = facts.text(&of_queue("scheduler"));
    let (Some(name), Some(rotational)) =
        (schedulers.as_deref().and_then(chosen), facts.number(&of_queue("rotational")))
    else {
        return Finding::not_visible(check, "how requests to the drive are ordered is not known");
    };
    let is_virtual = disk.starts_with("vd") || disk.starts_with("xvd");
    let kind = match (is_virtual, rotational) {
        (true, _) => "a virtual disk",
        (false, 0) => "flash",
        (false, _) => "a spinning disk",
    };
    let found = format!("{name}, for {kind}");
    let set = |name: &str| {
        format!(
            "echo {name} > /sys/block/{disk}/queue/scheduler; to keep it, a udev rule: ACTION==\"add|change\", \
             KERNEL==\"{disk}\", ATTR{{queue/scheduler}}=\"{name}\""
        )
    };
    match (kind, name) {
        ("a spinning disk", "none") => {
            let meaning = "an OSD sorts its later writes, but not reads and scrubs: mq-deadline keeps the head \
                from wandering";
            Finding::new(check, Verdict::Advice, found, meaning).fix(set("mq-deadline"))
        }
        ("a spinning disk", _) | (_, "none") => {
            Finding::new(check, Verdict::Ok, found, "as it should be for this kind of drive")
        }
        (_, "bfq") => {
            let meaning = "BFQ shares a slow disk among programs of a desktop; here it costs CPU for each request and holds \
                           some of them back";
            Finding::new(check, Verdict::Warning, found, meaning).fix(set("none"))
        }
        _ => {
            let meaning = "the drive (or the host of a virtual one) orders requests itself: to order them before costs CPU \
                           for each";
            Finding::new(check, Verdict::Advice, found, meaning).fix(set("none"))
        }
    }
}

fn sectors(facts: &Facts, disk: &str) -> Finding {
    let check = "drive.sectors";
    let of_queue = |name: &str| facts.number(&format!("sys/block/{disk}/queue/{name}_block_size"));
    let (Some(logical), Some(physical)) = (of_queue("logical"), of_queue("physical")) else {
        return Finding::not_visible(check, "the sizes of the drive's sectors are not known");
    };
    let found = format!("sectors of {logical} bytes, {physical} inside");
    let finding = |verdict, meaning: &str| {
        Finding::new(check, verdict, found.clone(), meaning)
            .figure("logical_bytes", logical as f64)
            .figure("physical_bytes", physical as f64)
    };
    if facts.number(&format!("sys/block/{disk}/ro")) == Some(1) {
        let fix = format!("blockdev --setrw /dev/{disk}, or another drive");
        return finding(Verdict::Problem, "the drive is read-only: it cannot be an OSD's").fix(fix);
    }
    if logical != 512 && logical != 4096 {
        return finding(Verdict::Problem, "Atoll uses drives with sectors of 512 or 4096 bytes")
            .fix("format the drive with 4096 bytes (nvme format --lbaf, sg_format); all its data is lost");
    }
    if physical > 4096 {
        let meaning = "Atoll writes blocks of 4096 bytes: the drive reads and writes more for each";
        return finding(Verdict::Advice, meaning)
            .fix("for much random writing, take drives with sectors of 4096 bytes");
    }
    finding(Verdict::Ok, "Atoll's blocks of 4096 bytes are whole sectors")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::facts_of;

    fn with(disk: &str, queue: &[(&str, &str)], check: fn(&Facts, &str) -> Finding) -> Verdict {
        let named: Vec<(String, &str)> =
            queue.iter().map(|(name, text)| (format!("sys/block/{disk}/{name}"), *text)).collect();
        let files: Vec<(&str, &str)> = named.iter().map(|(name, text)| (name.as_str(), *text)).collect();
        let (_keep, facts) = facts_of(&files);
        check(&facts, disk).verdict
    }

    #[test]
    fn volatile_caches_are_to_be_measured() {
        let of = |mode| with("sda", &[("queue/write_cache", mode)], write_cache);
        assert_eq!(of("write through"), Verdict::Ok);
        assert_eq!(of("write back"), Verdict::Advice);
        assert_eq!(of("write sideways"), Verdict::NotVisible);
        assert_eq!(with("sda", &[], write_cache), Verdict::NotVisible);
    }

    #[test]
    fn caches_should_let_single_writes_through() {
        let of = |mode, fua| with("sda", &[("queue/write_cache", mode), ("queue/fua", fua)], forced_access);
        assert_eq!(of("write back", "1"), Verdict::Ok);
        assert_eq!(of("write back", "0"), Verdict::Advice);
        assert_eq!(of("write through", "0"), Verdict::Ok);
        assert_eq!(with("sda", &[], forced_access), Verdict::NotVisible);
    }

    #[test]
    fn schedulers_fit_the_kind_of_drive() {
        let of = |disk, rotational, names| {
            with(disk, &[("queue/rotational", rotational), ("queue/scheduler", names)], scheduler)
        };
        assert_eq!(of("nvme0n1", "0", "[none] mq-deadline kyber bfq"), Verdict::Ok);
        assert_eq!(of("nvme0n1", "0", "none [mq-deadline] bfq"), Verdict::Advice);
        assert_eq!(of("nvme0n1", "0", "none mq-deadline [bfq]"), Verdict::Warning);
        assert_eq!(of("sda", "1", "none [mq-deadline]"), Verdict::Ok);
        assert_eq!(of("sda", "1", "[none] mq-deadline"), Verdict::Advice);
        assert_eq!(of("vda", "1", "none [mq-deadline]"), Verdict::Advice);
        assert_eq!(of("vda", "1", "[none] mq-deadline"), Verdict::Ok);
        assert_eq!(with("sda", &[("queue/rotational", "0")], scheduler), Verdict::NotVisible);
    }

    #[test]
    fn sectors_must_divide_blocks() {
        let of = |logical, physical, read_only| {
            let files = [
                ("queue/logical_block_size", logical),
                ("queue/physical_block_size", physical),
                ("ro", read_only),
            ];
            with("sda", &files, sectors)
        };
        assert_eq!(of("512", "4096", "0"), Verdict::Ok);
        assert_eq!(of("4096", "16384", "0"), Verdict::Advice);
        assert_eq!(of("520", "520", "0"), Verdict::Problem);
        assert_eq!(of("512", "512", "1"), Verdict::Problem);
        assert_eq!(with("sda", &[], sectors), Verdict::NotVisible);
    }

    #[test]
    fn commands_fit_the_kind_of_drive() {
        assert_eq!(nvme_controller("nvme12n1"), Some("nvme12"));
        assert_eq!(nvme_controller("sda"), None);
        assert_eq!(nvme_controller("nvmen1"), None);
        assert!(cache_off_command("nvme0n1").starts_with("nvme set-feature /dev/nvme0 "));
        assert!(cache_off_command("sda").contains("hdparm -W 0 /dev/sda"));
        assert!(cache_off_command("vda").contains("on the host"));
    }
}
