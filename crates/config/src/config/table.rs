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
        admin: Shape::Block(ADMIN), "the admin address: the API";
        resp: Shape::Text, "an address for the Redis protocol, or `unix:PATH`" = "off";
        store: Shape::Text, "where permits are counted: `sqlite:DIR`; for many hosts `redis://HOST:6379`, `rediss://` with TLS, or `postgres://USER@HOST/DATABASE`; `memory:` loses them with the process" = "sqlite: in the user's state folder";
        postgres: Postgres::SHAPE, "how Postgres is used";
        cache_store: Shape::Text, "where responses are cached: `sqlite:DIR`, `memory:`, or `redis://…`, shared by all nodes; with REDIS_HOST, or a `store` in Redis, it is that Redis unless this says otherwise" = "in the folder of the ledger";
        cache_size: CacheSize::SHAPE, "size of the response cache";
        guard_store: Shape::Text, "where guards count: `memory:`, in this process, or `redis://…`, shared by all nodes" = "memory:";
        nodes: Shape::Integer, "number of processes or hosts that share the limits; used with `memory:` and with `on_store_loss: local-share`" = "1";
        node_lease: Shape::Duration, "how long a node's registration is valid" = "5s";
        connections_max: Shape::Integer, "how many connections callers may have; fewer if the process has too few file descriptors" = "4096";
        body_memory: Shape::Size, "memory for all bodies in flight; beyond it, request bodies are written to files, shared responses are read only as fast as their slowest reader, and no response is cached" = "256MiB";
        providers: Shape::Either(&[Shape::List(&Shape::Text), Shape::Map(&Shape::Block(PROVIDER))]), "a folder, a list of files, or the providers themselves; paths are relative to this file";
        presets: Presets::SHAPE, "`auto` = a known domain gets its preset without a file" = "auto";
        intercept: Intercept::SHAPE, "no effect yet: what happens to CONNECT" = "configured";
        callers: Shape::Map(&Shape::Block(CALLER)), "callers by name, with their priority and share";
        env_prefix: Shape::Text, "prefix of the variables that set thresholds" = "TOLLGATE_";
        unknown_domain: UnknownDomain::SHAPE, "what happens to calls to hosts without a provider" = "allow on loopback, refuse elsewhere";
        limiting: Limiting::SHAPE, "whether guards reject calls; `shadow` = guards only count" = "on";
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
        listen: Shape::Address, "where the admin API listens" = "127.0.0.1:4291";
        token: Shape::Secret, "the token that callers must send; without one, only loopback is allowed";
    }
}

table! {
    pub(crate) CALLER {
        priority: Priority::SHAPE, "the highest priority that this caller may use" = "normal";
        at_least: Shape::Decimal, "the share of the limits that this caller gets at least";
        at_most: Shape::Decimal, "the share of the limits that this caller never exceeds";
        token: Shape::Secret, "the token that authenticates this caller";
        guards: Shape::List(&Shape::Text), "the guards that this caller may take tokens of" = "all if no other caller has a token, else none";
    }
}

table! {
    pub(crate) GUARD {
        limit: Shape::Integer, "at most this many …";
        period: Shape::Duration, "… per this length of time";
        burst: Shape::Integer, "how many calls at once" = "the limit";
        by: Shape::Text, "what the guard counts by: `ip`, `global`, `name` or `header:NAME`" = "ip";
        key_prefix: Shape::Text, "prefix of the guard's keys in Redis" = "ratelimit:<guard>:";
        shadow: Shape::Boolean, "`true` = counts and reports, but rejects nothing" = "false";
        on_store_loss: OnStoreLoss::SHAPE, "what happens while Redis cannot be reached" = "local-share";
        match: Shape::Block(MATCH), "which calls the guard applies to";
        max_pending: Shape::Integer, "how many tasks may wait; further tasks are rejected";
        retry_delay: Shape::Duration, "how long until a requeued task is tried again" = "1m";
        wait: Shape::Duration, "how long a task may wait" = "5m";
        retries: Shape::Integer, "retries of a task after a failure" = "3";
        factor: Shape::Decimal, "factor by which each further wait is longer" = "2";
    }
}

table! {
    pub(crate) MATCH {
        path: Shape::Text, "calls whose path has this prefix";
        descriptor: Shape::Map(&Shape::Text), "calls that Envoy describes so: keys, and texts, `text*` or `*`";
    }
}

table! {
    pub(crate) ALERTS {
        webhooks: Shape::List(&Shape::Block(WEBHOOK)), "where alerts are posted";
    }
}

table! {
    pub(crate) WEBHOOK {
        url: Shape::KeyedUrl, "where the alert is posted";
        secret: Shape::Secret, "the key for the HMAC signature of the alert";
    }
}

table! {
    pub(crate) METRICS {
        prefix: Shape::Text, "prefix of metric names" = "tollgate_";
        ndjson: Shape::Text, "the file that metrics are written to as NDJSON, or `-` for standard output" = "off";
        every: Shape::Duration, "how often NDJSON is written" = "10s";
        token: Shape::Secret, "the token that readers of /metrics must send";
    }
}
