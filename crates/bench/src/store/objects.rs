//! The working set: objects as the pieces of an image are, and the history of the PGs
//! that they belong to.

use atoll_buffers::BLOCK_BYTES;
use atoll_store::{ObjectKey, Store, StoreError, TransactionId};
use atoll_types::limits::OBJECT_BYTES_MAX;
use atoll_types::{
    Epoch, LogEntry, Mutation, ObjectName, PgId, PoolId, RequestId, Seals, Touched, Transaction, Version,
};
use bytes::Bytes;

use crate::load::Random;

const PG_COUNT: usize = 64;
/// Length of an image's seal: tag, counter and key reference.
const SEAL_BYTES: usize = 28;
const PAYLOADS: usize = 16;

/// Data to write and its seals.
#[derive(Clone)]
struct Payload {
    data: Bytes,
    seals: Bytes,
}

/// Some payloads of one size. Their bytes are random: to the store, sealed data is.
pub(super) struct Payloads(Vec<Payload>);

impl Payloads {
    pub fn new(block_bytes: u64, random: &mut Random) -> Self {
        let seals_bytes = block_bytes as usize / BLOCK_BYTES * SEAL_BYTES;
        let payload =
            |_| Payload { data: random.fill(block_bytes as usize).into(), seals: random.fill(seals_bytes).into() };
        Payloads((0..PAYLOADS).map(payload).collect())
    }
}

/// Where an operation goes.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub object: usize,
    pub offset: u64,
}

pub(super) struct Objects {
    names: Vec<ObjectName>,
    /// Sequence of the newest write of each PG.
    heads: [u64; PG_COUNT],
    writes: u64,
}

impl Objects {
    /// Names for a working set of whole objects.
    pub fn new(working_set_bytes: u64) -> Self {
        let name = |number: u64| {
            ObjectName::new(&format!("image.00000000000000000000000000000001.{number:016x}"))
                .expect("the name has a valid length")
        };
        let names = (0..working_set_bytes / OBJECT_BYTES_MAX).map(name).collect();
        Objects { names, heads: [0; PG_COUNT], writes: 0 }
    }

    pub fn count(&self) -> usize {
        self.names.len()
    }

    fn pg_index(&self, object: usize) -> usize {
        object % PG_COUNT
    }

    pub fn key(&self, object: usize) -> ObjectKey {
        let pg = PgId { pool: PoolId(1), index: self.pg_index(object) as u32 };
        ObjectKey { pg, name: self.names[object].clone() }
    }

    /// Submits a write as a client's would come from its PG. A write that is refused
    /// leaves no trace in the PG's history.
    pub fn write(
        &mut self,
        store: &mut Store,
        place: Place,
        payloads: &Payloads,
    ) -> Result<TransactionId, StoreError> {
        let payload = &payloads.0[self.writes as usize % PAYLOADS];
        let ObjectKey { pg, name } = self.key(place.object);
        let sequence = self.heads[self.pg_index(place.object)] + 1;
        let seals =
            Seals { unit_bytes: BLOCK_BYTES as u32, seal_bytes: SEAL_BYTES as u16, bytes: payload.seals.clone() };
        let length = payload.data.len() as u32;
        let mutations = vec![Mutation::Write { offset: place.offset, length, seals: Some(seals) }];
        let entry = LogEntry {
            version: Version { epoch: Epoch(1), sequence },
            request: Some(RequestId { session: 1, sequence: self.writes }),
            object: name.clone(),
            touched: Touched::by(&mutations),
            committed_sequence: 0,
            pre_image: None,
        };
        let transaction = Transaction {
            pg,
            object: name,
            mutations,
            payload: payload.data.clone(),
            payload_sealed: true,
            log: vec![entry],
        };
        let id = store.submit(&transaction)?;
        let pg = self.pg_index(place.object);
        self.heads[pg] = sequence;
        self.writes += 1;
        Ok(id)
    }
}
