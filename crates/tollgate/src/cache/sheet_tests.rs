//! Sheets: what is in them, how many there are, and who gets one.
//!
//! The bounds are those of the process, so one test at a time uses them up.

use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};

use super::super::tests::object;
use super::*;

static TURN: Mutex<()> = Mutex::new(());

fn answer(length: usize) -> Arc<Object> {
    object(1, &"x".repeat(length))
}

#[test]
fn a_sheet_holds_its_body_and_cannot_be_changed_or_run() {
    let _turn = TURN.lock();
    let answer = answer(LEAST);
    let sheet = Sheet::of(&answer).unwrap();
    let mut file = std::fs::File::from(sheet.as_fd().try_clone_to_owned().unwrap());
    let mut read = vec![0; LEAST];
    file.read_exact_at(&mut read, 0).unwrap();
    assert!(read.as_slice() == &*answer.body && sheet.len() == LEAST);
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
fn short_and_huge_bodies_have_none() {
    assert!(Sheet::of(&answer(LEAST - 1)).is_none());
    assert!(Sheet::of(&answer(MOST + 1)).is_none());
}

/// There are only so many, and room comes back.
#[test]
fn there_are_only_so_many_and_room_comes_back() {
    let _turn = TURN.lock();
    let answers: Vec<_> = (0..40).map(|_| answer(MOST)).collect();
    let sheets: Vec<_> = answers.iter().filter_map(Sheet::of).collect();
    assert_eq!(sheets.len(), BYTES_MAX / MOST);
    drop((sheets, answers));
    assert!(Sheet::of(&answer(MOST)).is_some());
}

/// Answers that are renewed every second have a new sheet every second.
#[test]
fn what_is_gone_leaves_the_list_of_those_who_have_one() {
    let _turn = TURN.lock();
    for _ in 0..5 * SHEETS_MAX {
        assert!(Sheet::of(&answer(LEAST)).is_some());
    }
    assert!(SHOWN.lock().len() <= 2 * SHEETS_MAX);
}

/// What is asked for again and again gets the place of what was asked for first and not since; what is
/// used as often keeps its own.
#[test]
fn hotter_answers_take_the_places_of_colder_ones() {
    let _turn = TURN.lock();
    let first: Vec<_> = (0..BYTES_MAX / MOST).map(|_| answer(MOST)).collect();
    for one in &first {
        assert!(Sheet::of(one).is_some());
    }
    let (hot, rare) = (answer(MOST), answer(MOST));
    let used = &first[0];
    for round in 0..u32::from(WISHES) {
        assert!(Sheet::of(used).is_some());
        let has_one = Sheet::of(&hot).is_some();
        assert_eq!(has_one, round + 1 == u32::from(WISHES), "{round}");
    }
    assert!(Sheet::of(&rare).is_none(), "it was asked for once");
    assert!(used.form.shown.sheet.load().is_some());
    assert!(hot.form.shown.sheet.load().is_some());
    let gone = first
        .iter()
        .filter(|one| one.form.shown.sheet.load().is_none());
    assert_eq!(gone.count(), 1);
}
