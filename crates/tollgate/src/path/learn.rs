//! The learn stage: what does the response say about limits and health?
//!
//! Promises: every response updates the permit, health, the cool-down of its scope and degrade
//! mode, exactly once. A body is read ahead only where the provider's dialect reports limits in it,
//! and only up to a bound; a copy of a compressed body is decompressed.
//!
//! Never: changes what the caller gets.

use std::borrow::Cow;
use std::sync::Arc;

use http::header::{DATE, HeaderMap};
use http::response::Parts;
use smallvec::SmallVec;
use tollgate_core::ask::{CostUnit, LimitReading, Readings, ScopeId, Term};
use tollgate_core::degrade::ProviderQuota;
use tollgate_core::feedback::{self, Feedback, LearnedWindow, LimitVerdict, Response, Window};
use tollgate_core::health::Class;
use tollgate_core::limit::{Algorithm, Rule};
use tollgate_core::time::{Span, Wall};

use super::requested_limits::Grant;
use super::response::{ERROR_BODY_MAX, UpstreamResponse};
use super::response_cost::{self, has_content_type};
use super::send::Sent;
use super::subject::Subject;
use crate::body::{ReplyBody, UpstreamBody};
use crate::decode;
use crate::event::{Event, StepKind};
use crate::failpoint;
use crate::metrics::ReportedQuota;
use crate::providers::{CompiledPolicy, DegradeWatch};
use crate::{LimitReport, Permit};

/// How long a body is read to learn from it. Most arrive with their heads. The caller waits
/// meanwhile; what arrives later is passed on unread.
const READ_WAIT: Span = Span::from_secs(5);

/// What a response means for limits and health.
#[derive(Debug)]
pub(crate) struct LearnResult {
    pub(crate) class: Class,
    pub(crate) verdict: LimitVerdict,
    pub(crate) retry_after: Option<Span>,
    pub(crate) probe: bool,
    /// The permit, until the end of the response; `None` if it is settled.
    pub(crate) permit: Option<Permit>,
}

/// A response, as far as limits may be reported in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObservedResponse<'a> {
    pub(crate) status: u16,
    pub(crate) headers: &'a HeaderMap,
    /// The beginning of the body, decoded.
    pub(crate) body: &'a [u8],
    /// Nothing of the response is still to come.
    pub(crate) has_ended: bool,
    /// How long the response took, if its receiver says so; else since the grant.
    pub(crate) took: Option<Span>,
}

/// Learns from a response over HTTP.
pub(crate) async fn learn(
    subject: &Subject,
    policy: &Arc<CompiledPolicy>,
    key: Option<&str>,
    sent: Sent,
) -> UpstreamResponse {
    failpoint::reached("head");
    let Sent {
        head,
        body,
        conn,
        grant,
    } = sent;
    let timeouts = &policy.provider.timeouts;
    let is_tunnel = conn.as_ref().is_some_and(|conn| conn.upgraded.is_some());
    let idle = if is_tunnel {
        timeouts.tunnel
    } else {
        timeouts.idle
    };
    let mut body_stream = UpstreamBody::new(body, conn, idle);
    body_stream.count_costs(response_cost::reader(subject, policy, &head));
    if subject.strips_usage && has_content_type(&head.headers, b"event-stream") {
        body_stream.strip_usage();
    }
    let most = bytes_to_read(policy, &head);
    // If the body breaks off here, the received part is still a response, and the caller gets the
    // error.
    let first = match most {
        0 => body_stream.read_available().await,
        most => {
            let remaining = subject.remaining();
            let remaining = remaining.map_or(READ_WAIT, |remaining| remaining.min(READ_WAIT));
            body_stream.read(most, remaining).await
        }
    };
    let decoded = match most {
        0 => Cow::default(),
        most => decode::decoded(&head.headers, &first, most),
    };
    let granted = grant.permit.granted();
    let observed = ObservedResponse {
        status: head.status.as_u16(),
        headers: &head.headers,
        body: &decoded,
        has_ended: body_stream.has_ended(),
        took: None,
    };
    let observation = observe(subject, policy, key, observed, grant);
    drop(decoded);
    if let Some(permit) = observation.permit {
        body_stream.hold_permit(permit);
    }
    UpstreamResponse {
        head,
        body: ReplyBody::new(first, Some(body_stream)),
        class: observation.class,
        verdict: observation.verdict,
        retry_after: observation.retry_after,
        probe: observation.probe,
        granted: Some(granted),
        sent_under: Some(policy.clone()),
    }
}

/// Learns from a response, whoever received it.
pub(crate) fn observe(
    subject: &Subject,
    policy: &CompiledPolicy,
    key: Option<&str>,
    observed: ObservedResponse<'_>,
    grant: Grant,
) -> LearnResult {
    let feedback = read_feedback(subject, policy, observed);
    let class = classify(observed.status, feedback.verdict);
    let took = observed.took.unwrap_or_else(|| grant.permit.age());
    count_response(subject, (observed.status, class), &feedback, took);
    if class == Class::Limited {
        raise_estimates(subject);
    }
    emit_response(subject, observed.status, class, took);
    let cooldown = grant.attempt_guard.cooldown;
    let permit = settle(policy, observed, (class, &feedback), grant.permit, cooldown);
    let probe = grant.attempt_guard.probe;
    let retry_after = feedback.wait.filter(|_| class.is_failure());
    let finished = grant
        .attempt_guard
        .finish(class, retry_after, Some(&policy.cooldown));
    if let Some(cooldown) = finished {
        subject.provider.connections.on_limited();
        emit_cooldown(subject, cooldown, retry_after);
    }
    if policy.provider.enabled {
        update_degrade(subject, policy, key, &feedback);
    }
    LearnResult {
        class,
        verdict: feedback.verdict,
        retry_after,
        probe,
        permit,
    }
}

/// Counts the response for the provider and its entity.
fn count_response(
    subject: &Subject,
    (status, class): (u16, Class),
    feedback: &Feedback,
    took: Span,
) {
    let provider = &subject.provider;
    provider.metrics.on_response(status, class, took);
    // Others hold their permits for as long as they like, and say what they like.
    if class == Class::Success && subject.use_within == Span::ZERO {
        provider.response_time.learn(took);
    }
    if class == Class::Other {
        let now = provider.ledger.at();
        provider.client_errors.report(&subject.id, status, now);
    }
    if class == Class::Limited {
        let now = provider.ledger.at();
        subject.count_quota(|quota| quota.on_limited(now));
        // While the store is lost, nobody knows whether there was room.
        if provider.ledger.loss().is_none() {
            provider.metrics.on_violation();
        }
    }
    if let Some(remaining) = feedback.remaining {
        let reported = ReportedQuota {
            remaining,
            limit: feedback.limit,
            reset_at: feedback.reset_at,
        };
        subject.count_quota(|quota| quota.on_reported(reported));
    }
}

fn emit_response(subject: &Subject, status: u16, class: Class, took: Span) {
    subject.add_step(|| StepKind::Response { status, class });
    subject.provider.events.emit_with(|| {
        let (id, provider, entity) = subject.labels();
        Event::Response {
            id,
            provider,
            entity,
            status,
            class,
            took,
        }
    });
}

/// Emits that the scope of a limited call cools down.
fn emit_cooldown(subject: &Subject, cooldown: Span, retry_after: Option<Span>) {
    subject.add_step(|| StepKind::Cooldown {
        duration: cooldown,
        retry_after,
    });
    subject.provider.events.emit(Event::Cooldown {
        provider: subject.provider.label(),
        entity: subject.entity.clone(),
        duration: cooldown,
        retry_after,
        status: Box::new(subject.provider.status()),
    });
}

/// Settles a permit at the ledger. Returns it unless it is settled for good.
fn settle(
    policy: &CompiledPolicy,
    observed: ObservedResponse<'_>,
    (class, feedback): (Class, &Feedback),
    mut permit: Permit,
    cooldown: ScopeId,
) -> Option<Permit> {
    let is_free = policy.provider.free_status.contains(&observed.status);
    if is_free && observed.has_ended {
        // As if never requested. Once the ledger knows that the call arrived, a window counts it.
        permit.refund_accepted(cooldown);
        return None;
    }
    if class == Class::Other {
        // A11: no success, so it ends no series of failures, neither this process's nor the shared
        // one.
        permit.skip_health(cooldown);
    }
    if class == Class::ServerError {
        // It may come from a proxy in front of the limiter: no proof that the call was counted.
        permit.failed();
    } else {
        let report = LimitReport {
            limited: feedback.verdict == LimitVerdict::Limited,
            readings: readings(policy, feedback, permit.limits(), observed.headers),
        };
        // If head and end arrive together and the head reports nothing, settling the end is enough.
        if !observed.has_ended || report != LimitReport::default() {
            permit.arrived(report);
        }
    }
    Some(permit)
}

/// How many bytes of the body may report limits. For a compressed body this bounds both the encoded
/// and the decoded bytes.
fn bytes_to_read(policy: &CompiledPolicy, head: &Parts) -> usize {
    if head.status.as_u16() >= 400 {
        return ERROR_BODY_MAX;
    }
    if policy.dialect.reads_success_bodies() && has_content_type(&head.headers, b"json") {
        feedback::BODY_MAX
    } else {
        0
    }
}

fn read_feedback(
    subject: &Subject,
    policy: &CompiledPolicy,
    observed: ObservedResponse<'_>,
) -> Feedback {
    let headers: SmallVec<[(&str, &[u8]); 32]> = observed
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_bytes()))
        .collect();
    let response = Response {
        status: observed.status,
        headers: &headers,
        body: observed.body,
    };
    feedback::read(&response, &policy.dialect, subject.provider.ledger.wall())
}

/// Classifies a response (A11). The dialect's verdict on a limit overrides the status. An unpaid
/// bill is the caller's problem, and waiting does not fix it.
fn classify(status: u16, verdict: LimitVerdict) -> Class {
    match verdict {
        LimitVerdict::Limited => Class::Limited,
        LimitVerdict::Overloaded if status < 500 => Class::ServerError,
        LimitVerdict::Spent | LimitVerdict::Passed | LimitVerdict::Overloaded => {
            Class::of_status(status, Some(false))
        }
    }
}

/// The provider had no room for a call that our limits had room for: what it holds for one without a bound is more.
fn raise_estimates(subject: &Subject) {
    let entity = subject.entity.as_deref().unwrap_or_default();
    let estimates = &subject.provider.token_estimates;
    for cost in subject.costs.iter().filter(|cost| cost.is_from_usage) {
        estimates.on_limited(&cost.unit, entity);
    }
}

/// Updates degrade mode: is little remaining?
pub(super) fn update_degrade(
    subject: &Subject,
    policy: &CompiledPolicy,
    key: Option<&str>,
    feedback: &Feedback,
) {
    let entity = subject.entity.as_deref();
    let (Some(settings), Some(scope)) = (&policy.degrade, policy.degrade_scope(entity)) else {
        return;
    };
    let attributes = subject.attributes(key);
    let limits = policy
        .limits
        .iter()
        .filter(|limit| limit.counts_calls() && !limit.is_concurrency() && !limit.is_learned());
    let watch = DegradeWatch {
        scope,
        provider: subject.provider.label(),
        entity: entity.map(Arc::from),
        settings: *settings,
        cells: limits
            .map(|limit| (limit.cell_of(&attributes), limit.rule.clone()))
            .collect(),
    };
    let theirs = feedback.remaining.map(|remaining| ProviderQuota {
        remaining,
        reset_after: feedback
            .reset_at
            .map(|reset| reset.since(subject.provider.ledger.wall())),
    });
    subject.provider.health.look(Arc::new(watch), theirs);
}

/// Matches the windows that the provider reports with our limits.
fn readings(
    policy: &CompiledPolicy,
    feedback: &Feedback,
    terms: &[Term],
    headers: &HeaderMap,
) -> Readings {
    let mut readings = Readings::new();
    let is_calendar =
        |index: &usize| matches!(terms[*index].rule.algorithm(), Algorithm::Calendar(_));
    if feedback.windows.is_empty() && !(0..terms.len()).any(|index| is_calendar(&index)) {
        return readings; // nothing is reported, and no limit needs the date
    }
    let date = date(headers);
    for window in &feedback.windows {
        let configured = matching_term(policy, window, terms);
        let learned = learned_term(policy.dialect.learned(), window, terms);
        for (term, limit) in configured.into_iter().chain(learned) {
            readings.push(LimitReading {
                term,
                remaining: window.remaining,
                limit,
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

/// The learned limit that the window states. These come last, in the order of the dialect.
fn learned_term(
    learned: &[LearnedWindow],
    window: &Window,
    terms: &[Term],
) -> Option<(usize, Option<u64>)> {
    let name = window.name.as_deref()?;
    let first = terms.iter().position(|term| term.rule.is_learned())?;
    let of_kind = learned.iter().position(|limit| limit.is_stated_by(name))?;
    let term = Some(first + of_kind).filter(|term| *term < terms.len())?;
    Some((term, window.limit))
}

/// The limit with the window's unit and period, else with its unit and number, else the only one
/// with its unit; and the number that is reported for it. A window that matches none is ignored: a guess would close
/// the wrong limit.
fn matching_term(
    policy: &CompiledPolicy,
    window: &Window,
    terms: &[Term],
) -> Option<(usize, Option<u64>)> {
    let unit = match window.unit {
        feedback::WindowUnit::Requests => CostUnit::Calls,
        feedback::WindowUnit::Tokens => CostUnit::Tokens,
        feedback::WindowUnit::Points => CostUnit::Points,
        feedback::WindowUnit::Bytes => CostUnit::Bytes,
        feedback::WindowUnit::Concurrent => return None,
    };
    let fits = |rule: &Rule| {
        rule.cost_unit() == unit
            && !rule.is_learned()
            && !matches!(rule.algorithm(), Algorithm::InFlight)
    };
    let by = |test: &dyn Fn(&Rule) -> bool| {
        let is_found = |index: &usize| fits(&terms[*index].rule) && test(&terms[*index].rule);
        let found: SmallVec<[usize; 2]> = (0..terms.len()).filter(is_found).collect();
        match found.as_slice() {
            [] => None,
            [one] => Some((*one, window.limit)),
            [first, ..] => {
                let alike = |rule: &Rule| is_alike(rule, &terms[*first].rule);
                let are_equal = found.iter().all(|index| alike(&terms[*index].rule))
                    && have_one_scope(policy, &|rule| fits(rule) && alike(rule));
                // What remains is the same for both; which of them the number is, nobody says.
                are_equal.then(|| (of_equals(&found, terms), None))
            }
        }
    };
    by(&|rule| window.period == Some(rule.period()))
        .or_else(|| by(&|rule| window.limit == Some(rule.limit())))
        .or_else(|| by(&|_| true))
}

/// Limits of one number, period and scope count the same calls, and all of them must allow a call: one
/// that follows the provider is enough. Preferably one that is free again at the provider's reset; a
/// bucket would refill slowly from what was reported.
fn of_equals(found: &[usize], terms: &[Term]) -> usize {
    let is_window =
        |index: &&usize| !matches!(terms[**index].rule.algorithm(), Algorithm::Bucket { .. });
    let window = found.iter().find(is_window);
    *window.unwrap_or(&found[0])
}

fn is_alike(one: &Rule, other: &Rule) -> bool {
    (one.limit(), one.period()) == (other.limit(), other.period())
}

/// Whether all of these limits are counted for the same part of the provider.
fn have_one_scope(policy: &CompiledPolicy, are_these: &dyn Fn(&Rule) -> bool) -> bool {
    let mut limits = policy.limits.iter();
    let Some(first) = limits.find(|limit| are_these(&limit.rule)) else {
        return false;
    };
    limits.all(|limit| !are_these(&limit.rule) || limit.per == first.per)
}

/// The provider's own clock.
fn date(headers: &HeaderMap) -> Option<Wall> {
    let date = httpdate::parse_http_date(headers.get(DATE)?.to_str().ok()?).ok()?;
    let since = date.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(Wall(Span::from(since).0))
}
