//! Users, roles and permissions: the same calls have the same results on both servers.

use etcd_client::{
    Client, Compare, CompareOp, ConnectOptions, DeleteOptions, Error, GetOptions, Permission, PutOptions,
    RoleRevokePermissionOptions, Txn, TxnOp, WatchOptions,
};
use tonic::Code;

use crate::keys::code;
use crate::servers::Server;

type Refusal = (Code, String);

fn refusal(code: Code, text: &str) -> Refusal {
    (code, format!("etcdserver: {text}"))
}

fn denied() -> Refusal {
    refusal(Code::PermissionDenied, "permission denied")
}

fn is_denied<T: std::fmt::Debug>(result: Result<T, Error>) -> bool {
    code(result) == denied()
}

async fn log_in(server: &Server, user: &str, password: &str) -> Result<Client, Error> {
    let options = ConnectOptions::new().with_user(user, password);
    let options = match server.tls_options() {
        Some(tls) => options.with_tls(tls),
        None => options,
    };
    Client::connect([server.endpoint()], Some(options)).await
}

pub async fn all(server: &Server) {
    let mut anyone = server.etcd_client().await;
    users_and_roles(&mut anyone).await;
    anyone.put("/secret", "s", None).await.unwrap();
    anyone.put("/open/a", "1", None).await.unwrap();
    let precondition = |text: &str| refusal(Code::FailedPrecondition, text);
    assert_eq!(code(anyone.auth_enable().await), precondition("root user does not exist"));
    anyone.user_add("root", "root's", None).await.unwrap();
    assert_eq!(code(anyone.auth_enable().await), precondition("root user does not have root role"));
    anyone.user_grant_role("root", "root").await.unwrap();
    anyone.auth_enable().await.unwrap();
    let mut root = log_in(server, "root", "root's").await.unwrap();
    root.auth_enable().await.unwrap();

    let refused = log_in(server, "reader", "wrong").await.map(drop);
    let reason = "authentication failed, invalid user ID or password";
    assert_eq!(code(refused), refusal(Code::InvalidArgument, reason));
    assert_eq!(code(log_in(server, "nobody", "").await.map(drop)), refusal(Code::InvalidArgument, reason));
    reads_and_writes(&mut root, server).await;
    transactions(server).await;
    leases(&mut root, server).await;
    a_lease_without_keys_is_its_owners(&mut root, server).await;
    watches(server).await;
    management(&mut root, server).await;
    changes_take_effect(&mut root, server).await;
    root.auth_disable().await.unwrap();
    anyone.get("/secret", None).await.unwrap();
}

/// Without authentication anyone manages them.
async fn users_and_roles(client: &mut Client) {
    let precondition = |text: &str| refusal(Code::FailedPrecondition, text);
    client.user_add("reader", "reader's", None).await.unwrap();
    client.user_add("writer", "writer's", None).await.unwrap();
    assert_eq!(code(client.user_add("reader", "x", None).await), precondition("user name already exists"));
    assert_eq!(code(client.user_add("", "x", None).await), refusal(Code::InvalidArgument, "user name is empty"));
    assert_eq!(code(client.user_get("nobody").await), precondition("user name not found"));
    assert_eq!(code(client.user_delete("nobody").await), precondition("user name not found"));
    assert_eq!(code(client.user_change_password("nobody", "x").await), precondition("user name not found"));
    assert_eq!(code(client.user_grant_role("nobody", "r").await), precondition("user name not found"));
    assert_eq!(code(client.user_grant_role("reader", "r").await), precondition("role name not found"));
    assert_eq!(
        code(client.user_revoke_role("reader", "r").await),
        precondition("role is not granted to the user")
    );
    for role in ["write", "read", "gone"] {
        client.role_add(role).await.unwrap();
    }
    assert_eq!(code(client.role_add("read").await), precondition("role name already exists"));
    assert_eq!(code(client.role_get("nothing").await), precondition("role name not found"));
    assert_eq!(code(client.role_delete("nothing").await), precondition("role name not found"));
    let open = Permission::read("/open/").with_prefix();
    assert_eq!(
        code(client.role_grant_permission("nothing", open.clone()).await),
        precondition("role name not found")
    );
    client.role_grant_permission("read", Permission::read("/one")).await.unwrap();
    client.role_grant_permission("read", open.clone()).await.unwrap();
    client.role_grant_permission("write", Permission::read_write("/open/").with_prefix()).await.unwrap();
    client.role_grant_permission("write", Permission::write("/drop/").with_prefix()).await.unwrap();
    client.role_grant_permission("write", Permission::read("/one")).await.unwrap();
    // Given again it replaces.
    client.role_grant_permission("write", Permission::write("/one")).await.unwrap();
    let given = client.role_get("write").await.unwrap().permissions();
    let keys: Vec<_> = given.iter().map(|one| (one.key_str().unwrap().to_owned(), one.get_type())).collect();
    assert_eq!(keys, [("/drop/".into(), 1), ("/one".into(), 1), ("/open/".to_owned(), 2)]);
    assert_eq!(
        code(client.role_revoke_permission("read", "/other", None).await),
        precondition("permission is not granted to the role")
    );
    // The end is a part of what was granted.
    assert_eq!(
        code(client.role_revoke_permission("read", "/open/", None).await),
        precondition("permission is not granted to the role")
    );
    let prefix = Some(RoleRevokePermissionOptions::new().with_prefix());
    client.role_revoke_permission("read", "/open/", prefix).await.unwrap();
    client.role_grant_permission("read", open).await.unwrap();
    client.user_grant_role("reader", "read").await.unwrap();
    client.user_grant_role("reader", "read").await.unwrap();
    client.user_grant_role("reader", "gone").await.unwrap();
    client.user_grant_role("writer", "write").await.unwrap();
    assert_eq!(client.user_get("reader").await.unwrap().roles(), ["gone", "read"]);
    client.role_delete("gone").await.unwrap();
    assert_eq!(client.user_get("reader").await.unwrap().roles(), ["read"]);
    assert_eq!(client.user_list().await.unwrap().users(), ["reader", "writer"]);
    assert_eq!(client.role_list().await.unwrap().roles(), ["read", "write"]);
}

async fn reads_and_writes(root: &mut Client, server: &Server) {
    root.put("/open/b", "2", None).await.unwrap();
    root.put("/one", "1", None).await.unwrap();
    let mut reader = log_in(server, "reader", "reader's").await.unwrap();
    let all_open = Some(GetOptions::new().with_prefix());
    assert_eq!(reader.get("/open/", all_open.clone()).await.unwrap().count(), 2);
    assert_eq!(reader.get("/one", None).await.unwrap().count(), 1);
    for (key, end) in
        [("/secret", ""), ("/open", ""), ("/one\0", ""), ("/", "0"), ("/one", "/open0"), ("/open/", "/p")]
    {
        let options = (!end.is_empty()).then(|| GetOptions::new().with_range(end));
        assert!(is_denied(reader.get(key, options).await), "{key} {end}");
    }
    assert!(is_denied(reader.get("", Some(GetOptions::new().with_all_keys())).await));
    assert!(is_denied(reader.get("/open/a", Some(GetOptions::new().with_from_key())).await));
    assert!(is_denied(reader.get("/secret", Some(GetOptions::new().with_count_only())).await));
    assert!(is_denied(reader.put("/open/a", "x", None).await));
    assert!(is_denied(reader.delete("/open/a", None).await));

    let mut writer = log_in(server, "writer", "writer's").await.unwrap();
    writer.put("/open/c", "3", Some(PutOptions::new().with_prev_key())).await.unwrap();
    writer.put("/drop/a", "1", None).await.unwrap();
    assert!(is_denied(writer.get("/drop/a", None).await), "who may write may not read");
    assert!(is_denied(writer.put("/drop/a", "2", Some(PutOptions::new().with_prev_key())).await));
    assert!(is_denied(writer.delete("/drop/a", Some(DeleteOptions::new().with_prev_key())).await));
    assert!(is_denied(writer.delete("/", Some(DeleteOptions::new().with_prefix())).await));
    writer.delete("/open/c", Some(DeleteOptions::new().with_prev_key())).await.unwrap();
    writer.delete("/drop/", Some(DeleteOptions::new().with_prefix())).await.unwrap();
}

/// Every part of a transaction is looked at, in whichever branch.
async fn transactions(server: &Server) {
    let mut writer = log_in(server, "writer", "writer's").await.unwrap();
    let put = || TxnOp::put("/open/t", "1", None);
    let is_there = |key: &str| vec![Compare::version(key, CompareOp::Greater, 0)];
    writer.txn(Txn::new().when(is_there("/open/a")).and_then([put()]).or_else([put()])).await.unwrap();
    let cases = [
        Txn::new().when(is_there("/secret")).and_then([put()]),
        Txn::new().when(is_there("/drop/a")).and_then([put()]),
        Txn::new().and_then([put(), TxnOp::put("/secret", "x", None)]),
        Txn::new().and_then([put(), TxnOp::get("/secret", None)]),
        Txn::new().and_then([put(), TxnOp::delete("/secret", None)]),
        Txn::new().and_then([put()]).or_else([TxnOp::put("/secret", "x", None)]),
        Txn::new().and_then([TxnOp::get("/open/a", None), TxnOp::get("/secret", None)]),
    ];
    for (number, case) in cases.into_iter().enumerate() {
        assert!(is_denied(writer.txn(case).await), "{number}");
    }
    if server.is_embedded() {
        // Etcd 3.4 does not look into nested transactions.
        let inner = Txn::new().and_then([TxnOp::put("/secret", "x", None)]);
        assert!(is_denied(writer.txn(Txn::new().and_then([TxnOp::txn(inner)])).await));
        let inner = Txn::new().or_else([TxnOp::get("/secret", None)]);
        assert!(is_denied(writer.txn(Txn::new().and_then([TxnOp::txn(inner)])).await));
    } else {
        let inner = Txn::new().and_then([TxnOp::get("/secret", None)]);
        let told = writer.txn(Txn::new().and_then([TxnOp::txn(inner)])).await;
        assert!(
            told.is_ok(),
            "this etcd asks for nested transactions, too: the threat model may say so: {told:?}"
        );
    }
}

/// A lease without keys is its owner's.
async fn a_lease_without_keys_is_its_owners(root: &mut Client, server: &Server) {
    let mut writer = log_in(server, "writer", "writer's").await.unwrap();
    let mut reader = log_in(server, "reader", "reader's").await.unwrap();
    let of_root = root.lease_grant(60, None).await.unwrap().id();
    let of_writer = writer.lease_grant(60, None).await.unwrap().id();
    if !server.is_embedded() {
        // An etcd asks for nothing: the page of rights says so.
        reader.lease_revoke(of_writer).await.unwrap();
        writer.lease_revoke(of_root).await.unwrap();
        return;
    }
    for (mut other, lease) in [(writer.clone(), of_root), (reader.clone(), of_writer), (reader.clone(), of_root)] {
        assert!(is_denied(other.lease_revoke(lease).await));
        assert!(is_denied(other.lease_keep_alive(lease).await.map(drop)));
        assert!(is_denied(other.lease_time_to_live(lease, None).await));
        let leases = other.leases().await.unwrap();
        assert!(leases.leases().iter().all(|known| known.id() != lease), "{leases:?}");
    }
    let with_lease = Some(PutOptions::new().with_lease(of_root));
    assert!(is_denied(writer.put("/open/m", "x", with_lease).await));
    assert_eq!(writer.lease_time_to_live(of_writer, None).await.unwrap().granted_ttl(), 60);
    assert_eq!(writer.leases().await.unwrap().leases().len(), 1);
    writer.lease_keep_alive(of_writer).await.unwrap();
    // Who may read its keys sees how long they stay, and ends nothing.
    writer.put("/open/m", "x", Some(PutOptions::new().with_lease(of_writer))).await.unwrap();
    assert_eq!(reader.lease_time_to_live(of_writer, None).await.unwrap().granted_ttl(), 60);
    assert!(is_denied(reader.lease_revoke(of_writer).await));
    root.lease_revoke(of_writer).await.unwrap();
    root.lease_revoke(of_root).await.unwrap();
}

/// A lease has the same owners as its keys.
async fn leases(root: &mut Client, server: &Server) {
    let mut writer = log_in(server, "writer", "writer's").await.unwrap();
    let lease = root.lease_grant(60, None).await.unwrap().id();
    root.put("/leased", "x", Some(PutOptions::new().with_lease(lease))).await.unwrap();
    assert!(is_denied(writer.lease_revoke(lease).await));
    assert!(is_denied(writer.put("/open/l", "x", Some(PutOptions::new().with_lease(lease))).await));
    let own = writer.lease_grant(60, None).await.unwrap().id();
    writer.put("/open/l", "x", Some(PutOptions::new().with_lease(own))).await.unwrap();
    writer.lease_revoke(own).await.unwrap();
    if server.is_embedded() {
        // Etcd asks for none of this.
        assert!(is_denied(writer.lease_keep_alive(lease).await.map(drop)), "a lease of others is not kept alive");
        assert!(writer.lease_grant(3_601, None).await.is_err(), "it would outlast a revoked user by too long");
        assert!(is_denied(writer.compact(1, None).await));
    }
    root.lease_revoke(lease).await.unwrap();
}

async fn watches(server: &Server) {
    let mut reader = log_in(server, "reader", "reader's").await.unwrap();
    let prefix = || Some(WatchOptions::new().with_prefix());
    let mut stream = reader.watch("/secret", prefix()).await.unwrap();
    let refusal = stream.message().await.unwrap().unwrap();
    assert!(
        refusal.canceled() && refusal.cancel_reason().contains("etcdserver: permission denied"),
        "{refusal:?}"
    );
    let mut stream = reader.watch("/open/", prefix()).await.unwrap();
    let mut writer = log_in(server, "writer", "writer's").await.unwrap();
    writer.put("/open/w", "1", None).await.unwrap();
    loop {
        let response = stream.message().await.unwrap().unwrap();
        assert!(!response.canceled());
        if let Some(event) = response.events().first() {
            assert_eq!(event.kv().unwrap().key_str().unwrap(), "/open/w");
            break;
        }
    }
}

/// Only the role root manages users and roles; everyone may look at himself.
async fn management(root: &mut Client, server: &Server) {
    let mut reader = log_in(server, "reader", "reader's").await.unwrap();
    assert!(is_denied(reader.user_add("x", "x", None).await));
    assert!(is_denied(reader.user_delete("writer").await));
    assert!(is_denied(reader.user_change_password("reader", "x").await));
    assert!(is_denied(reader.user_grant_role("reader", "root").await));
    assert!(is_denied(reader.user_revoke_role("reader", "read").await));
    assert!(is_denied(reader.user_list().await));
    assert!(is_denied(reader.user_get("writer").await));
    assert!(is_denied(reader.role_add("x").await));
    assert!(is_denied(reader.role_delete("read").await));
    assert!(is_denied(reader.role_list().await));
    assert!(is_denied(reader.role_get("write").await));
    assert!(is_denied(reader.role_grant_permission("read", Permission::read("/secret")).await));
    assert!(is_denied(reader.role_revoke_permission("read", "/one", None).await));
    assert!(is_denied(reader.auth_disable().await));
    // An etcd says so as it begins to send, in a text of its own.
    let taken = match reader.snapshot().await {
        Ok(mut pieces) => pieces.message().await.map(|_| ()),
        Err(error) => Err(error),
    };
    assert!(code(taken).1.ends_with("permission denied"));
    assert_eq!(reader.user_get("reader").await.unwrap().roles(), ["read"]);
    assert_eq!(reader.role_get("read").await.unwrap().permissions().len(), 2);

    let management = refusal(Code::InvalidArgument, "invalid auth management");
    assert_eq!(code(root.user_delete("root").await), management);
    assert_eq!(code(root.user_revoke_role("root", "root").await), management);
    assert_eq!(code(root.role_delete("root").await), management);

    if !server.is_embedded() && server.tls_options().is_some() {
        // An etcd takes the name in a client's certificate for a user's.
        return;
    }
    let mut nobody = server.etcd_client().await;
    let nameless = refusal(Code::InvalidArgument, "user name is empty");
    assert_eq!(code(nobody.user_list().await), nameless);
    assert_eq!(code(nobody.user_add("x", "x", None).await), nameless);
    assert_eq!(code(nobody.role_add("x").await), nameless);
}

/// Revoked rights are gone for logged-in users, too.
async fn changes_take_effect(root: &mut Client, server: &Server) {
    let mut reader = log_in(server, "reader", "reader's").await.unwrap();
    root.role_grant_permission("read", Permission::read("/secret")).await.unwrap();
    assert_eq!(reader.get("/secret", None).await.unwrap().count(), 1);
    root.user_revoke_role("reader", "read").await.unwrap();
    assert!(is_denied(reader.get("/one", None).await));
    root.user_grant_role("reader", "read").await.unwrap();
    reader.get("/one", None).await.unwrap();
    let void = refusal(Code::Unauthenticated, "invalid auth token");
    root.user_change_password("reader", "another").await.unwrap();
    assert_eq!(code(reader.get("/one", None).await), void);
    assert!(log_in(server, "reader", "reader's").await.is_err());
    let mut reader = log_in(server, "reader", "another").await.unwrap();
    reader.get("/one", None).await.unwrap();
    root.user_delete("reader").await.unwrap();
    assert_eq!(code(reader.get("/one", None).await), void);
    // One of the same name that is made later is somebody else.
    root.user_add("reader", "another", None).await.unwrap();
    assert_eq!(code(reader.get("/one", None).await), void);
    let mut reader = log_in(server, "reader", "another").await.unwrap();
    assert!(is_denied(reader.get("/one", None).await));
}

/// They are durable, and an owner does without.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_and_roles_survive_a_restart() {
    let mut server = Server::embedded().await;
    let mut anyone = server.etcd_client().await;
    anyone.user_add("root", "root's", None).await.unwrap();
    anyone.user_grant_role("root", "root").await.unwrap();
    anyone.user_add("reader", "reader's", None).await.unwrap();
    anyone.role_add("read").await.unwrap();
    anyone.role_grant_permission("read", Permission::read("/open/").with_prefix()).await.unwrap();
    anyone.user_grant_role("reader", "read").await.unwrap();
    anyone.auth_enable().await.unwrap();
    let mut reader = log_in(&server, "reader", "reader's").await.unwrap();
    let own = reader.lease_grant(60, None).await.unwrap().id();
    let of_root = log_in(&server, "root", "root's").await.unwrap().lease_grant(60, None).await.unwrap().id();
    server.restart_embedded().await;
    let mut reader = log_in(&server, "reader", "reader's").await.unwrap();
    reader.lease_keep_alive(own).await.unwrap();
    assert!(is_denied(reader.lease_revoke(of_root).await));
    reader.lease_revoke(own).await.unwrap();
    reader.get("/open/a", None).await.unwrap();
    assert!(is_denied(reader.get("/secret", None).await));
    let nobody = server.etcd_client().await.get("/open/a", None).await;
    assert_eq!(code(nobody).0, Code::Unauthenticated);
    let snapshot = log_in(&server, "root", "root's").await.unwrap().snapshot().await;
    assert!(snapshot.is_ok());
}

/// The owner's password is changed in the data directory while the server runs: the new one is accepted, and from
/// then on the old one is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_owner_has_another_password() {
    use std::sync::{Arc, Mutex};

    use atoll_cluster::{ClusterClient, ClusterError, EmbeddedServer, LoginSource, Protection};

    let directory = tempfile::tempdir().unwrap();
    let written = Arc::new(Mutex::new("first".to_owned()));
    let source = written.clone();
    let login_source = LoginSource::new(move || vec![("root".to_owned(), source.lock().unwrap().clone())]);
    let protection = Protection {
        credentials: Some(("root".into(), "first".into())),
        login_source: Some(login_source.clone()),
        ..Protection::default()
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = EmbeddedServer::start(listener, directory.path(), protection).await.unwrap();
    let options = |password: &str| {
        let endpoint = format!("http://{}", server.local_addr());
        atoll_cluster::ConnectOptions::new([endpoint]).with_user("root", password)
    };
    let follows = ClusterClient::connect(&options("first").with_login_source(login_source)).await.unwrap();
    let does_not = ClusterClient::connect(&options("first")).await.unwrap();
    let refused = |result: Result<i64, ClusterError>| matches!(result, Err(ClusterError::Authentication { .. }));
    assert!(ClusterClient::connect(&options("second")).await.is_err());
    *written.lock().unwrap() = "second".into();
    does_not.put("/a", &1).await.unwrap();
    ClusterClient::connect(&options("second")).await.unwrap();
    assert!(refused(does_not.put("/a", &2).await));
    assert!(ClusterClient::connect(&options("first")).await.is_err());
    follows.put("/a", &3).await.unwrap();
    server.shutdown().await;
}
