//! The networks that this process may call, as the settings of the cluster name them.

use std::sync::Arc;
use std::time::Duration;

use atoll_admin::settings;

use crate::shared::Shared;

/// How often the settings are read. An admin server follows no map.
const PAUSE: Duration = Duration::from_secs(5);

/// Reads the settings again and again, for as long as the process lives. While cluster state is away, the last
/// ones count.
pub(crate) async fn keep(shared: Arc<Shared>) {
    loop {
        if let Ok(client) = shared.state.client().await
            && let Ok(all) = settings::read(&client).await
        {
            let settings = all.settings;
            atoll_outgoing::configure(&settings.outgoing_networks, &settings.outgoing_networks_of_accounts);
        }
        tokio::time::sleep(PAUSE).await;
    }
}
