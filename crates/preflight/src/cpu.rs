//! The processor: instructions that Atoll uses, frequency, and how deep it sleeps.

use crate::facts::Facts;
use crate::finding::{Finding, Verdict};

/// A wake-up from a deeper state than this is felt beside a network round trip of some tens of
/// microseconds.
const WAKE_UP_US_MAX: i64 = 20;

const HOST_MODEL: &str = "if this is a virtual machine, give it the host's processor: QEMU '-cpu host', libvirt \
                          <cpu mode='host-passthrough'/>; otherwise take newer hardware for OSDs and gateways";

pub(crate) fn findings(facts: &Facts) -> Vec<Finding> {
    vec![encryption(facts), erasure_coding(facts), gfni(facts), governor(facts), idle_states(facts)]
}

fn has(flags: &[String], wanted: &[&str]) -> bool {
    wanted.iter().all(|wanted| flags.iter().any(|flag| flag == wanted))
}

/// AES-GCM, in which everything is sealed and every frame is encrypted.
fn encryption(facts: &Facts) -> Finding {
    let check = "cpu.encryption";
    let Some(flags) = facts.cpu_flags() else {
        return Finding::not_visible(
            check,
            "whether AES-GCM, which seals all data, has instructions is not known",
        );
    };
    if has(&flags, &["vaes", "vpclmulqdq", "avx512f"]) {
        let meaning =
            "AES-GCM runs at the processor's best: sealing and frames cost little beside everything else";
        return Finding::new(check, Verdict::Ok, "AES, VAES, VPCLMULQDQ and AVX-512", meaning);
    }
    if has(&flags, &["aes", "pclmulqdq"]) || has(&flags, &["aes", "pmull"]) {
        let meaning = "AES-GCM runs in hardware, but not four blocks at a time, as with VAES on AVX-512: sealing costs more CPU";
        let finding = Finding::new(check, Verdict::Advice, "AES instructions, without VAES on AVX-512", meaning);
        return finding.fix(HOST_MODEL);
    }
    let meaning = "AES-GCM is computed in software: sealing and encrypted frames, which are on by default, will \
        take much of Atoll's CPU time";
    Finding::new(check, Verdict::Warning, "no AES instructions", meaning).fix(HOST_MODEL)
}

/// The vector instructions of the erasure-coding kernel.
fn erasure_coding(facts: &Facts) -> Finding {
    let check = "cpu.vectors";
    let Some(flags) = facts.cpu_flags() else {
        return Finding::not_visible(
            check,
            "which vector instructions erasure coding and checksums have is not known",
        );
    };
    if has(&flags, &["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"]) {
        let meaning = "erasure coding uses its widest kernel, and checksums theirs";
        return Finding::new(check, Verdict::Ok, "AVX-512 (F, BW, CD, DQ, VL)", meaning);
    }
    if has(&flags, &["avx2"]) {
        let meaning = "erasure coding uses its AVX2 kernel, with vectors of half the width of AVX-512's";
        return Finding::new(check, Verdict::Advice, "AVX2, without AVX-512", meaning).fix(HOST_MODEL);
    }
    let meaning = "erasure coding uses a kernel without vectors: prefer replicated pools here";
    Finding::new(check, Verdict::Warning, "neither AVX2 nor AVX-512", meaning).fix(HOST_MODEL)
}

/// Instructions for the field of erasure codes.
fn gfni(facts: &Facts) -> Finding {
    let check = "cpu.gfni";
    let Some(flags) = facts.cpu_flags() else {
        return Finding::not_visible(check, "whether the processor has Galois-field instructions is not known");
    };
    let found = if has(&flags, &["gfni"]) { "GFNI is there" } else { "no GFNI" };
    let meaning = "Atoll's erasure coding works with vector shuffles and does not need it; ISA-L, in Ceph for one, is \
                   faster with it";
    Finding::new(check, Verdict::Ok, found, meaning)
}

/// The name that most values have, and all names with how many there are.
fn summary(values: &[String]) -> String {
    let mut names: Vec<&String> = values.iter().collect();
    names.sort();
    names.dedup();
    let count = |name: &String| values.iter().filter(|value| *value == name).count();
    let parts: Vec<String> = names.into_iter().map(|name| format!("{name} on {} CPUs", count(name))).collect();
    parts.join(", ")
}

/// Finds the governor of the frequency.
fn governor(facts: &Facts) -> Finding {
    let check = "cpu.governor";
    let directory = "sys/devices/system/cpu";
    let of_all = |file: &str| -> Vec<String> {
        let cpus = facts.numbered(directory, "cpu").into_iter();
        cpus.filter_map(|cpu| facts.text(&format!("{directory}/{cpu}/cpufreq/{file}"))).collect()
    };
    let governors = of_all("scaling_governor");
    if governors.is_empty() {
        let meaning = "the frequency is chosen elsewhere; on a virtual machine's host the governor should be \
                       'performance', as it and the C-states make a difference of 2-3 times for small operations";
        return Finding::not_visible(check, meaning);
    }
    let found = summary(&governors);
    if governors.iter().all(|governor| governor == "performance") {
        let meaning = "cores run at full speed as soon as there is work";
        return Finding::new(check, Verdict::Ok, found, meaning);
    }
    let fix = "cpupower frequency-set -g performance; to keep it: tuned-adm profile latency-performance";
    // These drivers choose the frequency themselves, whatever the governor is called.
    let drivers = of_all("scaling_driver");
    let is_hardware =
        drivers.iter().any(|driver| driver == "intel_pstate" || driver.starts_with("amd-pstate-epp"));
    let is_lazy = |governor: &String| matches!(governor.as_str(), "powersave" | "conservative" | "userspace");
    if governors.iter().any(is_lazy) && !is_hardware {
        let meaning = "cores stay slow for little work, and operations at depth 1 are little work: latencies may \
            be 2-3 times the possible ones";
        return Finding::new(check, Verdict::Warning, found, meaning).fix(fix);
    }
    let meaning =
        "the frequency follows the load, some time behind it: the first operations after a pause are slower";
    Finding::new(check, Verdict::Advice, found, meaning).fix(fix)
}

/// How long it takes to wake a core up.
fn idle_states(facts: &Facts) -> Finding {
    let check = "cpu.idle_states";
    let directory = "sys/devices/system/cpu/cpu0/cpuidle";
    let mut enabled = Vec::new();
    for state in facts.numbered(directory, "state") {
        let of_state = |file: &str| format!("{directory}/{state}/{file}");
        let latency_us = facts.number(&of_state("latency"));
        if let (Some(name), Some(latency_us)) = (facts.text(&of_state("name")), latency_us)
            && facts.number(&of_state("disable")).unwrap_or(0) == 0
        {
            enabled.push((latency_us, name));
        }
    }
    let elsewhere = "how deep the cores sleep is decided on the host: check it there, as waking up costs each operation \
                     at depth 1 more than once";
    let Some((latency_us, name)) = enabled.into_iter().max() else {
        return Finding::not_visible(check, elsewhere);
    };
    let found = format!("the deepest state in use, {name}, takes {latency_us} us to wake up from");
    let finding = |verdict, found: String, meaning: &str| {
        Finding::new(check, verdict, found, meaning).figure("wake_up_us", latency_us as f64)
    };
    if latency_us > WAKE_UP_US_MAX {
        let meaning = "every operation at depth 1 wakes cores up on several hosts, one after the other; C-states and \
                       governor together make a difference of 2-3 times";
        return finding(Verdict::Warning, found, meaning).fix(format!(
            "cpupower idle-set -D {WAKE_UP_US_MAX} (disables slower states until the next boot); to keep it: tuned-adm \
             profile latency-performance, or intel_idle.max_cstate=1 processor.max_cstate=1 on the kernel's command line"
        ));
    }
    if facts.is_virtual_machine() {
        let found = format!("{found}, but the processor's own states are not visible here (virtual machine)");
        return finding(Verdict::NotVisible, found, elsewhere);
    }
    finding(Verdict::Ok, found, "cores wake up fast enough not to be noticed beside the network")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::facts_of;

    fn with_flags(flags: &str, check: fn(&Facts) -> Finding) -> Verdict {
        let (_keep, facts) = facts_of(&[("proc/cpuinfo", &format!("processor : 0\nflags : {flags}\n"))]);
        check(&facts).verdict
    }

    fn verdict(files: &[(&str, &str)], check: fn(&Facts) -> Finding) -> Verdict {
        let (_keep, facts) = facts_of(files);
        check(&facts).verdict
    }

    #[test]
    fn encryption_wants_aes_and_vectors() {
        assert_eq!(with_flags("aes pclmulqdq vaes vpclmulqdq avx512f", encryption), Verdict::Ok);
        assert_eq!(with_flags("aes pclmulqdq vaes vpclmulqdq", encryption), Verdict::Advice);
        assert_eq!(with_flags("pclmulqdq sse2", encryption), Verdict::Warning);
        assert_eq!(verdict(&[("proc/cpuinfo", "Features : fp aes pmull")], encryption), Verdict::Advice);
        assert_eq!(verdict(&[], encryption), Verdict::NotVisible);
    }

    #[test]
    fn erasure_coding_wants_vectors() {
        assert_eq!(with_flags("avx2 avx512f avx512bw avx512cd avx512dq avx512vl", erasure_coding), Verdict::Ok);
        assert_eq!(with_flags("avx2 avx512f", erasure_coding), Verdict::Advice);
        assert_eq!(with_flags("sse2", erasure_coding), Verdict::Warning);
        assert_eq!(verdict(&[], erasure_coding), Verdict::NotVisible);
    }

    #[test]
    fn gfni_is_informational() {
        let (_keep, facts) = facts_of(&[("proc/cpuinfo", "flags : gfni")]);
        assert_eq!(gfni(&facts).found, "GFNI is there");
        assert_eq!(with_flags("avx2", gfni), Verdict::Ok);
        assert_eq!(verdict(&[], gfni), Verdict::NotVisible);
    }

    #[test]
    fn governors_are_judged_with_their_driver() {
        let of = |first: &str, second: &str, driver: &str| {
            let cpu = |number, file| format!("sys/devices/system/cpu/cpu{number}/cpufreq/{file}");
            verdict(
                &[
                    (&cpu(0, "scaling_governor"), first),
                    (&cpu(1, "scaling_governor"), second),
                    (&cpu(0, "scaling_driver"), driver),
                ],
                governor,
            )
        };
        assert_eq!(of("performance", "performance", "acpi-cpufreq"), Verdict::Ok);
        assert_eq!(of("performance", "powersave", "acpi-cpufreq"), Verdict::Warning);
        assert_eq!(of("powersave", "powersave", "intel_pstate"), Verdict::Advice);
        assert_eq!(of("schedutil", "schedutil", "acpi-cpufreq"), Verdict::Advice);
        assert_eq!(verdict(&[], governor), Verdict::NotVisible);
    }

    #[test]
    fn deep_states_that_are_enabled_count() {
        let of = |disabled: &str, flags: &str| {
            let state = |number, file| format!("sys/devices/system/cpu/cpu0/cpuidle/state{number}/{file}");
            verdict(
                &[
                    ("proc/cpuinfo", flags),
                    (&state(0, "name"), "C1"),
                    (&state(0, "latency"), "2"),
                    (&state(1, "name"), "C6"),
                    (&state(1, "latency"), "133"),
                    (&state(1, "disable"), disabled),
                ],
                idle_states,
            )
        };
        assert_eq!(of("0", "flags : aes"), Verdict::Warning);
        assert_eq!(of("1", "flags : aes"), Verdict::Ok);
        assert_eq!(of("1", "flags : hypervisor"), Verdict::NotVisible);
        assert_eq!(verdict(&[], idle_states), Verdict::NotVisible);
    }
}
