//! Samples of the fields of mutations, for property tests.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::ids::{Epoch, ObjectName, Version};
use crate::operation::Seals;
use crate::operation::shapes::{OmapKey, OmapValue, OptionalOmapValue};
use crate::operation::table::Shape;
use atoll_buffers::BLOCK_BYTES;

/// A shape whose values can be drawn.
pub(super) trait Sample: Shape {
    fn sample() -> BoxedStrategy<Self::Value>;
}

macro_rules! any_of {
    ($($type:ty),+) => {$(
        impl Sample for $type {
            fn sample() -> BoxedStrategy<$type> {
                any::<$type>().boxed()
            }
        }
    )+};
}

any_of!(u16, u32, u64, bool);

fn short_bytes() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..40).prop_map(Bytes::from)
}

impl Sample for OmapKey {
    fn sample() -> BoxedStrategy<Bytes> {
        short_bytes().boxed()
    }
}

impl Sample for OmapValue {
    fn sample() -> BoxedStrategy<Bytes> {
        short_bytes().boxed()
    }
}

impl Sample for OptionalOmapValue {
    fn sample() -> BoxedStrategy<Option<Bytes>> {
        proptest::option::of(short_bytes()).boxed()
    }
}

impl Sample for Version {
    fn sample() -> BoxedStrategy<Version> {
        let numbers = (0..=crate::limits::EPOCH_MAX, 0..=crate::limits::SEQUENCE_MAX);
        numbers.prop_map(|(epoch, sequence)| Version { epoch: Epoch(epoch), sequence }).boxed()
    }
}

impl Sample for ObjectName {
    fn sample() -> BoxedStrategy<ObjectName> {
        "[a-z@/é]{1,40}".prop_map(|name| ObjectName::new(&name).expect("it is short")).boxed()
    }
}

impl Sample for Option<Seals> {
    fn sample() -> BoxedStrategy<Option<Seals>> {
        let seals = (1..=16_u32, 1..=64_u16, 0..4_usize, any::<u8>());
        let seals = seals.prop_map(|(blocks, seal_bytes, count, byte)| Seals {
            unit_bytes: blocks * BLOCK_BYTES as u32,
            seal_bytes,
            bytes: Bytes::from(vec![byte; count * usize::from(seal_bytes)]),
        });
        proptest::option::of(seals).boxed()
    }
}
