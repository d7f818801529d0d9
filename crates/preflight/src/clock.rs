//! The clock: its source, and its synchronisation.

use crate::facts::Facts;
use crate::finding::{Finding, Verdict};

/// Sources that are read without leaving the program, in a few tens of nanoseconds.
const FAST: [&str; 5] =
    ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "riscv_clocksource"];

/// Programs that keep the clock right, by the names of their processes (which have 15 bytes at most).
const KEEPERS: [&str; 7] =
    ["chronyd", "ntpd", "systemd-timesyn", "ntp-daemon", "openntpd", "phc2sys", "VBoxService"];

pub(crate) fn findings(facts: &Facts) -> Vec<Finding> {
    vec![source(facts), keeper(facts)]
}

fn source(facts: &Facts) -> Finding {
    let check = "clock.source";
    let directory = "sys/devices/system/clocksource/clocksource0";
    let Some(current) = facts.text(&format!("{directory}/current_clocksource")) else {
        return Finding::not_visible(check, "the source of the clock is unknown");
    };
    if FAST.contains(&current.as_str()) {
        return Finding::new(check, Verdict::Ok, current, "reading the clock costs next to nothing");
    }
    let meaning = "each reading of the clock is a call into the kernel or an access to a slow device, and an OSD reads it \
                   for each operation";
    let finding = Finding::new(check, Verdict::Warning, current, meaning);
    let available = facts.text(&format!("{directory}/available_clocksource")).unwrap_or_default();
    match available.split_whitespace().find(|name| FAST.contains(name)) {
        Some(better) => finding.fix(format!(
            "echo {better} > /{directory}/current_clocksource; to keep it: clocksource={better} on the kernel's command \
             line"
        )),
        None => finding.fix(
            "see 'dmesg | grep -i clocksource' for why the kernel gave the fast one up; 'tsc=reliable' on its command line \
             where the hardware is known to be good",
        ),
    }
}

fn keeper(facts: &Facts) -> Finding {
    let check = "clock.synchronised";
    if facts.exists("run/systemd/timesync/synchronized") {
        let meaning = "S3 signatures and certificates, which are valid for a time, will be";
        return Finding::new(check, Verdict::Ok, "systemd-timesyncd has set the clock", meaning);
    }
    let is_process = |name: &String| name.parse::<u32>().is_ok();
    let mut processes = facts.names("proc").into_iter().filter(is_process);
    let keeper = processes
        .find_map(|id| facts.text(&format!("proc/{id}/comm")).filter(|name| KEEPERS.contains(&name.as_str())));
    if let Some(name) = keeper {
        let meaning = "the clock is synchronised; a peer's clock shows how well (--peer)";
        return Finding::new(check, Verdict::Ok, format!("{name} runs"), meaning);
    }
    let meaning = "nothing seems to keep the clock right (a hypervisor or another container may, unseen): a clock that is \
                   minutes off makes S3 requests and certificates invalid, and logs of several hosts hard to read";
    let finding = Finding::new(check, Verdict::Advice, "no known program for it runs here", meaning);
    finding.fix("apt install chrony; then 'chronyc tracking' shows how far off it is")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::facts_of;

    fn of_source(current: &str, available: &str) -> Finding {
        let directory = "sys/devices/system/clocksource/clocksource0";
        let (_keep, facts) = facts_of(&[
            (&format!("{directory}/current_clocksource"), current),
            (&format!("{directory}/available_clocksource"), available),
        ]);
        source(&facts)
    }

    #[test]
    fn slow_sources_are_a_warning() {
        assert_eq!(of_source("tsc", "tsc hpet").verdict, Verdict::Ok);
        let slow = of_source("hpet", "tsc hpet");
        assert_eq!(slow.verdict, Verdict::Warning);
        assert!(slow.fix.unwrap().starts_with("echo tsc > /sys"));
        assert!(of_source("hpet", "hpet acpi_pm").fix.unwrap().contains("dmesg"));
        assert_eq!(of_source("", "").verdict, Verdict::NotVisible);
    }

    #[test]
    fn time_synchronisation_is_detected() {
        let of = |files: &[(&str, &str)]| {
            let (_keep, facts) = facts_of(files);
            keeper(&facts).verdict
        };
        assert_eq!(of(&[("proc/17/comm", "chronyd\n")]), Verdict::Ok);
        assert_eq!(of(&[("run/systemd/timesync/synchronized", "")]), Verdict::Ok);
        assert_eq!(of(&[("proc/17/comm", "bash\n"), ("proc/self/comm", "chronyd")]), Verdict::Advice);
    }
}
