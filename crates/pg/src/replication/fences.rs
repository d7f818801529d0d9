//! Fences as the primary has looked them up in the PG's own object. Each write of an image asks for the same one.

use std::collections::BTreeMap;

use atoll_types::operation::FENCE_KEY_PREFIX;
use atoll_types::{Condition, Refusal};
use bytes::Bytes;

use crate::actions::ObjectView;
use crate::config::Configuration;
use crate::outbox::Outbox;
use crate::own_object::own_object;

/// Fences remembered at once; then all are looked up again.
const FENCES_MAX: usize = 1024;

/// Fences that were looked up since the PG's own object changed last.
#[derive(Default)]
pub(crate) struct Fences {
    generations: BTreeMap<Box<[u8]>, u64>,
    /// How often the own object had been changed when they were looked up.
    own_changes: u64,
}

impl Fences {
    /// Drops values that a change of the own object may have made wrong.
    fn follow(&mut self, outbox: &Outbox) {
        if self.own_changes != outbox.own_changes() {
            self.own_changes = outbox.own_changes();
            self.generations.clear();
        }
    }

    /// Returns the conditions of a write whose metadata must be loaded: none if the fences are known. To be asked
    /// before each write's conditions are looked at.
    pub fn needed_of<'a>(&mut self, conditions: &'a [Condition], outbox: &Outbox) -> &'a [Condition] {
        self.follow(outbox);
        let is_known = |condition: &Condition| match condition {
            Condition::NotFenced { name, .. } => self.generations.contains_key(&name[..]),
            Condition::PgNum { .. } => true,
            _ => false,
        };
        if conditions.iter().all(is_known) { &[] } else { conditions }
    }

    /// The generation of a fence, 0 if it was never set.
    pub fn generation(
        &mut self,
        name: &Bytes,
        config: &Configuration,
        view: &impl ObjectView,
    ) -> Result<u64, Refusal> {
        if let Some(generation) = self.generations.get(&name[..]) {
            return Ok(*generation);
        }
        let key = [FENCE_KEY_PREFIX, name].concat();
        let value = view.omap_value(config.id, &own_object(), &key)?;
        let generation = value.and_then(|value| Some(u64::from_be_bytes(value[..].try_into().ok()?))).unwrap_or(0);
        if self.generations.len() >= FENCES_MAX {
            self.generations.clear();
        }
        self.generations.insert(name[..].into(), generation);
        Ok(generation)
    }
}
