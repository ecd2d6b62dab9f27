//! The estimate, from limits whose times are known.

use super::*;

const SECOND: Span = Span::from_secs(1);
const WEB: CallerId = CallerId(1);
const BATCH: CallerId = CallerId(2);

fn limit(refill: Refill) -> EtaLimit {
    EtaLimit {
        limit: 10,
        remaining: 0,
        period: SECOND,
        reset_after: Some(Span::from_millis(300)),
        refill,
        reserve: 0,
        spreads_low: false,
        part: None,
    }
}

fn group(caller: CallerId, priority: Priority, calls: u64) -> EtaGroup {
    EtaGroup {
        caller,
        priority,
        calls,
        at_least_permille: 0,
        closed_for: Span::ZERO,
        uses: vec![(0, 1)],
    }
}

/// One caller at these limits.
fn eta(calls: u64, limits: &[EtaLimit], closed_for: Span) -> Span {
    let uses = (0..limits.len()).map(|at| (at, 1)).collect();
    let waiting = EtaGroup {
        closed_for,
        uses,
        ..group(WEB, Priority::Normal, calls)
    };
    let queue = EtaQueue {
        groups: vec![waiting.clone()],
        limits: limits.to_vec(),
        ..EtaQueue::default()
    };
    queue.eta(&waiting).unwrap()
}

/// Ten slots that are all back in 300 ms: the tenth then, the first between now and then.
#[test]
fn a_sliding_window_is_estimated_between_together_and_one_by_one() {
    let limit = limit(Refill::Sliding);
    let time = |calls| eta(calls, &[limit], Span::ZERO);
    assert_eq!(time(10), Span::from_millis(300));
    assert_eq!(time(20), Span::from_millis(1_300));
    assert_eq!(
        time(5),
        Span::from_millis(50),
        "250 ms earlier than the last"
    );
    assert_eq!(time(1), Span::ZERO, "never before now");
    let paused = eta(10, &[limit], Span::from_millis(200));
    assert_eq!(paused, Span::from_millis(300), "the pause ends first");
}

#[test]
fn limits_grant_at_their_own_pace_and_the_slowest_counts() {
    let gradual = limit(Refill::Gradual);
    assert_eq!(eta(25, &[gradual], Span::ZERO), Span::from_millis(2_500));
    let some = EtaLimit {
        remaining: 5,
        ..gradual
    };
    assert_eq!(eta(25, &[some], Span::ZERO), Span::from_secs(2));
    let at_once = limit(Refill::AtOnce);
    for (calls, millis) in [(1, 300), (10, 300), (11, 1_300), (30, 2_300)] {
        assert_eq!(
            eta(calls, &[at_once], Span::ZERO),
            Span::from_millis(millis),
            "{calls}"
        );
    }
    let slow = EtaLimit {
        period: Span::from_secs(60),
        ..gradual
    };
    assert_eq!(eta(10, &[gradual, slow], Span::ZERO), Span::from_secs(60));
    let busy = limit(Refill::CallEnds(Span::from_millis(500)));
    assert_eq!(eta(20, &[busy], Span::ZERO), SECOND);
    assert_eq!(eta(u64::MAX, &[slow], Span(u64::MAX)), Span(u64::MAX));
    assert_eq!(eta(9, &[], SECOND), SECOND, "closed, without a limit");
}

#[test]
fn limits_refill_while_the_provider_is_closed() {
    let pause = Span::from_secs(30);
    assert_eq!(eta(10, &[limit(Refill::Gradual)], pause), pause);
    assert_eq!(eta(11, &[limit(Refill::AtOnce)], pause), pause + SECOND);
    let estimated = EtaLimit::at_rate(Rate::per_second(5));
    assert_eq!(eta(10, &[estimated], Span::ZERO), Span::from_secs(2));
}

fn queue(groups: Vec<EtaGroup>, arrivals: &[(CallerId, Priority, u32)]) -> EtaQueue {
    let arrival = |&(caller, priority, rate): &(CallerId, Priority, u32)| EtaArrivals {
        caller,
        priority,
        part: None,
        rate: Rate::per_second(rate),
    };
    EtaQueue {
        groups,
        limits: vec![limit(Refill::Gradual)],
        arrivals: arrivals.iter().map(arrival).collect(),
        is_fifo: false,
    }
}

#[test]
fn callers_take_turns_within_a_priority() {
    let (web, batch) = (
        group(WEB, Priority::Normal, 4),
        group(BATCH, Priority::Normal, 100),
    );
    let urgent = group(CallerId(3), Priority::High, 3);
    let queue = queue(vec![web.clone(), batch.clone(), urgent.clone()], &[]);
    assert_eq!(queue.eta(&urgent), Some(Span::from_millis(300)));
    assert_eq!(queue.eta(&web), Some(Span::from_millis(1_100)));
    assert_eq!(queue.eta(&batch), Some(Span::from_millis(10_700)));
    let fifo = EtaQueue {
        is_fifo: true,
        ..queue
    };
    assert_eq!(fifo.eta(&web), Some(Span::from_millis(10_700)));
}

/// A caller of low priority had an estimate of seconds while calls of a higher one took every permit.
#[test]
fn urgent_calls_that_arrive_take_their_part_or_everything() {
    let batch = group(BATCH, Priority::Low, 30);
    let one = |rate| queue(vec![batch.clone()], &[(WEB, Priority::High, rate)]).eta(&batch);
    assert_eq!(one(0), Some(Span::from_secs(3)));
    assert_eq!(one(5), Some(Span::from_secs(6)));
    assert_eq!(one(10), None);
    let promised = EtaGroup {
        at_least_permille: 100,
        ..batch
    };
    let all = queue(vec![promised.clone()], &[(WEB, Priority::High, 20)]);
    assert_eq!(all.eta(&promised), Some(Span::from_secs(30)));
}

/// "None is sent while urgent calls take everything" was said of calls that wait for midnight: a few urgent ones in
/// half a minute are more than a thousand a day in a second.
#[test]
fn calls_that_wait_for_midnight_are_sent_then() {
    let batch = group(BATCH, Priority::Low, 30);
    let day = EtaLimit {
        limit: 1_000,
        period: Span::from_secs(86_400),
        reset_after: Some(Span::from_secs(7_200)),
        ..limit(Refill::AtOnce)
    };
    let queue = EtaQueue {
        limits: vec![day],
        ..queue(vec![batch.clone()], &[(WEB, Priority::High, 1)])
    };
    assert_eq!(queue.eta(&batch), Some(Span::from_secs(7_200)));
}

/// Another caller of the same priority that keeps calling has its turns too.
#[test]
fn new_calls_of_other_callers_take_turns() {
    let web = group(WEB, Priority::Normal, 20);
    let one = |rate| queue(vec![web.clone()], &[(BATCH, Priority::Normal, rate)]).eta(&web);
    let near = |found: Option<Span>, millis: u64| {
        let found = found.unwrap().0 / 1_000;
        assert!(found.abs_diff(millis) <= 100, "{found}");
    };
    near(one(3), 2_857);
    near(one(50), 4_000);
}

/// Calls of an entity that is closed or full do not wait for another one.
#[test]
fn only_calls_that_share_a_limit_go_before() {
    let (mut odds, teams) = (
        group(WEB, Priority::Normal, 20),
        group(BATCH, Priority::High, 500),
    );
    odds.uses = vec![(1, 1)];
    odds.closed_for = Span::from_secs(4);
    let mut queue = queue(vec![odds.clone(), teams.clone()], &[]);
    queue.limits.push(limit(Refill::AtOnce));
    assert_eq!(queue.eta(&odds), Some(Span::from_secs(5)));
    assert_eq!(queue.eta(&teams), Some(Span::from_secs(50)));
}

/// New calls of another entity take nothing from its limit.
#[test]
fn a_limit_of_an_entity_sees_only_its_own_calls() {
    let odds = group(WEB, Priority::Normal, 20);
    let mut queue = queue(vec![odds.clone()], &[(BATCH, Priority::High, 5)]);
    queue.limits[0].part = Some(0);
    queue.arrivals[0].part = Some(1);
    assert_eq!(queue.eta(&odds), Some(Span::from_secs(2)));
    queue.arrivals[0].part = Some(0);
    assert_eq!(queue.eta(&odds), Some(Span::from_secs(4)));
}

/// A day of 20,000 with one urgent call a second: low priority got one permit in four seconds, and the estimate, which
/// counted on all that was free, said a seventh of the time.
#[test]
fn low_priority_that_is_spread_takes_as_long_as_its_pace() {
    let day = EtaLimit {
        limit: 86_400,
        remaining: 80_000,
        period: Span::from_secs(86_400),
        reset_after: Some(Span::from_secs(86_400)),
        spreads_low: true,
        ..limit(Refill::Sliding)
    };
    let low = group(WEB, Priority::Low, 600);
    let queue = |limit| EtaQueue {
        groups: vec![low.clone()],
        limits: vec![limit],
        ..EtaQueue::default()
    };
    assert_eq!(queue(day).eta(&low), Some(Span::from_secs(600)));
    let free = EtaLimit {
        spreads_low: false,
        ..day
    };
    assert_eq!(queue(free).eta(&low), Some(Span::ZERO));
    let normal = EtaGroup {
        priority: Priority::Normal,
        ..low.clone()
    };
    assert_eq!(queue(day).eta(&normal), Some(Span::ZERO));
}

/// Five calls of another caller had used up 5/1m, and ended. Four calls that waited for the next window were estimated
/// at two windows, because the other caller's calls were expected to go on.
#[test]
fn a_finished_burst_of_another_caller_is_not_expected_again() {
    let window = EtaLimit {
        limit: 5,
        period: Span::from_secs(60),
        reset_after: Some(Span::from_millis(59_800)),
        ..limit(Refill::AtOnce)
    };
    let own = group(WEB, Priority::Normal, 4);
    let with = |groups: Vec<EtaGroup>, priority: Priority| EtaQueue {
        limits: vec![window],
        ..queue(groups, &[(BATCH, priority, 5)])
    };
    let first = Some(Span::from_millis(59_800));
    for priority in [Priority::Normal, Priority::High] {
        let over = with(vec![own.clone()], priority);
        assert_eq!(over.eta(&own), first, "{priority:?}");
    }
    let other = group(BATCH, Priority::Normal, 1);
    let goes_on = with(vec![own.clone(), other], Priority::Normal);
    assert_eq!(
        goes_on.eta(&own),
        first.map(|first| first + Span::from_secs(60))
    );
    let free = EtaLimit {
        remaining: 2,
        ..window
    };
    let free = EtaQueue {
        limits: vec![free],
        ..with(vec![own.clone()], Priority::Normal)
    };
    assert_eq!(
        free.eta(&own),
        first.map(|first| first + Span::from_secs(60)),
        "it may call again"
    );
}
