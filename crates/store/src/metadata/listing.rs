//! Listing a PG's objects. The first key of an object is its header; the next object is looked for behind all
//! others of this one.

use std::ops::ControlFlow;

use atoll_codec::CodecError;
use atoll_types::{ListedObject, ObjectName, PgId};

use super::changes::further_references;
use super::keys::{self, ObjectPart, SHARED_BLOCKS_PER_ENTRY};
use super::{CHUNK_BLOCKS, Chunk, HOLE, Metadata, OBJECT_BLOCKS_MAX, ObjectInfo, ObjectKey, Unready};

/// Some objects of a PG.
#[derive(Debug, Default)]
pub struct ObjectsPage {
    /// In the order of their names.
    pub objects: Vec<ListedObject>,
    /// There may be more behind this name.
    pub next: Option<ObjectName>,
}

impl Metadata {
    /// Names of a PG's objects behind `after`, up to `limit`.
    pub fn names_after(
        &self,
        pg: PgId,
        after: Option<&ObjectName>,
        limit: usize,
    ) -> Result<Vec<ObjectName>, Unready> {
        let all = keys::objects_of(self.parts.root(pg));
        let end = keys::end_of(&all);
        let mut from = match after {
            Some(name) => keys::end_of(&self.parts.object(pg, name)),
            None => all,
        };
        let mut names = Vec::new();
        while names.len() < limit {
            // The first key of an object is its header; the next object is looked for behind all
            // others of this one.
            let mut found = None;
            self.tree.scan(&from, &end, |key, _| {
                let damaged = CodecError::Invalid { what: "length of an object's key", value: key.len() as u64 };
                found = Some(keys::parse_object(key).ok_or(damaged));
                ControlFlow::Break(())
            })?;
            let Some(key) = found else { break };
            let (object, _) = key?;
            from = keys::end_of(&keys::object(object.pg, &object.name));
            if self.parts.holds(pg, &object.name) {
                names.push(object.name);
            }
        }
        Ok(names)
    }

    /// A PG's objects whose names begin with `prefix`, behind `after`. At most `limit` objects are looked at;
    /// those of PGs that share the root are among them.
    pub fn objects_page(
        &self,
        pg: PgId,
        prefix: &[u8],
        after: Option<&ObjectName>,
        limit: usize,
        counts_blocks: bool,
    ) -> Result<ObjectsPage, Unready> {
        let root = self.parts.root(pg);
        let all = keys::objects_with_prefix(root, prefix);
        let end = keys::end_of(&all);
        let mut from = match after {
            Some(name) => keys::end_of(&keys::object(root, name)).max(all),
            None => all,
        };
        let mut page = ObjectsPage::default();
        for looked_at in 1.. {
            let Some((key, info)) = self.first_object(&from, &end)? else { break };
            let object = keys::object(key.pg, &key.name);
            from = keys::end_of(&object);
            if looked_at == limit {
                page.next = Some(key.name.clone());
            }
            if self.parts.holds(pg, &key.name) {
                let counted = if counts_blocks { self.count_blocks(&object, info.may_share)? } else { (0, 0) };
                let (block_count, shared_block_count) = counted;
                page.objects.push(ListedObject {
                    name: key.name,
                    object_bytes: info.whole_bytes.unwrap_or(info.size_bytes),
                    version: info.version,
                    block_count,
                    shared_block_count,
                });
            }
            if page.next.is_some() {
                break;
            }
        }
        Ok(page)
    }

    /// The first object with a key from `from` on, which must not be within an object.
    fn first_object(&self, from: &[u8], end: &[u8]) -> Result<Option<(ObjectKey, ObjectInfo)>, Unready> {
        let mut found = None;
        self.tree.scan(from, end, |key, value| {
            let damaged = CodecError::Invalid { what: "first key of an object", value: key.len() as u64 };
            found = Some(match keys::parse_object(key) {
                Some((object, ObjectPart::Header)) => ObjectInfo::decode(value).map(|info| (object, info)),
                _ => Err(damaged),
            });
            ControlFlow::Break(())
        })?;
        Ok(found.transpose()?)
    }

    /// How many blocks of an object hold data, and how many of these other objects refer to, too.
    fn count_blocks(&self, object: &[u8], may_share: bool) -> Result<(u32, u32), Unready> {
        let mut result = Ok(());
        let (mut all, mut shared) = (0, 0);
        let end = keys::chunk(object, OBJECT_BLOCKS_MAX / CHUNK_BLOCKS);
        self.tree.scan(&keys::chunk(object, 0), &end, |_, value| {
            result = Chunk::decode_blocks(value).map_err(Unready::from).and_then(|(blocks, _)| {
                let mapped = blocks.iter().filter(|block| **block != HOLE).map(|block| block.device_block);
                all += mapped.clone().count() as u32;
                shared += if may_share { self.count_shared(mapped)? } else { 0 };
                Ok(())
            });
            if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        result.map(|()| (all, shared))
    }

    /// How many of these blocks have more than one reference. One entry has the counts of neighbours.
    fn count_shared(&self, blocks: impl Iterator<Item = u32>) -> Result<u32, Unready> {
        let (mut shared, mut looked_up) = (0, None);
        for block in blocks {
            let entry = block / SHARED_BLOCKS_PER_ENTRY;
            let counts = match looked_up {
                Some((of, counts)) if of == entry => counts,
                _ => further_references(self.tree.get(&keys::shared(block))?),
            };
            looked_up = Some((entry, counts));
            shared += u32::from(counts[(block % SHARED_BLOCKS_PER_ENTRY) as usize] > 0);
        }
        Ok(shared)
    }
}
