//! Objects in memory for tests, behind calls that take a random number of turns, so that concurrent calls
//! interleave, and a dropped one stops at any of its steps.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use atoll_buffers::BLOCK_BYTES;
use atoll_client::{ClientError, ObjectClient, PoolClient};
use atoll_types::operation::bits;
use atoll_types::{
    Condition, Epoch, ListedObject, Mutation, ObjectName, PgId, PoolId, ReadOutcome, ReadRequest, Refusal, Seals,
    Version, WriteRequest, mix,
};
use bytes::Bytes;

/// Objects in one page of a list: few, so that lists take several.
const PAGE: usize = 3;

#[derive(Clone, Default)]
struct Object {
    /// By block: its bytes and its seal.
    blocks: BTreeMap<u64, (Vec<u8>, Vec<u8>)>,
    size_bytes: u64,
    version: u64,
    seal_bytes: Option<u16>,
}

#[derive(Default)]
struct Shared {
    objects: RefCell<BTreeMap<ObjectName, Object>>,
    fences: RefCell<BTreeMap<Bytes, u64>>,
    next_version: Cell<u64>,
    random: Cell<u64>,
    /// All clones are refused for a reason of the OSD's own.
    refuses_clones: Cell<bool>,
    /// Writes to this object are refused at once.
    full: RefCell<Option<ObjectName>>,
}

#[derive(Clone, Default)]
pub struct MemoryClient(Rc<Shared>);

/// Pending once.
async fn turn() {
    let mut was_polled = false;
    std::future::poll_fn(|context| {
        context.waker().wake_by_ref();
        match std::mem::replace(&mut was_polled, true) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
}

impl MemoryClient {
    pub fn new(seed: u64) -> Self {
        let client = MemoryClient::default();
        client.0.random.set(seed);
        client
    }

    pub fn refuse_clones(&self, refuses: bool) {
        self.0.refuses_clones.set(refuses);
    }

    pub fn refuse_writes_to(&self, object: ObjectName) {
        self.0.full.replace(Some(object));
    }

    pub fn object_count(&self) -> usize {
        self.0.objects.borrow().len()
    }

    async fn turns(&self) {
        let random = mix(self.0.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        self.0.random.set(random);
        for _ in 0..random % 4 {
            turn().await;
        }
    }

    fn check(&self, name: &ObjectName, conditions: &[Condition]) -> Result<(), Refusal> {
        let exists = self.0.objects.borrow().contains_key(name);
        for (index, condition) in conditions.iter().enumerate() {
            let holds = match condition {
                Condition::ObjectExists => exists,
                Condition::ObjectAbsent => !exists,
                Condition::NotFenced { name, generation } => {
                    let fence = self.0.fences.borrow().get(name).copied().unwrap_or(0);
                    if fence > *generation {
                        return Err(Refusal::Fenced { generation: fence });
                    }
                    true
                }
                other => panic!("images do not ask for {other:?}"),
            };
            if !holds {
                return Err(Refusal::ConditionFailed { index: index as u16 });
            }
        }
        Ok(())
    }

    fn apply(&self, name: &ObjectName, mutation: &Mutation, payload: &[u8]) -> Result<(), Refusal> {
        let mut objects = self.0.objects.borrow_mut();
        let block_bytes = BLOCK_BYTES as u64;
        match mutation {
            Mutation::Create => drop(objects.entry(name.clone()).or_default()),
            Mutation::Remove => drop(objects.remove(name)),
            Mutation::CloneFrom { .. } if self.0.refuses_clones.get() => {
                return Err(Refusal::Invalid { detail: "this OSD clones nothing today".into() });
            }
            Mutation::CloneFrom { source } => {
                let found = objects.get(source).cloned();
                let detail = "the object to clone does not exist".into();
                objects.insert(name.clone(), found.ok_or(Refusal::Invalid { detail })?);
            }
            Mutation::Zero { offset, length } => {
                let object = objects.entry(name.clone()).or_default();
                let (first, end) = (offset / block_bytes, (offset + length).div_ceil(block_bytes));
                object.blocks.retain(|block, _| !(first..end).contains(block));
            }
            Mutation::Write { offset, length, seals } => {
                let object = objects.entry(name.clone()).or_default();
                let shape = seals.as_ref().map(|seals| seals.seal_bytes);
                assert!(object.size_bytes == 0 || object.seal_bytes == shape, "seals of one shape");
                object.seal_bytes = shape;
                object.size_bytes = object.size_bytes.max(offset + u64::from(*length));
                for (index, bytes) in payload.chunks(BLOCK_BYTES).enumerate() {
                    let seal = seals.as_ref().map_or_else(Vec::new, |seals| {
                        let width = usize::from(seals.seal_bytes);
                        seals.bytes[index * width..(index + 1) * width].to_vec()
                    });
                    object.blocks.insert(offset / block_bytes + index as u64, (bytes.to_vec(), seal));
                }
            }
            other => panic!("images do not ask for {other:?}"),
        }
        if let Some(object) = objects.get_mut(name) {
            self.0.next_version.set(self.0.next_version.get() + 1);
            object.version = self.0.next_version.get();
        }
        Ok(())
    }

    /// Changes a bit of some answers whose seals the reader opens, as nothing but the reader checks them.
    fn change_on_the_way(&self, data: &mut [u8]) {
        let random = self.0.random.get() as usize;
        if random.is_multiple_of(3) && !data.is_empty() {
            let length = data.len();
            data[(random / 3) % length] ^= 1;
        }
    }

    fn look(&self, name: &ObjectName, request: &ReadRequest) -> Result<(ReadOutcome, Bytes), Refusal> {
        if let ReadRequest::ObjectList { prefix, after, .. } = request {
            let objects = self.0.objects.borrow();
            let wanted = objects.iter().filter(|(name, _)| {
                name.as_str().as_bytes().starts_with(prefix) && after.as_ref().is_none_or(|after| *name > after)
            });
            let listed = |(name, object): (&ObjectName, &Object)| ListedObject {
                name: name.clone(),
                object_bytes: object.size_bytes,
                version: version(object),
                block_count: object.blocks.len() as u32,
                shared_block_count: 0,
            };
            let objects: Vec<_> = wanted.take(PAGE).map(listed).collect();
            let next = (objects.len() == PAGE).then(|| objects[PAGE - 1].name.clone());
            return Ok((ReadOutcome::ObjectPage { objects, next }, Bytes::new()));
        }
        let objects = self.0.objects.borrow();
        let object = objects.get(name).ok_or(Refusal::NoSuchObject)?;
        let (object_bytes, version) = (object.size_bytes, version(object));
        let range = |offset: u64, length: u32| {
            let end = object_bytes.min(offset + u64::from(length)).max(offset);
            offset / BLOCK_BYTES as u64..end.div_ceil(BLOCK_BYTES as u64)
        };
        Ok(match request {
            ReadRequest::Stat => (ReadOutcome::Stat { object_bytes, version }, Bytes::new()),
            ReadRequest::Extents { offset, length } => {
                let held: Vec<bool> =
                    range(*offset, *length).map(|block| object.blocks.contains_key(&block)).collect();
                (ReadOutcome::Extents { object_bytes, version, blocks: bits(&held) }, Bytes::new())
            }
            ReadRequest::Data { offset, length, opens_seals } => {
                let width = object.seal_bytes.unwrap_or(0);
                let (mut data, mut seals) = (Vec::new(), Vec::new());
                for block in range(*offset, *length) {
                    let hole = (vec![0; BLOCK_BYTES], vec![0; width.into()]);
                    let (bytes, seal) = object.blocks.get(&block).unwrap_or(&hole);
                    data.extend_from_slice(bytes);
                    seals.extend_from_slice(seal);
                }
                let seals = object.seal_bytes.map(|seal_bytes| Seals {
                    unit_bytes: BLOCK_BYTES as u32,
                    seal_bytes,
                    bytes: seals.into(),
                });
                if *opens_seals && object.seal_bytes.is_some_and(|width| width > 1) {
                    self.change_on_the_way(&mut data);
                }
                (ReadOutcome::Data { object_bytes, version, seals }, data.into())
            }
            other => panic!("images do not ask for {other:?}"),
        })
    }
}

fn version(object: &Object) -> Version {
    Version { epoch: Epoch(1), sequence: object.version }
}

impl ObjectClient for MemoryClient {
    async fn send_read(
        &self,
        pool: PoolId,
        object: ObjectName,
        request: ReadRequest,
    ) -> Result<(ReadOutcome, Bytes), ClientError> {
        self.turns().await;
        let answer = self.look(&object, &request);
        self.turns().await;
        answer.map_err(|refusal| ClientError::Refused { pool, object, refusal })
    }

    async fn send_write(&self, pool: PoolId, request: WriteRequest) -> Result<(), ClientError> {
        if self.0.full.borrow().as_ref() == Some(&request.object) {
            let detail = "it is full".into();
            return Err(ClientError::Refused {
                pool,
                object: request.object,
                refusal: Refusal::Invalid { detail },
            });
        }
        self.turns().await;
        let object = request.object.clone();
        let mut done = self.check(&object, &request.conditions);
        let mut payload = &request.payload[..];
        for mutation in &request.mutations {
            let length = if let Mutation::Write { length, .. } = mutation { *length as usize } else { 0 };
            let (data, rest) = payload.split_at(length);
            payload = rest;
            done = done.and_then(|()| self.apply(&object, mutation, data));
        }
        self.turns().await;
        done.map_err(|refusal| ClientError::Refused { pool, object, refusal })
    }
}

impl PoolClient for MemoryClient {
    async fn pgs(&self, pool: PoolId) -> Result<Vec<(PgId, u32)>, ClientError> {
        Ok(vec![(PgId { pool, index: 0 }, 1)])
    }

    async fn read_pg(&self, pg: PgId, request: ReadRequest) -> Result<(ReadOutcome, Bytes), ClientError> {
        self.send_read(pg.pool, ObjectName::new("@pg").unwrap(), request).await
    }

    async fn fence(&self, _: PoolId, name: Bytes, generation: u64) -> Result<(), ClientError> {
        self.turns().await;
        let mut fences = self.0.fences.borrow_mut();
        let fence = fences.entry(name).or_default();
        *fence = generation.max(*fence);
        Ok(())
    }

    async fn sleep(&self, _: Duration) {
        self.turns().await;
    }
}
