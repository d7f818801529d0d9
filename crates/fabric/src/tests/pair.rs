//! Two fabrics in one thread, and one stream between them.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use atoll_buffers::Received;
use bytes::{Buf, Bytes, BytesMut};

use crate::error::FabricError;
use crate::fabric::{Event, Fabric, LinkId, Settings, Way};

pub const DEADLINE: Duration = Duration::from_secs(20);
/// Frames with payloads of this size are received as long runs.
const LONG_BYTES: usize = 32 << 10;

/// The provider that is tested, `tcp` unless a host with RDMA sets another.
pub fn provider() -> String {
    std::env::var("ATOLL_TEST_FABRIC_PROVIDER").unwrap_or_else(|_| "tcp".into())
}

/// Returns the address of a port of this host that its RDMA device serves.
pub fn address(port: u16) -> SocketAddr {
    let ip = std::env::var("ATOLL_TEST_FABRIC_IP").map_or([127, 0, 0, 1].into(), |ip| ip.parse().unwrap());
    SocketAddr::new(ip, port)
}

pub fn settings() -> Settings {
    Settings { patience: Duration::from_secs(10), ..Settings::new(&provider(), 64) }
}

/// A fabric, or nothing where libfabric is not installed: then there is nothing to test.
pub fn fabric(settings: Settings) -> Option<Fabric> {
    match crate::sys::Library::load() {
        Ok(_) => Some(Fabric::open(settings).unwrap()),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

/// A way to an address of a test.
pub fn way(address: SocketAddr) -> Way {
    Way::find(&provider(), address).unwrap()
}

/// One end of a stream of frames: a length of four bytes, and the payload.
pub struct End {
    pub fabric: Fabric,
    pub id: LinkId,
    pub to_send: VecDeque<Bytes>,
    pub received: Received,
    awaited: Option<usize>,
    /// Payloads that have arrived.
    pub frames: VecDeque<Vec<u8>>,
}

impl End {
    pub fn new(fabric: Fabric, id: LinkId) -> Self {
        let (to_send, received, frames) = (VecDeque::new(), Received::default(), VecDeque::new());
        End { fabric, id, to_send, received, awaited: None, frames }
    }

    pub fn queue(&mut self, payload: Bytes) {
        self.to_send.push_back(Bytes::copy_from_slice(&(payload.len() as u32).to_le_bytes()));
        if !payload.is_empty() {
            self.to_send.push_back(payload);
        }
    }

    /// One turn: whether anything moved.
    pub fn turn(&mut self) -> Result<bool, FabricError> {
        let mut events = Vec::new();
        self.fabric.poll(&mut events);
        assert!(events.is_empty(), "{events:?}");
        let sent = self.fabric.send(self.id, &mut self.to_send)?;
        let received = self.fabric.receive(self.id, &mut self.received, 32 << 10)?;
        if received > 0 {
            self.take_frames();
        }
        Ok(sent + received > 0)
    }

    fn take_frames(&mut self) {
        loop {
            let Some(length) = self.awaited else {
                if self.received.len() < 4 {
                    return;
                }
                let length = self.received.get_u32_le() as usize;
                self.awaited = Some(length);
                if length >= LONG_BYTES {
                    self.received.expect_long_run(length);
                }
                continue;
            };
            let payload = match length >= LONG_BYTES {
                true => self.received.take_long_run().map(|buffer| buffer.as_slice()[..length].to_vec()),
                false if self.received.len() >= length => {
                    Some(BytesMut::split_to(&mut self.received, length).to_vec())
                }
                false => None,
            };
            let Some(payload) = payload else { return };
            self.frames.push_back(payload);
            self.awaited = None;
        }
    }
}

/// Polls fabrics until each has reported a link.
pub fn connect(first: &mut Fabric, second: &mut Fabric) -> (LinkId, LinkId) {
    let (_, address) = second.listen(address(0)).unwrap();
    connect_to(first, second, address)
}

pub fn connect_to(first: &mut Fabric, second: &mut Fabric, address: SocketAddr) -> (LinkId, LinkId) {
    let asked = first.connect(way(address)).unwrap();
    let (mut connected, mut accepted) = (None, None);
    let begun = Instant::now();
    while connected.is_none() || accepted.is_none() {
        assert!(begun.elapsed() < DEADLINE, "no connection");
        let mut events = Vec::new();
        first.poll(&mut events);
        second.poll(&mut events);
        for event in events {
            match event {
                Event::Connected(id) => connected = Some(id),
                Event::Accepted { link, .. } => accepted = Some(link),
                Event::Failed(_, error) => panic!("{error}"),
            }
        }
    }
    assert_eq!(connected, Some(asked));
    (asked, accepted.unwrap())
}

pub fn pair(settings: Settings) -> Option<(End, End)> {
    let (mut first, mut second) = (fabric(settings.clone())?, fabric(settings)?);
    let (asked, accepted) = connect(&mut first, &mut second);
    Some((End::new(first, asked), End::new(second, accepted)))
}

/// Runs both until `is_done`.
pub fn run(first: &mut End, second: &mut End, mut is_done: impl FnMut(&End, &End) -> bool) {
    let mut moved_at = Instant::now();
    while !is_done(first, second) {
        let has_moved = first.turn().unwrap() | second.turn().unwrap();
        if has_moved {
            moved_at = Instant::now();
        }
        assert!(
            moved_at.elapsed() < DEADLINE,
            "nothing moves; {:?} and {:?}, {} and {} pieces to send",
            first.fabric.usage(),
            second.fabric.usage(),
            first.to_send.len(),
            second.to_send.len()
        );
    }
}

pub fn pattern(length: usize, seed: usize) -> Bytes {
    (0..length).map(|at| ((at + seed) % 251) as u8).collect::<Vec<u8>>().into()
}
