//! A watch on a prefix that outlives connections.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use etcd_client::{EventType, KeyValue, WatchOptions, WatchStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::{Stream, StreamExt};

use crate::keys::range_end;

use super::error::Fate;
use super::{ClusterClient, ClusterError, FIRST_PAUSE, RESPONSE_BYTES, Stored, next_pause};

/// Events that may wait for their reader; then the server is not listened to until there is room.
const QUEUE: usize = 1024;
/// How long the server may take to confirm a new watch.
const CREATE_TIMEOUT: Duration = Duration::from_secs(10);

/// Event under a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// A key was written.
    Put {
        /// The key.
        key: String,
        /// Its value as stored; empty if it is refused.
        value: Vec<u8>,
        /// The revision of the write.
        mod_revision: i64,
    },
    /// A key was deleted, or its lease ran out.
    Delete {
        /// The key.
        key: String,
        /// The revision of the deletion.
        mod_revision: i64,
    },
    /// Some events were lost for good: this is all there is under the prefix now. Keys that are not
    /// here do not exist.
    Resync {
        /// Key, value and modification revision.
        entries: Vec<(String, Vec<u8>, i64)>,
        /// The revision of this list; the events that follow are later.
        revision: i64,
    },
}

/// The events under a prefix, as an endless stream. Lost connections are replaced silently.
#[derive(Debug)]
pub struct PrefixWatch {
    events: mpsc::Receiver<WatchEvent>,
    follower: JoinHandle<()>,
}

impl PrefixWatch {
    /// The next event. It ends only when the runtime shuts down.
    pub async fn next(&mut self) -> Option<WatchEvent> {
        StreamExt::next(self).await
    }
}

impl Stream for PrefixWatch {
    type Item = WatchEvent;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<WatchEvent>> {
        self.events.poll_recv(context)
    }
}

impl Drop for PrefixWatch {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

impl ClusterClient {
    /// All events under a prefix from `from_revision` on: give the revision after that of a
    /// [`super::Listing`] to miss nothing, or 0 for the events from the moment when the watch is
    /// confirmed.
    pub fn watch_prefix(&self, prefix: &str, from_revision: i64) -> PrefixWatch {
        let (queue, events) = mpsc::channel(QUEUE);
        let follower = Follower { client: self.clone(), prefix: prefix.to_owned(), next: from_revision, queue };
        PrefixWatch { events, follower: tokio::spawn(follower.run()) }
    }
}

impl ClusterClient {
    pub(super) async fn open_watch(&self, prefix: &str, from: i64) -> Result<WatchStream, etcd_client::Error> {
        let options = WatchOptions::new().with_range(range_end(prefix)).with_start_revision(from);
        let mut watches = self.session.etcd().watch_client().max_decoding_message_size(RESPONSE_BYTES);
        watches.watch(prefix, Some(options)).await
    }
}

struct Follower {
    client: ClusterClient,
    prefix: String,
    /// The revision to continue from; 0 before the first answer.
    next: i64,
    queue: mpsc::Sender<WatchEvent>,
}

/// Why a connection's events ended.
enum End {
    /// The receiver was dropped.
    Unwanted,
    /// The server has forgotten events that were not seen yet.
    TooOld,
    /// The connection is lost.
    Connection(String),
}

impl Follower {
    async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let before = self.next;
            let end = match self.follow_one_stream().await {
                End::TooOld => self.resync().await,
                other => other,
            };
            match end {
                End::Unwanted => return,
                End::TooOld => {}
                End::Connection(cause) => {
                    tracing::debug!(prefix = self.prefix, cause, "watching on a new connection");
                    if self.next > before {
                        pause = FIRST_PAUSE;
                    }
                    tokio::time::sleep(pause).await;
                    pause = next_pause(pause);
                }
            }
        }
    }

    async fn follow_one_stream(&mut self) -> End {
        let mut stream = match tokio::time::timeout(CREATE_TIMEOUT, self.open()).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                if super::fate(&error) == Fate::Unauthenticated {
                    self.client.session.log_in_anew(&self.client.options).await;
                }
                return End::Connection(super::describe(&error));
            }
            Err(_) => return End::Connection("the watch is not confirmed".into()),
        };
        loop {
            let response = match stream.message().await {
                Ok(Some(response)) => response,
                Ok(None) => return End::Connection("the stream ended".into()),
                Err(error) => return End::Connection(super::describe(&error)),
            };
            if response.canceled() {
                return if response.compact_revision() > 0 {
                    End::TooOld
                } else {
                    End::Connection(response.cancel_reason().to_owned())
                };
            }
            // From now on a lost connection must not skip what happens meanwhile.
            if response.created() && self.next == 0 {
                self.next = response.header().map_or(0, |header| header.revision() + 1);
            }
            for event in response.events() {
                let Some(entry) = event.kv() else { continue };
                let event = match self.event(event.event_type(), entry).await {
                    Ok(event) => event,
                    Err(error) => return End::Connection(error.to_string()),
                };
                if self.queue.send(event).await.is_err() {
                    return End::Unwanted;
                }
            }
            // The events of one revision come in one response, so the next revision is due. The
            // header is of no use here: etcd may name a revision whose events it has yet to send.
            if let Some(last) = response.events().last().and_then(|event| event.kv()) {
                self.next = self.next.max(last.mod_revision() + 1);
            }
        }
    }

    async fn event(&self, kind: EventType, entry: &KeyValue) -> Result<WatchEvent, ClusterError> {
        let key = String::from_utf8_lossy(entry.key()).into_owned();
        let mod_revision = entry.mod_revision();
        let (version, create_revision) = (entry.version(), entry.create_revision());
        let stored = Stored { key, value: entry.value().to_vec(), mod_revision, version, create_revision };
        if kind == EventType::Delete || stored.is_reserved() {
            let key = stored.key;
            return match self.client.check_absence(&key).await {
                Ok(()) => Ok(WatchEvent::Delete { key, mod_revision }),
                // It was removed by hand.
                Err(ClusterError::Untrusted { .. }) => {
                    Ok(WatchEvent::Put { key, value: Vec::new(), mod_revision })
                }
                Err(error) => Err(error),
            };
        }
        let value = self.client.opened(&stored).await?.unwrap_or_default();
        Ok(WatchEvent::Put { key: stored.key, value, mod_revision })
    }

    async fn open(&self) -> Result<WatchStream, etcd_client::Error> {
        self.client.open_watch(&self.prefix, self.next).await
    }

    async fn resync(&mut self) -> End {
        match self.client.list_raw(&self.prefix).await {
            Ok(listing) => {
                self.next = listing.revision + 1;
                let event = WatchEvent::Resync { entries: listing.entries, revision: listing.revision };
                if self.queue.send(event).await.is_err() { End::Unwanted } else { End::TooOld }
            }
            Err(error) => End::Connection(error.to_string()),
        }
    }
}
