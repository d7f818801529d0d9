use proptest::prelude::*;

use super::*;

const TYPE: &str = "multipart/form-data; boundary=bound";

/// The events of a form in these pieces, with the file's bytes put together.
fn events<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<Event>, FormError> {
    let mut parser = Parser::new(TYPE)?;
    let mut pieces = pieces.into_iter();
    let mut found: Vec<Event> = Vec::new();
    loop {
        match (parser.next()?, found.last_mut()) {
            (Some(Event::Data(more)), Some(Event::Data(data))) => *data = [&data[..], &more].concat().into(),
            (Some(Event::End), _) => {
                found.push(Event::End);
                return Ok(found);
            }
            (Some(event), _) => found.push(event),
            (None, _) => match pieces.next() {
                Some(piece) => parser.push(Bytes::copy_from_slice(piece)),
                None => parser.end(),
            },
        }
    }
}

fn part(name: &str, value: &[u8]) -> Vec<u8> {
    let head = format!("--bound\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"{name}\"\r\n\r\n");
    [head.as_bytes(), value, b"\r\n"].concat()
}

fn form(fields: &[(String, String)], file: &[u8], behind: &[u8]) -> Vec<u8> {
    let mut form: Vec<u8> = fields.iter().flat_map(|(name, value)| part(name, value.as_bytes())).collect();
    form.extend(part("file", file));
    form.extend(behind);
    form.extend(b"--bound--\r\n");
    form
}

fn expected(fields: Vec<(String, String)>, file: Vec<u8>) -> Vec<Event> {
    let mut expected: Vec<Event> = fields.into_iter().map(|(name, value)| Event::Field { name, value }).collect();
    expected.push(Event::File { file_name: Some("file".into()) });
    if !file.is_empty() {
        expected.push(Event::Data(file.into()));
    }
    expected.push(Event::End);
    expected
}

/// Bytes with much that looks like the begin of a boundary.
fn nasty(bytes_max: usize) -> impl Strategy<Value = Vec<u8>> {
    let bits =
        prop::sample::select(vec![&b"\r"[..], b"\n", b"\r\n", b"--", b"\r\n--", b"\r\n--boun", b"x", b"bound"]);
    prop::collection::vec(bits, 0..bytes_max / 9).prop_map(|bits| {
        let mut bytes = bits.concat();
        while let Some(at) = memmem::find(&bytes, b"\r\n--bound") {
            bytes[at] = b'_';
        }
        // What precedes the boundary must not be the first part of one.
        bytes.push(b'.');
        bytes
    })
}

fn fields() -> impl Strategy<Value = Vec<(String, String)>> {
    let value = nasty(60).prop_map(|bytes| String::from_utf8(bytes).unwrap());
    prop::collection::vec(("[a-eA-E$-]{1,9}", value), 0..5)
}

proptest! {
    #[test]
    fn any_cuts_give_the_same_events(
        fields in fields(),
        file in nasty(300),
        behind in prop::option::of(nasty(50)),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        // Nobody looks where its headers end, so it must not begin with the boundary.
        let behind = behind.map(|value| part("later", &[b".", &value[..]].concat())).unwrap_or_default();
        let whole = form(&fields, &file, &behind);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(whole.len() + 1)).collect();
        cuts.extend([0, whole.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|cut| &whole[cut[0]..cut[1]]);
        prop_assert_eq!(events(pieces).unwrap(), expected(fields.clone(), file.clone()));
        prop_assert_eq!(events(whole.chunks(1)).unwrap(), expected(fields, file));
    }

    #[test]
    fn a_form_cut_short_is_never_whole(fields in fields(), file in nasty(100), at: prop::sample::Index) {
        let whole = form(&fields, &file, b"");
        // Without the line end behind the last boundary it is whole all the same.
        let cut = &whole[..at.index(whole.len() - 2)];
        prop_assert!(matches!(events([cut]), Err(FormError::Truncated | FormError::NoFile)));
    }

    #[test]
    fn whatever_arrives_there_is_an_end(bytes in prop::collection::vec(any::<u8>(), 0..300), cut in 1usize..50) {
        prop_assert!(events(bytes.chunks(cut)).is_err());
    }

    #[test]
    fn a_damaged_form_is_an_error_or_another_form(
        fields in fields(),
        file in nasty(100),
        at: prop::sample::Index,
        byte: u8,
        cut in 1usize..50,
    ) {
        let mut damaged = form(&fields, &file, b"");
        let at = at.index(damaged.len());
        damaged[at] = byte;
        let found = events(damaged.chunks(cut));
        prop_assert_eq!(found, events([&damaged[..]]));
    }
}

#[test]
fn limits_hold() {
    let field = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let parse = |form: Vec<u8>| events(form.chunks(1_000));
    let filled = |bytes: usize| parse(form(&[field("k", "v"), field("name", &"x".repeat(bytes - 6))], b"", b""));
    assert!(filled(FIELDS_BYTES_MAX).is_ok());
    assert_eq!(filled(FIELDS_BYTES_MAX + 1), Err(FormError::TooManyFields));
    let many = |count: usize| parse(form(&vec![field("k", ""); count], b"", b""));
    assert!(many(FIELDS_MAX).is_ok());
    assert_eq!(many(FIELDS_MAX + 1), Err(FormError::TooManyFields));
    let headers = |bytes: usize| {
        let head = "--bound\r\nContent-Disposition: form-data; name=\"file\"\r\nX: ";
        parse(format!("{head}{}\r\n\r\n\r\n--bound--", "x".repeat(bytes - head.len() + 9)).into_bytes())
    };
    assert!(headers(HEADERS_BYTES_MAX).is_ok());
    assert!(headers(HEADERS_BYTES_MAX + 1).is_err());
    let behind = |bytes: usize| parse(form(&[], b"data", &part("k", &vec![b'x'; bytes])));
    assert!(behind(REST_BYTES_MAX - 100).is_ok());
    assert!(behind(REST_BYTES_MAX).is_err());
    assert!(parse([form(&[], b"data", b""), vec![b'x'; REST_BYTES_MAX]].concat()).is_err());
    assert!(parse(format!("--bound{}\r\n", " ".repeat(100)).into_bytes()).is_err());
    let file: Vec<u8> = (0..3_000_000u32).map(|number| (number % 251) as u8).collect();
    assert_eq!(parse(form(&[], &file, b"")), Ok(expected(Vec::new(), file)));
}

#[test]
fn odd_forms_are_taken_and_wrong_ones_are_not() {
    let file = |file: &str| expected(Vec::new(), file.as_bytes().to_vec());
    let head = "Content-Disposition: form-data; name=\"File\"; filename=\"file\"";
    for (form, is_good) in [
        (format!("\r\n--bound \t\r\n{head}\r\n\r\nx\r\n--bound--"), true),
        (format!("--bound\r\n{head}\r\n\r\nx\r\n--bound\r\nno headers\r\n--bound--epilogue"), true),
        (format!("preamble\r\n--bound\r\n{head}\r\n\r\nx\r\n--bound--"), false),
        (format!("--bound\n{head}\n\nx\n--bound--"), false),
        (format!("--bound\r\n{head}\r\n\r\nx\r\n--boundary--"), false),
        ("--bound\r\n\r\nx\r\n--bound--".to_owned(), false),
        ("--bound--".to_owned(), false),
        (String::new(), false),
    ] {
        let found = events([form.as_bytes()]);
        assert_eq!(found.is_ok_and(|found| found == file("x")), is_good, "{form}");
    }
    let form =
        [&b"--bound\r\nContent-Disposition: form-data; name=key\r\n\r\n\xff"[..], &part("file", b"")].concat();
    assert!(events([&form[..]]).is_err(), "a field is no UTF-8");
}

#[test]
fn boundaries_are_found() {
    for (content_type, boundary_found) in [
        ("multipart/form-data; boundary=----WebKitFormBoundaryX", Some("----WebKitFormBoundaryX")),
        ("multipart/form-data;charset=utf-8;BOUNDARY=\"a b:c\"", Some("a b:c")),
        ("multipart/form-data", None),
        ("multipart/form-data; boundary=", None),
        ("multipart/form-data; boundary=\"a \"", None),
        ("multipart/form-data; boundary=a\rb", None),
    ] {
        assert_eq!(boundary(content_type).ok(), boundary_found, "{content_type}");
    }
    let of_length = |bytes: usize| format!("multipart/form-data; boundary={}", "b".repeat(bytes));
    assert!(boundary(&of_length(70)).is_ok());
    assert!(boundary(&of_length(71)).is_err());
}
