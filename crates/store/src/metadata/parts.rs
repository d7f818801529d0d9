//! PGs that were split. Their objects stay where they are in the tree: all PGs that came from
//! one share the prefix of its keys, and each has those objects whose names hash to it. Only a
//! PG's own object is under its own prefix.

use std::collections::BTreeMap;

use atoll_types::limits::PG_NUM_MAX;
use atoll_types::operation::PG_META_OBJECT;
use atoll_types::{Mutation, ObjectName, PgId};

use super::Unready;
use super::keys::{self, ObjectKey};

/// Which objects are a PG's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// The PG under whose prefix they are.
    pub root: PgId,
    /// The pool's number of PGs as of this PG's last split.
    pub pg_num: u32,
}

/// The PGs of a store that were split or split off. All others have everything under their own
/// prefix.
#[derive(Default)]
pub(crate) struct Parts(BTreeMap<PgId, Part>);

/// Result of a split.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Split {
    pub own: Option<Part>,
    /// PGs that are split off.
    pub made: Vec<(PgId, Part)>,
    /// PGs that are merged back into this one.
    pub merged_back: Vec<PgId>,
}

impl Parts {
    pub fn get(&self, pg: PgId) -> Option<Part> {
        self.0.get(&pg).copied()
    }

    pub fn set(&mut self, pg: PgId, part: Option<Part>) {
        match part {
            Some(part) => drop(self.0.insert(pg, part)),
            None => drop(self.0.remove(&pg)),
        }
    }

    /// The PG under whose prefix a PG's objects are.
    pub fn root(&self, pg: PgId) -> PgId {
        self.0.get(&pg).map_or(pg, |part| part.root)
    }

    /// The first bytes of all keys of an object.
    pub fn object(&self, pg: PgId, name: &ObjectName) -> Vec<u8> {
        match self.0.get(&pg) {
            Some(part) if name.as_str() != PG_META_OBJECT => keys::object(part.root, name),
            _ => keys::object(pg, name),
        }
    }

    /// Returns true if an object under the PG's prefix is the PG's.
    pub fn holds(&self, pg: PgId, name: &ObjectName) -> bool {
        let Some(part) = self.0.get(&pg) else { return true };
        if name.as_str() == PG_META_OBJECT { part.root == pg } else { pg.holds(name, part.pg_num) }
    }

    /// Returns true if a name in a request of a PG means one of the PG's objects. Objects that a split has given
    /// to another PG are under the same prefix.
    pub fn is_of(&self, pg: PgId, name: &ObjectName) -> bool {
        name.as_str() == PG_META_OBJECT || self.holds(pg, name)
    }

    /// Refuses a request that names an object which a split has given to another PG. `may_remove` is for members: a
    /// removal by a PG that does not know that the object is gone removes nothing.
    pub fn check_owner(
        &self,
        pg: PgId,
        name: &ObjectName,
        mutations: &[Mutation],
        may_remove: bool,
    ) -> Result<(), Unready> {
        if !self.0.contains_key(&pg) {
            return Ok(());
        }
        let removes = |mutation: &Mutation| {
            matches!(mutation, Mutation::Remove | Mutation::RemoveOther { .. } | Mutation::ResetLog { .. })
        };
        let is_removal = may_remove && !mutations.is_empty() && mutations.iter().all(removes);
        let changed = (!is_removal).then_some(name);
        let others = mutations.iter().filter_map(|mutation| match mutation {
            Mutation::CloneFrom { source: other } | Mutation::ClonePreImage { copy: other } => Some(other),
            _ => None,
        });
        match changed.into_iter().chain(others).find(|name| !self.is_of(pg, name)) {
            None => Ok(()),
            Some(name) => Err(Unready::Invalid(format!("'{name}' is not PG {pg}'s: a split gave it to another"))),
        }
    }

    /// The PG that an object belongs to, by its key in the tree.
    pub fn owner(&self, key: &ObjectKey) -> PgId {
        let is_own = |(pg, part): &(&PgId, &Part)| {
            part.root == key.pg && key.name.as_str() != PG_META_OBJECT && pg.holds(&key.name, part.pg_num)
        };
        self.0.iter().find(is_own).map_or(key.pg, |(pg, _)| *pg)
    }

    /// Returns the changes when a PG becomes one of `pg_num`. Nothing if the copy is to be backfilled and a PG
    /// that it would split off has objects here already: the backfill removes the objects that are not the copy's
    /// own.
    pub fn split(&self, pg: PgId, pg_num_before: u32, pg_num: u32, is_whole: bool) -> Result<Split, Unready> {
        let is_number = |number: u32| number.is_power_of_two() && number <= PG_NUM_MAX;
        if !is_number(pg_num_before) || !is_number(pg_num) || pg.index >= pg_num {
            return Err(Unready::Invalid(format!("a split of PG {pg} for {pg_num} PGs")));
        }
        let root = self.root(pg);
        let known = if is_whole { None } else { self.get(pg) };
        let mut number = known.map_or(pg.first_pg_num(pg_num_before), |part| part.pg_num);
        let mut made = Vec::new();
        while number < pg_num {
            made.push((pg.split_off(number), Part { root, pg_num: number * 2 }));
            number *= 2;
        }
        if !is_whole && made.iter().any(|(other, _)| self.0.contains_key(other)) {
            return Ok(Split { own: self.get(pg), made: Vec::new(), merged_back: Vec::new() });
        }
        let is_merged_back =
            |other: PgId| other != pg && other.index & (pg_num - 1) == pg.index && pg_num < number;
        let of_root = self.0.iter().filter(|(_, part)| part.root == root);
        let merged_back = of_root.map(|(other, _)| *other).filter(|other| is_merged_back(*other)).collect();
        Ok(Split { own: Some(Part { root, pg_num }), made, merged_back })
    }
}
