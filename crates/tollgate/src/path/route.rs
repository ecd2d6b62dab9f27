//! The route stage: which provider, entity, caller, priority, cost and deadline?
//!
//! Promises: the path that was matched is the path that is sent. The provider's key goes with a
//! call only if it goes to the provider's own origin.
//!
//! Never: asks for a permit, or opens a connection.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{IF_RANGE, RANGE};
use http::{HeaderMap, Method};
use http_body::Body;
use tollgate_config::Secret;
use tollgate_config::provider::Upstream;
use tollgate_core::ask::Priority;
use tollgate_core::entity::{Asked, Doubt, Refusal};
use tollgate_core::gate::CallerId;
use tollgate_core::time::{Micros, Span};

use super::cache::UseCache;
use super::merge::Merging;
use super::place::{Place, place, to_upstream};
use super::share::Conditions;
use super::urgency::{Urgency, Wish};
use crate::Error;
use crate::body::{BodyError, Payload, READ_MAX, WHOLE_MAX};
use crate::cache::Beside;
use crate::pool::Origin;
use crate::shop::{Claim, Live, Price, Shop, Who, account, prices};
use crate::timer::within;

/// What a caller asks for.
#[derive(Debug)]
pub struct Call<B> {
    /// Whom.
    pub target: Target,
    /// The method.
    pub method: Method,
    /// The headers to send, hop-by-hop ones and our own already removed.
    pub headers: HeaderMap,
    /// The body to send.
    pub body: B,
    /// What the caller said about the call itself.
    pub said: Said,
}

/// Whom a call is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A provider by name, wherever it is.
    Provider {
        /// The name.
        name: String,
        /// The path below it, with its slash.
        path: String,
        /// The query, without `?`.
        query: Option<String>,
    },
    /// A URL; its host says which provider that is.
    Url {
        /// `https`.
        tls: bool,
        /// Host and port.
        authority: String,
        /// The path, with its slash.
        path: String,
        /// The query, without `?`.
        query: Option<String>,
    },
}

/// What a caller says about a call.
#[derive(Clone, Debug, Default)]
pub struct Said {
    /// The call's name in logs.
    pub id: String,
    /// How urgent it is; of a caller that is known, as urgent as that may be.
    pub priority: Priority,
    /// The caller named no priority: one that is known has its own.
    pub takes_default: bool,
    /// Who calls.
    pub caller: Option<String>,
    /// What proves it.
    pub token: Option<Secret>,
    /// The entity, if the path does not tell it.
    pub entity: Option<String>,
    /// What it costs, by unit.
    pub costs: Vec<(String, u64)>,
    /// How long it may wait and run in all.
    pub timeout: Option<Span>,
    /// The caller's address.
    pub ip: Option<IpAddr>,
    /// It wants an answer of its own, whoever else asks the same.
    pub alone: bool,
    /// How it uses the cache.
    pub cache: UseCache,
}

impl Said {
    /// A call of our own that others wait for.
    fn urgent() -> Said {
        Said {
            priority: Priority::High,
            ..Said::default()
        }
    }
}

/// A call that knows its way.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) live: Arc<Live>,
    pub(crate) origin: Origin,
    /// Our key may go there.
    pub(crate) is_own: bool,
    pub(crate) method: Method,
    pub(crate) headers: HeaderMap,
    pub(crate) path: String,
    pub(crate) query: Option<String>,
    pub(crate) payload: Payload,
    pub(crate) entity: Option<String>,
    pub(crate) prices: Vec<Price>,
    pub(crate) said: Said,
    /// The part of every limit that its caller may use, in thousandths.
    pub(crate) at_most_permille: Option<u16>,
    caller: CallerId,
    deadline: Option<Micros>,
    /// There is an old answer to fall back to: it neither waits nor tries twice.
    pub(crate) fallback: bool,
    started: Micros,
    /// A fingerprint of the conditions that the client set; the cache sets others in their place.
    pub(crate) conditions: Conditions,
    /// What those who wait for the same answer want; `None` = nobody can join.
    pub(crate) urgency: Option<Arc<Urgency>>,
    /// How it takes part in flights.
    pub(crate) sharing: Sharing,
    /// How it takes part in merging.
    pub(crate) merging: Merging,
    /// It is made for nobody, beside an old answer.
    pub(crate) beside: Option<Arc<Beside>>,
}

/// How a call takes part in flights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sharing {
    /// It has been told to go alone.
    pub(crate) is_alone: bool,
    /// How often one that went ahead of it has failed.
    pub(crate) failed: u32,
}

/// Finds the way of a call. Reads its body as far as it may be read before the permit.
pub(crate) async fn route<B>(shop: &Shop, call: Call<B>) -> Result<Route, Error>
where
    B: Body<Data = Bytes> + Send + Sync + Unpin + 'static,
    B::Error: Into<BodyError>,
{
    let (sent, way) = begin(shop, call)?;
    let payload = within(way.said.timeout, Payload::gather(sent, way.reads_max()))
        .await
        .map_err(|_| Error::NoBody)??;
    way.end(payload)
}

/// Finds the way of a call that has no body.
pub(super) fn bodiless(shop: &Shop, call: Call<()>) -> Result<Route, Error> {
    let ((), way) = begin(shop, call)?;
    way.end(Payload::Whole(Bytes::new()))
}

/// What is known of a call before its body is there.
struct Way {
    method: Method,
    headers: HeaderMap,
    said: Said,
    place: Place,
    path: String,
    query: Option<String>,
    at_most_permille: Option<u16>,
    started: Micros,
}

fn begin<B>(shop: &Shop, mut call: Call<B>) -> Result<(B, Way), Error> {
    let started = shop.ledger().at();
    let standing = shop.callers().standing(Claim {
        name: call.said.caller.as_deref(),
        token: call.said.token.as_ref(),
        priority: (!call.said.takes_default).then_some(call.said.priority),
    })?;
    call.said.priority = standing.priority;
    let (place, path, query) = place(shop, call.target)?;
    has_not_come_back(&place.live, &call.headers)?;
    let way = Way {
        method: call.method,
        headers: call.headers,
        said: call.said,
        place,
        path,
        query,
        at_most_permille: standing.at_most_permille,
        started,
    };
    Ok((call.body, way))
}

impl Way {
    /// How much of the body is read: more where something is decided by it.
    fn reads_max(&self) -> usize {
        let provider = &self.place.plan.provider;
        let costs = provider.costs.iter();
        let mut reads = costs.filter(|cost| !cost.before.is_empty());
        let is_said = |unit: &str| self.said.costs.iter().any(|(said, _)| said == unit);
        if self.needs_body() || reads.any(|cost| !is_said(&cost.unit)) {
            READ_MAX
        } else {
            WHOLE_MAX
        }
    }

    /// The body alone says whose limits hold.
    fn needs_body(&self) -> bool {
        let entities = &self.place.plan.provider.entities;
        self.said.entity.is_none() && entities.reads_body()
    }

    fn end(self, payload: Payload) -> Result<Route, Error> {
        // What was not read is not "no entity": a large body must not dodge a limit.
        let doubt = self.place.plan.provider.entities.doubt;
        if payload.is_unread() && self.needs_body() && doubt == Doubt::Refuse {
            return Err(Refusal::Body.into());
        }
        let Way {
            headers,
            said,
            place,
            query,
            ..
        } = self;
        let provider = &place.plan.provider;
        let read = provider.entities.reads_headers();
        let texts: Vec<(&str, &str)> = headers
            .iter()
            .filter(|_| read)
            .filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)))
            .collect();
        let routed = provider.entities.route(&Asked {
            named: said.entity.as_deref(),
            host: Some(&place.host),
            path: &self.path,
            query: query.as_deref().unwrap_or_default(),
            headers: &texts,
            body: payload.known(),
        })?;
        let caller = said.caller.as_deref();
        Ok(Route {
            caller: caller.map_or_else(CallerId::default, account),
            prices: prices(&provider.costs, &said.costs, payload.known()),
            path: below(&place.base, routed.path),
            entity: routed.entity.map(|entity| entity.as_str().to_owned()),
            origin: place.origin,
            is_own: place.is_own,
            live: place.live,
            conditions: Conditions::of(&headers),
            method: self.method,
            headers,
            query,
            payload,
            deadline: said.timeout.map(|timeout| self.started + timeout),
            said,
            at_most_permille: self.at_most_permille,
            fallback: false,
            started: self.started,
            urgency: None,
            sharing: Sharing::default(),
            merging: Merging::default(),
            beside: None,
        })
    }
}

impl Route {
    /// A post of our own, most urgent, to an address that the provider's file names. As with every
    /// URL of its domains, the upstream stands in for them where there is one.
    pub(crate) fn post(live: Arc<Live>, to: &Upstream, headers: HeaderMap, body: Bytes) -> Route {
        let started = live.ledger.at();
        let plan = live.plan();
        let provider = &plan.provider;
        let is_at_home = provider
            .domains
            .iter()
            .any(|domain| domain.matches(&to.host));
        let at = match &provider.upstream {
            Some(upstream) if is_at_home => upstream.instead_of(to),
            Some(_) | None => to.clone(),
        };
        let is_own = match &provider.upstream {
            Some(own) => (own.tls, &own.host, own.port) == (at.tls, &at.host, at.port),
            None => is_at_home && at.tls && at.port == 443,
        };
        let mut path = at.base.clone();
        if path.is_empty() {
            path.push('/');
        }
        let routed = provider.entities.route(&Asked {
            named: None,
            host: Some(&to.host),
            path: &path,
            query: "",
            headers: &[],
            body: &[],
        });
        let entity = routed
            .ok()
            .filter(|_| is_own)
            .and_then(|routed| routed.entity);
        Route {
            // The file names it, so it may be a private address.
            origin: to_upstream(live.clone(), plan.clone(), at, true).origin,
            entity: entity.map(|entity| entity.as_str().to_owned()),
            is_own,
            live,
            method: Method::POST,
            headers,
            path,
            query: None,
            payload: Payload::Whole(body),
            prices: Vec::new(),
            said: Said::urgent(),
            conditions: Conditions::default(),
            at_most_permille: None,
            caller: CallerId::default(),
            deadline: None,
            fallback: false,
            started,
            urgency: None,
            sharing: Sharing::default(),
            merging: Merging::default(),
            beside: None,
        }
    }

    /// What limits may depend on.
    pub(crate) fn who<'a>(&'a self, key: Option<&'a str>) -> Who<'a> {
        Who {
            entity: self.entity.as_deref(),
            key,
            caller: self.said.caller.as_deref().unwrap_or_default(),
            ip: self.said.ip,
            host: self.origin.host.as_str(),
            priority: self.priority(),
            costs: &self.prices,
        }
    }

    /// The same question once more, about the whole and for nobody in particular: behind everybody
    /// else, and as long as the queue allows. The body of a question that is kept is empty.
    pub(crate) fn beside(&self) -> Route {
        let mut headers = self.headers.clone();
        for name in [RANGE, IF_RANGE] {
            headers.remove(name);
        }
        Route {
            live: self.live.clone(),
            origin: self.origin.clone(),
            is_own: self.is_own,
            method: Method::GET,
            headers,
            path: self.path.clone(),
            query: self.query.clone(),
            payload: Payload::Whole(Bytes::new()),
            entity: self.entity.clone(),
            prices: self.prices.clone(),
            said: Said {
                id: format!("{}-beside", self.said.id),
                priority: Priority::Low,
                timeout: None,
                ..self.said.clone()
            },
            caller: self.caller,
            at_most_permille: self.at_most_permille,
            deadline: None,
            fallback: false,
            started: self.live.ledger.at(),
            conditions: self.conditions,
            urgency: None,
            sharing: Sharing::default(),
            merging: Merging::default(),
            beside: None,
        }
    }

    /// Its bytes leave now.
    pub(crate) fn leaves(&self) {
        if let Some(beside) = &self.beside {
            beside.leaves();
        }
    }

    /// How urgent it is, with all who wait for it.
    pub(crate) fn priority(&self) -> Priority {
        self.wish().priority
    }

    /// What it wants, with all who wait for it.
    pub(crate) fn wish(&self) -> Wish {
        match &self.urgency {
            Some(urgency) => urgency.wish(),
            None => self.own_wish(),
        }
    }

    /// What this call alone wants.
    pub(crate) fn own_wish(&self) -> Wish {
        Wish {
            priority: self.said.priority,
            caller: self.caller,
            deadline: self.deadline,
            untimed: self.deadline.is_none().then_some(self.started),
        }
    }

    /// Waits until it has become more urgent.
    pub(crate) async fn raised(&self) {
        match &self.urgency {
            Some(urgency) => urgency.raised().await,
            None => std::future::pending().await,
        }
    }

    /// What is left of the caller's time, or of the most patient one's; `None` = it set none.
    pub(crate) fn left(&self) -> Option<Span> {
        let deadline = self.wish().over_by();
        deadline.map(|deadline| deadline.since(self.live.ledger.at()))
    }

    /// What is left of this caller's own time.
    pub(crate) fn own_left(&self) -> Option<Span> {
        self.deadline
            .map(|deadline| deadline.since(self.live.ledger.at()))
    }
}

/// A call that we have sent ourselves would go round for ever.
fn has_not_come_back(live: &Live, headers: &HeaderMap) -> Result<(), Error> {
    if live.via.is_in(headers) {
        let provider = live.name.clone();
        return Err(Error::Loop { provider });
    }
    Ok(())
}

/// A path below what stands before it, which is nearly always nothing.
fn below(base: &str, path: String) -> String {
    if base.is_empty() {
        path
    } else {
        format!("{base}{path}")
    }
}
