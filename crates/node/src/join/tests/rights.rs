//! Rights of a host in cluster state, and revoking them.

use super::*;

/// Keys that a host of a role may not write, and prefixes that it may not read.
fn none_of_its_own(role: HostRole) -> (Vec<&'static str>, Vec<&'static str>) {
    let mut writes = vec![
        "settings",
        "frames",
        "flags",
        "cluster",
        "pools/1",
        "removed_pools/1",
        "osds/0",
        "authorized_keys/00",
        "operators/thief",
        "metrics_tokens/thief",
        "join_tokens/thief",
        "hosts/h1",
        "next_pool",
        "next_osd",
        "coordinator/leader",
        "coordinator/notes",
        "coordinator/auto_out/0",
        "events/0",
        "admin_servers/h1",
        "key_backups/h1",
        "images/thief",
        "removed_images/0",
        "image_locks/0",
        "image_watchers/0/0",
        "nvme_hosts/thief",
        "nvme_tls/thief",
        "a_kind_of_a_later_release",
        "",
    ];
    let mut reads = vec![
        "images/",
        "removed_images/",
        "image_locks/",
        "image_watchers/",
        "nvme_hosts/",
        "nvme_tls/",
        "join_tokens/",
        "events/",
        "next_pool",
        "",
    ];
    if role == HostRole::Osd {
        writes.extend([
            "buckets/b",
            "users/thief",
            "iam/sts_key",
            "iam/revision",
            "iam/accounts/1",
            "iam/users/1/thief",
            "access_keys_last_used/0",
        ]);
        reads.extend(["buckets/", "users/", "iam/", "access_keys_last_used/"]);
    } else {
        writes.extend([
            "pgs/1.0",
            "pg_targets/1.0",
            "pg_scrubs/1.0",
            "scrub_requests/1.0",
            "osd_up/0",
            "osd_usage/0",
            "osd_stores/0",
            "osd_failures/0",
            "osd_ends/0",
        ]);
        reads.push("next_osd");
    }
    (writes, reads)
}

/// More than 40 writes and reads with the credentials of an OSD host, and of a gateway host.
#[tokio::test]
async fn what_is_none_of_a_hosts_own_is_refused() {
    let founded = Founded::with_login(Some(("root", "the password"))).await;
    for role in [HostRole::Osd, HostRole::Gateway] {
        let host = founded.join(&role.to_string(), &founded.token(role, 60).await).await.unwrap();
        let own = ClusterClient::connect(&host.connect_options()).await.unwrap();
        let (writes, reads) = none_of_its_own(role);
        assert!(writes.len() + reads.len() >= 40, "{role}");
        for key in writes.into_iter().map(|key| format!("{}{key}", keys::ROOT)) {
            let put = own.put(&key, &1).await;
            assert!(matches!(put, Err(ClusterError::Forbidden { .. })), "{role} puts {key}: {put:?}");
            let swapped = own.transact(&Transaction::new().check(&key, 0).put(&key, &1).unwrap()).await;
            assert!(matches!(swapped, Err(ClusterError::Forbidden { .. })), "{role} swaps {key}: {swapped:?}");
            let deleted = own.delete(&key).await;
            assert!(matches!(deleted, Err(ClusterError::Forbidden { .. })), "{role} deletes {key}: {deleted:?}");
        }
        for key in reads.into_iter().map(|key| format!("{}{key}", keys::ROOT)) {
            let read = own.list_raw(&key).await;
            assert!(matches!(read, Err(ClusterError::Forbidden { .. })), "{role} reads {key}: {read:?}");
        }
        // Users are not its own either, nor is a copy of everything.
        assert!(matches!(own.users().await, Err(ClusterError::Forbidden { .. })));
        assert!(
            own.make_user("thief", "thief", &[], &[]).await.is_err() && own.remove_user("root").await.is_err()
        );
        assert!(own.snapshot(&mut Vec::new(), |_, _| {}).await.is_err());
        atoll_cluster::MapWatch::start(&own).await.unwrap();
    }
}

/// One call takes everything from a host; while it is cut off its processes are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_is_shut_out_by_one_call() {
    let founded = Founded::with_login(Some(("root", "the password"))).await;
    let host = founded.join("one", &founded.token(HostRole::Host, 60).await).await.unwrap();
    let running = ClusterClient::connect(&host.connect_options()).await.unwrap();
    running.put(keys::SETTINGS, &1).await.unwrap();
    let directory = founded.directory("one");
    reserve_osds(&directory, &host, &running, 1).await.unwrap();
    running.put(&keys::admin_server("one"), &1).await.unwrap();
    running.put(&keys::osd_up(OsdId(0)), &1).await.unwrap();
    let taken = atoll_admin::hosts::revoke(&founded.state, "one", |_| {}).await.unwrap();
    assert_eq!(taken.len(), 4, "{taken:?}");
    assert!(matches!(running.put(keys::SETTINGS, &2).await, Err(ClusterError::Authentication { .. })));
    assert!(founded.keys().await.is_empty());
    let (osd, _) = founded.state.get::<OsdRecord>(&keys::osd(OsdId(0))).await.unwrap().unwrap();
    assert!(osd.is_out && founded.state.get::<u8>(&keys::osd_up(OsdId(0))).await.unwrap().is_none());
    let hosts = atoll_admin::hosts::list(&founded.state).await.unwrap();
    let one = hosts.iter().find(|host| host.host == "one").unwrap();
    assert!(one.is_revoked && one.user.is_none() && one.keys == 0, "{one:?}");
    // Again is no error, and its name is free once its OSDs are gone.
    atoll_admin::hosts::revoke(&founded.state, "one", |_| {}).await.unwrap();
    assert!(atoll_admin::hosts::remove(&founded.state, "one").await.is_err());
    atoll_admin::osds::remove(&founded.state, OsdId(0), true).await.unwrap();
    atoll_admin::hosts::remove(&founded.state, "one").await.unwrap();
    let token = founded.token(HostRole::Osd, 60).await;
    founded.ask(&token, &request(&token, "one")).await.unwrap();
}

/// A host that joined with an earlier release logs in as all hosts did; it gets a user of its own, and then the password
/// that was shared is changed on the host that made the cluster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_shares_a_login_gets_one_of_its_own() {
    let founded = Founded::with_login(Some(("root", "the password"))).await;
    let joined = founded.join("one", &founded.token(HostRole::Osd, 60).await).await.unwrap();
    let directory = founded.directory("one");
    // As an earlier release has left it.
    founded.state.remove_user(joined.state_user.as_ref().unwrap()).await.unwrap();
    founded.state.delete(&keys::host("one")).await.unwrap();
    directory
        .change_cluster(|file| {
            (file.state_user, file.state_password) = (Some("root".into()), Some("the password".into()));
            file.state_tls.server_name = Some(crate::state_access::EMBEDDED_NAME.into());
            Ok(())
        })
        .unwrap();
    let running = ClusterClient::connect(&directory.cluster().unwrap().connect_options()).await.unwrap();
    running.put(keys::SETTINGS, &1).await.unwrap();
    let login = crate::rotate_login(&directory, &running).await.unwrap();
    assert!(matches!(login, crate::OtherLogin::Own(user) if user.starts_with("host-one-")));
    let own = ClusterClient::connect(&directory.cluster().unwrap().connect_options()).await.unwrap();
    own.put(&keys::osd_usage(OsdId(0)), &1).await.unwrap();
    assert!(matches!(own.put(keys::SETTINGS, &1).await, Err(ClusterError::Forbidden { .. })));
    let hosts = atoll_admin::hosts::list(&founded.state).await.unwrap();
    assert!(hosts.iter().any(|host| host.host == "one" && host.user.is_some()));
    assert!(directory.cluster().unwrap().has_own_login() && !directory.rotating_file().exists());
}

/// A host with OSDs only has cluster state write the records of its OSDs, and can take none of another's.
#[tokio::test]
async fn a_host_has_its_own_osds_only() {
    let founded = Founded::with_login(Some(("root", "the password"))).await;
    let mut one = founded.join("one", &founded.token(HostRole::Osd, 60).await).await.unwrap();
    let two = founded.join("two", &founded.token(HostRole::Osd, 60).await).await.unwrap();
    let directory = founded.directory("one");
    let state = ClusterClient::connect(&one.connect_options()).await.unwrap();
    one.osd_ids = reserve_osds(&directory, &one, &state, 2).await.unwrap();
    one.osd_bytes = 1 << 30;
    crate::devices::make_devices(&directory, &one, &one.osd_ids).unwrap();
    register_osds(&directory, &one, &state).await.unwrap();
    let (record, revision) = founded.state.get::<OsdRecord>(&keys::osd(OsdId(1))).await.unwrap().unwrap();
    assert_eq!((record.host.as_str(), record.device_bytes), ("one", 1 << 30));
    assert!(founded.keys().await.iter().all(|key| key.role == PeerRole::Osd && key.name.starts_with("osd.")));

    let ask = async |cluster: &ClusterFile, record: OsdRecord, revision: i64| {
        let change = HostChange::Osds { osds: vec![(record, revision)], next_osd_revision: None };
        ClusterClient::change_own(&cluster.connect_options(), change).await
    };
    let with = |edit: &dyn Fn(&mut OsdRecord)| {
        let mut record = record.clone();
        edit(&mut record);
        record
    };
    let forbidden = [
        (&two, record.clone(), revision),
        (&two, with(&|osd| osd.host = "two".into()), revision),
        (&one, with(&|osd| osd.host = "two".into()), revision),
        (&one, with(&|osd| osd.public_key = "0".repeat(64)), revision),
        (&one, with(&|osd| osd.is_out = true), revision),
        (&one, with(&|osd| osd.weight = f64::MAX * 2.0), revision),
        // The key of another process, in the place of which it would be one of an OSD.
        (&two, with(&|osd| (osd.id, osd.host) = (OsdId(9), "two".into())), 0),
    ];
    for (number, (cluster, record, revision)) in forbidden.into_iter().enumerate() {
        let asked = ask(cluster, record, revision).await;
        assert!(asked.is_err() && !matches!(asked, Err(ClusterError::Conflict { .. })), "{number}: {asked:?}");
    }
    assert!(matches!(ask(&one, record.clone(), revision - 1).await, Err(ClusterError::Conflict { .. })));
    ask(&one, with(&|osd| osd.store_id = "ab".into()), revision).await.unwrap();
}

/// Logged-in processes stay connected when the password of their host is changed, and so does a host that was cut
/// off meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_is_changed_without_a_stop() {
    let founded = Founded::with_login(Some(("root", "the password"))).await;
    let joined = founded.join("one", &founded.token(HostRole::Osd, 60).await).await.unwrap();
    let directory = founded.directory("one");
    let running = ClusterClient::connect(&directory.cluster().unwrap().connect_options()).await.unwrap();
    let mut watch = running.watch_prefix(keys::OSD_UP, 0);
    let lease = running.grant_lease(Duration::from_secs(2)).await.unwrap();
    running.put_with_lease(&keys::osd_up(OsdId(1)), &1, &lease).await.unwrap();
    crate::host_login::rotate_own(&directory).await.unwrap();
    let after = directory.cluster().unwrap();
    assert_ne!(after.state_password, joined.state_password);
    let mut old = joined.connect_options();
    old.login = None;
    assert!(matches!(ClusterClient::connect(&old).await, Err(ClusterError::Authentication { .. })));
    running.put(&keys::osd_usage(OsdId(1)), &1).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(*lease.status().borrow(), atoll_cluster::LeaseStatus::Held);
    running.put(&keys::osd_up(OsdId(2)), &1).await.unwrap();
    let heard = tokio::time::timeout(Duration::from_secs(5), async {
        while !matches!(watch.next().await, Some(atoll_cluster::WatchEvent::Put { key, .. }) if key.ends_with('2'))
        {
        }
    });
    heard.await.unwrap();

    // Cut off before cluster.json has it: whoever starts then finds it beside.
    let login =
        crate::host_login::Rotating { user: after.state_user.clone().unwrap(), password: random_password() };
    directory.announce_login(&login).unwrap();
    let change = HostChange::Password(login.password.clone());
    ClusterClient::change_own(&after.connect_options(), change).await.unwrap();
    ClusterClient::connect(&directory.cluster().unwrap().connect_options()).await.unwrap();
    let mut cluster = directory.cluster().unwrap();
    crate::host_login::finish_rotation(&directory, &mut cluster).await.unwrap();
    assert_eq!(directory.cluster().unwrap().state_password, Some(login.password));
    assert!(!directory.rotating_file().exists());
}

/// Hosts with OSDs that write under one prefix each write only for their own OSDs, and for the PGs of these.
#[tokio::test]
async fn an_osd_host_writes_of_its_own_osds_and_pgs_only() {
    let founded = Founded::with_login(Some(("root", "the password"))).await;
    let mut states = Vec::new();
    for (number, name) in ["one", "two"].into_iter().enumerate() {
        let host = founded.join(name, &founded.token(HostRole::Osd, 60).await).await.unwrap();
        let state = ClusterClient::connect(&host.connect_options()).await.unwrap();
        let osds = reserve_osds(&founded.directory(name), &host, &state, 1).await.unwrap();
        assert_eq!(osds, [OsdId(number as u32)]);
        states.push(state);
    }
    let record = |members: &[u32], last: &[u32], epoch: u64| {
        serde_json::json!({
            "format": 1, "epoch": epoch, "members": members, "primary": members[0],
            "activated_epoch": epoch, "last_active_members": last,
        })
    };
    let key = |kind: &str, pg: &str| format!("{}{kind}/{pg}", keys::ROOT);
    let (mine, others) = (key("pgs", "1.0"), key("pgs", "1.1"));
    founded.state.put(&mine, &record(&[0], &[0], 3)).await.unwrap();
    founded.state.put(&others, &record(&[1], &[1], 3)).await.unwrap();
    let one = &states[0];
    let forbidden = |done: Result<i64, ClusterError>, what: &str| {
        assert!(matches!(done, Err(ClusterError::Forbidden { .. })), "{what}: {done:?}");
    };

    // A PG of its own it configures, but to no earlier epoch, and it cannot remove its record.
    one.put(&mine, &record(&[0, 1], &[0], 4)).await.unwrap();
    forbidden(one.put(&mine, &record(&[0], &[0], 3)).await, "an earlier epoch");
    forbidden(one.put(&mine, &1).await, "no record of a PG");
    assert!(matches!(one.delete(&mine).await, Err(ClusterError::Forbidden { .. })));
    // Neither can it take another's, nor one that is nobody's.
    for other in [&others, &key("pgs", "2.0"), &key("pgs", "1.x")] {
        forbidden(one.put(other, &record(&[0], &[0], 9)).await, other);
        assert!(matches!(one.delete(other).await, Err(ClusterError::Forbidden { .. })), "{other}");
    }
    for kind in ["pg_targets", "pg_scrubs", "scrub_requests"] {
        one.put(&key(kind, "1.0"), &1).await.unwrap();
        forbidden(one.put(&key(kind, "1.1"), &1).await, kind);
    }
    // Who was a member when the PG was last active takes it over.
    founded.state.put(&others, &record(&[1], &[0], 5)).await.unwrap();
    one.put(&others, &record(&[0], &[0], 6)).await.unwrap();
    founded.state.put(&others, &record(&[1], &[1], 7)).await.unwrap();

    // It splits off PGs from its own, in one transaction.
    let split = |from: &str, epoch: u64, new: &str| {
        let new_key = key("pgs", new);
        Transaction::new()
            .put(&key("pgs", from), &record(&[0], &[0], epoch))
            .unwrap()
            .check(&new_key, 0)
            .put(&new_key, &record(&[0], &[0], 1))
            .unwrap()
            .put(&key("pg_targets", new), &1)
            .unwrap()
    };
    forbidden(one.transact(&split("1.0", 8, "1.3")).await, "split off from another's");
    one.transact(&split("1.0", 8, "1.2")).await.unwrap();

    for kind in ["osd_up", "osd_usage", "osd_stores", "osd_failures", "osd_ends"] {
        one.put(&key(kind, "0"), &1).await.unwrap();
        forbidden(one.put(&key(kind, "1"), &1).await, kind);
        assert!(matches!(one.delete(&key(kind, "1")).await, Err(ClusterError::Forbidden { .. })), "{kind}");
        states[1].put(&key(kind, "1"), &1).await.unwrap();
    }
}
