//! The body of a request, on its way to the upstream.
//!
//! Promises: a request body is read before the permit is requested, so that a slow client cannot
//! hold quota: up to 256 KiB to memory (1 MiB where the body decides something), and up to
//! `upload.spool` to a file. A larger one is streamed from there on, once. Where the body decides
//! something, what goes to a file is read as it passes (`body_scan.rs`). An upload that is slower
//! than `upload.min_rate` is cut.
//!
//! Never: changes a byte.

mod pace;
mod spool;
mod streamed;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full};
use tokio::sync::{Semaphore, SemaphorePermit};
use tollgate_config::settings::Upload as UploadSettings;

use crate::Error;
use crate::body_memory::BodyShare;
use crate::body_scan::{BodyScan, LargeBody};
use crate::headers;
use pace::{Pace, TooSlow};
pub use spool::set_spool_files_max;
use spool::{Spool, SpoolReader, SpoolSpace, SpoolWriter};
use streamed::{Chained, StreamedBody};

/// Any error of a body.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The largest request body that is read to memory. 1 000 waiting calls with such bodies are
/// 256 MiB, which a host has; nearly all API calls are below 64 KiB.
pub const WHOLE_MAX: usize = 256 * 1024;

/// The same where the body determines the entity or the cost: the bound of the entity search. When
/// memory is scarce, such a body goes to a file too, and is read back for the decision.
pub(crate) const READ_MAX: usize = tollgate_core::entity::BODY_MAX;

/// How many bodies are read back from files at a time for a decision: 16 MiB, for as long as a read
/// of a file takes.
static READ_BACKS: Semaphore = Semaphore::const_new(16);

/// A body that was read back from its file.
#[derive(Debug)]
pub(crate) struct ReadBack {
    pub(crate) bytes: Bytes,
    _slot: Option<SemaphorePermit<'static>>,
}

/// The request body of a caller.
#[derive(Debug)]
pub(crate) enum Payload {
    /// All of it: it can be sent again.
    Whole(Bytes),
    /// All of it, and its trailers.
    Trailed(Bytes, Box<HeaderMap>),
    /// All of it, in a file: it can be sent again.
    Spooled(Arc<Spool>),
    /// The rest is still to come: it can be sent once.
    Stream(Option<StreamedBody>),
}

/// How a body is read before its permit is requested.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadBounds {
    /// The most bytes in memory.
    pub(crate) memory: usize,
    /// The most bytes in all, in a file.
    pub(crate) spool: u64,
    /// The slowest upload, in bytes a second; 0 = any.
    pub(crate) min_rate: u64,
    /// Where the files are counted.
    pub(crate) space: &'static SpoolSpace,
}

impl ReadBounds {
    /// The settings of a provider, and so much in memory.
    pub(crate) fn new(settings: &UploadSettings, memory: usize) -> ReadBounds {
        ReadBounds {
            memory,
            spool: settings.spool.0,
            min_rate: settings.min_rate.0,
            space: SpoolSpace::of_process(),
        }
    }

    /// The body decides something.
    pub(crate) fn body_decides(&self) -> bool {
        self.memory > WHOLE_MAX
    }

    /// Where memory is scarce, the body may go to a file. One that decides something is read back
    /// from there, so all of it must fit.
    fn may_leave_memory(&self) -> bool {
        !self.body_decides() || self.spool >= self.memory as u64
    }
}

/// The body of a request on its way to the upstream.
#[derive(Debug)]
pub(crate) struct Outgoing {
    kind: OutgoingKind,
    /// The progress of a stream.
    upload: Option<Arc<Upload>>,
    /// The headers of its request, which no trailer may repeat; empty if it has no trailers.
    in_head: Vec<HeaderName>,
}

/// The progress of an upload, for the call that waits for the response.
#[derive(Debug, Default)]
pub(crate) struct Upload {
    pieces: AtomicU64,
    /// The connection has taken everything so far and waits for the caller.
    awaits_caller: AtomicBool,
    has_failed: AtomicBool,
    is_too_slow: AtomicBool,
}

impl Upload {
    /// How many pieces have left: an upload that makes progress is not cut.
    pub(crate) fn pieces(&self) -> u64 {
        self.pieces.load(Ordering::Relaxed)
    }

    /// The caller must send the next piece.
    pub(crate) fn awaits_caller(&self) -> bool {
        self.awaits_caller.load(Ordering::Relaxed)
    }

    /// The caller aborted.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// The caller was slower than it may be.
    pub(crate) fn is_too_slow(&self) -> bool {
        self.is_too_slow.load(Ordering::Relaxed)
    }

    fn record(&self, frame: &Poll<Option<Result<Frame<Bytes>, BodyError>>>, is_file: bool) {
        self.awaits_caller
            .store(frame.is_pending() && !is_file, Ordering::Relaxed);
        match frame {
            Poll::Pending => {}
            Poll::Ready(Some(Err(error))) => {
                self.has_failed.store(true, Ordering::Relaxed);
                self.is_too_slow
                    .store(error.is::<TooSlow>(), Ordering::Relaxed);
            }
            Poll::Ready(Some(Ok(_)) | None) => {
                self.pieces.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

#[derive(Debug)]
enum OutgoingKind {
    Whole(Option<Bytes>),
    Trailed(Option<Bytes>, Option<Box<HeaderMap>>),
    Spooled(SpoolReader),
    Stream(StreamedBody),
}

impl Payload {
    /// Reads a body before its permit is requested, as far as the bounds allow; the rest of a larger
    /// one is left to be streamed. `large`: what a body states that is not in memory and decides
    /// something.
    pub(crate) async fn gather<B>(
        body: B,
        bounds: ReadBounds,
        share: &mut BodyShare,
        large: &mut Option<Box<LargeBody>>,
    ) -> Result<Payload, Error>
    where
        B: Body<Data = Bytes> + Send + Sync + Unpin + 'static,
        B::Error: Into<BodyError>,
    {
        let mut read = BytesMut::new();
        let announced = body.size_hint().lower();
        let mut body = PacedBody {
            body,
            pace: Pace::new(bounds.min_rate),
        };
        while body.body.size_hint().lower() <= bounds.memory as u64 && read.len() <= bounds.memory {
            if body.is_end_stream() {
                return Ok(Payload::Whole(read.freeze()));
            }
            let Some(frame) = body.next().await? else {
                return Ok(Payload::Whole(read.freeze()));
            };
            match frame.into_data() {
                Ok(data) => {
                    read.extend_from_slice(&data);
                    // The whole buffer counts: it may be twice as large as its bytes.
                    if !share.set(read.capacity()) && bounds.may_leave_memory() {
                        break;
                    }
                }
                Err(last) => return Ok(Payload::with_trailers(read.freeze(), last)),
            }
        }
        let mut scan = bounds.body_decides().then(Box::<BodyScan>::default);
        if let Some(scan) = &mut scan {
            scan.push(&read);
        }
        let payload = match bounds.spool <= read.len() as u64 {
            true => Ok(Payload::stream(Full::new(read.freeze()), body)),
            false => Payload::spool(read.freeze(), body, (bounds, share, &mut scan)).await,
        };
        // Of a body that is streamed from here on, more than was seen is still to come.
        let is_cut = matches!(payload, Ok(Payload::Stream(_)));
        *large = scan.map(|scan| Box::new(scan.finish(announced, is_cut)));
        payload
    }

    /// Reads a large body to a file.
    async fn spool<B>(
        first: Bytes,
        mut body: PacedBody<B>,
        (bounds, share, scan): (ReadBounds, &mut BodyShare, &mut Option<Box<BodyScan>>),
    ) -> Result<Payload, Error>
    where
        B: Body<Data = Bytes> + Send + Sync + Unpin + 'static,
        B::Error: Into<BodyError>,
    {
        let Some(mut file) = SpoolWriter::create(bounds.space, bounds.spool).await else {
            return Ok(Payload::stream(Full::new(first), body));
        };
        let disk_full = |_| Error::SpoolFailed;
        if !file.push(&first).await.map_err(disk_full)? {
            return Ok(Payload::stream(Full::new(first), body));
        }
        drop(first);
        share.set(file.memory());
        let trailers = loop {
            let Some(frame) = body.next().await? else {
                break None;
            };
            match frame.into_data() {
                Ok(data) => {
                    if let Some(scan) = scan {
                        scan.push(&data);
                    }
                    if !file.push(&data).await.map_err(disk_full)? {
                        let spool = file.finish(None).await.map_err(disk_full)?;
                        share.set(data.len());
                        let rest = Chained {
                            first: Full::new(data),
                            rest: body,
                        };
                        return Ok(Payload::stream(SpoolReader::new(spool), rest));
                    }
                    share.set(file.memory());
                }
                Err(last) => break last.into_trailers().ok(),
            }
        };
        let spool = file.finish(trailers).await.map_err(disk_full)?;
        share.set(0);
        Ok(Payload::Spooled(spool))
    }

    /// The bytes read, then the rest.
    fn stream<A, B>(first: A, rest: B) -> Payload
    where
        A: Body<Data = Bytes> + Send + Sync + Unpin + 'static,
        A::Error: Into<BodyError>,
        B: Body<Data = Bytes, Error = BodyError> + Send + Sync + Unpin + 'static,
    {
        Payload::Stream(Some(StreamedBody::new(Chained { first, rest })))
    }

    /// The whole of a body that went to a file because memory was scarce, for a decision that needs
    /// it. `None`: it is in memory, or larger than such a decision reads.
    pub(crate) async fn read_back(&self) -> Result<Option<ReadBack>, Error> {
        let Payload::Spooled(spool) = self else {
            return Ok(None);
        };
        let slot = READ_BACKS.acquire().await.ok();
        match spool.read(READ_MAX).await {
            Some(Ok(bytes)) => Ok(Some(ReadBack { bytes, _slot: slot })),
            Some(Err(_)) => Err(Error::SpoolFailed),
            None => Ok(None),
        }
    }

    /// Trailers end a body.
    fn with_trailers(bytes: Bytes, last: Frame<Bytes>) -> Payload {
        match last.into_trailers() {
            Ok(trailers) => Payload::Trailed(bytes, Box::new(trailers)),
            Err(_) => Payload::Whole(bytes),
        }
    }

    /// The bytes read so far, for decisions that need the body.
    pub(crate) fn buffered(&self) -> &[u8] {
        match self {
            Payload::Whole(bytes) | Payload::Trailed(bytes, _) => bytes,
            Payload::Spooled(_) | Payload::Stream(_) => &[],
        }
    }

    /// It is larger than the bound for memory, so no decision has read it.
    pub(crate) fn is_unread(&self) -> bool {
        matches!(self, Payload::Spooled(_) | Payload::Stream(_))
    }

    /// There is no body.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Payload::Whole(bytes) if bytes.is_empty())
    }

    /// Can it be sent (again)?
    pub(crate) fn is_resendable(&self) -> bool {
        match self {
            Payload::Whole(_)
            | Payload::Trailed(..)
            | Payload::Spooled(_)
            | Payload::Stream(Some(_)) => true,
            Payload::Stream(None) => false,
        }
    }

    /// Takes the body back: no byte of it has left.
    pub(crate) fn restore(&mut self, outgoing: Outgoing) {
        if let (Payload::Stream(gone @ None), OutgoingKind::Stream(stream)) = (self, outgoing.kind)
        {
            *gone = Some(stream);
        }
    }

    /// A body to send, after this head. A stream is gone afterwards.
    pub(crate) fn outgoing(&mut self, head: &HeaderMap) -> Outgoing {
        let kind = match self {
            Payload::Whole(bytes) => OutgoingKind::Whole(Some(bytes.clone())),
            Payload::Trailed(bytes, trailers) => {
                OutgoingKind::Trailed(Some(bytes.clone()), Some(trailers.clone()))
            }
            Payload::Spooled(spool) => OutgoingKind::Spooled(SpoolReader::new(spool.clone())),
            Payload::Stream(stream) => match stream.take() {
                Some(stream) => OutgoingKind::Stream(stream),
                None => OutgoingKind::Whole(None),
            },
        };
        let upload = match kind {
            OutgoingKind::Whole(_) | OutgoingKind::Trailed(..) => None,
            OutgoingKind::Spooled(_) | OutgoingKind::Stream(_) => Some(Arc::default()),
        };
        let in_head = match kind {
            OutgoingKind::Whole(_) => Vec::new(),
            OutgoingKind::Trailed(..) | OutgoingKind::Spooled(_) | OutgoingKind::Stream(_) => {
                head.keys().cloned().collect()
            }
        };
        Outgoing {
            kind,
            upload,
            in_head,
        }
    }
}

impl Outgoing {
    /// Its progress, if it is large.
    pub(crate) fn upload(&self) -> Option<Arc<Upload>> {
        self.upload.clone()
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let frame = match &mut this.kind {
            OutgoingKind::Whole(bytes) => {
                let bytes = bytes.take().filter(|bytes| !bytes.is_empty());
                return Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))));
            }
            OutgoingKind::Trailed(bytes, trailers) => {
                if let Some(bytes) = bytes.take().filter(|bytes| !bytes.is_empty()) {
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
                let trailers = trailers.take().map(|trailers| *trailers);
                let trailers = trailers
                    .and_then(|trailers| headers::forwarded_trailers(trailers, &this.in_head));
                return Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))));
            }
            OutgoingKind::Spooled(file) => Pin::new(file).poll_frame(cx),
            OutgoingKind::Stream(stream) => Pin::new(&mut stream.body).poll_frame(cx),
        };
        if let Some(upload) = &this.upload {
            let is_file = match &this.kind {
                OutgoingKind::Spooled(_) => true,
                OutgoingKind::Stream(stream) => stream.reads_first.load(Ordering::Relaxed),
                OutgoingKind::Whole(_) | OutgoingKind::Trailed(..) => false,
            };
            upload.record(&frame, is_file);
        }
        match frame {
            Poll::Ready(Some(Ok(frame))) if frame.is_trailers() => {
                let trailers = frame.into_trailers().ok();
                let trailers = trailers
                    .and_then(|trailers| headers::forwarded_trailers(trailers, &this.in_head));
                Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
            }
            frame => frame,
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            OutgoingKind::Whole(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            OutgoingKind::Trailed(_, trailers) => trailers.is_none(),
            OutgoingKind::Spooled(file) => file.is_end_stream(),
            OutgoingKind::Stream(stream) => stream.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            OutgoingKind::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64))
            }
            // Trailers need chunked encoding, so there is no length.
            OutgoingKind::Trailed(..) => SizeHint::default(),
            OutgoingKind::Spooled(file) => file.size_hint(),
            OutgoingKind::Stream(stream) => stream.body.size_hint(),
        }
    }
}

/// A caller's body that must not be too slow.
struct PacedBody<B> {
    body: B,
    pace: Pace,
}

impl<B: Body<Data = Bytes> + Unpin> PacedBody<B>
where
    B::Error: Into<BodyError>,
{
    /// The next frame; `None` at the end.
    async fn next(&mut self) -> Result<Option<Frame<Bytes>>, Error> {
        let frame = self.frame().await.transpose();
        frame.map_err(|error| {
            if error.is::<TooSlow>() {
                Error::SlowBody
            } else {
                Error::IncompleteBody
            }
        })
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for PacedBody<B>
where
    B::Error: Into<BodyError>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        let frame = Pin::new(&mut this.body).poll_frame(cx);
        let frame = match ready!(this.pace.poll(cx, frame)) {
            Ok(frame) => frame,
            Err(slow) => return Poll::Ready(Some(Err(slow.into()))),
        };
        if let Some(Ok(frame)) = &frame {
            this.pace.add(frame.data_ref().map_or(0, Bytes::len));
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
