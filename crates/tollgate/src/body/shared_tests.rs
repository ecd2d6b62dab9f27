//! Readers of one response while memory is scarce.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const CHUNK: usize = 10_000;
const CHUNKS: usize = 30;
const IDLE: Span = Span::from_secs(60);

/// Counts how often it is woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Woken>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The memory of all bodies, of which other bodies hold nearly everything.
fn memory() -> HeldBytes {
    Arc::new(BodyMemory::new(CHUNK * CHUNKS * 2))
}

fn make_scarce(memory: &HeldBytes) {
    memory.add(CHUNK * CHUNKS * 2);
}

/// A response of which all but the end has arrived, with two readers.
fn two_readers(memory: &HeldBytes) -> (Reader, Reader) {
    let (shared, fast) =
        SharedBody::new(ReplyBody::default(), 1, IDLE, memory.clone(), Box::new(()));
    let slow = shared.open_reader().unwrap();
    let mut state = shared.inner.state.lock();
    let chunk = Bytes::from(vec![7; CHUNK]);
    state.chunks = std::iter::repeat_n(chunk, CHUNKS).collect();
    state.bytes = CHUNK * CHUNKS;
    memory.add(state.bytes);
    drop(state);
    (fast, slow)
}

/// Reads one chunk that has arrived.
fn read_chunk(reader: &mut Reader, cx: &mut Context<'_>) {
    let read = reader.poll(cx);
    assert!(
        matches!(&read, Poll::Ready(Some(Ok(frame))) if frame.is_data()),
        "{read:?}"
    );
}

async fn read_to_end(mut reader: Reader) -> usize {
    let mut chunks = 0;
    while let Some(frame) = std::future::poll_fn(|cx| reader.poll(cx)).await {
        frame.unwrap();
        chunks += 1;
    }
    chunks
}

/// While memory was scarce, a fast reader waited until nearly everything was read, and gave up on the
/// slower one after the idle timeout, although that one read all the time.
#[tokio::test(start_paused = true)]
async fn a_slow_reader_that_reads_is_not_dropped_when_memory_is_scarce() {
    let memory = memory();
    let (fast, mut slow) = two_readers(&memory);
    make_scarce(&memory);
    let fast = tokio::spawn(read_to_end(fast));
    for _ in 0..CHUNKS {
        crate::timer::sleep(Some(Span::from_secs(40))).await;
        let read = std::future::poll_fn(|cx| slow.poll(cx)).await;
        assert!(matches!(&read, Some(Ok(_))), "{read:?}");
    }
    assert_eq!(fast.await.unwrap(), CHUNKS);
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_stalls_is_dropped_when_memory_is_scarce() {
    let memory = memory();
    let (fast, mut slow) = two_readers(&memory);
    make_scarce(&memory);
    assert_eq!(read_to_end(fast).await, CHUNKS);
    let cut = std::future::poll_fn(|cx| slow.poll(cx)).await;
    assert!(cut.unwrap().unwrap_err().is::<SlowReader>());
}

/// A fast reader that waited because memory was scarce was not woken by the reader that it waited for
/// if memory was free again by then: it stood still until the idle timeout.
#[tokio::test(start_paused = true)]
async fn a_waiting_reader_is_woken_when_memory_is_free_again() {
    let memory = memory();
    let (mut fast, mut slow) = two_readers(&memory);
    make_scarce(&memory);
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    let mut cx = Context::from_waker(&waker);
    (0..CHUNKS).for_each(|_| read_chunk(&mut fast, &mut cx));
    assert!(fast.poll(&mut cx).is_pending());
    memory.release(CHUNK * CHUNKS * 2);
    assert_eq!(woken.0.load(Ordering::Relaxed), 0);
    read_chunk(&mut slow, &mut Context::from_waker(Waker::noop()));
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert!(matches!(fast.poll(&mut cx), Poll::Ready(None)), "the end");
}

/// Nobody tells a waiting reader that memory is free again, and the slow one may never read.
#[tokio::test(start_paused = true)]
#[expect(
    clippy::disallowed_methods,
    reason = "tokio's own time, which is paused"
)]
async fn a_waiting_reader_looks_again_without_the_slow_one() {
    let memory = memory();
    let (fast, _stalled) = two_readers(&memory);
    make_scarce(&memory);
    let began = Instant::now();
    let fast = tokio::spawn(read_to_end(fast));
    tokio::task::yield_now().await;
    memory.release(CHUNK * CHUNKS * 2);
    assert_eq!(fast.await.unwrap(), CHUNKS);
    assert_eq!(began.elapsed(), LOOK_EVERY);
}

/// A slot that was given up and opened later took the place of one that was reserved since.
#[tokio::test(start_paused = true)]
async fn nobody_joins_after_slow_readers_were_given_up() {
    let memory = memory();
    let (shared, _fast) = SharedBody::new(ReplyBody::default(), 1, IDLE, memory, Box::new(()));
    assert!(shared.reserve());
    drop(shared.inner.state.lock().drop_slow_readers());
    assert!(!shared.reserve());
}
