//! Every field of a provider file: name, meaning, shape and default, once.
//!
//! Promises: a name that does not stand here is refused; the documentation and the JSON schema are
//! made from these tables.
//!
//! Never: checks a value.

use tollgate_core::alert::AlertSettings;
use tollgate_core::cooldown::CooldownSettings;
use tollgate_core::retry::RetrySettings;

use crate::provider::{ClientAuth, Per};
use crate::setting::Setting;
use crate::settings::{
    Algorithm, Cache, Confined, Dedup, Degrade, Health, Hold, Merge, OnStoreLoss, Queue, Timeout,
};
use crate::shape::{Shape, names_of};

/// Every field of a provider file.
pub const FIELDS: &[&str] = &names_of::<{ PROVIDER.len() }>(PROVIDER);

/// A table of fields: `name: shape, "meaning"`, and `= "default"` where there is one.
macro_rules! table {
    ($(#[$doc:meta])* $vis:vis $table:ident { $( $name:ident: $shape:expr, $meaning:literal $(= $default:literal)?; )* }) => {
        $(#[$doc])*
        $vis const $table: &[$crate::shape::Field] = &[$( $crate::shape::Field {
            name: stringify!($name),
            doc: $meaning,
            shape: $shape,
            default: || String::new() $(+ $default)?,
        }, )*];
    };
}
pub(crate) use table;

table! {
    /// The fields of a provider file, in the order of the documentation.
    pub PROVIDER {
        name: Shape::Text, "its name in addresses, messages and metrics; health, ready, metrics, v1 and api are refused" = "the file's name";
        preset: Shape::Text, "the built-in provider to start from; `none` = nothing built in";
        tier: Shape::Text, "the plan of the preset; `tollgate provider show` lists them";
        domain: Shape::List(&Shape::Text), "the host it answers at, with its subdomains; or `*.example.org`";
        domains: Shape::List(&Shape::Text), "several hosts";
        listen: Shape::Address, "an address of the gateway that is this provider only";
        upstream: Shape::Text, "where calls go" = "https://<domain>";
        enabled: Shape::Boolean, "`false` = no limiting for this provider" = "true";
        api_key: Shape::Secret, "literal, `${ENV}` or `file:/path`";
        api_keys: Shape::List(&Shape::Secret), "a pool instead of `api_key`; the one free first is used";
        headers: Shape::Map(&Shape::Secret), "headers that are sent if the caller sends none of that name";
        auth: Shape::Block(AUTH), "how the key is attached";
        limit: Shape::Integer, "short form: one limit of so many calls …";
        period: Shape::Text, "… per this length of time";
        algorithm: Algorithm::SHAPE, "how the short form counts" = "sliding-window";
        limits: Shape::List(&Shape::Either(&[Shape::Text, Shape::Block(LIMIT)])), "full form: `35/1s`, or blocks";
        cost: Shape::Map(&Shape::Either(&[Shape::Integer, Shape::Block(COST)])), "what a call costs in units other than calls";
        concurrency: Shape::Either(&[Shape::OrOff(&Shape::Integer), Shape::Block(CONCURRENCY)]), "calls at a time";
        connections: Shape::Integer, "connections to the upstream" = "32";
        hold_until: Hold::SHAPE, "what proves that a call has arrived" = "response";
        late_arrival: Shape::Duration, "how long a call given up may still arrive, at least" = "5s";
        edge_margin: Shape::Duration, "how long after its edge a calendar window is used" = "2s";
        counter_lag: Shape::Duration, "for providers that count after the answer" = "0s";
        free_status: Shape::List(&Shape::Integer), "answers that the provider does not count";
        entities: Shape::Block(ENTITIES), "parts of the provider with limits and lifetimes of their own";
        cache: Cache::SHAPE, "keeping answers";
        dedup: Dedup::SHAPE, "whether identical calls in flight share one upstream call" = "cacheable";
        merge: Merge::SHAPE, "joining waiting calls into one" = "off";
        queue: Queue::SHAPE, "waiting for a permit";
        off_peak: Shape::OrOff(&Shape::Block(OFF_PEAK)), "hours to which background calls are confined";
        retry: RetrySettings::SHAPE, "how a failed call is tried again";
        cooldown: CooldownSettings::SHAPE, "how long a scope rests after a refusal";
        degrade: Shape::OrOff(&Degrade::SHAPE), "serving from cache only when little is left" = "off";
        alerts: AlertSettings::SHAPE, "when to raise an alert";
        timeout: Timeout::SHAPE, "how long each stage may take; `30s` is the first byte";
        rewrite_links: Shape::Boolean, "links in answers come back through the gateway" = "true";
        guards: Shape::List(&Shape::Text), "guards on callers, when the upstream is your own service";
        on_store_loss: OnStoreLoss::SHAPE, "what happens while the ledger cannot be reached" = "closed";
        health: Health::SHAPE, "the health machine: a word, or every threshold" = "adaptive";
        dialect: Shape::Text, "how the provider speaks of limits; the name of a preset, or `generic`" = "generic";
        learn: Shape::Boolean, "its limits are told in its answers, because nobody publishes them; not used yet" = "false";
        acquire_only: Shape::Boolean, "only permits are asked for; no call goes through the gateway" = "false";
    }
}

table! {
    pub(crate) AUTH {
        query: Shape::Text, "as this parameter of the query";
        header: Shape::Text, "as this header";
        prefix: Shape::Text, "what stands before the key in that header, such as `Bot `";
        bearer: Shape::Boolean, "as `Authorization: Bearer`";
        basic: Shape::Boolean, "as `Authorization: Basic`; the key is `user:password`";
        oauth2: Shape::Block(OAUTH2), "by a token of OAuth 2";
        login: Shape::Block(LOGIN), "by a token of the provider's own login";
        also: Shape::Map(&Shape::Secret), "further keys, sent the same way under their own names; with `login` or `oauth2` in what is posted there";
        replace: Shape::Boolean, "`false` = the client's own credential wins" = "true";
    }
}

table! {
    pub(crate) OAUTH2 {
        token_url: Shape::Text, "where tokens are given";
        client_id: Shape::Secret, "who asks";
        client_secret: Shape::Secret, "the password of that";
        scope: Shape::Text, "for what";
        refresh_token: Shape::Secret, "the token that gives new tokens";
        client_auth: ClientAuth::SHAPE, "how id and secret are shown; `auto` = as `basic`, and as `body` where that is refused" = "auto";
    }
}

table! {
    pub(crate) LOGIN {
        url: Shape::Text, "where";
        body: Shape::Either(&[Shape::Secret, Shape::Map(&Shape::Secret)]), "the JSON or form that is posted; `{api_key}` stands for the key in use";
        token: Shape::Text, "the field of the answer that holds the token";
        lifetime: Shape::Duration, "how long a token lives" = "1d";
        refresh_before: Shape::Duration, "how long before its end a new one is fetched" = "5m";
    }
}

table! {
    pub(crate) LIMIT {
        name: Shape::Text, "its name in every error" = "35/1s";
        limit: Shape::Integer, "so many …";
        period: Shape::Text, "… per this length of time; `week` and `month` for the calendar";
        algorithm: Algorithm::SHAPE, "how it counts" = "sliding-window";
        burst: Shape::Integer, "the depth of a token bucket" = "the limit";
        timezone: Shape::Text, "whose days a calendar limit counts" = "UTC";
        per: Per::SHAPE, "for whom it is counted apart" = "provider";
        reserve: Shape::Part, "the part that only urgent calls may use" = "0";
        unit: Shape::Text, "what it counts: calls, tokens, points, bytes" = "calls";
        shadow: Shape::Boolean, "counts and reports, but refuses nothing" = "false";
        headroom: Shape::Part, "left to users of the key outside Tollgate" = "0";
    }
}

table! {
    pub(crate) COST {
        before: Shape::List(&Shape::Text), "fields of the request that tell the cost; the first that is there counts";
        else: Shape::Integer, "what is held if none is" = "1";
        after: Shape::Text, "the field of the answer that tells the true cost";
    }
}

table! {
    pub(crate) CONCURRENCY {
        normal: Shape::OrOff(&Shape::Integer), "for all calls together";
        low: Shape::Integer, "how many of them may be background work" = "as `normal`";
    }
}

table! {
    pub(crate) ENTITIES {
        strip: Shape::Text, "prefix that is dropped before the entity is read";
        from: Shape::Text, "`path`, `host`, `query:NAME`, `header:NAME` or `body:FIELD`" = "path";
        rules: Shape::Map(&Shape::Text), "entities of deeper paths";
        ttl: Shape::Map(&Shape::Lifetime), "lifetimes by entity";
        dedup: Shape::Map(&Dedup::SHAPE), "sharing by entity";
    }
}

table! {
    pub(crate) OFF_PEAK {
        hours: Shape::Text, "from and to: `\"01:00-06:00\"`";
        timezone: Shape::Text, "of this zone" = "UTC";
        applies_to: Confined::SHAPE, "this urgency and below" = "low";
    }
}
