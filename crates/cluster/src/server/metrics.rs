//! Metrics of the embedded server (docs/reference/metrics.md).

use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use atoll_metrics::{Counter, Family, Gauge, Latency, register};
use tonic::codegen::http::{Request, Response};
use tower_service::Service;

/// Methods of etcd's API that this server has. Strangers may ask for anything, and names of series must not be
/// theirs.
const METHODS: [&str; 31] = [
    "Range",
    "Put",
    "DeleteRange",
    "Txn",
    "Compact",
    "LeaseGrant",
    "LeaseRevoke",
    "LeaseKeepAlive",
    "LeaseTimeToLive",
    "LeaseLeases",
    "Watch",
    "MemberList",
    "Status",
    "Snapshot",
    "Authenticate",
    "AuthEnable",
    "AuthDisable",
    "AuthStatus",
    "UserAdd",
    "UserGet",
    "UserList",
    "UserDelete",
    "UserChangePassword",
    "UserGrantRole",
    "UserRevokeRole",
    "RoleAdd",
    "RoleGet",
    "RoleList",
    "RoleDelete",
    "RoleGrantPermission",
    "RoleRevokePermission",
];
const OTHER_METHOD: &str = "other";

struct Registered {
    requests: Family<2, Counter>,
    duration: Family<1, Latency>,
    commit_duration: Latency,
    database_bytes: Gauge,
}

static REGISTERED: LazyLock<Registered> = LazyLock::new(|| Registered {
    requests: register(
        "atoll_state_requests",
        "Requests to cluster state by method and result",
        Family::default(),
    ),
    duration: register(
        "atoll_state_request_duration_seconds",
        "Until cluster state answered; of a stream, until it began",
        Family::default(),
    ),
    commit_duration: register(
        "atoll_state_commit_duration_seconds",
        "How long it took to make changes durable",
        Latency::default(),
    ),
    database_bytes: register("atoll_state_database_bytes", "Keys and values of cluster state", Gauge::default()),
});

/// Makes the metrics known before there are requests.
pub(super) fn register_all() {
    LazyLock::force(&REGISTERED);
}

/// A batch of changes is durable.
pub(super) fn committed(duration: Duration, stored_bytes: u64) {
    REGISTERED.commit_duration.observe(duration);
    set_stored_bytes(stored_bytes);
}

pub(super) fn set_stored_bytes(stored_bytes: u64) {
    REGISTERED.database_bytes.set(i64::try_from(stored_bytes).unwrap_or(i64::MAX));
}

/// A service whose requests are measured.
#[derive(Clone)]
pub(super) struct Measured<S>(pub S);

impl<S, Q, A> Service<Request<Q>> for Measured<S>
where
    S: Service<Request<Q>, Response = Response<A>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let asked = request.uri().path().rsplit('/').next().unwrap_or_default();
        let method = METHODS.into_iter().find(|method| *method == asked).unwrap_or(OTHER_METHOD);
        let started = Instant::now();
        let answer = self.0.call(request);
        Box::pin(async move {
            let answer = answer.await;
            // An error of gRPC is an answer without a body, whose headers have the status.
            let is_ok = answer.as_ref().is_ok_and(|answer| !answer.headers().contains_key("grpc-status"));
            let result = if is_ok { "ok" } else { "error" };
            let method = ("method", method.to_owned());
            REGISTERED.duration.get_or_create(std::array::from_ref(&method)).observe(started.elapsed());
            REGISTERED.requests.get_or_create(&[method, ("result", result.to_owned())]).inc();
            answer
        })
    }
}
