//! The client for callers on other threads: a reactor thread of its own behind a queue.

use std::sync::{Arc, mpsc};

use atoll_metrics::current_span::current_span;
use atoll_objects::{ClientError, ObjectClient};
use atoll_reactor::{LocalRuntime, Wake};
use atoll_types::limits::CLIENT_CALLS_MAX;
use atoll_types::{ObjectName, PoolId, ReadOutcome, ReadRequest, TraceContext, WriteRequest};
use bytes::Bytes;
use futures::channel::oneshot;
use tokio::sync::Semaphore;

use crate::local::{ClientConfig, LocalClient};
use crate::router::{Answer, Call, Target};

struct RemoteCall {
    target: Target,
    call: Call,
    /// The span that the caller's thread worked for.
    span: Option<TraceContext>,
    sender: oneshot::Sender<Answer>,
}

/// A handle that may be used from any thread and cloned at will.
///
/// ```no_run
/// use atoll_types::{ObjectName, PoolId};
/// use atoll_client::{ClientConfig, ObjectClient, RemoteClient};
///
/// async fn size_of(config: ClientConfig, name: &str) -> Result<u64, Box<dyn std::error::Error>> {
///     let client = RemoteClient::start(config)?;
///     let object = ObjectName::new(name).ok_or("a name has 1 to 255 bytes")?;
///     let (size_bytes, _version) = client.stat(PoolId(1), object).await?;
///     Ok(size_bytes)
/// }
/// ```
#[derive(Clone)]
pub struct RemoteClient {
    queue: mpsc::Sender<RemoteCall>,
    /// Bounds the calls in the queue and those that the client's thread has taken.
    turns: Arc<Semaphore>,
    wake: Wake,
}

impl RemoteClient {
    /// Starts the client's thread.
    pub fn start(config: ClientConfig) -> std::io::Result<Self> {
        let (queue, calls) = mpsc::channel::<RemoteCall>();
        let (ready, is_ready) = mpsc::channel();
        std::thread::Builder::new().name("object-client".into()).spawn(move || {
            match start_client(config, calls) {
                Ok((runtime, wake)) => {
                    let _ = ready.send(Ok(wake));
                    // The loop ends only with the process, or when the ring itself fails.
                    if let Err(error) = runtime.block_on(std::future::pending::<()>()) {
                        tracing::error!("the object client's event loop failed: {error}");
                    }
                }
                Err(error) => drop(ready.send(Err(error))),
            }
        })?;
        let wake = is_ready.recv().map_err(|_| std::io::Error::other("the client thread ended at once"))??;
        Ok(RemoteClient { queue, turns: Arc::new(Semaphore::new(CLIENT_CALLS_MAX)), wake })
    }

    async fn call(&self, target: Target, call: Call) -> Answer {
        let _turn = self.turns.acquire().await.expect("nobody closes it");
        let (sender, receiver) = oneshot::channel();
        let span = current_span();
        self.queue.send(RemoteCall { target, call, span, sender }).map_err(|_| ClientError::ShutDown)?;
        self.wake.wake();
        receiver.await.unwrap_or(Err(ClientError::ShutDown))
    }
}

fn start_client(config: ClientConfig, calls: mpsc::Receiver<RemoteCall>) -> std::io::Result<(LocalRuntime, Wake)> {
    let runtime = LocalRuntime::new().map_err(|error| std::io::Error::other(error.to_string()))?;
    let client = LocalClient::start(&runtime, config)?;
    let wake = runtime.wake_handle();
    let tasks = runtime.clone();
    runtime.on_wake(move || {
        while let Ok(RemoteCall { target, call, span, mut sender }) = calls.try_recv() {
            let client = client.clone();
            tasks.spawn(async move {
                // A caller that stopped waiting cancels the call.
                let called = Box::pin(client.call_within(span, target, call));
                let answer = futures::future::select(called, sender.cancellation()).await;
                if let futures::future::Either::Left((answer, _)) = answer {
                    let _ = sender.send(answer);
                }
            });
        }
    });
    Ok((runtime, wake))
}

impl ObjectClient for RemoteClient {
    async fn send_read(
        &self,
        pool: PoolId,
        object: ObjectName,
        request: ReadRequest,
    ) -> Result<(ReadOutcome, Bytes), ClientError> {
        let answer = self.call(Target::ByName(pool), Call::Read(object.clone(), request)).await?;
        answer.ok_or(ClientError::UnexpectedAnswer { object })
    }

    async fn send_write(&self, pool: PoolId, request: WriteRequest) -> Result<(), ClientError> {
        self.call(Target::ByName(pool), Call::Write(request)).await.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use atoll_cluster::ConnectOptions;
    use atoll_wire::KeyPair;
    use futures::FutureExt;

    use super::*;

    #[test]
    fn calls_beyond_the_limit_wait_for_their_turn() {
        let cluster = ConnectOptions::new(["http://127.0.0.1:1"]);
        let config = ClientConfig { key: KeyPair::from_private([1; 32]), cluster, timeout_ms: 60_000 };
        let client = RemoteClient::start(config).unwrap();
        let mut context = Context::from_waker(Waker::noop());
        let object = ObjectName::new("nowhere").unwrap();
        let mut call = || {
            let mut call = Box::pin(client.stat(PoolId(1), object.clone()));
            assert!(call.poll_unpin(&mut context).is_pending());
            call
        };
        let mut calls: Vec<_> = (0..CLIENT_CALLS_MAX).map(|_| call()).collect();
        assert_eq!(client.turns.available_permits(), 0);
        let next = call();
        drop(calls.pop());
        assert_eq!(client.turns.available_permits(), 0, "the next one has the turn");
        drop(next);
        assert_eq!(client.turns.available_permits(), 1);
    }
}
