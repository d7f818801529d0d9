//! The content of the files, and when it takes effect.

use atoll_reactor::ListenAddress;

use super::*;
use crate::protocol::TlsPolicy;
use crate::tls::{TlsChoice, TlsMode};

/// Returns true if the identity presents a certificate of this authority.
fn is_of(identity: &TlsIdentity, authority: &Authority) -> bool {
    Pair::new(identity, authority, &rustls::version::TLS13, None).exchange().is_ok()
}

#[test]
fn new_files_count_and_broken_ones_do_not() {
    let (files, second) = (Files::new(), authority());
    let mut identity = files.identity(false);
    assert!(is_of(&identity, &files.authority) && !is_of(&identity, &second));
    let before = identity.config().unwrap();
    identity.refresh();
    assert!(Arc::ptr_eq(&before, &identity.config().unwrap()), "read without need");

    files.renew(&second);
    assert!(is_of(&identity, &files.authority), "changed without being asked to");
    identity.refresh();
    assert!(is_of(&identity, &second));

    for broken in ["", "no PEM", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        std::fs::write(files.path("server.crt"), broken).unwrap();
        identity.refresh();
        assert!(is_of(&identity, &second), "{broken:?}");
    }
    // A certificate without its key: the other half may be on its way.
    let key = std::fs::read(files.path("server.key")).unwrap();
    files.renew(&files.authority);
    let newer_key = std::fs::read(files.path("server.key")).unwrap();
    std::fs::write(files.path("server.key"), key).unwrap();
    identity.refresh();
    assert!(is_of(&identity, &second));
    std::fs::write(files.path("server.key"), newer_key).unwrap();
    identity.refresh();
    assert!(is_of(&identity, &files.authority));

    std::fs::remove_file(files.path("server.crt")).unwrap();
    identity.refresh();
    assert!(is_of(&identity, &files.authority));
}

#[test]
fn a_certificate_may_come_later_only_where_tls_is_a_choice() {
    let files = Files::new();
    let choice = |mode, wants_clients| TlsChoice { mode, files: files.names(wants_clients) };
    let certificate = std::fs::read(files.path("server.crt")).unwrap();
    std::fs::remove_file(files.path("server.crt")).unwrap();
    assert!(choice(TlsMode::Off, false).load().unwrap().is_none());
    for (mode, wants_clients) in [(TlsMode::Required, false), (TlsMode::On, true), (TlsMode::Required, true)] {
        let error = choice(mode, wants_clients).load().err().unwrap().to_string();
        assert!(error.contains("server.crt"), "{error}");
    }
    let mut identity = choice(TlsMode::On, false).load().unwrap().unwrap();
    assert!(identity.config().is_none());
    std::fs::write(files.path("server.crt"), certificate).unwrap();
    identity.refresh();
    assert!(is_of(&identity, &files.authority));
}

#[test]
fn errors_name_the_file_and_its_fault() {
    let files = Files::new();
    let error = |wants_clients| TlsIdentity::load(files.names(wants_clients), true).err().unwrap().to_string();
    std::fs::write(files.path("clients.pem"), "nothing").unwrap();
    assert!(error(true).contains("clients.pem is not usable PEM: there is no certificate"), "{}", error(true));
    std::fs::write(files.path("server.key"), "nothing").unwrap();
    assert!(error(false).contains("server.key is not usable PEM: "), "{}", error(false));
    std::fs::remove_file(files.path("server.key")).unwrap();
    assert!(error(false).contains("server.key: No such file"), "{}", error(false));
    write_pair(&files.authority, &files.path("other.crt"), &files.path("server.key"));
    assert!(error(false).contains("server.key cannot be used together"), "{}", error(false));
}

#[test]
fn tls_policy_follows_mode_and_listener() {
    let files = Files::new();
    let tcp: ListenAddress = "127.0.0.1:10809".parse().unwrap();
    let unix: ListenAddress = "unix:/run/nbd.sock".parse().unwrap();
    use TlsPolicy::{Offered, Required, Unavailable};
    for (mode, wants_clients, on_tcp, on_unix) in [
        (TlsMode::Off, false, Unavailable, Unavailable),
        (TlsMode::On, false, Offered, Offered),
        (TlsMode::On, true, Required, Offered),
        (TlsMode::Required, false, Required, Required),
        (TlsMode::Required, true, Required, Required),
    ] {
        let choice = TlsChoice { mode, files: files.names(wants_clients) };
        assert_eq!((choice.policy(&tcp), choice.policy(&unix)), (on_tcp, on_unix), "{mode:?} {wants_clients}");
    }
}
