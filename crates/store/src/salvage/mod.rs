//! Reads the readable objects of a store, one by one: also of one that does not open, or whose metadata is
//! damaged in part. It changes nothing on the devices, and gives out no byte whose checksum does not fit.

mod archive;
mod data;

use std::ops::ControlFlow;

use atoll_types::operation::{PG_META_OBJECT, PRE_IMAGE_PREFIX};
use atoll_types::{Mutation, PgId, Transaction};
use bytes::Bytes;

pub use archive::{ArchiveError, ArchiveReader, ArchiveRecord, ArchiveWriter};

use crate::check::Problem;
use crate::disk::Disk;
use crate::error::OpenError;
use crate::layout::Layout;
use crate::metadata::keys::{self, ObjectPart};
use crate::metadata::{Chunk, Metadata, ObjectInfo, ObjectKey};
use crate::overlay::Overlay;
use crate::recovery::{Recovered, load_checkpoint, load_superblock, warm};
use crate::walk::{Visitor, Walk};

/// Bytes of omap entries in one change.
const ENTRY_BYTES_MAX: usize = 256 << 10;
/// Omap entries in one change.
const ENTRIES_MAX: usize = 1_000;

/// Objects to read.
#[derive(Clone, Debug, Default)]
pub struct SalvageOptions {
    /// Only those of these PGs; of all if there are none.
    pub pgs: Vec<PgId>,
    /// Objects that are readable in part, too: their lost blocks are absent.
    pub keeps_gaps: bool,
}

/// Something that was found.
#[derive(Clone, Debug)]
pub enum Salvaged {
    /// A change that makes an object, or adds omap entries to it. An object with data begins with
    /// [`Mutation::Create`], or, if it is a shard, with [`Mutation::SetShardOf`].
    Change(Transaction),
    /// Something is lost, in a sentence.
    Lost(String),
}

type Tell<'a> = &'a mut dyn FnMut(Salvaged) -> ControlFlow<()>;

/// Reads the objects of a store with its log replayed in memory, or those of its checkpoint if replaying fails. `tell` ends
/// that by returning `Break`.
///
/// ```
/// use std::ops::ControlFlow;
///
/// use atoll_store::{Disk, OpenError, Salvaged, SalvageOptions, salvage};
///
/// fn losses(disk: &mut dyn Disk) -> Result<Vec<String>, OpenError> {
///     let mut losses = Vec::new();
///     salvage(disk, &SalvageOptions::default(), &mut |found| {
///         if let Salvaged::Lost(what) = found {
///             losses.push(what);
///         }
///         ControlFlow::Continue(())
///     })?;
///     Ok(losses)
/// }
/// ```
pub fn salvage(disk: &mut dyn Disk, options: &SalvageOptions, tell: Tell<'_>) -> Result<(), OpenError> {
    let (superblock, layout) = load_superblock(disk)?;
    let error = match Recovered::load(disk) {
        Ok(recovered) => {
            walk(disk, &recovered.metadata, &recovered.overlay, layout, options, tell);
            return Ok(());
        }
        Err(error) => error,
    };
    let (_, mut metadata) = load_checkpoint(disk, &superblock, &layout)?;
    // Without them the objects of PGs that were split off count as those of the first one.
    if let Ok((_, parts)) = warm(disk, &mut metadata, crate::pgs::load) {
        metadata.parts = parts;
    }
    let detail = format!("the log cannot be replayed ({error}): writes after the last checkpoint are missing");
    if tell(Salvaged::Lost(detail)).is_continue() {
        walk(disk, &metadata, &Overlay::default(), layout, options, tell);
    }
    Ok(())
}

fn walk(
    disk: &mut dyn Disk,
    metadata: &Metadata,
    overlay: &Overlay,
    layout: Layout,
    options: &SalvageOptions,
    tell: Tell<'_>,
) {
    let from = match options.pgs[..] {
        [pg] => keys::objects_of(metadata.parts.root(pg)),
        _ => keys::OBJECTS.to_vec(),
    };
    let to = keys::end_of(&from);
    let flow = ControlFlow::Continue(());
    let mut objects = Objects { metadata, overlay, layout, options, current: None, tell, flow };
    Walk::new(disk, &metadata.tree.pages, &from, &to).run(metadata.tree.root, &mut objects);
    objects.finish(disk);
}

/// Assembles objects from their entries.
struct Objects<'a> {
    metadata: &'a Metadata,
    overlay: &'a Overlay,
    layout: Layout,
    options: &'a SalvageOptions,
    current: Option<Current>,
    tell: Tell<'a>,
    flow: ControlFlow<()>,
}

/// The object whose entries are being read.
struct Current {
    object: ObjectKey,
    info: Option<ObjectInfo>,
    chunks: Vec<(usize, Chunk)>,
    /// Metadata is missing that may be this object's.
    has_gap: bool,
    has_told_data: bool,
    /// The omap value whose parts are being read.
    value: Option<(Vec<u8>, Vec<u8>, u16)>,
    entries: Vec<Mutation>,
    entries_bytes: usize,
}

impl Current {
    fn new(object: ObjectKey) -> Self {
        Current {
            object,
            info: None,
            chunks: Vec::new(),
            has_gap: false,
            has_told_data: false,
            value: None,
            entries: Vec::new(),
            entries_bytes: 0,
        }
    }

    fn change(&self, mutations: Vec<Mutation>, payload: Bytes, payload_sealed: bool) -> Salvaged {
        let ObjectKey { pg, name: object } = self.object.clone();
        Salvaged::Change(Transaction { pg, object, mutations, payload, payload_sealed, log: Vec::new() })
    }

    /// The value whose parts were read is whole.
    fn end_value(&mut self) {
        if let Some((key, value, _)) = self.value.take() {
            self.entries_bytes += key.len() + value.len();
            self.entries.push(Mutation::OmapSet { key: key.into(), value: value.into() });
        }
    }

    /// A part of an omap value. False if parts before it are missing.
    fn take_part(&mut self, key: Vec<u8>, part: u16, bytes: &[u8]) -> bool {
        if let Some((current, value, next)) = &mut self.value
            && *current == key
        {
            let follows = part == *next;
            value.extend_from_slice(bytes);
            *next = next.saturating_add(1);
            if !follows {
                self.value = None;
            }
            return follows;
        }
        self.end_value();
        if part == 0 {
            self.value = Some((key, bytes.to_vec(), 1));
        }
        part == 0
    }
}

impl Objects<'_> {
    fn tell(&mut self, found: Salvaged) {
        if self.flow.is_continue() {
            self.flow = (self.tell)(found);
        }
    }

    fn lose(&mut self, current: &Current, detail: &str) {
        let ObjectKey { pg, name } = &current.object;
        self.tell(Salvaged::Lost(format!("pg {pg}, object {name}: {detail}")));
    }

    /// No more entries of the current object come.
    fn finish(&mut self, disk: &mut dyn Disk) {
        let Some(mut current) = self.current.take() else { return };
        self.tell_data(&mut current, disk);
        current.end_value();
        self.tell_entries(&mut current);
    }

    fn tell_data(&mut self, current: &mut Current, disk: &mut dyn Disk) {
        if std::mem::replace(&mut current.has_told_data, true) {
            return;
        }
        let chunks = std::mem::take(&mut current.chunks);
        let Some(info) = current.info else {
            return self.lose(current, "its header is lost, and with it its data");
        };
        let source = data::Source { overlay: self.overlay, bitmap: &self.metadata.bitmap, layout: self.layout };
        let read = source.read(disk, &info, &chunks);
        let keeps_gaps = self.options.keeps_gaps;
        let outcome = if keeps_gaps { "it is kept without them" } else { "it is left out" };
        if current.has_gap {
            let detail = format!("metadata is lost that may be of some of its data; {outcome}");
            self.lose(current, &detail);
        }
        if read.lost_blocks > 0 {
            let detail = format!("{} of its blocks cannot be read or are damaged; {outcome}", read.lost_blocks);
            self.lose(current, &detail);
        }
        if keeps_gaps || !current.has_gap && read.lost_blocks == 0 {
            let change = current.change(read.mutations, read.payload, info.seal_shape().is_some());
            self.tell(change);
        }
    }

    fn tell_entries(&mut self, current: &mut Current) {
        let entries = std::mem::take(&mut current.entries);
        current.entries_bytes = 0;
        if !entries.is_empty() {
            let change = current.change(entries, Bytes::new(), false);
            self.tell(change);
        }
    }

    fn omap_entry(&mut self, current: &mut Current, key: &[u8], bytes: &[u8]) {
        let omap = keys::omap(&keys::object(self.metadata.parts.root(current.object.pg), &current.object.name));
        let Some((omap_key, &[high, low])) = keys::parse_omap(&omap, key) else {
            return self.lose(current, "an omap entry makes no sense");
        };
        if !current.take_part(omap_key, u16::from_be_bytes([high, low]), bytes) {
            self.lose(current, "a part of an omap value is lost, and with it the value");
        }
        if current.entries_bytes >= ENTRY_BYTES_MAX || current.entries.len() >= ENTRIES_MAX {
            self.tell_entries(current);
        }
    }

    fn entry_of(
        &mut self,
        current: &mut Current,
        disk: &mut dyn Disk,
        part: ObjectPart,
        key: &[u8],
        value: &[u8],
    ) {
        match part {
            ObjectPart::Header => match ObjectInfo::decode(value) {
                Ok(info) => current.info = Some(info),
                Err(error) => self.lose(current, &format!("its header: {error}")),
            },
            ObjectPart::Chunk(index) => match Chunk::decode(value) {
                Ok(chunk) => current.chunks.push((index, chunk)),
                Err(_) => current.has_gap = true,
            },
            ObjectPart::Omap => {
                self.tell_data(current, disk);
                self.omap_entry(current, key, value);
            }
        }
    }
}

/// Returns true if an object is an OSD's own.
fn is_of_osd(object: &ObjectKey) -> bool {
    let name = object.name.as_str();
    name == PG_META_OBJECT || name.starts_with(PRE_IMAGE_PREFIX)
}

impl Visitor for Objects<'_> {
    fn entry(&mut self, disk: &mut dyn Disk, key: &[u8], value: &[u8]) -> ControlFlow<()> {
        let Some((object, part)) = keys::parse_object(key) else { return self.flow };
        let pg = self.metadata.parts.owner(&object);
        let object = ObjectKey { pg, ..object };
        if is_of_osd(&object) || !self.options.pgs.is_empty() && !self.options.pgs.contains(&pg) {
            return self.flow;
        }
        if self.current.as_ref().is_none_or(|current| current.object != object) {
            self.finish(disk);
        }
        let mut current = self.current.take().unwrap_or_else(|| Current::new(object));
        self.entry_of(&mut current, disk, part, key, value);
        self.current = Some(current);
        self.flow
    }

    fn problem(&mut self, problem: Problem) {
        if let Some(current) = &mut self.current {
            current.has_gap = true;
            // Its end may be lost.
            current.value = None;
        }
        self.tell(Salvaged::Lost(format!("{problem}: everything below it is lost")));
    }
}
