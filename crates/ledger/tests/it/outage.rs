//! W4 with several processes: a provider is down, and processes on one folder detect it together.

use crate::child::Worker;
use tollgate_sim::test_host::TempFolder;

/// Failures in a row that put a provider to sleep.
const IN_A_ROW: usize = 5;

/// How many calls these processes send into an outage, each process one call at a time.
fn calls_sent_into_an_outage(processes: usize) -> usize {
    let folder = TempFolder::unmade("ledger");
    let mut workers: Vec<Worker> = (0..processes)
        .map(|_| Worker::start("outage", folder.path(), ""))
        .collect();
    for worker in &mut workers {
        worker.wait_for("ready");
    }
    for worker in &mut workers {
        worker.send_line("go");
    }
    let reported = workers.iter_mut().flat_map(|worker| {
        let until_closed =
            std::iter::from_fn(|| worker.next().filter(|(word, _)| word != "closed"));
        until_closed.collect::<Vec<_>>()
    });
    reported.filter(|(word, _)| word == "sent").count()
}

/// W4, A4, A5: each failure is counted in the transaction that asks for the next call. So after the
/// fifth failure only the calls in flight remain: one for each other process.
#[test]
fn w4_two_four_and_eight_processes_send_no_more_than_fifteen_into_an_outage() {
    for processes in [2, 4, 8] {
        let sent = calls_sent_into_an_outage(processes);
        let in_flight = processes - 1;
        assert!(
            (IN_A_ROW..=IN_A_ROW + in_flight).contains(&sent),
            "{processes} processes sent {sent}"
        );
        assert!(sent <= 15);
    }
}
