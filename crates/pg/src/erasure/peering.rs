//! Peering of an erasure-coded PG. All electors have every acknowledged write. A write that an
//! elector lacks was not acknowledged, and the others may have too few shards of it to give it to
//! that one: so it is rolled back. A write that all electors have stays.

use atoll_types::Version;
use atoll_wire::Message;

use crate::actions::ObjectView;
use crate::group::Pg;

impl Pg {
    /// All members have sent their heads. A member that has more than some elector rolls that back;
    /// a member that was no elector and has less is backfilled. Then the PG is activated.
    pub(crate) fn compare_shard_heads(&mut self, view: &impl ObjectView) {
        if self.is_rolling_back() {
            return;
        }
        let own_head = view.head(self.config.id);
        let own = [(self.config.me, own_head)];
        let heads: Vec<_> = self.peering.heads().chain(own).collect();
        let of_electors = heads.iter().filter(|(osd, _)| self.config.electors().contains(osd));
        let Some(head) = of_electors.map(|(_, head)| *head).min() else { return };
        if own_head < head {
            let elector =
                heads.iter().find(|(osd, _)| self.config.electors().contains(osd)).expect("there is one");
            return self.hand_over(elector.0, view);
        }
        if own_head > head {
            // Writes that were submitted and do not show yet are rolled back, too, when they show.
            return self.roll_back_once(head, view);
        }
        let ahead: Vec<_> = heads.iter().filter(|(_, other)| *other > head).map(|(osd, _)| *osd).collect();
        if !ahead.is_empty() {
            for osd in ahead {
                if self.peering.begin_roll_back(osd) {
                    self.outbox.send(
                        osd,
                        Message::RollBack { pg: self.config.id, epoch: self.config.record.epoch, head },
                    );
                }
            }
            return;
        }
        if self.learners.are_any() {
            return;
        }
        match heads.iter().find(|(_, other)| *other != head) {
            Some((osd, other)) => self.backfill_member(*osd, *other, view),
            None => self.activate(view),
        }
    }

    fn roll_back_once(&mut self, head: Version, view: &impl ObjectView) {
        if self.peering.begin_roll_back(self.config.me) {
            self.with_erasure(view, |erasure, context| erasure.begin_roll_back(head, context));
        }
    }

    /// The primary wants every write after `head` rolled back.
    pub(crate) fn asked_to_roll_back(&mut self, epoch: atoll_types::Epoch, head: Version, view: &impl ObjectView) {
        if epoch == self.promises.epoch() {
            self.with_erasure(view, |erasure, context| erasure.begin_roll_back(head, context));
        }
    }
}
