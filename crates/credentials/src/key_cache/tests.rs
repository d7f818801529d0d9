use super::*;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use async_trait::async_trait;
use atoll_keys::KeyDescription;

/// Opens everything as one key, slowly, and counts how often.
#[derive(Default)]
struct Service {
    asked: AtomicU32,
    is_down: AtomicBool,
}

fn down() -> KeyError {
    KeyError::ServiceUnavailable { service: "test".into(), detail: "down".into() }
}

#[async_trait]
impl KeyService for Service {
    async fn wrap_with(&self, _: Option<&str>, _: &str, _: &SecretKey) -> Result<String, KeyError> {
        Err(down())
    }

    async fn unwrap(&self, _: &str, _: &str) -> Result<SecretKey, KeyError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(20)).await;
        if self.is_down.load(Ordering::SeqCst) { Err(down()) } else { Ok(SecretKey::from_bytes([7; 32])) }
    }

    async fn rewrap(&self, _: &str, _: &str) -> Result<Option<String>, KeyError> {
        Err(down())
    }

    async fn list(&self) -> Result<Vec<KeyDescription>, KeyError> {
        Err(down())
    }

    async fn create(&self, _: &str) -> Result<(), KeyError> {
        Err(down())
    }

    async fn rotate(&self, _: &str) -> Result<KeyDescription, KeyError> {
        Err(down())
    }

    async fn destroy(&self, _: &str) -> Result<(), KeyError> {
        Err(down())
    }
}

fn cache(lifetime_ms: u64) -> (Arc<Service>, Arc<KeyCache>) {
    let service = Arc::new(Service::default());
    (service.clone(), KeyCache::new(service, Duration::from_millis(lifetime_ms)))
}

#[tokio::test(start_paused = true)]
async fn of_many_requests_for_a_key_one_asks() {
    let (service, cache) = cache(60_000);
    let all = (0..50).map(|_| cache.unwrap("bucket 1", "w", 0));
    assert!(futures::future::join_all(all).await.iter().all(Result::is_ok));
    assert_eq!(service.asked.load(Ordering::SeqCst), 1);
    // Another wrapping of the key, and another generation, are not what was asked for.
    cache.unwrap("bucket 1", "w2", 0).await.unwrap();
    cache.unwrap("bucket 1", "w2", 1).await.unwrap();
    assert_eq!(service.asked.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn keys_go_on_without_the_service_until_their_time_is_over() {
    let (service, cache) = cache(600);
    cache.unwrap("bucket 1", "w", 0).await.unwrap();
    service.is_down.store(true, Ordering::SeqCst);
    let begun = Instant::now();
    // Asking again beside the requests fails, which they do not notice.
    while begun.elapsed() < Duration::from_millis(500) {
        cache.unwrap("bucket 1", "w", 0).await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(service.asked.load(Ordering::SeqCst) > 1, "it was asked again before the time was over");
    tokio::time::sleep(Duration::from_millis(150)).await;
    // Then all who ask learn it, and only the first one waits for it.
    let asked = service.asked.load(Ordering::SeqCst);
    let all = (0..50).map(|_| cache.unwrap("bucket 1", "w", 0));
    assert!(futures::future::join_all(all).await.iter().all(Result::is_err));
    assert_eq!(service.asked.load(Ordering::SeqCst), asked + 1);
    // It is asked anew a little later.
    service.is_down.store(false, Ordering::SeqCst);
    tokio::time::sleep(FAILURE_PAUSE).await;
    cache.unwrap("bucket 1", "w", 0).await.unwrap();
}
