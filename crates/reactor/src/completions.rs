//! Taking completions off the ring, by the operation that each ends.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use atoll_buffers::Received;
use io_uring::cqueue;

use crate::connection::{ConnectionId, ListenerId, PeerAddress};
use crate::opening::prepare_socket;
use crate::reactor::{CloseCause, Event, Operation, Reactor};
use crate::transport::GatheredSend;
use crate::transport::shared_memory::Opening;

/// Completions that one turn takes. Their results go out before more are taken: with all of them at once the
/// device would be idle while they are processed, and then get everything again. Fewer would cost a system call, a
/// record of the log and a doorbell more often.
const TURN_COMPLETIONS_MAX: usize = 32;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

impl Reactor {
    pub(crate) fn take_completions(&mut self) {
        let completions: Vec<cqueue::Entry> = self.ring.completion().take(TURN_COMPLETIONS_MAX).collect();
        for completion in completions {
            let slot = completion.user_data() as usize;
            if cqueue::more(completion.flags()) {
                self.happened_again(slot, completion.result());
                continue;
            }
            let operation = self.operations[slot].take().expect("a completion belongs to an operation");
            self.free_slots.push(slot);
            self.finish(operation, completion.result());
        }
    }

    fn happened_again(&mut self, slot: usize, result: i32) {
        match self.operations[slot] {
            Some(Operation::Accept { listener }) => self.add_accepted(listener, result),
            // It has woken the loop, which looks at its carriers.
            Some(Operation::Doorbell { .. }) => {}
            _ => unreachable!("only accepts and doorbells complete more than once"),
        }
    }

    fn add_accepted(&mut self, listener: ListenerId, result: i32) {
        if result < 0 {
            return;
        }
        // SAFETY: the kernel has just given this descriptor to us.
        let socket = unsafe { OwnedFd::from_raw_fd(result) };
        if self.connections.len() >= atoll_types::limits::CONNECTIONS_MAX {
            return;
        }
        prepare_socket(&socket, PeerAddress::of(&socket));
        let id = match self.shared_listeners.contains(&listener) {
            true => self.add_opening(socket, Opening::AwaitsOffer),
            false => self.add_connected(socket),
        };
        self.events.push_back(Event::Accepted { listener, connection: id });
    }

    fn finish(&mut self, operation: Operation, result: i32) {
        let outcome = if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result as usize) };
        match operation {
            Operation::Accept { listener } => {
                self.add_accepted(listener, result);
                // Out of descriptors or memory: trying again at once would only spin.
                let pause = if result < 0 { ACCEPT_PAUSE } else { Duration::ZERO };
                self.accept_later.push_back((Instant::now() + pause, listener));
            }
            Operation::Connect { connection, .. } => self.connect_done(connection, outcome),
            Operation::Receive { connection, received } => self.receive_done(connection, received, outcome),
            Operation::Send { connection, send } => self.send_done(connection, send, outcome),
            Operation::FileRead { file, tag, offset, mut buffer } => {
                let result = outcome.and_then(|length| whole(length, buffer.len()));
                if result.is_ok() {
                    self.files[file.0].open_read(offset, &mut buffer);
                }
                let result = result.map(|()| Some(buffer));
                self.events.push_back(Event::File { tag, result });
            }
            Operation::FileWrite { tag, length_bytes, .. } => {
                let result = outcome.and_then(|length| whole(length, length_bytes)).map(|()| None);
                self.events.push_back(Event::File { tag, result });
            }
            Operation::FileWriteBytes { tag, bytes } => {
                let result = outcome.and_then(|length| whole(length, bytes.len())).map(|()| None);
                self.events.push_back(Event::File { tag, result });
            }
            Operation::FileSync { tag } => {
                self.events.push_back(Event::File { tag, result: outcome.map(|_| None) });
            }
            Operation::Wake { .. } => {
                self.wake.clear();
                self.arm_wake();
                self.events.push_back(Event::Woken);
            }
            Operation::SocketWatch { connection } => self.socket_watched(connection),
            Operation::Doorbell { doorbell } => self.watch_doorbell(doorbell),
            Operation::Rdma => self.rdma_has_news(),
        }
    }

    fn connect_done(&mut self, id: ConnectionId, outcome: io::Result<usize>) {
        let connection = self.connections.get_mut(&id).expect("connections outlive their operations");
        connection.operations -= 1;
        match outcome {
            Ok(_) if !connection.is_closed => {
                connection.is_connected = true;
                self.touched.insert(id);
                self.events.push_back(Event::Connected(id));
            }
            Ok(_) => self.forget_if_idle(id),
            Err(error) => {
                self.fail(id, CloseCause::Failed(error));
                self.forget_if_idle(id);
            }
        }
    }

    fn receive_done(&mut self, id: ConnectionId, mut received: Received, outcome: io::Result<usize>) {
        let connection = self.connections.get_mut(&id).expect("connections outlive their operations");
        connection.operations -= 1;
        connection.is_receiving = false;
        match outcome {
            Ok(0) => self.fail(id, CloseCause::EndOfStream),
            Ok(length) => {
                if received.long_run_room().is_some() {
                    received.advance_long_run(length);
                } else {
                    let end = received.len() + length;
                    // SAFETY: the kernel has written `length` bytes from the old end on, within the
                    // spare capacity that it was given.
                    unsafe { received.set_len(end) };
                }
                connection.received = received;
                if !connection.is_closed && !connection.is_paused {
                    self.events.push_back(Event::Received(id));
                }
                self.touched.insert(id);
            }
            Err(error) => self.fail(id, CloseCause::Failed(error)),
        }
        self.forget_if_idle(id);
    }

    fn send_done(&mut self, id: ConnectionId, send: GatheredSend, outcome: io::Result<usize>) {
        let connection = self.connections.get_mut(&id).expect("connections outlive their operations");
        connection.operations -= 1;
        connection.is_sending = false;
        match outcome {
            Err(error) => self.fail(id, CloseCause::Failed(error)),
            Ok(_) if connection.is_closed => {}
            Ok(length) => {
                connection.to_send_bytes -= length;
                if let Some(rest) = send.rest(length) {
                    self.start_send(id, rest);
                } else if connection.to_send.is_empty() && connection.close_after_send {
                    self.close(id);
                } else {
                    self.touched.insert(id);
                }
            }
        }
        self.forget_if_idle(id);
    }
}

fn whole(length: usize, expected: usize) -> io::Result<()> {
    if length == expected {
        Ok(())
    } else {
        Err(io::Error::other(format!("the device transferred {length} of {expected} bytes")))
    }
}
