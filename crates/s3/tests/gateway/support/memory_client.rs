//! An object client whose cluster is a map: the semantics of atoll_types::operation, with the
//! checks that OSDs do, and faults on demand.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_buffers::BLOCK_BYTES;
use atoll_objects::{ClientError, ObjectClient};
use atoll_types::limits::{
    CONTROL_BYTES_MAX, OBJECT_BYTES_MAX, OMAP_KEY_BYTES_MAX, OMAP_LIST_MAX, OMAP_VALUE_BYTES_MAX, OPERATIONS_MAX,
    PAYLOAD_BYTES_MAX, SEAL_UNIT_BYTES_MAX,
};
use atoll_types::{
    Condition, Epoch, ListedObject, Mutation, ObjectName, PoolId, ReadOutcome, ReadRequest, Refusal, Seals,
    Version, WriteRequest, pg_of_object,
};
use bytes::Bytes;

/// Small pages, so that every caller has to continue.
const PAGE_MAX: usize = 7;

/// One object.
#[derive(Clone, Default)]
pub struct MemoryObject {
    pub data: Vec<u8>,
    pub omap: BTreeMap<Bytes, Bytes>,
    /// Seals by unit number.
    pub seals: BTreeMap<u64, Bytes>,
    pub unit: Option<(u32, u16)>,
    pub version: u64,
}

/// Faults of requests for objects, or of reads and replacements of an omap's key, whose name has a prefix; `@`
/// means the objects beside the index.
#[derive(Clone)]
pub enum Fault {
    /// Writes time out; whether they happen is up to the flag.
    WriteTimesOut { happens: bool },
    /// Writes are done twice, and the second answer counts.
    WriteTwice,
    /// Writes are refused for lack of space.
    NoSpace,
    /// Requests take this long.
    Slow(Duration),
    /// Requests wait until [`MemoryClient::release`].
    Held,
}

#[derive(Default)]
struct Cluster {
    objects: BTreeMap<(PoolId, ObjectName), MemoryObject>,
    /// Erasure-coded: there is no omap.
    data_only: BTreeSet<PoolId>,
    faults: Vec<(String, Fault)>,
    /// Number of answers to readers that open seals, if every other one has bits changed on the way.
    answers_to_open: Option<usize>,
    slow_begun: usize,
    slow_now: usize,
    slow_at_once: usize,
    releases: tokio::sync::watch::Sender<()>,
}

impl Cluster {
    /// A page of the objects in the PG of an object: of those in one PG however many PGs there are.
    fn list(&self, pool: PoolId, of: &ObjectName, prefix: &[u8], after: Option<&ObjectName>) -> ReadOutcome {
        let place = |name: &ObjectName| pg_of_object(pool, name, 1 << 16);
        let names = self.objects.keys().filter(|(of_pool, _)| *of_pool == pool).map(|(_, name)| name);
        let mut found = names.filter(|name| {
            let is_asked = name.as_str().as_bytes().starts_with(prefix) && Some(*name) > after;
            is_asked && place(name) == place(of)
        });
        let listed = |name: &ObjectName| ListedObject {
            name: name.clone(),
            object_bytes: 0,
            version: Version::default(),
            block_count: 0,
            shared_block_count: 0,
        };
        let objects: Vec<ListedObject> = found.by_ref().take(PAGE_MAX).map(listed).collect();
        let next = found.next().and(objects.last()).map(|last| last.name.clone());
        ReadOutcome::ObjectPage { objects, next }
    }
}

/// The client. Clones share the cluster.
#[derive(Clone, Default)]
pub struct MemoryClient(Arc<Mutex<Cluster>>);

impl MemoryClient {
    pub fn set_fault(&self, prefix: &str, fault: Fault) {
        self.0.lock().unwrap().faults.push((prefix.to_owned(), fault));
    }

    pub fn clear_faults(&self) {
        self.0.lock().unwrap().faults.clear();
    }

    /// Names of all objects with a prefix.
    pub fn names(&self, prefix: &str) -> Vec<String> {
        let cluster = self.0.lock().unwrap();
        let names = cluster.objects.keys().map(|(_, name)| name.to_string());
        names.filter(|name| name.starts_with(prefix)).collect()
    }

    /// Pools with objects with a prefix.
    pub fn pools(&self, prefix: &str) -> BTreeSet<PoolId> {
        let cluster = self.0.lock().unwrap();
        let found = cluster.objects.keys().filter(|(_, name)| name.as_str().starts_with(prefix));
        found.map(|(pool, _)| *pool).collect()
    }

    /// From now on refuses all omap in a pool, as in an erasure-coded one.
    pub fn refuse_omap(&self, pool: PoolId) {
        self.0.lock().unwrap().data_only.insert(pool);
    }

    /// Calls `visit` with every object.
    pub fn each(&self, mut visit: impl FnMut(&str, &mut MemoryObject)) {
        for ((_, name), object) in &mut self.0.lock().unwrap().objects {
            visit(name.as_str(), object);
        }
    }

    /// Removes objects with a prefix behind the gateway's back.
    pub fn lose(&self, prefix: &str) {
        self.0.lock().unwrap().objects.retain(|(_, name), _| !name.as_str().starts_with(prefix));
    }

    /// From now on changes a bit of every other answer that nothing checks but the reader.
    pub fn change_on_the_way(&self) {
        self.0.lock().unwrap().answers_to_open = Some(0);
    }

    /// How many answers were changed.
    pub fn changed_on_the_way(&self) -> usize {
        self.0.lock().unwrap().answers_to_open.unwrap_or(0).div_ceil(2)
    }

    /// Requests that met [`Fault::Slow`] or [`Fault::Held`] so far.
    pub fn slow_begun(&self) -> usize {
        self.0.lock().unwrap().slow_begun
    }

    /// Most requests that met [`Fault::Slow`] or [`Fault::Held`] at the same time.
    pub fn slow_at_once(&self) -> usize {
        self.0.lock().unwrap().slow_at_once
    }

    /// Releases held requests.
    pub fn release(&self) {
        self.0.lock().unwrap().releases.send_replace(());
    }

    async fn pause(&self, pause: Option<Duration>) {
        let mut released = {
            let mut cluster = self.0.lock().unwrap();
            cluster.slow_begun += 1;
            cluster.slow_now += 1;
            cluster.slow_at_once = cluster.slow_at_once.max(cluster.slow_now);
            cluster.releases.subscribe()
        };
        match pause {
            Some(pause) => tokio::time::sleep(pause).await,
            None => released.changed().await.expect("the cluster of a request lives"),
        }
        self.0.lock().unwrap().slow_now -= 1;
    }

    fn fault(&self, object: &ObjectName, key: &[u8]) -> Option<Fault> {
        let cluster = self.0.lock().unwrap();
        let found = cluster.faults.iter().find(|(what, _)| {
            let is_beside = what == "@" && object.as_str().contains('@');
            is_beside || object.as_str().starts_with(what.as_str()) || key.starts_with(what.as_bytes())
        });
        found.map(|(_, fault)| fault.clone())
    }

    fn write(&self, pool: PoolId, request: &WriteRequest) -> Result<(), Refusal> {
        let mut cluster = self.0.lock().unwrap();
        check_sizes(request)?;
        if cluster.data_only.contains(&pool) && has_omap(request) {
            return Err(invalid("there is no omap in this pool"));
        }
        let at = (pool, request.object.clone());
        let found = cluster.objects.get(&at);
        for (index, condition) in request.conditions.iter().enumerate() {
            let value = |key| found.and_then(|object| object.omap.get(key));
            let holds = match condition {
                Condition::ObjectExists => found.is_some(),
                Condition::ObjectAbsent => found.is_none(),
                Condition::OmapExists { key } => value(key).is_some(),
                Condition::OmapAbsent { key } => value(key).is_none(),
                Condition::OmapEquals { key, value: wanted } => value(key) == Some(wanted),
                Condition::OtherExists { object } => cluster.objects.contains_key(&(pool, object.clone())),
                Condition::NotFenced { .. } | Condition::PgNum { .. } => true,
            };
            if !holds {
                return Err(Refusal::ConditionFailed { index: index as u16 });
            }
        }
        // Changed on a copy: all or nothing.
        let mut changed = found.cloned();
        let mut payload = request.payload.clone();
        for mutation in &request.mutations {
            if matches!(mutation, Mutation::Remove) {
                changed = None;
            } else {
                apply(changed.get_or_insert_default(), mutation, &mut payload)?;
            }
        }
        if !payload.is_empty() {
            return Err(invalid("payload is longer than the writes"));
        }
        match changed {
            Some(mut object) => {
                object.version += 1;
                cluster.objects.insert(at, object);
            }
            None => drop(cluster.objects.remove(&at)),
        }
        Ok(())
    }

    fn read(
        &self,
        pool: PoolId,
        name: &ObjectName,
        request: &ReadRequest,
    ) -> Result<(ReadOutcome, Bytes), Refusal> {
        let mut cluster = self.0.lock().unwrap();
        let asks_omap = matches!(request, ReadRequest::OmapGet { .. } | ReadRequest::OmapList { .. });
        if cluster.data_only.contains(&pool) && asks_omap {
            return Err(invalid("there is no omap in this pool"));
        }
        if let ReadRequest::ObjectList { prefix, after, .. } = request {
            return Ok((cluster.list(pool, name, prefix, after.as_ref()), Bytes::new()));
        }
        let object = cluster.objects.get(&(pool, name.clone())).ok_or(Refusal::NoSuchObject)?;
        let none = Bytes::new();
        match request {
            ReadRequest::Data { offset, length, opens_seals } => {
                let (outcome, mut data) = read_data(object, *offset, u64::from(*length))?;
                let is_unchecked = *opens_seals && object.unit.is_some() && !data.is_empty();
                if let (true, Some(answers)) = (is_unchecked, &mut cluster.answers_to_open) {
                    *answers += 1;
                    if *answers % 2 == 1 {
                        data = data.iter().enumerate().map(|(at, byte)| byte ^ u8::from(at == 0)).collect();
                    }
                }
                Ok((outcome, data))
            }
            ReadRequest::Extents { .. } | ReadRequest::ObjectList { .. } => {
                unreachable!("the gateway does not ask for it")
            }
            ReadRequest::Stat => {
                let version = Version { epoch: Epoch(1), sequence: object.version };
                Ok((ReadOutcome::Stat { object_bytes: object.data.len() as u64, version }, none))
            }
            ReadRequest::OmapGet { key } => Ok((ReadOutcome::OmapValue(object.omap.get(key).cloned()), none)),
            ReadRequest::OmapList { prefix, from, limit } => {
                let limit = (*limit).min(OMAP_LIST_MAX) as usize;
                let mut found = object
                    .omap
                    .range::<Bytes, _>(from.max(prefix)..)
                    .take_while(|(key, _)| key.starts_with(prefix))
                    .map(|(key, value)| (key.clone(), value.clone()));
                let entries = found.by_ref().take(limit.min(PAGE_MAX)).collect();
                Ok((ReadOutcome::OmapPage { entries, more: found.next().is_some() }, none))
            }
        }
    }
}

fn invalid(detail: &str) -> Refusal {
    Refusal::Invalid { detail: detail.into() }
}

fn has_omap(request: &WriteRequest) -> bool {
    let is_asked = |condition: &Condition| {
        matches!(
            condition,
            Condition::OmapExists { .. } | Condition::OmapAbsent { .. } | Condition::OmapEquals { .. }
        )
    };
    let is_changed = |mutation: &Mutation| {
        matches!(mutation, Mutation::OmapSet { .. } | Mutation::OmapRemove { .. } | Mutation::OmapReplace { .. })
    };
    request.conditions.iter().any(is_asked) || request.mutations.iter().any(is_changed)
}

/// Checks the approximate limits of a frame: the wire would refuse these requests.
fn check_sizes(request: &WriteRequest) -> Result<(), Refusal> {
    let mut control = 256;
    for condition in &request.conditions {
        control += 16
            + match condition {
                Condition::OmapExists { key } | Condition::OmapAbsent { key } => key.len(),
                Condition::OmapEquals { key, value } => key.len() + value.len(),
                _ => 8,
            };
    }
    let mut longest = (0, 0);
    for mutation in &request.mutations {
        let (keys, value) = match mutation {
            Mutation::OmapSet { key, value } => (key.len(), value.len()),
            Mutation::OmapRemove { key } => (key.len(), 0),
            Mutation::OmapReplace { key, value, displaced_to } => {
                longest.0 = longest.0.max(displaced_to.len());
                (key.len() + displaced_to.len(), value.as_ref().map_or(0, Bytes::len))
            }
            Mutation::Write { seals, .. } => (0, seals.as_ref().map_or(0, |seals| seals.bytes.len())),
            _ => (0, 0),
        };
        control += 24 + keys + value;
        longest = (longest.0.max(keys.min(OMAP_KEY_BYTES_MAX)), longest.1.max(value));
    }
    let fits = control <= CONTROL_BYTES_MAX
        && request.payload.len() <= PAYLOAD_BYTES_MAX
        && request.mutations.len() <= OPERATIONS_MAX
        && longest.0 <= OMAP_KEY_BYTES_MAX
        && longest.1 <= OMAP_VALUE_BYTES_MAX;
    if fits { Ok(()) } else { Err(invalid("the request exceeds a limit")) }
}

fn apply(object: &mut MemoryObject, mutation: &Mutation, payload: &mut Bytes) -> Result<(), Refusal> {
    match mutation {
        Mutation::Write { offset, length, seals } => {
            let end = offset + u64::from(*length);
            let is_aligned = offset.is_multiple_of(BLOCK_BYTES as u64)
                && (end.is_multiple_of(BLOCK_BYTES as u64) || end >= object.data.len() as u64);
            if !is_aligned || end > OBJECT_BYTES_MAX || payload.len() < *length as usize {
                return Err(invalid("write is misaligned, too long or lacks payload"));
            }
            // S3 data is written once.
            if *offset < object.data.len() as u64 {
                return Err(invalid("this range was written before"));
            }
            object.data.resize(end as usize, 0);
            object.data[*offset as usize..].copy_from_slice(&payload.split_to(*length as usize));
            if let Some(seals) = seals {
                write_seals(object, *offset, *length, seals)?;
            }
        }
        Mutation::Zero { .. } | Mutation::Truncate { .. } | Mutation::CloneFrom { .. } => {
            return Err(invalid("the gateway zeroes, cuts and clones nothing"));
        }
        Mutation::SetVersion { .. }
        | Mutation::ResetLog { .. }
        | Mutation::SetShardOf { .. }
        | Mutation::ClonePreImage { .. }
        | Mutation::RemoveOther { .. }
        | Mutation::Split { .. } => {
            return Err(invalid("only members send this to each other"));
        }
        Mutation::Create | Mutation::Remove => {}
        Mutation::OmapSet { key, value } => drop(object.omap.insert(key.clone(), value.clone())),
        Mutation::OmapRemove { key } => drop(object.omap.remove(key)),
        Mutation::OmapReplace { key, value, displaced_to } => {
            let old = match value {
                Some(value) => object.omap.insert(key.clone(), value.clone()),
                None => object.omap.remove(key),
            };
            if let Some(old) = old {
                object.omap.insert(displaced_to.clone(), old);
            }
        }
    }
    Ok(())
}

fn write_seals(object: &mut MemoryObject, offset: u64, length: u32, seals: &Seals) -> Result<(), Refusal> {
    let unit = u64::from(seals.unit_bytes);
    let count = u64::from(length).div_ceil(unit) as usize;
    let fits = seals.unit_bytes <= SEAL_UNIT_BYTES_MAX
        && offset.is_multiple_of(unit)
        && seals.bytes.len() == count * usize::from(seals.seal_bytes)
        && object.unit.is_none_or(|known| known == (seals.unit_bytes, seals.seal_bytes));
    if !fits {
        return Err(invalid("seals do not fit the write"));
    }
    object.unit = Some((seals.unit_bytes, seals.seal_bytes));
    for (index, seal) in seals.bytes.chunks(usize::from(seals.seal_bytes)).enumerate() {
        object.seals.insert(offset / unit + index as u64, Bytes::copy_from_slice(seal));
    }
    Ok(())
}

fn read_data(object: &MemoryObject, offset: u64, length: u64) -> Result<(ReadOutcome, Bytes), Refusal> {
    let block = BLOCK_BYTES as u64;
    if !offset.is_multiple_of(block) || !length.is_multiple_of(block) {
        return Err(invalid("read is misaligned"));
    }
    let object_bytes = object.data.len() as u64;
    let (start, end) = (offset.min(object_bytes), (offset + length).min(object_bytes));
    let data = Bytes::copy_from_slice(&object.data[start as usize..end as usize]);
    let seals = object.unit.map(|(unit_bytes, seal_bytes)| {
        let units = start / u64::from(unit_bytes)..end.div_ceil(u64::from(unit_bytes));
        let blank = Bytes::from(vec![0; usize::from(seal_bytes)]);
        let bytes: Vec<u8> = units.flat_map(|unit| object.seals.get(&unit).unwrap_or(&blank).to_vec()).collect();
        Seals { unit_bytes, seal_bytes, bytes: bytes.into() }
    });
    Ok((ReadOutcome::Data { object_bytes, version: Version::default(), seals }, data))
}

impl ObjectClient for MemoryClient {
    async fn send_read(
        &self,
        pool: PoolId,
        object: ObjectName,
        request: ReadRequest,
    ) -> Result<(ReadOutcome, Bytes), ClientError> {
        let key = match &request {
            ReadRequest::OmapGet { key } => &key[..],
            _ => b"",
        };
        match self.fault(&object, key) {
            Some(Fault::Slow(pause)) => self.pause(Some(pause)).await,
            Some(Fault::Held) => self.pause(None).await,
            _ => {}
        }
        self.read(pool, &object, &request).map_err(|refusal| ClientError::Refused { pool, object, refusal })
    }

    async fn send_write(&self, pool: PoolId, request: WriteRequest) -> Result<(), ClientError> {
        let object = request.object.clone();
        let replaced = request.mutations.iter().find_map(|mutation| match mutation {
            Mutation::OmapReplace { key, .. } => Some(key.clone()),
            _ => None,
        });
        match self.fault(&object, &replaced.unwrap_or_default()) {
            Some(Fault::Slow(pause)) => self.pause(Some(pause)).await,
            Some(Fault::Held) => self.pause(None).await,
            Some(Fault::NoSpace) => {
                let refusal = Refusal::NoSpace { osd: atoll_types::OsdId(3) };
                return Err(ClientError::Refused { pool, object, refusal });
            }
            // The answer is lost.
            Some(Fault::WriteTwice) => drop(self.write(pool, &request)),
            Some(Fault::WriteTimesOut { happens }) => {
                if happens {
                    let _ = self.write(pool, &request);
                }
                return Err(ClientError::TimedOut { pool, object, timeout_ms: 1, detail: "a test".into() });
            }
            None => {}
        }
        self.write(pool, &request).map_err(|refusal| ClientError::Refused { pool, object, refusal })
    }
}
