//! Classifies a response: limited, out of quota for good, overloaded, or none of these.
//!
//! Promises: the dialect's own signatures decide first, then the standard ones; within a table
//! the first match decides. Free text in the body of an unknown provider is never matched.
//!
//! Never: reads how much remains or how long to wait.

use super::dialect::{Condition, Dialect, FieldPlace, ScopeNaming, ScopeRule, Signature, Test};
use super::headers::HeaderLines;
use super::json::{Json, TEXT_MAX};
use super::number::Decimal;

/// The longest scope name accepted. The longest known one, a Google quota id, has about 60
/// characters; scopes become labels and keys of the ledger.
const SCOPE_MAX: usize = 128;

/// What a response says about this call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LimitVerdict {
    /// Not limited, whatever else the response says.
    #[default]
    Passed,
    /// Rejected because of a limit; waiting helps.
    Limited,
    /// Rejected because of a limit that waiting does not fix: an unpaid bill, a used-up data plan.
    Spent,
    /// The provider is overloaded; our quota is not the reason.
    Overloaded,
}

/// One parsed response: everything that the tables can read.
#[derive(Debug)]
pub(super) struct ParsedResponse<'a> {
    pub(super) status: u16,
    pub(super) headers: HeaderLines<'a>,
    pub(super) json: Option<Json>,
    pub(super) body: &'a [u8],
}

impl ParsedResponse<'_> {
    /// The response has no body and no header that a row reads windows, waits or scopes from.
    pub(super) fn has_no_limit_fields(&self, dialect: &Dialect) -> bool {
        self.body.is_empty()
            && !self
                .headers
                .any(|name| dialect.limit_fields.has_header(name))
    }

    /// The first signature that matches, if any.
    pub(super) fn signature<'d>(&self, dialect: &'d Dialect) -> Option<&'d Signature> {
        dialect.signatures().find(|signature| {
            let status_fits =
                signature.status.is_empty() || signature.status.contains(&self.status);
            status_fits && self.holds(&signature.conditions)
        })
    }

    /// Whether every condition holds.
    pub(super) fn holds(&self, conditions: &[Condition]) -> bool {
        conditions
            .iter()
            .all(|condition| self.passes(&condition.place, &condition.test))
    }

    /// The scope that the signature or a field names explicitly.
    pub(super) fn scope(&self, dialect: &Dialect, signature: Option<&Signature>) -> Option<String> {
        let known = signature.and_then(|signature| signature.scope.clone());
        let written = || {
            let place = signature?.scope_at.as_ref()?;
            printable(self.values(place).first()?)
        };
        known
            .or_else(written)
            .or_else(|| dialect.scopes().find_map(|rule| self.scope_by_rule(rule)))
    }

    /// The value of the header that names the window in this dialect.
    pub(super) fn window_name(&self, dialect: &Dialect) -> Option<String> {
        let header = dialect.own.window_name.as_ref()?;
        self.headers.first(header).and_then(printable)
    }

    fn scope_by_rule(&self, rule: &ScopeRule) -> Option<String> {
        if rule
            .test
            .as_ref()
            .is_some_and(|test| !self.passes(&rule.place, test))
        {
            return None;
        }
        let found = self.values(&rule.place).into_iter().next()?;
        let name = match &rule.naming {
            ScopeNaming::AsWritten => found,
            ScopeNaming::Lower => found.to_lowercase(),
            ScopeNaming::Prefixed(prefix) => format!("{prefix}{}", printable(&found)?),
            ScopeNaming::Fixed(name) => name.clone(),
        };
        printable(&name)
    }

    fn passes(&self, place: &FieldPlace, test: &Test) -> bool {
        let values = self.values(place);
        let any = |fits: &dyn Fn(&str) -> bool| values.iter().any(|value| fits(value.trim()));
        match test {
            Test::Absent => values.is_empty(),
            Test::Zero => any(&|value| Decimal::parse(value).and_then(Decimal::count) == Some(0)),
            Test::Is(texts) => {
                any(&|value| texts.iter().any(|text| value.eq_ignore_ascii_case(text)))
            }
            Test::Has(texts) => any(&|value| {
                let value = value.to_ascii_lowercase();
                texts
                    .iter()
                    .any(|text| value.contains(&text.to_ascii_lowercase()))
            }),
            Test::Starts(texts) => any(&|value| {
                texts.iter().any(|text| {
                    value
                        .get(..text.len())
                        .is_some_and(|start| start.eq_ignore_ascii_case(text))
                })
            }),
            Test::Code(codes) => any(&|value| {
                let code = value.split_once(':').map_or(value, |(code, _)| code);
                let code = code.rsplit_once('#').map_or(code, |(_, code)| code);
                codes.iter().any(|known| known == code.trim())
            }),
        }
    }

    /// Every text at this place.
    pub(super) fn values(&self, place: &FieldPlace) -> Vec<String> {
        match place {
            FieldPlace::Header(name) => self.headers.all(name).map(str::to_owned).collect(),
            FieldPlace::Body(path) => {
                let found = self.json.iter().flat_map(|json| json.at(path));
                found.filter_map(Json::text).collect()
            }
            FieldPlace::Tag(name) => self.tag(name).into_iter().collect(),
            FieldPlace::Text => Some(self.text())
                .filter(|text| !text.is_empty())
                .into_iter()
                .collect(),
        }
    }

    fn text(&self) -> String {
        let start = self.body.get(..TEXT_MAX).unwrap_or(self.body);
        String::from_utf8_lossy(start).trim().to_owned()
    }

    /// The text of an XML element, or with `element@attribute` the value of that attribute.
    fn tag(&self, name: &str) -> Option<String> {
        let text = self.text();
        let (element, attribute) = match name.split_once('@') {
            Some((element, attribute)) => (element, Some(attribute)),
            None => (name, None),
        };
        let (attributes, rest) = opening_tag(&text, element)?;
        let found = match attribute {
            Some(attribute) => {
                let (_, value) = attributes.split_once(&format!(" {attribute}="))?;
                let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''))?;
                value.split(quote).nth(1)?
            }
            None => rest.split_once(&format!("</{element}>"))?.0,
        };
        Some(found.to_owned())
    }
}

/// The attributes of the first opening tag of `element`, and the text after the tag.
fn opening_tag<'t>(text: &'t str, element: &str) -> Option<(&'t str, &'t str)> {
    let start = format!("<{element}");
    text.match_indices(&start).find_map(|(at, _)| {
        let (attributes, rest) = text.get(at + start.len()..)?.split_once('>')?;
        let is_whole = attributes.is_empty() || attributes.starts_with(' ');
        is_whole.then_some((attributes, rest))
    })
}

/// The name, if it is fit for a log line and a label.
pub(super) fn printable(name: &str) -> Option<String> {
    let name = name.trim();
    let fits = !name.is_empty() && name.len() <= SCOPE_MAX;
    let clean = name.chars().all(|c| c == ' ' || c.is_ascii_graphic());
    (fits && clean).then(|| name.to_owned())
}
