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
use tollgate_core::ask::{CostUnit, LimitReading, Readings, Term};
use tollgate_core::degrade::{LocalQuota, ProviderQuota};
use tollgate_core::feedback::{self, Feedback, LimitVerdict, Response, Window};
use tollgate_core::health::Class;
use tollgate_core::limit::Algorithm;
use tollgate_core::time::{Micros, Span, Wall};

use super::credential::Credential;
use super::decode;
use super::route::Route;
use super::send::Sent;
use crate::body::{CostReader, Decoder, ReplyBody, UpstreamBody, Written};
use crate::event::LogEvent;
use crate::failpoint;
use crate::providers::CompiledPolicy;
use crate::{LimitReport, Permit};

/// How much of a refusal's body is read to learn from it. Refusals are small; larger ones are
/// pages for people, and their headers have to do.
const ERROR_BODY_MAX: usize = 64 * 1024;

/// How long a body is read to learn from it. Most come with their heads; the caller waits meanwhile,
/// and what comes later is passed on unheard.
const READ_WAIT: Span = Span::from_secs(5);

/// An answer, and what it means.
#[derive(Debug)]
pub(crate) struct UpstreamResponse {
    pub(crate) head: Parts,
    pub(crate) body: ReplyBody,
    pub(crate) class: Class,
    pub(crate) verdict: LimitVerdict,
    pub(crate) retry_after: Option<Span>,
    pub(crate) probe: bool,
    /// When its permit was granted, just before its bytes left; `None` = that was another's.
    pub(crate) granted: Option<Micros>,
    /// What was in force when its bytes left; `None` = that was another's.
    pub(crate) sent_under: Option<Arc<CompiledPolicy>>,
}

/// Learns from an answer.
pub(crate) async fn learn(
    route: &Route,
    plan: &Arc<CompiledPolicy>,
    credential: &Credential,
    sent: Sent,
) -> UpstreamResponse {
    failpoint::reached("head");
    let Sent {
        response,
        conn,
        permit,
        attempt_guard: watch,
    } = sent;
    let (head, incoming) = response.into_parts();
    let mut flow = UpstreamBody::new(incoming, conn, plan.provider.timeouts.idle);
    flow.count_costs(cost_reader(route, plan, &head));
    let most = bytes_to_read(plan, &head);
    // If the body breaks off here, what came is still an answer, and the caller meets the break.
    let first = match most {
        0 => flow.read_available().await,
        most => {
            let left = route
                .remaining()
                .map_or(READ_WAIT, |left| left.min(READ_WAIT));
            flow.read(most, left).await
        }
    };
    let feedback = match most {
        0 => read_feedback(route, plan, &head, b""),
        most => {
            let body = decode::decoded(&head.headers, &first, most);
            read_feedback(route, plan, &head, &body)
        }
    };
    let class = classify(head.status.as_u16(), feedback.verdict);
    let granted = permit.granted();
    settle(plan, &head, (class, &feedback), permit, &mut flow);
    let probe = watch.probe;
    let retry_after = feedback.wait.filter(|_| class.is_failure());
    if let Some(rest) = watch.finish(class, retry_after, Some(&plan.cooldown)) {
        emit_cooldown(route, rest, retry_after);
    }
    if plan.provider.enabled {
        update_degrade(route, plan, credential, &feedback);
    }
    UpstreamResponse {
        head,
        body: ReplyBody::new(first, Some(flow)),
        class,
        verdict: feedback.verdict,
        retry_after,
        probe,
        granted: Some(granted),
        sent_under: Some(plan.clone()),
    }
}

/// The scope of a refused call rests from now on.
fn emit_cooldown(route: &Route, rest: Span, retry_after: Option<Span>) {
    LogEvent::Cooldown {
        provider: &route.provider.name,
        entity: route.entity.as_deref(),
        duration: rest,
        retry_after,
        status: &route.provider.status(),
    }
    .emit();
}

/// Tells the ledger what came of a permit. The rest of the answer takes it along.
fn settle(
    plan: &CompiledPolicy,
    head: &Parts,
    (class, feedback): (Class, &Feedback),
    mut permit: Permit,
    flow: &mut UpstreamBody,
) {
    let is_free = plan.provider.free_status.contains(&head.status.as_u16());
    if is_free && flow.has_ended() {
        // As if it had never been asked for. Once told that it arrived, a window keeps it.
        return permit.refund();
    }
    if class == Class::Other {
        // A11: no success, so it ends no row of failures, neither this process's nor that of all.
        permit.skip_health();
    }
    if class == Class::ServerError {
        // It may come from in front of the limiter: no proof that the call was counted.
        permit.failed();
    } else {
        let answer = LimitReport {
            limited: feedback.verdict == LimitVerdict::Limited,
            readings: readings(feedback, permit.limits(), &head.headers),
        };
        // Where head and end come together, and the head says nothing, the end says it all.
        if !flow.has_ended() || answer != LimitReport::default() {
            permit.arrived(answer);
        }
    }
    flow.hold_permit(permit);
}

/// How much of the body speaks of limits. Of a compressed one that much is read and that much is
/// let out.
fn bytes_to_read(plan: &CompiledPolicy, head: &Parts) -> usize {
    if head.status.as_u16() >= 400 {
        return ERROR_BODY_MAX;
    }
    if plan.dialect.reads_success_bodies() && has_content_type(head, b"json") {
        feedback::BODY_MAX
    } else {
        0
    }
}

fn has_content_type(head: &Parts, word: &[u8]) -> bool {
    head.headers.get(CONTENT_TYPE).is_some_and(|kind| {
        let mut parts = kind.as_bytes().windows(word.len());
        parts.any(|part| part.eq_ignore_ascii_case(word))
    })
}

/// What looks for the true cost of the call, where its file says that the answer tells it.
fn cost_reader(route: &Route, plan: &CompiledPolicy, head: &Parts) -> Option<CostReader> {
    let wanted = plan.true_costs(route.priority(), route.at_most_permille.is_some());
    if wanted.is_empty() || head.status.as_u16() >= 400 {
        return None;
    }
    let kind = if has_content_type(head, b"json") {
        Written::Json
    } else if has_content_type(head, b"event-stream") {
        Written::Events
    } else {
        return None;
    };
    let open = Decoder {
        headers: head.headers.clone(),
        decode: |headers, body| decode::decoded(headers, body, feedback::BODY_MAX).into_owned(),
    };
    Some(CostReader::new(kind, wanted, open))
}

fn read_feedback(route: &Route, plan: &CompiledPolicy, head: &Parts, body: &[u8]) -> Feedback {
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
    feedback::read(&response, &plan.dialect, route.provider.ledger.wall())
}

/// What came back (A11). What the dialect says about a refusal wins over the status; a bill to pay
/// is the caller's affair, and waiting does not mend it.
fn classify(status: u16, verdict: LimitVerdict) -> Class {
    match verdict {
        LimitVerdict::Limited => Class::Limited,
        LimitVerdict::Overloaded if status < 500 => Class::ServerError,
        LimitVerdict::Spent | LimitVerdict::Passed | LimitVerdict::Overloaded => {
            Class::of_status(status, Some(false))
        }
    }
}

/// Degrade mode: is little left?
fn update_degrade(
    route: &Route,
    plan: &CompiledPolicy,
    credential: &Credential,
    feedback: &Feedback,
) {
    let entity = route.entity.as_deref();
    let (Some(settings), Some(scope)) = (&plan.degrade, plan.degrade_scope(entity)) else {
        return;
    };
    let who = route.who(credential.fingerprint.as_deref());
    let meters = plan
        .limits
        .iter()
        .filter(|meter| meter.counts_calls() && !meter.is_concurrency());
    let cells: Vec<_> = meters
        .map(|meter| (meter.cell_of(&who), meter.rule.clone()))
        .collect();
    let periods: SmallVec<[Span; 4]> = cells.iter().map(|(_, rule)| rule.period()).collect();
    let theirs = feedback.remaining.map(|remaining| ProviderQuota {
        remaining,
        reset_after: feedback
            .reset_at
            .map(|reset| reset.since(route.provider.ledger.wall())),
    });
    let (machine, settings) = (route.provider.health.clone(), *settings);
    // The answer does not wait for it.
    route.provider.ledger.peek_then(cells, move |views| {
        let tightest = views
            .iter()
            .zip(periods)
            .min_by_key(|(view, _)| view.remaining);
        if let Some((view, period)) = tightest {
            let ours = LocalQuota {
                remaining: view.remaining,
                limit: view.limit,
                full_after: view.reset_after,
                period,
            };
            machine.on_remaining(&settings, scope, theirs, ours);
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
        if let Some(term) = matching_term(window, terms) {
            readings.push(LimitReading {
                term,
                remaining: window.remaining,
                limit: window.limit,
                reset_after: window.reset,
                date,
                ..LimitReading::default()
            });
        }
    }
    let dated = (0..terms.len()).filter(is_calendar);
    for term in dated.filter(|_| date.is_some()) {
        if !readings.iter().any(|reading| reading.term == term) {
            readings.push(LimitReading {
                term,
                date,
                ..LimitReading::default()
            });
        }
    }
    readings
}

/// The limit with the window's unit and period, else with its unit and number, else the only one
/// with its unit. A window that fits none is nobody's: guessing would close the wrong limit.
fn matching_term(window: &Window, terms: &[Term]) -> Option<usize> {
    let unit = match window.unit {
        feedback::WindowUnit::Requests => CostUnit::Calls,
        feedback::WindowUnit::Tokens => CostUnit::Tokens,
        feedback::WindowUnit::Points => CostUnit::Points,
        feedback::WindowUnit::Bytes => CostUnit::Bytes,
        feedback::WindowUnit::Concurrent => return None,
    };
    let fits = |index: &usize| {
        let rule = &terms[*index].rule;
        rule.cost_unit() == unit && !matches!(rule.algorithm(), Algorithm::InFlight)
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

impl UpstreamResponse {
    /// A part of an answer that has been learned from already.
    pub(crate) fn part(head: Parts, body: ReplyBody, granted: Option<Micros>) -> UpstreamResponse {
        UpstreamResponse {
            head,
            body,
            class: Class::Success,
            verdict: LimitVerdict::Passed,
            retry_after: None,
            probe: false,
            granted,
            sent_under: None,
        }
    }

    /// The failure is not passed on: what is left of it is read, so that its connection can be used
    /// again.
    pub(crate) async fn discard(self) {
        self.body.drain(ERROR_BODY_MAX).await;
    }
}
