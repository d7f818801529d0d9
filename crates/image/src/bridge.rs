//! From tasks on a reactor thread to futures that need tokio, such as the cluster-state client's.

use std::future::Future;

use atoll_reactor::Wake;
use futures::channel::oneshot;
use tokio::runtime::Handle;

/// Runs futures on a tokio runtime for tasks on a reactor thread.
#[derive(Clone)]
pub struct Bridge {
    tokio: Handle,
    wake: Wake,
}

impl Bridge {
    /// `wake` must be that of the reactor thread whose tasks wait.
    pub fn new(tokio: Handle, wake: Wake) -> Self {
        Bridge { tokio, wake }
    }

    /// Runs a future on the tokio runtime and waits for its value.
    pub async fn run<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> T {
        let (sender, receiver) = oneshot::channel();
        let wake = self.wake.clone();
        self.tokio.spawn(async move {
            // The task that asked may be gone.
            let _ = sender.send(future.await);
            wake.wake();
        });
        receiver.await.expect("a spawned future runs to its end")
    }
}
