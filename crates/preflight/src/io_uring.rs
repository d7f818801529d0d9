//! io_uring, on which every OSD runs: kernel, settings, and the limits of this process.

use atoll_reactor::Reactor;
use rustix::process::{Resource, getrlimit};

use crate::facts::Facts;
use crate::finding::{Finding, Verdict};

/// The first kernel whose rings have all features that the event loop needs.
const KERNEL_MIN: (u32, u32) = (6, 1);
/// Connections that one process accepts, and room for its files.
const DESCRIPTORS_WANTED: u64 = 4_096 + 1_024;

/// Values that the kernel gives to this process directly, and not in a file.
pub(crate) struct Process {
    /// Why no ring can be made; nothing if one was.
    pub ring_error: Option<String>,
    /// The hard limit of open files; nothing if there is none.
    pub descriptors_max: Option<u64>,
}

impl Process {
    pub fn this() -> Self {
        let ring_error = Reactor::new().err().map(|error| error.to_string());
        Process { ring_error, descriptors_max: getrlimit(Resource::Nofile).maximum }
    }
}

pub(crate) fn findings(facts: &Facts, process: &Process) -> Vec<Finding> {
    vec![kernel(facts), setting(facts), ring(process), descriptors(process)]
}

fn kernel(facts: &Facts) -> Finding {
    let check = "io_uring.kernel";
    let release = facts.text("proc/sys/kernel/osrelease");
    let parsed = release.as_deref().and_then(parse_release);
    let (Some(release), Some(version)) = (release, parsed) else {
        return Finding::not_visible(check, "which kernel this is, is not known; Atoll needs Linux 6.1 or newer");
    };
    let found = format!("Linux {release}");
    if version >= KERNEL_MIN {
        return Finding::new(check, Verdict::Ok, found, "new enough for the event loop (6.1)");
    }
    let meaning = "OSDs and NBD servers do not start: their event loop needs Linux 6.1 or newer";
    Finding::new(check, Verdict::Problem, found, meaning)
        .fix("upgrade the distribution (Debian 12 has 6.1), or install a newer kernel: apt install -t bookworm-backports \
              linux-image-amd64")
}

fn parse_release(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn setting(facts: &Facts) -> Finding {
    let check = "io_uring.setting";
    let Some(value) = facts.number("proc/sys/kernel/io_uring_disabled") else {
        let meaning = "the kernel has no setting that forbids rings (there is one since Linux 6.6)";
        return Finding::new(check, Verdict::Ok, "no kernel.io_uring_disabled", meaning);
    };
    let found = format!("kernel.io_uring_disabled = {value}");
    let fix = "sysctl kernel.io_uring_disabled=0; to keep it: in /etc/sysctl.d/atoll.conf";
    match value {
        0 => Finding::new(check, Verdict::Ok, found, "every user may make rings"),
        1 => {
            let meaning = "only root and the group of kernel.io_uring_group may make rings: OSDs of another user do not start";
            Finding::new(check, Verdict::Warning, found, meaning).fix(fix)
        }
        _ => Finding::new(check, Verdict::Problem, found, "no user may make rings: OSDs do not start").fix(fix),
    }
}

fn ring(process: &Process) -> Finding {
    let check = "io_uring.ring";
    match &process.ring_error {
        None => Finding::new(check, Verdict::Ok, "a ring was made", "this user may run OSDs"),
        Some(error) => Finding::new(
            check,
            Verdict::Problem,
            format!("no ring could be made: {error}"),
            "OSDs and NBD servers do not start as this user, here",
        )
        .fix(
            "follow the message; in a container, use a seccomp profile that allows io_uring_setup, \
             io_uring_enter and io_uring_register",
        ),
    }
}

fn descriptors(process: &Process) -> Finding {
    let check = "io_uring.open_files";
    let Some(limit) = process.descriptors_max else {
        return Finding::new(
            check,
            Verdict::Ok,
            "no limit of open files",
            "connections are bounded by Atoll's own limit",
        );
    };
    let found = format!("at most {limit} open files");
    let finding = |verdict, meaning: &str| {
        Finding::new(check, verdict, found.clone(), meaning).figure("open_files_max", limit as f64)
    };
    if limit >= DESCRIPTORS_WANTED {
        return finding(Verdict::Ok, "enough for the 4,096 connections that a process accepts");
    }
    finding(Verdict::Warning, "a process accepts up to 4,096 connections; with this limit it refuses them earlier")
        .fix("LimitNOFILE=65536 in the systemd unit, or 'ulimit -Hn 65536' before 'atoll up'")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::facts_of;

    fn verdict(name: &str, text: &str, check: fn(&Facts) -> Finding) -> Verdict {
        let (_keep, facts) = facts_of(&[(name, text)]);
        check(&facts).verdict
    }

    #[test]
    fn kernels_before_6_1_are_a_problem() {
        let of = |release| verdict("proc/sys/kernel/osrelease", release, kernel);
        assert_eq!(of("6.1.0-13-amd64"), Verdict::Ok);
        assert_eq!(of("6.18.44-fc-v657"), Verdict::Ok);
        assert_eq!(of("5.15.0"), Verdict::Problem);
        assert_eq!(of("6.0.9"), Verdict::Problem);
        assert_eq!(of("unknown"), Verdict::NotVisible);
    }

    #[test]
    fn the_setting_may_forbid_rings() {
        let of = |value| verdict("proc/sys/kernel/io_uring_disabled", value, setting);
        assert_eq!(of("0"), Verdict::Ok);
        assert_eq!(of("1"), Verdict::Warning);
        assert_eq!(of("2"), Verdict::Problem);
        assert_eq!(verdict("proc/none", "", setting), Verdict::Ok);
    }

    #[test]
    fn a_ring_must_be_possible() {
        let process = |error: Option<&str>, descriptors_max| Process {
            ring_error: error.map(str::to_owned),
            descriptors_max,
        };
        assert_eq!(ring(&process(None, None)).verdict, Verdict::Ok);
        assert_eq!(ring(&process(Some("forbidden"), None)).verdict, Verdict::Problem);
        assert_eq!(descriptors(&process(None, None)).verdict, Verdict::Ok);
        assert_eq!(descriptors(&process(None, Some(65_536))).verdict, Verdict::Ok);
        assert_eq!(descriptors(&process(None, Some(1024))).verdict, Verdict::Warning);
    }
}
