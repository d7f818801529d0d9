//! Drives of other hosts: namespaces of NVMe over Fabrics. The decisive value is how long the kernel keeps
//! requests when all paths are lost.

use std::path::Path;

use super::disk_of;
use crate::facts::Facts;
use crate::finding::{Finding, Verdict};

const CHECK: &str = "drive.remote";
/// I/O that waits longer than this holds the OSD's process back for longer than it takes to replace it.
const FAILS_WITHIN_SECONDS: i64 = 60;
/// Timeout in the fixes.
const FAILS_AFTER_SECONDS: i64 = 10;

/// A controller of another host as a path to a drive.
struct RemotePath {
    controller: String,
    transport: String,
    /// Seconds until the kernel gives up connecting and removes the controller; none: never.
    controller_loss_seconds: Option<i64>,
    /// Seconds without a connection until requests fail; none: only with the controller.
    fast_fail_seconds: Option<i64>,
}

impl RemotePath {
    /// Reads a controller's directory, if it is one of a fabric.
    fn read(facts: &Facts, directory: &str, controller: String) -> Option<Self> {
        let transport = facts.text(&format!("{directory}/transport")).filter(|transport| transport != "pcie")?;
        let seconds = |name: &str| facts.number(&format!("{directory}/{name}")).filter(|seconds| *seconds >= 0);
        Some(RemotePath {
            controller,
            transport,
            controller_loss_seconds: seconds("ctrl_loss_tmo"),
            fast_fail_seconds: seconds("fast_io_fail_tmo"),
        })
    }

    /// How long a request waits at most for this path.
    fn fails_after_seconds(&self) -> Option<i64> {
        self.fast_fail_seconds.into_iter().chain(self.controller_loss_seconds).min()
    }
}

/// The paths to a disk: its one controller, or with multipath those of its subsystem.
fn paths(facts: &Facts, disk: &str) -> Vec<RemotePath> {
    let device = format!("sys/block/{disk}/device");
    if let Some(controller) = facts.resolve(&device).filter(|_| facts.exists(&format!("{device}/transport"))) {
        let controller = crate::facts::last_name(&controller);
        return RemotePath::read(facts, &device, controller).into_iter().collect();
    }
    let of_subsystem = facts.numbered(&device, "nvme").into_iter();
    of_subsystem.filter_map(|name| RemotePath::read(facts, &format!("{device}/{name}"), name)).collect()
}

/// Returns the finding about the remote drive under a block device, file or directory; none for a drive of this
/// host.
pub fn remote_drive(facts: &Facts, path: &Path) -> Option<Finding> {
    finding(facts, &disk_of(facts, path)?)
}

pub(super) fn finding(facts: &Facts, disk: &str) -> Option<Finding> {
    let paths = paths(facts, disk);
    let transport = &paths.first()?.transport;
    // Requests fail when no path takes them any more.
    let fails_after =
        paths.iter().map(RemotePath::fails_after_seconds).max_by_key(|after| after.unwrap_or(i64::MAX))?;
    let removed_after =
        paths.iter().map(|path| path.controller_loss_seconds).max_by_key(|after| after.unwrap_or(i64::MAX))?;
    let count = match paths.len() {
        1 => "1 path".to_owned(),
        count => format!("{count} paths"),
    };
    let when = fails_after.map_or("never".to_owned(), |seconds| format!("after {seconds} s"));
    let found = format!("NVMe over {transport}, {count}; without a path I/O fails {when}");
    let (verdict, meaning) = judge(fails_after, removed_after);
    let finding = Finding::new(CHECK, verdict, found, meaning).figure("paths", paths.len() as f64).on(disk);
    let finding = match fails_after {
        Some(seconds) => finding.figure("fails_after_s", seconds as f64),
        None => finding,
    };
    Some(if verdict == Verdict::Ok { finding } else { finding.fix(fix(&paths)) })
}

fn judge(fails_after: Option<i64>, removed_after: Option<i64>) -> (Verdict, String) {
    let waits = "an OSD ends when its device is silent (setting device_silence_seconds), and its PGs fail over; \
        but it cannot be started again, nor cleanly stopped, while the kernel keeps its requests";
    match (fails_after, removed_after) {
        (None, _) => (Verdict::Warning, format!("{waits}: for ever, if no path comes back")),
        (Some(seconds), _) if seconds > FAILS_WITHIN_SECONDS => (Verdict::Advice, format!("{waits}: {seconds} s")),
        (Some(_), Some(seconds)) => (
            Verdict::Advice,
            format!(
                "after {seconds} s without a path the kernel removes the drive, which then does not come back by itself"
            ),
        ),
        (Some(_), None) => (
            Verdict::Ok,
            "the OSD ends when all paths are lost, and comes back when one is there again".to_owned(),
        ),
    }
}

fn fix(paths: &[RemotePath]) -> String {
    let set = |path: &RemotePath| {
        let directory = format!("/sys/class/nvme/{}", path.controller);
        format!("echo {FAILS_AFTER_SECONDS} > {directory}/fast_io_fail_tmo; echo -1 > {directory}/ctrl_loss_tmo")
    };
    let commands: Vec<String> = paths.iter().map(set).collect();
    format!(
        "{}; to keep it, connect with --ctrl-loss-tmo=-1, and a udev rule: ACTION==\"add|change\", SUBSYSTEM==\"nvme\", \
         ATTR{{transport}}==\"{}\", ATTR{{fast_io_fail_tmo}}=\"{FAILS_AFTER_SECONDS}\"",
        commands.join("; "),
        paths[0].transport
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::facts_of;

    fn path(controller: &str, transport: &str, loss: &str, fast: &str) -> Vec<(String, String)> {
        let of =
            |name: &str, text: &str| (format!("sys/block/nvme1n1/device/{controller}{name}"), text.to_owned());
        vec![of("transport", transport), of("ctrl_loss_tmo", loss), of("fast_io_fail_tmo", fast)]
    }

    fn found(paths: &[Vec<(String, String)>]) -> Option<Finding> {
        let files = paths.concat();
        let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        let (_keep, facts) = facts_of(&files);
        finding(&facts, "nvme1n1")
    }

    fn verdict(loss: &str, fast: &str) -> Verdict {
        found(&[path("", "tcp", loss, fast)]).unwrap().verdict
    }

    #[test]
    fn io_must_fail_some_time() {
        assert_eq!(verdict("off", "off"), Verdict::Warning);
        assert_eq!(verdict("600", "off"), Verdict::Advice);
        assert_eq!(verdict("600", "10"), Verdict::Advice);
        assert_eq!(verdict("off", "10"), Verdict::Ok);
        assert_eq!(verdict("off", "100"), Verdict::Advice);
    }

    #[test]
    fn the_path_that_waits_longest_counts() {
        let (short, long) = (path("nvme1/", "tcp", "off", "5"), path("nvme2/", "tcp", "off", "off"));
        let finding = found(&[short.clone(), long]).unwrap();
        assert_eq!(finding.verdict, Verdict::Warning);
        assert!(finding.found.contains("2 paths"), "{}", finding.found);
        assert!(finding.fix.unwrap().contains("/sys/class/nvme/nvme2/fast_io_fail_tmo"));
        let finding = found(&[short, path("nvme2/", "rdma", "off", "7")]).unwrap();
        assert_eq!((finding.verdict, finding.figures["fails_after_s"]), (Verdict::Ok, 7.0));
    }

    #[test]
    fn a_hidden_path_to_a_namespace_is_no_disk() {
        let files = ["sys/block/nvme1n1/device/nqn", "sys/block/nvme1c1n1/device/nqn"].map(|name| (name, "nqn"));
        let hidden = [("sys/block/nvme1n1/hidden", "0"), ("sys/block/nvme1c1n1/hidden", "1")];
        let (_keep, facts) = facts_of(&[files, hidden].concat());
        assert_eq!(crate::drive::disks(&facts), ["nvme1n1"]);
    }

    #[test]
    fn drives_of_this_host_are_none() {
        assert!(found(&[path("", "pcie", "", "")]).is_none());
        assert!(found(&[path("nvme1/", "pcie", "", "")]).is_none());
        assert!(found(&[]).is_none());
    }
}
