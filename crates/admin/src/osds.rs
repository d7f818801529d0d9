//! OSDs: the list, their locations, and their weights and classes.

mod status;

use atoll_cluster::{ClusterClient, Transaction, keys};
use atoll_coordinator::{PgStatus, View, statuses};
use atoll_types::OsdId;
use atoll_types::coordination::NextOsdRecord;
use atoll_types::limits::OSD_WEIGHT_MAX;
use atoll_types::records::{AuthorizedKeyRecord, OsdRecord, OsdUpRecord, PeerRole, PgRecord, RECORD_FORMAT};
use atoll_types::size::format_size;

pub use self::status::{HostStatus, OsdStatus, osd_statuses, osd_tree, weight};
use crate::error::{AdminError, retried};

/// New locations of OSDs; `None` leaves a level unchanged.
#[derive(Clone, Debug, Default)]
pub struct NewLocation {
    /// The host.
    pub host: Option<String>,
    /// The rack; empty for the default one.
    pub rack: Option<String>,
    /// The zone; empty for the default one.
    pub zone: Option<String>,
}

async fn get(client: &ClusterClient, id: OsdId) -> Result<(OsdRecord, i64), AdminError> {
    client.get(&keys::osd(id)).await?.ok_or(AdminError::NoSuchOsd(id))
}

/// Returns the lowest number for a new OSD, unless an OSD has it, and the revision of its record. Numbers of OSDs
/// that were removed are not given again.
pub async fn lowest_number(client: &ClusterClient) -> Result<(OsdId, i64), AdminError> {
    let found = client.get::<NextOsdRecord>(keys::NEXT_OSD).await?;
    Ok(found.map_or((OsdId(0), 0), |(record, revision)| (record.next, revision)))
}

/// Adds an OSD to the cluster: its record, in place of the one of this revision (0: there is none), and its key's
/// permission to connect.
pub fn put(transaction: Transaction, record: &OsdRecord, revision: i64) -> Result<Transaction, AdminError> {
    check_weight(record.weight)?;
    check_name("host", &record.host)?;
    let key = AuthorizedKeyRecord {
        format: RECORD_FORMAT,
        role: PeerRole::Osd,
        osd: Some(record.id),
        name: record.id.to_string(),
    };
    let transaction = transaction.check(&keys::osd(record.id), revision).put(&keys::osd(record.id), record)?;
    Ok(transaction.put(&keys::authorized_key(&record.public_key), &key)?)
}

/// Adds an OSD with a chosen number to the cluster.
pub async fn add(client: &ClusterClient, record: &OsdRecord) -> Result<(), AdminError> {
    let (lowest, revision) = lowest_number(client).await?;
    if record.id < lowest && client.get::<OsdRecord>(&keys::osd(record.id)).await?.is_none() {
        return AdminError::refused(format!(
            "{} may be remembered as an OSD that was removed, and numbers are not given again; choose {} or higher, \
             or let 'atoll osd create' choose",
            record.id, lowest.0
        ));
    }
    let transaction = put(Transaction::new().check(keys::NEXT_OSD, revision), record, 0)?;
    client.transact(&transaction).await?;
    Ok(())
}

/// Marks an OSD out, so that its data moves to others, or in again. It stays so until an operator says otherwise.
pub async fn set_out(client: &ClusterClient, id: OsdId, is_out: bool) -> Result<OsdRecord, AdminError> {
    change(client, id, |record| record.is_out = is_out).await
}

/// Checks that all data of an OSD, and `more_bytes` that clients are about to write, fits on the others: so that
/// it can be marked out and all PGs have all their copies then.
pub fn check_drain(view: &View, id: OsdId, more_bytes: u64) -> Result<(), AdminError> {
    let Some(osd) = view.map.osds.get(&id) else { return Err(AdminError::NoSuchOsd(id)) };
    if osd.is_out || !view.map.up.contains_key(&id) {
        return AdminError::refused(format!("{id} is not up and in ('atoll osd ls'); choose one that is"));
    }
    let mut drained = view.map.clone();
    drained.osds.insert(id, OsdRecord { is_out: true, ..osd.clone() });
    let redundancy = |status: &PgStatus| drained.pools[&status.pg.pool].redundancy;
    let pgs = statuses(&drained);
    let is_short = |status: &&PgStatus| status.target.len() < redundancy(status).size() as usize;
    if let Some(status) = pgs.iter().find(is_short) {
        let (size, parts) = (redundancy(status).size(), redundancy(status).part_name());
        return AdminError::refused(format!(
            "without {id} there is no place for {size} {parts} of {}: it takes one more OSD, or host, or rack ('atoll \
             osd tree'), than there are {parts} ('atoll pool ls')",
            status.pg
        ));
    }
    let all_used: u64 = view.usage.values().map(|usage| usage.used_bytes).sum();
    let factor_max = pgs.iter().map(|status| redundancy(status).space_factor()).fold(0.0, f64::max);
    let others = view.usage.iter().filter(|(other, _)| **other != id);
    let others_bytes: u64 = others.map(|(_, usage)| usage.total_bytes).sum();
    let wanted_bytes = all_used.saturating_add((more_bytes as f64 * factor_max) as u64);
    let limit_bytes = others_bytes / 100 * u64::from(view.settings.near_full_percent);
    if wanted_bytes > limit_bytes {
        return AdminError::refused(format!(
            "without {id} there is no room: everything would take {}, and the other OSDs are near full with {}",
            format_size(wanted_bytes),
            format_size(limit_bytes)
        ));
    }
    Ok(())
}

/// Gives an OSD another weight.
pub async fn reweight(client: &ClusterClient, id: OsdId, weight: f64) -> Result<OsdRecord, AdminError> {
    change(client, id, |record| record.weight = weight).await
}

/// Changes an OSD's record.
pub async fn change(
    client: &ClusterClient,
    id: OsdId,
    edit: impl Fn(&mut OsdRecord) + Copy,
) -> Result<OsdRecord, AdminError> {
    let attempt = async || {
        let (mut record, revision) = get(client, id).await?;
        let was_out = record.is_out;
        edit(&mut record);
        check_weight(record.weight)?;
        let key = keys::osd(id);
        let mut transaction = Transaction::new().check(&key, revision).put(&key, &record)?;
        if record.is_out != was_out || record.is_out {
            // From now on it is the operator's wish, and the coordinator leaves it alone.
            transaction = transaction.delete(&keys::auto_out(id));
        }
        client.transact(&transaction).await?;
        Ok(record)
    };
    retried(attempt).await
}

/// Says where OSDs are. A rack and a zone are given to all OSDs of the hosts.
pub async fn set_location(
    client: &ClusterClient,
    ids: &[OsdId],
    new: &NewLocation,
) -> Result<Vec<OsdRecord>, AdminError> {
    let named = [("host", &new.host), ("rack", &new.rack), ("zone", &new.zone)];
    for (what, name) in named {
        if let Some(name) = name.as_ref().filter(|name| what == "host" || !name.is_empty()) {
            check_name(what, name)?;
        }
    }
    let attempt = async || {
        let all = client.list::<OsdRecord>(keys::OSDS).await?;
        let mut hosts = Vec::new();
        for id in ids {
            let found = all.entries.iter().find(|(_, osd, _)| osd.id == *id);
            let (_, osd, _) = found.ok_or(AdminError::NoSuchOsd(*id))?;
            hosts.push(new.host.clone().unwrap_or_else(|| osd.host.clone()));
        }
        // A new OSD of a host belongs where the others are.
        let mut transaction = Transaction::new().check_prefix(keys::OSDS, all.revision);
        let mut changed = Vec::new();
        for (key, osd, revision) in &all.entries {
            let mut record = osd.clone();
            if let Some(host) = new.host.as_ref().filter(|_| ids.contains(&osd.id)) {
                record.host = host.clone();
            }
            if hosts.contains(&record.host) {
                record.rack = new.rack.clone().unwrap_or(record.rack);
                record.zone = new.zone.clone().unwrap_or(record.zone);
            }
            if record != *osd {
                transaction = transaction.check(key, *revision).put(key, &record)?;
                changed.push(record);
            }
        }
        if !changed.is_empty() {
            client.transact(&transaction).await?;
        }
        Ok(changed)
    };
    retried(attempt).await
}

/// Refuses if PGs count on an OSD, unless `is_lost` says that it is gone for good. The transaction to be added to is only
/// done if no PG has changed since.
pub async fn refuse_held(client: &ClusterClient, id: OsdId, is_lost: bool) -> Result<Transaction, AdminError> {
    get(client, id).await?;
    if is_lost {
        return Ok(Transaction::new());
    }
    let pgs = client.list::<PgRecord>(keys::PGS).await?;
    let held = pgs.entries.iter().filter(|(_, pg, _)| pg.members.contains(&id)).count();
    if held == 0 {
        return Ok(Transaction::new().check_prefix(keys::PGS, pgs.revision));
    }
    AdminError::refused(format!(
        "{held} PGs have {id} as a member; mark it out ('atoll osd out {number}') and let it run, so that they \
         move to others ('atoll osd ls' counts them); or give --lost if it and its data are permanently lost",
        number = id.0
    ))
}

/// Removes an OSD from the cluster for ever, and revokes its key. It must not run, and must hold
/// nothing that the cluster counts on, unless `is_lost` says that it is gone with all that it held.
pub async fn remove(client: &ClusterClient, id: OsdId, is_lost: bool) -> Result<OsdRecord, AdminError> {
    let attempt = async || {
        let (record, revision) = get(client, id).await?;
        if client.get::<OsdUpRecord>(&keys::osd_up(id)).await?.is_some() {
            return AdminError::refused(format!(
                "{id} is running; stop its process first (it counts as running for up to 10 s afterwards)"
            ));
        }
        let is_not_held = refuse_held(client, id, is_lost).await?;
        let (lowest, next_revision) = lowest_number(client).await?;
        let next = NextOsdRecord { format: RECORD_FORMAT, next: lowest.max(OsdId(id.0.saturating_add(1))) };
        let transaction = is_not_held
            .check(keys::NEXT_OSD, next_revision)
            .put(keys::NEXT_OSD, &next)?
            .check(&keys::osd(id), revision)
            .check(&keys::osd_up(id), 0)
            .delete(&keys::osd(id))
            .delete(&keys::osd_usage(id))
            .delete(&keys::osd_store(id))
            .delete(&keys::osd_ends(id))
            .delete(&keys::auto_out(id))
            .delete(&keys::authorized_key(&record.public_key));
        client.transact(&transaction).await?;
        Ok(record)
    };
    retried(attempt).await
}

fn check_weight(weight: f64) -> Result<(), AdminError> {
    if (0.0..=OSD_WEIGHT_MAX).contains(&weight) {
        return Ok(());
    }
    AdminError::refused(format!(
        "a weight is a number from 0 to {OSD_WEIGHT_MAX}, by convention the size in TiB, and not {weight}"
    ))
}

fn check_name(what: &str, name: &str) -> Result<(), AdminError> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    if (1..=255).contains(&name.len()) && name.chars().all(is_plain) {
        return Ok(());
    }
    AdminError::refused(format!("'{name}' cannot name a {what}: use letters, digits, '-', '_' and '.'"))
}
