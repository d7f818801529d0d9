//! Reading, writing and deleting keys.

use etcd_client::{Client, DeleteOptions, Error, GetOptions, GetResponse, PutOptions, SortOrder, SortTarget};
use tonic::Code;

use crate::servers::Server;

pub async fn all(server: &Server) {
    let mut client = server.etcd_client().await;
    versions_and_revisions(&mut client).await;
    ranges(&mut client).await;
    refusals(&mut client).await;
    deletes(&mut client).await;
    let status = client.status().await.unwrap();
    assert!(status.version().starts_with("3.") && status.leader() != 0);
    let members = client.member_list().await.unwrap();
    assert_eq!(members.members().len(), 1);
    assert_eq!(members.members()[0].client_urls(), [server.endpoint()]);
}

pub fn code<T: std::fmt::Debug>(result: Result<T, Error>) -> (Code, String) {
    match result.unwrap_err() {
        Error::GRpcStatus(status) => (status.code(), status.message().to_owned()),
        other => panic!("{other:?}"),
    }
}

fn names(response: &GetResponse) -> String {
    let keys: Vec<_> = response.kvs().iter().map(|entry| entry.key_str().unwrap()).collect();
    keys.join(" ")
}

async fn versions_and_revisions(client: &mut Client) {
    let start = client.get("absent", None).await.unwrap();
    assert!(start.kvs().is_empty() && start.count() == 0 && !start.more());
    let revision = start.header().unwrap().revision();
    assert_eq!(revision, 1, "a new store is at revision 1");
    assert!(start.header().unwrap().cluster_id() != 0 && start.header().unwrap().raft_term() > 0);

    let first = client.put("k", "one", Some(PutOptions::new().with_prev_key())).await.unwrap();
    assert!(first.prev_key().is_none());
    assert_eq!(first.header().unwrap().revision(), revision + 1);
    let second = client.put("k", "two", Some(PutOptions::new().with_prev_key())).await.unwrap();
    assert_eq!(second.prev_key().unwrap().value(), b"one");
    let kept = client.put("k", "", Some(PutOptions::new().with_ignore_value())).await.unwrap();
    assert!(kept.prev_key().is_none());

    let read = client.get("k", None).await.unwrap();
    let entry = &read.kvs()[0];
    assert_eq!((entry.create_revision(), entry.mod_revision(), entry.version()), (2, 4, 3));
    assert_eq!((entry.value(), entry.lease()), (&b"two"[..], 0));

    assert_eq!(client.delete("k", None).await.unwrap().deleted(), 1);
    let nothing = client.delete("k", None).await.unwrap();
    assert_eq!((nothing.deleted(), nothing.header().unwrap().revision()), (0, 5));
    client.put("k", "again", None).await.unwrap();
    let entry = client.get("k", None).await.unwrap().take_kvs().remove(0);
    assert_eq!((entry.create_revision(), entry.mod_revision(), entry.version()), (6, 6, 1));
}

async fn ranges(client: &mut Client) {
    for (key, value) in [("r/a", "3"), ("r/b", "1"), ("r/c", "2"), ("s", "0")] {
        client.put(key, value, None).await.unwrap();
    }
    client.put("r/a", "4", None).await.unwrap();
    let prefix = || GetOptions::new().with_prefix();
    let mut get = async |options| client.get("r/", Some(options)).await.unwrap();
    assert_eq!(names(&get(prefix()).await), "r/a r/b r/c");
    assert_eq!(names(&get(GetOptions::new().with_range("r/c")).await), "r/a r/b");
    assert_eq!(names(&get(GetOptions::new().with_from_key()).await), "r/a r/b r/c s");
    assert_eq!(names(&get(GetOptions::new().with_range("a")).await), "");

    let limited = get(prefix().with_limit(2)).await;
    assert_eq!((names(&limited).as_str(), limited.more(), limited.count()), ("r/a r/b", true, 3));
    let exact = get(prefix().with_limit(3)).await;
    assert_eq!((names(&exact).as_str(), exact.more()), ("r/a r/b r/c", false));
    let count = get(prefix().with_count_only()).await;
    assert_eq!((count.kvs().len(), count.count()), (0, 3));
    let keys = get(prefix().with_keys_only()).await;
    assert!(keys.kvs().iter().all(|entry| entry.value().is_empty() && entry.mod_revision() > 0));

    for (target, order, expected) in [
        (SortTarget::Key, SortOrder::Descend, "r/c r/b r/a"),
        (SortTarget::Key, SortOrder::Ascend, "r/a r/b r/c"),
        (SortTarget::Mod, SortOrder::Ascend, "r/b r/c r/a"),
        (SortTarget::Create, SortOrder::Descend, "r/c r/b r/a"),
        (SortTarget::Value, SortOrder::Ascend, "r/b r/c r/a"),
        (SortTarget::Version, SortOrder::Descend, "r/a r/c r/b"),
    ] {
        let found = get(prefix().with_sort(target, order)).await;
        // Equal versions come in any order.
        if target != SortTarget::Version {
            assert_eq!(names(&found), expected, "{target:?} {order:?}");
        } else {
            assert!(names(&found).starts_with("r/a"));
        }
    }
    let last = get(prefix().with_sort(SortTarget::Key, SortOrder::Descend).with_limit(1)).await;
    assert_eq!((names(&last).as_str(), last.more(), last.count()), ("r/c", true, 3));
    let old = get(prefix().with_max_mod_revision(9)).await;
    assert_eq!((names(&old).as_str(), old.count()), ("r/b r/c", 3));
}

async fn refusals(client: &mut Client) {
    let before = client.get("s", None).await.unwrap().header().unwrap().revision();
    assert_eq!(code(client.put("", "v", None).await).0, Code::InvalidArgument);
    assert_eq!(code(client.get("", None).await).0, Code::InvalidArgument);
    assert_eq!(code(client.delete("", None).await).0, Code::InvalidArgument);
    let future = GetOptions::new().with_revision(1_000_000);
    assert_eq!(code(client.get("s", Some(future)).await).0, Code::OutOfRange);
    let lease = PutOptions::new().with_lease(4711);
    let refusal = (Code::NotFound, "etcdserver: requested lease not found".to_owned());
    assert_eq!(code(client.put("s", "v", Some(lease)).await), refusal);
    let absent = PutOptions::new().with_ignore_value();
    assert_eq!(code(client.put("absent", "", Some(absent)).await).0, Code::InvalidArgument);
    assert_eq!(code(client.compact(1_000_000, None).await).0, Code::OutOfRange);
    client.compact(4, None).await.unwrap();
    assert_eq!(code(client.compact(4, None).await).0, Code::OutOfRange);
    let compacted = GetOptions::new().with_revision(2);
    assert_eq!(code(client.get("s", Some(compacted)).await).0, Code::OutOfRange);
    let after = client.get("s", None).await.unwrap().header().unwrap().revision();
    assert_eq!(before, after, "refused requests make no revision");
}

async fn deletes(client: &mut Client) {
    let options = DeleteOptions::new().with_range("r/c").with_prev_key();
    let response = client.delete("r/", Some(options)).await.unwrap();
    let keys: Vec<_> = response.prev_kvs().iter().map(|entry| entry.key_str().unwrap()).collect();
    assert_eq!((response.deleted(), keys), (2, vec!["r/a", "r/b"]));
    let options = DeleteOptions::new().with_prefix();
    assert_eq!(client.delete("r/", Some(options)).await.unwrap().deleted(), 1);
}
