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
        if let Some(collector) = collector {
            collector.abort();
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
