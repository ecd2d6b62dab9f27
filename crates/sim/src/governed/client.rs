//! What a governed client does when the world wakes it, hands it a call or brings a response.

use super::*;

impl Client for Governed {
    fn on_wake(&mut self, node: NodeId, now: Now, effects: &mut Effects<'_>) {
        self.run(node, now, effects);
    }

    fn on_submit(&mut self, node: NodeId, call: Call, now: Now, effects: &mut Effects<'_>) {
        self.push(node, call, None, now);
        self.run(node, now, effects);
    }

    fn on_response(
        &mut self,
        node: NodeId,
        call: Call,
        outcome: &Outcome,
        now: Now,
        effects: &mut Effects<'_>,
    ) {
        let Some(permit) = self.node(node).in_flight.remove(&call.id) else {
            return;
        };
        let arrived = |limited, readings| Settled::Arrived {
            age: Span::ZERO,
            limited,
            readings,
        };
        let (settled, again) = match outcome {
            Outcome::Accepted { statuses } => {
                (arrived(false, self.readings(&permit, statuses)), false)
            }
            Outcome::Limited { rule, statuses, .. } => {
                self.limited.push((call.id, *rule));
                (arrived(true, self.readings(&permit, statuses)), true)
            }
            Outcome::Unavailable => (Settled::Failed { age: Span::ZERO }, true),
            Outcome::NoResponse => (
                Settled::Unknown {
                    age: Span::ZERO,
                    late: self.plan.late_arrival,
                },
                true,
            ),
        };
        self.settle(node, &permit, settled, effects);
        if again {
            self.push(node, call, Some(permit.seniority), now);
        } else {
            effects.done(call.id);
        }
        if *outcome != Outcome::NoResponse {
            self.node(node)
                .streaming
                .entry(call.id)
                .or_default()
                .push(permit);
        }
        self.maybe_cancel(node, effects);
        self.run(node, now, effects);
    }

    fn on_response_end(&mut self, node: NodeId, call: Call, now: Now, effects: &mut Effects<'_>) {
        let streaming = &mut self.node(node).streaming;
        let Some(mut permit) = streaming.get_mut(&call.id).and_then(Vec::pop) else {
            return;
        };
        for term in &mut permit.terms {
            term.cost = cost(&call, term.rule.cost_unit());
        }
        self.settle(
            node,
            &permit,
            Settled::Finished { age: Span::ZERO },
            effects,
        );
        self.run(node, now, effects);
    }
}
