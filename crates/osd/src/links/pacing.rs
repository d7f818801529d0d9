//! Output, and slow readers: a client is not read from until it has taken its answers, and a peer is cut off when
//! more waits for it than requests can account for. All of it counts, whatever kind of message it is.

use std::time::Instant;

use atoll_types::limits::CONNECTION_REQUESTS_MAX;

use super::{Links, Peer};
use crate::context::Context;
use crate::metrics::Metrics;

impl Links {
    /// Stops taking requests from a client that has too many in flight or does not read answers, and from all when
    /// their requests in flight take too much memory. True if this one is stopped.
    pub fn pace(&mut self, context: &mut Context, number: u64) -> bool {
        let connections = self.by_number.len();
        let Some(connected) = self.by_number.get_mut(&number) else { return false };
        let is_over = self.admission.is_closed()
            || connected.requests_in_flight >= CONNECTION_REQUESTS_MAX
            || self.admission.holds_its_share(number, connections);
        let is_client = connected.peer.is_some_and(Peer::is_client);
        if is_over && is_client && self.paused.insert(number) {
            context.reactor.pause(connected.connection);
        } else if !is_over && self.paused.remove(&number) {
            match connected.link.has_received_more() {
                true => context.reactor.resume_with_report(connected.connection),
                false => context.reactor.resume(connected.connection),
            }
        }
        is_over && is_client
    }

    /// Resumes clients that were stopped, once enough answers were given and sent.
    pub fn pace_paused(&mut self, context: &mut Context) {
        for number in self.admission.slow() {
            self.note_unsent(context, number);
        }
        if !self.admission.is_closed() {
            for number in self.paused.clone() {
                self.pace(context, number);
            }
        }
    }

    fn note_unsent(&mut self, context: &Context, number: u64) {
        if let Some(connected) = self.by_number.get(&number) {
            self.admission.set_unsent(number, context.reactor.unsent_bytes(connected.connection));
        }
    }

    /// Hands everything queued to the reactor, all frames of a link together. Until then the requests answered in
    /// this turn count as if they were not: their memory is never left out.
    pub fn send_output(&mut self, context: &mut Context, metrics: &Metrics, started: Instant) {
        for number in std::mem::take(&mut self.with_output) {
            self.send_output_of(context, number);
        }
        if self.answered.is_empty() {
            return;
        }
        let now_us = started.elapsed().as_micros() as u64;
        let mut answered = std::mem::take(&mut self.answered);
        for (request, answer) in answered.drain(..) {
            let (number, sequence) = request;
            self.note_unsent(context, number);
            self.answer_sent(number, sequence);
            let client = self.by_number.get(&number).and_then(|connected| connected.traffic.as_deref());
            if let Some(told) = self.operations.done(request, &answer, now_us, metrics, client) {
                let asker = self.asker(context, number, &told.operation);
                told.tell(answer, asker);
            }
        }
        // Its memory serves the next turn.
        self.answered = answered;
    }

    fn send_output_of(&mut self, context: &mut Context, number: u64) {
        let Some(connected) = self.by_number.get_mut(&number) else { return };
        let output = match connected.link.take_output() {
            Ok(output) => output,
            Err(error) => return self.drop_link(context, number, &error),
        };
        context.reactor.send(connected.connection, output);
        let unsent_bytes = context.reactor.unsent_bytes(connected.connection);
        if connected.peer.is_some_and(Peer::is_client) {
            self.admission.set_unsent(number, unsent_bytes);
        }
        if unsent_bytes as u64 > self.admission.unread_bytes_max() {
            self.cut_off(context, number);
        }
    }

    /// Cuts off a peer that does not take its messages.
    fn cut_off(&mut self, context: &mut Context, number: u64) {
        let Some(connected) = self.by_number.get(&number) else { return };
        let unsent_bytes = context.reactor.unsent_bytes(connected.connection);
        let peer = self.describe(context, number);
        tracing::warn!(
            "closing the connection with {peer}: it does not take {unsent_bytes} bytes that wait for it"
        );
        self.close(context, number);
    }
}

#[cfg(test)]
mod tests;
