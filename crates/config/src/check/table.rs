//! Every field of a provider file: name, meaning, shape and default, once.
//!
//! Promises: a name that is not listed here is rejected; the documentation and the JSON schema are
//! generated from these tables.
//!
//! Never: checks a value.

use tollgate_core::alert::AlertSettings;
use tollgate_core::cooldown::CooldownSettings;
use tollgate_core::retry::RetrySettings;

use crate::provider::{ClientAuth, Per};
use crate::setting::Setting;
use crate::settings::{
    Algorithm, Cache, Confined, Cookies, Dedup, Degrade, Health, Hold, Merge, OnStoreLoss, Queue,
    Timeout, Upload,
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
        name: Shape::Text, "the provider's name in addresses, messages and metrics; health, ready, metrics, v1, api and the first words of settings (store, retry, …) are reserved" = "the file's name";
        preset: Shape::Text, "the built-in provider to start from; `none` = nothing built in";
        tier: Shape::Text, "your plan at the provider; `tollgate provider show` lists the plans of a preset";
        domain: Shape::List(&Shape::Text), "the provider's host, with its subdomains; or `*.example.org`";
        domains: Shape::List(&Shape::Text), "several hosts";
        listen: Shape::Address, "an address of the gateway for this provider only";
        upstream: Shape::Text, "where calls go" = "https://<domain>";
        enabled: Shape::Boolean, "`false` = no limiting for this provider" = "true";
        api_key: Shape::Secret, "literal, `${ENV}` or `file:/path`";
        api_keys: Shape::List(&Shape::Secret), "a pool instead of `api_key`; Tollgate uses the key that is free first";
        headers: Shape::Map(&Shape::Secret), "headers that Tollgate adds if the caller does not send a header of that name";
        auth: Shape::Block(AUTH), "how the key is attached";
        limit: Shape::Integer, "short form: one limit of this many calls …";
        period: Shape::Text, "… per this length of time";
        algorithm: Algorithm::SHAPE, "how the short form counts" = "sliding-window";
        limits: Shape::List(&Shape::Either(&[Shape::Text, Shape::Block(LIMIT)])), "full form: `35/1s`, or blocks";
        cost: Shape::Map(&Shape::Either(&[Shape::Integer, Shape::Block(COST)])), "what a call costs in units other than calls";
        inject_usage: Shape::Boolean, "ask for usage in streams of OpenAI-style requests that do not, and remove it from the response" = "false";
        concurrency: Shape::Either(&[Shape::OrOff(&Shape::Integer), Shape::Block(CONCURRENCY)]), "how many calls may run at a time";
        connections: Shape::Integer, "connections to the upstream; by default as many as the limits let run at a time, 32 to 512, and more while calls wait for nothing but a connection (without `limits`: after 5 s without a 429)";
        hold_until: Hold::SHAPE, "when a call counts as arrived at the provider: `response` = with its response; `arrived` = with its response, or `arrive_within` after its last byte; `send` = when it is sent" = "arrived";
        arrive_within: Shape::Duration, "the longest time that a request is assumed to take from its last byte to the provider's limiter; half of it counts from when its bytes were seen to be acknowledged" = "2s";
        late_arrival: Shape::Duration, "the longest time that a call is assumed to take to arrive after Tollgate gave up on it" = "5s";
        edge_margin: Shape::Duration, "how long Tollgate waits after the start of a calendar window before it uses the window" = "2s";
        counter_lag: Shape::Duration, "how long after the response the provider may still count the call" = "0s";
        free_status: Shape::List(&Shape::Integer), "statuses that the provider does not count";
        entities: Shape::Block(ENTITIES), "parts of the provider with limits and lifetimes of their own";
        cache: Cache::SHAPE, "caching of responses";
        dedup: Dedup::SHAPE, "whether identical calls in flight share one upstream call" = "cacheable";
        merge: Merge::SHAPE, "whether waiting calls for parts of one item are merged into one call" = "off";
        queue: Queue::SHAPE, "waiting for a permit";
        off_peak: Shape::OrOff(&Shape::Block(OFF_PEAK)), "low-priority calls wait outside these hours";
        retry: RetrySettings::SHAPE, "how a failed call is tried again";
        cooldown: CooldownSettings::SHAPE, "how long a scope cools down after a 429";
        degrade: Shape::OrOff(&Degrade::SHAPE), "degrade mode: when few calls remain, responses come from the cache only" = "off";
        alerts: AlertSettings::SHAPE, "when to raise an alert";
        timeout: Timeout::SHAPE, "how long each stage of a call may take; `timeout: 30s` sets `first_byte`";
        cookies: Cookies::SHAPE, "`rewrite` = `Path` and `Domain` fit the gateway's address, and each provider gets only its own cookies; `pass` = unchanged; `drop` = none" = "rewrite";
        upload: Upload::SHAPE, "reading of request bodies before the permit is asked for";
        methods: Shape::List(&Shape::Text), "the methods that calls may have; others get 405" = "all but TRACE and CONNECT";
        rewrite_links: Shape::Boolean, "links in responses are rewritten so that they lead through the gateway" = "true";
        guards: Shape::List(&Shape::Text), "guards on callers, when the upstream is your own service";
        on_store_loss: OnStoreLoss::SHAPE, "what happens while the ledger cannot be reached" = "closed";
        health: Health::SHAPE, "the health state machine: a mode, or a block of thresholds" = "adaptive";
        dialect: Shape::Text, "how the provider reports limits; the name of a preset, or `generic`" = "generic";
        learn: Shape::Boolean, "learn the provider's limits from its responses, per key and entity; a limit of this file applies where it is lower" = "false";
        acquire_only: Shape::Boolean, "only permits are acquired; no call goes through the gateway" = "false";
    }
}

table! {
    pub(crate) AUTH {
        query: Shape::Text, "as this query parameter";
        header: Shape::Text, "as this header";
        prefix: Shape::Text, "text before the key in that header, such as `Bot `";
        bearer: Shape::Boolean, "as `Authorization: Bearer`";
        basic: Shape::Boolean, "as `Authorization: Basic`; the key is `user:password`";
        oauth2: Shape::Block(OAUTH2), "by an OAuth 2 token";
        login: Shape::Block(LOGIN), "by a token from the provider's own login";
        also: Shape::Map(&Shape::Secret), "further keys by name, sent in the same way as the key; with `login` or `oauth2`, in the body of the login or token request";
        replace: Shape::Boolean, "`false` = a credential that the client sends is forwarded instead of the key" = "true";
    }
}

table! {
    pub(crate) OAUTH2 {
        token_url: Shape::Text, "the token endpoint";
        client_id: Shape::Secret, "the client id";
        client_secret: Shape::Secret, "the client secret";
        scope: Shape::Text, "the scope to request";
        refresh_token: Shape::Secret, "the refresh token";
        client_auth: ClientAuth::SHAPE, "how id and secret are sent; `auto` = `basic` first, then `body` if the provider rejects `basic`" = "auto";
    }
}

table! {
    pub(crate) LOGIN {
        url: Shape::Text, "the login endpoint";
        body: Shape::Either(&[Shape::Secret, Shape::Map(&Shape::Secret)]), "the JSON or form that is posted; `{api_key}` stands for the current key";
        token: Shape::Text, "the response field that holds the token";
        lifetime: Shape::Duration, "how long a token is valid" = "1d";
        refresh_before: Shape::Duration, "how long before a token expires Tollgate fetches a new one" = "5m";
    }
}

table! {
    pub(crate) LIMIT {
        name: Shape::Text, "name of the limit in every error" = "the limit and its period";
        limit: Shape::Integer, "at most this many …";
        period: Shape::Text, "… per this length of time; `week` and `month` for the calendar";
        algorithm: Algorithm::SHAPE, "how the limit counts" = "sliding-window";
        burst: Shape::Integer, "the depth of a token bucket" = "the limit";
        timezone: Shape::Text, "time zone of a calendar limit" = "UTC";
        per: Per::SHAPE, "the limit has a separate count for each of these" = "provider";
        reserve: Shape::Part, "the part of the limit that only high-priority calls may use" = "0";
        unit: Shape::Text, "what the limit counts: calls, tokens, points, bytes" = "calls";
        shadow: Shape::Boolean, "`true` = counts and reports, but rejects nothing" = "false";
        headroom: Shape::Part, "the part of the limit for users of the key outside Tollgate" = "0";
    }
}

table! {
    pub(crate) COST {
        before: Shape::List(&Shape::Text), "request fields that hold the cost; the first that is present counts";
        else: Shape::Integer, "the cost if none of these fields is present" = "1";
        prompt: Shape::Boolean, "add the size of the prompt in tokens; if the request states no bound, what completions of its entity used is held" = "false";
        after: Shape::List(&Shape::Text), "the response fields whose sum is the actual cost, one with `-` in front is subtracted; also in the events of a stream";
    }
}

table! {
    pub(crate) CONCURRENCY {
        normal: Shape::OrOff(&Shape::Integer), "for all calls together";
        low: Shape::Integer, "how many of these calls may be low-priority calls" = "same as normal";
    }
}

table! {
    pub(crate) ENTITIES {
        strip: Shape::Text, "prefix of the path that is removed before the entity is read";
        from: Shape::Text, "where the entity is read from: `path`, `host`, `query:NAME`, `header:NAME`, `body:FIELD`, or `model` (in the path after `models` or `deployments`, else the body's field `model`)" = "path";
        rules: Shape::Map(&Shape::Text), "path patterns and their entities";
        ttl: Shape::Map(&Shape::Lifetime), "lifetimes by entity";
        dedup: Shape::Map(&Dedup::SHAPE), "`dedup` by entity";
    }
}

table! {
    pub(crate) OFF_PEAK {
        hours: Shape::Text, "from and to: `\"01:00-06:00\"`";
        timezone: Shape::Text, "time zone of the hours" = "UTC";
        applies_to: Confined::SHAPE, "the hours apply to calls of this priority and lower priorities" = "low";
    }
}
