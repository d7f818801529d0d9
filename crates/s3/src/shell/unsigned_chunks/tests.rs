use proptest::prelude::*;

use super::*;

/// The data and the trailers of a body in these pieces.
fn decode<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<(Vec<u8>, HeaderMap), String> {
    let (mut decoder, mut data, mut found) = (Decoder::new(), Vec::new(), None);
    for piece in pieces {
        let mut input = Bytes::copy_from_slice(piece);
        while let Some(event) = decoder.next(&mut input).map_err(|error| error.to_string())? {
            match event {
                Event::Data(more) => data.extend_from_slice(&more),
                Event::Trailers(trailers) => assert!(found.replace(trailers).is_none(), "they come once"),
            }
        }
        assert!(input.is_empty(), "everything is taken");
    }
    decoder.end().map_err(|error| error.to_string())?;
    Ok((data, found.expect("they come before the end")))
}

fn framed(chunks: &[Vec<u8>], trailers: &[(&str, &str)]) -> Vec<u8> {
    let mut body = Vec::new();
    for chunk in chunks {
        body.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        body.extend_from_slice(chunk);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"0\r\n");
    for (name, value) in trailers {
        body.extend_from_slice(format!("{name}:{value}\r\n").as_bytes());
    }
    body.extend_from_slice(b"\r\n");
    body
}

const CHECKSUM: (&str, &str) = ("x-amz-checksum-crc32", "AAAAAA==");

fn chunks() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let byte = prop::sample::select(b"\r\n0a;:".to_vec());
    prop::collection::vec(prop::collection::vec(byte, 1..60), 0..6)
}

/// Bytes that often are nearly a body.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let bits =
        ["\r\n", "\n", "0", "1", "a", ";chunk-signature=", "x:y", "0\r\n", "\r\n\r\n", "2\r\nab\r\n", "\u{fc}"];
    let nearly = prop::collection::vec(prop::sample::select(bits.to_vec()), 0..20);
    let nearly = nearly.prop_map(|bits| bits.concat().into_bytes());
    prop_oneof![nearly, prop::collection::vec(any::<u8>(), 0..200)]
}

/// The pieces between these cuts.
fn pieces<'a>(whole: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(whole.len() + 1)).collect();
    cuts.extend([0, whole.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|cut| &whole[cut[0]..cut[1]]).collect()
}

proptest! {
    #[test]
    fn any_cuts_give_the_same_data(
        chunks in chunks(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let whole = framed(&chunks, &[CHECKSUM]);
        let (data, trailers) = decode(pieces(&whole, &cuts)).unwrap();
        prop_assert_eq!(data, chunks.concat());
        prop_assert_eq!(trailers.len(), 1);
        prop_assert_eq!(&trailers[CHECKSUM.0], CHECKSUM.1);
    }

    #[test]
    fn whatever_arrives_cuts_do_not_matter(
        whole in bytes(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        prop_assert_eq!(decode(pieces(&whole, &cuts)), decode([&whole[..]]));
        prop_assert_eq!(decode(whole.chunks(1)), decode([&whole[..]]));
    }

    #[test]
    fn a_body_cut_short_is_never_whole(chunks in chunks(), at: prop::sample::Index) {
        let whole = framed(&chunks, &[CHECKSUM]);
        let error = decode([&whole[..at.index(whole.len())]]).unwrap_err();
        prop_assert_eq!(error, BodyError::Incomplete.to_string());
    }
}

#[test]
fn malformed_bodies_are_refused() {
    let good = [(b"0\r\n\r\n".to_vec(), 0), (b"00a\r\n0123456789\r\n0\r\na: b \r\n\r\n".to_vec(), 10)];
    for (body, bytes) in good {
        assert_eq!(decode([&body[..]]).unwrap().0.len(), bytes);
    }
    for wrong in [
        "",
        "\r\n",
        "0\n\n",
        "-1\r\n",
        "+1\r\na\r\n0\r\n\r\n",
        "0x1\r\na\r\n0\r\n\r\n",
        "1\r\nab\r\n0\r\n\r\n",
        "1\r\na0\r\n\r\n",
        "1\r\na\r\n",
        "1;chunk-signature=00\r\na\r\n0\r\n\r\n",
        "0;chunk-signature=00\r\n\r\n",
        "0\r\nno colon\r\n\r\n",
        "0\r\n: no name\r\n\r\n",
        "0\r\na:b\r\nA:c\r\n\r\n",
        "0\r\n\r\nmore",
    ] {
        assert!(decode([wrong.as_bytes()]).is_err(), "{wrong:?}");
    }
}

#[test]
fn limits_hold() {
    let chunk = |bytes: usize| decode([&framed(&[vec![b'x'; bytes]], &[])[..]]);
    let max = CHUNK_BYTES_MAX as usize;
    assert_eq!(chunk(max).unwrap().0.len(), max);
    assert_eq!(chunk(max + 1), Err(BodyError::ChunkTooLarge.to_string()));
    assert_eq!(decode([&b"ffffffffffffffffffffff\r\n"[..]]), Err(BodyError::ChunkTooLarge.to_string()));
    assert!(decode([&[b'0'; CHUNK_LINE_BYTES_MAX + 1][..]]).unwrap_err().contains("line is too long"));

    let names: Vec<String> = (0..=TRAILER_LINES_MAX).map(|number| format!("name-{number}")).collect();
    let trailers: Vec<(&str, &str)> = names.iter().map(|name| (&**name, "value")).collect();
    assert!(decode([&framed(&[], &trailers[1..])[..]]).is_ok());
    assert!(decode([&framed(&[], &trailers)[..]]).is_err());
    let long = |bytes: usize| decode([&framed(&[], &[("a", &"x".repeat(bytes - "a:\r\n\r\n".len()))])[..]]);
    assert!(long(TRAILER_BYTES_MAX).is_ok());
    assert!(long(TRAILER_BYTES_MAX + 1).is_err());
}

#[test]
fn only_unsigned_chunks_of_known_length_are_taken() {
    let length = |text: &'static str| {
        let name = HeaderName::from_static("x-amz-decoded-content-length");
        decoded_length(&HeaderMap::from_iter([(name, HeaderValue::from_static(text))]))
    };
    assert_eq!(length("12").unwrap(), 12);
    assert!(length("-1").is_err());
    assert_eq!(decoded_length(&HeaderMap::new()).unwrap_err().code().as_str(), "MissingContentLength");
}
