//! Dependencies of one gateway of several, with a mishap for it alone at one of its changes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use atoll_iam::Identities;
use atoll_iam::operations::Answer;
use atoll_objects::{ClientError, ObjectClient};
use atoll_s3::{BucketDirectory, ChangeError, DataStore, DirectoryError, IdentityOperation};
use atoll_types::identities::LastUsedRecord;
use atoll_types::records::{BucketRecord, PoolRecord};
use atoll_types::{ObjectName, PoolId, ReadOutcome, ReadRequest, WriteRequest};
use bytes::Bytes;
use tokio::sync::watch;

use super::memory_client::MemoryClient;
use super::memory_directory::MemoryDirectory;

/// Mishap at the chosen change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// The gateway is killed before it. Nothing that it asks for is done any more.
    Death,
    /// It is done, but the gateway gets a timeout.
    LostAnswer,
    /// It is not done, and the gateway gets a timeout.
    LostRequest,
    /// The gateway gets a timeout, and the change is done long after that: it was under way all the time.
    Late,
    /// The gateway stands still before it, until [`Cut::continues`].
    Pause,
}

/// The changes of one gateway, counted.
pub struct Cut {
    mishap: Mishap,
    at: usize,
    begun: AtomicUsize,
    dead: watch::Sender<bool>,
    continues: watch::Sender<bool>,
    /// Change under way.
    late: Mutex<Option<(PoolId, WriteRequest)>>,
}

/// Fate of a change.
enum Fate {
    Done,
    Lost { happens: bool },
    Late,
}

impl Cut {
    /// The mishap comes at the change with this number, from 0.
    pub fn new(mishap: Mishap, at: usize) -> Arc<Self> {
        Arc::new(Cut {
            mishap,
            at,
            begun: AtomicUsize::new(0),
            dead: watch::Sender::new(false),
            continues: watch::Sender::new(false),
            late: Mutex::new(None),
        })
    }

    /// Returns true if the change with the number has come.
    pub fn is_over(&self) -> bool {
        self.begun.load(Ordering::SeqCst) > self.at
    }

    /// Waits until the gateway is dead.
    pub async fn death(&self) {
        let _ = self.dead.subscribe().wait_for(|dead| *dead).await;
    }

    /// Returns true if the gateway is to stand still.
    pub fn pauses(&self) -> bool {
        self.mishap == Mishap::Pause
    }

    /// Waits until the change with the number has come.
    pub async fn comes(&self) {
        while !self.is_over() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// A gateway that stands still continues.
    pub fn continues(&self) {
        self.continues.send_replace(true);
    }

    /// The change under way arrives.
    pub async fn arrives(&self, client: &MemoryClient) {
        let late = self.late.lock().unwrap().take();
        if let Some((pool, request)) = late {
            let _ = ObjectClient::send_write(client, pool, request).await;
        }
    }

    /// A call of a dead gateway never comes back.
    async fn live(&self) {
        if *self.dead.borrow() {
            std::future::pending::<()>().await;
        }
    }

    async fn change(&self) -> Fate {
        self.live().await;
        if self.begun.fetch_add(1, Ordering::SeqCst) != self.at {
            return Fate::Done;
        }
        match self.mishap {
            Mishap::Death => {
                self.dead.send_replace(true);
                std::future::pending().await
            }
            Mishap::LostAnswer => Fate::Lost { happens: true },
            Mishap::LostRequest => Fate::Lost { happens: false },
            Mishap::Late => Fate::Late,
            Mishap::Pause => {
                let _ = self.continues.subscribe().wait_for(|continues| *continues).await;
                Fate::Done
            }
        }
    }
}

/// Objects of all, as the one gateway gets at them.
pub struct CutStore {
    pub client: MemoryClient,
    pub cut: Arc<Cut>,
}

#[async_trait]
impl DataStore for CutStore {
    async fn send_read(
        &self,
        pool: PoolId,
        object: ObjectName,
        request: ReadRequest,
    ) -> Result<(ReadOutcome, Bytes), ClientError> {
        self.cut.live().await;
        ObjectClient::send_read(&self.client, pool, object, request).await
    }

    async fn send_write(&self, pool: PoolId, request: WriteRequest) -> Result<(), ClientError> {
        let object = request.object.clone();
        match self.cut.change().await {
            Fate::Done => return ObjectClient::send_write(&self.client, pool, request).await,
            Fate::Lost { happens: false } => {}
            Fate::Lost { happens: true } => drop(ObjectClient::send_write(&self.client, pool, request).await),
            Fate::Late => *self.cut.late.lock().unwrap() = Some((pool, request)),
        }
        Err(ClientError::TimedOut { pool, object, timeout_ms: 1, detail: "a test".into() })
    }
}

/// Cluster state of all, as the one gateway gets at it.
pub struct CutDirectory {
    pub directory: Arc<MemoryDirectory>,
    pub cut: Arc<Cut>,
}

impl CutDirectory {
    async fn change<T>(
        &self,
        change: impl Future<Output = Result<T, DirectoryError>>,
    ) -> Result<T, DirectoryError> {
        match self.cut.change().await {
            Fate::Done => change.await,
            Fate::Lost { happens: true } => {
                let _ = change.await;
                Err(DirectoryError::Unavailable("a test".into()))
            }
            Fate::Lost { happens: false } | Fate::Late => Err(DirectoryError::Unavailable("a test".into())),
        }
    }
}

#[async_trait]
impl BucketDirectory for CutDirectory {
    fn unconfirmed_for(&self) -> Duration {
        self.directory.unconfirmed_for()
    }

    fn cluster_unix_ms(&self) -> Option<u64> {
        self.directory.cluster_unix_ms()
    }

    async fn bucket(&self, name: &str) -> Result<Option<BucketRecord>, DirectoryError> {
        self.cut.live().await;
        self.directory.bucket(name).await
    }

    async fn buckets(&self) -> Result<Vec<BucketRecord>, DirectoryError> {
        self.cut.live().await;
        self.directory.buckets().await
    }

    async fn create_bucket(&self, record: &BucketRecord) -> Result<Option<BucketRecord>, DirectoryError> {
        self.change(self.directory.create_bucket(record)).await
    }

    async fn update_bucket(&self, old: &BucketRecord, new: &BucketRecord) -> Result<bool, DirectoryError> {
        self.change(self.directory.update_bucket(old, new)).await
    }

    async fn delete_bucket(&self, record: &BucketRecord) -> Result<bool, DirectoryError> {
        self.change(self.directory.delete_bucket(record)).await
    }

    async fn pool(&self, name: &str) -> Result<Option<PoolRecord>, DirectoryError> {
        self.directory.pool(name).await
    }

    fn identities(&self) -> Arc<Identities> {
        self.directory.identities()
    }

    async fn identities_with(&self, access_key: &str) -> Result<Option<Arc<Identities>>, DirectoryError> {
        self.directory.identities_with(access_key).await
    }

    async fn current_identities(&self) -> Result<Arc<Identities>, DirectoryError> {
        self.directory.current_identities().await
    }

    async fn change_identities(&self, operation: &IdentityOperation<'_>) -> Result<Answer, ChangeError> {
        self.directory.change_identities(operation).await
    }

    async fn last_used(&self, access_key: &str) -> Result<Option<LastUsedRecord>, DirectoryError> {
        self.directory.last_used(access_key).await
    }

    async fn note_last_use(&self, access_key: &str, record: &LastUsedRecord) -> Result<(), DirectoryError> {
        self.directory.note_last_use(access_key, record).await
    }
}
