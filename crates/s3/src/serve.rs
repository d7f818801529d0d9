//! Running a gateway: its listeners, the collection of garbage, access to the key service.

use std::future::Future;
use std::time::Duration;

use atoll_metrics::slow;
use futures::future::BoxFuture;

use crate::collector::CollectorReport;
use crate::gateway::Gateway;
use crate::metrics;
use crate::observed::slow_in_flight;
use crate::shell::{self, Listener, Workers};

/// How often access to the key service is looked after.
const KEY_MAINTENANCE_INTERVAL: Duration = Duration::from_secs(15);
/// Pause after each read of the search for data that no record names, which has no hurry.
const SEARCH_PAUSE: Duration = Duration::from_millis(100);

impl Gateway {
    /// Serves the listeners, and collects garbage, until `shutdown` resolves; then lets requests end. Everything
    /// that asks the [`crate::DataStore`] runs on the workers.
    ///
    /// Boxed, so that the server is compiled here, once, and not again in each crate that starts one.
    pub fn serve<'a>(
        &'a self,
        workers: Workers,
        listeners: Vec<Listener>,
        shutdown: impl Future<Output = ()> + Send + 'a,
    ) -> BoxFuture<'a, ()> {
        self.serve_until(workers, listeners, Box::pin(shutdown))
    }

    fn serve_until<'a>(
        &'a self,
        workers: Workers,
        listeners: Vec<Listener>,
        shutdown: BoxFuture<'a, ()>,
    ) -> BoxFuture<'a, ()> {
        Box::pin(self.serve_now(workers, listeners, shutdown))
    }

    async fn serve_now(&self, workers: Workers, listeners: Vec<Listener>, shutdown: BoxFuture<'_, ()>) {
        metrics::register_all();
        slow::tell_in_flight_with(slow_in_flight);
        let collector = self.config.collect_interval.map(|interval| {
            let gateway = self.clone();
            workers.first().spawn(async move { gateway.collect_forever(interval).await })
        });
        let search = self.config.collect_interval.map(|_| {
            let gateway = self.clone();
            workers.first().spawn(async move { gateway.search_forever().await })
        });
        let keys = self.service.keys.clone();
        let maintenance = tokio::spawn(async move {
            loop {
                tokio::time::sleep(KEY_MAINTENANCE_INTERVAL).await;
                if let Err(error) = keys.maintain().await {
                    tracing::warn!("access to the key service: {error}");
                }
            }
        });
        shell::serve(self, &workers, listeners, shutdown).await;
        maintenance.abort();
        collector.into_iter().chain(search).for_each(|task| task.abort());
    }

    async fn search_forever(&self) {
        // Soon after the start, since a gateway has died perhaps; then a second time to be sure.
        let soon = self.config.abandoned_after;
        for interval in [soon, soon].into_iter().chain(std::iter::repeat(self.config.search_interval)) {
            tokio::time::sleep(interval).await;
            match self.search_orphans(SEARCH_PAUSE).await {
                Ok(report) if report.suspects == 0 && report.failures == 0 => {}
                Ok(report) => tracing::info!(?report, "searched for data that nothing names"),
                Err(error) => tracing::warn!(%error, "the search for data that nothing names fails"),
            }
        }
    }

    async fn collect_forever(&self, interval: Duration) {
        loop {
            tokio::time::sleep(interval).await;
            match self.collect_garbage().await {
                Ok(report) if report == CollectorReport::default() => {}
                Ok(report) => tracing::info!(?report, "collected garbage"),
                Err(error) => tracing::warn!(%error, "garbage collection fails"),
            }
        }
    }
}
