//! Memfds: their content, their number, and which bodies get one.
//!
//! The bounds are per process, so one test at a time uses them up.

use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};

use super::super::tests::object;
use super::*;

static TURN: Mutex<()> = Mutex::new(());

fn response(length: usize) -> Arc<CachedResponse> {
    object(1, &"x".repeat(length))
}

#[test]
fn a_memfd_holds_its_body_and_cannot_be_changed_or_run() {
    let _turn = TURN.lock();
    let response = response(BODY_MIN);
    let memfd = MemfdBody::of(&response).unwrap();
    let mut file = std::fs::File::from(memfd.as_fd().try_clone_to_owned().unwrap());
    let mut read = vec![0; BODY_MIN];
    file.read_exact_at(&mut read, 0).unwrap();
    assert!(read.as_slice() == &*response.body && memfd.len() == BODY_MIN);
    assert!(file.write_all(b"x").is_err());
    assert!(file.set_len(1).is_err());
    let flags = rustix::fs::MemfdFlags::NOEXEC_SEAL;
    if rustix::fs::memfd_create("probe", flags).is_ok() {
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o111, 0);
        let run = std::fs::Permissions::from_mode(0o700);
        assert!(file.set_permissions(run).is_err());
    }
}

#[test]
fn short_and_huge_bodies_have_no_memfd() {
    assert!(MemfdBody::of(&response(BODY_MIN - 1)).is_none());
    assert!(MemfdBody::of(&response(BODY_MAX + 1)).is_none());
}

/// The number is bounded, and dropped memfds free their room.
#[test]
fn memfds_are_bounded_and_their_room_is_reused() {
    let _turn = TURN.lock();
    let responses: Vec<_> = (0..40).map(|_| response(BODY_MAX)).collect();
    let memfds: Vec<_> = responses.iter().filter_map(MemfdBody::of).collect();
    assert_eq!(memfds.len(), BYTES_MAX / BODY_MAX);
    drop((memfds, responses));
    assert!(MemfdBody::of(&response(BODY_MAX)).is_some());
}

/// Responses that are renewed every second have a new memfd every second.
#[test]
fn evicted_responses_leave_the_owner_list() {
    let _turn = TURN.lock();
    for _ in 0..5 * MEMFDS_MAX {
        assert!(MemfdBody::of(&response(BODY_MIN)).is_some());
    }
    assert!(OWNERS.lock().len() <= 2 * MEMFDS_MAX);
}

/// A body that is requested repeatedly replaces one that was requested first and not since; a body
/// that is used as often keeps its memfd.
#[test]
fn hotter_responses_replace_colder_ones() {
    let _turn = TURN.lock();
    let first: Vec<_> = (0..BYTES_MAX / BODY_MAX)
        .map(|_| response(BODY_MAX))
        .collect();
    for one in &first {
        assert!(MemfdBody::of(one).is_some());
    }
    let (hot, rare) = (response(BODY_MAX), response(BODY_MAX));
    let used = &first[0];
    for round in 0..u32::from(REQUESTS_MIN) {
        assert!(MemfdBody::of(used).is_some());
        let has_one = MemfdBody::of(&hot).is_some();
        assert_eq!(has_one, round + 1 == u32::from(REQUESTS_MIN), "{round}");
    }
    assert!(MemfdBody::of(&rare).is_none(), "it was requested once");
    assert!(used.wire_form.memfd.body.load().is_some());
    assert!(hot.wire_form.memfd.body.load().is_some());
    let gone = first
        .iter()
        .filter(|one| one.wire_form.memfd.body.load().is_none());
    assert_eq!(gone.count(), 1);
}
