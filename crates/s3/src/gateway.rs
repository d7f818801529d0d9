//! The gateway as its owner sees it: configuration, and the state that its parts share.

use std::sync::Arc;
use std::time::Duration;

use atoll_audit::AuditLog;
use atoll_credentials::KeyCache;
use atoll_keys::KeyService;
use atoll_types::PoolId;
use atoll_types::access::ObjectOwnership;
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::host::SingleDomain;
use s3s::service::{S3Service, S3ServiceBuilder};
use tokio::sync::Mutex;

use crate::access::Gate;
use crate::arrival::{TrustedProxies, TrustedProxy};
use crate::bucket::Buckets;
use crate::collector::{CollectorReport, collect};
use crate::data::Budget;
use crate::entry_hints::EntryHints;
use crate::error::GatewayError;
use crate::look_ups::UnheardNames;
use crate::ops::{Operations, Service};
use crate::orphans::{Search, SearchReport};
use crate::query_api::Issuers;
use crate::shell::XML_BYTES_MAX;
use crate::sightings::{CollectorMemory, Sightings, Standing};
use crate::users::Users;
use crate::{BucketDirectory, DataStore};

/// Objects without a record that are remembered from one search to the next.
const UNNAMED_MAX: usize = 100_000;

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
            collector: Mutex::new(CollectorMemory::new()),
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

    /// One walk of the garbage collector, to be called on one of the [`crate::Workers`].
    pub async fn collect_garbage(&self) -> Result<CollectorReport, GatewayError> {
        collect(&self.service).await
    }

    /// One search for data that no record names, because its gateway died, to be called on one of the
    /// [`crate::Workers`]. It rests for `pause` after each read. Objects that two searches find, at least
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
}
