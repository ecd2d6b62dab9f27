//! `GET /v1/events`: server-sent events, one producer for all who listen.
//!
//! | event | data |
//! |---|---|
//! | `sample` | each second: every provider (`sample.rs`) |
//! | `transition`, `notice` | a state, cool-down or path changed; a reload, an operator, the store |
//! | `alert` | an alert fires or is resolved |
//! | `decision` | one call and what became of it |
//! | `lost` | the reader was too slow: `{"count": 3}` chunks are missing |
//!
//! Promises: the producer runs while somebody listens, and calls do nothing for it: `decision` comes from the ends
//! that the decision log gets anyway. At most [`LISTENERS_MAX`] listen, each at most [`BACKLOG`] chunks
//! behind. A stream ends when the daemon shuts down.
//!
//! Never: waits for a reader.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::Response;
use bytes::Bytes;
use http_body::Frame;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, mpsc, watch};
use tollgate::event::EndSubscription;

use super::routes::ApiState;
use super::sample::Sampler;
use crate::api::ApiError;
use crate::daemon::Daemon;
use crate::decision_api::RequestFields;
use crate::decision_log::decision;
use crate::history::{History, PageEvent};

/// The most streams at the same time: a few people with a few tabs each. They hold connections of
/// the admin address, which has more than a hundred.
const LISTENERS_MAX: usize = 16;

/// How many chunks a reader may be behind: some ten seconds of a busy daemon. A sample of 200
/// providers has 100 KB; readers share it.
const BACKLOG: usize = 64;

/// Decisions are sent in chunks, so that a thousand calls a second are not a thousand writes.
const DECISIONS_EVERY: Duration = Duration::from_millis(200);

/// The kinds that a reader may ask for.
pub(super) const KINDS: [&str; 5] = ["sample", "transition", "notice", "alert", "decision"];

/// The streams of one daemon.
#[derive(Debug)]
pub(super) struct LiveEvents {
    daemon: Daemon,
    history: Arc<History>,
    places: Arc<Semaphore>,
    /// The channel of the running producer.
    producer: Mutex<Option<broadcast::Sender<Chunk>>>,
    /// How many readers want decisions.
    decisions: watch::Sender<usize>,
    shutdown: watch::Receiver<bool>,
}

/// Some events of one kind, as they are sent.
#[derive(Clone, Debug)]
struct Chunk {
    kind: &'static str,
    bytes: Bytes,
}

/// What a reader wants.
#[derive(Clone, Debug)]
struct Wanted {
    kinds: Vec<&'static str>,
    /// The newest event that it has.
    after: u64,
}

impl LiveEvents {
    pub(super) fn new(
        daemon: Daemon,
        history: Arc<History>,
        shutdown: watch::Receiver<bool>,
    ) -> Arc<LiveEvents> {
        Arc::new(LiveEvents {
            daemon,
            history,
            places: Arc::new(Semaphore::new(LISTENERS_MAX)),
            producer: Mutex::new(None),
            decisions: watch::Sender::new(0),
            shutdown,
        })
    }

    /// A receiver of the running producer, which is started for the first reader.
    fn listen(self: &Arc<LiveEvents>) -> broadcast::Receiver<Chunk> {
        let mut producer = self.producer.lock();
        if let Some(sender) = &*producer {
            return sender.subscribe();
        }
        let (sender, receiver) = broadcast::channel(BACKLOG);
        *producer = Some(sender.clone());
        drop(producer);
        tokio::spawn(self.clone().produce(sender));
        receiver
    }

    /// Produces until nobody listens.
    async fn produce(self: Arc<LiveEvents>, sender: broadcast::Sender<Chunk>) {
        let mut sampler = Sampler::default();
        let mut calls: Option<EndSubscription> = None;
        let mut wants_decisions = self.decisions.subscribe();
        let mut newest = self.history.events().watch();
        let mut seen = *newest.borrow_and_update();
        let mut second = interval(Duration::from_secs(1));
        let mut flush = interval(DECISIONS_EVERY);
        loop {
            let is_wanted = *wants_decisions.borrow() > 0;
            if is_wanted != calls.is_some() {
                calls = is_wanted.then(|| self.daemon.registry().events().subscribe_to_ends());
            }
            tokio::select! {
                _ = second.tick() => {
                    if self.ends(&sender) { return }
                    let sample = sampler.sample(&self.daemon, &self.history).await;
                    send(&sender, "sample", &[(None, &sample)]);
                }
                _ = flush.tick(), if calls.is_some() => {
                    // Taken now and then, not awaited: a call that ends wakes nobody.
                    let ended = calls.as_mut().map(|calls| calls.read().0).unwrap_or_default();
                    let ended: Vec<_> = ended.iter().map(decision).collect();
                    let items: Vec<(Option<u64>, &_)> = ended.iter().map(|one| (None, one)).collect();
                    if !items.is_empty() { send(&sender, "decision", &items); }
                }
                _ = newest.changed() => {
                    newest.borrow_and_update();
                    let events = self.history.events().after(seen);
                    seen = events.last().map_or(seen, |event| event.id);
                    for event in &events { send_event(&sender, event); }
                }
                _ = wants_decisions.changed() => {}
            }
        }
    }

    /// Nobody listens any more: the next reader starts a new producer.
    fn ends(&self, sender: &broadcast::Sender<Chunk>) -> bool {
        let mut producer = self.producer.lock();
        let ends = sender.receiver_count() == 0;
        if ends {
            *producer = None;
        }
        ends
    }
}

/// `GET /v1/events[?kinds=sample,transition]`.
pub(super) async fn serve(
    State(api): State<ApiState>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, ApiError> {
    let wanted = Wanted::of(&headers, &uri)?;
    let place = api.live.places.clone().try_acquire_owned();
    let place = place.map_err(|_| too_many())?;
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(forward(api.live, wanted, sender, place));
    let mut response = Response::new(Body::new(StreamBody(receiver)));
    let out = response.headers_mut();
    out.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    out.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    out.insert(
        "x-content-type-options",
        HeaderValue::from_static("nosniff"),
    );
    Ok(response)
}

impl Wanted {
    fn of(headers: &HeaderMap, uri: &Uri) -> Result<Wanted, ApiError> {
        let fields = RequestFields::of_query(uri, &["kinds"])?;
        let kinds = match fields.name("kinds")? {
            None => KINDS.to_vec(),
            Some(text) => {
                let known = |word: &str| KINDS.into_iter().find(|kind| *kind == word.trim());
                let kinds: Option<Vec<&str>> = text.split(',').map(known).collect();
                kinds.ok_or_else(|| {
                    let hint = format!("use any of {}", KINDS.join(","));
                    ApiError::bad_request("`kinds` names an event that does not exist", &hint)
                })?
            }
        };
        let last = headers.get("last-event-id").and_then(|id| id.to_str().ok());
        let after = last.and_then(|id| id.parse().ok()).unwrap_or(0);
        Ok(Wanted { kinds, after })
    }

    fn has(&self, kind: &str) -> bool {
        self.kinds.contains(&kind)
    }
}

fn too_many() -> ApiError {
    ApiError::mistake(
        StatusCode::TOO_MANY_REQUESTS,
        "TooManyListeners",
        "16 streams of events are open",
        "close a tab of the page, or a program that reads /v1/events",
    )
}

/// Passes on what one reader wants, until it leaves or the daemon shuts down.
async fn forward(
    live: Arc<LiveEvents>,
    wanted: Wanted,
    sender: mpsc::Sender<Bytes>,
    _place: OwnedSemaphorePermit,
) {
    let mut chunks = live.listen();
    let _decisions = wanted.has("decision").then(|| DecisionReader::new(&live));
    let mut shutdown = live.shutdown.clone();
    // What happened before: a page that has just opened shows it, one that returns what it missed.
    let missed = live.history.events().after(wanted.after);
    let missed = missed
        .iter()
        .filter(|event| wanted.has(event.stream_name()));
    let first: Vec<u8> = missed.flat_map(|event| event_bytes(event)).collect();
    let first = [b"retry: 1000\n\n", first.as_slice()].concat();
    if sender.send(first.into()).await.is_err() {
        return;
    }
    loop {
        let next = tokio::select! {
            next = chunks.recv() => next,
            () = sender.closed() => return,
            _ = shutdown.wait_for(|is_over| *is_over) => return,
        };
        let bytes = match next {
            Ok(chunk) if !wanted.has(chunk.kind) => continue,
            Ok(chunk) => chunk.bytes,
            Err(broadcast::error::RecvError::Lagged(count)) => {
                format!("event: lost\ndata: {{\"count\":{count}}}\n\n").into()
            }
            Err(broadcast::error::RecvError::Closed) => return,
        };
        tokio::select! {
            sent = sender.send(bytes) => if sent.is_err() { return },
            _ = shutdown.wait_for(|is_over| *is_over) => return,
        }
    }
}

/// Counts a reader of decisions while it lives.
struct DecisionReader(Arc<LiveEvents>);

impl DecisionReader {
    fn new(live: &Arc<LiveEvents>) -> DecisionReader {
        live.decisions.send_modify(|count| *count += 1);
        DecisionReader(live.clone())
    }
}

impl Drop for DecisionReader {
    fn drop(&mut self) {
        self.0.decisions.send_modify(|count| *count -= 1);
    }
}

fn send_event(sender: &broadcast::Sender<Chunk>, event: &Arc<PageEvent>) {
    send(sender, event.stream_name(), &[(Some(event.id), &**event)]);
}

fn event_bytes(event: &PageEvent) -> Vec<u8> {
    let mut text = Vec::new();
    write(&mut text, event.stream_name(), Some(event.id), event);
    text
}

fn send<T: Serialize>(
    sender: &broadcast::Sender<Chunk>,
    kind: &'static str,
    items: &[(Option<u64>, &T)],
) {
    let mut text = Vec::new();
    for (id, item) in items {
        write(&mut text, kind, *id, *item);
    }
    let bytes = text.into();
    // An error: the last reader has just left.
    drop(sender.send(Chunk { kind, bytes }));
}

/// One event: JSON has no line breaks, so it is one line of data.
fn write(text: &mut Vec<u8>, kind: &str, id: Option<u64>, item: &impl Serialize) {
    if let Some(id) = id {
        text.extend_from_slice(format!("id: {id}\n").as_bytes());
    }
    text.extend_from_slice(format!("event: {kind}\ndata: ").as_bytes());
    text.extend_from_slice(&crate::json::to_bytes(item));
    text.extend_from_slice(b"\n\n");
}

fn interval(every: Duration) -> tokio::time::Interval {
    let mut interval = tokio::time::interval(every);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    interval
}

/// The body of a stream.
struct StreamBody(mpsc::Receiver<Bytes>);

impl http_body::Body for StreamBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let next = self.0.poll_recv(context);
        next.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}
