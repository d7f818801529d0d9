//! Requirements for every kind of the table.

use atoll_types::Seals;
use atoll_types::operation::table;
use proptest::prelude::*;

use super::*;

fn any_message() -> impl Strategy<Value = Message> {
    proptest::strategy::Union::new(Message::strategies())
}

fn frame_of(message: &Message) -> Frame {
    let (payload, seal) = message.payload();
    Frame { control: encode(message), payload, seal }
}

fn with_control(frame: &Frame, control: Bytes) -> Frame {
    Frame { control, ..frame.clone() }
}

proptest! {
    #[test]
    fn every_kind_round_trips(message in any_message()) {
        prop_assert_eq!(decode(frame_of(&message)).unwrap(), message);
    }

    #[test]
    fn no_truncation_passes(message in any_message(), cut: prop::sample::Index) {
        let frame = frame_of(&message);
        let control = frame.control.slice(..cut.index(frame.control.len()));
        prop_assert!(decode(with_control(&frame, control)).is_err());
    }

    #[test]
    fn trailing_bytes_are_an_error(message in any_message(), trailing in prop::collection::vec(any::<u8>(), 1..9)) {
        let frame = frame_of(&message);
        let control = [&frame.control[..], &trailing].concat();
        let left_over = CodecError::LeftOver { count: trailing.len() };
        prop_assert_eq!(decode(with_control(&frame, control.into())), Err(left_over));
    }

    #[test]
    fn random_and_damaged_control_segments_never_panic(
        noise: Vec<u8>, message in any_message(), at: prop::sample::Index, byte: u8,
    ) {
        let frame = frame_of(&message);
        let _ = decode(with_control(&frame, noise.into()));
        let mut control = frame.control.to_vec();
        let at = at.index(control.len());
        control[at] = byte;
        let _ = decode(with_control(&frame, control.into()));
    }
}

#[test]
fn the_known_messages_round_trip() {
    for message in known_answers::every_kind() {
        assert_eq!(decode(frame_of(&message)).unwrap(), message);
    }
}

#[test]
fn kinds_are_numbered_once_and_each_has_samples_and_known_answers() {
    let numbers: Vec<u8> = Message::KINDS.iter().map(|kind| kind.number).collect();
    assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
    assert_eq!(Message::strategies().len(), Message::KINDS.len());
    let known: std::collections::BTreeSet<u8> =
        known_answers::every_kind().iter().map(|message| encode(message)[0]).collect();
    assert_eq!(known, numbers.into_iter().collect());
}

/// `make lint` runs this; `cargo run -p atoll-wire --example message_table` prints the table for the page.
#[test]
fn the_page_has_the_table_of_messages() {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
    let pages = ["reference/protocol.md", "protocol.md"].map(|page| format!("{docs}/{page}"));
    let page = pages.iter().find_map(|page| std::fs::read_to_string(page).ok()).expect("a page of the protocol");
    let expected = table::markdown("message", Message::KINDS);
    assert_eq!(table::marked(&page, "messages"), Some(&*expected), "run the example message_table");
}

#[test]
fn unsealed_payloads_always_have_a_check() {
    let marks = Seals { unit_bytes: 4096, seal_bytes: 1, bytes: Bytes::from_static(&[1]) };
    for seals in [None, Some(marks)] {
        let (object_bytes, version) = (5, Version::default());
        let result = Ok(ReadOutcome::Data { object_bytes, version, seals });
        let payload = Bytes::from_static(b"plain");
        let message = Message::ReadReply { sequence: 1, opens_seals: true, result, payload };
        let frame = frame_of(&message);
        assert_eq!(frame.seal, PayloadSeal::None);
        assert!(decode(Frame { seal: PayloadSeal::OpenedByReceiver, ..frame }).is_err());
    }
}

#[test]
fn only_answers_to_readers_that_open_seals_come_without_a_check() {
    for message in known_answers::every_kind() {
        let frame = Frame { seal: PayloadSeal::OpenedByReceiver, ..frame_of(&message) };
        let may = message.payload().1 == PayloadSeal::OpenedByReceiver;
        if !frame.payload.is_empty() {
            assert_eq!(decode(frame).is_ok(), may, "{message:?}");
        }
        let is_answer = matches!(message, Message::ReadReply { opens_seals: true, result: Ok(_), .. });
        assert_eq!(may, is_answer, "{message:?}");
    }
}
