//! State that all requests of an admin server share.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_audit::AuditLog;
use atoll_connection_limits::{LoginTurns, LookUps};
use atoll_node::{ClusterFile, DataDir, ProcessesFile};

use crate::api::{OidcLogins, Sessions};
use crate::cluster_metrics::ClusterMetrics;
use crate::cluster_state::ClusterState;
use crate::commands::RunCommands;
use crate::copies::Copies;
use crate::figures::Figures;
use crate::hosts::{KnownKeys, OtherHosts, ThisHost, Unanswered};
use crate::token_check::TokenCheck;

/// The name of the admin server's own process.
pub(crate) const ADMIN_PROCESS: &str = "admin";

/// Shared state of all requests.
pub(crate) struct Shared {
    pub directory: DataDir,
    pub cluster: ClusterFile,
    pub state: ClusterState,
    pub tokens: TokenCheck,
    pub host_keys: KnownKeys,
    /// The other hosts, as cluster state has said last.
    pub others: Mutex<OtherHosts>,
    pub cluster_metrics: ClusterMetrics,
    pub sessions: Sessions,
    /// Value of [`crate::AdminServerConfig`].
    pub session_max: Option<Duration>,
    pub login_turns: LoginTurns,
    pub oidc: OidcLogins,
    /// Sessions and tokens that were made up.
    pub look_ups: LookUps,
    /// Turn of checking a password.
    pub password_turn: tokio::sync::Mutex<()>,
    pub commands: Arc<dyn RunCommands>,
    pub audit: Option<AuditLog>,
    /// Images that this process copies while they have no writer.
    pub copies: Arc<Copies>,
    pub figures: Figures,
}

impl Shared {
    /// This host, from which others are asked.
    pub fn this_host(&self) -> ThisHost {
        ThisHost { directory: self.directory.clone(), name: self.cluster.host_name(), processes: self.processes() }
    }

    /// The other hosts. If cluster state does not answer, those that it knew last, and that it does not.
    pub async fn others(&self) -> (OtherHosts, Vec<Unanswered>) {
        let this = self.this_host();
        let found = match self.state.client().await {
            Ok(client) => OtherHosts::find_soon(&client, &this).await,
            Err(error) => Err(error),
        };
        let mut last = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        match found {
            Ok(others) => {
                *last = others.clone();
                (others, Vec::new())
            }
            Err(error) => (last.clone(), vec![Unanswered::no_hosts(error)]),
        }
    }

    /// The processes of this host, those included that are down at the moment: their scrapes are to fail.
    pub fn processes(&self) -> Vec<String> {
        let file = ProcessesFile::read(&self.directory).unwrap_or_default();
        let mut names: Vec<String> = file.children.into_iter().map(|child| child.name).collect();
        if !names.iter().any(|name| name == ADMIN_PROCESS) {
            // It was not the supervisor that started it.
            names.push(ADMIN_PROCESS.into());
        }
        names.sort();
        names
    }
}
