//! Frames, whole and damaged, and keys that are changed on the way.

use super::*;
use proptest::prelude::*;

const SECURE: [FrameMode; 2] = [FrameMode::Secure, FrameMode::Secure128];

fn codec(mode: FrameMode) -> (FrameEncoder, FrameDecoder) {
    (FrameEncoder::new(mode, &[7; 32]), FrameDecoder::new(mode, &[7; 32]))
}

fn gather(queue: &mut SendQueue) -> BytesMut {
    let mut bytes = BytesMut::new();
    queue.take().iter().for_each(|chunk| bytes.extend_from_slice(chunk));
    bytes
}

/// As if it had arrived at once.
fn at_once(bytes: &[u8]) -> Received {
    let mut received = Received::default();
    received.push(bytes);
    received
}

fn modes() -> impl Strategy<Value = FrameMode> {
    prop_oneof![Just(FrameMode::Secure), Just(FrameMode::Secure128), Just(FrameMode::Crc)]
}

fn seal() -> impl Strategy<Value = PayloadSeal> {
    prop_oneof![Just(PayloadSeal::None), Just(PayloadSeal::Sealed), Just(PayloadSeal::OpenedByReceiver)]
}

fn segments() -> impl Strategy<Value = (Vec<u8>, Vec<u8>, PayloadSeal)> {
    let payload = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..300),
        proptest::collection::vec(any::<u8>(), 20_000..20_010),
        (any::<u8>(), 0usize..10).prop_map(|(first, more)| {
            (0..LONG_PAYLOAD_BYTES - 5 + more).map(|at| first.wrapping_add((at % 251) as u8)).collect()
        }),
    ];
    (proptest::collection::vec(any::<u8>(), 0..300), payload, seal())
}

fn encode(encoder: &mut FrameEncoder, (control, payload, seal): &(Vec<u8>, Vec<u8>, PayloadSeal)) -> BytesMut {
    let mut queue = SendQueue::default();
    encoder.encode(control, &Bytes::from(payload.clone()), *seal, &mut queue).unwrap();
    gather(&mut queue)
}

fn one(encoder: &mut FrameEncoder, control: &[u8]) -> BytesMut {
    encode(encoder, &(control.to_vec(), b"payload".to_vec(), PayloadSeal::None))
}

proptest! {
    #[test]
    fn frames_survive_any_fragmentation_and_any_change_of_keys(
        mode in modes(),
        frames in proptest::collection::vec((segments(), any::<bool>()), 1..6),
        step in 1usize..5000,
    ) {
        let (mut encoder, mut decoder) = codec(mode);
        let mut sent = BytesMut::new();
        for (frame, is_last_of_key) in &frames {
            if *is_last_of_key {
                encoder.rekey();
            }
            sent.unsplit(encode(&mut encoder, frame));
        }
        let mut received = Received::default();
        let mut seen = Vec::new();
        for piece in sent.chunks(step) {
            received.push(piece);
            while let Some(frame) = decoder.decode(&mut received).unwrap() {
                seen.push((frame.control.to_vec(), frame.payload.to_vec(), frame.seal));
            }
        }
        prop_assert!(!received.has_news());
        prop_assert_eq!(seen, frames.into_iter().map(|(frame, _)| frame).collect::<Vec<_>>());
    }

    /// But for one in a payload that the receiver opens itself.
    #[test]
    fn a_flipped_bit_is_never_given_out(
        mode in modes(), segments in segments(), rekeys: bool, position: prop::sample::Index, bit in 0u8..8,
    ) {
        let (mut encoder, mut decoder) = codec(mode);
        if rekeys {
            encoder.rekey();
        }
        let mut sent = encode(&mut encoder, &segments);
        let position = position.index(sent.len());
        sent[position] ^= 1 << bit;
        let (_, payload, seal) = segments;
        let is_left_to_receiver =
            seal == PayloadSeal::OpenedByReceiver && position >= sent.len() - payload.len();
        match decoder.decode(&mut at_once(&sent)) {
            Ok(Some(frame)) => {
                prop_assert!(is_left_to_receiver && frame.seal == PayloadSeal::OpenedByReceiver);
                prop_assert_ne!(&frame.payload[..], &payload[..]);
            }
            _ => prop_assert!(!is_left_to_receiver),
        }
    }

    #[test]
    fn random_bytes_never_panic(mode in modes(), bytes: Vec<u8>) {
        let (_, mut decoder) = codec(mode);
        let mut received = at_once(&bytes);
        decoder.missing_bytes(&received);
        let _ = decoder.decode(&mut received);
    }

    /// Frames that are left out of a stream, sent twice or moved: the decoder returns the frames before that
    /// place, and then an error.
    #[test]
    fn frames_out_of_their_order_are_refused(
        is_short_key: bool,
        rekeys in proptest::collection::vec(any::<bool>(), 2..8),
        taken: prop::sample::Index,
        put: prop::sample::Index,
        removes: bool,
    ) {
        let mode = SECURE[usize::from(is_short_key)];
        let (mut encoder, mut decoder) = codec(mode);
        let mut frames = Vec::new();
        for (number, is_last_of_key) in rekeys.iter().enumerate() {
            if *is_last_of_key {
                encoder.rekey();
            }
            frames.push((number, one(&mut encoder, &[number as u8])));
        }
        let frame = frames[taken.index(frames.len())].clone();
        if removes {
            frames.remove(frame.0);
        }
        frames.insert(put.index(frames.len() + 1), frame);
        let in_place = frames.iter().zip(0..).take_while(|((number, _), place)| number == place).count();
        let mut received = Received::default();
        frames.iter().for_each(|(_, bytes)| received.push(bytes));
        for number in 0..in_place {
            let frame = decoder.decode(&mut received).unwrap().expect("the frame is whole");
            prop_assert_eq!(&frame.control[..], &[number as u8]);
        }
        prop_assert_eq!(decoder.decode(&mut received).is_err(), in_place < frames.len());
    }
}

#[test]
fn replayed_and_reordered_frames_are_refused() {
    for mode in SECURE {
        let (mut encoder, mut decoder) = codec(mode);
        let (first, second) = (one(&mut encoder, b"one"), one(&mut encoder, b"two"));
        assert!(codec(mode).1.decode(&mut at_once(&second)).is_err(), "reordered");
        assert!(decoder.decode(&mut at_once(&first)).unwrap().is_some());
        assert!(decoder.decode(&mut at_once(&first)).is_err(), "replayed");
    }
}

#[test]
fn a_cut_frame_is_awaited_and_data_after_it_refused() {
    for mode in SECURE {
        let (mut encoder, _) = codec(mode);
        let (first, second) = (one(&mut encoder, b"one"), one(&mut encoder, b"two"));
        for cut in 0..first.len() {
            let (_, mut decoder) = codec(mode);
            let mut received = at_once(&first[..cut]);
            assert_eq!(decoder.decode(&mut received), Ok(None), "{cut}");
            received.push(&second);
            received.push(&second);
            if cut > 0 {
                assert!(!matches!(decoder.decode(&mut received), Ok(Some(_))), "{cut}");
            }
        }
    }
}

#[test]
fn after_a_change_of_keys_the_old_key_opens_nothing() {
    for mode in SECURE {
        let (mut encoder, mut decoder) = codec(mode);
        encoder.rekey();
        let last = one(&mut encoder, b"last of its key");
        assert_eq!(last[8] & FLAG_LAST_OF_KEY as u8, FLAG_LAST_OF_KEY as u8);
        let next = one(&mut encoder, b"first of the next");
        assert_eq!(next[8] & FLAG_LAST_OF_KEY as u8, 0, "once was asked for");
        // A receiver that knows only the old key, at the right place of the stream.
        let mut behind = FrameDecoder { next_frame: 1, ..codec(mode).1 };
        assert!(behind.decode(&mut at_once(&next)).is_err());
        assert!(decoder.decode(&mut at_once(&last)).unwrap().is_some());
        assert_eq!(&decoder.decode(&mut at_once(&next)).unwrap().unwrap().control[..], b"first of the next");
        // Both ways of lying about the flag.
        for frame in [last, next] {
            let mut flipped = frame.clone();
            flipped[8] ^= FLAG_LAST_OF_KEY as u8;
            assert!(matches!(codec(mode).1.decode(&mut at_once(&flipped)), Err(FrameError::BadCheck { .. })));
        }
    }
    let (mut encoder, mut decoder) = codec(FrameMode::Crc);
    encoder.rekey();
    let mut frame = one(&mut encoder, b"crc has no keys");
    assert_eq!(frame[8], 0);
    frame[8] = FLAG_LAST_OF_KEY as u8;
    assert!(matches!(decoder.decode(&mut at_once(&frame)), Err(FrameError::UnknownFlags { .. })));
}

/// Returns the number of the last frame under the first key, with `payload_bytes` of payload in each.
fn last_of_key(payload_bytes: usize) -> u64 {
    let (mut encoder, _) = codec(FrameMode::Secure);
    let (payload, mut queue) = (Bytes::from(vec![0; payload_bytes]), SendQueue::default());
    loop {
        encoder.encode(b"", &payload, PayloadSeal::Sealed, &mut queue).unwrap();
        let flags = queue.take()[0][8];
        if flags & FLAG_LAST_OF_KEY as u8 != 0 {
            return encoder.next_frame;
        }
    }
}

#[test]
fn a_key_is_limited_in_bytes_and_frames() {
    assert_eq!(last_of_key(0), 1 << 20);
    let large = 4 << 20;
    let frames = last_of_key(large);
    assert!(frames * large as u64 <= KEY_BYTES_MAX + large as u64 && frames > 1020, "{frames}");
}

#[test]
fn the_modes_do_not_open_each_other() {
    let all = [FrameMode::Secure, FrameMode::Secure128, FrameMode::Crc];
    for sent in all {
        for read in all {
            let frame = one(&mut codec(sent).0, b"control");
            let opened = codec(read).1.decode(&mut at_once(&frame));
            assert_eq!(matches!(opened, Ok(Some(_))), sent == read, "{sent} read as {read}");
        }
    }
}

#[test]
fn a_sealed_payload_is_not_encrypted_again() {
    for mode in SECURE {
        let (mut encoder, _) = codec(mode);
        let payload = vec![0x5a; 4096];
        let sent = encode(&mut encoder, &(b"control".to_vec(), payload.clone(), PayloadSeal::Sealed));
        assert!(sent.windows(4096).any(|window| window == payload));
        let sent = encode(&mut encoder, &(b"control".to_vec(), payload.clone(), PayloadSeal::None));
        assert!(!sent.windows(16).any(|window| window == &payload[..16]));
    }
}

#[test]
fn changed_flags_of_a_payload_are_refused() {
    let payload = vec![0x5a; 4096];
    for mode in [FrameMode::Secure, FrameMode::Secure128, FrameMode::Crc] {
        for seal in [PayloadSeal::None, PayloadSeal::Sealed, PayloadSeal::OpenedByReceiver] {
            let sent = encode(&mut codec(mode).0, &(b"control".to_vec(), payload.clone(), seal));
            for flags in 0..8 {
                let mut changed = sent.clone();
                changed[8] = flags;
                let opened = codec(mode).1.decode(&mut at_once(&changed));
                let is_as_sent = u32::from(flags) == seal.flags();
                assert_eq!(matches!(opened, Ok(Some(_))), is_as_sent, "{mode} {seal:?} as {flags}: {opened:?}");
            }
        }
    }
}

#[test]
fn a_payload_that_is_not_sealed_has_a_check() {
    let mut sent = one(&mut codec(FrameMode::Crc).0, b"control");
    sent[8] = FLAG_PAYLOAD_UNCHECKED as u8;
    assert!(matches!(
        codec(FrameMode::Crc).1.decode(&mut at_once(&sent)),
        Err(FrameError::UnknownFlags { flags: 4 })
    ));
}
