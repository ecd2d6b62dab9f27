//! The learn stage: what did the answer say about limits and health?
//!
//! Promises: every answer is heard once, by the permit, the health machine, the cool-down of its
//! scope and degrade mode. A body is read beforehand only where the provider's dialect speaks of
//! limits in it, and only so much; a compressed one is opened beside what is passed on.
//!
//! Never: changes what the caller gets.

use std::sync::Arc;

use http::header::{CONTENT_TYPE, DATE, HeaderMap};
use http::response::Parts;
use smallvec::SmallVec;
use tollgate_core::ask::{Reading, Readings, Term, Unit};
use tollgate_core::degrade::{Ours, Theirs};
use tollgate_core::feedback::{self, Feedback, Response, Verdict, Window};
use tollgate_core::health::Class;
use tollgate_core::limit::Algorithm;
use tollgate_core::time::{Micros, Span, Wall};

use super::credential::Credential;
use super::decode;
use super::route::Route;
use super::send::Sent;
use crate::body::{Flow, Open, ReplyBody, Tally, Written};
use crate::event::Fact;
use crate::failpoint;
use crate::shop::Plan;
use crate::{Answer, Permit};

/// How much of a refusal's body is read to learn from it. Refusals are small; larger ones are
/// pages for people, and their headers have to do.
const REFUSAL_MAX: usize = 64 * 1024;

/// How long a body is read to learn from it. Most come with their heads; the caller waits meanwhile,
/// and what comes later is passed on unheard.
const READ_WAIT: Span = Span::from_secs(5);

/// An answer, and what it means.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) head: Parts,
    pub(crate) body: ReplyBody,
    pub(crate) class: Class,
    pub(crate) verdict: Verdict,
    pub(crate) retry_after: Option<Span>,
    pub(crate) probe: bool,
    /// When its permit was granted, just before its bytes left; `None` = that was another's.
    pub(crate) granted: Option<Micros>,
    /// What was in force when its bytes left; `None` = that was another's.
    pub(crate) under: Option<Arc<Plan>>,
}

/// Learns from an answer.
pub(crate) async fn learn(
    route: &Route,
    plan: &Arc<Plan>,
    credential: &Credential,
    sent: Sent,
) -> Answered {
    failpoint::reached("head");
    let Sent {
        response,
        conn,
        permit,
        watch,
    } = sent;
    let (head, incoming) = response.into_parts();
    let mut flow = Flow::new(incoming, conn, plan.provider.timeouts.idle);
    flow.count(tally(route, plan, &head));
    let most = wanted(plan, &head);
    // If the body breaks off here, what came is still an answer, and the caller meets the break.
    let first = match most {
        0 => flow.glance().await,
        most => {
            let left = route.left().map_or(READ_WAIT, |left| left.min(READ_WAIT));
            flow.read(most, left).await
        }
    };
    let feedback = match most {
        0 => read(route, plan, &head, b""),
        most => {
            let body = decode::opened(&head.headers, &first, most);
            read(route, plan, &head, &body)
        }
    };
    let class = class(head.status.as_u16(), feedback.verdict);
    let granted = permit.granted();
    settle(plan, &head, (class, &feedback), permit, &mut flow);
    let probe = watch.probe;
    let retry_after = feedback.wait.filter(|_| class.is_failure());
    if let Some(rest) = watch.ended(class, retry_after, Some(&plan.cooldown)) {
        tell_rest(route, rest, retry_after);
    }
    if plan.provider.enabled {
        save(route, plan, credential, &feedback);
    }
    Answered {
        head,
        body: ReplyBody::new(first, Some(flow)),
        class,
        verdict: feedback.verdict,
        retry_after,
        probe,
        granted: Some(granted),
        under: Some(plan.clone()),
    }
}

/// The scope of a refused call rests from now on.
fn tell_rest(route: &Route, rest: Span, retry_after: Option<Span>) {
    Fact::Cooled {
        provider: &route.live.name,
        entity: route.entity.as_deref(),
        rest,
        retry_after,
        status: &route.live.status(),
    }
    .tell();
}

/// Tells the ledger what came of a permit. The rest of the answer takes it along.
fn settle(
    plan: &Plan,
    head: &Parts,
    (class, feedback): (Class, &Feedback),
    mut permit: Permit,
    flow: &mut Flow,
) {
    let is_free = plan.provider.free_status.contains(&head.status.as_u16());
    if is_free && flow.has_ended() {
        // As if it had never been asked for. Once told that it arrived, a window keeps it.
        return permit.refund();
    }
    if class == Class::Other {
        // A11: no success, so it ends no row of failures, neither this process's nor that of all.
        permit.says_nothing_of_health();
    }
    if class == Class::ServerError {
        // It may come from in front of the limiter: no proof that the call was counted.
        permit.failed();
    } else {
        let answer = Answer {
            refused: feedback.verdict == Verdict::Limited,
            readings: readings(feedback, permit.limits(), &head.headers),
        };
        // Where head and end come together, and the head says nothing, the end says it all.
        if !flow.has_ended() || answer != Answer::default() {
            permit.arrived(answer);
        }
    }
    flow.carry(permit);
}

/// How much of the body speaks of limits. Of a compressed one that much is read and that much is
/// let out.
fn wanted(plan: &Plan, head: &Parts) -> usize {
    if head.status.as_u16() >= 400 {
        return REFUSAL_MAX;
    }
    if plan.dialect.reads_success_bodies() && is_written_as(head, b"json") {
        feedback::BODY_MAX
    } else {
        0
    }
}

fn is_written_as(head: &Parts, word: &[u8]) -> bool {
    head.headers.get(CONTENT_TYPE).is_some_and(|kind| {
        let mut parts = kind.as_bytes().windows(word.len());
        parts.any(|part| part.eq_ignore_ascii_case(word))
    })
}

/// What looks for the true cost of the call, where its file says that the answer tells it.
fn tally(route: &Route, plan: &Plan, head: &Parts) -> Option<Tally> {
    let wanted = plan.true_costs(route.priority(), route.at_most_permille.is_some());
    if wanted.is_empty() || head.status.as_u16() >= 400 {
        return None;
    }
    let kind = if is_written_as(head, b"json") {
        Written::Json
    } else if is_written_as(head, b"event-stream") {
        Written::Events
    } else {
        return None;
    };
    let open = Open {
        headers: head.headers.clone(),
        by: |headers, body| decode::opened(headers, body, feedback::BODY_MAX).into_owned(),
    };
    Some(Tally::new(kind, wanted, open))
}

fn read(route: &Route, plan: &Plan, head: &Parts, body: &[u8]) -> Feedback {
    let headers: SmallVec<[(&str, &[u8]); 32]> = head
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_bytes()))
        .collect();
    let response = Response {
        status: head.status.as_u16(),
        headers: &headers,
        body,
    };
    feedback::read(&response, &plan.dialect, route.live.ledger.wall())
}

/// What came back (A11). What the dialect says about a refusal wins over the status; a bill to pay
/// is the caller's affair, and waiting does not mend it.
fn class(status: u16, verdict: Verdict) -> Class {
    match verdict {
        Verdict::Limited => Class::Refused,
        Verdict::Overloaded if status < 500 => Class::ServerError,
        Verdict::Spent | Verdict::Passed | Verdict::Overloaded => {
            Class::of_status(status, Some(false))
        }
    }
}

/// Degrade mode: is little left?
fn save(route: &Route, plan: &Plan, credential: &Credential, feedback: &Feedback) {
    let entity = route.entity.as_deref();
    let (Some(settings), Some(scope)) = (&plan.degrade, plan.degrade_scope(entity)) else {
        return;
    };
    let who = route.who(credential.mark.as_deref());
    let meters = plan
        .meters
        .iter()
        .filter(|meter| meter.counts_calls() && !meter.is_concurrency());
    let cells: Vec<_> = meters
        .map(|meter| (meter.cell_of(&who), meter.rule.clone()))
        .collect();
    let periods: SmallVec<[Span; 4]> = cells.iter().map(|(_, rule)| rule.period()).collect();
    let theirs = feedback.remaining.map(|remaining| Theirs {
        remaining,
        reset_after: feedback
            .reset_at
            .map(|reset| reset.since(route.live.ledger.wall())),
    });
    let (machine, settings) = (route.live.machine.clone(), *settings);
    // The answer does not wait for it.
    route.live.ledger.look_then(cells, move |views| {
        let tightest = views
            .iter()
            .zip(periods)
            .min_by_key(|(view, _)| view.remaining);
        if let Some((view, period)) = tightest {
            let ours = Ours {
                remaining: view.remaining,
                limit: view.limit,
                full_after: view.reset_after,
                period,
            };
            machine.left(&settings, scope, theirs, ours);
        }
    });
}

/// Which of our limits the provider's words are about.
fn readings(feedback: &Feedback, terms: &[Term], headers: &HeaderMap) -> Readings {
    let mut readings = Readings::new();
    let is_calendar =
        |index: &usize| matches!(terms[*index].rule.algorithm(), Algorithm::Calendar(_));
    if feedback.windows.is_empty() && !(0..terms.len()).any(|index| is_calendar(&index)) {
        return readings; // nothing was said, and nobody asks for the date
    }
    let date = date(headers);
    for window in &feedback.windows {
        if let Some(term) = about(window, terms) {
            readings.push(Reading {
                term,
                remaining: window.remaining,
                limit: window.limit,
                reset_after: window.reset,
                date,
                ..Reading::default()
            });
        }
    }
    let dated = (0..terms.len()).filter(is_calendar);
    for term in dated.filter(|_| date.is_some()) {
        if !readings.iter().any(|reading| reading.term == term) {
            readings.push(Reading {
                term,
                date,
                ..Reading::default()
            });
        }
    }
    readings
}

/// The limit with the window's unit and period, else with its unit and number, else the only one
/// with its unit. A window that fits none is nobody's: guessing would close the wrong limit.
fn about(window: &Window, terms: &[Term]) -> Option<usize> {
    let unit = match window.unit {
        feedback::Unit::Requests => Unit::Calls,
        feedback::Unit::Tokens => Unit::Tokens,
        feedback::Unit::Points => Unit::Points,
        feedback::Unit::Bytes => Unit::Bytes,
        feedback::Unit::Concurrent => return None,
    };
    let fits = |index: &usize| {
        let rule = &terms[*index].rule;
        rule.counts() == unit && !matches!(rule.algorithm(), Algorithm::InFlight)
    };
    let candidates: Vec<usize> = (0..terms.len()).filter(fits).collect();
    let by = |test: &dyn Fn(usize) -> bool| {
        let mut found = candidates.iter().copied().filter(|index| test(*index));
        found.next().filter(|_| found.next().is_none())
    };
    by(&|index| window.period == Some(terms[index].rule.period()))
        .or_else(|| by(&|index| window.limit == Some(terms[index].rule.limit())))
        .or_else(|| by(&|_| true))
}

/// The provider's own clock.
fn date(headers: &HeaderMap) -> Option<Wall> {
    let date = httpdate::parse_http_date(headers.get(DATE)?.to_str().ok()?).ok()?;
    let since = date.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(Wall(Span::from(since).0))
}

impl Answered {
    /// A part of an answer that has been learned from already.
    pub(crate) fn part(head: Parts, body: ReplyBody, granted: Option<Micros>) -> Answered {
        Answered {
            head,
            body,
            class: Class::Success,
            verdict: Verdict::Passed,
            retry_after: None,
            probe: false,
            granted,
            under: None,
        }
    }

    /// The failure is not passed on: what is left of it is read, so that its connection can be used
    /// again.
    pub(crate) async fn discard(self) {
        self.body.drain(REFUSAL_MAX).await;
    }
}
