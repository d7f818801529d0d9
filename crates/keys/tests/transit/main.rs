//! The Transit client against the server of tests/transit, and against a real OpenBao or Vault if
//! ATOLL_TEST_BAO names its binary.
#![allow(clippy::unwrap_used)]

mod server;

use std::time::Duration;

use atoll_keys::{
    KeyError, KeyFile, KeyRing, KeyService, LocalKeys, SecretKey, Transit, TransitLogin, TransitSettings,
};
use server::Server;

fn secret() -> SecretKey {
    SecretKey::from_bytes([9; 32])
}

fn transit(settings: TransitSettings) -> Transit {
    Transit::new(settings).unwrap()
}

/// Requirements for any server.
async fn keys_live_and_die(server: &Server, login: TransitLogin) {
    let transit = transit(server.settings(login));
    transit.make_default_key().await.unwrap();
    transit.make_default_key().await.unwrap();
    let wrapped = transit.wrap("bucket 1", &secret()).await.unwrap();
    assert!(wrapped.starts_with("transit:atoll:vault:v1:"), "{wrapped}");
    assert_eq!(transit.unwrap("bucket 1", &wrapped).await.unwrap(), secret());
    assert!(matches!(transit.unwrap("bucket 2", &wrapped).await, Err(KeyError::NotAuthentic { .. })));
    assert!(transit.unwrap("bucket 1", &wrapped[..wrapped.len() - 9]).await.is_err());
    let changed = format!("{}{}", &wrapped[..40], wrapped[40..].to_uppercase());
    assert!(transit.unwrap("bucket 1", &changed).await.is_err());

    // Versions.
    assert_eq!(transit.rewrap("bucket 1", &wrapped).await.unwrap(), None);
    assert_eq!(transit.rotate("atoll").await.unwrap().versions.len(), 2);
    let anew = transit.rewrap("bucket 1", &wrapped).await.unwrap().expect("version 1 wrapped it");
    assert!(anew.starts_with("transit:atoll:vault:v2:"), "{anew}");
    for wrapped in [&wrapped, &anew] {
        assert_eq!(transit.unwrap("bucket 1", wrapped).await.unwrap(), secret());
    }

    // Named keys. A name that is not there must not make a key.
    let missing = transit.wrap_with(Some("project"), "bucket 1", &secret()).await;
    assert!(matches!(missing, Err(KeyError::NoSuchKey { .. })), "{missing:?}");
    assert!(matches!(transit.rotate("project").await, Err(KeyError::NoSuchKey { .. })));
    transit.create("project").await.unwrap();
    let wrapped = transit.wrap_with(Some("project"), "bucket 1", &secret()).await.unwrap();
    let names: Vec<String> = transit.list().await.unwrap().into_iter().map(|key| key.name).collect();
    assert_eq!(names, ["atoll", "project"]);
    transit.destroy("project").await.unwrap();
    let gone = transit.unwrap("bucket 1", &wrapped).await;
    assert!(matches!(gone, Err(KeyError::NoSuchKey { .. })), "{gone:?}");
    for name in ["../sys/seal", "a/b", ""] {
        assert!(matches!(transit.create(name).await, Err(KeyError::BadKeyName { .. })));
    }
}

#[tokio::test]
async fn keys_live_and_die_with_a_token() {
    let server = Server::start(&[]);
    keys_live_and_die(&server, server.token_file("root")).await;
}

#[tokio::test]
async fn keys_live_and_die_with_an_approle_over_tls_in_a_namespace() {
    let server =
        Server::start_with_tls(&["--namespace", "team/a", "--approle", "role:secret", "--mount", "secrets/t"]);
    let login = server.app_role("role", "secret");
    let settings = TransitSettings {
        namespace: Some("team/a".into()),
        mount: "secrets/t".into(),
        ..server.settings(login.clone())
    };
    let one = transit(settings.clone());
    one.make_default_key().await.unwrap();
    let wrapped = one.wrap("c", &secret()).await.unwrap();
    assert_eq!(one.unwrap("c", &wrapped).await.unwrap(), secret());
    // A server of another authority is not believed.
    let other = Server::start_with_tls(&[]);
    let stranger = transit(TransitSettings { ca_file: other.settings(login).ca_file, ..settings });
    let refused = stranger.unwrap("c", &wrapped).await;
    assert!(
        matches!(&refused, Err(KeyError::ServiceUnavailable { detail, .. }) if detail.contains("certificate")),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_real_server_does_the_same() {
    let Some(server) = Server::start_real() else {
        eprintln!("ATOLL_TEST_BAO names no binary: not tried against a real server");
        return;
    };
    keys_live_and_die(&server, server.token_file("root")).await;
    let (role_id, secret_id) = server.make_app_role(2).await;
    let transit = transit(server.settings(server.app_role(&role_id, &secret_id)));
    let wrapped = transit.wrap("c", &secret()).await.unwrap();
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        transit.maintain().await.unwrap();
        assert_eq!(transit.unwrap("c", &wrapped).await.unwrap(), secret());
    }
}

/// Returns the answer, if it comes in time by the clock of the runtime, which the client uses, too: when the
/// machine is paused both are late.
async fn in_time<T>(answer: impl Future<Output = T>) -> Result<T, tokio::time::error::Elapsed> {
    tokio::time::timeout(Duration::from_millis(2_500), answer).await
}

#[tokio::test]
async fn a_service_in_trouble_makes_clear_errors_in_time() {
    let server = Server::start(&[]);
    let settings = TransitSettings { timeout_ms: 1_500, ..server.settings(server.token_file("root")) };
    let transit = transit(settings);
    transit.make_default_key().await.unwrap();
    let wrapped = transit.wrap("c", &secret()).await.unwrap();
    for kind in ["hang", "sealed", "503", "500", "429", "reset", "garbage", "truncated"] {
        server.fail(kind, 60.0, None).await;
        let answer = in_time(transit.unwrap("c", &wrapped)).await;
        assert!(matches!(answer, Ok(Err(KeyError::ServiceUnavailable { .. }))), "{kind}: {answer:?}");
        server.fail("none", 0.0, None).await;
    }
    server.fail("403", 60.0, None).await;
    let answer = transit.unwrap("c", &wrapped).await;
    assert!(matches!(answer, Err(KeyError::ServiceRefused { .. })), "{answer:?}");
    server.fail("none", 0.0, None).await;
    // What passes quickly is not noticed.
    for kind in ["503", "reset", "truncated"] {
        server.fail(kind, 60.0, Some(2)).await;
        assert_eq!(transit.unwrap("c", &wrapped).await.unwrap(), secret(), "{kind}");
    }
    server.fail("slow", 0.5, Some(1)).await;
    assert_eq!(transit.unwrap("c", &wrapped).await.unwrap(), secret());
    // A server that is gone.
    drop(server);
    let answer = in_time(transit.unwrap("c", &wrapped)).await;
    assert!(matches!(answer, Ok(Err(KeyError::ServiceUnavailable { .. }))), "{answer:?}");
}

#[tokio::test]
async fn tokens_are_renewed_and_replaced() {
    let server = Server::start(&["--approle", "role:secret", "--token-ttl", "400"]);
    let transit = transit(server.settings(server.app_role("role", "secret")));
    transit.make_default_key().await.unwrap();
    let wrapped = transit.wrap("c", &secret()).await.unwrap();
    let logins = server.requests("login").await;
    for renewals in 0..3 {
        assert_eq!(server.requests("renew-self").await, renewals, "half of its time is not over");
        server.pass(199).await;
        transit.maintain().await.unwrap();
        assert_eq!(server.requests("renew-self").await, renewals, "half of its time is not over");
        server.pass(2).await;
        transit.maintain().await.unwrap();
        assert_eq!(transit.unwrap("c", &wrapped).await.unwrap(), secret());
    }
    assert_eq!(server.requests("renew-self").await, 3);
    assert_eq!(server.requests("login").await, logins, "renewing makes logging in needless");
    // Taken back by the operator: one log-in more.
    server.revoke_tokens().await;
    assert_eq!(transit.unwrap("c", &wrapped).await.unwrap(), secret());
    assert_eq!(server.requests("login").await, logins + 1);
    // Nobody has asked for so long that the token has ended.
    server.pass(401).await;
    assert_eq!(transit.unwrap("c", &wrapped).await.unwrap(), secret());
    assert_eq!(server.requests("login").await, logins + 2);
}

#[tokio::test]
async fn a_token_file_is_read_again_when_it_changes() {
    let server = Server::start(&[]);
    let login = server.token_file("not-a-token");
    let transit = transit(server.settings(login));
    assert!(matches!(transit.make_default_key().await, Err(KeyError::ServiceRefused { .. })));
    server.token_file("root");
    transit.make_default_key().await.unwrap();
}

#[tokio::test]
async fn a_cluster_moves_from_local_keys_to_transit() {
    let server = Server::start(&[]);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kms.json");
    let local = LocalKeys::create(&path).unwrap();
    let old = local.wrap("image 1", &secret()).await.unwrap();
    local.create("project").await.unwrap();
    let named = local.wrap_with(Some("project"), "bucket 1", &secret()).await.unwrap();
    let settings = server.settings(server.token_file("root"));
    KeyFile::change(&path, |file| {
        file.transit = Some(settings);
        Ok(())
    })
    .unwrap();

    let ring = KeyRing::open(&path).unwrap();
    ring.make_default_key().await.unwrap();
    assert_eq!(ring.unwrap("image 1", &old).await.unwrap(), secret());
    let new = ring.rewrap("image 1", &old).await.unwrap().expect("the local key wrapped it");
    assert!(new.starts_with("transit:"), "{new}");
    assert_eq!(ring.unwrap("image 1", &new).await.unwrap(), secret());
    assert_eq!(ring.rewrap("image 1", &new).await.unwrap(), None);
    // What a named key wrapped goes to the key of that name, and is lost with it.
    let named = ring.rewrap("bucket 1", &named).await.unwrap().expect("the local key wrapped it");
    assert!(named.starts_with("transit:project:"), "{named}");
    assert_eq!(ring.unwrap("bucket 1", &named).await.unwrap(), secret());
    assert_eq!(ring.list().await.unwrap().len(), 4);
    ring.destroy("project").await.unwrap();
    assert!(matches!(ring.unwrap("bucket 1", &named).await, Err(KeyError::NoSuchKey { .. })));
}

#[test]
fn plain_http_is_for_loopback_only() {
    let settings = |address: &str| TransitSettings {
        address: address.into(),
        mount: "transit".into(),
        key: "atoll".into(),
        namespace: None,
        ca_file: None,
        login: TransitLogin::TokenFile("/nowhere".into()),
        timeout_ms: 1,
    };
    assert!(Transit::new(settings("http://127.0.0.1:8200")).is_ok());
    for wrong in ["http://vault.example:8200", "vault.example", "ftp://127.0.0.1"] {
        assert!(Transit::new(settings(wrong)).is_err(), "{wrong}");
    }
}
