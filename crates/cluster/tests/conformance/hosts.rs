//! The users of hosts have the rights in the table of roles and no others, on both servers.

use atoll_cluster::roles::{KINDS, Kind, Role, own_grants, roles_of};
use atoll_cluster::{ClusterClient, ClusterError, Transaction, keys};
use atoll_types::join::HostRole;

use crate::servers::Server;

const HOST: &str = "h7";
const ROLES: [HostRole; 4] = [HostRole::Osd, HostRole::Gateway, HostRole::Client, HostRole::Host];

/// A key of a kind that is not the host's own.
fn key_of(kind: &Kind) -> String {
    if kind.keys.ends_with('/') { format!("{}x", kind.keys) } else { kind.keys.to_owned() }
}

fn is_allowed<T: std::fmt::Debug>(done: Result<T, ClusterError>, what: &str) -> bool {
    match done {
        Ok(_) => true,
        Err(ClusterError::Forbidden { .. }) => false,
        Err(error) => panic!("{what}: {error:?}"),
    }
}

async fn reads(client: &ClusterClient, key: &str) -> bool {
    is_allowed(client.without_guard().read_stored(&[key]).await, key)
}

async fn writes(client: &ClusterClient, key: &str) -> bool {
    let put = client.transact_sealed(&Transaction::new().put_bytes(key, b"1".to_vec())).await;
    let deleted = client.transact_sealed(&Transaction::new().delete(key)).await;
    let (puts, deletes) = (is_allowed(put, key), is_allowed(deleted, key));
    assert_eq!(puts, deletes, "{key}");
    puts
}

pub async fn all(server: &Server) {
    let mut anyone = server.etcd_client().await;
    anyone.user_add("root", "root's", None).await.unwrap();
    anyone.user_grant_role("root", "root").await.unwrap();
    let maker = server.client().await;
    for role in ROLES {
        maker.make_user(&format!("a {role}"), "its own", roles_of(role), &own_grants(HOST)).await.unwrap();
    }
    anyone.auth_enable().await.unwrap();
    for role in ROLES {
        let options = server.connect_options().with_user(format!("a {role}"), "its own");
        let client = ClusterClient::connect(&options).await.unwrap();
        let roles = roles_of(role);
        let has = |some: &[Role]| roles.contains(&Role::Admin) || some.iter().any(|one| roles.contains(one));
        for kind in &KINDS {
            let key = key_of(kind);
            assert_eq!(reads(&client, &key).await, has(kind.readers), "{role} reads {key}");
            // Of these the embedded server looks at the host and the hour, too.
            if kind.keys == keys::AUDIT_HEADS {
                continue;
            }
            assert_eq!(writes(&client, &key).await, has(kind.writers), "{role} writes {key}");
            if kind.is_own {
                let own = format!("{}{HOST}", kind.keys);
                assert!(reads(&client, &own).await && writes(&client, &own).await, "{role}: {own}");
            }
        }
        let is_admin = roles.contains(&Role::Admin);
        assert_eq!(writes(&client, "/atoll/a_kind_of_a_later_release/x").await, is_admin, "{role}");
        assert!(!reads(&client, "/elsewhere").await && !writes(&client, "/elsewhere").await, "{role}");
        assert!(client.users().await.is_err() && client.remove_user("root").await.is_err(), "{role}");
    }
}
