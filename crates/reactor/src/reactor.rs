//! The loop.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_buffers::{BLOCK_BYTES, BlockBuffer, Received};
use bytes::Bytes;
use io_uring::{IoUring, opcode, squeue, types};

use crate::connection::{Connection, ConnectionId, ListenerId, PeerAddress, RECEIVE_BYTES_MIN};
use crate::file::DirectFile;
use crate::raw_address::RawAddress;
use crate::transport::GatheredSend;
use crate::transport::rdma::{Rdma, Searches};
use crate::transport::shared_memory::Doorbell;
use crate::wake::Wake;

/// Why a loop could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum ReactorError {
    /// The kernel refused to make the ring.
    #[error("io_uring is not available ({source}); {remedy}")]
    NoRing {
        /// The kernel's reason.
        source: io::Error,
        /// The remedy.
        remedy: String,
    },
    /// Something else that the loop needs could not be had.
    #[error("the event loop cannot be set up: {0}")]
    Io(#[from] io::Error),
}

/// Why a connection ended.
#[derive(Debug)]
pub enum CloseCause {
    /// The peer closed it.
    EndOfStream,
    /// Connecting, receiving or sending failed.
    Failed(io::Error),
}

/// Events of the loop.
#[derive(Debug)]
pub enum Event {
    /// A peer has connected.
    Accepted {
        /// Where it connected to.
        listener: ListenerId,
        /// The new connection.
        connection: ConnectionId,
    },
    /// A connection that this side asked for is there.
    Connected(ConnectionId),
    /// Bytes have arrived; see [`Reactor::received`].
    Received(ConnectionId),
    /// The connection is gone.
    Closed(ConnectionId, CloseCause),
    /// A file operation is complete; a read gives its buffer.
    File {
        /// The tag it was started with.
        tag: u64,
        /// How it ended.
        result: io::Result<Option<BlockBuffer>>,
    },
    /// A timer has run out.
    Timer(u64),
    /// Another thread has used a [`Wake`].
    Woken,
}

/// Names a file of one loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId(pub(crate) usize);

/// Pieces of shared block buffers: buffer, first block, number of blocks.
pub type FilePieces = Vec<(Arc<BlockBuffer>, usize, usize)>;

/// Operations on a file. Offsets are multiples of the block size.
pub enum FileOperation {
    /// Read blocks.
    Read {
        /// Offset in bytes.
        offset: u64,
        /// Length in blocks.
        block_count: usize,
    },
    /// Write pieces one after the other.
    Write {
        /// Offset in bytes.
        offset: u64,
        /// Data to write.
        pieces: FilePieces,
        /// True if completion means durability (RWF_DSYNC).
        durable: bool,
    },
    /// Write whole blocks, durably, from wherever in memory they are. If they are not where the
    /// device can take them from, they are copied.
    WriteBytes {
        /// Offset in bytes.
        offset: u64,
        /// Data to write.
        bytes: Bytes,
    },
    /// fdatasync.
    Sync,
    /// Free blocks: a hole in a file, TRIM on a device. Their content is undefined afterwards.
    Discard {
        /// Offset in bytes.
        offset: u64,
        /// Length in blocks.
        block_count: usize,
    },
}

pub(crate) enum Operation {
    Accept {
        listener: ListenerId,
    },
    Connect {
        connection: ConnectionId,
        _address: RawAddress,
    },
    Receive {
        connection: ConnectionId,
        received: Received,
    },
    Send {
        connection: ConnectionId,
        send: GatheredSend,
    },
    FileRead {
        file: FileId,
        tag: u64,
        offset: u64,
        buffer: BlockBuffer,
    },
    FileWrite {
        tag: u64,
        length_bytes: usize,
        _pieces: FilePieces,
        _vectors: Box<[libc::iovec]>,
    },
    FileWriteBytes {
        tag: u64,
        bytes: Bytes,
    },
    /// A sync, or a discard: nothing comes back.
    FileSync {
        tag: u64,
    },
    Wake {
        _counter: Box<u64>,
    },
    SocketWatch {
        connection: ConnectionId,
    },
    Doorbell {
        doorbell: OwnedFd,
    },
    Rdma,
}

const RING_ENTRIES: u32 = 1024;
/// Bytes of file operations that are worth a system call of their own before the turn ends.
const START_BYTES: usize = 256 << 10;

/// One event loop. All its methods are for the thread that made it.
pub struct Reactor {
    pub(crate) ring: IoUring,
    pub(crate) operations: Vec<Option<Operation>>,
    pub(crate) free_slots: Vec<usize>,
    /// Entries that did not fit into the submission queue yet.
    pub(crate) backlog: VecDeque<squeue::Entry>,
    /// Bytes of the file operations among them.
    backlog_file_bytes: usize,
    pub(crate) connections: BTreeMap<ConnectionId, Connection>,
    /// Connections with a carrier that is looked at in every turn.
    pub(crate) carried: Vec<ConnectionId>,
    /// Connections whose carriers have reported that data has come.
    pub(crate) told: BTreeSet<ConnectionId>,
    /// Connections that may have something to send or receive.
    pub(crate) touched: BTreeSet<ConnectionId>,
    pub(crate) listeners: BTreeMap<ListenerId, OwnedFd>,
    /// Those of them on which shared memory is offered.
    pub(crate) shared_listeners: BTreeSet<ListenerId>,
    /// Doorbell by which peers that share memory wake this loop.
    pub(crate) doorbell: Option<Doorbell>,
    /// Streams over RDMA, once one was asked for.
    pub(crate) rdma: Option<Rdma>,
    /// Addresses that are being looked for, to connect to them over RDMA.
    pub(crate) searches: Searches,
    pub(crate) files: Vec<DirectFile>,
    pub(crate) timers: BTreeSet<(Instant, u64)>,
    pub(crate) events: VecDeque<Event>,
    pub(crate) wake: Wake,
    /// How long to look for completions before sleeping.
    pub(crate) busy_poll: Duration,
    /// Listeners that could not accept, and when they try again.
    pub(crate) accept_later: VecDeque<(Instant, ListenerId)>,
    pub(crate) next_id: u64,
}

fn ring_remedy(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOSYS) => "this kernel has no io_uring; Atoll needs Linux 6.1 or newer".into(),
        Some(libc::EPERM | libc::EACCES) => {
            let setting = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
            match setting.trim() {
                "1" | "2" => format!(
                    "the setting kernel.io_uring_disabled={} forbids it; run 'sysctl kernel.io_uring_disabled=0'",
                    setting.trim()
                ),
                _ => "a seccomp profile forbids it; containers need a profile that allows io_uring_setup".into(),
            }
        }
        Some(libc::EINVAL) => "this kernel is too old for DEFER_TASKRUN; Atoll needs Linux 6.1 or newer".into(),
        Some(libc::ENOMEM) => "the locked-memory limit is too low; raise 'ulimit -l'".into(),
        _ => "see 'man io_uring_setup' for this error".into(),
    }
}

impl Reactor {
    /// Sets up the ring and the wake-up.
    pub fn new() -> Result<Self, ReactorError> {
        let mut builder = IoUring::builder();
        builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_cqsize(4 * RING_ENTRIES);
        let ring = builder
            .build(RING_ENTRIES)
            .map_err(|source| ReactorError::NoRing { remedy: ring_remedy(&source), source })?;
        let mut reactor = Reactor {
            ring,
            operations: Vec::new(),
            free_slots: Vec::new(),
            backlog: VecDeque::new(),
            backlog_file_bytes: 0,
            connections: BTreeMap::new(),
            carried: Vec::new(),
            told: BTreeSet::new(),
            touched: BTreeSet::new(),
            listeners: BTreeMap::new(),
            shared_listeners: BTreeSet::new(),
            doorbell: None,
            rdma: None,
            searches: Searches::default(),
            files: Vec::new(),
            timers: BTreeSet::new(),
            events: VecDeque::new(),
            wake: Wake::new()?,
            busy_poll: Duration::ZERO,
            accept_later: VecDeque::new(),
            next_id: 1,
        };
        reactor.arm_wake();
        Ok(reactor)
    }

    /// Returns a handle with which other threads wake this loop.
    pub fn wake_handle(&self) -> Wake {
        self.wake.clone()
    }

    pub(crate) fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    // ---- operations -------------------------------------------------------------------------

    pub(crate) fn submit(&mut self, operation: Operation, entry: squeue::Entry) {
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.operations.push(None);
            self.operations.len() - 1
        });
        self.operations[slot] = Some(operation);
        self.backlog.push_back(entry.user_data(slot as u64));
    }

    pub(crate) fn push_backlog(&mut self) -> io::Result<()> {
        self.backlog_file_bytes = 0;
        while !self.backlog.is_empty() {
            let mut queue = self.ring.submission();
            while let Some(entry) = self.backlog.front() {
                // SAFETY: every buffer that an entry points to is owned by its `Operation`, which
                // stays in `operations` until the terminal completion.
                if unsafe { queue.push(entry) }.is_err() {
                    break;
                }
                self.backlog.pop_front();
            }
            drop(queue);
            if !self.backlog.is_empty()
                && let Err(error) = self.ring.submit()
            {
                // Completions must be taken first; the rest goes with the next turn.
                return match error.raw_os_error() {
                    Some(libc::EBUSY | libc::EAGAIN | libc::EINTR) => Ok(()),
                    _ => Err(error),
                };
            }
        }
        Ok(())
    }

    pub(crate) fn arm_wake(&mut self) {
        let mut counter = Box::new(0_u64);
        let pointer = (&raw mut *counter).cast::<u8>();
        let entry = opcode::Read::new(types::Fd(self.wake.descriptor()), pointer, 8).build();
        self.submit(Operation::Wake { _counter: counter }, entry);
    }

    // ---- connections ------------------------------------------------------------------------

    /// The bytes that have arrived and were not taken yet. The caller takes whole messages off
    /// the front.
    pub fn received(&mut self, id: ConnectionId) -> Option<&mut Received> {
        let connection = self.connections.get_mut(&id).filter(|connection| !connection.is_closed)?;
        assert!(!connection.is_receiving, "received bytes are looked at only between receives");
        Some(&mut connection.received)
    }

    /// Makes room for at least this many more bytes at the next receive.
    pub fn expect_bytes(&mut self, id: ConnectionId, bytes: usize) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.receive_bytes = bytes.max(RECEIVE_BYTES_MIN);
        }
    }

    /// Stops receiving until [`Reactor::resume`]: back-pressure.
    pub fn pause(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.is_paused = true;
        }
    }

    /// Receives again. Bytes that arrived before the pause are reported again.
    pub fn resume(&mut self, id: ConnectionId) {
        let has_news = self.connections.get(&id).is_some_and(|connection| connection.received.has_news());
        self.resume_and_report(id, has_news);
    }

    /// Receives again, and first reports the connection once more: its received bytes were taken, but not all of
    /// them were used before the pause.
    pub fn resume_with_report(&mut self, id: ConnectionId) {
        self.resume_and_report(id, true);
    }

    fn resume_and_report(&mut self, id: ConnectionId, is_to_be_reported: bool) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.is_paused && !connection.is_closed {
            connection.is_paused = false;
            if is_to_be_reported && !connection.is_receiving && !connection.is_report_due {
                connection.is_report_due = true;
                self.events.push_back(Event::Received(id));
            }
            self.touched.insert(id);
        }
    }

    /// Queues bytes; they go out at the next [`Reactor::poll`], together with the rest of the queue.
    pub fn send(&mut self, id: ConnectionId, chunks: impl IntoIterator<Item = Bytes>) {
        let Some(connection) = self.connections.get_mut(&id).filter(|connection| !connection.is_closed) else {
            return;
        };
        for chunk in chunks.into_iter().filter(|chunk| !chunk.is_empty()) {
            connection.to_send_bytes += chunk.len();
            connection.to_send.push_back(chunk);
        }
        self.touched.insert(id);
    }

    /// Returns the address of the other end of a connection.
    pub fn peer_address(&self, id: ConnectionId) -> PeerAddress {
        let Some(connection) = self.connections.get(&id) else { return PeerAddress::Unknown };
        match (&connection.socket, &connection.carrier) {
            (Some(socket), _) => PeerAddress::of(socket),
            (None, Some(carrier)) => carrier.peer_address(),
            (None, None) => PeerAddress::Unknown,
        }
    }

    /// The address of this end of a connection over TCP.
    pub fn local_address(&self, id: ConnectionId) -> Option<SocketAddr> {
        let connection = self.connections.get(&id)?;
        SocketAddr::try_from(rustix::net::getsockname(connection.socket.as_ref()?).ok()?).ok()
    }

    /// Bytes queued or in flight to the peer.
    pub fn unsent_bytes(&self, id: ConnectionId) -> usize {
        self.connections.get(&id).map_or(0, |connection| connection.to_send_bytes)
    }

    /// Closes the connection now; no event follows.
    pub fn close(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.is_closed = true;
        connection.to_send.clear();
        // Operations in flight end when the socket is shut down; their buffers live until then.
        if let Some(socket) = &connection.socket {
            // SAFETY: the descriptor is open as long as `connection` exists.
            unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
        }
        self.forget_if_idle(id);
    }

    /// Closes the connection once everything queued is sent; no event follows.
    pub fn close_after_send(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.is_sent() {
            self.close(id);
        } else {
            connection.close_after_send = true;
            connection.is_paused = true;
            self.touched.insert(id);
        }
    }

    pub(crate) fn forget_if_idle(&mut self, id: ConnectionId) {
        if self.connections.get(&id).is_some_and(|connection| connection.is_closed && connection.operations == 0) {
            self.connections.remove(&id);
            self.carried.retain(|carried| *carried != id);
        }
    }

    pub(crate) fn fail(&mut self, id: ConnectionId, cause: CloseCause) {
        if self.connections.get(&id).is_some_and(|connection| !connection.is_closed) {
            let is_expected = self.connections[&id].close_after_send;
            self.close(id);
            if !is_expected {
                self.events.push_back(Event::Closed(id, cause));
            }
        }
    }

    // ---- files ------------------------------------------------------------------------------

    /// Hands a file to the loop.
    pub fn add_file(&mut self, file: DirectFile) -> FileId {
        self.files.push(file);
        FileId(self.files.len() - 1)
    }

    /// Starts a file operation; [`Event::File`] with the same tag follows. Large ones are under way
    /// when this returns, so that the device works on them while the caller prepares the next.
    pub fn start_file(&mut self, file: FileId, tag: u64, operation: FileOperation) {
        let target = &self.files[file.0];
        let descriptor = types::Fd(target.as_raw_fd());
        match operation {
            FileOperation::Read { offset, block_count } => {
                // A read that brings fewer bytes than asked for is an error, so nothing old is seen.
                let mut buffer = BlockBuffer::for_overwriting(block_count);
                let bytes = buffer.as_mut_slice();
                let entry = opcode::Read::new(descriptor, bytes.as_mut_ptr(), bytes.len() as u32)
                    .offset(target.device_offset(offset))
                    .build();
                self.backlog_file_bytes += block_count * BLOCK_BYTES;
                self.submit(Operation::FileRead { file, tag, offset, buffer }, entry);
            }
            FileOperation::Write { offset, pieces, durable } => {
                let pieces = target.seal_write(offset, pieces);
                let device_offset = target.device_offset(offset);
                let vector = |(buffer, first, count): &(Arc<BlockBuffer>, usize, usize)| {
                    let bytes = &buffer.as_slice()[first * BLOCK_BYTES..(first + count) * BLOCK_BYTES];
                    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
                };
                let vectors: Box<[libc::iovec]> = pieces.iter().map(vector).collect();
                let length_bytes: usize = vectors.iter().map(|vector| vector.iov_len).sum();
                let flags = if durable { libc::RWF_DSYNC } else { 0 };
                let entry = opcode::Writev::new(descriptor, vectors.as_ptr(), vectors.len() as u32)
                    .offset(device_offset)
                    .rw_flags(flags)
                    .build();
                self.backlog_file_bytes += length_bytes;
                let operation = Operation::FileWrite { tag, length_bytes, _pieces: pieces, _vectors: vectors };
                self.submit(operation, entry);
            }
            FileOperation::WriteBytes { offset, bytes } => {
                let bytes = target.seal_bytes(offset, bytes);
                let entry = opcode::Write::new(descriptor, bytes.as_ptr(), bytes.len() as u32)
                    .offset(target.device_offset(offset))
                    .rw_flags(libc::RWF_DSYNC)
                    .build();
                self.backlog_file_bytes += bytes.len();
                self.submit(Operation::FileWriteBytes { tag, bytes }, entry);
            }
            FileOperation::Sync => {
                let entry = opcode::Fsync::new(descriptor).flags(types::FsyncFlags::DATASYNC).build();
                self.submit(Operation::FileSync { tag }, entry);
            }
            FileOperation::Discard { offset, block_count } => {
                let entry = opcode::Fallocate::new(descriptor, (block_count * BLOCK_BYTES) as u64)
                    .offset(target.device_offset(offset))
                    .mode(crate::file::PUNCH)
                    .build();
                self.submit(Operation::FileSync { tag }, entry);
            }
        }
        if self.backlog_file_bytes >= START_BYTES {
            // What cannot be started now goes with the turn, which meets the same error.
            let _ = self.push_backlog().and_then(|()| self.ring.submit());
        }
    }

    // ---- timers and the loop ----------------------------------------------------------------

    /// Reports [`Event::Timer`] with this tag after `delay`. Timers are not cancelled; a caller
    /// that no longer cares ignores the event.
    pub fn set_timer(&mut self, delay: Duration, tag: u64) {
        self.timers.insert((Instant::now() + delay, tag));
    }

    /// Starts all queued operations, waits for an event (at most `wait`, if given), and appends the events to
    /// `events`.
    pub fn poll(&mut self, wait: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()> {
        self.start_transfers();
        let until_next = self.until_next();
        self.push_backlog()?;
        let wait = [wait, until_next].into_iter().flatten().min();
        let wait = if self.events.is_empty() { wait } else { Some(Duration::ZERO) };
        self.submit_and_wait(wait)?;
        self.take_completions();
        self.take_timers();
        self.poll_rdma();
        self.look_at_carriers();
        for event in self.events.drain(..) {
            if let Event::Received(id) = &event
                && let Some(connection) = self.connections.get_mut(id)
                && std::mem::take(&mut connection.is_report_due)
            {
                self.touched.insert(*id);
            }
            events.push(event);
        }
        Ok(())
    }

    /// How long until there is something to do even if nothing happens.
    pub(crate) fn until_next(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let until_rdma = self.until_rdma(now);
        let until_timer = self.timers.first().map(|(at, _)| at.saturating_duration_since(now));
        let until_accept = self.accept_later.front().map(|(at, _)| at.saturating_duration_since(now));
        [until_timer, until_accept, until_rdma].into_iter().flatten().min()
    }

    fn take_timers(&mut self) {
        let now = Instant::now();
        while let Some((_, listener)) = self.accept_later.pop_front_if(|(at, _)| *at <= now) {
            if let Some(descriptor) = self.listeners.get(&listener).map(AsRawFd::as_raw_fd) {
                self.arm_accept(listener, descriptor);
            }
        }
        while let Some((_, tag)) = self.timers.first().filter(|(at, _)| *at <= now).copied() {
            self.timers.pop_first();
            self.events.push_back(Event::Timer(tag));
        }
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        // Operations in flight still use their buffers. Closing the ring waits for none of them,
        // so the buffers are leaked rather than freed under the kernel's hands.
        std::mem::forget(std::mem::take(&mut self.operations));
    }
}
