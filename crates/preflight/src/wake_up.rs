//! The time until a waiting thread runs again, and its causes in a virtual machine.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::facts::Facts;
use crate::finding::{Finding, Verdict};

const SAMPLES: usize = 200;
/// Long enough for a core to fall asleep between samples.
const PAUSE: Duration = Duration::from_millis(1);
/// Up to here it is not noticed beside a network round trip.
const MEDIAN_US_OK: f64 = 20.0;
const MEDIAN_US_MAX: f64 = 100.0;

pub(crate) fn findings(facts: &Facts) -> Vec<Finding> {
    vec![halt_polling(facts), wake_up(measure())]
}

/// Finds if an idle virtual processor polls for a while before it halts.
fn halt_polling(facts: &Facts) -> Finding {
    let check = "cpu.halt_polling";
    if !facts.is_virtual_machine() {
        let meaning = "it is for virtual machines: elsewhere a core goes to sleep by itself (cpu.idle_states)";
        return Finding::new(check, Verdict::Ok, "not a virtual machine", meaning);
    }
    let driver = facts.text("sys/devices/system/cpu/cpuidle/current_driver").unwrap_or_else(|| "none".into());
    let polled_ns = facts.number("sys/module/haltpoll/parameters/guest_halt_poll_ns").unwrap_or(0);
    if driver == "haltpoll" && polled_ns > 0 {
        let found = format!("haltpoll, for up to {} us", polled_ns / 1_000);
        let meaning = "a virtual processor that waits is there at once if something comes soon";
        return Finding::new(check, Verdict::Ok, found, meaning).figure("poll_us", polled_ns as f64 / 1_000.0);
    }
    let found = format!(
        "the idle driver is '{driver}', which polls for {} us",
        if driver == "haltpoll" { polled_ns } else { 0 }
    );
    let meaning = "each wait halts the virtual processor at once, and to wake it up takes the hypervisor (cpu.wake_up says how \
                   long): an operation at depth 1 waits for several such wake-ups, one after the other";
    Finding::new(check, Verdict::Advice, found, meaning).figure("poll_us", 0.0).fix(
        "haltpoll.force=1 on the kernel's command line (or 'modprobe haltpoll force=1'), and \
         echo 200000 > /sys/module/haltpoll/parameters/guest_halt_poll_ns; where the host's owner is asked, \
         halt_poll_ns of its kvm module does the same for all its machines",
    )
}

/// Microseconds from waking a thread until it runs, sorted.
fn measure() -> io::Result<Vec<f64>> {
    let (mut waker, mut sleeper) = UnixStream::pair()?;
    let begun = Instant::now();
    let waiting = std::thread::spawn(move || -> io::Result<Vec<Duration>> {
        let mut woken = Vec::with_capacity(SAMPLES);
        for _ in 0..SAMPLES {
            sleeper.read_exact(&mut [0])?;
            woken.push(begun.elapsed());
        }
        Ok(woken)
    });
    let mut called = Vec::with_capacity(SAMPLES);
    for _ in 0..SAMPLES {
        std::thread::sleep(PAUSE);
        called.push(begun.elapsed());
        waker.write_all(&[0])?;
    }
    let woken = waiting.join().map_err(|_| io::Error::other("the thread that waits has panicked"))??;
    let took = |(called, woken): (Duration, Duration)| woken.saturating_sub(called).as_nanos() as f64 / 1_000.0;
    let mut took: Vec<f64> = called.into_iter().zip(woken).map(took).collect();
    took.sort_by(f64::total_cmp);
    Ok(took)
}

fn wake_up(measured: io::Result<Vec<f64>>) -> Finding {
    let check = "cpu.wake_up";
    let took = match measured {
        Ok(took) if !took.is_empty() => took,
        Ok(_) => return Finding::not_visible(check, "how long it takes to wake a thread up is not known"),
        Err(error) => return Finding::not_visible(check, format!("it could not be measured: {error}")),
    };
    let (median, p99) = (took[took.len() / 2], took[took.len() * 99 / 100]);
    let found = format!("a thread that waits runs after {median:.0} us (median; p99 {p99:.0} us)");
    let meaning = "a small write at depth 1 waits for four such wake-ups, one after the other, a read for two";
    let verdict = match median {
        ..=MEDIAN_US_OK => Verdict::Ok,
        ..=MEDIAN_US_MAX => Verdict::Advice,
        _ => Verdict::Warning,
    };
    let finding = Finding::new(check, verdict, found, meaning).figure("median_us", median).figure("p99_us", p99);
    if verdict == Verdict::Ok {
        return finding;
    }
    finding.fix("see cpu.halt_polling, cpu.idle_states and cpu.governor; other work on the host is measured, too")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::facts_of;

    #[test]
    fn virtual_machines_should_poll() {
        let of = |flags: &str, driver: &str, polled_ns: &str| {
            let (_keep, facts) = facts_of(&[
                ("proc/cpuinfo", flags),
                ("sys/devices/system/cpu/cpuidle/current_driver", driver),
                ("sys/module/haltpoll/parameters/guest_halt_poll_ns", polled_ns),
            ]);
            halt_polling(&facts).verdict
        };
        assert_eq!(of("flags : aes", "intel_idle", "0"), Verdict::Ok);
        assert_eq!(of("flags : hypervisor", "haltpoll", "200000"), Verdict::Ok);
        assert_eq!(of("flags : hypervisor", "haltpoll", "0"), Verdict::Advice);
        assert_eq!(of("flags : hypervisor", "none", "200000"), Verdict::Advice);
    }

    #[test]
    fn wake_ups_are_judged_by_their_median() {
        let of = |median| wake_up(Ok(vec![1.0, median, 9_999.0])).verdict;
        assert_eq!([of(5.0), of(60.0), of(101.0)], [Verdict::Ok, Verdict::Advice, Verdict::Warning]);
        assert_eq!(wake_up(Err(io::Error::other("no sockets"))).verdict, Verdict::NotVisible);
    }

    #[test]
    fn every_wake_up_is_measured() {
        let took = measure().unwrap();
        assert_eq!(took.len(), SAMPLES);
        assert!(took.is_sorted() && took[0] > 0.0);
    }
}
