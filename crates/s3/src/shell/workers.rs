//! Where connections are served: each stays on the runtime that it was given to.

use std::future::Future;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::runtime::Handle;

/// The runtimes that serve connections, each on a thread of its own.
pub struct Workers(Vec<Worker>);

struct Worker {
    runtime: Handle,
    /// Each of its connections has a clone.
    connections: Arc<()>,
}

impl Workers {
    /// At least one is needed.
    pub fn new(runtimes: impl IntoIterator<Item = Handle>) -> Self {
        let worker = |runtime| Worker { runtime, connections: Arc::new(()) };
        let workers: Vec<_> = runtimes.into_iter().map(worker).collect();
        assert!(!workers.is_empty(), "connections have workers");
        Workers(workers)
    }

    /// Returns the runtime for work beside connections.
    pub(crate) fn first(&self) -> &Handle {
        &self.0[0].runtime
    }

    /// Has the worker with the fewest connections serve this one.
    pub(crate) fn spawn<F>(&self, socket: TcpStream, serve: impl FnOnce(TcpStream) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let worker = self.0.iter().min_by_key(|worker| Arc::strong_count(&worker.connections));
        let Worker { runtime, connections } = worker.expect("there is a worker");
        let open = Arc::clone(connections);
        runtime.spawn(async move {
            // It is of the runtime that has accepted it.
            match socket.into_std().and_then(TcpStream::from_std) {
                Ok(socket) => serve(socket).await,
                Err(error) => tracing::warn!(%error, "a connection cannot be served"),
            }
            drop(open);
        });
    }
}
