//! Every field of tollgate.yaml: name, meaning, shape and default, once.
//!
//! Promises: a name that does not stand here is refused; the documentation and the JSON schema are
//! made from these tables.
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
        cache_store: Shape::Text, "where answers are kept; a Redis (REDIS_HOST, REDIS_PORT and REDIS_PASSWORD if set) is not used yet, and they are kept beside the ledger" = "beside the ledger";
        cache_size: CacheSize::SHAPE, "how much is kept of answers, in all";
        guard_store: Shape::Text, "where guards count: `memory:` or `redis://…`" = "memory:";
        nodes: Shape::Integer, "processes or hosts that share a limit without a common store; `local-share` needs it" = "1";
        node_lease: Shape::Duration, "how long a node's registration holds" = "5s";
        providers: Shape::Either(&[Shape::List(&Shape::Text), Shape::Map(&Shape::Block(PROVIDER))]), "a folder, a list of files, or the providers themselves; paths count from this file";
        presets: Presets::SHAPE, "a known domain gets its preset with no file at all" = "auto";
        intercept: Intercept::SHAPE, "CONNECT: configured domains are opened with the local CA" = "configured";
        callers: Shape::Map(&Shape::Block(CALLER)), "callers by name, with their urgency and share";
        env_prefix: Shape::Text, "what variables of thresholds begin with" = "TOLLGATE_";
        unknown_domain: UnknownDomain::SHAPE, "what happens to hosts that no provider claims" = "allow on loopback, refuse elsewhere";
        limiting: Limiting::SHAPE, "whether guards refuse; `shadow` only counts" = "on";
        guards: Shape::Map(&Shape::Block(GUARD)), "limits on callers";
        exempt_paths: Shape::List(&Shape::Text), "paths that no guard looks at, by prefix" = "[/health]";
        trusted_proxies: Shape::List(&Shape::Text), "networks whose X-Forwarded-For is believed" = "[]";
        scheduler: Scheduler::SHAPE, "collecting sources";
        alerts: Shape::Block(ALERTS), "who is told of alerts";
        log: Log::SHAPE, "the log";
        metrics: Shape::Block(METRICS), "metrics";
    }
}

table! {
    pub(crate) ADMIN {
        listen: Shape::Address, "where it listens" = "127.0.0.1:4291";
        token: Shape::Secret, "what callers must show; without one it is loopback only";
    }
}

table! {
    pub(crate) CALLER {
        priority: Priority::SHAPE, "the highest urgency it may claim" = "normal";
        at_least: Shape::Decimal, "the share that it always gets if it wants it";
        at_most: Shape::Decimal, "the share that it never exceeds";
        token: Shape::Secret, "what proves that it is this caller";
    }
}

table! {
    pub(crate) GUARD {
        limit: Shape::Integer, "so many …";
        period: Shape::Duration, "… per this length of time";
        burst: Shape::Integer, "how many at once" = "the limit";
        by: Shape::Text, "`ip`, `global`, `name` or `header:NAME`" = "ip";
        key_prefix: Shape::Text, "what keys in Redis begin with" = "ratelimit:<guard>:";
        shadow: Shape::Boolean, "counts and reports, but refuses nothing" = "false";
        on_store_loss: OnStoreLoss::SHAPE, "what happens while Redis cannot be reached" = "local-share";
        match: Shape::Block(MATCH), "which calls it looks at";
        max_pending: Shape::Integer, "tasks that may wait before more are refused";
        retry_delay: Shape::Duration, "when a task that was put back comes again" = "1m";
        wait: Shape::Duration, "how long a task waits for its turn" = "5m";
        retries: Shape::Integer, "tries of a task after a failure" = "3";
        factor: Shape::Decimal, "how much longer each further wait is" = "2";
    }
}

table! {
    pub(crate) MATCH {
        path: Shape::Text, "calls whose path begins so";
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
        url: Shape::Text, "where";
        secret: Shape::Secret, "what signs it";
    }
}

table! {
    pub(crate) METRICS {
        prefix: Shape::Text, "what names begin with" = "tollgate_";
        ndjson: Shape::Text, "a path, or `-` for standard output" = "off";
        every: Shape::Duration, "how often NDJSON is written" = "10s";
        token: Shape::Secret, "what readers of /metrics must show";
    }
}
