//! Attachments whose client's right to the image is taken away: they end.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use atoll_types::records::ImageRecord;

use crate::audit;
use crate::clients::Client;

/// All attachments of a server.
#[derive(Default)]
pub(crate) struct Attachments {
    all: RefCell<BTreeMap<u64, Attachment>>,
    next_number: Cell<u64>,
}

struct Attachment {
    /// A move to another pool changes the id, and a rename the name.
    image_id: String,
    image: String,
    client: Client,
    end: Rc<dyn Fn()>,
}

/// An attachment that has to end.
struct Lost {
    client: Client,
    end: Rc<dyn Fn()>,
    why: String,
}

/// An attachment, until this is dropped.
pub struct Attached {
    attachments: Rc<Attachments>,
    number: u64,
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.attachments.all.borrow_mut().remove(&self.number);
    }
}

impl Attachments {
    /// Adds that of a client, which `end` ends.
    pub fn add(self: &Rc<Self>, record: &ImageRecord, client: &Client, end: impl Fn() + 'static) -> Attached {
        let number = self.next_number.replace(self.next_number.get() + 1);
        let attachment = Attachment {
            image_id: record.id.clone(),
            image: record.name.clone(),
            client: client.clone(),
            end: Rc::new(end),
        };
        self.all.borrow_mut().insert(number, attachment);
        Attached { attachments: Rc::clone(self), number }
    }

    /// Ends the attachments to an image whose clients may not use it any more.
    pub fn follow(&self, record: &ImageRecord) {
        for Lost { client, end, why } in self.lost_by(record) {
            tracing::warn!("an attachment of {} ends: {why}", client.describe());
            audit::revoked(&record.name, &client, &why);
            end();
        }
    }

    fn lost_by(&self, record: &ImageRecord) -> Vec<Lost> {
        let export = record.export.clone().unwrap_or_default();
        let mut all = self.all.borrow_mut();
        let of_image = all.values_mut().filter(|one| one.image_id == record.id || one.image == record.name);
        let lost = of_image.filter_map(|one| {
            (one.image_id, one.image) = (record.id.clone(), record.name.clone());
            let why = one.client.may_use(&record.name, &export).err()?;
            Some(Lost { client: one.client.clone(), end: Rc::clone(&one.end), why })
        });
        lost.collect()
    }
}

#[cfg(test)]
mod tests {
    use atoll_reactor::PeerAddress;
    use atoll_types::PoolId;
    use atoll_types::image_key::ImageKey;
    use atoll_types::records::{ExportAccess, ImageExport};

    use super::*;

    fn client(address: &str, nvme_host: Option<&str>) -> Client {
        let address = PeerAddress::Host(address.parse().unwrap());
        Client { address, certificate: None, nvme_host: nvme_host.map(ToOwned::to_owned) }
    }

    fn record(id: &str, name: &str, clients: &[&str]) -> ImageRecord {
        let clients = clients.iter().map(ToString::to_string).collect();
        let export = Some(ImageExport { access: ExportAccess::MultiAttach, clients });
        ImageRecord {
            format: 1,
            id: id.into(),
            name: name.into(),
            size_bytes: 4096,
            object_bytes: 4096,
            pool: PoolId(1),
            key: ImageKey::WrappedKey(String::new()),
            attach_ids: Vec::new(),
            writer_generation: 0,
            changer: None,
            created_unix_ms: 0,
            states: None,
            work: None,
            flattening: None,
            hold: None,
            export,
            metadata: Default::default(),
        }
    }

    #[test]
    fn who_loses_the_right_to_an_image_loses_it() {
        let attachments = Rc::new(Attachments::default());
        let ended = Rc::new(RefCell::new(Vec::new()));
        let attach = |client: &Client, name: &'static str| {
            let ended = Rc::clone(&ended);
            attachments.add(&record("i1", "disk", &["*"]), client, move || ended.borrow_mut().push(name))
        };
        let (near, far) = (client("10.0.0.1", None), client("192.0.2.1", None));
        let host = client("192.0.2.2", Some("nqn.a"));
        let kept = [attach(&near, "near"), attach(&far, "far"), attach(&host, "host")];
        let after = |record: &ImageRecord| {
            attachments.follow(record);
            std::mem::take(&mut *ended.borrow_mut())
        };
        assert!(after(&record("i1", "disk", &["10.0.0.0/8", "192.0.2.1", "nqn.a"])).is_empty());
        assert!(after(&record("i2", "other", &[])).is_empty(), "another image");
        assert_eq!(after(&record("i1", "disk", &["10.0.0.0/8", "nqn.a"])), ["far"]);
        // Under another name, and then with another id.
        assert_eq!(after(&record("i1", "new", &["10.0.0.0/8"])), ["far", "host"]);
        drop(kept);
        assert!(after(&record("i1", "new", &[])).is_empty(), "nobody is attached");
        let moved = attach(&near, "near");
        assert!(after(&record("i9", "disk", &["10.0.0.1"])).is_empty());
        assert_eq!(after(&record("i9", "renamed", &[])), ["near"]);
        drop(moved);
    }

    #[test]
    fn who_can_open_the_socket_keeps_the_image() {
        let attachments = Rc::new(Attachments::default());
        let local = Client { address: PeerAddress::Process(7), certificate: None, nvme_host: None };
        let _kept = attachments.add(&record("i1", "disk", &[]), &local, || panic!("it keeps the image"));
        attachments.follow(&record("i1", "disk", &[]));
    }
}
