//! Request bodies: slow ones, large ones, and those that are larger than the spool.

use http::HeaderValue;
use tollgate_core::time::Span;

use super::*;
use crate::body_memory::BodyMemory;

/// So many bytes, each after this delay.
struct Slow {
    remaining: usize,
    every: Span,
    timer: Option<Pin<Box<dyn Future<Output = ()> + Send + Sync>>>,
}

impl Body for Slow {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.remaining == 0 {
            return Poll::Ready(None);
        }
        let every = self.every;
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(crate::timer::sleep(Some(every))));
        std::task::ready!(timer.as_mut().poll(cx));
        self.timer = None;
        self.remaining -= 1;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"x")))))
    }
}

fn share() -> BodyShare {
    BodyShare::new(Arc::new(BodyMemory::new(usize::MAX)))
}

/// A spool of this size, and room for it.
fn bounds(spool: u64) -> ReadBounds {
    ReadBounds {
        memory: WHOLE_MAX,
        spool,
        min_rate: 1,
        space: space(1 << 30, 9),
    }
}

fn space(bytes: u64, files: usize) -> &'static SpoolSpace {
    Box::leak(Box::new(SpoolSpace::new(bytes, files)))
}

fn pieces(remaining: usize) -> Pieces {
    Pieces {
        remaining,
        trailers: None,
    }
}

/// When all bodies together take too much memory, the next one goes to a file at once.
#[tokio::test]
async fn a_body_goes_to_a_file_when_memory_is_scarce() {
    let memory = Arc::new(BodyMemory::new(50_000));
    let bounds = bounds(1 << 20);
    let mut first = BodyShare::new(memory.clone());
    let small = Payload::gather(pieces(40_000), bounds, &mut first, &mut None).await;
    assert!(matches!(small.unwrap(), Payload::Whole(_)));
    let mut second = BodyShare::new(memory);
    let mut other = Payload::gather(pieces(40_000), bounds, &mut second, &mut None)
        .await
        .unwrap();
    assert!(matches!(other, Payload::Spooled(_)));
    assert_eq!(sent(&mut other).await.0.len(), 40_000);
}

async fn gathered(remaining: usize, every: Span, min_rate: u64) -> Result<Payload, Error> {
    let body = Slow {
        remaining,
        every,
        timer: None,
    };
    let bounds = ReadBounds {
        min_rate,
        ..bounds(1 << 20)
    };
    Payload::gather(body, bounds, &mut share(), &mut None).await
}

#[tokio::test(start_paused = true)]
async fn without_a_rate_a_slow_body_is_read_and_a_stalled_one_is_cut() {
    let slow = gathered(10, Span::from_secs(50), 0).await.unwrap();
    assert_eq!(slow.buffered(), b"xxxxxxxxxx");
    let stalled = gathered(2, Span::from_secs(61), 0).await;
    assert!(matches!(stalled, Err(Error::SlowBody)));
}

/// An upload of a byte a second held a permit for as long as it liked.
#[tokio::test(start_paused = true)]
#[expect(
    clippy::disallowed_methods,
    reason = "tokio's own time, which is paused"
)]
async fn an_upload_below_the_rate_is_cut_and_one_at_the_rate_is_not() {
    let began = tokio::time::Instant::now();
    let slow = gathered(1_000, Span::from_secs(1), 10).await;
    assert!(matches!(slow, Err(Error::SlowBody)));
    // Ten seconds, and one more for the ten bytes that it sent meanwhile.
    assert_eq!(began.elapsed().as_secs(), 11);
    let quick = gathered(1_000, Span::from_millis(100), 10).await.unwrap();
    assert_eq!(quick.buffered().len(), 1_000);
    let little = gathered(9, Span::from_secs(1), 1_024).await.unwrap();
    assert_eq!(
        little.buffered().len(),
        9,
        "a small body has its ten seconds"
    );
}

/// A body of so many bytes in pieces, with its trailers.
struct Pieces {
    remaining: usize,
    trailers: Option<HeaderMap>,
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let length = self.remaining.min(10_007);
        self.remaining -= length;
        Poll::Ready(match length {
            0 => self
                .trailers
                .take()
                .map(|trailers| Ok(Frame::trailers(trailers))),
            length => {
                let piece: Vec<u8> = (0..=250).cycle().take(length).collect();
                Some(Ok(Frame::data(piece.into())))
            }
        })
    }
}

async fn sent(payload: &mut Payload) -> (Bytes, Option<HeaderMap>) {
    let sent = payload.outgoing(&HeaderMap::new()).collect().await.unwrap();
    let trailers = sent.trailers().cloned();
    (sent.to_bytes(), trailers)
}

#[tokio::test]
async fn a_large_body_is_read_to_a_file_and_can_be_sent_again() {
    for length in [300_000, 1_000_000] {
        for trailers in [
            None,
            Some(HeaderMap::from_iter([(
                "x-sum".parse().unwrap(),
                "1".parse().unwrap(),
            )])),
        ] {
            let whole = pieces(length).collect().await.unwrap().to_bytes();
            let body = Pieces {
                trailers: trailers.clone(),
                ..pieces(length)
            };
            let mut payload = Payload::gather(body, bounds(1 << 20), &mut share(), &mut None)
                .await
                .unwrap();
            assert!(matches!(payload, Payload::Spooled(_)) && payload.is_resendable());
            for _ in 0..2 {
                assert_eq!(sent(&mut payload).await, (whole.clone(), trailers.clone()));
            }
        }
    }
}

#[tokio::test]
async fn a_body_larger_than_the_spool_is_streamed_whole_and_once() {
    for spool in [0, 300_000, 1 << 20] {
        let whole = pieces(2_000_000).collect().await.unwrap().to_bytes();
        let mut payload =
            Payload::gather(pieces(2_000_000), bounds(spool), &mut share(), &mut None)
                .await
                .unwrap();
        assert!(matches!(payload, Payload::Stream(_)), "{spool}");
        assert_eq!(sent(&mut payload).await.0, whole, "{spool}");
        assert!(!payload.is_resendable());
    }
}

/// A body that had gone to its file was counted as if it were in memory until its call ended.
#[tokio::test]
async fn a_body_in_a_file_takes_no_memory() {
    let memory = Arc::new(BodyMemory::new(usize::MAX));
    let mut share = BodyShare::new(memory.clone());
    let body = Payload::gather(pieces(900_000), bounds(1 << 20), &mut share, &mut None).await;
    assert!(matches!(body.unwrap(), Payload::Spooled(_)));
    assert_eq!(memory.held(), 0);
    let streamed = Payload::gather(pieces(900_000), bounds(300_000), &mut share, &mut None).await;
    assert!(matches!(streamed.unwrap(), Payload::Stream(_)));
    assert!(memory.held() <= 10_007, "the piece that had no room");
}

/// The buffer of a body in memory is counted, not only its bytes.
#[tokio::test]
async fn a_body_in_memory_is_counted_as_it_is() {
    let memory = Arc::new(BodyMemory::new(usize::MAX));
    let mut share = BodyShare::new(memory.clone());
    let body = Payload::gather(pieces(100_000), bounds(1 << 20), &mut share, &mut None).await;
    assert!(matches!(body.unwrap(), Payload::Whole(_)));
    assert!(memory.held() > 100_000, "{}", memory.held());
}

/// Bodies from which an entity or a cost is read took a MiB each, however little memory was left.
#[tokio::test]
async fn a_body_that_decides_something_goes_to_a_file_too_and_is_read_back() {
    let decides = |spool| ReadBounds {
        memory: READ_MAX,
        ..bounds(spool)
    };
    let memory = Arc::new(BodyMemory::new(50_000));
    let mut share = BodyShare::new(memory.clone());
    let body = Payload::gather(pieces(900_000), decides(2 << 20), &mut share, &mut None).await;
    let mut body = body.unwrap();
    assert!(matches!(body, Payload::Spooled(_)));
    assert_eq!(memory.held(), 0);
    let read = body.read_back().await.unwrap().unwrap();
    assert_eq!(read.bytes, sent(&mut body).await.0);
    // Where no file may hold all of it, it stays.
    let small = Payload::gather(pieces(900_000), decides(1 << 18), &mut share, &mut None).await;
    assert!(matches!(small.unwrap(), Payload::Whole(_)));
}

/// The bound of all files was looked at after a piece was written, so each upload could exceed it.
#[tokio::test]
async fn files_never_exceed_what_all_together_may_have() {
    let bounds = ReadBounds {
        space: space(600_000, 2),
        ..bounds(1 << 20)
    };
    let gather = |length| async move {
        let gathered = Payload::gather(pieces(length), bounds, &mut share(), &mut None).await;
        gathered.unwrap()
    };
    let first = gather(400_000).await;
    let mut second = gather(400_000).await;
    assert!(matches!(first, Payload::Spooled(_)));
    assert!(matches!(second, Payload::Stream(_)));
    assert!(bounds.space.bytes() <= 600_000);
    let third = gather(400_000).await;
    assert!(matches!(third, Payload::Stream(_)), "no more files");
    drop((first, third));
    assert_eq!(sent(&mut second).await.0.len(), 400_000);
    drop(second);
    assert_eq!(bounds.space.bytes(), 0);
    assert!(matches!(gather(400_000).await, Payload::Spooled(_)));
}

/// A small body that went to a file because memory was scarce counted 256 KiB while it was received, so
/// that a thousand of them kept memory scarce by themselves.
#[tokio::test(start_paused = true)]
async fn a_small_body_takes_little_memory_on_its_way_to_a_file() {
    let memory = Arc::new(BodyMemory::new(1));
    let mut share = BodyShare::new(memory.clone());
    let body = Slow {
        remaining: 100,
        every: Span::from_millis(1),
        timer: None,
    };
    let body = Payload::gather(body, bounds(1 << 20), &mut share, &mut None).await;
    assert!(matches!(body.unwrap(), Payload::Spooled(_)));
    assert!(memory.peak() <= 1_024, "{}", memory.peak());
}

/// A disk that took long to read back a stream's beginning was taken for a caller that had stalled.
#[tokio::test(start_paused = true)]
async fn a_stream_that_reads_its_file_does_not_wait_for_its_caller() {
    let stalled = || Slow {
        remaining: 1,
        every: Span::from_secs(9),
        timer: None,
    };
    let awaits_caller = |mut payload: Payload| {
        let mut outgoing = payload.outgoing(&HeaderMap::new());
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert!(Pin::new(&mut outgoing).poll_frame(&mut cx).is_pending());
        outgoing.upload().unwrap().awaits_caller()
    };
    assert!(!awaits_caller(Payload::stream(stalled(), stalled())));
    let nothing = Full::new(Bytes::new());
    assert!(awaits_caller(Payload::stream(nothing, stalled())));
}

/// A caller's `X-Api-Key` in a trailer would stand beside ours, or replace it.
#[tokio::test]
async fn a_trailer_does_not_repeat_a_header_of_its_request() {
    let value = HeaderValue::from_static;
    let trailers = HeaderMap::from_iter([
        (HeaderName::from_static("x-pass"), value("evil")),
        (HeaderName::from_static("x-sum"), value("6")),
    ]);
    let mut payload = Payload::Trailed(Bytes::from_static(b"x"), Box::new(trailers));
    let head = HeaderMap::from_iter([(HeaderName::from_static("x-pass"), value("ours"))]);
    let sent = payload.outgoing(&head).collect().await.unwrap();
    let names: Vec<&str> = sent
        .trailers()
        .unwrap()
        .keys()
        .map(HeaderName::as_str)
        .collect();
    assert_eq!(names, ["x-sum"]);
}
