//! Flights on their own: what followers see, however the call ends.

use super::*;
use crate::flights::sharing_tests::{anonymous, numbered};
use crate::flights::{CallDemand, PASS_FOR};

use tollgate_core::ask::Priority;
use tollgate_core::gate::CallerId;
use tollgate_core::time::Wall;
use tollgate_ledger::{Clock, Ledger};

fn flight(table: &Arc<FlightTable>) -> Arc<Flight> {
    let demand = CallDemand {
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
        demand,
    ));
    let slot = FlightSlot::InFlight(flight.clone());
    table.shard(key).lock().insert(key, slot);
    flight
}

fn flight_end(flight: &Arc<Flight>, table: &Arc<FlightTable>) -> FlightInProgress {
    let ledger = Ledger::memory(Clock::tokio(Wall(1_772_323_200_000_000))).provider("p");
    FlightInProgress::new(flight.clone(), table.clone(), ledger)
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
        progress: None,
    }
}

/// R-C7: the followers of a call that panics are informed, and the request can be sent again.
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
    assert!(matches!(flight.round.finished().await, FlightResult::Lost));
    assert!(first.await.is_err_and(|error| error.is_panic()));
    assert!(is_empty(&table) && !flight.add_follower());
}

/// A caller that leaves hands the call over if others wait, and ends it if nobody does.
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
            CallOutcome::from_error(Error::Malformed("any final error"))
        };
        drop(leader((&flight, &table), call));
        let landed = flight.round.finished().await;
        assert_eq!(
            matches!(landed, FlightResult::Failed(_)),
            followers > 0,
            "{landed:?}"
        );
        assert!(is_empty(&table));
    }
}

/// An unshareable request is remembered for a while, within a bound.
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
    assert_eq!(shard.lock().len(), 1, "a pass entry is not a flight");
    table.pass(&flight, Micros(1));
    assert_eq!(shard.lock().len(), 1);
}

/// However soon the response arrives after the leader's caller has left, a follower gets it.
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
        source: crate::reply::Source::Upstream,
        degraded: false,
    };
    let outcome = finish(flight_end(&flight, &table), CallOutcome::from_reply(reply));
    assert!(outcome.result.is_err(), "no caller takes it");
    let FlightResult::Alone(left) = flight.round.finished().await else {
        panic!("it must not be shared");
    };
    assert!(left.lock().is_some());
}
