//! Requests of connections that are gone, as long as they are being carried out. Their client believes that they are
//! not done: it sends them again over another connection, and then the next. Nothing that it had sent before may be
//! done after that.
//!
//! That is for the connections of one server to an image that it has open. Between servers, and when an image is
//! opened again, the fence does it.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::clients::Client;

/// The connections of a server that are gone with requests in flight.
#[derive(Default)]
pub(crate) struct Drain {
    gone: RefCell<Vec<Rc<Connection>>>,
    waiting: RefCell<Vec<Waker>>,
}

struct Connection {
    image: String,
    client: Client,
    in_flight: Cell<usize>,
    is_over: Cell<bool>,
}

/// The requests of one connection to an image. The connection is over when this is dropped, or before.
pub struct ConnectionRequests {
    drain: Rc<Drain>,
    connection: Rc<Connection>,
}

/// A request that is being carried out until this is dropped.
pub struct InFlight {
    drain: Rc<Drain>,
    connection: Rc<Connection>,
}

impl Drain {
    pub fn connection(self: &Rc<Self>, image: &str, client: Client) -> ConnectionRequests {
        let (in_flight, is_over) = (Cell::new(0), Cell::new(false));
        let connection = Rc::new(Connection { image: image.to_owned(), client, in_flight, is_over });
        ConnectionRequests { drain: Rc::clone(self), connection }
    }

    /// Returns true if requests of closed connections are being carried out: those of one client, or of all.
    pub fn is_draining(&self, image: &str, client: Option<&Client>) -> bool {
        self.gone.borrow().iter().any(|connection| {
            connection.image == image && client.is_none_or(|client| connection.client == *client)
        })
    }
}

impl ConnectionRequests {
    /// A request begins, once those of the same client's connections that are gone are done. `None` if the connection
    /// is over.
    pub async fn begin(&self) -> Option<InFlight> {
        poll_fn(|context| {
            let Connection { image, client, .. } = &*self.connection;
            if self.drain.is_draining(image, Some(client)) {
                self.drain.waiting.borrow_mut().push(context.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
        if self.connection.is_over.get() {
            return None;
        }
        self.connection.in_flight.set(self.connection.in_flight.get() + 1);
        Some(InFlight { drain: Rc::clone(&self.drain), connection: Rc::clone(&self.connection) })
    }

    /// The connection is over. Nothing begins any more.
    pub fn end(&self) {
        if !self.connection.is_over.replace(true) && self.connection.in_flight.get() > 0 {
            self.drain.gone.borrow_mut().push(Rc::clone(&self.connection));
        }
    }
}

impl Drop for ConnectionRequests {
    fn drop(&mut self) {
        self.end();
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let in_flight = &self.connection.in_flight;
        in_flight.set(in_flight.get().checked_sub(1).expect("a request in flight is counted"));
        if in_flight.get() == 0 && self.connection.is_over.get() {
            self.drain.gone.borrow_mut().retain(|connection| !Rc::ptr_eq(connection, &self.connection));
            self.drain.waiting.borrow_mut().drain(..).for_each(Waker::wake);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_reactor::PeerAddress;
    use futures::FutureExt;

    fn process(id: i32) -> Client {
        Client { address: PeerAddress::Process(id), certificate: None, nvme_host: None }
    }

    /// The request, if it can begin now and the connection is not over.
    fn begin(connection: &ConnectionRequests) -> Option<InFlight> {
        connection.begin().now_or_never().flatten()
    }

    #[test]
    fn requests_of_a_broken_connection_are_awaited() {
        let drain = Rc::new(Drain::default());
        let [broken, same, other] = [1, 1, 2].map(|id| drain.connection("disk", process(id)));
        let elsewhere = drain.connection("another", process(1));
        let (first, second) = (begin(&broken).unwrap(), begin(&broken).unwrap());
        let _of_other = begin(&other).unwrap();
        assert!(
            begin(&same).is_some() && !drain.is_draining("disk", None),
            "what is in flight may be answered yet"
        );
        broken.end();
        assert!(begin(&same).is_none() && drain.is_draining("disk", None));
        assert!(begin(&other).is_some() && begin(&elsewhere).is_some() && !drain.is_draining("another", None));
        drop(first);
        assert!(begin(&same).is_none());
        drop(second);
        assert!(begin(&same).is_some() && !drain.is_draining("disk", None));
        assert!(begin(&broken).is_none(), "nothing of it begins any more");
    }

    #[test]
    fn a_connection_without_requests_leaves_nothing() {
        let drain = Rc::new(Drain::default());
        let connection = drain.connection("disk", process(1));
        drop(begin(&connection));
        drop(connection);
        assert!(drain.gone.borrow().is_empty());
    }
}
