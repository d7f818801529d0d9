//! The CRUSH tree: zones hold racks, racks hold hosts, hosts hold OSDs.

use std::collections::BTreeMap;

use atoll_types::OsdId;
use atoll_types::records::{FailureDomain, OsdRecord, PoolRecord};

use crate::invariants;

/// The rack and the zone of OSDs whose place is not known.
pub const DEFAULT_PLACE: &str = "default";

/// Where an OSD is. Two racks of one name in different zones are two racks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location<'a> {
    /// The zone.
    pub zone: &'a str,
    /// The rack within its zone.
    pub rack: &'a str,
    /// The host.
    pub host: &'a str,
}

/// Where an OSD is.
pub fn location(osd: &OsdRecord) -> Location<'_> {
    fn named(name: &str) -> &str {
        if name.is_empty() { DEFAULT_PLACE } else { name }
    }
    Location { zone: named(&osd.zone), rack: named(&osd.rack), host: &osd.host }
}

/// Returns true if an OSD may hold data of a pool.
pub fn is_usable(osd: &OsdRecord, pool: &PoolRecord) -> bool {
    let class_fits = pool.device_class.as_ref().is_none_or(|class| *class == osd.device_class);
    !osd.is_out && osd.weight > 0.0 && osd.weight.is_finite() && class_fits
}

/// An OSD of a tree.
#[derive(Clone, Debug)]
pub(crate) struct Leaf {
    pub id: OsdId,
    pub weight: f64,
    /// Number of its failure domain.
    pub domain: usize,
    /// Number of its host; none if copies may share a host.
    host: Option<usize>,
}

impl Leaf {
    /// An OSD that may share its host with others.
    #[cfg(test)]
    pub fn alone(id: OsdId, domain: usize) -> Leaf {
        Leaf { id, weight: 1.0, domain, host: None }
    }

    /// Returns true if only one of the two may hold a copy of the same PG. Copies in different racks are on
    /// different hosts, too, even if an operator has put OSDs of one host into two racks.
    pub fn excludes(&self, other: &Leaf) -> bool {
        self.domain == other.domain || (self.host.is_some() && self.host == other.host)
    }
}

/// The part of the tree that may hold a pool's data.
#[derive(Clone, Debug)]
pub struct Tree {
    pub(crate) leaves: Vec<Leaf>,
    /// Weight of each failure domain.
    pub(crate) domain_weights: Vec<f64>,
    /// Copies wanted.
    pub(crate) size: usize,
}

/// Numbers names in the order in which they come.
struct Numbers<K>(BTreeMap<K, usize>);

impl<K: Ord> Numbers<K> {
    fn number(&mut self, name: K) -> usize {
        let next = self.0.len();
        *self.0.entry(name).or_insert(next)
    }
}

impl Tree {
    /// The OSDs that may hold data of a pool: of its device class, with weight, and not out.
    pub fn of_pool(pool: &PoolRecord, osds: &BTreeMap<OsdId, OsdRecord>) -> Tree {
        let size = pool.redundancy.size();
        let mut domains = Numbers(BTreeMap::new());
        let mut hosts = Numbers(BTreeMap::new());
        let mut tree = Tree { leaves: Vec::new(), domain_weights: Vec::new(), size: size as usize };
        for (id, osd) in osds.iter().filter(|(_, osd)| is_usable(osd, pool)) {
            let Location { zone, rack, host } = location(osd);
            let own = id.to_string();
            let path = match pool.failure_domain {
                FailureDomain::Osd => [own.as_str(), ""],
                FailureDomain::Host => [host, ""],
                FailureDomain::Rack => [zone, rack],
                FailureDomain::Zone => [zone, ""],
            };
            let domain = domains.number(path.map(str::to_owned));
            let host = (pool.failure_domain != FailureDomain::Osd).then(|| hosts.number(host));
            tree.leaves.push(Leaf { id: *id, weight: osd.weight, domain, host });
            tree.domain_weights.resize(domains.0.len(), 0.0);
            tree.domain_weights[domain] += osd.weight;
        }
        invariants::leaves_are_in_order(&tree);
        tree
    }

    /// How many failure domains there are.
    pub fn domain_count(&self) -> usize {
        self.domain_weights.len()
    }

    /// How many copies a PG can have: no more than failure domains.
    pub fn copies(&self) -> usize {
        self.size.min(self.domain_count())
    }

    pub(crate) fn position(&self, id: OsdId) -> Option<usize> {
        self.leaves.binary_search_by_key(&id, |leaf| leaf.id).ok()
    }

    /// Returns the share of all PGs that each OSD should be a member of: by weight, but no failure domain can have
    /// more than one copy of every PG, and the others must take its excess.
    pub(crate) fn fair_shares(&self) -> Vec<f64> {
        let mut by_weight: Vec<usize> = (0..self.domain_count()).collect();
        by_weight.sort_by(|one, other| self.domain_weights[*other].total_cmp(&self.domain_weights[*one]));
        let mut shares = vec![0.0; self.domain_count()];
        let mut copies_left = self.copies() as f64;
        let mut weight_left: f64 = self.domain_weights.iter().sum();
        for domain in by_weight {
            let weight = self.domain_weights[domain];
            shares[domain] = (copies_left * weight / weight_left).min(1.0);
            // What the capped ones leave over is spread over the rest. The others all have the same
            // ratio of share to weight, so taking theirs away does not change it.
            copies_left -= shares[domain];
            weight_left -= weight;
        }
        let of_leaf = |leaf: &Leaf| shares[leaf.domain] * leaf.weight / self.domain_weights[leaf.domain];
        let shares: Vec<f64> = self.leaves.iter().map(of_leaf).collect();
        if cfg!(debug_assertions) {
            invariants::shares_add_up(&shares, self.copies());
        }
        shares
    }
}
