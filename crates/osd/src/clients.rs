//! Traffic of each client, by the name of its key: `client@HOST` or `gateway@HOST`.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::LazyLock;

use atoll_metrics::{Bounded, Counter, Family, Labels, register};

use crate::operation_kind::OperationKind;

struct Registered {
    operations: Family<2, Counter>,
    bytes: Family<2, Counter>,
}

static REGISTERED: LazyLock<Registered> = LazyLock::new(|| Registered {
    operations: register(
        "atoll_osd_client_operations",
        "Operations that were answered, by client",
        Family::default(),
    ),
    bytes: register(
        "atoll_osd_client_operation_bytes",
        "Bytes that were read and written, by client",
        Family::default(),
    ),
});

struct OfKind {
    labels: Labels<2>,
    count: Counter,
    bytes: Counter,
}

/// The series of one client.
pub(crate) struct ClientTraffic([OfKind; 2]);

thread_local! {
    static CLIENTS: RefCell<Bounded<Rc<ClientTraffic>>> = RefCell::default();
}

impl ClientTraffic {
    /// Returns the traffic of the client whose key has this name.
    pub fn of(name: &str) -> Rc<Self> {
        CLIENTS.with_borrow_mut(|clients| Rc::clone(clients.of(name, |name| Rc::new(ClientTraffic::new(name)))))
    }

    fn new(name: &str) -> Self {
        ClientTraffic([OperationKind::Read, OperationKind::Write].map(|kind| {
            let labels = [("client", name.to_owned()), ("operation", kind.name().to_owned())];
            OfKind {
                count: REGISTERED.operations.get_or_create_owned(&labels),
                bytes: REGISTERED.bytes.get_or_create_owned(&labels),
                labels,
            }
        }))
    }

    /// An operation of this client is answered.
    pub fn done(&self, kind: OperationKind, bytes: u64) {
        let of_kind = &self.0[kind as usize];
        of_kind.count.inc();
        of_kind.bytes.inc_by(bytes);
    }
}

impl Drop for ClientTraffic {
    fn drop(&mut self) {
        for of_kind in &self.0 {
            REGISTERED.operations.remove(&of_kind.labels);
            REGISTERED.bytes.remove(&of_kind.labels);
        }
    }
}
