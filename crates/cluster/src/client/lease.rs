//! A lease that keeps itself alive, and says when it could not.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use etcd_client::{LeaseKeepAliveStream, LeaseKeeper};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::error::{ClusterError, Fate, fate};
use super::{Answer, ClusterClient, FIRST_PAUSE, Repeat, next_pause};

/// State of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseStatus {
    /// Its term has not run out, counted from the moment the last renewal was sent.
    Held,
    /// It ran out, was revoked by someone, or could not be renewed in time. It never comes back.
    Lost,
}

/// A lease, renewed three times per term by a task in the background. Dropping it ends the
/// renewals, and the server lets it run out.
#[derive(Debug)]
pub struct Lease {
    id: i64,
    seconds: i64,
    client: ClusterClient,
    status: watch::Receiver<LeaseStatus>,
    term_end: TermEnd,
    keeper: JoinHandle<()>,
}

/// Earliest known end of a lease. If it is still ahead after an action, the lease's keys existed until then, also if the
/// process has stood still.
#[derive(Clone, Debug)]
pub struct TermEnd(Arc<Mutex<Instant>>);

impl TermEnd {
    fn at(ends: Instant) -> Self {
        TermEnd(Arc::new(Mutex::new(ends)))
    }

    fn get(&self) -> Instant {
        *self.0.lock().expect("its holders never panic")
    }

    fn set(&self, ends: Instant) {
        *self.0.lock().expect("its holders never panic") = ends;
    }

    /// Returns true if it is still to come.
    pub fn is_ahead(&self) -> bool {
        Instant::now() < self.get()
    }
}

impl ClusterClient {
    /// A new lease of at least `term`, rounded up to whole seconds; servers have a minimum of about
    /// two seconds.
    pub fn grant_lease(&self, term: Duration) -> Answer<'_, Lease> {
        Box::pin(self.grant_lease_now(term))
    }

    async fn grant_lease_now(&self, term: Duration) -> Result<Lease, ClusterError> {
        let seconds = i64::try_from(term.as_millis().div_ceil(1000)).unwrap_or(i64::MAX);
        let sent = Instant::now();
        // A grant that was repeated leaves a lease that nobody renews and that runs out.
        let granted = self.asked("grant a lease", Repeat::Freely, |etcd| {
            let mut leases = etcd.lease_client();
            async move { leases.grant(seconds, None).await }
        });
        let granted = granted.await?;
        let (report, status) = watch::channel(LeaseStatus::Held);
        let (id, seconds) = (granted.id(), granted.ttl());
        let term = Duration::from_secs(seconds.unsigned_abs());
        // The server's clock started later than this, so it cannot have run out before.
        let term_end = TermEnd::at(sent + term);
        let renewer = Renewer { id, client: self.clone(), term, ends: term_end.clone() };
        let keeper = tokio::spawn(async move {
            renewer.run().await;
            report.send_replace(LeaseStatus::Lost);
        });
        Ok(Lease { id, seconds, client: self.clone(), status, term_end, keeper })
    }
}

impl Lease {
    /// Its id on the server.
    pub fn id(&self) -> i64 {
        self.id
    }

    /// Its term, which the server may have made longer than asked.
    pub fn term(&self) -> Duration {
        Duration::from_secs(self.seconds.unsigned_abs())
    }

    /// Follows whether it can be counted on.
    pub fn status(&self) -> watch::Receiver<LeaseStatus> {
        self.status.clone()
    }

    /// When it ends at the earliest.
    pub fn term_end(&self) -> TermEnd {
        self.term_end.clone()
    }

    /// Returns when it is lost.
    pub async fn lost(&self) {
        // An error means that the renewing task is gone, and then it is lost too.
        let _ = self.status.clone().wait_for(|status| *status == LeaseStatus::Lost).await.is_ok();
    }

    /// Ends it at once; its keys are deleted. A lease that is gone already is no error.
    pub fn revoke(self) -> Answer<'static, ()> {
        Box::pin(self.revoke_now())
    }

    async fn revoke_now(self) -> Result<(), ClusterError> {
        self.keeper.abort();
        let id = self.id;
        let outcome = self.client.asked("revoke a lease", Repeat::Freely, |etcd| {
            let mut leases = etcd.lease_client();
            async move {
                match leases.revoke(id).await {
                    Err(etcd_client::Error::GRpcStatus(status)) if status.code() == tonic::Code::NotFound => {
                        Ok(())
                    }
                    other => other.map(drop),
                }
            }
        });
        outcome.await
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

struct Renewer {
    id: i64,
    client: ClusterClient,
    term: Duration,
    /// When the last confirmed term ends at the earliest.
    ends: TermEnd,
}

/// Why a stream of renewals ended.
enum Broken {
    /// The server says that there is no such lease.
    Gone,
    /// The connection is lost; another may do.
    Connection(String),
}

impl Renewer {
    /// Returns when the lease is lost.
    async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let ends = self.ends.get();
            match self.renew_on_one_stream().await {
                Broken::Gone => {
                    tracing::warn!(id = self.id, "the server does not know the lease any more");
                    return;
                }
                Broken::Connection(cause) => {
                    tracing::debug!(id = self.id, cause, "renewing the lease on a new connection");
                    if self.ends.get() > ends {
                        pause = FIRST_PAUSE;
                    }
                }
            }
            if Instant::now() + pause >= self.ends.get() {
                tokio::time::sleep_until(self.ends.get()).await;
                tracing::warn!(id = self.id, "the lease could not be renewed in time");
                return;
            }
            tokio::time::sleep(pause).await;
            pause = next_pause(pause);
        }
    }

    async fn renew_on_one_stream(&mut self) -> Broken {
        let sent = Instant::now();
        let opened =
            tokio::time::timeout_at(self.limit(), self.client.session.etcd().lease_client().keep_alive(self.id))
                .await;
        let (mut keeper, mut answers) = match opened {
            Ok(Ok(stream)) => stream,
            Ok(Err(etcd_client::Error::LeaseKeepAliveError(cause))) => return self.look(cause).await,
            Ok(Err(error)) => {
                if fate(&error) == Fate::Unauthenticated {
                    self.client.session.log_in_anew(&self.client.options).await;
                }
                return Broken::Connection(error.to_string());
            }
            Err(_) => return Broken::Connection("no answer".into()),
        };
        self.ends.set(sent + self.term);
        loop {
            tokio::time::sleep(self.term / 3).await;
            let sent = Instant::now();
            match tokio::time::timeout_at(self.limit(), renew(&mut keeper, &mut answers)).await {
                Ok(Ok(true)) => self.ends.set(sent + self.term),
                Ok(Ok(false)) => return Broken::Gone,
                Ok(Err(error)) => return Broken::Connection(error.to_string()),
                Err(_) => return Broken::Connection("no answer".into()),
            }
        }
    }

    /// The etcd client distinguishes a missing lease and a lost connection only by its text.
    async fn look(&self, cause: String) -> Broken {
        let mut leases = self.client.session.etcd().lease_client();
        match tokio::time::timeout_at(self.limit(), leases.time_to_live(self.id, None)).await {
            Ok(Ok(left)) if left.ttl() <= 0 => Broken::Gone,
            _ => Broken::Connection(cause),
        }
    }

    /// How long to wait for an answer: never past the end of the term, which must be reported.
    fn limit(&self) -> Instant {
        self.ends.get().min(Instant::now() + self.term / 3)
    }
}

/// Returns true if the server knows the lease.
async fn renew(keeper: &mut LeaseKeeper, answers: &mut LeaseKeepAliveStream) -> Result<bool, etcd_client::Error> {
    keeper.keep_alive().await?;
    match answers.message().await? {
        Some(answer) => Ok(answer.ttl() > 0),
        None => Err(etcd_client::Error::LeaseKeepAliveError("the stream ended".into())),
    }
}
