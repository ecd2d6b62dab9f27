//! Flights on their own: what those who wait see, whatever becomes of the call.

use super::super::table::PASS;
use super::share::tests::{anonymous, numbered};
use super::*;

use tollgate_core::ask::Priority;
use tollgate_core::gate::CallerId;
use tollgate_core::time::Wall;
use tollgate_ledger::{Clock, Ledger};

fn flight(table: &Arc<Table>) -> Arc<Flight> {
    let wish = Wish {
        priority: Priority::Normal,
        caller: CallerId::default(),
        deadline: None,
        untimed: Some(Micros(0)),
    };
    let key = numbered(7);
    let flight = Arc::new(Flight::of(
        key,
        Dedup::On,
        anonymous(),
        Span::from_secs(1),
        wish,
    ));
    let slot = Slot::Flying(flight.clone());
    table.shard(key).lock().insert(key, slot);
    flight
}

fn landing(flight: &Arc<Flight>, table: &Arc<Table>) -> Landing {
    let ledger = Ledger::memory(Clock::tokio(Wall(1_772_323_200_000_000)));
    Landing::new(flight.clone(), table.clone(), ledger)
}

fn is_empty(table: &Table) -> bool {
    table.shards.iter().all(|shard| shard.lock().is_empty())
}

fn pilot(
    (flight, table): (&Arc<Flight>, &Arc<Table>),
    call: impl Future<Output = Outcome> + Send + 'static,
) -> Pilot {
    Pilot {
        call: Some((Box::pin(call), landing(flight, table))),
        flight: flight.clone(),
    }
}

/// R-C7: those who wait for a call that panics are told, and the question can be asked again.
#[tokio::test(start_paused = true)]
async fn s7_a_flight_whose_call_panics_is_over() {
    let table = Arc::new(Table::default());
    let flight = flight(&table);
    assert!(flight.board());
    let call = async move {
        tokio::task::yield_now().await;
        panic!("a defect");
    };
    let first = tokio::spawn(pilot((&flight, &table), call));
    assert!(matches!(flight.landed().await, Landed::Lost));
    assert!(first.await.is_err_and(|error| error.is_panic()));
    assert!(is_empty(&table) && !flight.board());
}

/// A caller that leaves hands the call over if somebody waits, and ends it if nobody does.
#[tokio::test(start_paused = true)]
async fn s7_a_call_goes_on_without_its_caller_only_if_somebody_waits() {
    for followers in [0, 1] {
        let table = Arc::new(Table::default());
        let flight = flight(&table);
        for _ in 0..followers {
            assert!(flight.board());
        }
        let call = async move {
            timer::rest(Some(Span::from_secs(5))).await;
            Outcome::refused(Error::Malformed("as good as an answer"))
        };
        drop(pilot((&flight, &table), call));
        let landed = flight.landed().await;
        assert_eq!(
            matches!(landed, Landed::Failed(_)),
            followers > 0,
            "{landed:?}"
        );
        assert!(is_empty(&table));
    }
}

/// What could not be shared is remembered for a while, and no more than fits.
#[test]
fn s7_the_memory_of_what_is_not_shared_is_bounded_and_ends() {
    let table = Arc::new(Table::default());
    let flight = flight(&table);
    table.pass(&flight, Micros(0));
    let shard = table.shard(flight.key);
    assert!(
        matches!(shard.lock().get(&flight.key), Some(Slot::Pass(until)) if *until == Micros(0) + PASS)
    );
    table.remove(&flight);
    assert_eq!(shard.lock().len(), 1, "a memory is no flight");
    table.pass(&flight, Micros(1));
    assert_eq!(shard.lock().len(), 1);
}

/// However soon the answer comes after its first caller has left, it is for somebody who waits.
#[tokio::test(start_paused = true)]
async fn s7_an_answer_for_one_is_not_lost_when_its_first_caller_leaves() {
    let table = Arc::new(Table::default());
    let flight = flight(&table);
    assert!(flight.board());
    assert!(!flight.end_unless_wanted());
    let (mut head, ()) = http::Response::new(()).into_parts();
    head.headers
        .insert("set-cookie", http::HeaderValue::from_static("a=b"));
    let reply = Reply {
        head,
        body: crate::body::ReplyBody::whole("for one".into()),
        source: crate::path::Source::Upstream,
        degraded: false,
    };
    let outcome = landing(&flight, &table).land(Outcome::of(reply));
    assert!(outcome.answer.is_err(), "nobody is there to take it");
    let Landed::Alone(left) = flight.landed().await else {
        panic!("it is not to be shared");
    };
    assert!(left.lock().is_some());
}
