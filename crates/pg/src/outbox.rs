//! Actions for the shell, and submissions that wait for the store's answer.

use std::collections::VecDeque;

use atoll_pending::Pending;
use atoll_types::operation::PG_META_OBJECT;
use atoll_types::{OsdId, PgId, ReadOutcome, Refusal, SharedTransaction};
use atoll_wire::Message;
use bytes::Bytes;

use crate::actions::{Action, ClientId, Token};
use crate::submissions::Submission;

/// Actions that the shell has not taken yet, and submissions that the store has not answered.
pub(crate) struct Outbox {
    pg: PgId,
    actions: VecDeque<Action>,
    submissions: Pending<Submission>,
    /// Submissions that the shell has not taken; until then the view does not show them.
    submissions_not_taken: usize,
    /// Counts submissions that change the PG's own object.
    own_changes: u64,
    token_last: u64,
}

impl Outbox {
    pub fn new(pg: PgId) -> Self {
        Outbox {
            pg,
            actions: VecDeque::new(),
            submissions: Pending::default(),
            submissions_not_taken: 0,
            own_changes: 0,
            token_last: 1,
        }
    }

    /// A token that was never given out before.
    pub fn token(&mut self) -> Token {
        self.token_last += 1;
        Token(self.token_last)
    }

    pub fn push(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    pub fn send(&mut self, to: OsdId, message: Message) {
        self.push(Action::Send { to, message });
    }

    pub fn warn(&mut self, text: String) {
        self.push(Action::Warn { text: format!("pg {}: {text}", self.pg) });
    }

    pub fn reply_read(
        &mut self,
        client: ClientId,
        sequence: u64,
        result: Result<ReadOutcome, Refusal>,
        payload: Bytes,
    ) {
        // Who opens seals is known to the shell, which has the request.
        let message = Message::ReadReply { sequence, opens_seals: false, result, payload };
        self.push(Action::Reply { client, message });
    }

    /// Submits a change that leaves the history unchanged. Anything else goes through [`Pg::submit`](crate::Pg).
    pub fn submit(&mut self, purpose: Submission, transaction: impl Into<SharedTransaction>) {
        let transaction = transaction.into();
        let token = self.token();
        self.submissions.insert(token.0, purpose);
        self.submissions_not_taken += 1;
        self.own_changes += u64::from(transaction.object.as_str() == PG_META_OBJECT);
        self.push(Action::Submit { token, transaction });
    }

    /// The next action, which the shell takes now.
    pub fn pop(&mut self) -> Option<Action> {
        let action = self.actions.pop_front();
        if matches!(action, Some(Action::Submit { .. })) {
            self.submissions_not_taken -= 1;
        }
        action
    }

    /// The purpose of a submission that the store has answered.
    pub fn answered(&mut self, token: Token) -> Submission {
        self.submissions.remove(token.0).expect("answers belong to submissions")
    }

    pub fn is_empty(&self) -> bool {
        self.actions.is_empty()
    }

    /// Returns true if the view shows all submissions.
    pub fn view_is_current(&self) -> bool {
        self.submissions_not_taken == 0
    }

    /// How often the PG's own object was changed.
    pub fn own_changes(&self) -> u64 {
        self.own_changes
    }

    /// Actions that the shell has not taken.
    pub fn actions(&self) -> impl Iterator<Item = &Action> {
        self.actions.iter()
    }

    /// Submissions that the store has not answered.
    pub fn submissions(&self) -> impl Iterator<Item = &Submission> {
        self.submissions.iter().map(|(_, submission)| submission)
    }
}
