//! The same requests to the embedded server and to a real etcd must have the same results. Every
//! test that takes a server runs once against each, without and with TLS.

#![allow(clippy::unwrap_used)]

mod auth;
mod certificates;
mod client;
mod etcdctl;
mod hosts;
mod keys;
mod leases;
mod members;
mod persistence;
mod pg_changes;
mod random;
mod rights;
mod servers;
mod tls;
mod transactions;
mod watches;

/// Makes four tests of each function.
macro_rules! on_all_servers {
    ($($test:path as $name:ident),* $(,)?) => {
        on_all_servers!(@embedded: $($test as $name),*);
        on_all_servers!(@embedded_with_tls: $($test as $name),*);
        on_all_servers!(@etcd: $($test as $name),*);
        on_all_servers!(@etcd_with_tls: $($test as $name),*);
    };
    (@$server:ident: $($test:path as $name:ident),*) => {
        mod $server {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                $test(&crate::servers::Server::$server().await).await;
            })*
        }
    };
}

on_all_servers! {
    crate::keys::all as keys,
    crate::transactions::all as transactions,
    crate::watches::all as watches,
    crate::leases::all as leases,
    crate::client::all as client,
    crate::rights::all as rights,
    crate::hosts::all as rights_of_hosts,
    crate::pg_changes::all as changes_of_pgs,
}
