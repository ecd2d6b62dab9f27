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
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Provider, Tollgate};
///
/// let shop = Provider::new("shop")
///     .domain("api.example.org")
///     .limit(40, Duration::from_secs(10))
///     .limit_with("1000/1d")
///     .set("concurrency", "4");
/// Tollgate::builder().provider(shop)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The provider of a file, checked with these variables.
    fn of_file(text: &str, variables: &[(&str, &str)]) -> tollgate_config::Provider {
        let lookup = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let machine = disk::environment();
        let file = ProviderFile::read("x.yaml", text).expect("YAML");
        let checked = file.check(&Environment {
            env: &lookup,
            ..machine
        });
        checked
            .provider
            .unwrap_or_else(|| panic!("{}", checked.problems))
    }

    /// Every setter writes the field that a file has.
    #[test]
    fn a_provider_in_code_is_the_provider_of_a_file() {
        let x = || Provider::new("x");
        let keyed = || x().api_key("canary"); // tidy:canary
        // A variable that every machine has.
        let path = std::env::var("PATH").expect("a variable");
        let key = [("K", "canary"), ("PATH", path.as_str())]; // tidy:canary
        for (in_code, in_file) in [
            (x(), ""),
            (x().preset("musicbrainz"), "preset: musicbrainz"),
            (x().domain("a.example.org"), "domain: a.example.org"),
            (
                x().domain("a.example.org").domain("*.example.net"),
                "domains: [a.example.org, '*.example.net']",
            ),
            (
                x().upstream("http://127.0.0.1:9"),
                "upstream: http://127.0.0.1:9",
            ),
            (x().limit(40, SECOND * 10), "limit: 40\nperiod: 10s"),
            (
                x().limit(1, SECOND * 90),
                "limits: [{limit: 1, period: 1m30s}]",
            ),
            (
                x().limit_with("40/10s").limit(9, SECOND),
                "limits: [40/10s, {limit: 9, period: 1s}]",
            ),
            (
                x().limit_with(json!({ "limit": 5, "period": "1d", "algorithm": "calendar" })),
                "limits: [{limit: 5, period: 1d, algorithm: calendar}]",
            ),
            (x().concurrency(4), "concurrency: 4"),
            (x().cache(SECOND * 60), "cache: {mode: ttl, ttl: 1m}"),
            (x().queue_timeout(SECOND * 3), "queue: {timeout: 3s}"),
            (x().set("dedup", "off"), "dedup: off"),
            (
                keyed().auth_header("x-key"),
                "api_key: ${K}\nauth: {header: x-key}",
            ),
            (keyed().auth_bearer(), "api_key: ${K}\nauth: {bearer: true}"),
            (
                keyed().auth_query("key"),
                "api_key: ${K}\nauth: {query: key}",
            ),
            (
                keyed().api_key_from_env("PATH").auth_bearer(),
                "api_keys: ['${K}', '${PATH}']\nauth: {bearer: true}",
            ),
        ] {
            let built = in_code
                .checked()
                .unwrap_or_else(|problems| panic!("{in_file}: {problems}"));
            assert_eq!(
                built,
                of_file(&format!("name: x\n{in_file}\n"), &key),
                "{in_file}"
            );
            let is_plain = in_file.is_empty();
            assert_eq!(
                built == x().checked().expect("valid"),
                is_plain,
                "{in_file} has an effect"
            );
        }
    }

    /// A key is taken as it is written; a variable that is not set is named.
    #[test]
    fn keys_are_not_expanded_and_missing_variables_are_named() {
        let literal = Provider::new("x").api_key("${PATH}").auth_bearer();
        let keys = literal.checked().expect("valid").keys;
        assert_eq!(keys[0].expose(), "${PATH}");
        let missing = Provider::new("x")
            .api_key_from_env("TOLLGATE_NOT_THERE")
            .auth_bearer();
        let problems = missing.checked().unwrap_err().to_string();
        assert!(problems.contains("TOLLGATE_NOT_THERE"), "{problems}");
    }
}
