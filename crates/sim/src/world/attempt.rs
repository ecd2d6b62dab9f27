//! The path of one attempt: uplink, counting, work, response, downlink.
//!
//! Promises: each leg draws once and from its own random stream; the provider frees the in-flight
//! slot before the last byte leaves, so a node that has the end of the response can rely on it.
//!
//! Never: decides about permits; the rules do.

use fastrand::Rng;
use tollgate_core::time::{Micros, Span};

use crate::checker::Arrival;
use crate::rule::{LimitStatus, RuleDecision};

use super::{Attempt, Call, Client, EventKind, NodeId, Outcome, World};

impl<C: Client> World<C> {
    /// The bytes leave the node.
    pub(super) fn send(&mut self, node: NodeId, call: Call) {
        self.attempts += 1;
        let attempt = Attempt {
            number: self.attempts,
            node,
            call,
        };
        self.checker.record_send(call.id);
        self.listening.insert(attempt.number);
        if let Some(after) = self.setup.give_up {
            self.give_up(attempt, after);
        }
        let mut up = self.setup.latency.up.draw(&mut self.dice.up);
        let back = self.setup.latency.down.draw(&mut self.dice.acknowledged);
        self.acknowledged.insert(call.id, self.now + up + back);
        up = up + self.setup.until_counted.draw(&mut self.dice.counted);
        let dead = self.setup.faults.dead_connections;
        if is_lost(&mut self.dice.dead, dead.ppm) {
            up = Span(self.dice.dead.u64(0..=(dead.noticed_after + dead.late).0));
            self.acknowledged.remove(&call.id);
            self.give_up(attempt, dead.noticed_after);
        }
        if !is_lost(&mut self.dice.lost_up, self.setup.faults.lost_requests_ppm) {
            self.push(self.now + up, EventKind::Arrive(attempt));
        }
    }

    /// The node stops waiting after this long.
    fn give_up(&mut self, attempt: Attempt, after: Span) {
        let ends = self.now + after;
        self.push(
            ends,
            EventKind::Reply {
                attempt,
                outcome: Outcome::NoResponse,
                ends,
            },
        );
    }

    /// The request reaches the provider.
    pub(super) fn arrive(&mut self, attempt: Attempt) {
        if self.setup.faults.is_down(attempt.call.id, self.now) {
            self.outage_responses += 1;
            return self.reply(attempt, Outcome::Unavailable, self.now);
        }
        let Call { id, cost, priority } = attempt.call;
        let at = self.now;
        let decision = self.provider.arrive(id, at, cost);
        let accepted = decision == RuleDecision::Accepted;
        self.checker.record_arrival(Arrival {
            id,
            at,
            cost,
            priority,
            accepted,
        });
        let rules = 0..self.setup.rules.len();
        let statuses = rules
            .filter_map(|rule| self.provider.status(rule, at))
            .collect();
        match decision {
            RuleDecision::Accepted => {
                let work = self.setup.latency.work.draw(&mut self.dice.work);
                match self.setup.faults.hangs_until(at) {
                    Some(end) => self.push(end, EventKind::Finish(attempt)),
                    None => self.push(at + work, EventKind::Head { attempt, statuses }),
                }
            }
            RuleDecision::Limited {
                rule, retry_after, ..
            } => {
                self.reply(
                    attempt,
                    Outcome::Limited {
                        rule,
                        retry_after,
                        statuses,
                    },
                    at,
                );
            }
        }
    }

    /// The provider starts its response, and frees the slot when it has sent all of it.
    pub(super) fn head(&mut self, attempt: Attempt, statuses: Vec<LimitStatus>) {
        let ends = self.now + self.setup.latency.body.draw(&mut self.dice.body);
        self.push(ends, EventKind::Finish(attempt));
        self.reply(attempt, Outcome::Accepted { statuses }, ends);
    }

    /// The head of a response, or the lack of one at the give-up time, reaches the node.
    pub(super) fn deliver(&mut self, attempt: Attempt, outcome: &Outcome, ends: Micros) {
        // After the give-up time the node ignores the response.
        if !self.listening.remove(&attempt.number) {
            return;
        }
        let Attempt { node, call, .. } = attempt;
        self.acknowledged.remove(&call.id);
        self.notify_client(node, |client, now, effects| {
            client.on_response(node, call, outcome, now, effects);
        });
        if *outcome != Outcome::NoResponse {
            self.push(ends.max(self.now), EventKind::End(attempt));
        }
    }

    /// A response leaves the provider now and until `ends`; all of it has the same delay down.
    fn reply(&mut self, attempt: Attempt, outcome: Outcome, ends: Micros) {
        let down = self.setup.latency.down.draw(&mut self.dice.down);
        if !is_lost(&mut self.dice.lost_down, self.setup.faults.lost_replies_ppm) {
            let ends = ends + down;
            self.push(
                self.now + down,
                EventKind::Reply {
                    attempt,
                    outcome,
                    ends,
                },
            );
        }
    }
}

fn is_lost(dice: &mut Rng, ppm: u32) -> bool {
    ppm > 0 && dice.u32(0..1_000_000) < ppm
}
