//! Admission of clients' requests: those that are refused at once, retries, and conditions.

use atoll_buffers::BLOCK_BYTES;
use atoll_types::limits::PAYLOAD_BYTES_MAX;
use atoll_types::operation::{FENCE_KEY_PREFIX, PG_META_OBJECT, PRE_IMAGE_PREFIX};
use atoll_types::{Condition, Mutation, ObjectName, ReadRequest, Refusal, RequestId, WriteRequest};
use bytes::Bytes;

use crate::actions::{ClientId, ObjectView, Sender};
use crate::config::Configuration;
use crate::erasure::Erasure;
use crate::group::Pg;
use crate::replication::duplicates::Known;
use crate::replication::fences::Fences;
use crate::replication::queue::{Waiting, WaitingRequest};

impl Pg {
    /// A client wants to read.
    pub fn client_read(
        &mut self,
        client: ClientId,
        id: RequestId,
        object: ObjectName,
        request: ReadRequest,
        view: &impl ObjectView,
    ) {
        let sequence = id.sequence;
        if !self.config.is_primary() {
            return self.outbox.reply_read(client, sequence, Err(Refusal::NotPrimary), Bytes::new());
        }
        let checked = check_place(&object, &self.config).and_then(|()| check_read(&request));
        if let Err(refusal) = checked {
            return self.outbox.reply_read(client, sequence, Err(refusal), Bytes::new());
        }
        self.enqueue(WaitingRequest::new(client, sequence, object, Waiting::Read(request)), view);
    }

    /// A client wants to write.
    pub fn client_write(&mut self, sender: Sender, request: WriteRequest, view: &impl ObjectView) {
        let Sender { client, id, answered_below, known, epoch } = sender;
        let sequence = id.sequence;
        // A primary that the client knows of before this OSD does orders writes under its own epoch. The
        // place of one under an older epoch could be before what the client knew.
        if !self.config.is_primary() || known.epoch > self.config.record.epoch {
            return self.reply_write(client, sequence, Err(Refusal::NotPrimary));
        }
        if self.take_over_retry(client, id) {
            return;
        }
        if epoch < self.duplicates.led_since() {
            // Another primary led after it was sent and may have refused another copy of it. The
            // history does not show refusals.
            return self.reply_write(client, sequence, Err(Refusal::NotPrimary));
        }
        self.duplicates.note_answered(id.session, answered_below);
        let checked = check_place(&request.object, &self.config)
            .and_then(|()| check_clone_sources(&request))
            .and_then(|()| check_mutations(&request))
            .and_then(|()| request.check_size())
            .and_then(|()| check_meta_write(&request));
        if let Err(refusal) = checked {
            return self.reply_write(client, sequence, Err(refusal));
        }
        let object = request.object.clone();
        let request = WaitingRequest::new(client, sequence, object, Waiting::Write(id, request));
        self.enqueue(WaitingRequest { known: Some(known), ..request }, view);
    }

    /// Returns true if the request is known already. Then it is answered, now or later, on this connection.
    fn take_over_retry(&mut self, client: ClientId, id: RequestId) -> bool {
        let has_operations = self.erasure.as_ref().is_some_and(Erasure::has_operations);
        if self.queue.is_empty() && self.log.has_none_in_flight() && !has_operations {
            self.duplicates.arrivals.nothing_waits();
        }
        if self.duplicates.arrivals.is_news(id.session, id.sequence) {
            return false;
        }
        if self.log.take_over(client, id) {
            return true;
        }
        if self.queue.take_over(client, id)
            || self.erasure.as_mut().is_some_and(|erasure| erasure.take_over(client, id))
        {
            return true;
        }
        self.config.is_active() && self.answer_known(client, id)
    }

    /// Answers a request whose outcome is known.
    pub(super) fn answer_known(&mut self, client: ClientId, id: RequestId) -> bool {
        let outcome = match self.duplicates.find(id) {
            Known::Nothing => return false,
            Known::Outcome(outcome) => outcome,
            Known::Stale => Err(Refusal::Invalid { detail: "this request was answered before".into() }),
        };
        self.reply_write(client, id.sequence, outcome);
        true
    }
}

fn check_place(object: &ObjectName, config: &Configuration) -> Result<(), Refusal> {
    if object.as_str().starts_with(PRE_IMAGE_PREFIX) {
        return Err(Refusal::Invalid {
            detail: format!("names that begin with '{PRE_IMAGE_PREFIX}' are the OSDs' own"),
        });
    }
    if config.has_place_for(object, config.pg_num()) {
        return Ok(());
    }
    if config.has_place_for(object, config.id.first_pg_num(config.policy.pg_num_first)) {
        // The object went to a PG that was split off, and the client's map lags.
        return Err(Refusal::NotPrimary);
    }
    Err(Refusal::Invalid { detail: format!("object '{object}' is not in PG {}", config.id) })
}

pub(super) fn check_places(request: &WaitingRequest, config: &Configuration) -> Result<(), Refusal> {
    check_place(&request.object, config)?;
    match request.objects().find(|object| !config.has_place_for(object, config.pg_num())) {
        None => Ok(()),
        Some(other) => {
            let detail = format!("'{other}', which the write looks at, is not in the same PG");
            Err(Refusal::Invalid { detail })
        }
    }
}

fn check_clone_sources(request: &WriteRequest) -> Result<(), Refusal> {
    for mutation in &request.mutations {
        if let Mutation::CloneFrom { source } = mutation
            && (request.object.as_str() == PG_META_OBJECT || source.as_str() == PG_META_OBJECT)
        {
            let detail = "a PG's own object cannot be cloned".into();
            return Err(Refusal::Invalid { detail });
        }
    }
    Ok(())
}

/// Returns the refusal of a write, if one of its conditions does not hold.
pub(crate) fn failed_condition(
    write: &WriteRequest,
    config: &Configuration,
    fences: &mut Fences,
    view: &impl ObjectView,
) -> Option<Refusal> {
    let conditions = write.conditions.iter().enumerate();
    let held = conditions.map(|(index, condition)| match holds(condition, &write.object, config, fences, view) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Refusal::ConditionFailed { index: index as u16 }),
        Err(refusal) => Err(refusal),
    });
    held.collect::<Result<(), Refusal>>().err()
}

/// Returns true if a condition of a write of `object` holds.
fn holds(
    condition: &Condition,
    object: &ObjectName,
    config: &Configuration,
    fences: &mut Fences,
    view: &impl ObjectView,
) -> Result<bool, Refusal> {
    let exists = |object: &ObjectName| view.object_exists(config.id, object);
    let value = |key: &Bytes| view.omap_value(config.id, object, key);
    Ok(match condition {
        Condition::ObjectExists => exists(object)?,
        Condition::ObjectAbsent => !exists(object)?,
        Condition::OmapExists { key } => value(key)?.is_some(),
        Condition::OmapAbsent { key } => value(key)?.is_none(),
        Condition::OmapEquals { key, value: expected } => value(key)?.as_ref() == Some(expected),
        Condition::PgNum { pg_num } => *pg_num == config.pg_num(),
        Condition::OtherExists { object } => exists(object)?,
        Condition::NotFenced { name, generation } => {
            let fence = fences.generation(name, config, view)?;
            if fence > *generation {
                return Err(Refusal::Fenced { generation: fence });
            }
            true
        }
    })
}

fn is_within_object(offset: u64, length: u32) -> bool {
    let end = offset.saturating_add(u64::from(length));
    offset.is_multiple_of(BLOCK_BYTES as u64) && end <= atoll_types::limits::OBJECT_BYTES_MAX
}

fn check_read(request: &ReadRequest) -> Result<(), Refusal> {
    let problem = match request {
        ReadRequest::Data { offset, .. } if !offset.is_multiple_of(BLOCK_BYTES as u64) => "an unaligned read",
        ReadRequest::Data { offset, .. } if *offset > atoll_types::limits::OBJECT_BYTES_MAX => {
            "a read beyond the largest object"
        }
        ReadRequest::Data { length, .. } if *length as usize > PAYLOAD_BYTES_MAX => {
            "a read of more than one payload"
        }
        ReadRequest::OmapList { limit: 0, .. } => "a list of no entries",
        ReadRequest::Extents { offset, length } if !is_within_object(*offset, *length) => {
            "extents of a range that is not aligned, or not within the largest object"
        }
        ReadRequest::ObjectList { prefix, .. } if prefix.is_empty() => "a list of all objects",
        _ => return Ok(()),
    };
    Err(Refusal::Invalid { detail: problem.into() })
}

fn check_mutations(request: &WriteRequest) -> Result<(), Refusal> {
    if request.mutations.iter().all(Mutation::is_for_clients) {
        return Ok(());
    }
    Err(Refusal::Invalid { detail: "a mutation that only members may send each other".into() })
}

/// Clients may set fences in the PG's own object, upwards only, and nothing else.
fn check_meta_write(write: &WriteRequest) -> Result<(), Refusal> {
    if write.object.as_str() != PG_META_OBJECT {
        return Ok(());
    }
    let is_fence = match (&write.conditions[..], &write.mutations[..]) {
        (
            [Condition::NotFenced { name, generation }]
            | [Condition::NotFenced { name, generation }, Condition::PgNum { .. }],
            [Mutation::OmapSet { key, value }],
        ) => key.strip_prefix(FENCE_KEY_PREFIX) == Some(&name[..]) && value[..] == generation.to_be_bytes(),
        _ => false,
    };
    if is_fence {
        return Ok(());
    }
    Err(Refusal::Invalid { detail: "clients may only set fences in a PG's own object".into() })
}
