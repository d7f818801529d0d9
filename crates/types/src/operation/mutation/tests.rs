//! Requirements for every kind of the table.

use proptest::prelude::*;

use super::*;
use crate::operation::table;

fn encoded(mutation: &Mutation) -> Bytes {
    let mut writer = Writer::default();
    mutation.encode(&mut writer);
    writer.finish()
}

fn any_mutation() -> impl Strategy<Value = Mutation> {
    proptest::strategy::Union::new(Mutation::strategies())
}

proptest! {
    #[test]
    fn every_kind_round_trips_and_is_within_its_bound(mutation in any_mutation()) {
        let bytes = encoded(&mutation);
        prop_assert!(bytes.len() <= mutation.control_bytes_bound());
        let mut reader = Reader::new(bytes);
        prop_assert_eq!(Mutation::decode(&mut reader).unwrap(), mutation);
        prop_assert!(reader.finish().is_ok());
    }

    #[test]
    fn no_truncation_passes(mutation in any_mutation(), cut: prop::sample::Index) {
        let bytes = encoded(&mutation);
        let mut reader = Reader::new(bytes.slice(..cut.index(bytes.len())));
        prop_assert!(Mutation::decode(&mut reader).is_err());
    }

    #[test]
    fn trailing_bytes_are_left(mutation in any_mutation(), trailing in proptest::collection::vec(any::<u8>(), 1..9)) {
        let mut reader = Reader::new([&encoded(&mutation)[..], &trailing].concat().into());
        prop_assert_eq!(Mutation::decode(&mut reader).unwrap(), mutation);
        prop_assert_eq!(reader.remaining(), trailing.len());
    }

    #[test]
    fn damaged_bytes_never_panic(mutation in any_mutation(), at: prop::sample::Index, byte: u8) {
        let mut bytes = encoded(&mutation).to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let _ = Mutation::decode(&mut Reader::new(bytes.into()));
    }
}

#[test]
fn kinds_are_numbered_once_and_strategies_give_each() {
    let numbers: Vec<u8> = Mutation::KINDS.iter().map(|kind| kind.number).collect();
    assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
    assert_eq!(Mutation::strategies().len(), Mutation::KINDS.len());
}

/// `make lint` runs this; `cargo run -p atoll-types --example mutation_table` prints the table for the page.
#[test]
fn the_page_has_the_table_of_mutations() {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
    let pages = ["reference/formats.md", "formats.md"].map(|page| format!("{docs}/{page}"));
    let page = pages.iter().find_map(|page| std::fs::read_to_string(page).ok()).expect("a page of formats");
    let expected = table::markdown("mutation", Mutation::KINDS);
    assert_eq!(table::marked(&page, "mutations"), Some(&*expected), "run the example mutation_table");
}
