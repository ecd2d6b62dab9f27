//! Flights on their own: what those who wait see, whatever becomes of the call.

use super::super::flight_table::PASS_FOR;
use super::sharing::tests::{anonymous, numbered};
use super::*;

use tollgate_core::ask::Priority;
use tollgate_core::gate::CallerId;
use tollgate_core::time::Wall;
use tollgate_ledger::{Clock, Ledger};

fn flight(table: &Arc<FlightTable>) -> Arc<Flight> {
    let wish = CallDemand {
        priority: Priority::Normal,
        caller: CallerId::default(),
        deadline: None,
        untimed_since: Some(Micros(0)),
    };
    let key = numbered(7);
    let flight = Arc::new(Flight::of(
        key,
        Dedup::On,
        anonymous(),
        Span::from_secs(1),
        wish,
    ));
    let slot = FlightSlot::InFlight(flight.clone());
    table.shard(key).lock().insert(key, slot);
    flight
}

fn flight_end(flight: &Arc<Flight>, table: &Arc<FlightTable>) -> FlightEnd {
    let ledger = Ledger::memory(Clock::tokio(Wall(1_772_323_200_000_000)));
    FlightEnd::new(flight.clone(), table.clone(), ledger)
}

fn is_empty(table: &FlightTable) -> bool {
    table.shards.iter().all(|shard| shard.lock().is_empty())
}

fn leader(
    (flight, table): (&Arc<Flight>, &Arc<FlightTable>),
    call: impl Future<Output = CallOutcome> + Send + 'static,
) -> Leader {
    Leader {
        call: Some((Box::pin(call), flight_end(flight, table))),
        flight: flight.clone(),
    }
}

/// R-C7: those who wait for a call that panics are told, and the question can be asked again.
#[tokio::test(start_paused = true)]
async fn s7_a_flight_ends_when_its_call_panics() {
    let table = Arc::new(FlightTable::default());
    let flight = flight(&table);
    assert!(flight.add_follower());
    let call = async move {
        tokio::task::yield_now().await;
        panic!("a defect");
    };
    let first = tokio::spawn(leader((&flight, &table), call));
    assert!(matches!(flight.finished().await, FlightResult::Lost));
    assert!(first.await.is_err_and(|error| error.is_panic()));
    assert!(is_empty(&table) && !flight.add_follower());
}

/// A caller that leaves hands the call over if somebody waits, and ends it if nobody does.
#[tokio::test(start_paused = true)]
async fn s7_a_call_outlives_its_caller_only_if_others_wait() {
    for followers in [0, 1] {
        let table = Arc::new(FlightTable::default());
        let flight = flight(&table);
        for _ in 0..followers {
            assert!(flight.add_follower());
        }
        let call = async move {
            timer::sleep(Some(Span::from_secs(5))).await;
            CallOutcome::from_error(Error::Malformed("as good as an answer"))
        };
        drop(leader((&flight, &table), call));
        let landed = flight.finished().await;
        assert_eq!(
            matches!(landed, FlightResult::Failed(_)),
            followers > 0,
            "{landed:?}"
        );
        assert!(is_empty(&table));
    }
}

/// What could not be shared is remembered for a while, and no more than fits.
#[test]
fn s7_pass_entries_are_bounded_and_expire() {
    let table = Arc::new(FlightTable::default());
    let flight = flight(&table);
    table.pass(&flight, Micros(0));
    let shard = table.shard(flight.key);
    assert!(
        matches!(shard.lock().get(&flight.key), Some(FlightSlot::Pass(until)) if *until == Micros(0) + PASS_FOR)
    );
    table.remove(&flight);
    assert_eq!(shard.lock().len(), 1, "a memory is no flight");
    table.pass(&flight, Micros(1));
    assert_eq!(shard.lock().len(), 1);
}

/// However soon the answer comes after its first caller has left, it is for somebody who waits.
#[tokio::test(start_paused = true)]
async fn s7_an_unshared_response_survives_its_first_caller() {
    let table = Arc::new(FlightTable::default());
    let flight = flight(&table);
    assert!(flight.add_follower());
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
    let outcome = flight_end(&flight, &table).finish(CallOutcome::from_reply(reply));
    assert!(outcome.result.is_err(), "nobody is there to take it");
    let FlightResult::Alone(left) = flight.finished().await else {
        panic!("it is not to be shared");
    };
    assert!(left.lock().is_some());
}
