//! Memory: how much there is, whether it is swapped out, and how it is spread over sockets.

use atoll_types::size::format_size;

use crate::drive;
use crate::facts::Facts;
use crate::finding::{Finding, Verdict};
use crate::network::interfaces;

/// Memory of an OSD by default ('atoll osd run --memory-target').
const OSD_BYTES: u64 = 1 << 30;
/// Largest memory of a gateway for requests.
const GATEWAY_BYTES: u64 = 1 << 30;
/// The least that an OSD works with.
const OSD_BYTES_MIN: u64 = 256 << 20;

pub(crate) fn findings(facts: &Facts) -> Vec<Finding> {
    vec![size(facts), swap(facts), numa(facts)]
}

/// A line of /proc/meminfo, in bytes.
fn meminfo_bytes(facts: &Facts, name: &str) -> Option<u64> {
    let text = facts.text("proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::to_owned))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

fn size(facts: &Facts) -> Finding {
    let check = "memory.size";
    let total_and_free = meminfo_bytes(facts, "MemTotal").zip(meminfo_bytes(facts, "MemAvailable"));
    let Some((total, free)) = total_and_free else {
        return Finding::not_visible(check, "how much memory there is, is not known");
    };
    let osds = free.saturating_sub(GATEWAY_BYTES) / OSD_BYTES;
    let found = format!("{}, {} of it free", format_size(total), format_size(free));
    let finding = |verdict, meaning: String| {
        let finding = Finding::new(check, verdict, found.clone(), meaning);
        finding.figure("total_bytes", total as f64).figure("available_bytes", free as f64)
    };
    if osds > 0 {
        return finding(
            Verdict::Ok,
            format!("enough for a gateway and {osds} OSDs with the usual memory target of 1 GiB each"),
        );
    }
    let fix = "add memory, or lower ATOLL_OSD_MEMORY_TARGET (at least 256M for each OSD)";
    if free >= OSD_BYTES_MIN * 2 {
        let meaning = "less than a gateway (up to 1 GiB of requests) and one OSD (1 GiB) may take";
        return finding(Verdict::Warning, meaning.into()).fix(fix);
    }
    finding(Verdict::Problem, "not enough for one OSD, which takes 256 MiB at the least, beside anything".into())
        .fix(fix)
}

fn swap(facts: &Facts) -> Finding {
    let check = "memory.swap";
    let Some(total) = meminfo_bytes(facts, "SwapTotal") else {
        return Finding::not_visible(check, "whether memory is swapped out is not known");
    };
    let swappiness = facts.number("proc/sys/vm/swappiness").unwrap_or(60);
    let found = format!("{} of swap, vm.swappiness {swappiness}", format_size(total));
    if total == 0 || swappiness <= 10 {
        let meaning = "the memory of OSDs is never swapped out";
        return Finding::new(check, Verdict::Ok, found, meaning);
    }
    let meaning = "the kernel may swap out an OSD's metadata for the sake of cached files: an operation that needs it then \
                   waits for a disk, and so does everything behind it";
    Finding::new(check, Verdict::Advice, found, meaning)
        .fix("sysctl vm.swappiness=1 (to keep it: in /etc/sysctl.d/atoll.conf), or swapoff -a")
}

/// Memory nodes, and on which of them drives and network cards are.
fn numa(facts: &Facts) -> Finding {
    let check = "memory.numa";
    let nodes = facts.numbered("sys/devices/system/node", "node");
    if nodes.is_empty() {
        return Finding::not_visible(check, "whether memory is spread over several sockets is not known");
    }
    if nodes.len() == 1 {
        return Finding::new(check, Verdict::Ok, "one node", "all memory, drives and cards are equally near");
    }
    let finding = |verdict, found: String, meaning: &str| {
        Finding::new(check, verdict, found, meaning).figure("nodes", nodes.len() as f64)
    };
    let mut places: Vec<(String, i64)> = Vec::new();
    for disk in drive::disks(facts) {
        let node = facts.number(&format!("sys/block/{disk}/device/numa_node"));
        // An NVMe's namespace is a child of its controller, which is a child of its PCI function.
        let node = node.or_else(|| facts.number(&format!("sys/block/{disk}/device/device/numa_node")));
        places.extend(node.map(|node| (disk, node)));
    }
    for card in interfaces(facts) {
        let node = facts.number(&format!("sys/class/net/{card}/device/numa_node"));
        places.extend(node.map(|node| (card, node)));
    }
    places.retain(|(_, node)| *node >= 0);
    if places.is_empty() {
        let found = format!("{} nodes; where drives and cards are is not visible", nodes.len());
        return finding(
            Verdict::NotVisible,
            found,
            "an OSD should run on the node of its drive and its network card",
        );
    }
    let listed: Vec<String> = places.iter().map(|(name, node)| format!("{name} on {node}")).collect();
    let found = format!("{} nodes: {}", nodes.len(), listed.join(", "));
    let first = places[0].1;
    if places.iter().all(|(_, node)| *node == first) {
        let meaning =
            "all drives and cards are on one node: OSDs that run there reach them and their memory directly";
        return finding(Verdict::Advice, found, meaning).fix(format!(
            "numactl --cpunodebind={first} --membind={first} atoll up ..., if that node has cores enough"
        ));
    }
    let meaning = "drives and cards are on different nodes: data of an OSD crosses between sockets, once to the drive or \
                   once to the card";
    finding(Verdict::Warning, found, meaning)
        .fix("run each OSD on the node of its drive (numactl --cpunodebind=N --membind=N), and plug in a card for each node")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::facts_of;

    fn verdict(files: &[(&str, &str)], check: fn(&Facts) -> Finding) -> Verdict {
        let (_keep, facts) = facts_of(files);
        check(&facts).verdict
    }

    #[test]
    fn memory_is_counted_in_osds() {
        let of = |kib: u64| {
            let text = format!("MemTotal: 99999999 kB\nMemAvailable: {kib} kB\n");
            verdict(&[("proc/meminfo", &text)], size)
        };
        assert_eq!(of(2 << 20), Verdict::Ok);
        assert_eq!(of((2 << 20) - 1), Verdict::Warning);
        assert_eq!(of((512 << 10) - 1), Verdict::Problem);
        assert_eq!(verdict(&[("proc/meminfo", "MemTotal: many\n")], size), Verdict::NotVisible);
    }

    #[test]
    fn swap_is_advice_unless_it_is_hardly_used() {
        let of = |swap: &str, swappiness: &str| {
            verdict(&[("proc/meminfo", swap), ("proc/sys/vm/swappiness", swappiness)], swap_check)
        };
        fn swap_check(facts: &Facts) -> Finding {
            swap(facts)
        }
        assert_eq!(of("SwapTotal: 0 kB", "60"), Verdict::Ok);
        assert_eq!(of("SwapTotal: 1024 kB", "1"), Verdict::Ok);
        assert_eq!(of("SwapTotal: 1024 kB", "60"), Verdict::Advice);
        assert_eq!(verdict(&[], swap), Verdict::NotVisible);
    }

    #[test]
    fn drives_and_cards_should_be_on_one_node() {
        let node = |number| format!("sys/devices/system/node/node{number}/cpulist");
        let (first, second) = (node(0), node(1));
        let disk = "sys/block/nvme0n1/device/device/numa_node";
        let card = "sys/class/net/eth0/device/numa_node";
        let of = |places: &[(&str, &str)]| {
            let mut files = vec![(first.as_str(), "0-7"), (second.as_str(), "8-15")];
            files.extend_from_slice(places);
            verdict(&files, numa)
        };
        assert_eq!(verdict(&[(&first, "0-7")], numa), Verdict::Ok);
        assert_eq!(verdict(&[], numa), Verdict::NotVisible);
        assert_eq!(of(&[]), Verdict::NotVisible);
        assert_eq!(of(&[(disk, "-1"), (card, "-1")]), Verdict::NotVisible);
        assert_eq!(of(&[(disk, "1"), (card, "1")]), Verdict::Advice);
        assert_eq!(of(&[(disk, "0"), (card, "1")]), Verdict::Warning);
    }
}
