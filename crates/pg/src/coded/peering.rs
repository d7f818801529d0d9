//! Peering of an erasure-coded group. A write that was acknowledged is with all electors. One that an
//! elector lacks was not, and there may be too few shards of it to give it to the others: so it is
//! taken back. One that all electors have stays.

use atoll_base::Version;
use atoll_wire::Message;

use crate::actions::ObjectView;
use crate::group::Pg;

impl Pg {
    /// Everyone has said what it has: whoever has more than some elector takes that back; whoever
    /// was not an elector and has less is brought level. Then the group can be active.
    pub(crate) fn level_shards(&mut self, view: &impl ObjectView) {
        if self.is_taking_back() {
            return;
        }
        let own_head = view.head(self.id);
        let own = [(self.me, own_head)];
        let heads: Vec<_> = self.peering.heads.iter().map(|(osd, head)| (*osd, *head)).chain(own).collect();
        let of_electors = heads.iter().filter(|(osd, _)| self.electors().contains(osd));
        let Some(head) = of_electors.map(|(_, head)| *head).min() else { return };
        if own_head < head {
            let elector = heads.iter().find(|(osd, _)| self.electors().contains(osd)).expect("there is one");
            return self.hand_over(elector.0, view);
        }
        if own_head > head {
            // What is on its way to the store goes back, too, once it is there.
            return self.roll_back_once(head, view);
        }
        let ahead: Vec<_> = heads.iter().filter(|(_, other)| *other > head).map(|(osd, _)| *osd).collect();
        if !ahead.is_empty() {
            for osd in ahead {
                if self.peering.rolling_back.insert(osd) {
                    self.send(osd, Message::RollBack { pg: self.id, epoch: self.record.epoch, head });
                }
            }
            return;
        }
        if self.learners.are_any() {
            return;
        }
        match heads.iter().find(|(_, other)| *other != head) {
            Some((osd, other)) => self.level(*osd, *other, view),
            None => self.activate(view),
        }
    }

    fn roll_back_once(&mut self, head: Version, view: &impl ObjectView) {
        if self.peering.rolling_back.insert(self.me) {
            self.roll_back(head, view);
        }
    }

    /// The primary wants everything newer to be taken back.
    pub(crate) fn asked_to_roll_back(&mut self, epoch: atoll_base::Epoch, head: Version, view: &impl ObjectView) {
        if epoch == self.promises.epoch && self.coded.is_some() {
            self.roll_back(head, view);
        }
    }
}
