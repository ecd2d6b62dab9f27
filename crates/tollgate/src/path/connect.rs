//! The connect stage: a connection that is ready, before a permit is asked for.
//!
//! Promises: name, TCP and TLS failures cost no permit, and no handshake lies between permit and
//! bytes. A provider that rests is not even connected to: its probe opens the connection.
//!
//! Never: holds a connection while its call waits.

use tollgate_core::health::{Answer, Class, Door, Event, Fault};
use tollgate_core::time::Span;

use super::retry::Ended;
use super::route::Route;
use crate::Error;
use crate::error::{NotAllowed, Reason, Stage};
use crate::event::Fact;
use crate::pool::{Expected, Unreached};
use crate::shop::Plan;

/// When to come back if this process has no descriptor left: calls end all the time.
const NO_ROOM_RETRY: Span = Span::from_secs(1);

/// Makes sure that there will be a connection.
pub(crate) async fn connect(route: &Route, plan: &Plan) -> Result<Expected, Ended> {
    let live = &route.live;
    let expected = live.pool.expect(&route.origin);
    let patience = limit(route, plan);
    if matches!(live.machine.look().door, Door::Open)
        && let Err(unreached) = expected.warm(plan.connections_max, patience).await
    {
        let ended = ended(route, plan, patience, unreached);
        if let Ended::Fault { fault, .. } = ended
            && plan.provider.enabled
        {
            live.machine.on(Event::Answered(Answer {
                class: Class::of_fault(fault),
                granted: live.ledger.at(),
                retry_after: None,
            }));
        }
        return Err(ended);
    }
    Ok(expected)
}

/// How long connecting may take.
pub(crate) fn limit(route: &Route, plan: &Plan) -> Span {
    let most = plan.provider.timeouts.connect;
    route.left().map_or(most, |left| left.min(most))
}

/// What a failure to connect, within this time, means for the call.
pub(crate) fn ended(route: &Route, plan: &Plan, most: Span, unreached: Unreached) -> Ended {
    let provider = route.live.name.clone();
    match unreached {
        // The caller's time, not the provider's: it says nothing about the provider.
        Unreached::Fault(Fault::Timeout) if most < plan.provider.timeouts.connect => {
            match route.left() {
                // A joiner has brought more.
                Some(left) if left > Span::ZERO => Ended::Again,
                Some(_) | None => Ended::Refused(Error::TooLate {
                    provider,
                    at: Stage::Upstream,
                }),
            }
        }
        Unreached::Fault(fault) => {
            Fact::Failed {
                provider: &provider,
                fault,
            }
            .tell();
            Ended::Fault {
                fault,
                sent: false,
                probe: false,
            }
        }
        Unreached::Private => Ended::Refused(Error::NotAllowed {
            host: route.origin.host.to_string(),
            why: NotAllowed::Private,
        }),
        Unreached::Own => Ended::Refused(Error::Loop { provider }),
        Unreached::NoRoom => Ended::Refused(Error::NoPermit {
            provider,
            entity: route.entity.clone(),
            limit: None,
            reason: Reason::NoRoom,
            retry_in: Some(NO_ROOM_RETRY),
        }),
    }
}
