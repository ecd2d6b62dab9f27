//! A provider that is written in code, in place of a file.
//!
//! Promises: the same fields, defaults and checks as a provider file; [`Provider::set`] reaches
//! every field. A key is taken as it is: nothing in it is expanded.
//!
//! Never: checks anything by itself; the checks of provider files do.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tollgate_config::amount::HumanSpan;
use tollgate_config::{Environment, Problems, ProviderFile, Secret, disk};
use tollgate_core::time::Span;

/// The variables that hold keys between here and the check, which reads keys from variables.
const KEY_VARIABLE: &str = "TOLLGATE_KEY_IN_CODE_";

/// A provider: name, address, limits, key, cache.
#[derive(Clone, Debug)]
#[must_use = "pass it to `TollgateBuilder::provider`"]
pub struct Provider {
    fields: Map<String, Value>,
    keys: BTreeMap<String, Secret>,
}

impl Provider {
    /// A provider of this name.
    pub fn new(name: impl Into<String>) -> Provider {
        let fields = Map::from_iter([("name".to_owned(), Value::String(name.into()))]);
        Provider {
            fields,
            keys: BTreeMap::new(),
        }
    }

    /// Begins with a built-in provider, as `preset:` does.
    pub fn preset(self, preset: impl Into<String>) -> Provider {
        self.set("preset", preset.into())
    }

    /// A domain of it; wildcards as `*.example.org`. May be called several times.
    pub fn domain(self, domain: impl Into<String>) -> Provider {
        self.push("domains", domain.into().into())
    }

    /// Where its calls go; without it, `https://` and its first domain.
    pub fn upstream(self, url: impl Into<String>) -> Provider {
        self.set("upstream", url.into())
    }

    /// At most `limit` calls per `period`. May be called several times: all limits hold.
    pub fn limit(self, limit: u64, period: Duration) -> Provider {
        self.limit_with(json!({ "limit": limit, "period": period_text(period) }))
    }

    /// A limit as in a provider file: `"40/10s"`, or an object with `limit`, `period`, `algorithm`,
    /// `burst`, `per`, `unit`, `timezone`, `reserve`.
    pub fn limit_with(self, limit: impl Into<Value>) -> Provider {
        self.push("limits", limit.into())
    }

    /// At most so many calls at a time.
    pub fn concurrency(self, calls: u64) -> Provider {
        self.set("concurrency", calls)
    }

    /// Its key. It is sent as the preset says, or as `auth` says.
    pub fn api_key(mut self, key: impl Into<String>) -> Provider {
        let variable = format!("{KEY_VARIABLE}{}", self.keys.len());
        let reference = format!("${{{variable}}}");
        self.keys.insert(variable, Secret::new(key.into()));
        self.push("api_keys", reference.into())
    }

    /// Its key, from this environment variable.
    pub fn api_key_from_env(self, variable: &str) -> Provider {
        self.push("api_keys", format!("${{{variable}}}").into())
    }

    /// Its key goes into this header.
    pub fn auth_header(self, header: &str) -> Provider {
        self.set("auth", json!({ "header": header }))
    }

    /// Its key goes into `Authorization: Bearer`.
    pub fn auth_bearer(self) -> Provider {
        self.set("auth", json!({ "bearer": true }))
    }

    /// Its key goes into this parameter of the query.
    pub fn auth_query(self, parameter: &str) -> Provider {
        self.set("auth", json!({ "query": parameter }))
    }

    /// Responses are cached for this long.
    pub fn cache(self, ttl: Duration) -> Provider {
        self.set("cache", json!({ "mode": "ttl", "ttl": period_text(ttl) }))
    }

    /// How long a call waits for its permit if it does not say.
    pub fn queue_timeout(self, timeout: Duration) -> Provider {
        self.set("queue", json!({ "timeout": period_text(timeout) }))
    }

    /// Any field of a provider file, as it is written there.
    pub fn set(mut self, field: &str, value: impl Into<Value>) -> Provider {
        self.fields.insert(field.to_owned(), value.into());
        self
    }

    fn push(mut self, field: &str, value: Value) -> Provider {
        let list = self.fields.entry(field).or_insert_with(|| json!([]));
        match list {
            Value::Array(list) => list.push(value),
            other => *other = json!([value]),
        }
        self
    }

    /// The checked provider.
    pub(super) fn checked(&self) -> Result<tollgate_config::Provider, Problems> {
        let name = self.fields.get("name").and_then(Value::as_str);
        let place = format!("the provider `{}`", name.unwrap_or_default());
        let file = ProviderFile::read(&place, &Value::Object(self.fields.clone()).to_string())?;
        let machine = disk::environment();
        let lookup = |name: &str| match self.keys.get(name) {
            Some(key) => Some(key.expose().to_owned()),
            None => (machine.env)(name),
        };
        let checked = file.check(&Environment {
            env: &lookup,
            ..machine
        });
        checked.provider.ok_or(checked.problems)
    }
}

/// A period as files write it, exactly.
fn period_text(period: Duration) -> String {
    HumanSpan(Span::from(period)).to_string()
}
