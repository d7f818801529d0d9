//! Invariants of an OSD, apart from those of PGs and store, a sentence and a check each. Messages of peers,
//! clients, devices and cluster state are never asserted. docs/internals/invariants-osd.md lists them.

use atoll_types::{OsdId, PgId};

/// Memory that requests give back was taken by them.
pub(crate) fn held_bytes_cover(held_bytes: u64, given_back_bytes: u64) {
    assert!(given_back_bytes <= held_bytes, "{given_back_bytes} bytes are given back, {held_bytes} are held");
}

/// Admission's count is the sum over the requests in flight.
pub(crate) fn held_bytes_add_up(counted_bytes: u64, sum_bytes: u64) {
    assert!(counted_bytes == sum_bytes, "requests hold {sum_bytes} bytes, {counted_bytes} are counted");
}

/// A reply answers a request of its connection that was counted in and not answered.
pub(crate) fn replies_answer_requests(number: u64, in_flight: usize, admitted: usize) {
    assert!(
        in_flight > 0 && in_flight == admitted,
        "connection {number}: a reply with {in_flight} requests in flight, {admitted} admitted"
    );
}

/// At most one link to an OSD counts.
pub(crate) fn one_link_per_osd(osd: OsdId, before: Option<u64>) {
    assert!(before.is_none(), "{osd} is connected a second time, and link {before:?} still counts");
}

/// The link that counts for an OSD is there, its peer is that OSD, and has shown that it holds its key.
pub(crate) fn an_osds_link_is_its_own(osd: OsdId, is_its_own: bool) {
    assert!(is_its_own, "messages to {osd} would go elsewhere");
}

/// Links that are paused, or have something to send, are there.
pub(crate) fn links_are_known(are_known: bool) {
    assert!(are_known, "a link that is gone is paused or has something to send");
}

/// A PG is here once.
pub(crate) fn pg_is_added_once(pg: PgId, was_here: bool) {
    assert!(!was_here, "PG {pg} was added twice");
}

/// Time does not go back between turns of the loop, so that a lease that has run out stays so.
pub(crate) fn time_goes_on(before_us: u64, now_us: u64) {
    assert!(before_us <= now_us, "it was {before_us} µs, and now it is {now_us}");
}

/// Objects that recovery has begun with end once.
pub(crate) fn recovery_ends_what_it_began(begun: usize, ended: usize) {
    assert!(ended <= begun, "{ended} objects end, {begun} have begun");
}

/// Recovery's count of objects on their way is the sum over the PGs.
pub(crate) fn objects_on_their_way_add_up(counted: usize, sum: usize) {
    assert!(counted == sum, "{sum} objects are on their way, {counted} are counted");
}

/// Removals of a removed pool's objects end once.
pub(crate) fn removals_end_once(in_flight: usize) {
    assert!(in_flight > 0, "a removal ended that had not begun");
}

/// An OSD leads one scrub at a time.
pub(crate) fn one_scrub_at_a_time(is_scrubbing: bool) {
    assert!(!is_scrubbing, "a scrub begins while another is under way");
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_types::PoolId;

    const PG: PgId = PgId { pool: PoolId(1), index: 7 };

    #[test]
    fn what_holds_passes() {
        held_bytes_cover(5, 5);
        held_bytes_add_up(5, 5);
        replies_answer_requests(1, 2, 2);
        one_link_per_osd(OsdId(1), None);
        an_osds_link_is_its_own(OsdId(1), true);
        links_are_known(true);
        pg_is_added_once(PG, false);
        time_goes_on(5, 5);
        recovery_ends_what_it_began(1, 1);
        objects_on_their_way_add_up(2, 2);
        removals_end_once(1);
        one_scrub_at_a_time(false);
    }

    atoll_storage::violations! {
        giving_back_too_much: held_bytes_cover(5, 6) => "6 bytes are given back";
        a_wrong_sum_of_requests: held_bytes_add_up(5, 6) => "requests hold 6 bytes";
        a_reply_to_nothing: replies_answer_requests(1, 0, 0) => "a reply with 0 requests";
        a_reply_that_admission_does_not_know: replies_answer_requests(1, 2, 1) => "1 admitted";
        a_second_link: one_link_per_osd(OsdId(1), Some(4)) => "a second time";
        a_link_of_another: an_osds_link_is_its_own(OsdId(1), false) => "would go elsewhere";
        a_link_that_is_gone: links_are_known(false) => "a link that is gone";
        a_pg_that_is_here: pg_is_added_once(PG, true) => "was added twice";
        time_that_goes_back: time_goes_on(6, 5) => "it was 6 µs";
        an_object_that_never_began: recovery_ends_what_it_began(0, 1) => "1 objects end";
        a_wrong_sum_of_objects: objects_on_their_way_add_up(1, 2) => "2 objects are on their way";
        a_removal_that_never_began: removals_end_once(0) => "had not begun";
        a_second_scrub: one_scrub_at_a_time(true) => "while another is under way";
    }
}
