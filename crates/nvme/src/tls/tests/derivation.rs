//! Keys and identities as libnvme makes them.

use atoll_credentials::nvme::TlsKeyError;
use atoll_types::nvme_hosts::NQN_BYTES_MAX;

use super::*;
use crate::tls::Identity;

/// Keys that 'nvme gen-tls-key' of nvme-cli 2.3 (libnvme 1.3) has made.
const OF_NVME_CLI: [(&str, Option<HashFunction>, usize); 2] = [
    ("NVMeTLSkey-1:01:3i7jJKX/ro/aRZY2YHARPrZAONk1z1+5oKDmm9Py2TeWgm0X:", Some(HashFunction::Sha256), 32),
    (
        "NVMeTLSkey-1:02:ZY3Ve7Ktwc12vKR1KyjrBAJWjbWBZwTp+Xz2bzjFAy5iswCvUAwAmtS6Mdl5ah75WXQL1A==:",
        Some(HashFunction::Sha384),
        48,
    ),
];

/// A configured key, and its derivation for a host and a subsystem: the identity, and the key of TLS.
struct Known {
    key: &'static str,
    version: IdentityVersion,
    form: LabelForm,
    /// Behind `NVMe0R01 host subsystem`.
    digest: &'static str,
    psk: &'static str,
}

const ZERO: IdentityVersion = IdentityVersion::Zero;
const ONE: IdentityVersion = IdentityVersion::One;
const STANDARD: LabelForm = LabelForm::Standard;
const OLD: LabelForm = LabelForm::OldLibnvme;
const PLAIN_32: &str = "NVMeTLSkey-1:00:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
const SHA_256: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
const PLAIN_48: &str = "NVMeTLSkey-1:00:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:";
const SHA_384: &str = "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:";

/// Results of libnvme 1.16 and of 1.13 (which has the old form only), called with these names.
const KNOWN: [Known; 16] = [
    Known {
        key: PLAIN_32,
        version: ZERO,
        form: STANDARD,
        digest: "",
        psk: "ec85300ba827726bd3bc4fc07f3a34aec5fe7c8ccac05fefc2f021c74e0df9ef",
    },
    Known {
        key: PLAIN_32,
        version: ZERO,
        form: OLD,
        digest: "",
        psk: "e2b16189378b34adba9fec995ab479040cedec0bc7c6b47728ee4d8de6ff52ba",
    },
    Known {
        key: PLAIN_32,
        version: ONE,
        form: STANDARD,
        digest: "quJVUJjp/BImWR0UQay/MjSfEgyAr6TyBOWybS/B404=",
        psk: "a45d08ee4639c7570729bb3e57e905e466a49a15ece5401af906830c4d3bdb0b",
    },
    Known {
        key: PLAIN_32,
        version: ONE,
        form: OLD,
        digest: "quJVUJjp/BImWR0UQay/MjSfEgyAr6TyBOWybS/B404=",
        psk: "d50f6d3dd79345b6e8217744524df5ac0dc66964ff70cc5fd18e1b9d57ce7fcf",
    },
    Known {
        key: SHA_256,
        version: ZERO,
        form: STANDARD,
        digest: "",
        psk: "05c6503551ad136e6ee32e6eeb3f6d500b69701d84ec71e328f65c7f51566f68",
    },
    Known {
        key: SHA_256,
        version: ZERO,
        form: OLD,
        digest: "",
        psk: "09fb1983ac6d6d0353e7cae4f23daddd651c367fa347c59d9cf6936f5a83eafb",
    },
    Known {
        key: SHA_256,
        version: ONE,
        form: STANDARD,
        digest: "iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU=",
        psk: "8fc3c0badfd4c0c66fa3ca33aadd0314f85536cc9bc47338b60f3e6e563786ca",
    },
    Known {
        key: SHA_256,
        version: ONE,
        form: OLD,
        digest: "66GuqV08TsAGII39teWUfwQwizjv06Jy8jOcX3NAAzM=",
        psk: "b9f5ab2a41ba6e72a23a12066302a2f775fa6c0942c8e0b18ca8ac07edf305e2",
    },
    Known {
        key: PLAIN_48,
        version: ZERO,
        form: STANDARD,
        digest: "",
        psk: "b5dd464067a9378ba2226d71f005d7ac90ed8696e4b2142084384365597201d33ba26f8aeeb529574d4267bd294a828e",
    },
    Known {
        key: PLAIN_48,
        version: ZERO,
        form: OLD,
        digest: "",
        psk: "9cb989c1d40fdcdc1bb729d6691901bfcd0b310f060f558d4a63c7afc2a0923f2d0610073fded349d25d6b3f91980826",
    },
    Known {
        key: PLAIN_48,
        version: ONE,
        form: STANDARD,
        digest: "dyoPfSR5TBRaPMI5/FXUlJv2XMDtmQ7Q9Xrj89aBKbyRYkQeT5V1wNvIpnMDRTQW",
        psk: "1569317890995e207ab4cf148bc53470561e148030cb019b1d87fb4bc5794a791ed5ee68676c952ce5f11f3786e900d4",
    },
    Known {
        key: PLAIN_48,
        version: ONE,
        form: OLD,
        digest: "dyoPfSR5TBRaPMI5/FXUlJv2XMDtmQ7Q9Xrj89aBKbyRYkQeT5V1wNvIpnMDRTQW",
        psk: "f6259eaeaab509d2e42bc494098bd1ccc4334b2528a1a34ea95fbe27e3fa75e3422d260a299110afa42170521b02d689",
    },
    Known {
        key: SHA_384,
        version: ZERO,
        form: STANDARD,
        digest: "",
        psk: "f42ba63824cdfe421914c582921f85b5b5b7e2d4df084caeedc9be20b212e8bb0fe8a23e9d59a1c8fc6449da4970a78d",
    },
    Known {
        key: SHA_384,
        version: ZERO,
        form: OLD,
        digest: "",
        psk: "2ee4754186a625b28a3936ef4a40d839c3ad958b2e017562ee07e2501f172ce999dc9c29033ea7ee33f814f192c13f47",
    },
    Known {
        key: SHA_384,
        version: ONE,
        form: STANDARD,
        digest: "QhW2+Rp6RzHlNtCslyRxMnwJ11tKKhz8JCAQpQ+XUD8f9td1VeH5h53yz2wKJG1a",
        psk: "a2b2f943f479fc682555cec89857c80ed004ce92f32a973d5764155bb7e36b17a85368a0666d250afac9282dda2e62ca",
    },
    Known {
        key: SHA_384,
        version: ONE,
        form: OLD,
        digest: "RsKmYJ3nAn1ApjjMloJFbAkLPivONDAX/xW327YBUsn2eGShXSjCZvBaOxscLqmz",
        psk: "fcefe2e2a2e682b1447dcabf1ec268f78f08c63cd075753abcc8bda2c5c34d48d3014aa8d76ad80107e4f5c9f27e2149",
    },
];

fn derive(known: &Known) -> TlsPsk {
    let key = TlsKey::from_text(known.key).unwrap();
    TlsPsk::derive(&key, known.version, "nqn.psk-test-host", "nqn.psk-test-subsys", known.form).unwrap()
}

#[test]
fn keys_of_nvme_cli_are_read_and_written() {
    for (text, hash, bytes) in OF_NVME_CLI {
        let key = TlsKey::from_text(text).unwrap();
        assert_eq!((key.hash(), key.expose().len()), (hash, bytes), "{text}");
        assert_eq!(&*key.to_text(), text);
        assert_eq!(TlsKey::from_text(&format!("{text}\n")), Ok(key), "a file ends with a line feed");
    }
}

#[test]
fn random_keys_are_read_back_and_not_printed() {
    for hash in [HashFunction::Sha256, HashFunction::Sha384] {
        let key = TlsKey::random(hash);
        assert_eq!(TlsKey::from_text(&key.to_text()), Ok(key.clone()));
        assert_eq!(key.suite_hash(), hash);
        assert_ne!(TlsKey::random(hash), key);
        assert!(format!("{key:?}{:?}", psk_of(&key)).matches("..)").count() == 2);
    }
}

#[test]
fn an_invalid_key_is_refused() {
    let of = |text: &str| TlsKey::from_text(text);
    assert_eq!(of(&SHA_256.replacen(":01:", ":02:", 1)), Err(TlsKeyError::Length { bytes: 32 }));
    assert_eq!(of(&SHA_384.replacen(":02:", ":01:", 1)), Err(TlsKeyError::Length { bytes: 48 }));
    assert_eq!(of(&SHA_256.replacen("VRLb", "VRLc", 1)), Err(TlsKeyError::Check));
    let of_dhchap = SHA_256.replacen("NVMeTLSkey-1", "DHHC-1", 1);
    for wrong in ["", "NVMeTLSkey-1", "NVMeTLSkey-1:01::", &SHA_256[1..], &of_dhchap, &format!("{SHA_256}:")] {
        assert_eq!(of(wrong), Err(TlsKeyError::Form), "{wrong}");
    }
    for hash in ["03", "04", "1"] {
        assert_eq!(of(&SHA_256.replacen("01", hash, 1)), Err(TlsKeyError::Form), "{hash}");
    }
}

#[test]
fn keys_and_identities_are_those_of_libnvme() {
    for known in &KNOWN {
        let (psk, number) = (derive(known), if known.psk.len() == 64 { "01" } else { "02" });
        let identity = match known.version {
            ZERO => format!("NVMe0R{number} nqn.psk-test-host nqn.psk-test-subsys"),
            ONE => format!("NVMe1R{number} nqn.psk-test-host nqn.psk-test-subsys {}", known.digest),
        };
        assert_eq!((psk.identity.as_str(), hex::encode(psk.expose())), (identity.as_str(), known.psk.to_owned()));
        let parsed = Identity::parse(identity.as_bytes()).unwrap();
        assert_eq!((parsed.host, parsed.subsystem), ("nqn.psk-test-host", "nqn.psk-test-subsys"));
    }
}

#[test]
fn identities_that_are_none() {
    for wrong in [
        "",
        "NVMe0R01",
        "NVMe0R01 nqn.a",
        "NVMe0R01 nqn.a nqn.b digest",
        "NVMe1R01 nqn.a nqn.b",
        "NVMe1R01 nqn.a nqn.b digest more",
        "NVMe0R01  nqn.a nqn.b",
        "NVMe0R01 nqn.a nqn.b ",
        "NVMe0R00 nqn.a nqn.b",
        "NVMe0R03 nqn.a nqn.b",
        "NVMe2R01 nqn.a nqn.b digest",
        "NVMe0G01 nqn.a nqn.b",
        "NVMe0R01 a nqn.b",
        "NVMe0R01 nqn.a\n nqn.b",
        "Client_identity",
    ] {
        assert_eq!(Identity::parse(wrong.as_bytes()), None, "{wrong:?}");
    }
    assert_eq!(Identity::parse(b"NVMe0R01 nqn.a\xff nqn.b"), None);
    let long = format!("nqn.{}", "x".repeat(NQN_BYTES_MAX - 3));
    assert_eq!(Identity::parse(format!("NVMe0R01 {long} nqn.b").as_bytes()), None);
}

#[test]
fn names_too_long_for_an_identity_need_version_one() {
    let (key, long) = (TlsKey::random(HashFunction::Sha256), format!("nqn.{}", "x".repeat(NQN_BYTES_MAX - 4)));
    assert!(TlsPsk::derive(&key, ZERO, &long, &long, STANDARD).is_none());
    let psk = TlsPsk::derive(&key, ONE, &long, &long, STANDARD).unwrap();
    assert!(Identity::parse(psk.identity.as_bytes()).is_some());
}
