use std::os::unix::fs::PermissionsExt;

use super::*;

struct Fixture {
    _temporary: tempfile::TempDir,
    directory: DataDir,
    cluster: ClusterFile,
}

impl Fixture {
    fn new() -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let directory = DataDir::new(&temporary.path().join("data"));
        directory.create().unwrap();
        let text = r#"{"format":1,"cluster_id":"0123456789abcdef","state_endpoints":[],"is_founded":false,"frame_mode":"secure","osd_ids":[],
            "osd_bytes":1073741824,"host":"Node_1","s3_listen":"10.0.0.7:9000","nbd_listen":["unix:/x"],"advertise":"2001:db8::7"}"#;
        Fixture { _temporary: temporary, directory, cluster: serde_json::from_str(text).unwrap() }
    }

    fn ensure(&self) -> Result<Option<String>, String> {
        ensure_identity(&self.directory, &self.cluster).map_err(|error| error.to_string())
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.tls().join(name)
    }

    /// Returns true if the server's certificate is signed by the authority and fits its key.
    fn openssl_agrees(&self) -> bool {
        let openssl = |arguments: &[&str]| {
            let done =
                std::process::Command::new("openssl").args(arguments).current_dir(self.directory.tls()).output();
            done.expect("this test needs the openssl command")
        };
        let verified =
            openssl(&["verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", "ca.crt", "server.crt"]);
        let of_key = openssl(&["pkey", "-in", "server.key", "-pubout"]).stdout;
        let of_certificate = openssl(&["x509", "-in", "server.crt", "-noout", "-pubkey"]).stdout;
        verified.status.success() && !of_key.is_empty() && of_key == of_certificate
    }
}

/// Clients trust the old one.
#[test]
fn another_authority_of_a_cluster_that_is_there_is_said() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.ensure(), Ok(None));
    fixture.cluster.is_founded = true;
    fs::remove_dir_all(fixture.directory.tls()).unwrap();
    fixture.directory.create().unwrap();
    assert!(fixture.ensure().unwrap().is_some_and(|said| said.contains("clients have to trust it")));
    assert_eq!(fixture.ensure(), Ok(None));
}

#[test]
fn made_once_and_renewed_for_other_names_only() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.ensure(), Ok(None));
    assert!(fixture.openssl_agrees());
    assert_eq!(authority_file(&fixture.directory), Some(fixture.path("ca.crt")));
    for secret in ["ca.key", "server.key"] {
        assert_eq!(fs::metadata(fixture.path(secret)).unwrap().permissions().mode() & 0o777, 0o600, "{secret}");
    }
    let names = ["localhost", "node_1", "127.0.0.1", "::1", "10.0.0.7", "2001:db8::7"].map(str::to_owned);
    let wanted = super::names(&fixture.cluster);
    assert!(names.iter().all(|name| wanted.contains(name)), "{wanted:?}");

    let all = ["ca.crt", "ca.key", "server.crt", "server.key"];
    let first = all.map(|name| fixture.read(name));
    assert_eq!(fixture.ensure(), Ok(None));
    assert_eq!(all.map(|name| fixture.read(name)), first, "a second start changes nothing");

    fixture.cluster.tls_names = vec!["s3.example".into(), "*.s3.example".into()];
    assert_eq!(fixture.ensure(), Ok(None));
    let second = all.map(|name| fixture.read(name));
    assert_eq!((&second[..2], &second[3]), (&first[..2], &first[3]), "authority and keys stay");
    assert!(second[2] != first[2] && fixture.openssl_agrees());
    assert!(is_current(&second[2], &super::names(&fixture.cluster)));
}

#[test]
fn what_an_operator_has_put_there_stays() {
    let fixture = Fixture::new();
    let key = KeyPair::generate().unwrap();
    let own = CertificateParams::new(["own.example".to_owned()]).unwrap().self_signed(&key).unwrap().pem();
    fs::write(fixture.path("server.crt"), &own).unwrap();
    fs::write(fixture.path("server.key"), key.serialize_pem()).unwrap();
    assert_eq!(fixture.ensure(), Ok(None));
    assert_eq!(fixture.read("server.crt"), own.as_bytes());
    assert!(!fixture.path("ca.key").exists(), "there is nothing to sign");
    let mut parameters = CertificateParams::new(["own.example".to_owned()]).unwrap();
    set_validity(&mut parameters, now_s() + 3 * DAY_S + 60);
    let soon = parameters.self_signed(&key).unwrap().pem();
    fs::write(fixture.path("server.crt"), &soon).unwrap();
    assert!(fixture.ensure().unwrap().is_some_and(|said| said.contains("ends in 3 days")));
    assert_eq!(fixture.read("server.crt"), soon.as_bytes());
    assert_eq!(authority_file(&fixture.directory), None);

    let made = Fixture::new();
    made.ensure().unwrap();
    fs::write(made.path("server.crt"), &own).unwrap();
    fs::write(made.path("server.key"), key.serialize_pem()).unwrap();
    assert_eq!(made.ensure(), Ok(None));
    assert_eq!(made.read("server.crt"), own.as_bytes(), "also in place of what Atoll had made");
    assert_eq!(authority_file(&made.directory), None, "our authority has not signed it");
}

#[test]
fn an_authority_that_is_there_signs() {
    let (first, second) = (Fixture::new(), Fixture::new());
    first.ensure().unwrap();
    second.ensure().unwrap();
    // Of another host of the cluster, so that clients need only one.
    for name in ["ca.crt", "ca.key"] {
        fs::copy(first.path(name), second.path(name)).unwrap();
    }
    assert!(!second.openssl_agrees());
    assert_eq!(second.ensure(), Ok(None));
    assert!(second.openssl_agrees());
    assert_eq!(second.read("ca.crt"), first.read("ca.crt"));

    // Kept elsewhere it is not missed until there is something to sign.
    fs::remove_file(second.path("ca.key")).unwrap();
    assert_eq!(second.ensure(), Ok(None));
    let moved =
        Fixture { cluster: ClusterFile { tls_names: vec!["new".into()], ..second.cluster.clone() }, ..second };
    assert!(moved.ensure().unwrap().is_some_and(|said| said.contains("ca.key")));
    fs::remove_file(moved.path("server.crt")).unwrap();
    assert!(moved.ensure().unwrap_err().contains("ca.key"));
}

#[test]
fn starts_that_were_cut_short_go_on() {
    for left in [&["ca.key"][..], &["ca.key", "ca.crt"], &["ca.key", "ca.crt", "server.key"]] {
        let fixture = Fixture::new();
        fixture.ensure().unwrap();
        let before: Vec<_> = left.iter().map(|name| fixture.read(name)).collect();
        for entry in fs::read_dir(fixture.directory.tls()).unwrap() {
            let path = entry.unwrap().path();
            if !left.iter().any(|name| path.ends_with(name)) {
                fs::remove_file(path).unwrap();
            }
        }
        assert_eq!(fixture.ensure(), Ok(None));
        assert!(fixture.openssl_agrees(), "{left:?}");
        assert_eq!(left.iter().map(|name| fixture.read(name)).collect::<Vec<_>>(), before);
    }
    let fixture = Fixture::new();
    fs::write(fixture.path("ca.key"), "nonsense").unwrap();
    assert!(fixture.ensure().unwrap_err().contains("ca.key"), "a key that is none is not written over");
}

#[test]
fn certificates_that_end_soon_are_renewed() {
    let fixture = Fixture::new();
    fixture.ensure().unwrap();
    let wanted = super::names(&fixture.cluster);
    let (authority, issuer) = ensure_authority(&Files::of(&fixture.directory), &fixture.cluster).unwrap();
    let key = ensure_key(&fixture.path("server.key")).unwrap();
    let lasting = |days: u64| {
        let mut parameters = CertificateParams::new(wanted.iter().cloned().collect::<Vec<_>>()).unwrap();
        set_validity(&mut parameters, now_s() + days * DAY_S);
        parameters.signed_by(&key, &issuer).unwrap().pem()
    };
    assert!(is_current(lasting(RENEW_DAYS + 1).as_bytes(), &wanted));
    assert!(!is_current(lasting(RENEW_DAYS - 1).as_bytes(), &wanted));

    let soon = lasting(1);
    fs::write(fixture.path("server.crt"), &soon).unwrap();
    let server_sha256 = vec![digest(soon.as_bytes())];
    let made = Made { format: RECORD_FORMAT, server_sha256, authority_sha256: digest(authority.as_bytes()) };
    write_json(&fixture.path("made.json"), &made).unwrap();
    assert_eq!(fixture.ensure(), Ok(None));
    assert!(is_current(&fixture.read("server.crt"), &wanted) && fixture.openssl_agrees());
}

#[test]
fn names_that_certificates_can_be_for() {
    for right in ["localhost", "node-1", "node_1", "*.s3.example", "a.b"] {
        assert!(is_dns_name(right), "{right}");
    }
    for wrong in ["", "two words", "a..b", ".a", "*", "a*.b", "m\u{fc}ller", &"a".repeat(64)] {
        assert!(!is_dns_name(wrong), "{wrong}");
    }
}

#[test]
fn another_key_comes_with_a_certificate_for_it() {
    let fixture = Fixture::new();
    assert_eq!(fixture.ensure(), Ok(None));
    let all = ["ca.crt", "ca.key", "server.crt", "server.key"];
    let before = all.map(|name| fixture.read(name));
    assert_eq!(renew_identity(&fixture.directory, &fixture.cluster).unwrap(), fixture.path("server.crt"));
    let after = all.map(|name| fixture.read(name));
    assert!(before[..2] == after[..2] && before[2] != after[2] && before[3] != after[3]);
    assert!(fixture.openssl_agrees());
    assert_eq!(fs::metadata(fixture.path("server.key")).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fixture.ensure(), Ok(None));
    assert_eq!(all.map(|name| fixture.read(name)), after, "it counts as Atoll's own");

    // Cut short between the two files: the next start makes a certificate for the key.
    fs::write(fixture.path("server.crt"), &before[2]).unwrap();
    assert!(!fixture.openssl_agrees());
    assert_eq!(fixture.ensure(), Ok(None));
    assert!(fixture.openssl_agrees());
    assert_eq!(fixture.read("server.key"), after[3]);

    // What an operator has put there is not Atoll's to replace.
    fs::write(fixture.path("server.crt"), "an operator's").unwrap();
    let refused = renew_identity(&fixture.directory, &fixture.cluster).unwrap_err().to_string();
    assert!(refused.contains("not made by Atoll"), "{refused}");
    assert_eq!(fixture.read("server.crt"), b"an operator's");
}
