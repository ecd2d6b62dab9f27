//! The arguments of `TG.*` commands, read strictly.
//!
//! Promises: an option that is unknown, repeated or has no value is an error that names it; so is a
//! value that cannot be read. Nothing was asked for then.
//!
//! Never: repeats a value; it may be a key.

use std::net::IpAddr;

use tollgate::path::Target;
use tollgate_config::{Secret, problem};
use tollgate_core::ask::Priority;
use tollgate_core::time::Span;

use super::parse::Command;
use super::session::{Identity, Session};
use super::throttle_command::integer;
use crate::call_words::{self, CostsError};
use crate::decisions::{AcquireKind, CallRequest, GuardRequest};

/// The longest time that a command may wait, as over HTTP.
const WAIT_MAX_MS: u64 = 24 * 3_600 * 1_000;

/// The longest name, as over HTTP. URLs and bodies are bounded by the command.
const NAME_MAX: usize = 256;

/// The longest URL, as over HTTP.
const URL_MAX: usize = 8 * 1_024;

const TARGET_HINT: &str =
    "send a provider, a URL such as https://api.example.org/v1/x, or GUARD name identifier";

/// Reads arguments one after the other.
#[derive(Debug)]
pub(super) struct Words<'a> {
    command: Command<'a>,
    at: usize,
    seen: Vec<&'static str>,
}

/// The options of a request.
#[derive(Debug, Default)]
pub(super) struct RequestOptions {
    entity: Option<String>,
    priority: Option<Priority>,
    costs: Vec<(String, u64)>,
    caller: Option<String>,
    /// `Some(None)` = not at all.
    pub(super) wait: Option<Option<Span>>,
}

/// What a request is about.
#[derive(Debug)]
pub(super) enum Subject {
    Call(Target),
    Guards(Vec<(String, String)>),
}

impl<'a> Words<'a> {
    pub(super) fn new(command: Command<'a>) -> Words<'a> {
        Words {
            command,
            at: 1,
            seen: Vec::new(),
        }
    }

    fn next(&mut self) -> Option<&'a [u8]> {
        let word = self.command.get(self.at)?;
        self.at += 1;
        Some(word)
    }

    fn next_is(&self, word: &str) -> bool {
        let next = self.command.get(self.at);
        next.is_some_and(|next| next.eq_ignore_ascii_case(word.as_bytes()))
    }

    /// The next option, one of `known`; `None` at the end. Only those in `repeated` may come again.
    pub(super) fn option(
        &mut self,
        known: &[&'static str],
        repeated: &[&'static str],
    ) -> Result<Option<&'static str>, String> {
        let Some(word) = self.next() else {
            return Ok(None);
        };
        let is_it = |name: &&&'static str| word.eq_ignore_ascii_case(name.as_bytes());
        let Some(name) = known.iter().find(is_it).copied() else {
            return Err(unknown_option(word, known));
        };
        if self.seen.contains(&name) && !repeated.contains(&name) {
            return Err(format!("ERR {name} stands twice; send it once"));
        }
        self.seen.push(name);
        Ok(Some(name))
    }

    /// The value of an option.
    pub(super) fn value(&mut self, of: &str) -> Result<&'a [u8], String> {
        let value = self.next();
        value.ok_or_else(|| format!("ERR {of} has no value; send one behind it"))
    }

    pub(super) fn text(&mut self, of: &str, max: usize) -> Result<&'a str, String> {
        let text = std::str::from_utf8(self.value(of)?).ok();
        let text = text.filter(|text| !text.is_empty() && text.len() <= max);
        text.ok_or_else(|| format!("ERR {of} is not a text of 1 to {max} bytes in UTF-8"))
    }

    pub(super) fn name(&mut self, of: &str) -> Result<String, String> {
        self.text(of, NAME_MAX).map(str::to_owned)
    }

    /// A name of this form, as on every protocol.
    fn name_of(
        &mut self,
        of: &str,
        is_valid: fn(&str) -> bool,
        form: &str,
    ) -> Result<String, String> {
        let name = self.name(of)?;
        match is_valid(&name) {
            true => Ok(name),
            false => Err(format!("ERR {of} is not {form}")),
        }
    }

    /// Milliseconds.
    pub(super) fn milliseconds(&mut self, of: &str) -> Result<Span, String> {
        let number = integer(self.value(of)?).and_then(|number| u64::try_from(number).ok());
        let number = number.ok_or_else(|| {
            format!("ERR {of} is not a number of milliseconds from 0; send for example {of} 5000")
        })?;
        Ok(Span::from_millis(number.min(WAIT_MAX_MS)))
    }

    /// `3`, or `tokens=1200,points=3`.
    pub(super) fn costs(&mut self, is_real: bool) -> Result<Vec<(String, u64)>, String> {
        let text = self.text("COST", NAME_MAX)?;
        // What is known afterwards may be nothing.
        let nothing = is_real.then(|| text.parse::<u64>().ok()).flatten() == Some(0);
        let costs = if nothing {
            call_words::real_cost("calls", 0)
                .map(|cost| vec![cost])
                .ok_or(CostsError::Invalid)
        } else {
            call_words::costs(text)
        };
        costs.map_err(|error| match error {
            CostsError::Invalid => match call_words::unknown_unit_in(text) {
                Some(unit) => format!(
                    "ERR COST has the unit `{unit}`, which does not exist; units are {}",
                    call_words::UNITS
                ),
                None => "ERR COST is not a cost; send a number from 1 to 9007199254740992, or numbers by unit such as tokens=1200,points=3".to_owned(),
            },
            CostsError::Repeated => "ERR COST names a unit twice; send each once".to_owned(),
        })
    }

    /// What a request is about: a provider, a URL, or one or several guards.
    pub(super) fn subject(&mut self) -> Result<Subject, String> {
        if !self.next_is("GUARD") {
            let text = self.text("the provider or URL", URL_MAX)?;
            return target(text).map(Subject::Call);
        }
        let mut guards = Vec::new();
        while self.next_is("GUARD") {
            self.at += 1;
            guards.push((self.name("GUARD")?, self.name("the identifier of GUARD")?));
        }
        Ok(Subject::Guards(guards))
    }

    /// The options of a request, up to the end.
    pub(super) fn request_options(
        &mut self,
        known: &[&'static str],
    ) -> Result<RequestOptions, String> {
        let mut options = RequestOptions::default();
        while let Some(name) = self.option(known, &[])? {
            match name {
                "ENTITY" => {
                    let form = call_words::ENTITY_FORM;
                    options.entity = Some(self.name_of(name, call_words::is_entity, form)?);
                }
                "CALLER" => {
                    let form = call_words::CALLER_FORM;
                    options.caller = Some(self.name_of(name, call_words::is_caller, form)?);
                }
                "COST" => options.costs = self.costs(false)?,
                "PRIORITY" => {
                    let priority = call_words::priority(self.text(name, NAME_MAX)?);
                    let wrong = "ERR PRIORITY is not high, normal or low (also user, webhook, ui, manual, background)";
                    options.priority = Some(priority.ok_or(wrong)?);
                }
                _ if options.wait.is_some() => {
                    return Err("ERR WAIT and NOWAIT stand together; send one of them".to_owned());
                }
                "NOWAIT" => options.wait = Some(None),
                _ => options.wait = Some(Some(self.milliseconds(name)?)),
            }
        }
        Ok(options)
    }
}

impl RequestOptions {
    /// The request of this client.
    pub(super) fn ask(self, session: &Session, subject: Subject) -> Result<AcquireKind, String> {
        match subject {
            Subject::Call(target) => Ok(AcquireKind::Call(self.call(session, target)?)),
            Subject::Guards(guards) => {
                let names = guards.iter().map(|(guard, _)| guard.as_str());
                let cost = self.guard_capacity(session, names)?;
                let of = |(guard, identifier)| GuardRequest {
                    guard,
                    identifier: Some(identifier),
                    cost,
                };
                Ok(AcquireKind::Guards(guards.into_iter().map(of).collect()))
            }
        }
    }

    /// The call that a permit is for.
    pub(super) fn call(self, session: &Session, target: Target) -> Result<CallRequest, String> {
        let decisions = session.context.decisions();
        let (caller, token) = caller(&session.identity, self.caller)?;
        Ok(CallRequest {
            id: decisions.next_id(),
            target,
            entity: self.entity,
            priority: self.priority,
            costs: self.costs,
            caller,
            token,
            is_operator: matches!(session.identity, Identity::Operator),
            ip: Some(session.peer.unwrap_or(IpAddr::from([127, 0, 0, 1]))),
        })
    }

    /// How many tokens of these guards are meant; an error if this client may not use them.
    pub(super) fn guard_capacity<'g>(
        &self,
        session: &Session,
        guards: impl IntoIterator<Item = &'g str>,
    ) -> Result<u64, String> {
        let cost = self.guard_cost()?;
        let decisions = session.context.decisions();
        let allowed = decisions.allow_guards(session.identity.caller(), guards);
        allowed.map_err(|error| format!("NOPERM {error}; {}", error.hint()))?;
        Ok(cost)
    }

    /// The tokens of a guard have no unit, and a guard knows no call.
    fn guard_cost(&self) -> Result<u64, String> {
        let of_calls = [
            ("ENTITY", self.entity.is_some()),
            ("PRIORITY", self.priority.is_some()),
            ("CALLER", self.caller.is_some()),
        ];
        if let Some((name, _)) = of_calls.iter().find(|(_, is_there)| *is_there) {
            return Err(format!(
                "ERR {name} stands beside GUARD; a guard has an identifier and COST only"
            ));
        }
        match self.costs.as_slice() {
            [] => Ok(1),
            [(unit, amount)] if unit == "calls" => Ok(*amount),
            _ => Err("ERR the COST of a guard has no unit; send a number from 1".to_owned()),
        }
    }
}

/// Who calls: the caller that its token has authenticated, or the one that the operator names.
fn caller(
    identity: &Identity,
    named: Option<String>,
) -> Result<(Option<String>, Option<Secret>), String> {
    match (identity, named) {
        (Identity::Caller(own, _), Some(named)) if *own != named => Err(
            "NOPERM the token belongs to another caller; leave CALLER out, or send AUTH with the token of that caller".to_owned(),
        ),
        (Identity::Caller(own, token), _) => Ok((Some(own.clone()), Some(token.clone()))),
        (Identity::Operator | Identity::Stranger, named) => Ok((named, None)),
    }
}

/// A provider, or an absolute URL.
fn target(text: &str) -> Result<Target, String> {
    let invalid = || format!("ERR this is not a provider or a URL; {TARGET_HINT}");
    if !text.contains("://") {
        let is_name = text.len() <= NAME_MAX;
        return is_name.then(|| Target::from(text)).ok_or_else(invalid);
    }
    call_words::url(text).ok_or_else(invalid)
}

fn unknown_option(word: &[u8], known: &[&'static str]) -> String {
    let word = String::from_utf8_lossy(word).to_ascii_lowercase();
    let names: Vec<String> = known.iter().map(|name| name.to_ascii_lowercase()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let hint = match problem::nearest(&word, &names) {
        Some(near) => format!("did you mean {}?", near.to_ascii_uppercase()),
        None => format!("they are {}", known.join(", ")),
    };
    format!("ERR an argument is not an option of this command; {hint}")
}
