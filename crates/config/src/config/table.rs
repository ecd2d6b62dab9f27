//! Every field of tollgate.yaml: name, meaning, shape and default, once.
//!
//! Promises: a name that is not listed here is rejected; the documentation and the JSON schema are
//! generated from these tables.
//!
//! Never: checks a value.

use tollgate_core::ask::Priority;

use super::{CacheSize, Intercept, Limiting, Log, Postgres, Presets, Scheduler, UnknownDomain};
use crate::check::PROVIDER;
use crate::check::table::table;
use crate::setting::Setting;
use crate::settings::OnStoreLoss;
use crate::shape::Shape;

table! {
    /// The fields of tollgate.yaml, in the order of the documentation.
    pub CONFIG {
        listen: Shape::Address, "gateway and proxy" = "127.0.0.1:4290";
        admin: Shape::Block(ADMIN), "the admin address: API, dashboard, metrics";
        store: Shape::Text, "where permits are counted: `sqlite:DIR`, `memory:`, `postgres://…`, `redis://…`" = "sqlite: in the user's state folder";
        postgres: Postgres::SHAPE, "how Postgres is used";
        cache_store: Shape::Text, "where responses are cached; a Redis (REDIS_HOST, REDIS_PORT and REDIS_PASSWORD if set) is not used yet, so responses are cached in the folder of the ledger" = "in the folder of the ledger";
        cache_size: CacheSize::SHAPE, "size of the response cache";
        guard_store: Shape::Text, "where guards count: `memory:` or `redis://…`" = "memory:";
        nodes: Shape::Integer, "processes or hosts that share a limit without a common store; `local-share` needs it" = "1";
        node_lease: Shape::Duration, "how long a node's registration holds" = "5s";
        providers: Shape::Either(&[Shape::List(&Shape::Text), Shape::Map(&Shape::Block(PROVIDER))]), "a folder, a list of files, or the providers themselves; paths are relative to this file";
        presets: Presets::SHAPE, "a known domain gets its preset with no file at all" = "auto";
        intercept: Intercept::SHAPE, "CONNECT: configured domains are opened with the local CA" = "configured";
        callers: Shape::Map(&Shape::Block(CALLER)), "callers by name, with their priority and share";
        env_prefix: Shape::Text, "prefix of the variables that set thresholds" = "TOLLGATE_";
        unknown_domain: UnknownDomain::SHAPE, "what happens to calls to hosts without a provider" = "allow on loopback, refuse elsewhere";
        limiting: Limiting::SHAPE, "whether guards reject; `shadow` only counts" = "on";
        guards: Shape::Map(&Shape::Block(GUARD)), "limits on callers";
        exempt_paths: Shape::List(&Shape::Text), "path prefixes that guards do not check" = "[/health]";
        trusted_proxies: Shape::List(&Shape::Text), "networks whose X-Forwarded-For is trusted" = "[]";
        scheduler: Scheduler::SHAPE, "scheduled fetches of sources";
        alerts: Shape::Block(ALERTS), "where alerts are sent";
        log: Log::SHAPE, "the log";
        metrics: Shape::Block(METRICS), "metrics";
    }
}

table! {
    pub(crate) ADMIN {
        listen: Shape::Address, "where it listens" = "127.0.0.1:4291";
        token: Shape::Secret, "the token that callers must send; without one, only loopback is allowed";
    }
}

table! {
    pub(crate) CALLER {
        priority: Priority::SHAPE, "the highest priority it may use" = "normal";
        at_least: Shape::Decimal, "the share that is guaranteed to it";
        at_most: Shape::Decimal, "the share that it never exceeds";
        token: Shape::Secret, "the token that authenticates this caller";
    }
}

table! {
    pub(crate) GUARD {
        limit: Shape::Integer, "at most this many …";
        period: Shape::Duration, "… per this length of time";
        burst: Shape::Integer, "how many at once" = "the limit";
        by: Shape::Text, "`ip`, `global`, `name` or `header:NAME`" = "ip";
        key_prefix: Shape::Text, "prefix of its keys in Redis" = "ratelimit:<guard>:";
        shadow: Shape::Boolean, "counts and reports, but rejects nothing" = "false";
        on_store_loss: OnStoreLoss::SHAPE, "what happens while Redis cannot be reached" = "local-share";
        match: Shape::Block(MATCH), "which calls it applies to";
        max_pending: Shape::Integer, "tasks that may wait before more are rejected";
        retry_delay: Shape::Duration, "how long until a requeued task is tried again" = "1m";
        wait: Shape::Duration, "how long a task may wait" = "5m";
        retries: Shape::Integer, "tries of a task after a failure" = "3";
        factor: Shape::Decimal, "how much longer each further wait is" = "2";
    }
}

table! {
    pub(crate) MATCH {
        path: Shape::Text, "calls whose path has this prefix";
        descriptor: Shape::Map(&Shape::Text), "calls with these descriptors";
    }
}

table! {
    pub(crate) ALERTS {
        webhooks: Shape::List(&Shape::Block(WEBHOOK)), "where alerts are posted";
    }
}

table! {
    pub(crate) WEBHOOK {
        url: Shape::Text, "where it is posted";
        secret: Shape::Secret, "the key of its HMAC signature";
    }
}

table! {
    pub(crate) METRICS {
        prefix: Shape::Text, "prefix of metric names" = "tollgate_";
        ndjson: Shape::Text, "a path, or `-` for standard output" = "off";
        every: Shape::Duration, "how often NDJSON is written" = "10s";
        token: Shape::Secret, "the token that readers of /metrics must send";
    }
}
