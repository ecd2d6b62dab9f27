//! The table `rate_limiter_state` in a real Postgres.

use tollgate_core::time::Wall;
use tollgate_ledger::postgres::{DomainState, PostgresAddress, StateTable};
use tollgate_sim::test_servers::PostgresServer;

fn state(domain: &str, request_count: u64, window_start: u64) -> DomainState {
    DomainState {
        domain: domain.to_owned(),
        request_count,
        window_start: Wall(window_start),
    }
}

/// H8: the columns of the document, one row per domain, and what is written is read.
#[tokio::test]
async fn h8_a_snapshot_has_one_row_per_domain() {
    let mut server = PostgresServer::start(&["fsync=off"]);
    let address = PostgresAddress::parse(&server.url("postgres")).unwrap();
    let table = StateTable::new(address);
    assert_eq!(table.load().await, Ok(Vec::new()));
    let start = 1_736_936_580_000_001;
    for count in [45, 46] {
        let rows = [
            state("a.example", count, start),
            state("b.example", 3, start),
        ];
        table.save(&rows).await.unwrap();
    }
    let mut read = table.load().await.unwrap();
    read.sort_by(|a, b| a.domain.cmp(&b.domain));
    let expected = [state("a.example", 46, start), state("b.example", 3, start)];
    assert_eq!(read, expected);
    let columns = "SELECT string_agg(column_name || ' ' || data_type || ' ' || is_nullable, ', ' \
        ORDER BY ordinal_position) FROM information_schema.columns WHERE table_name = 'rate_limiter_state'";
    assert_eq!(
        server.sql("postgres", columns).trim(),
        "domain text NO, request_count integer NO, window_start timestamp with time zone NO, \
         updated_at timestamp with time zone NO"
    );
    let fresh =
        "SELECT count(*) FROM rate_limiter_state WHERE updated_at > now() - interval '1 minute'";
    assert_eq!(server.sql("postgres", fresh).trim(), "2");
    // Written by another program, as the document has it.
    let other = "UPDATE rate_limiter_state SET request_count = 7, window_start = '2025-01-15 10:23:00+00' WHERE domain = 'a.example'";
    let _updated = server.sql("postgres", other);
    let read = table.load().await.unwrap();
    assert!(
        read.contains(&state("a.example", 7, 1_736_936_580_000_000)),
        "{read:?}"
    );
    server.stop("immediate");
    let why = table.save(&expected).await.unwrap_err();
    assert!(why.contains("Postgres at 127.0.0.1"), "{why}");
}
