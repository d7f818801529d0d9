//! Pools.

mod status;

use atoll_cluster::{ClusterClient, MapWatch, Transaction, keys};
use atoll_coordinator::missing_pgs;
use atoll_types::coordination::NextPoolRecord;
use atoll_types::limits::{COPIES, EC_CHUNK_BYTES, EC_DATA_SHARDS, EC_PARITY_SHARDS, PG_NUM_MAX};
use atoll_types::records::{
    BucketRecord, FailureDomain, ImageRecord, OsdRecord, PoolRecord, RECORD_FORMAT, Redundancy, RemovedImageRecord,
};
use atoll_types::size::format_size;
use atoll_types::{PgId, PoolId};

pub use self::status::{
    POOL_DATA, POOL_IMAGES, POOL_OBJECTS, PoolStatus, is_built_in, list, stored_bytes, used_bytes, wait_for_pgs,
};
use self::status::{refuse_before_first_pools, wait_for};
use crate::error::{AdminError, retried};

/// Deletions in one transaction; etcd takes 128 by default.
const BATCH: usize = 64;

/// A new pool.
#[derive(Clone, Debug)]
pub struct NewPool {
    /// Its name.
    pub name: String,
    /// Number of PGs.
    pub pg_num: u32,
    /// How it protects objects.
    pub redundancy: Redundancy,
    /// Where members may sit.
    pub failure_domain: FailureDomain,
    /// Only OSDs of this class, or all.
    pub device_class: Option<String>,
}

/// A change of a pool.
#[derive(Clone, Debug)]
pub enum PoolChange {
    /// Another name.
    Name(String),
    /// Number of copies.
    Size(u32),
    /// Copies, or shards, without which I/O stops.
    MinSize(u32),
    /// Where members may sit.
    FailureDomain(FailureDomain),
    /// Only OSDs of this class, or all.
    DeviceClass(Option<String>),
    /// Number of PGs: the existing ones are split.
    PgNum(u32),
}

/// Refuses impossible redundancies of a pool.
pub fn check_redundancy(redundancy: &Redundancy) -> Result<(), AdminError> {
    let (what, min_size_least) = match redundancy {
        Redundancy::Replicated { size, .. } if !COPIES.contains(size) => {
            return AdminError::refused(format!("a pool has 1 to {} copies, and not {size}", COPIES.end()));
        }
        Redundancy::Replicated { size, .. } => (format!("{size} copies"), 1),
        Redundancy::Erasure { data, .. } if !EC_DATA_SHARDS.contains(data) => {
            return AdminError::refused(format!(
                "an erasure code has {} to {} data shards, and not {data}; for copies make a pool with --size",
                EC_DATA_SHARDS.start(),
                EC_DATA_SHARDS.end()
            ));
        }
        Redundancy::Erasure { parity, .. } if !EC_PARITY_SHARDS.contains(parity) => {
            return AdminError::refused(format!(
                "an erasure code has {} to {} parity shards, and not {parity}: this many may be lost",
                EC_PARITY_SHARDS.start(),
                EC_PARITY_SHARDS.end()
            ));
        }
        Redundancy::Erasure { chunk_bytes, .. }
            if !chunk_bytes.is_power_of_two() || !EC_CHUNK_BYTES.contains(chunk_bytes) =>
        {
            return AdminError::refused(format!(
                "a chunk is a power of two from {} to {}, and not {chunk_bytes} bytes",
                format_size(u64::from(*EC_CHUNK_BYTES.start())),
                format_size(u64::from(*EC_CHUNK_BYTES.end()))
            ));
        }
        Redundancy::Erasure { data, parity, .. } => (format!("{data} data and {parity} parity shards"), *data),
    };
    let (size, min_size) = (redundancy.size(), redundancy.min_size());
    if !(min_size_least..=size).contains(&min_size) {
        let advice = match redundancy {
            Redundancy::Replicated { .. } => "when lowering both, lower min_size first",
            Redundancy::Erasure { .. } => "with fewer than the data shards nothing can be read",
        };
        return AdminError::refused(format!(
            "min_size {min_size} does not fit {what}: choose {min_size_least} to {size}; {advice}"
        ));
    }
    Ok(())
}

fn check(pool: &PoolRecord) -> Result<(), AdminError> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    if !(1..=64).contains(&pool.name.len()) || !pool.name.chars().all(is_plain) {
        return AdminError::refused(format!(
            "'{}' cannot name a pool: use 1 to 64 letters, digits, '-', '_' and '.'",
            pool.name
        ));
    }
    check_redundancy(&pool.redundancy)?;
    if !pool.pg_num.is_power_of_two() || pool.pg_num > PG_NUM_MAX {
        return AdminError::refused(format!(
            "the number of PGs is a power of two up to {PG_NUM_MAX}, and not {}",
            pool.pg_num
        ));
    }
    if pool.device_class.as_ref().is_some_and(|class| class.is_empty() || !class.chars().all(is_plain)) {
        return AdminError::refused("a device class is a word such as ssd or hdd".to_owned());
    }
    Ok(())
}

type Pools = Vec<(String, PoolRecord, i64)>;

async fn all(client: &ClusterClient) -> Result<Pools, AdminError> {
    Ok(client.list::<PoolRecord>(keys::POOLS).await?.entries)
}

fn find<'a>(pools: &'a Pools, name: &str) -> Result<&'a (String, PoolRecord, i64), AdminError> {
    let found = pools.iter().find(|(_, pool, _)| pool.name == name);
    found.ok_or_else(|| AdminError::NoSuchPool(name.to_owned()))
}

fn refuse_taken_name(pools: &Pools, name: &str, own: Option<PoolId>) -> Result<(), AdminError> {
    match pools.iter().find(|(_, pool, _)| pool.name == name && Some(pool.id) != own) {
        Some(_) => AdminError::refused(format!("there is a pool '{name}' already; choose another name")),
        None => Ok(()),
    }
}

/// Returns the default failure domain of a new pool: hosts if there are enough, and otherwise OSDs.
pub async fn default_failure_domain(
    client: &ClusterClient,
    redundancy: &Redundancy,
    device_class: Option<&str>,
) -> Result<FailureDomain, AdminError> {
    let osds = client.list::<OsdRecord>(keys::OSDS).await?.entries.into_iter().map(|(_, osd, _)| osd);
    let usable = osds.filter(|osd| device_class.is_none_or(|class| class == osd.device_class));
    let hosts: std::collections::BTreeSet<String> = usable.map(|osd| osd.host).collect();
    Ok(if hosts.len() >= redundancy.size() as usize { FailureDomain::Host } else { FailureDomain::Osd })
}

/// Makes a pool beside those that every cluster has, and waits a while for those of its PGs for which there are OSDs.
pub async fn create_further(client: &ClusterClient, new: &NewPool) -> Result<PoolStatus, AdminError> {
    refuse_before_first_pools(client).await?;
    let pool = create(client, new).await?;
    let watch = MapWatch::start(client).await?;
    let made = watch.map().pgs.keys().filter(|pg| pg.pool == pool.id).count();
    let to_be_made = missing_pgs(watch.map()).iter().filter(|(pg, _)| pg.pool == pool.id).count();
    wait_for(client, pool, made + to_be_made).await
}

/// Makes a pool. The coordinator makes its PGs.
pub async fn create(client: &ClusterClient, new: &NewPool) -> Result<PoolRecord, AdminError> {
    let attempt = async || {
        // Making and renaming a pool change this record, so no two pools can take one name.
        let next = client.get::<NextPoolRecord>(keys::NEXT_POOL).await?;
        let pools = all(client).await?;
        refuse_taken_name(&pools, &new.name, None)?;
        let used = pools.iter().map(|(_, pool, _)| pool.id.0 + 1).max().unwrap_or(1);
        let id = PoolId(next.as_ref().map_or(used, |(record, _)| record.next.0.max(used)));
        let pool = PoolRecord {
            format: RECORD_FORMAT,
            id,
            name: new.name.clone(),
            redundancy: new.redundancy,
            pg_num: new.pg_num,
            pg_num_first: 0,
            failure_domain: new.failure_domain,
            device_class: new.device_class.clone(),
        };
        check(&pool)?;
        let counter = NextPoolRecord { format: RECORD_FORMAT, next: PoolId(id.0 + 1) };
        let transaction = Transaction::new()
            .check(keys::NEXT_POOL, next.map_or(0, |(_, revision)| revision))
            .check(&keys::pool(id), 0)
            .put(keys::NEXT_POOL, &counter)?
            .put(&keys::pool(id), &pool)?;
        client.transact(&transaction).await?;
        Ok(pool)
    };
    retried(attempt).await
}

/// Changes a pool.
pub async fn change(client: &ClusterClient, name: &str, change: &PoolChange) -> Result<PoolRecord, AdminError> {
    let attempt = async || {
        let next = client.get::<NextPoolRecord>(keys::NEXT_POOL).await?;
        let pools = all(client).await?;
        let (key, pool, revision) = find(&pools, name)?;
        let mut pool = pool.clone();
        let mut transaction = Transaction::new().check(key, *revision);
        match change {
            PoolChange::Size(copies) => match &mut pool.redundancy {
                Redundancy::Replicated { size, .. } => *size = *copies,
                Redundancy::Erasure { .. } => {
                    return AdminError::refused(format!(
                        "the pool '{name}' is erasure-coded, which cannot be changed; make another pool ('atoll \
                         pool create --ec') and copy the data there"
                    ));
                }
            },
            PoolChange::MinSize(members) => {
                let (Redundancy::Replicated { min_size, .. } | Redundancy::Erasure { min_size, .. }) =
                    &mut pool.redundancy;
                *min_size = *members;
            }
            PoolChange::FailureDomain(domain) => pool.failure_domain = *domain,
            PoolChange::DeviceClass(class) => pool.device_class = class.clone(),
            PoolChange::PgNum(pg_num) if *pg_num < pool.pg_num => {
                return AdminError::refused(format!(
                    "the pool '{name}' has {} PGs; they split, but do not merge",
                    pool.pg_num
                ));
            }
            PoolChange::PgNum(pg_num) => (pool.pg_num_first, pool.pg_num) = (pool.pg_num_first(), *pg_num),
            PoolChange::Name(_) if is_built_in(name) => {
                return AdminError::refused(format!("the pool '{name}' is found by its name and keeps it"));
            }
            PoolChange::Name(new) => {
                refuse_taken_name(&pools, new, Some(pool.id))?;
                pool.name = new.clone();
                let (record, revision) = next.unwrap_or((
                    NextPoolRecord {
                        format: RECORD_FORMAT,
                        next: pools.iter().map(|(_, pool, _)| PoolId(pool.id.0 + 1)).max().unwrap_or(PoolId(1)),
                    },
                    0,
                ));
                transaction = transaction.check(keys::NEXT_POOL, revision).put(keys::NEXT_POOL, &record)?;
            }
        }
        check(&pool)?;
        client.transact(&transaction.put(key, &pool)?).await?;
        Ok(pool)
    };
    retried(attempt).await
}

/// Removes a pool that no image and no bucket is in, and the records of its PGs.
pub async fn remove(client: &ClusterClient, name: &str) -> Result<PoolRecord, AdminError> {
    if is_built_in(name) {
        return AdminError::refused(format!(
            "the pool '{name}' belongs to every cluster: images or S3 objects are kept there"
        ));
    }
    let attempt = async || {
        let pools = all(client).await?;
        let (key, pool, revision) = find(&pools, name)?;
        let is_unused = refuse_used(client, pool).await?;
        // The number is not given again, even if it was the highest.
        let next = client.get::<NextPoolRecord>(keys::NEXT_POOL).await?;
        let used = pools.iter().map(|(_, pool, _)| pool.id.0 + 1).max().unwrap_or(1);
        let after = PoolId(next.as_ref().map_or(used, |(record, _)| record.next.0.max(used)));
        let transaction = is_unused
            .check(key, *revision)
            .check(keys::NEXT_POOL, next.map_or(0, |(_, revision)| revision))
            .put(keys::NEXT_POOL, &NextPoolRecord { format: RECORD_FORMAT, next: after })?
            .put(&keys::removed_pool(pool.id), pool)?
            .delete(key);
        client.transact(&transaction).await?;
        Ok(pool.clone())
    };
    let pool = retried(attempt).await?;
    forget_pgs(client, pool.id).await?;
    Ok(pool)
}

/// Refuses a pool that something is in. The transaction to be added to is only done if nothing has come since.
async fn refuse_used(client: &ClusterClient, pool: &PoolRecord) -> Result<Transaction, AdminError> {
    let images = client.list::<ImageRecord>(keys::IMAGES).await?;
    let image = images.entries.iter().find(|(_, image, _)| image.pool == pool.id);
    let removed = client.list::<RemovedImageRecord>(keys::REMOVED_IMAGES).await?;
    if let Some((_, removed, _)) = removed.entries.iter().find(|(_, removed, _)| removed.image.pool == pool.id) {
        return AdminError::refused(format!(
            "the pool '{}' holds the removed image '{}', whose data is still there ('atoll image trash rm {1}' removes it \
             now)",
            pool.name, removed.image.name
        ));
    }
    let buckets = client.list::<BucketRecord>(keys::BUCKETS).await?;
    let bucket =
        buckets.entries.iter().find(|(_, bucket, _)| [bucket.pool, bucket.data_pool()].contains(&pool.id));
    let holds = match (image, bucket) {
        (Some((_, image, _)), _) => format!("the image '{}' (remove it: 'atoll image rm {0}')", image.name),
        (None, Some((_, bucket, _))) => format!("the bucket '{}' (remove it through S3)", bucket.name),
        (None, None) => {
            return Ok(Transaction::new()
                .check_prefix(keys::IMAGES, images.revision)
                .check_prefix(keys::REMOVED_IMAGES, removed.revision)
                .check_prefix(keys::BUCKETS, buckets.revision));
        }
    };
    AdminError::refused(format!(
        "the pool '{}' holds {holds}; only a pool without images and buckets can go",
        pool.name
    ))
}

/// Deletes the remaining records of the PGs of a removed pool; harmless to repeat.
async fn forget_pgs(client: &ClusterClient, pool: PoolId) -> Result<(), AdminError> {
    let mut all: Vec<String> = Vec::new();
    for prefix in [keys::PGS, keys::PG_TARGETS, keys::PG_SCRUBS, keys::SCRUB_REQUESTS] {
        let is_of_pool = |key: &String| {
            let pg = key.strip_prefix(prefix).and_then(|pg| pg.parse().ok());
            pg.is_some_and(|pg: PgId| pg.pool == pool)
        };
        let entries = client.list_raw(prefix).await?.entries.into_iter();
        all.extend(entries.map(|(key, _, _)| key).filter(is_of_pool));
    }
    for batch in all.chunks(BATCH) {
        // The pool's number is not given again, so nobody makes them anew.
        let transaction = Transaction::new().check(&keys::pool(pool), 0);
        client.transact(&batch.iter().fold(transaction, |transaction, key| transaction.delete(key))).await?;
    }
    Ok(())
}
