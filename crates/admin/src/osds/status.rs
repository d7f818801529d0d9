//! The state of OSDs, as operators see it.

use std::collections::BTreeMap;

use atoll_coordinator::{View, pgs_by_osd, statuses};
use atoll_placement::{Location, location};
use atoll_types::OsdId;
use atoll_types::records::OsdRecord;
use serde::{Serialize, Serializer};

/// One OSD.
#[derive(Clone, Debug, Serialize)]
pub struct OsdStatus {
    /// Its number.
    pub id: OsdId,
    /// Where it is.
    pub zone: String,
    /// Where it is in the zone.
    pub rack: String,
    /// Where it is in the rack.
    pub host: String,
    /// True if it runs: `up` or `down` in JSON.
    #[serde(rename = "state", serialize_with = "up_or_down")]
    pub is_up: bool,
    /// It is marked out, and so is to hold no data.
    pub is_out: bool,
    /// The coordinator has marked it out, after it was down for long.
    pub is_out_by_coordinator: bool,
    /// Share of data that it should hold.
    pub weight: f64,
    /// Its kind of device.
    pub device_class: String,
    /// Size of its device, in bytes.
    pub device_bytes: u64,
    /// Bytes that it can hold.
    pub total_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// PGs that it is a member of.
    pub pgs: usize,
    /// PGs that it is the primary of.
    pub pgs_primary: usize,
    /// PGs that it should be a member of.
    pub pgs_target: usize,
    /// Where it listens, while it is up.
    pub address: Option<String>,
    /// Its process, while it is up.
    pub process_id: Option<u32>,
}

fn up_or_down<S: Serializer>(is_up: &bool, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(if *is_up { "up" } else { "down" })
}

/// All OSDs, by number.
pub fn osd_statuses(view: &View) -> Vec<OsdStatus> {
    let counts = pgs_by_osd(&view.map);
    let mut targets = BTreeMap::<OsdId, usize>::new();
    for pg in statuses(&view.map) {
        pg.target.iter().for_each(|osd| *targets.entry(*osd).or_default() += 1);
    }
    let status = |(id, osd): (&OsdId, &OsdRecord)| {
        let (usage, up) = (view.usage.get(id), view.map.up.get(id));
        let (pgs, pgs_primary) = counts.get(id).copied().unwrap_or_default();
        let Location { zone, rack, host } = location(osd);
        OsdStatus {
            id: *id,
            zone: zone.to_owned(),
            rack: rack.to_owned(),
            host: host.to_owned(),
            is_up: up.is_some(),
            is_out: osd.is_out,
            is_out_by_coordinator: view.auto_out.contains_key(id),
            weight: osd.weight,
            device_class: osd.device_class.clone(),
            device_bytes: osd.device_bytes,
            total_bytes: usage.map_or(osd.device_bytes, |usage| usage.total_bytes),
            used_bytes: usage.map_or(0, |usage| usage.used_bytes),
            pgs,
            pgs_primary,
            pgs_target: targets.get(id).copied().unwrap_or_default(),
            address: up.map(|up| up.address.clone()),
            process_id: up.map(|up| up.process_id),
        }
    };
    view.map.osds.iter().map(status).collect()
}

/// The OSDs of one host.
#[derive(Clone, Debug, Serialize)]
pub struct HostStatus {
    /// Where it is.
    pub zone: String,
    /// Where it is in the zone.
    pub rack: String,
    /// Its name.
    pub host: String,
    /// The share of data that its OSDs are to hold together.
    pub weight: f64,
    /// Its OSDs.
    pub osds: Vec<OsdStatus>,
}

/// The failure-domain tree: hosts in the order of zones, racks and names.
pub fn osd_tree(view: &View) -> Vec<HostStatus> {
    let mut osds = osd_statuses(view);
    let place = |osd: &OsdStatus| (osd.zone.clone(), osd.rack.clone(), osd.host.clone());
    osds.sort_by_key(|osd| (place(osd), osd.id));
    let host = |osds: &[OsdStatus]| {
        let (zone, rack, host) = place(&osds[0]);
        HostStatus { zone, rack, host, weight: weight(osds), osds: osds.to_vec() }
    };
    osds.chunk_by(|one, other| place(one) == place(other)).map(host).collect()
}

/// The share of data that OSDs are to hold together; one that is out is to hold nothing.
pub fn weight<'a>(osds: impl IntoIterator<Item = &'a OsdStatus>) -> f64 {
    osds.into_iter().filter(|osd| !osd.is_out).map(|osd| osd.weight).sum()
}
