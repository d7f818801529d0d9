//! Streams of changes from a foreign source: for any content, a reader returns parts within the image, or an
//! error. `ATOLL_FUZZ_RUNS` sets how many are tried, `ATOLL_FUZZ_SEED` the first of them.

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::RngSeed;

use super::*;

const SIZE_BYTES: u64 = 1 << 20;

fn config() -> ProptestConfig {
    let setting =
        |name: &str, default: u64| std::env::var(name).map_or(default, |text| text.parse().expect("a number"));
    ProptestConfig {
        cases: u32::try_from(setting("ATOLL_FUZZ_RUNS", 20_000)).unwrap_or(u32::MAX),
        rng_seed: RngSeed::Fixed(setting("ATOLL_FUZZ_SEED", 1)),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// Numbers at which a reader may go wrong, and others.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(4096),
        Just(SIZE_BYTES - 1),
        Just(SIZE_BYTES),
        Just(SIZE_BYTES + 1),
        Just(u64::from(u32::MAX)),
        Just(u64::MAX),
        0..SIZE_BYTES,
        any::<u64>(),
    ]
}

/// A piece of a stream, whose checksum fits.
#[derive(Clone, Debug)]
struct Piece {
    kind: u8,
    first: u64,
    second: u64,
    data: Vec<u8>,
    /// The length that it claims is not that of its data.
    lies: bool,
}

fn piece() -> impl Strategy<Value = Piece> {
    let kind = prop_oneof![4 => Just(DATA), 2 => Just(ZEROS), 1 => Just(END), 1 => any::<u8>()];
    (kind, number(), number(), prop::collection::vec(any::<u8>(), 0..200), prop::bool::weighted(0.2))
        .prop_map(|(kind, first, second, data, lies)| Piece { kind, first, second, data, lies })
}

impl Piece {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![self.kind];
        bytes.extend(self.first.to_le_bytes());
        match self.kind {
            END => {}
            DATA => {
                let length = if self.lies { self.second as u32 } else { self.data.len() as u32 };
                bytes.extend(length.to_le_bytes());
                bytes.extend(&self.data);
            }
            _ => bytes.extend(self.second.to_le_bytes()),
        }
        bytes.extend(crc32c(&bytes).to_le_bytes());
        bytes
    }
}

/// Reads the whole stream, and checks the guarantees of every reader.
fn read(bytes: &[u8]) -> Result<Vec<StreamPart>, StreamError> {
    let mut reader = StreamReader::new(bytes)?;
    let size_bytes = reader.header().size_bytes;
    let mut parts = Vec::new();
    while let Some(part) = reader.next_part()? {
        let (offset, length) = match &part {
            StreamPart::Data { offset, data } => (*offset, data.len() as u64),
            StreamPart::Zeros { offset, length } => (*offset, *length),
        };
        assert!(offset.checked_add(length).is_some_and(|end| end <= size_bytes), "{part:?} of {size_bytes}");
        parts.push(part);
    }
    assert!(reader.next_part().is_ok_and(|part| part.is_none()), "there is nothing behind the end");
    Ok(parts)
}

fn header() -> StreamHeader {
    StreamHeader { size_bytes: SIZE_BYTES, from: "monday".into(), to: "tuesday".into() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn fuzz_pieces_with_checksums_that_fit(pieces in prop::collection::vec(piece(), 0..8), ends: bool) {
        let mut bytes = StreamWriter::new(Vec::new(), &header()).unwrap().output;
        pieces.iter().for_each(|piece| bytes.extend(piece.bytes()));
        if ends {
            let end = Piece { kind: END, first: pieces.len() as u64, second: 0, data: Vec::new(), lies: false };
            bytes.extend(end.bytes());
        }
        let is_good = |piece: &Piece| match piece.kind {
            DATA => !piece.lies && piece.first.saturating_add(piece.data.len() as u64) <= SIZE_BYTES,
            ZEROS => piece.first.checked_add(piece.second).is_some_and(|end| end <= SIZE_BYTES),
            _ => false,
        };
        match read(&bytes) {
            Ok(parts) if pieces.iter().all(is_good) => prop_assert_eq!(parts.len(), pieces.len()),
            // An END that counts right may stand among the pieces.
            Ok(parts) => prop_assert!(parts.len() < pieces.len() || pieces.iter().any(|piece| piece.lies)),
            Err(_) => prop_assert!(!(ends && pieces.iter().all(is_good))),
        }
    }

    #[test]
    fn fuzz_changed_streams(
        data in prop::collection::vec((0..SIZE_BYTES - 300, prop::collection::vec(any::<u8>(), 1..300)), 0..5),
        changes in prop::collection::vec((any::<Index>(), any::<u8>()), 1..4),
        cut in prop::option::of(any::<Index>()),
    ) {
        let mut writer = StreamWriter::new(Vec::new(), &header()).unwrap();
        for (offset, data) in &data {
            writer.data(*offset, data).unwrap();
        }
        let whole = writer.finish().unwrap();
        let mut bytes = whole.clone();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        // CRC-32C notices up to three changed bytes side by side; of others all but one in four billion.
        prop_assert_eq!(read(&bytes).is_ok(), bytes == whole);
    }
}
