//! How often key services are asked, and how long that takes (docs/reference/metrics.md).

use std::sync::LazyLock;
use std::time::Instant;

use atoll_metrics::{Counter, Family, Latency, register};

use crate::KeyError;

struct Registered {
    calls: Family<2, Counter>,
    duration: Family<1, Latency>,
}

static REGISTERED: LazyLock<Registered> = LazyLock::new(|| Registered {
    calls: register("atoll_key_service_calls", "Calls of the key service, by how they ended", Family::default()),
    duration: register(
        "atoll_key_service_call_duration_seconds",
        "How long calls of the key service took",
        Family::default(),
    ),
});

/// Makes the counters known before there is a call.
pub(crate) fn register_all() {
    for operation in ["wrap", "unwrap"] {
        for result in ["ok", "error"] {
            let labels = [("operation", operation.to_owned()), ("result", result.to_owned())];
            drop(REGISTERED.calls.get_or_create_owned(&labels));
        }
    }
}

/// Makes a call, and measures it.
pub(crate) async fn measured<T>(
    operation: &'static str,
    call: impl Future<Output = Result<T, KeyError>>,
) -> Result<T, KeyError> {
    let started = Instant::now();
    let outcome = call.await;
    let operation = ("operation", operation.to_owned());
    REGISTERED.duration.get_or_create(std::array::from_ref(&operation)).observe(started.elapsed());
    // That a key is gone, or that it never was, is an answer: only a service that does not answer fails.
    let result = if matches!(outcome, Err(KeyError::ServiceUnavailable { .. })) { "error" } else { "ok" };
    REGISTERED.calls.get_or_create(&[operation, ("result", result.to_owned())]).inc();
    outcome
}
