//! Headers that someone has tampered with: errors, never a panic, never a fortune in memory or time.

use std::sync::LazyLock;

use atoll_luks2::{KeyDerivation, Luks2Error, Luks2Hash, Luks2Header, VolumeKey};
use aws_lc_rs::digest::{SHA256, digest};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::fill_random;

const COPY_BYTES: usize = 16 << 10;
const JSON_START: usize = 4096;
/// Both copies and the first keyslot's area.
const USED_BYTES: usize = (2 * COPY_BYTES) + 258_048;

static HEADER: LazyLock<(Vec<u8>, VolumeKey)> = LazyLock::new(|| {
    let quick = KeyDerivation::Pbkdf2 { hash: Luks2Hash::Sha256, iterations: 1 };
    let (mut bytes, key) = Luks2Header::create(quick, b"right", [1; 16], None, fill_random).unwrap();
    bytes.truncate(USED_BYTES);
    (bytes, key)
});

/// Makes the checksums of both copies right again.
fn reseal(device: &mut [u8]) {
    for copy in device.chunks_exact_mut(COPY_BYTES).take(2) {
        copy[448..512].fill(0);
        let checksum = digest(&SHA256, copy);
        copy[448..480].copy_from_slice(checksum.as_ref());
    }
}

fn json_text() -> String {
    let json = &HEADER.0[JSON_START..COPY_BYTES];
    String::from_utf8(json.iter().copied().take_while(|byte| *byte != 0).collect()).unwrap()
}

/// A device with this JSON in both copies.
fn with_json(text: &[u8]) -> Vec<u8> {
    let mut device = HEADER.0.clone();
    for copy in device.chunks_exact_mut(COPY_BYTES).take(2) {
        copy[JSON_START..].fill(0);
        let length = text.len().min(COPY_BYTES - JSON_START);
        copy[JSON_START..JSON_START + length].copy_from_slice(&text[..length]);
    }
    reseal(&mut device);
    device
}

fn changed(pointer: &str, value: Value) -> Vec<u8> {
    let mut json: Value = serde_json::from_str(&json_text()).unwrap();
    *json.pointer_mut(pointer).unwrap_or_else(|| panic!("no {pointer}")) = value;
    with_json(json.to_string().as_bytes())
}

/// Whatever a header says: if it opens at all, then with the right passphrase and key.
fn survives(device: &[u8]) {
    if let Ok(header) = Luks2Header::read(device) {
        assert!(header.unlock(b"wrong").is_err());
        if let Ok(key) = header.unlock(b"right") {
            assert!(key == HEADER.1);
            header.volume_cipher(&key).encrypt(0, &mut [0; 8192]);
        }
    }
}

/// Every place in the JSON, as JSON pointers.
fn pointers(value: &Value, prefix: String, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            map.iter().for_each(|(key, inner)| pointers(inner, format!("{prefix}/{key}"), found));
        }
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(i, inner)| pointers(inner, format!("{prefix}/{i}"), found));
        }
        _ => {}
    }
    found.push(prefix);
}

#[test]
fn every_value_of_the_json_may_be_anything() {
    let mut places = vec![];
    pointers(&serde_json::from_str(&json_text()).unwrap(), String::new(), &mut places);
    assert!(places.len() > 40);
    for place in &places {
        for value in [
            json!(null),
            json!(0),
            json!(-1),
            json!(u32::MAX),
            json!(u64::MAX),
            json!(0.5),
            json!(""),
            json!("0"),
            json!("18446744073709551615"),
            json!("18446744073709547520"),
            json!("+32768"),
            json!("AAAA"),
            json!([]),
            json!({}),
            json!(["0", "7", "0"]),
        ] {
            survives(&changed(place, value));
        }
    }
}

#[test]
fn changed_headers_get_a_specific_error() {
    type Check = fn(Result<Luks2Header, Luks2Error>) -> bool;
    let damaged: Check = |result| matches!(result, Err(Luks2Error::Damaged { .. }));
    let unsupported: Check = |result| matches!(result, Err(Luks2Error::Unsupported { .. }));
    let shut: Check = |result| {
        let unlocked = result.unwrap().unlock(b"right");
        matches!(unlocked, Err(Luks2Error::WrongPassphrase { tried: 0, skipped }) if skipped.len() == 1)
    };
    let required = json!({"json_size": "12288", "keyslots_size": "0", "requirements": {"mandatory": ["x"]}});
    let salt = "AAAAAAAAAAAAAAAA";
    let greedy = json!({"type": "argon2id", "time": 1, "memory": u32::MAX, "cpus": 1, "salt": salt});
    let cases: [(&str, Value, Check); 16] = [
        ("/segments/0/type", json!("linear"), unsupported),
        ("/segments/0/encryption", json!("serpent-xts-plain64"), unsupported),
        ("/segments/0/sector_size", json!(512), unsupported),
        ("/segments/0/offset", json!("0"), unsupported),
        ("/segments/0/size", json!("4097"), unsupported),
        ("/segments", json!({}), unsupported),
        ("/config", required, unsupported),
        ("/config/json_size", json!("28672"), damaged),
        ("/digests", json!({}), damaged),
        ("/digests/0/digest", json!(""), damaged),
        ("/digests/0/digest", json!("AAAA"), damaged),
        ("/keyslots/0/type", json!("reencrypt"), shut),
        ("/keyslots/0/area/offset", json!("4096"), shut),
        ("/keyslots/0/area/offset", json!("16777216"), shut),
        ("/keyslots/0/kdf/iterations", json!(u32::MAX), shut),
        ("/keyslots/0/kdf", greedy, shut),
    ];
    for (place, value, check) in cases {
        assert!(check(Luks2Header::read(&changed(place, value.clone()))), "{place} = {value}");
    }
}

#[test]
fn a_header_that_is_cut_short_is_an_error() {
    let (bytes, _) = &*HEADER;
    for length in [0, 5, 6, 100, 4095, 4096, COPY_BYTES - 1] {
        assert!(Luks2Header::read(&bytes[..length]).is_err(), "{length}");
    }
    for length in [COPY_BYTES, 2 * COPY_BYTES, USED_BYTES - 3000] {
        match Luks2Header::read(&bytes[..length]).unwrap().unlock(b"right") {
            Err(Luks2Error::WrongPassphrase { tried: 0, skipped }) => assert!(skipped[0].contains("beyond")),
            other => panic!("{length}: {other:?}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn changed_bytes_are_survived(
        changes in prop::collection::vec((0..2 * COPY_BYTES, any::<u8>()), 1..20),
        seal: bool,
    ) {
        let mut device = HEADER.0.clone();
        changes.iter().for_each(|(place, byte)| device[*place] = *byte);
        if seal {
            reseal(&mut device);
        }
        survives(&device);
    }

    #[test]
    fn changed_json_is_survived(
        changes in prop::collection::vec((0..900_usize, any::<u8>(), any::<bool>()), 1..6),
    ) {
        let mut text = json_text().into_bytes();
        for (place, byte, insert) in changes {
            let place = place % text.len();
            // Digits may not grow into minutes of work: what is inserted is something else.
            match (insert, byte.is_ascii_digit()) {
                (true, false) => text.insert(place, byte),
                (true, true) => drop(text.remove(place)),
                (false, _) => text[place] = byte,
            }
        }
        survives(&with_json(&text));
    }

    #[test]
    fn noise_behind_the_magic_is_survived(noise in prop::collection::vec(any::<u8>(), 0..9000)) {
        survives(&[b"LUKS\xba\xbe\x00\x02".as_slice(), &noise].concat());
    }
}
