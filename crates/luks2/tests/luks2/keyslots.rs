//! Headers and keyslots go both ways between our code and `cryptsetup`.

use super::fill_random;
use atoll_luks2::{HEADER_BYTES, KeyDerivation, KmsToken, Luks2Error, Luks2Hash, Luks2Header, VolumeKey};

use crate::cryptsetup::{DEVICE_BYTES, Device, QUICK_ARGON2ID};

const UUID: [u8; 16] = [0x0a, 0x70, 0x11, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0xff];

fn our_device(derivation: KeyDerivation, passphrase: &str) -> (Device, VolumeKey) {
    let (header, key) = Luks2Header::create(derivation, passphrase.as_bytes(), UUID, None, fill_random).unwrap();
    (Device::with_header(&header), key)
}

fn unlock(device: &Device, passphrase: &str) -> Result<VolumeKey, Luks2Error> {
    device.header().unwrap().unlock(passphrase.as_bytes())
}

fn is_wrong_passphrase(result: Result<VolumeKey, Luks2Error>) -> bool {
    matches!(result, Err(Luks2Error::WrongPassphrase { skipped, .. }) if skipped.is_empty())
}

/// The volume key as `cryptsetup luksDump` prints it: hexadecimal bytes in several lines.
fn dumped_volume_key(device: &Device, passphrase: &str) -> Vec<u8> {
    let dump = device.cryptsetup(&["luksDump", "--dump-volume-key", "--key-file=-"], &[], passphrase);
    let (_, key) = dump.split_once("MK dump:").unwrap_or_else(|| panic!("no key in: {dump}"));
    hex::decode(key.split_whitespace().collect::<String>()).unwrap()
}

#[test]
fn cryptsetup_reads_our_header() {
    let pbkdf2 = |hash| KeyDerivation::Pbkdf2 { hash, iterations: 1000 };
    let argon2i = KeyDerivation::Argon2i { passes: 4, memory_kib: 64, lanes: 2 };
    for (derivation, name) in [
        (KeyDerivation::FAST_FOR_TESTS, "argon2id"),
        (KeyDerivation::MODEST, "argon2id"),
        (argon2i, "argon2i"),
        (pbkdf2(Luks2Hash::Sha256), "pbkdf2"),
        (pbkdf2(Luks2Hash::Sha512), "pbkdf2"),
    ] {
        let (device, key) = our_device(derivation, "first");
        let dump = device.cryptsetup(&["luksDump"], &[], "");
        for expected in ["0a701103-0405-0607-0809-0a0b0c0d0eff", "offset: 16777216 [bytes]", "sector: 4096", name]
        {
            assert!(dump.contains(expected), "{expected} is not in: {dump}");
        }
        assert!(device.cryptsetup_opens("first"));
        assert!(!device.cryptsetup_opens("second"));
        assert_eq!(dumped_volume_key(&device, "first"), key.expose());
    }
}

#[test]
fn a_token_of_ours_is_shown_and_kept() {
    let fast = KeyDerivation::FAST_FOR_TESTS;
    let token = KmsToken { wrapped_passphrase: "local:\"1\":abc".into() };
    let (header, _) = Luks2Header::create(fast, b"first", UUID, Some(&token), fill_random).unwrap();
    let device = Device::with_header(&header);
    assert_eq!(device.header().unwrap().kms_token(), Some(&token));
    let dump = device.cryptsetup(&["luksDump"], &[], "");
    assert!(dump.contains("atoll-kms"), "{dump}");
    let second = device.key_file("second");
    let add = [&["luksAddKey", "--key-file=-"], QUICK_ARGON2ID].concat();
    device.cryptsetup(&add, &[&second], "first");
    assert_eq!(device.header().unwrap().kms_token(), Some(&token));
    unlock(&device, "second").unwrap();

    assert_eq!(our_device(fast, "first").0.header().unwrap().kms_token(), None);
    let long = KmsToken { wrapped_passphrase: "x".repeat(5000) };
    let error = Luks2Header::create(fast, b"first", UUID, Some(&long), fill_random).unwrap_err();
    assert!(matches!(error, Luks2Error::Unsupported { .. }), "{error}");
}

#[test]
fn our_header_has_its_fields_and_opens_with_its_passphrase() {
    let (device, key) = our_device(KeyDerivation::FAST_FOR_TESTS, "first");
    let header = device.header().unwrap();
    assert_eq!(header.uuid(), "0a701103-0405-0607-0809-0a0b0c0d0eff");
    assert_eq!((header.data_offset_bytes(), header.segment_bytes()), (HEADER_BYTES as u64, None));
    assert!(!header.is_degraded());
    assert_eq!(header.unlock(b"first").unwrap(), key);
    assert!(is_wrong_passphrase(header.unlock(b"second")));
    assert!(is_wrong_passphrase(header.unlock(b"")));
}

#[test]
fn keyslots_that_cryptsetup_adds_open() {
    let (device, key) = our_device(KeyDerivation::FAST_FOR_TESTS, "first");
    let added: [(&str, &[&str]); 4] = [
        ("argon2id", QUICK_ARGON2ID),
        ("argon2i", &["--pbkdf=argon2i", "--pbkdf-memory=64", "--pbkdf-force-iterations=4"]),
        ("pbkdf2", &["--pbkdf=pbkdf2", "--pbkdf-force-iterations=1000"]),
        ("sha512", &["--pbkdf=pbkdf2", "--hash=sha512", "--pbkdf-force-iterations=1000"]),
    ];
    for (passphrase, options) in added {
        let arguments = [&["luksAddKey", "--key-file=-"], options].concat();
        device.cryptsetup(&arguments, &[&device.key_file(passphrase)], "first");
        assert_eq!(unlock(&device, passphrase).unwrap(), key, "{passphrase}");
    }
    assert_eq!(unlock(&device, "first").unwrap(), key);
    assert!(is_wrong_passphrase(unlock(&device, "second")));

    device.cryptsetup(&["config", "--priority=ignore", "--key-slot=1"], &[], "");
    match unlock(&device, "argon2id") {
        Err(Luks2Error::WrongPassphrase { tried: 4, skipped }) => assert!(skipped[0].contains("priority")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_changed_passphrase_replaces_the_old_one() {
    let (device, key) = our_device(KeyDerivation::FAST_FOR_TESTS, "first");
    let arguments = [&["luksChangeKey", "--key-file=-"], QUICK_ARGON2ID].concat();
    device.cryptsetup(&arguments, &[&device.key_file("second")], "first");
    assert_eq!(unlock(&device, "second").unwrap(), key);
    assert!(is_wrong_passphrase(unlock(&device, "first")));
    assert!(!device.cryptsetup_opens("first"));
}

#[test]
fn a_killed_slot_stays_shut() {
    let (device, key) = our_device(KeyDerivation::FAST_FOR_TESTS, "first");
    let arguments = [&["luksAddKey", "--key-file=-"], QUICK_ARGON2ID].concat();
    device.cryptsetup(&arguments, &[&device.key_file("second")], "first");
    let kill = |slot| Device::cryptsetup(&device, &["luksKillSlot"], &[slot], "");
    kill("0".as_ref());
    assert_eq!(unlock(&device, "second").unwrap(), key);
    assert!(is_wrong_passphrase(unlock(&device, "first")));
    kill("1".as_ref());
    assert_eq!(unlock(&device, "second"), Err(Luks2Error::WrongPassphrase { tried: 0, skipped: vec![] }));
}

#[test]
fn headers_that_cryptsetup_makes_open() {
    let options: [&[&str]; 4] = [
        QUICK_ARGON2ID,
        &["--pbkdf=argon2i", "--pbkdf-memory=64", "--pbkdf-force-iterations=4", "--pbkdf-parallel=4"],
        &["--pbkdf=pbkdf2", "--pbkdf-force-iterations=1000", "--hash=sha512"],
        &["--pbkdf=pbkdf2", "--pbkdf-force-iterations=1000", "--luks2-metadata-size=64k", "--label=some label"],
    ];
    for options in options {
        let device = Device::new(DEVICE_BYTES);
        let format = ["luksFormat", "--type=luks2", "--sector-size=4096", "--key-size=512", "--key-file=-"];
        device.cryptsetup(&[&format, options].concat(), &[], "theirs");
        let header = device.header().unwrap();
        let dump = device.cryptsetup(&["luksDump"], &[], "");
        assert!(dump.contains(header.uuid()), "{dump}");
        assert_eq!(header.data_offset_bytes(), HEADER_BYTES as u64);
        assert!(!header.is_degraded());
        assert_eq!(header.unlock(b"theirs").unwrap().expose()[..], dumped_volume_key(&device, "theirs"));
        assert!(is_wrong_passphrase(header.unlock(b"ours")));
    }
}

#[test]
fn unsupported_features_are_named() {
    let cases = [
        ("--sector-size=512", "sectors of 512 bytes"),
        ("--cipher=aes-cbc-essiv:sha256", "aes-cbc-essiv:sha256"),
        ("--type=luks1", "version 1"),
    ];
    for (option, expected) in cases {
        let device = Device::new(DEVICE_BYTES);
        let quick = ["--pbkdf=pbkdf2", "--pbkdf-force-iterations=1000", "--key-file=-"];
        device.cryptsetup(&[&["luksFormat", option], &quick[..]].concat(), &[], "theirs");
        match device.header() {
            Err(Luks2Error::Unsupported { what }) => assert!(what.contains(expected), "{what}"),
            other => panic!("{option}: {other:?}"),
        }
    }
}

#[test]
fn either_copy_of_the_header_is_enough() {
    for (damaged_at, size) in [(0, 512), (4096, 100), (16 << 10, 512), ((16 << 10) + 4096, 100)] {
        let (device, key) = our_device(KeyDerivation::FAST_FOR_TESTS, "first");
        device.write(damaged_at, &vec![0xff; size]);
        let header = device.header().unwrap();
        assert!(header.is_degraded());
        assert_eq!(header.unlock(b"first").unwrap(), key);
        // Any change writes both copies. (`repair` would do, too, but not without locks.)
        device.cryptsetup(&["config", "--label=whole"], &[], "");
        assert!(!device.header().unwrap().is_degraded(), "cryptsetup takes our other copy to mend this one");
        assert_eq!(unlock(&device, "first").unwrap(), key);
    }
    let (device, _) = our_device(KeyDerivation::FAST_FOR_TESTS, "first");
    device.write(5000, b"?");
    device.write((16 << 10) + 5000, b"?");
    assert!(matches!(device.header(), Err(Luks2Error::Damaged { .. })));
    assert!(matches!(Device::new(DEVICE_BYTES).header(), Err(Luks2Error::NotLuks2)));
}
