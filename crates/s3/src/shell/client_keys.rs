//! Keys that clients send with their requests (SSE-C). They pass through buffers of hyper, rustls and s3s. So all memory
//! that is freed is wiped from the first such request of a connection until some time after the connection's end.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use atoll_connection_limits::Place;
use http::HeaderMap;

use crate::arrival::Origin;
use crate::wiping::WipesFreedMemory;

const KEYS: [&str; 2] =
    ["x-amz-server-side-encryption-customer-key", "x-amz-copy-source-server-side-encryption-customer-key"];
/// Time in which the tasks of a connection that has ended free their memory.
const END_PAUSE: Duration = Duration::from_secs(2);

/// Owner of a connection, as far as known, its place, and the keys that it brings.
pub(super) type Whose = (Origin, Arc<Place>, Arc<ClientKeys>);

/// The keys of clients that one connection has brought.
#[derive(Default)]
pub(super) struct ClientKeys(OnceLock<WipesFreedMemory>);

impl ClientKeys {
    /// Looks for keys in a request. A form may have one in its body.
    pub fn look_at(&self, headers: &HeaderMap, is_form: bool) {
        if is_form || KEYS.iter().any(|key| headers.contains_key(*key)) {
            let _ = self.0.get_or_init(WipesFreedMemory::begin);
        }
    }
}

impl Drop for ClientKeys {
    fn drop(&mut self) {
        let Some(wipes) = self.0.take() else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                tokio::time::sleep(END_PAUSE).await;
                drop(wipes);
            });
        }
    }
}
