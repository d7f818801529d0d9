//! Joining, against the embedded server.

mod rights;

use std::path::PathBuf;

use atoll_cluster::EmbeddedServer;
use atoll_keys::LocalKeys;
use atoll_types::OsdId;
use atoll_types::events::{EventRecord, Severity};
use atoll_types::frames::{FrameModes, FramesRecord};
use atoll_types::hosts::{HostChange, HostRecord};
use atoll_types::identities::{AccountRecord, FIRST_ACCOUNT};
use atoll_types::join::JoinAnswer;
use atoll_types::records::{AuthorizedKeyRecord, ClusterRecord};

use super::*;
use crate::bootstrap::add_what_is_new;
use crate::members::{register_osds, reserve_osds};

struct Founded {
    _server: EmbeddedServer,
    cluster: ClusterFile,
    state: ClusterClient,
    temporary: tempfile::TempDir,
}

impl Founded {
    async fn new() -> Founded {
        Founded::with_login(None).await
    }

    /// With the user and the password of its cluster state.
    async fn with_login(login: Option<(&str, &str)>) -> Founded {
        let temporary = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let credentials = login.map(|(user, password)| (user.to_owned(), password.to_owned()));
        let directory = temporary.path().join("state");
        let server = EmbeddedServer::start(listener, &directory, credentials.clone()).await.unwrap();
        let text = format!(
            r#"{{"format":1,"cluster_id":"c1","state_endpoints":["http://{}"],"frame_mode":"crc","osd_ids":[],
            "osd_bytes":1073741824,"s3_listen":"","nbd_listen":[],"listen":"10.0.0.1"}}"#,
            server.local_addr()
        );
        let mut cluster: ClusterFile = serde_json::from_str(&text).unwrap();
        cluster.state_listen = Some(server.local_addr().to_string());
        (cluster.state_user, cluster.state_password) = credentials.unzip();
        let state = ClusterClient::connect(&cluster.connect_options()).await.unwrap();
        let record = ClusterRecord { format: 1, id: "c1".into(), frame_mode: FrameMode::Crc, created_unix_ms: 0 };
        state.create(keys::CLUSTER, &record).await.unwrap();
        Founded { _server: server, cluster, state, temporary }
    }

    async fn token(&self, role: HostRole, seconds: u64) -> JoinToken {
        create_token(&self.cluster, &self.state, role, Duration::from_secs(seconds), 1).await.unwrap()
    }

    fn directory(&self, name: &str) -> DataDir {
        let path: PathBuf = self.temporary.path().join(name);
        DataDir::new(&path)
    }

    async fn join(&self, name: &str, token: &JoinToken) -> Result<ClusterFile, String> {
        let listen = Some("10.0.0.9".parse().unwrap());
        let choices = Choices { host: Some(name.into()), listen, ..Choices::default() };
        join(&self.directory(name), token, &choices).await.map_err(|error| error.to_string())
    }

    async fn keys(&self) -> Vec<AuthorizedKeyRecord> {
        let listing = self.state.list(keys::AUTHORIZED_KEYS).await.unwrap();
        listing.entries.into_iter().map(|(_, record, _)| record).collect()
    }

    async fn key_names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.keys().await.into_iter().map(|key| key.name).collect();
        names.sort();
        names
    }
}

#[tokio::test]
async fn a_token_is_for_one_host() {
    let founded = Founded::new().await;
    let token = founded.token(HostRole::Host, 60).await;
    let token = JoinToken::from_text(&token.to_text()).unwrap();
    let joined = founded.join("one", &token).await.unwrap();
    assert_eq!((joined.cluster_id.as_str(), joined.host.as_str(), joined.role), ("c1", "one", HostRole::Host));
    assert_eq!(joined.frame_mode, FrameMode::Crc);
    assert!(joined.has_gateway_key);
    assert_eq!(founded.key_names().await, ["client@one", "gateway@one"]);

    assert_eq!(founded.join("one", &token).await.unwrap().joined_by, Some(token.id.clone()), "again is no error");
    let error = founded.join("two", &token).await.unwrap_err();
    assert!(error.contains("used by host 'one'"), "{error}");
    assert!(!founded.directory("two").has_cluster());
    let other = founded.token(HostRole::Host, 60).await;
    let error = founded.join("one", &other).await.unwrap_err();
    assert!(error.contains("already"), "{error}");
    // A join that was cut short before its file was written goes on with the same key.
    std::fs::remove_file(founded.directory("one").root().join("cluster.json")).unwrap();
    founded.join("one", &token).await.unwrap();
    assert_eq!(founded.keys().await.len(), 2);
}

/// Makes the keys of signed records, in place of those that there are; returns the public one.
async fn sign(founded: &Founded) -> String {
    let keys = LocalKeys::create(&founded.temporary.path().join(random_password())).unwrap();
    founded.state.delete(keys::AUTHORITY).await.unwrap();
    atoll_authority::found(&founded.state, &keys, 7).await.unwrap();
    match published(&founded.state, None).await.unwrap() {
        Published::Follows(key) => key,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_host_joins_no_cluster_with_another_key_than_its_token_names() {
    let mut founded = Founded::new().await;
    founded.cluster.signing_key = Some(sign(&founded).await);
    let (first, second) = (founded.token(HostRole::Osd, 60).await, founded.token(HostRole::Osd, 60).await);
    let first = JoinToken::from_text(&first.to_text()).unwrap();
    let joined = founded.join("one", &first).await.unwrap();
    assert_eq!((&joined.signing_key, joined.is_signed), (&founded.cluster.signing_key, false));
    // A writer of cluster state has put keys of his own there, or taken them away.
    sign(&founded).await;
    for by in ["by ", "by no key"] {
        let error = founded.join("two", &second).await.unwrap_err();
        let named = fingerprint(founded.cluster.signing_key.as_ref().unwrap()).unwrap();
        assert!(error.contains(by) && error.contains(&named) && error.contains("atoll host pin"), "{error}");
        assert!(!founded.directory("two").has_cluster());
        founded.state.delete(keys::AUTHORITY).await.unwrap();
    }
    // A token of an earlier release names none.
    founded.cluster.signing_key = None;
    let third = founded.token(HostRole::Osd, 60).await;
    assert_eq!(founded.join("three", &third).await.unwrap().signing_key, None);
}

/// Returns the request of a host that has read a token.
fn request(token: &JoinToken, host: &str) -> JoinRequest {
    JoinRequest {
        secret: token.secret.clone(),
        host: host.into(),
        public_key: hex::encode(random_bytes::<32>()),
        gateway_key: hex::encode(random_bytes::<32>()),
        password: random_password(),
    }
}

impl Founded {
    async fn ask(&self, token: &JoinToken, request: &JoinRequest) -> Result<JoinAnswer, ClusterError> {
        let mut options = self.cluster.connect_options();
        (options.user, options.password) = (None, None);
        ClusterClient::join_by_token(&options, &token.id, request).await
    }

    async fn events(&self) -> Vec<EventRecord> {
        let listing = self.state.list(keys::EVENTS).await.unwrap();
        listing.entries.into_iter().map(|(_, record, _)| record).collect()
    }

    async fn record(&self, token: &JoinToken) -> JoinTokenRecord {
        self.state.get(&keys::join_token(&token.id)).await.unwrap().unwrap().0
    }
}

/// A host has a user of its own. Neither a token nor the answer to it contains a password.
#[tokio::test]
async fn a_host_that_joins_gets_credentials_of_its_own() {
    let founded = Founded::with_login(Some(("root", "the password"))).await;
    let token = founded.token(HostRole::Osd, 60).await;
    let joined = founded.join("one", &token).await.unwrap();
    assert!(joined.state_user.as_ref().unwrap().starts_with("host-one-"), "{:?}", joined.state_user);
    assert_eq!((joined.state_password.as_ref().unwrap().len(), joined.role), (64, HostRole::Osd));
    assert!(joined.has_own_login() && !founded.directory("one").joining_file().exists());
    let own = ClusterClient::connect(&joined.connect_options()).await.unwrap();
    own.put(&keys::osd_usage(OsdId(7)), &1).await.unwrap();
    for key in [keys::SETTINGS, "/atoll/users/ATOLLX", "/atoll/authorized_keys/00", "/atoll/osds/7"] {
        assert!(matches!(own.put(key, &1).await, Err(ClusterError::Forbidden { .. })), "{key}");
    }
    assert!(matches!(own.list_raw(keys::IDENTITIES).await, Err(ClusterError::Forbidden { .. })));
    let (host, _) = founded.state.get::<HostRecord>(&keys::host("one")).await.unwrap().unwrap();
    assert_eq!((Some(&host.user), host.address.as_deref()), (joined.state_user.as_ref(), Some("127.0.0.1")));
    let events = founded.events().await;
    assert!(events[0].summary.contains("'one' joined as osd from 127.0.0.1"), "{events:?}");
}

#[tokio::test]
async fn only_a_token_that_is_worth_something_opens_cluster_state() {
    let founded = Founded::with_login(Some(("root", "the password"))).await;
    let used = founded.token(HostRole::Host, 60).await;
    founded.join("one", &used).await.unwrap();
    let expired = founded.token(HostRole::Osd, 0).await;
    let revoked = founded.token(HostRole::Host, 60).await;
    revoke_token(&founded.state, &revoked.id).await.unwrap();
    let mut forged = founded.token(HostRole::Host, 60).await;
    forged.secret = "0".repeat(64);
    let mut nameless = founded.token(HostRole::Host, 60).await;
    nameless.id = String::new();
    for (name, worthless) in [
        ("used", &used),
        ("expired", &expired),
        ("revoked", &revoked),
        ("forged", &forged),
        ("nameless", &nameless),
    ] {
        let refused = founded.ask(worthless, &request(worthless, name)).await;
        assert!(matches!(refused, Err(ClusterError::Authentication { .. })), "{name}: {refused:?}");
        let error = founded.join(name, worthless).await.unwrap_err();
        assert!(error.contains("refuses the join token"), "{name}: {error}");
        assert!(!founded.directory(name).has_cluster());
    }
}

/// A token once gave the password of all hosts to every caller, any number of times, and named only the last host
/// that reported its use.
#[tokio::test]
async fn a_thief_uses_a_token_in_plain_sight() {
    let founded = Founded::with_login(Some(("root", "the password"))).await;
    let token = founded.token(HostRole::Host, 60).await;
    let thief = request(&token, "thief");
    let answer = founded.ask(&token, &thief).await.unwrap();
    assert_eq!(founded.ask(&token, &thief).await.unwrap(), answer, "who did not hear the answer asks again");
    let with_another_password = JoinRequest { password: random_password(), ..thief.clone() };
    for again in [request(&token, "thief"), with_another_password, request(&token, "other")] {
        assert!(matches!(founded.ask(&token, &again).await, Err(ClusterError::Authentication { .. })));
    }
    assert!(founded.join("right", &token).await.unwrap_err().contains("atoll host revoke"));
    let record = founded.record(&token).await;
    let used_by = record.used_by.unwrap();
    assert_eq!((used_by.host.as_str(), used_by.address.as_deref()), ("thief", Some("127.0.0.1")));
    let refused = record.refused.unwrap();
    assert_eq!((refused.count, refused.address.as_str()), (4, "127.0.0.1"));
    let codes: Vec<_> = founded.events().await.into_iter().map(|event| (event.code, event.severity)).collect();
    let expected = [("HOST_JOINED".into(), Severity::Note), ("JOIN_TOKEN_REUSED".into(), Severity::Error)];
    assert_eq!(codes, expected, "of many refusals one is told in a minute");
    // One who knows a token's id and not its secret is not told in events: strangers would fill them.
    let mut stranger = request(&token, "stranger");
    stranger.secret = "0".repeat(64);
    founded.ask(&token, &stranger).await.unwrap_err();
    assert_eq!(founded.record(&token).await.refused.unwrap().count, 4);
}

#[tokio::test]
async fn a_token_is_for_as_many_hosts_as_it_says() {
    for login in [None, Some(("root", "the password"))] {
        let founded = Founded::with_login(login).await;
        let term = Duration::from_secs(60);
        let token = create_token(&founded.cluster, &founded.state, HostRole::Osd, term, 2).await.unwrap();
        founded.join("one", &token).await.unwrap();
        founded.join("two", &token).await.unwrap();
        assert!(founded.join("three", &token).await.is_err());
        let record = founded.record(&token).await;
        assert_eq!(record.users().map(|host| host.host.as_str()).collect::<Vec<_>>(), ["one", "two"]);
    }
}

#[tokio::test]
async fn the_name_of_a_host_that_is_there_is_refused() {
    let founded = Founded::with_login(Some(("root", "the password"))).await;
    let (first, second) = (founded.token(HostRole::Osd, 60).await, founded.token(HostRole::Osd, 60).await);
    founded.ask(&first, &request(&first, "one")).await.unwrap();
    let error = founded.join("one", &second).await.unwrap_err();
    assert!(error.contains("atoll host rm one"), "{error}");
    for name in ["", "a/b", "../x"] {
        assert!(matches!(founded.ask(&second, &request(&second, name)).await, Err(ClusterError::Refused { .. })));
    }
    founded.join("two", &second).await.unwrap();
}

/// An interrupted join resumes, after the token was used, with the password that it had drawn before.
#[tokio::test]
async fn a_join_goes_on_with_the_password_that_it_has_drawn() {
    let founded = Founded::with_login(Some(("root", "the password"))).await;
    let token = founded.token(HostRole::Host, 60).await;
    let directory = founded.directory("one");
    let joined = founded.join("one", &token).await.unwrap();
    std::fs::remove_file(directory.root().join("cluster.json")).unwrap();
    assert!(founded.join("one", &token).await.unwrap_err().contains("refuses the join token"));
    let joining = Joining { token: token.id.clone(), password: joined.state_password.unwrap() };
    write_secret(&directory.joining_file(), serde_json::to_string(&joining).unwrap().as_bytes()).unwrap();
    founded.join("one", &token).await.unwrap();
    assert!(!directory.joining_file().exists());
}

/// Credentials of an etcd are not in a token either.
#[tokio::test]
async fn a_user_of_an_etcd_is_brought() {
    let mut founded = Founded::with_login(Some(("root", "the password"))).await;
    founded.cluster.state_listen = None;
    let token = founded.token(HostRole::Host, 60).await;
    let error = founded.join("one", &token).await.unwrap_err();
    assert!(error.contains("--etcd-password-file"), "{error}");
    let file = founded.temporary.path().join("password");
    std::fs::write(&file, "the password\n").unwrap();
    let mut choices = Choices { host: Some("one".into()), ..Choices::default() };
    choices.etcd.user = Some(("root".into(), file));
    join(&founded.directory("one"), &token, &choices).await.unwrap();
}

#[tokio::test]
async fn worthless_tokens() {
    let founded = Founded::new().await;
    let mut forged = founded.token(HostRole::Host, 60).await;
    forged.secret = "0".repeat(64);
    let revoked = founded.token(HostRole::Host, 60).await;
    revoke_token(&founded.state, &revoked.id).await.unwrap();
    assert!(revoke_token(&founded.state, &revoked.id).await.is_err());
    let expired = founded.token(HostRole::Host, 0).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    let mut elsewhere = founded.token(HostRole::Host, 60).await;
    elsewhere.cluster_id = "c2".into();
    let cases = [
        ("forged", forged, "wrong secret"),
        ("revoked", revoked, "revoked"),
        ("expired", expired.clone(), "expired"),
        ("elsewhere", elsewhere, "another cluster"),
    ];
    for (name, token, words) in cases {
        let error = founded.join(name, &token).await.unwrap_err();
        assert!(error.contains(words), "{name}: {error}");
        assert!(!founded.directory(name).has_cluster());
    }
    assert!(founded.keys().await.is_empty());
    founded.token(HostRole::Host, 60).await;
    let left = list_tokens(&founded.state).await.unwrap();
    assert!(left.iter().all(|(id, _)| *id != expired.id), "expired tokens are swept");

    for text in ["", "atoll-join-2.", "atoll-join-2.e30", "atoll-join-2.%", "atoll-join-1.eyJ9"] {
        assert!(JoinToken::from_text(text).is_err(), "{text}");
    }
    let whole = founded.token(HostRole::Host, 60).await.to_text();
    assert!(JoinToken::from_text(&whole[..whole.len() - 9]).is_err());
}

#[tokio::test]
async fn roles_decide_which_keys_are_registered() {
    let founded = Founded::new().await;
    let osd_host = founded.join("osds", &founded.token(HostRole::Osd, 60).await).await.unwrap();
    assert!(founded.keys().await.is_empty(), "a host with OSDs only is no client");
    assert!(crate::members::check_may_have_osds(&osd_host).is_ok());
    let client = founded.join("clients", &founded.token(HostRole::Client, 60).await).await.unwrap();
    assert_eq!(founded.key_names().await, ["client@clients", "gateway@clients"]);
    assert!(crate::members::check_may_have_osds(&client).is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_that_come_at_once_get_different_numbers() {
    let founded = std::sync::Arc::new(Founded::new().await);
    let mut tasks = Vec::new();
    for name in ["a", "b", "c", "d"] {
        let cluster = founded.join(name, &founded.token(HostRole::Osd, 60).await).await.unwrap();
        let founded = founded.clone();
        tasks.push(tokio::spawn(async move {
            let directory = founded.directory(name);
            reserve_osds(&directory, &cluster, &founded.state, 5).await.unwrap()
        }));
    }
    let mut ids = Vec::new();
    for task in tasks {
        ids.extend(task.await.unwrap());
    }
    ids.sort_unstable();
    assert_eq!(ids, (0..20).map(OsdId).collect::<Vec<_>>());
    let keys = founded.keys().await;
    assert!(keys.len() == 20 && keys.iter().all(|key| key.role == PeerRole::Osd));
}

#[tokio::test]
async fn numbers_that_were_taken_are_taken_up_again() {
    let founded = Founded::new().await;
    let mut cluster = founded.join("a", &founded.token(HostRole::Osd, 60).await).await.unwrap();
    let directory = founded.directory("a");
    let first = reserve_osds(&directory, &cluster, &founded.state, 2).await.unwrap();
    let second = reserve_osds(&directory, &cluster, &founded.state, 3).await.unwrap();
    assert_eq!((first, &second), (vec![OsdId(0), OsdId(1)], &vec![OsdId(0), OsdId(1), OsdId(2)]));
    cluster.osd_ids = second;
    cluster.osd_bytes = 1 << 30;
    crate::devices::make_devices(&directory, &cluster, &cluster.osd_ids).unwrap();
    register_osds(&directory, &cluster, &founded.state).await.unwrap();
    for (_, record, _) in founded.state.list::<OsdRecord>(keys::OSDS).await.unwrap().entries {
        assert_eq!((record.device_bytes, record.host.as_str()), (1 << 30, "a"));
        assert!(record.weight > 0.0);
    }
    assert_eq!(reserve_osds(&directory, &cluster, &founded.state, 1).await.unwrap(), [OsdId(3)]);
}

#[tokio::test]
async fn a_token_of_a_host_that_nobody_reaches_is_refused() {
    let mut founded = Founded::new().await;
    founded.cluster.listen = None;
    let made = create_token(&founded.cluster, &founded.state, HostRole::Host, Duration::from_secs(9), 1).await;
    assert!(made.err().unwrap().to_string().contains("--listen"));
}

#[tokio::test]
async fn the_key_file_must_be_the_clusters() {
    let founded = Founded::new().await;
    let path = founded.temporary.path().join("kms.json");
    let service = LocalKeys::create(&path).unwrap();
    let (user, secret) = atoll_credentials::new_user(&service, "ATOLLX", "admin", 1).await.unwrap();
    founded.state.create(&keys::access_key("ATOLLX"), &user).await.unwrap();
    // Those of users are nobody else's.
    let (mut of_user, _) = atoll_credentials::new_user(&service, "AKIAOFUSER", "alice", 0).await.unwrap();
    (of_user.account, of_user.user) = (Some(FIRST_ACCOUNT.into()), Some("alice".into()));
    founded.state.create(&keys::access_key("AKIAOFUSER"), &of_user).await.unwrap();
    let other = founded.temporary.path().join("other.json");
    LocalKeys::create(&other).unwrap();
    let token = founded.token(HostRole::Client, 60).await;
    let directory = founded.directory("a");
    let choices = |path: PathBuf| Choices { key_service: Some(path), ..Choices::default() };
    let error = join(&directory, &token, &choices(other)).await.unwrap_err().to_string();
    assert!(error.contains("is not the key file of this cluster"), "{error}");
    join(&directory, &token, &choices(path)).await.unwrap();
    assert_eq!(directory.credentials().unwrap().secret_key, secret);

    // A cluster of an earlier release has no record of its account.
    let account = keys::account(FIRST_ACCOUNT);
    assert!(founded.state.get::<AccountRecord>(&account).await.unwrap().is_none());
    let mut cluster = directory.cluster().unwrap();
    for _ in 0..2 {
        add_what_is_new(&directory, &mut cluster, &founded.state).await.unwrap();
        let (record, _) = founded.state.get::<AccountRecord>(&account).await.unwrap().unwrap();
        assert_eq!((record.canonical_id.as_str(), record.name.as_str()), ("ATOLLX", "admin"));
    }
    LocalKeys::open(&directory.key_service_file()).unwrap();
}

#[tokio::test]
async fn a_host_of_an_earlier_release_gets_a_gateway_key_once() {
    let founded = Founded::new().await;
    let mut cluster = founded.join("one", &founded.token(HostRole::Host, 60).await).await.unwrap();
    let directory = founded.directory("one");
    let revoke = async |holder: &str| {
        let key = hex::encode(directory.static_key(holder).unwrap().public());
        assert!(founded.state.delete(&keys::authorized_key(&key)).await.unwrap());
    };
    // As it was: one key for all, and the frame mode only in files.
    revoke("gateway").await;
    cluster.has_gateway_key = false;
    add_what_is_new(&directory, &mut cluster, &founded.state).await.unwrap();
    assert!(cluster.has_gateway_key && directory.cluster().unwrap().has_gateway_key);
    assert_eq!(founded.key_names().await, ["client@one", "gateway@one"]);
    let (frames, _) = founded.state.get::<FramesRecord>(keys::FRAMES).await.unwrap().unwrap();
    assert_eq!(frames.modes, FrameModes::all(FrameMode::Crc));
    // What was revoked stays so, and whoever was shut out gets nothing new.
    revoke("gateway").await;
    add_what_is_new(&directory, &mut cluster, &founded.state).await.unwrap();
    assert_eq!(founded.key_names().await, ["client@one"]);
    revoke("client").await;
    cluster.has_gateway_key = false;
    add_what_is_new(&directory, &mut cluster, &founded.state).await.unwrap();
    assert!(founded.keys().await.is_empty() && !cluster.has_gateway_key);
    assert_eq!(cluster.gateway_key_holder(), "client");
}
