//! The listeners of a gateway process, and their certificates.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, bail};
use atoll_node::LISTEN_OFF;
use atoll_s3::Listener;
use atoll_tls::{ClientAuthority, Tls, TlsSettings};
use tokio::net::{TcpListener, TcpSocket};
use tokio::signal::unix::{SignalKind, signal};

use super::arguments::{ClientAuthArgument, GatewayArguments, TlsVersionArgument};
use crate::commands::open_cluster::OpenCluster;

/// Connections that the kernel keeps until they are accepted.
const BACKLOG: u32 = 1_024;

/// Listens as the command line says, or else as the cluster's settings do.
pub(super) fn listeners(open: &OpenCluster, arguments: &GatewayArguments) -> anyhow::Result<Vec<Listener>> {
    let plain = arguments.s3_listen.as_ref().unwrap_or(&open.cluster.s3_listen);
    let encrypted = arguments.s3_tls_listen.as_ref().unwrap_or(&open.cluster.s3_tls_listen);
    let mut listeners = Vec::new();
    if plain != LISTEN_OFF {
        listeners.push(Listener::plain(bind(plain)?));
        tracing::info!("S3 is served on {plain}");
    }
    if encrypted != LISTEN_OFF {
        let tls = Arc::new(load(open, arguments)?);
        reload_on_hangup(tls.clone())?;
        listeners.push(Listener::tls(bind(encrypted)?, tls));
        tracing::info!("S3 is served on {encrypted} with TLS");
    }
    if listeners.is_empty() {
        bail!("--s3-listen off and --s3-tls-listen off leave no address to serve");
    }
    Ok(listeners)
}

fn bind(listen: &str) -> anyhow::Result<TcpListener> {
    let bind = || {
        let address: SocketAddr = listen.parse().map_err(std::io::Error::other)?;
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    bind().with_context(|| format!("cannot listen on {listen}"))
}

fn load(open: &OpenCluster, arguments: &GatewayArguments) -> anyhow::Result<Tls> {
    let settings = TlsSettings {
        certificates: arguments.tls_certs.clone().unwrap_or_else(|| open.directory.tls()),
        client_authority: arguments.tls_client_ca.clone().map(|file| ClientAuthority {
            file,
            is_required: arguments.tls_client_auth == ClientAuthArgument::Required,
        }),
        only_version_13: arguments.tls_min == TlsVersionArgument::V13,
    };
    Tls::load(settings).context("the gateway cannot serve TLS")
}

/// As daemons do by custom; changed files are noticed without it.
fn reload_on_hangup(tls: Arc<Tls>) -> anyhow::Result<()> {
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            tls.reload();
        }
    });
    Ok(())
}
