//! How operators prove who they are.

use std::collections::BTreeMap;

use atoll_cluster::{ClusterClient, keys};
use atoll_coordinator::unix_ms;
use atoll_keys::{DEFAULT_KEY, KeyService, LocalKeys};
use atoll_types::login_oidc::{OidcIdentity, OidcRecord};
use atoll_types::operators::{OperatorRole, OperatorRoles, SessionRecord};

use super::{State, refusal};
use crate::approvals::{ProvedOperator, SecondProof};
use crate::login_oidc::{self, OidcChange, SecretChange};
use crate::operators::{self, Reach};
use crate::{second_factor, sessions, settings, totp, wrapped_secrets};

async fn current_code(client: &ClusterClient, service: &LocalKeys) -> String {
    let (operator, _) = operators::find(client, "ann").await.unwrap().unwrap();
    let begun = operator.totp.unwrap();
    let secret = service.unwrap(&second_factor::context(&begun.id), &begun.wrapped_secret).await.unwrap();
    totp::code(secret.expose(), totp::step_at(unix_ms()))
}

/// A password is no proof of an operator who has a second factor, wherever it is asked for.
#[tokio::test]
async fn a_password_needs_the_second_factor_of_its_operator() {
    let state = State::start().await;
    let (client, directory) = (&state.client, tempfile::tempdir().unwrap());
    let service = LocalKeys::create(&directory.path().join("kms.json")).unwrap();
    let password = "a long password";
    operators::create(client, "ann", &OperatorRole::Admin.into(), password, Reach::All).await.unwrap();
    second_factor::enrol(client, &service, "ann").await.unwrap();
    assert!(ProvedOperator::by_password(client, "ann", password, None).await.is_ok(), "it is not confirmed yet");
    let code = current_code(client, &service).await;
    let codes = second_factor::confirm(client, &service, "ann", &code).await.unwrap().unwrap();

    let prove = async |password: &str, code: Option<&str>| {
        let proof = code.map(|code| SecondProof { service: &service, code });
        ProvedOperator::by_password(client, "ann", password, proof).await
    };
    assert!(refusal(prove(password, None).await).contains("--code-file"));
    assert!(refusal(prove(password, Some("000000")).await).contains("code is wrong"));
    assert!(refusal(prove(password, Some(&code)).await).contains("used already"), "it has confirmed the secret");
    assert!(refusal(prove("another password", Some(&codes[0])).await).contains("password is another"));
    assert_eq!(prove(password, Some(&codes[0])).await.unwrap().name(), "ann");
    assert!(refusal(prove(password, Some(&codes[0])).await).contains("used already"), "it was good once");
}

fn first_change() -> OidcChange {
    OidcChange {
        issuer: Some("https://login.example/realms/a".into()),
        client_id: Some("atoll".into()),
        secret: SecretChange::New("the-secret-of-the-client".into()),
        roles: Some(BTreeMap::from([("disks".to_owned(), OperatorRoles::from(OperatorRole::Storage))])),
        console_urls: Some(vec!["https://console.example:8443".into()]),
        ..OidcChange::default()
    }
}

fn session_of(record: &OidcRecord, user: &str) -> SessionRecord {
    let now = unix_ms();
    let identity = OidcIdentity { subject: user.to_owned(), groups: record.known_groups(["disks"]) };
    SessionRecord {
        format: 1,
        user: user.to_owned(),
        stamp: record.stamp(),
        csrf_token: "t".into(),
        host: "h".into(),
        address: "::1".into(),
        created_unix_ms: now,
        used_unix_ms: now,
        expires_unix_ms: now + 60_000,
        oidc: Some(identity),
    }
}

#[tokio::test]
async fn a_secret_goes_to_the_issuer_for_which_it_was_given_only() {
    let state = State::start().await;
    let (client, directory) = (&state.client, tempfile::tempdir().unwrap());
    let service = LocalKeys::create(&directory.path().join("kms.json")).unwrap();
    for wrong in [
        OidcChange { issuer: None, ..first_change() },
        OidcChange { client_id: None, ..first_change() },
        OidcChange { roles: None, ..first_change() },
        OidcChange { console_urls: None, ..first_change() },
        OidcChange { secret: SecretChange::Keep, ..first_change() },
        OidcChange { secret: SecretChange::New("two words".into()), ..first_change() },
        OidcChange { skew_seconds: Some(301), ..first_change() },
        OidcChange { scopes: Some("profile".into()), ..first_change() },
        OidcChange { authorities_pem: Some("no certificate".into()), ..first_change() },
    ] {
        refusal(login_oidc::set(client, &service, &wrong).await);
    }
    assert!(login_oidc::find(client).await.unwrap().is_none());

    let record = login_oidc::set(client, &service, &first_change()).await.unwrap();
    let secret = login_oidc::open_secret(&service, &record).await.unwrap();
    assert_eq!(secret.as_deref(), Some("the-secret-of-the-client"));
    assert!(!serde_json::to_string(&record).unwrap().contains("the-secret"));
    let elsewhere = OidcChange { issuer: Some("https://evil.example".into()), ..OidcChange::default() };
    assert!(refusal(login_oidc::set(client, &service, &elsewhere).await).contains("--client-secret-file"));
    let moved = OidcRecord { issuer: "https://evil.example".into(), ..record.clone() };
    assert!(login_oidc::open_secret(&service, &moved).await.is_err(), "it opens for its issuer only");

    let skew = OidcChange { skew_seconds: Some(5), ..OidcChange::default() };
    let changed = login_oidc::set(client, &service, &skew).await.unwrap();
    assert_eq!((changed.skew_seconds, &changed.secret, &changed.roles), (5, &record.secret, &record.roles));
    assert_ne!(changed.stamp(), record.stamp(), "sessions end");
    service.rotate(DEFAULT_KEY).await.unwrap();
    let report = wrapped_secrets::rewrap_all(client, &service, &|_| {}).await.unwrap();
    assert_eq!((report.rewrapped, &report.failed[..]), (1, &[][..]));
    let (rewrapped, _) = login_oidc::find(client).await.unwrap().unwrap();
    assert_eq!(rewrapped.stamp(), changed.stamp(), "sessions go on");
    assert_eq!(login_oidc::open_secret(&service, &rewrapped).await.unwrap(), secret);
}

#[tokio::test]
async fn sessions_by_the_provider_end_with_its_record_and_by_commands() {
    let state = State::start().await;
    let (client, directory) = (&state.client, tempfile::tempdir().unwrap());
    let service = LocalKeys::create(&directory.path().join("kms.json")).unwrap();
    let record = login_oidc::set(client, &service, &first_change()).await.unwrap();
    let begin = async |id: &str, record: &OidcRecord, user: &str| {
        sessions::begin(client, id, &session_of(record, user)).await.unwrap();
        assert!(sessions::find(client, id).await.unwrap().is_some());
    };
    let [ann, bob, eve] = ["aaaaaaaaaa", "bbbbbbbbbb", "eeeeeeeeee"];
    begin(ann, &record, "oidc:ann").await;
    begin(bob, &record, "oidc:bob").await;
    assert_eq!(sessions::list(client).await.unwrap().len(), 2);
    assert_eq!(sessions::end_all(client, Some("oidc:ann")).await.unwrap(), ["oidc:ann"]);
    assert!(sessions::find(client, ann).await.unwrap().is_none());
    assert!(sessions::find(client, bob).await.unwrap().is_some());
    assert_eq!(sessions::end_all(client, None).await.unwrap(), ["oidc:bob"]);
    assert!(client.get::<SessionRecord>(&keys::operator_session(bob)).await.unwrap().is_none());

    begin(eve, &record, "oidc:eve").await;
    let roles = Some(BTreeMap::from([("disks".to_owned(), OperatorRole::ReadOnly.into())]));
    let changed = login_oidc::set(client, &service, &OidcChange { roles, ..OidcChange::default() }).await.unwrap();
    assert!(sessions::find(client, eve).await.unwrap().is_none(), "the mapping is another");
    begin(ann, &changed, "oidc:ann").await;
    login_oidc::remove(client).await.unwrap();
    assert!(
        sessions::find(client, ann).await.unwrap().is_none() && sessions::list(client).await.unwrap().is_empty()
    );
}

#[tokio::test]
async fn somebody_can_always_log_in() {
    let state = State::start().await;
    let (client, directory) = (&state.client, tempfile::tempdir().unwrap());
    let service = LocalKeys::create(&directory.path().join("kms.json")).unwrap();
    assert!(refusal(settings::set_local_login(client, false).await).contains("atoll operator oidc set"));
    login_oidc::set(client, &service, &first_change()).await.unwrap();
    settings::set_local_login(client, false).await.unwrap();
    assert!(!settings::read(client).await.unwrap().local_login);
    assert!(refusal(login_oidc::remove(client).await).contains("local_login true"));
    // The way back does not need the provider.
    client.delete(keys::LOGIN_OIDC).await.unwrap();
    settings::set_local_login(client, true).await.unwrap();
    assert!(settings::read(client).await.unwrap().local_login);
}
