//! How people log in, as cluster state had it a moment ago. Strangers ask for it, and must not make a server ask cluster
//! state as often.

use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_admin::{AdminError, login_oidc, sessions};
use atoll_cluster::ClusterClient;
use atoll_types::login_oidc::OidcRecord;

use crate::cluster_state::ClusterState;

const LIFETIME: Duration = Duration::from_secs(1);
const STATE_LIMIT: Duration = Duration::from_secs(4);

/// The switch of log-ins with passwords, and the provider.
type Methods = (bool, Option<Arc<OidcRecord>>);

/// The newest answer. It is locked while cluster state is asked.
#[derive(Default)]
pub(super) struct Recent(tokio::sync::Mutex<Option<(Instant, Result<Methods, String>)>>);

impl Recent {
    pub async fn get(&self, state: &ClusterState) -> Result<Methods, String> {
        let mut known = self.0.lock().await;
        if let Some((since, methods)) = known.as_ref()
            && since.elapsed() < LIFETIME
        {
            return methods.clone();
        }
        let read = |client: ClusterClient| async move {
            let settings = sessions::settings(&client).await?;
            let provider = login_oidc::find(&client).await?;
            Ok::<_, AdminError>((settings.local_login, provider.map(|(provider, _)| Arc::new(provider))))
        };
        let methods = state.read(STATE_LIMIT, read).await;
        *known = Some((Instant::now(), methods.clone()));
        methods
    }
}
