//! How long a webhook that fails is left alone.

use super::*;

/// S10: a receiver that is away is asked after pauses that double, up to the longest one.
#[tokio::test]
async fn s10_the_pauses_between_two_attempts_double() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let receiver = Upstream::start(|_, _| async { reply(500, &[], "") }).await;
    let (clock, folder) = (clock(), folder("doubled"));
    let place = (&upstream, receiver.address);
    let daemon = daemon("alerts-doubled", &clock, place, &folder).await;
    let options = AlertOptions {
        retry_base: Span::from_secs(1),
        retry_max: Span::from_secs(5),
        ..AlertOptions::default()
    };
    let alerts = Alerts::start(&daemon.daemon, options).await;
    get(daemon.gateway, "/x/a").await;
    alerts.evaluate().await;
    let next_at = || {
        let desk = rusqlite::Connection::open(folder.join("desk.db")).unwrap();
        let query = "SELECT attempts, next_at FROM outbox";
        desk.query_row(query, [], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))
        })
        .unwrap_or_default() // not there yet
    };
    for (attempt, pause) in (1..).zip([1, 2, 4, 5, 5]) {
        wait_until(|| next_at().0 == attempt).await;
        let now = i64::try_from(daemon.daemon.registry().ledger().wall().0).unwrap();
        assert_eq!(next_at().1 - now, pause * 1_000_000, "attempt {attempt}");
        assert_eq!(i64::try_from(receiver.count()).unwrap(), attempt);
        clock.pass(Span::from_secs(pause.unsigned_abs()));
        alerts.evaluate().await;
    }
    drop(alerts);
    drop(std::fs::remove_dir_all(folder));
}
