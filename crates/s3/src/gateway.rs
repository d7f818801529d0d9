//! The gateway as its owner sees it: configuration, start, collection of garbage.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use atoll_audit::AuditLog;
use atoll_keys::KeyService;
use atoll_types::PoolId;
use atoll_types::access::ObjectOwnership;
use futures::future::BoxFuture;
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::host::SingleDomain;
use s3s::service::{S3Service, S3ServiceBuilder};
use tokio::sync::Mutex;

use crate::access::Gate;
use crate::bucket::Buckets;
use crate::collector::{Memory, collect};
use crate::data::Budget;
use crate::entry_hints::EntryHints;
use crate::error::GatewayError;
use crate::key_cache::KeyCache;
use crate::look_ups::UnheardNames;
use crate::metrics;
use crate::ops::{Operations, Service};
use crate::orphans::{Search, SearchReport};
use crate::query_api::Issuers;
use crate::shell::{self, Listener, TrustedProxies, TrustedProxy, Workers};
use crate::sightings::{Sightings, Standing};
use crate::users::Users;
use crate::{BucketDirectory, DataStore};

/// Largest XML document that a request may carry: a completion of 10,000 parts with checksums.
pub(crate) const XML_BYTES_MAX: usize = 4 << 20;

/// Objects without a record that are remembered from one search to the next.
const UNNAMED_MAX: usize = 100_000;
/// Pause after each read of the search for them, which has no hurry.
const SEARCH_PAUSE: Duration = Duration::from_millis(100);

/// How often access to the key service is looked after.
const KEY_MAINTENANCE_INTERVAL: Duration = Duration::from_secs(15);

/// Settings of a gateway.
#[derive(Clone)]
pub struct GatewayConfig {
    /// The pool in which new buckets are made, with their indexes: a replicated one.
    pub pool: PoolId,
    /// Name of the pool for the data of new buckets; without a pool of this name data is kept with the index.
    pub data_pool: Option<String>,
    /// Index objects of a new bucket.
    pub index_shards: u32,
    /// The region in answers to clients.
    pub region: String,
    /// Ownership of the objects of new buckets, and the effect of ACLs in them, unless the request chooses.
    pub object_ownership: ObjectOwnership,
    /// True if forms and URLs may be signed with version 2, which rests on HMAC-SHA1 and covers neither bodies nor
    /// most headers.
    pub allows_version_2: bool,
    /// With a domain `d`, buckets can also be addressed as `bucket.d`.
    pub domain: Option<String>,
    /// Proxies that are trusted to name the client and to say whether it came over TLS.
    pub trusted_proxies: Vec<TrustedProxy>,
    /// Connections on which a request was signed. Half as many may be of strangers in addition; each of these may
    /// lose its place to a new one.
    pub connections_max: usize,
    /// Bytes of object data that all requests together may have in memory; more wait.
    pub memory_max: u64,
    /// Bytes of all headers of one request.
    pub header_bytes_max: usize,
    /// How long a client may take to send its headers, and how long a connection may be idle.
    pub header_timeout: Duration,
    /// How long a client may send nothing in the middle of a body, or take nothing of an answer.
    pub stall_timeout: Duration,
    /// Longest time for requests after the shutdown began.
    pub shutdown_timeout: Duration,
    /// How long replaced or deleted data is kept for the GETs that are reading it. Those that take longer say so.
    pub garbage_grace: Duration,
    /// Time without progress, as seen by this gateway, until the process that began an unfinished operation is taken
    /// for dead.
    pub abandoned_after: Duration,
    /// How long a key that the key service has unwrapped is used without asking again.
    pub key_lifetime: Duration,
    /// How long identities count that cluster state does not confirm. After that no request is served, because keys and
    /// rights may have been taken away.
    pub identity_lifetime: Duration,
    /// Where the record of each request goes; `None`: nowhere.
    pub audit: Option<AuditLog>,
    /// Pause between two walks of the garbage collector; `None` for no collector.
    pub collect_interval: Option<Duration>,
    /// Pause between two searches for data that no record names, if there is a collector.
    pub search_interval: Duration,
}

impl GatewayConfig {
    /// The usual settings, for buckets in `pool`.
    pub fn new(pool: PoolId) -> Self {
        GatewayConfig {
            pool,
            data_pool: None,
            index_shards: 8,
            region: "us-east-1".into(),
            object_ownership: ObjectOwnership::BucketOwnerEnforced,
            allows_version_2: true,
            domain: None,
            trusted_proxies: Vec::new(),
            connections_max: 4_096,
            memory_max: 1 << 30,
            header_bytes_max: 16 << 10,
            header_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(60),
            shutdown_timeout: Duration::from_secs(30),
            garbage_grace: Duration::from_secs(60),
            abandoned_after: Duration::from_secs(600),
            key_lifetime: Duration::from_secs(3_600),
            identity_lifetime: Duration::from_secs(30),
            audit: None,
            collect_interval: Some(Duration::from_secs(30)),
            search_interval: Duration::from_secs(6 * 3_600),
        }
    }
}

/// Results of one walk of the garbage collector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollectorReport {
    /// Garbage records done with.
    pub records: u64,
    /// Bytes of data removed.
    pub bytes: u64,
    /// Objects that no record named, and that were removed.
    pub orphans: u64,
    /// Buckets or records that failed; they are tried again on the next walk.
    pub failures: u64,
}

/// An S3 gateway. Clones share everything.
#[derive(Clone)]
pub struct Gateway {
    pub(crate) config: Arc<GatewayConfig>,
    pub(crate) service: Arc<Service>,
    pub(crate) s3: S3Service,
    pub(crate) users: Users,
    /// Issuers of tokens with which roles can be assumed.
    pub(crate) issuers: Arc<Issuers>,
    pub(crate) trusted_proxies: TrustedProxies,
}

impl Gateway {
    /// Puts a gateway together; nothing runs yet. Fails on a malformed domain.
    pub fn new(
        config: GatewayConfig,
        store: Arc<dyn DataStore>,
        directory: Arc<dyn BucketDirectory>,
        keys: Arc<dyn KeyService>,
    ) -> Result<Self, GatewayError> {
        let key_cache = KeyCache::new(keys.clone(), config.key_lifetime);
        let unheard = Arc::new(UnheardNames::new());
        let users = Users::new(directory.clone(), keys.clone(), key_cache.clone(), unheard.clone());
        let service = Arc::new(Service {
            store,
            directory: directory.clone(),
            keys: keys.clone(),
            buckets: Buckets::new(directory, keys, key_cache, unheard),
            users: users.clone(),
            pool: config.pool,
            data_pool: config.data_pool.clone(),
            index_shards: config.index_shards.max(1),
            region: config.region.clone(),
            object_ownership: config.object_ownership,
            entry_hints: EntryHints::new(),
            budget: Budget::new(config.memory_max),
            garbage_grace: config.garbage_grace,
            abandoned_after: config.abandoned_after,
            standing: Standing::new(),
            collector: Mutex::new(Memory::new()),
            unnamed: Mutex::new(Sightings::new(UNNAMED_MAX)),
        });
        let mut builder = S3ServiceBuilder::new(Operations(service.clone()));
        builder.set_auth(users.clone());
        builder.set_access(Gate(service.clone()));
        let mut limits = S3Config::default();
        limits.xml_max_body_size = XML_BYTES_MAX;
        builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(limits))));
        if let Some(domain) = &config.domain {
            let host = SingleDomain::new(domain).map_err(|error| GatewayError::Malformed {
                what: format!("the gateway's domain '{domain}'"),
                detail: error.to_string(),
            })?;
            builder.set_host(host);
        }
        let trusted_proxies = TrustedProxies::new(&config.trusted_proxies);
        let (config, issuers) = (Arc::new(config), Arc::new(Issuers::new()));
        Ok(Gateway { config, service, s3: builder.build(), users, issuers, trusted_proxies })
    }

    /// Serves the listeners, and collects garbage, until `shutdown` resolves; then lets requests end. Everything
    /// that asks the [`DataStore`] runs on the workers.
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

    /// One walk of the garbage collector, to be called on one of the [`Workers`].
    pub async fn collect_garbage(&self) -> Result<CollectorReport, GatewayError> {
        collect(&self.service).await
    }

    /// One search for data that no record names, because its gateway died, to be called on one of the [`Workers`].
    /// It rests for `pause` after each read. Objects that two searches find, at least
    /// [`GatewayConfig::abandoned_after`] apart, are left to the collector.
    pub async fn search_orphans(&self, pause: Duration) -> Result<SearchReport, GatewayError> {
        let mut unnamed = self.service.unnamed.lock().await;
        let search = Search {
            unnamed: &mut unnamed,
            abandoned_after: self.service.abandoned_after,
            pause,
            report: SearchReport::default(),
        };
        let records = self.service.directory.buckets().await?.into_iter();
        Ok(search.run(records.map(|record| self.service.index_of(record))).await)
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
