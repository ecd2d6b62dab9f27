//! The cache stage: do we already have an answer that may be used, and may this one be used again?
//!
//! Promises: a call that is answered here costs no permit.
//!
//! Never: keeps anything yet. Every look finds nothing, and every answer passes as it is.

use super::learn::Answered;
use super::route::Route;
use super::{Reply, Source};
use crate::{Error, Shop};

/// What the cache has for a call.
#[derive(Debug)]
pub(crate) enum Looked {
    /// An answer that may be used.
    #[expect(dead_code, reason = "nothing is kept yet")]
    Answer(Box<Reply>),
    /// None: the question must be asked. What it is called when its answer comes back.
    Nothing(Question),
}

/// A question to the cache, kept until its answer is there.
#[derive(Debug, Default)]
pub(crate) struct Question;

/// Looks for an answer.
#[expect(clippy::unused_async, reason = "a look may lead to the disk")]
pub(crate) async fn look(_shop: &Shop, _route: &mut Route) -> Looked {
    Looked::Nothing(Question)
}

/// Keeps an answer if it may be used again, and says what the caller gets.
#[expect(clippy::unused_async, reason = "an answer may come from the disk")]
pub(crate) async fn keep(
    _route: &Route,
    _question: Question,
    done: Result<Answered, Error>,
) -> Result<Reply, Error> {
    let answered = done?;
    Ok(Reply {
        head: answered.head,
        body: answered.body,
        source: Source::Upstream,
    })
}
