//! The server's limits; every queue and table has one.

use std::time::Duration;

/// Size of one request.
pub const REQUEST_BYTES: usize = 4 << 20;
/// Size of one answer; a list that is longer must be read in parts.
pub const RESPONSE_BYTES: usize = 64 << 20;
/// Operations of one transaction in any of its lists.
pub const TXN_OPERATIONS: usize = 512;
/// All keys and values together; they are held in memory.
pub const STORED_BYTES: u64 = 1 << 30;
/// Leases alive at a time.
pub const LEASES: usize = 100_000;
/// Those that one user other than root has granted since the server started.
pub const LEASES_OF_USER: usize = 10_000;
/// Longest lease of a user other than root.
pub const LEASE_SECONDS_OF_USER: i64 = 3_600;
/// Longest lease, as in etcd.
pub const LEASE_SECONDS: i64 = 9_000_000_000;
/// Shortest lease: less is rounded up, as etcd does.
pub const LEASE_SECONDS_MIN: i64 = 2;
/// Events kept for watches that start in the past.
pub const HISTORY_EVENTS: usize = 10_000;
/// Bytes of keys and values kept for them.
pub const HISTORY_BYTES: usize = 64 << 20;
/// Watches on one stream.
pub const WATCHES: usize = 4096;
/// Size at which a watch answer is sent and the next is begun.
pub const WATCH_RESPONSE_BYTES: usize = 1 << 20;
/// Watch answers that may wait for a slow receiver.
pub const WATCH_QUEUE: usize = 16;
/// Time between unasked progress reports, as in etcd.
pub const PROGRESS_INTERVAL: Duration = Duration::from_secs(600);
/// Requests that may wait for the writer.
pub const WRITE_QUEUE: usize = 1024;
/// Requests in one commit.
pub const WRITE_BATCH: usize = 256;
/// Time between looks for expired leases.
pub const LEASE_TICK: Duration = Duration::from_millis(250);
/// Tokens handed out and not expired.
pub const TOKENS: usize = 10_000;
/// A token not used for this long is forgotten, as in etcd.
pub const TOKEN_IDLE: Duration = Duration::from_secs(300);
/// Time after which a connection is closed if no request has shown a token.
pub const LOGIN: Duration = Duration::from_secs(30);
/// Bytes that a connection may send until a request has shown a token: those that HTTP/2 lets a client send before the
/// first request is looked at, and as many for TLS and log-ins.
pub const STRANGER_BYTES: u64 = 2 << 20;
/// Log-ins of one network at a time whose passwords are slow to compare, and of all.
pub const SLOW_LOGINS_OF_NETWORK: usize = 2;
pub const SLOW_LOGINS: usize = 16;
/// Time between snapshots that are taken by themselves.
pub const SNAPSHOT_EVERY: Duration = Duration::from_secs(3_600);
/// Time from the start to the first of them.
pub const SNAPSHOT_FIRST: Duration = Duration::from_secs(60);
/// Snapshots that are kept.
pub const SNAPSHOTS: usize = 24;
/// Streams of one connection.
pub const STREAMS: u32 = 1024;
/// How long a shutdown waits for answers in flight.
pub const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);
