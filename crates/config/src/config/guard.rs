//! Guards: checked limits on the callers of the user's own service.
//!
//! Promises: every guard that comes out has a limit, a period and a burst of at least one.
//!
//! Never: counts. The guard table does.

use tollgate_core::ratio::Ppm;
use tollgate_core::time::Span;

use super::table::{GUARD, MATCH};
use crate::check::endpoint::is_token;
use crate::field::{At, Fields};
use crate::problem::Problems;
use crate::setting::{open, read_text};
use crate::settings::OnStoreLoss;

/// The longest period of a guard: guards protect against bursts, quotas are limits.
const PERIOD_MAX: Span = Span::from_secs(86_400);

/// The longest time in which a bucket fills: nobody waits longer, and the table counts no further.
const FILL_MAX: Span = Span::from_secs(365 * 86_400);

/// The most guards of one request: as many as are decided as one.
pub(crate) const GUARDS_MAX: usize = 8;

/// The longest prefix of keys in Redis: every key has it.
const PREFIX_MAX: usize = 128;

/// A limit on callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// Its name: `ip`.
    pub name: String,
    /// At most this many …
    pub limit: u32,
    /// … per this length of time.
    pub period: Span,
    /// How many at once.
    pub burst: u32,
    /// What it counts by.
    pub by: GuardKey,
    /// Prefix of its keys in Redis: `ratelimit:ip:`.
    pub key_prefix: String,
    /// Counts and reports, but rejects nothing.
    pub shadow: bool,
    /// What happens while Redis cannot be reached.
    pub on_store_loss: OnStoreLoss,
    /// Which calls it applies to.
    pub matches: Match,
    /// What it means for tasks.
    pub task: Task,
}

/// What a guard counts by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuardKey {
    /// Addresses.
    Ip,
    /// All calls together.
    Global,
    /// Names of queues.
    Name,
    /// Values of this header.
    Header(String),
}

/// Which calls a guard applies to; empty = all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Calls whose path has this prefix.
    pub path: Option<String>,
    /// Calls with these descriptors.
    pub descriptor: Vec<(String, String)>,
}

/// What a guard means for tasks (C5, C6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// Tasks that may wait before more are rejected; `None` = any number.
    pub max_pending: Option<u32>,
    /// How long until a requeued task is tried again.
    pub retry_delay: Span,
    /// How long a task may wait.
    pub wait: Span,
    /// Tries after a failure.
    pub retries: u32,
    /// How much longer each further wait is.
    pub factor: Ppm,
}

pub(super) fn guards(fields: &Fields<'_>, problems: &mut Problems) -> Vec<Guard> {
    let Some(at) = fields.get("guards") else {
        return Vec::new();
    };
    let entries = at.entries(problems);
    let guards: Vec<Guard> = entries
        .into_iter()
        .filter_map(|(name, _, at)| guard(name, &at, problems))
        .collect();
    check_prefixes(&guards, &at, problems);
    let of_requests =
        |guard: &&Guard| guard.by != GuardKey::Name && guard.matches.descriptor.is_empty();
    if guards.iter().filter(of_requests).count() > GUARDS_MAX {
        problems.push(at.error(
            "more than 8 guards could apply to one request",
            "join some: the guards of a request are decided as one",
        ));
    }
    guards
}

/// Rejects keys in Redis that two guards would share, and long prefixes.
fn check_prefixes(guards: &[Guard], at: &At<'_>, problems: &mut Problems) {
    let mut ignored = Problems::default();
    for (number, guard) in guards.iter().enumerate() {
        let written = at.entries(&mut ignored).into_iter();
        let mut written = written.filter(|(name, ..)| *name == guard.name);
        let Some((.., own)) = written.next() else {
            continue;
        };
        let mut fields = own.node.entries().unwrap_or_default().iter();
        let prefix = fields.find(|field| field.name == "key_prefix");
        let place = prefix.map(|field| own.below("key_prefix", &field.node));
        let place = place.unwrap_or(own);
        if guard.key_prefix.len() > PREFIX_MAX {
            let what = format!("has more than {PREFIX_MAX} characters");
            problems.push(place.error(&what, "write `ratelimit:ip:`"));
        }
        let mut earlier = guards.iter().take(number);
        if let Some(other) = earlier.find(|other| other.key_prefix == guard.key_prefix) {
            let what = format!(
                "is that of `{}` too, so both would share their buckets in Redis",
                other.name
            );
            problems.push(place.error(&what, "give each guard its own"));
        }
    }
}

/// Metrics have the label `type` for providers and guards: `provider` is the word for all providers.
const RESERVED: &str = "provider";

/// The guard of all queues that have no guard of their own.
const TASKS: &str = "task";

fn guard(name: &str, at: &At<'_>, problems: &mut Problems) -> Option<Guard> {
    if name == RESERVED {
        problems.push(at.error(
            "`provider` is no name for a guard: metrics call the limits of providers so",
            "choose another name",
        ));
    }
    let fields = open(at, GUARD, problems)?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if name.is_empty() || name.len() > 64 || !name.bytes().all(plain) {
        problems.push(at.error(
            "a guard has a name that cannot be used",
            "use letters, digits, `-` and `_`, 64 at most",
        ));
    }
    for needed in ["limit", "period"] {
        if fields.get(needed).is_none() {
            let what = format!("`{needed}` is missing");
            problems.push(at.error(&what, "write `limit: 10` and `period: 1m`"));
        }
    }
    let limit: Option<u32> = fields.read("limit", problems);
    let period: Option<Span> = fields.read("period", problems);
    let burst: Option<u32> = fields.read("burst", problems);
    for (name, number) in [("limit", limit), ("burst", burst)] {
        if let (Some(0), Some(at)) = (number, fields.get(name)) {
            problems.push(at.error("must be 1 or more", "write a number from 1"));
        }
    }
    let out = period.filter(|period| *period == Span::ZERO || *period > PERIOD_MAX);
    if let (Some(_), Some(at)) = (out, fields.get("period")) {
        problems.push(at.error("must be above 0s and at most 1d", "write `1m`"));
    }
    if let (Some(limit), Some(period), Some(burst)) = (limit, period, burst)
        && u128::from(burst) * u128::from(period.0) > u128::from(limit) * u128::from(FILL_MAX.0)
        && let Some(at) = fields.get("burst")
    {
        problems.push(at.error("takes more than a year to fill", "lower it"));
    }
    let by = match fields.get("by") {
        Some(at) => by(&at, problems),
        None => Some(GuardKey::Ip),
    };
    if let (Some(at), Some(by)) = (fields.get("max_pending"), &by)
        && *by != GuardKey::Name
        && name != TASKS
    {
        problems.push(at.error(
            "limits nothing: tasks wait in queues, and the guard of a queue counts by its name",
            "write `by: name` too, and give the guard the name of the queue",
        ));
    }
    let (limit, period) = (limit?, period?);
    Some(Guard {
        name: name.to_owned(),
        limit,
        period,
        burst: burst.unwrap_or(limit),
        by: by?,
        key_prefix: fields
            .read("key_prefix", problems)
            .unwrap_or_else(|| format!("ratelimit:{name}:")),
        shadow: fields.read("shadow", problems).unwrap_or(false),
        on_store_loss: fields
            .read("on_store_loss", problems)
            .unwrap_or(OnStoreLoss::LocalShare),
        matches: matches(&fields, problems),
        task: task(&fields, problems),
    })
}

fn by(at: &At<'_>, problems: &mut Problems) -> Option<GuardKey> {
    let read = |text: &str| match text.split_once(':') {
        None if text == "ip" => Some(GuardKey::Ip),
        None if text == "global" => Some(GuardKey::Global),
        None if text == "name" => Some(GuardKey::Name),
        Some(("header", name)) if is_token(name) => {
            Some(GuardKey::Header(name.to_ascii_lowercase()))
        }
        Some(_) | None => None,
    };
    read_text(
        at,
        problems,
        read,
        "is not something to count by",
        "write `ip`, `global`, `name` or `header:NAME`",
    )
}

fn matches(fields: &Fields<'_>, problems: &mut Problems) -> Match {
    let block = fields
        .get("match")
        .and_then(|at| open(&at, MATCH, problems));
    let Some(block) = block else {
        return Match::default();
    };
    let mut descriptor = Vec::new();
    if let Some(at) = block.get("descriptor") {
        for (name, _, value) in at.entries(problems) {
            descriptor.extend(
                value
                    .text(problems)
                    .map(|text| (name.to_owned(), text.to_owned())),
            );
        }
    }
    let path: Option<String> = block.read("path", problems);
    if let (Some(path), Some(at)) = (&path, block.get("path"))
        && !path.starts_with('/')
    {
        let what =
            "does not begin with `/`, as every path does, so the guard would apply to no call";
        problems.push(at.error(what, "write `/login`"));
    }
    Match { path, descriptor }
}

impl Default for Task {
    fn default() -> Task {
        Task {
            max_pending: None,
            retry_delay: Span::from_secs(60),
            wait: Span::from_secs(300),
            retries: 3,
            factor: Ppm(2_000_000),
        }
    }
}

fn task(fields: &Fields<'_>, problems: &mut Problems) -> Task {
    let default = Task::default();
    let factor: Option<Ppm> = fields.read("factor", problems);
    if let (Some(Ppm(0)), Some(at)) = (factor, fields.get("factor")) {
        problems.push(at.error("must be above 0: no wait would be left", "write `2.0`"));
    }
    Task {
        max_pending: fields.read("max_pending", problems),
        retry_delay: fields
            .read("retry_delay", problems)
            .unwrap_or(default.retry_delay),
        wait: fields.read("wait", problems).unwrap_or(default.wait),
        retries: fields.read("retries", problems).unwrap_or(default.retries),
        factor: factor.unwrap_or(default.factor),
    }
}
