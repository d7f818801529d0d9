//! Dumps the content of a store, for operators and scripts, as a stream of records, so that memory stays bounded.
//! It changes nothing on the devices.

use std::ops::ControlFlow;

use atoll_types::{ObjectName, PgId};
use serde::Serialize;

use crate::check::Problem;
use crate::disk::{Device, Disk};
use crate::error::OpenError;
use crate::layout::Layout;
use crate::metadata::keys::{self, ObjectPart};
use crate::metadata::{CHUNK_BLOCKS, Chunk, HOLE, Metadata, ObjectInfo, ObjectKey};
use crate::recovery::{Recovered, load_checkpoint, load_superblock};
use crate::superblock::Superblock;
use crate::walk::{Visitor, Walk};

/// Parts to dump.
#[derive(Clone, Debug, Default)]
pub struct DumpOptions {
    /// Only the objects of this PG.
    pub pg: Option<PgId>,
    /// Only objects of this name, with all details: blocks, checksums, omap keys.
    pub object: Option<ObjectName>,
}

/// One thing that a store holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub enum DumpRecord {
    /// A copy of the superblock that is whole.
    Superblock(SuperblockRecord),
    /// Where things are.
    Layout(LayoutRecord),
    /// A PG.
    Pg {
        /// Its id.
        pg: String,
        /// Version of its newest write.
        head: String,
        /// The newest of the store's transactions that changed it.
        applied_number: u64,
        /// Entries of its log.
        log_entries: usize,
        /// Sequence of the oldest of them.
        oldest: Option<u64>,
    },
    /// An object.
    Object(ObjectRecord),
    /// Something that could not be read.
    Damage {
        /// The problem.
        detail: String,
    },
}

/// A copy of the superblock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "docs/reference/formats.md has the fields")]
pub struct SuperblockRecord {
    pub block: u64,
    pub is_in_force: bool,
    pub store_id: String,
    pub generation: u64,
    pub incarnation: u64,
    pub device_bytes: u64,
    pub wal_position: u64,
    pub wal_sequence: u64,
    pub object_count: u64,
    pub page_count: u32,
    pub directories: Vec<u32>,
}

/// Where things are, in blocks of 4 KiB.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "docs/reference/formats.md has the fields")]
pub struct LayoutRecord {
    pub wal_is_apart: bool,
    pub wal_start: u64,
    pub wal_blocks: u64,
    pub data_start: u64,
    pub data_blocks: u64,
    /// Log records behind the checkpoint that were replayed; the records of the dump include them.
    pub log_records_replayed: u64,
}

/// An object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ObjectRecord {
    /// Its PG.
    pub pg: String,
    /// Its name.
    pub object: String,
    /// Its size.
    pub size_bytes: u64,
    /// Size of the whole object, if it is a shard of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub whole_bytes: Option<u64>,
    /// Version of its last change.
    pub version: String,
    /// Bytes of data per seal; 0 if it has none.
    pub seal_unit_bytes: u32,
    /// Length of a seal.
    pub seal_bytes: u16,
    /// True if it may share blocks with others.
    pub may_share: bool,
    /// Blocks that are not holes.
    pub blocks: u64,
    /// Seals that are set.
    pub seals: u64,
    /// Omap entries.
    pub omap_entries: u64,
    /// Bytes of their values.
    pub omap_bytes: u64,
    /// Where its data is; only for an object that was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extents: Vec<ExtentRecord>,
    /// Its omap keys as text, with bytes that are not text escaped; only for an object that was
    /// asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub omap_keys: Vec<String>,
}

/// Blocks of an object that lie one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExtentRecord {
    /// First block of the object.
    pub index: usize,
    /// Where it is.
    pub device_block: u32,
    /// CRC-32C of each block.
    pub crcs: Vec<u32>,
}

/// Dumps the store with its log replayed in memory, or without the log if replaying fails. `tell`
/// ends the dump by returning `Break`.
///
/// ```
/// use std::ops::ControlFlow;
///
/// use atoll_store::{Disk, DumpOptions, DumpRecord, OpenError, dump};
///
/// fn object_names(disk: &mut dyn Disk) -> Result<Vec<String>, OpenError> {
///     let mut names = Vec::new();
///     dump(disk, &DumpOptions::default(), &mut |record| {
///         if let DumpRecord::Object(object) = record {
///             names.push(object.object);
///         }
///         ControlFlow::Continue(())
///     })?;
///     Ok(names)
/// }
/// ```
pub fn dump(
    disk: &mut dyn Disk,
    options: &DumpOptions,
    tell: &mut dyn FnMut(DumpRecord) -> ControlFlow<()>,
) -> Result<(), OpenError> {
    let (superblock, layout) = load_superblock(disk)?;
    match Recovered::load(disk) {
        Ok(recovered) => {
            let _ = dump_recovered(disk, &recovered, options, tell);
        }
        Err(error) => {
            let (_, metadata) = load_checkpoint(disk, &superblock, &layout)?;
            let _ = dump_checkpoint(disk, &error, &superblock, &layout, &metadata, options, tell);
        }
    }
    Ok(())
}

type Tell<'a> = &'a mut dyn FnMut(DumpRecord) -> ControlFlow<()>;

fn dump_recovered(
    disk: &mut dyn Disk,
    recovered: &Recovered,
    options: &DumpOptions,
    tell: Tell,
) -> ControlFlow<()> {
    tell_whole(disk, &recovered.superblock, &recovered.layout, recovered.replayed_records, tell)?;
    let is_wanted = |pg: PgId| options.pg.is_none_or(|wanted| wanted == pg);
    for (pg, state) in recovered.pgs.iter().filter(|(pg, _)| is_wanted(**pg)) {
        tell(DumpRecord::Pg {
            pg: pg.to_string(),
            head: state.head.to_string(),
            applied_number: state.applied_number,
            log_entries: state.log.len(),
            oldest: state.log.front().map(|entry| entry.version.sequence),
        })?;
    }
    dump_objects(disk, &recovered.metadata, options, tell)
}

fn dump_checkpoint(
    disk: &mut dyn Disk,
    error: &OpenError,
    superblock: &Superblock,
    layout: &Layout,
    metadata: &Metadata,
    options: &DumpOptions,
    tell: Tell,
) -> ControlFlow<()> {
    tell_whole(disk, superblock, layout, 0, tell)?;
    let detail = format!("the store cannot be opened ({error}); these are the objects of the checkpoint");
    tell(DumpRecord::Damage { detail })?;
    dump_objects(disk, metadata, options, tell)
}

fn tell_whole(
    disk: &mut dyn Disk,
    superblock: &Superblock,
    layout: &Layout,
    log_records_replayed: u64,
    tell: Tell,
) -> ControlFlow<()> {
    for copy in Superblock::copies(disk).iter().flatten() {
        tell(DumpRecord::Superblock(SuperblockRecord {
            block: copy.block(),
            is_in_force: copy == superblock,
            store_id: hex::encode(copy.store_id),
            generation: copy.generation,
            incarnation: copy.incarnation,
            device_bytes: copy.device_bytes,
            wal_position: copy.wal_position,
            wal_sequence: copy.wal_sequence,
            object_count: copy.object_count,
            page_count: copy.page_count,
            directories: copy.directories.iter().map(|location| location.block).collect(),
        }))?;
    }
    tell(DumpRecord::Layout(LayoutRecord {
        wal_is_apart: layout.wal_device == Device::Log,
        wal_start: layout.wal_start,
        wal_blocks: layout.wal_blocks,
        data_start: layout.data_start,
        data_blocks: layout.data_blocks,
        log_records_replayed,
    }))
}

fn dump_objects(disk: &mut dyn Disk, metadata: &Metadata, options: &DumpOptions, tell: Tell) -> ControlFlow<()> {
    let from = match (options.pg, &options.object) {
        (Some(pg), Some(name)) => metadata.parts.object(pg, name),
        // All that share the prefix; those of other PGs are passed over.
        (Some(pg), None) => keys::objects_of(metadata.parts.root(pg)),
        (None, _) => keys::OBJECTS.to_vec(),
    };
    let to = keys::end_of(&from);
    let mut objects = Objects {
        metadata,
        pg: options.pg,
        name: options.object.as_ref(),
        current: None,
        tell,
        flow: ControlFlow::Continue(()),
    };
    Walk::new(disk, &metadata.tree.pages, &from, &to).run(metadata.tree.root, &mut objects);
    objects.finish()
}

/// Assembles objects from their entries.
struct Objects<'a> {
    metadata: &'a Metadata,
    /// The PG that was asked for.
    pg: Option<PgId>,
    /// The name that was asked for.
    name: Option<&'a ObjectName>,
    current: Option<(ObjectKey, ObjectRecord)>,
    tell: Tell<'a>,
    flow: ControlFlow<()>,
}

impl Objects<'_> {
    fn finish(&mut self) -> ControlFlow<()> {
        self.flow?;
        if let Some((_, record)) = self.current.take() {
            self.flow = (self.tell)(DumpRecord::Object(record));
        }
        self.flow
    }

    /// The record that an entry of the object belongs to.
    fn record_of(&mut self, object: ObjectKey) -> Result<&mut ObjectRecord, ControlFlow<()>> {
        if self.current.as_ref().is_none_or(|(current, _)| *current != object) {
            if self.finish().is_break() {
                return Err(ControlFlow::Break(()));
            }
            let record = ObjectRecord {
                pg: object.pg.to_string(),
                object: object.name.to_string(),
                ..ObjectRecord::default()
            };
            self.current = Some((object, record));
        }
        let (_, record) = self.current.as_mut().expect("set just now");
        Ok(record)
    }
}

impl Visitor for Objects<'_> {
    fn entry(&mut self, _: &mut dyn Disk, key: &[u8], value: &[u8]) -> ControlFlow<()> {
        let Some((object, part)) = keys::parse_object(key) else { return ControlFlow::Continue(()) };
        let is_asked_for = self.name.is_some();
        if self.name.is_some_and(|name| *name != object.name) {
            return ControlFlow::Continue(());
        }
        let omap = keys::omap(&keys::object(object.pg, &object.name));
        let pg = self.metadata.parts.owner(&object);
        if self.pg.is_some_and(|wanted| wanted != pg) {
            return ControlFlow::Continue(());
        }
        let object = ObjectKey { pg, ..object };
        let record = match self.record_of(object) {
            Ok(record) => record,
            Err(flow) => return flow,
        };
        match part {
            ObjectPart::Header => record.add_header(value),
            ObjectPart::Chunk(index) => record.add_chunk(index, value, is_asked_for),
            ObjectPart::Omap => record.add_omap(&omap, key, value, is_asked_for),
        }
        ControlFlow::Continue(())
    }

    fn problem(&mut self, problem: Problem) {
        if self.flow.is_continue() {
            self.flow = (self.tell)(DumpRecord::Damage { detail: problem.to_string() });
        }
    }
}

impl ObjectRecord {
    fn add_header(&mut self, value: &[u8]) {
        let Ok(info) = ObjectInfo::decode(value) else { return };
        (self.size_bytes, self.whole_bytes) = (info.size_bytes, info.whole_bytes);
        self.version = info.version.to_string();
        (self.seal_unit_bytes, self.seal_bytes) = (info.seal_unit_bytes, info.seal_bytes);
        self.may_share = info.may_share;
    }

    fn add_chunk(&mut self, index: usize, value: &[u8], with_extents: bool) {
        let Ok(chunk) = Chunk::decode(value) else { return };
        let width = usize::from(self.seal_bytes).max(1);
        let is_set = |seal: &&[u8]| seal.iter().any(|&byte| byte != 0);
        self.seals += chunk.seals.chunks(width).filter(is_set).count() as u64;
        for (index, meta) in (index * CHUNK_BLOCKS..).zip(chunk.blocks).filter(|(_, meta)| *meta != HOLE) {
            self.blocks += 1;
            if !with_extents {
                continue;
            }
            match self.extents.last_mut() {
                Some(last) if last.ends_before(index, meta.device_block) => last.crcs.push(meta.crc),
                _ => self.extents.push(ExtentRecord {
                    index,
                    device_block: meta.device_block,
                    crcs: vec![meta.crc],
                }),
            }
        }
    }

    fn add_omap(&mut self, omap: &[u8], key: &[u8], value: &[u8], with_keys: bool) {
        let Some((omap_key, part)) = keys::parse_omap(omap, key) else { return };
        self.omap_bytes += value.len() as u64;
        if part != [0, 0] {
            return;
        }
        self.omap_entries += 1;
        if with_keys {
            self.omap_keys.push(omap_key.escape_ascii().to_string());
        }
    }
}

impl ExtentRecord {
    fn ends_before(&self, index: usize, device_block: u32) -> bool {
        let count = self.crcs.len();
        self.index + count == index && u64::from(self.device_block) + count as u64 == u64::from(device_block)
    }
}
