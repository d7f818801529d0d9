//! Watch streams. One task serves one stream and all watches on it; each watch has a cursor into
//! the shared history, so the only queue is the short one of answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::auth::{Access, Auth, Caller};
use super::change::Event;
use super::history::{Revision, TooOld};
use super::limits;
use super::proto::event::EventType;
use super::proto::watch_create_request::FilterType;
use super::proto::watch_request::RequestUnion;
use super::proto::{self, KeyValue, WatchCreateRequest, WatchRequest, WatchResponse, watch_server};
use super::services::Services;
use super::span::Span;
use super::state::State;
use super::tokens::caller_of;
use super::{Shared, status, stopped};

/// The id of answers that concern no watch.
const NO_WATCH: i64 = -1;

/// As etcd writes it here.
const PERMISSION_DENIED: &str = "rpc error: code = PermissionDenied desc = etcdserver: permission denied";

type Answers = mpsc::Sender<Result<WatchResponse, Status>>;

#[tonic::async_trait]
impl watch_server::Watch for Services {
    type WatchStream = ReceiverStream<Result<WatchResponse, Status>>;

    async fn watch(
        &self,
        request: Request<Streaming<WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let caller = caller_of(request.extensions());
        let (answers, stream) = mpsc::channel(limits::WATCH_QUEUE);
        let auth = self.shared.writer.state().auth.clone();
        let session = Session {
            shared: self.shared.clone(),
            states: self.shared.writer.follow(),
            answers,
            watches: BTreeMap::new(),
            next_id: 0,
            caller,
            auth,
        };
        tokio::spawn(session.run(request.into_inner()));
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// The client is gone.
struct Gone;

struct Watch {
    span: Span,
    /// The span as it was asked for.
    key: Vec<u8>,
    range_end: Vec<u8>,
    /// The next revision to look at.
    next: i64,
    with_before: bool,
    with_puts: bool,
    with_deletes: bool,
    may_fragment: bool,
    wants_progress: bool,
    last_answer: Instant,
}

impl Watch {
    fn wants(&self, event: &Event) -> bool {
        self.span.contains(&event.key) && if event.now.is_some() { self.with_puts } else { self.with_deletes }
    }

    fn describe(&self, event: &Event, revision: i64) -> proto::Event {
        let prev_kv = event.before.as_ref().filter(|_| self.with_before).map(|old| old.to_proto(&event.key));
        let (kind, kv) = match &event.now {
            Some(entry) => (EventType::Put, entry.to_proto(&event.key)),
            None => (
                EventType::Delete,
                KeyValue { key: event.key.to_vec(), mod_revision: revision, ..Default::default() },
            ),
        };
        proto::Event { r#type: kind.into(), kv: Some(kv), prev_kv }
    }
}

struct Session {
    shared: Arc<Shared>,
    states: watch::Receiver<Arc<State>>,
    answers: Answers,
    watches: BTreeMap<i64, Watch>,
    next_id: i64,
    caller: Caller,
    /// Rights that the watches were last compared with.
    auth: Arc<Auth>,
}

impl Session {
    async fn run(mut self, mut requests: Streaming<WatchRequest>) {
        let mut stop = self.shared.stop.clone();
        let mut progress = tokio::time::interval(limits::PROGRESS_INTERVAL);
        let answers = self.answers.clone();
        let mut may_ask = true;
        loop {
            let outcome = tokio::select! {
                request = requests.message(), if may_ask => match request {
                    Ok(Some(request)) => self.handle(request).await,
                    // The client may close its half and listen on.
                    Ok(None) => { may_ask = false; Ok(()) }
                    Err(_) => return,
                },
                changed = self.states.changed() => match changed {
                    Ok(()) => self.catch_up().await,
                    Err(_) => Err(Gone),
                },
                _ = progress.tick() => self.report_progress().await,
                _ = answers.closed() => return,
                () = stopped(&mut stop) => {
                    // A client that is gone needs no answer.
                    let _ = self.answers.send(Err(status::stopped())).await;
                    return;
                }
            };
            if outcome.is_err() {
                return;
            }
        }
    }

    async fn handle(&mut self, request: WatchRequest) -> Result<(), Gone> {
        match request.request_union {
            Some(RequestUnion::CreateRequest(request)) => self.create(request).await,
            Some(RequestUnion::CancelRequest(request)) => {
                if self.watches.remove(&request.watch_id).is_some() {
                    self.answer(WatchResponse {
                        watch_id: request.watch_id,
                        canceled: true,
                        ..Default::default()
                    })
                    .await?;
                }
                Ok(())
            }
            Some(RequestUnion::ProgressRequest(_)) => {
                // What is reported as seen must have been sent.
                self.catch_up().await?;
                self.answer(WatchResponse { watch_id: NO_WATCH, ..Default::default() }).await
            }
            None => Ok(()),
        }
    }

    async fn create(&mut self, request: WatchCreateRequest) -> Result<(), Gone> {
        let key = if request.key.is_empty() { &[0][..] } else { &request.key };
        let span = Span::new(key, &request.range_end);
        if span.is_empty() {
            return self.refuse("mvcc: watcher range is empty").await;
        }
        let auth = self.states.borrow().auth.clone();
        if auth.check_range(&self.caller, key, &request.range_end, Access::Read).is_err() {
            return self.refuse_as(request.watch_id, PERMISSION_DENIED).await;
        }
        if self.watches.len() >= limits::WATCHES {
            return self.refuse("the stream holds as many watches as it may: open another").await;
        }
        let id = match request.watch_id {
            0 => {
                while self.watches.contains_key(&self.next_id) {
                    self.next_id += 1;
                }
                self.next_id += 1;
                self.next_id - 1
            }
            taken if self.watches.contains_key(&taken) => {
                return self.refuse("mvcc: duplicate watch ID provided on the WatchStream").await;
            }
            id => id,
        };
        // Watches on this stream stand at the last revision they were shown, so must this one.
        self.catch_up().await?;
        let now = self.states.borrow().revision;
        let watch = Watch {
            span,
            key: key.to_vec(),
            range_end: request.range_end.clone(),
            next: if request.start_revision <= 0 { now + 1 } else { request.start_revision },
            with_before: request.prev_kv,
            with_puts: !request.filters.contains(&(FilterType::Noput as i32)),
            with_deletes: !request.filters.contains(&(FilterType::Nodelete as i32)),
            may_fragment: request.fragment,
            wants_progress: request.progress_notify,
            last_answer: Instant::now(),
        };
        self.watches.insert(id, watch);
        let created = WatchResponse { watch_id: id, created: true, ..Default::default() };
        self.answer_at(created, now).await?;
        self.catch_up().await
    }

    async fn refuse(&mut self, reason: &str) -> Result<(), Gone> {
        self.refuse_as(NO_WATCH, reason).await
    }

    async fn refuse_as(&mut self, watch_id: i64, reason: &str) -> Result<(), Gone> {
        let refusal = WatchResponse {
            watch_id,
            created: true,
            canceled: true,
            cancel_reason: reason.into(),
            ..Default::default()
        };
        self.answer(refusal).await
    }

    /// Ends the watches of a user without the right to them any more. An etcd continues them.
    async fn check_rights(&mut self) -> Result<(), Gone> {
        let auth = self.states.borrow().auth.clone();
        if Arc::ptr_eq(&auth, &self.auth) {
            return Ok(());
        }
        let refused =
            |watch: &Watch| auth.check_range(&self.caller, &watch.key, &watch.range_end, Access::Read).is_err();
        let ended: Vec<i64> = self.watches.iter().filter(|(_, watch)| refused(watch)).map(|(id, _)| *id).collect();
        for id in ended {
            self.watches.remove(&id);
            let cancel_reason = PERMISSION_DENIED.into();
            self.answer(WatchResponse { watch_id: id, canceled: true, cancel_reason, ..Default::default() })
                .await?;
        }
        self.auth = auth;
        Ok(())
    }

    /// Sends every watch its missing events up to the newest revision.
    async fn catch_up(&mut self) -> Result<(), Gone> {
        self.check_rights().await?;
        let newest = self.states.borrow_and_update().revision;
        let behind: Vec<i64> =
            self.watches.iter().filter(|(_, watch)| watch.next <= newest).map(|(id, _)| *id).collect();
        for id in behind {
            while let Some(from) = self.watches.get(&id).map(|watch| watch.next).filter(|next| *next <= newest) {
                match self.shared.writer.with_history(|history| history.since(from)) {
                    Ok(revisions) => self.deliver(id, &revisions).await?,
                    Err(TooOld(floor)) => {
                        self.watches.remove(&id);
                        self.answer(WatchResponse {
                            watch_id: id,
                            canceled: true,
                            compact_revision: floor,
                            cancel_reason: status::COMPACTED.into(),
                            ..Default::default()
                        })
                        .await?;
                    }
                }
            }
        }
        Ok(())
    }

    async fn deliver(&mut self, id: i64, revisions: &[Arc<Revision>]) -> Result<(), Gone> {
        let Some(watch) = self.watches.get_mut(&id) else { return Ok(()) };
        let mut responses = Vec::new();
        let mut events = Vec::new();
        let mut bytes = 0;
        let mut last = watch.next - 1;
        for revision in revisions {
            for event in &revision.events {
                if !watch.wants(event) {
                    continue;
                }
                let event = watch.describe(event, revision.number);
                let event_bytes = prost::Message::encoded_len(&event);
                if watch.may_fragment && !events.is_empty() && bytes + event_bytes > limits::WATCH_RESPONSE_BYTES {
                    responses.push((
                        WatchResponse {
                            watch_id: id,
                            fragment: true,
                            events: std::mem::take(&mut events),
                            ..Default::default()
                        },
                        revision.number,
                    ));
                    bytes = 0;
                }
                bytes += event_bytes;
                events.push(event);
            }
            last = revision.number;
            // The events of one revision stay together.
            if bytes > limits::WATCH_RESPONSE_BYTES {
                let events = std::mem::take(&mut events);
                responses.push((WatchResponse { watch_id: id, events, ..Default::default() }, last));
                bytes = 0;
            }
        }
        watch.next = last + 1;
        if !events.is_empty() {
            responses.push((WatchResponse { watch_id: id, events, ..Default::default() }, last));
        }
        if !responses.is_empty() {
            watch.last_answer = Instant::now();
        }
        for (response, revision) in responses {
            self.answer_at(response, revision).await?;
        }
        Ok(())
    }

    async fn report_progress(&mut self) -> Result<(), Gone> {
        self.catch_up().await?;
        let idle: Vec<i64> = self
            .watches
            .iter()
            .filter(|(_, watch)| watch.wants_progress && watch.last_answer.elapsed() >= limits::PROGRESS_INTERVAL)
            .map(|(id, _)| *id)
            .collect();
        for id in idle {
            self.answer(WatchResponse { watch_id: id, ..Default::default() }).await?;
        }
        Ok(())
    }

    async fn answer(&self, response: WatchResponse) -> Result<(), Gone> {
        let revision = self.states.borrow().revision;
        self.answer_at(response, revision).await
    }

    async fn answer_at(&self, mut response: WatchResponse, revision: i64) -> Result<(), Gone> {
        response.header = self.shared.header(revision);
        self.answers.send(Ok(response)).await.map_err(|_| Gone)
    }
}
