//! The same requests to the embedded server and to a real etcd must have the same results. Every
//! test that takes a server runs once against each.

#![allow(clippy::unwrap_used)]

mod auth;
mod client;
mod etcdctl;
mod keys;
mod leases;
mod persistence;
mod random;
mod servers;
mod transactions;
mod watches;

/// Makes two tests of each function.
macro_rules! on_both_servers {
    ($($test:path as $name:ident),* $(,)?) => {
        mod embedded {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                $test(&crate::servers::Server::embedded().await).await;
            })*
        }
        mod etcd {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                $test(&crate::servers::Server::etcd().await).await;
            })*
        }
    };
}

on_both_servers! {
    crate::keys::all as keys,
    crate::transactions::all as transactions,
    crate::watches::all as watches,
    crate::leases::all as leases,
    crate::client::all as client,
}
