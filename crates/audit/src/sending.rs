//! The spools of a process, and the threads that send them to a collector.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::collector::Collector;
use crate::rooms::{Room, Rooms};
use crate::spool::{Ending, Sender, Spool, take_left};
use crate::status::SharedStatus;
use crate::{LogConfig, Target, open_first, own_paths, spawn};

/// Interval of the search for lines that short processes have left.
const LEFT_PAUSE: Duration = Duration::from_secs(10);

/// The spool of a room.
pub(crate) struct RoomSpool {
    room: Room,
    pub spool: Spool,
}

/// Opens the spools of all rooms, of a number that no other process has.
pub(crate) fn open_spools(config: &LogConfig) -> io::Result<Rooms<RoomSpool>> {
    let own = config.own_rooms;
    open_first(own_paths(&config.spool), |path| {
        Rooms::open(own, |room| {
            let spool = Spool::open(&room.path(path), room.spool_bytes(own, config.spool_bytes_max))?;
            Ok(RoomSpool { room, spool })
        })
    })
}

/// Sends a spool of a process, and the spools of the same room that others have left.
pub(crate) fn send_spooled(
    url: &str,
    config: &LogConfig,
    one: &RoomSpool,
    status: &Arc<SharedStatus>,
) -> io::Result<JoinHandle<()>> {
    let ending = if config.is_short_lived { Ending::Soon } else { Ending::WhenEmpty };
    let left = take_left(own_paths(&config.spool).map(|path| one.room.path(&path)), ending);
    let all = left.into_iter().chain(std::iter::once(Arc::clone(one.spool.shared())));
    let senders = all.map(|shared| Ok(Sender::new(shared, Collector::new(url)?, Arc::clone(status))));
    let mut senders = senders.collect::<io::Result<Vec<_>>>()?;
    // One after the other: what is older comes first.
    spawn("audit-spool", move || senders.iter_mut().for_each(Sender::run))
}

/// Sends the lines that ended processes have left, from now on. They are of a log with one room, which `config` names
/// each time.
pub fn follow_left(config: impl Fn() -> LogConfig + Send + 'static) -> io::Result<()> {
    let status = SharedStatus::new("the collector of ended processes".into());
    let send = move || {
        loop {
            std::thread::sleep(LEFT_PAUSE);
            let config = config();
            if let Target::Http(url) = &config.target {
                send_left(url, &config, &status);
            }
        }
    };
    spawn("audit-left", send).map(drop)
}

fn send_left(url: &str, config: &LogConfig, status: &Arc<SharedStatus>) {
    for path in own_paths(&config.spool) {
        // One at a time: a process that begins takes another spool than those that are held.
        for shared in take_left(std::iter::once(path), Ending::Soon) {
            match Collector::new(url) {
                Ok(collector) => Sender::new(shared, collector, Arc::clone(status)).run(),
                Err(error) => tracing::error!("lines that commands have left are not sent: {error}"),
            }
        }
    }
}
