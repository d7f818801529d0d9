//! An etcd of three members, one of which dies.

use std::process::Child;
use std::time::{Duration, Instant};

use atoll_cluster::{ClusterClient, ClusterError, ConnectOptions, LeaseStatus, WatchEvent};

use crate::servers::{etcd_process, free_port};

struct Members(Vec<Child>);

impl Drop for Members {
    fn drop(&mut self) {
        for member in &mut self.0 {
            let _ = member.kill();
            let _ = member.wait();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_death_of_one_member_is_survived() {
    let directory = tempfile::tempdir().unwrap();
    let ports: Vec<(u16, u16)> = (0..3).map(|_| (free_port(), free_port())).collect();
    let url = |port: u16| format!("http://127.0.0.1:{port}");
    let names: Vec<String> =
        ports.iter().enumerate().map(|(index, (_, peer))| format!("m{index}={}", url(*peer))).collect();
    let mut members = Members(Vec::new());
    for (index, (client, peer)) in ports.iter().enumerate() {
        let own = directory.path().join(format!("m{index}"));
        std::fs::create_dir(&own).unwrap();
        let mut command = etcd_process(&format!("m{index}"), &own, &url(*client), &url(*peer), &names.join(","));
        members.0.push(command.spawn().unwrap());
    }
    let options = ConnectOptions::new(ports.iter().map(|(client, _)| url(*client)));
    let begun = Instant::now();
    let client = loop {
        match ClusterClient::connect(&options).await {
            Ok(client) => break client,
            Err(error) => assert!(begun.elapsed() < Duration::from_secs(30), "{error}"),
        }
    };
    let lease = client.grant_lease(Duration::from_secs(20)).await.unwrap();
    client.put_with_lease("/up/1", &1, &lease).await.unwrap();
    let start = client.put("/k", &0).await.unwrap();
    let mut watch = client.watch_prefix("/k", start);
    // Each member in turn, so the leader is among them.
    for (round, (client_port, peer)) in ports.iter().enumerate() {
        members.0[round].kill().unwrap();
        members.0[round].wait().unwrap();
        // A client that starts now does not care either.
        let late = ClusterClient::connect(&options).await.unwrap();
        for number in 0..10 {
            let value = round * 10 + number + 1;
            let writer = if number % 2 == 0 { &client } else { &late };
            // The write itself may be repeated; reading tells whether it was one too many.
            while let Err(error) = writer.put("/k", &value).await {
                assert!(
                    matches!(error, ClusterError::Unreachable { .. } | ClusterError::Refused { .. }),
                    "{error}"
                );
            }
            assert_eq!(writer.get::<usize>("/k").await.unwrap().unwrap().0, value);
        }
        let own = directory.path().join(format!("m{round}"));
        let mut command =
            etcd_process(&format!("m{round}"), &own, &url(*client_port), &url(*peer), &names.join(","));
        members.0[round] = command.spawn().unwrap();
        // It serves once it has caught up with the others.
        let one = ConnectOptions::new([url(*client_port)]);
        let begun = Instant::now();
        while let Err(error) = read_from(&one).await {
            assert!(begun.elapsed() < Duration::from_secs(30), "{error}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    assert_eq!(*lease.status().borrow(), LeaseStatus::Held);
    assert!(client.get::<u8>("/up/1").await.unwrap().is_some());
    loop {
        let event = tokio::time::timeout(Duration::from_secs(20), watch.next()).await.expect("the watch goes on");
        if matches!(event.unwrap(), WatchEvent::Put { value, .. } if value == b"30") {
            break;
        }
    }
}

/// Reads from one member alone.
async fn read_from(options: &ConnectOptions) -> Result<(), ClusterError> {
    let client = ClusterClient::connect(options).await?;
    client.get::<usize>("/k").await?;
    Ok(())
}
