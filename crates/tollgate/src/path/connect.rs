//! The connect stage: a ready connection, before a permit is requested.
//!
//! Promises: DNS, TCP and TLS failures cost no permit, and no handshake lies between permit and
//! bytes. Tollgate does not connect to a sleeping provider: its probe opens the connection.
//!
//! Never: holds a connection while its call waits.

use tollgate_core::health::{Admission, AttemptResult, Class, Fault, HealthEvent};
use tollgate_core::time::Span;

use super::response::AttemptError;
use super::route::Route;
use super::subject::Subject;
use crate::Error;
use crate::error::{NotAllowed, Reason, Stage};
use crate::event::{Event, StepKind};
use crate::pool::{ConnectError, ExpectedCall};
use crate::providers::CompiledPolicy;

/// When to come back if this process has no file descriptor left: calls end all the time.
const NO_DESCRIPTOR_RETRY: Span = Span::from_secs(1);

/// Makes sure that a connection is ready or being opened. `repeated`: an earlier attempt of the call
/// has failed.
pub(crate) async fn connect(
    route: &Route,
    policy: &CompiledPolicy,
    repeated: bool,
) -> Result<ExpectedCall, AttemptError> {
    let live = &route.subject.provider;
    let expected = live.pool.expect(&route.request.origin);
    let patience = timeout(route, policy);
    if matches!(
        live.health.view(route.subject.path).admission,
        Admission::Open
    ) && let Err(unreached) = expected.warm(live.connections.max(), patience).await
    {
        let ended = connect_failure(route, policy, patience, unreached);
        if let AttemptError::Fault { fault, .. } = ended
            && policy.provider.enabled
        {
            live.health.on(HealthEvent::Completed(AttemptResult {
                repeated,
                ..AttemptResult::new(Class::of_fault(fault), live.ledger.at())
            }));
        }
        return Err(ended);
    }
    Ok(expected)
}

/// How long connecting may take.
pub(crate) fn timeout(route: &Route, policy: &CompiledPolicy) -> Span {
    let most = policy.provider.timeouts.connect;
    route
        .subject
        .remaining()
        .map_or(most, |remaining| remaining.min(most))
}

/// Emits that an attempt got no response.
pub(crate) fn emit_failed(subject: &Subject, fault: Fault) {
    subject.add_step(|| StepKind::Failed(fault));
    let (id, provider, _) = subject.labels();
    subject.provider.events.emit(Event::AttemptFailed {
        id,
        provider,
        fault,
    });
}

/// What a failure to connect within `most` means for the call.
pub(crate) fn connect_failure(
    route: &Route,
    policy: &CompiledPolicy,
    most: Span,
    unreached: ConnectError,
) -> AttemptError {
    let provider = route.subject.provider.name.clone();
    match unreached {
        // The caller's time, not the provider's: it says nothing about the provider.
        ConnectError::Fault(Fault::Timeout) if most < policy.provider.timeouts.connect => {
            match route.subject.remaining() {
                // A follower has brought more time.
                Some(remaining) if remaining > Span::ZERO => AttemptError::Again,
                Some(_) | None => AttemptError::Stop(Error::DeadlineExceeded {
                    provider,
                    at: Stage::Upstream,
                }),
            }
        }
        ConnectError::Fault(fault) => {
            emit_failed(&route.subject, fault);
            AttemptError::Fault {
                fault,
                sent: false,
                probe: false,
            }
        }
        ConnectError::Private => AttemptError::Stop(Error::NotAllowed {
            host: route.request.origin.host.to_string(),
            why: NotAllowed::Private,
        }),
        ConnectError::NoTls => AttemptError::Stop(Error::Misconfigured {
            provider,
            setting: "upstream".to_owned(),
            why: "it needs TLS, and this program was built without the feature `tls` of tollgate",
        }),
        ConnectError::OwnAddress => AttemptError::Stop(Error::Loop { provider }),
        ConnectError::NoDescriptors => AttemptError::Stop(Error::NoPermit {
            provider,
            entity: route.subject.entity_name(),
            limit: None,
            reason: Reason::NoDescriptors,
            retry_in: Some(NO_DESCRIPTOR_RETRY),
        }),
    }
}
