//! The ledger on a real Postgres server: every behaviour of the conformance suite. Which owner goes first is decided on the node,
//! and milliseconds of virtual time matter there: `networked_suites.rs` runs the fairness suite on the simulated store.

use tollgate_ledger::Ledger;
use tollgate_ledger::postgres::PostgresAddress;

use crate::conformance::conformance;
use crate::postgres_server::Postgres;

mod conforms {
    use super::*;
    conformance!(Postgres::start().slow());
}

/// A program that does not know a schema would misread it.
#[tokio::test]
async fn a_newer_schema_is_rejected() {
    let postgres = Postgres::start();
    postgres.sql(
        "CREATE TABLE tollgate_schema (version int PRIMARY KEY); INSERT INTO tollgate_schema VALUES (1000)",
    );
    let address = PostgresAddress::parse(&postgres.server.url(&postgres.database)).unwrap();
    let (_ledger, why) =
        Ledger::postgres_or_lost(&address, postgres.clock(), &postgres.options()).await;
    let why = why.unwrap();
    assert!(
        why.contains("version 1000, made by a newer tollgate"),
        "{why}"
    );
}

/// A server whose administrator has switched it off would lose permits that were handed out.
#[tokio::test]
async fn commits_are_synchronous_whatever_the_server_says() {
    let postgres = Postgres::start().patient();
    let database = &postgres.database;
    postgres.sql(&format!(
        "ALTER DATABASE {database} SET synchronous_commit = off; \
         CREATE TABLE seen AS SELECT 0 AS n, ''::text AS setting LIMIT 0"
    ));
    let mut owner = crate::backend::Owner::new(&postgres, 1);
    let rule = crate::backend::sliding(1, crate::backend::secs(10));
    // The setting of the session that writes is seen by a trigger.
    owner.wait_settled().await;
    let _first = owner
        .take(smallvec::smallvec![crate::backend::term("x", &rule)])
        .await
        .unwrap();
    postgres.sql(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN INSERT INTO seen VALUES (1, current_setting('synchronous_commit')); RETURN NEW; END $$; \
         CREATE TRIGGER note AFTER INSERT OR UPDATE ON tollgate_rows FOR EACH ROW EXECUTE FUNCTION note()",
    );
    let _second = owner
        .take(smallvec::smallvec![crate::backend::term("y", &rule)])
        .await
        .unwrap();
    assert_eq!(postgres.sql("SELECT DISTINCT setting FROM seen"), "on");
}

/// A server whose administrator prefers older snapshots made each node that had waited for another one an error:
/// "could not serialize access due to concurrent update".
#[tokio::test]
async fn requests_see_what_was_committed_before_them_whatever_the_server_says() {
    let postgres = Postgres::start().patient();
    let database = &postgres.database;
    postgres.sql(&format!(
        "ALTER DATABASE {database} SET default_transaction_isolation = 'repeatable read'; \
         CREATE TABLE seen AS SELECT ''::text AS setting LIMIT 0"
    ));
    let mut owner = crate::backend::Owner::new(&postgres, 1);
    let rule = crate::backend::sliding(1, crate::backend::secs(10));
    owner.wait_settled().await;
    let first = smallvec::smallvec![crate::backend::term("x", &rule)];
    owner.take(first).await.unwrap();
    // The isolation of the transaction that writes is seen by a trigger.
    postgres.sql(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN INSERT INTO seen VALUES (current_setting('transaction_isolation')); RETURN NEW; END $$; \
         CREATE TRIGGER note AFTER INSERT OR UPDATE ON tollgate_rows FOR EACH ROW EXECUTE FUNCTION note()",
    );
    let second = smallvec::smallvec![crate::backend::term("y", &rule)];
    owner.take(second).await.unwrap();
    let seen = postgres.sql("SELECT DISTINCT setting FROM seen");
    assert_eq!(seen, "read committed");
}

/// The lease in the store was 5 s whatever `node_lease` said.
#[tokio::test]
async fn a_registration_lasts_as_long_as_configured() {
    let mut postgres = Postgres::start().patient();
    postgres.node_lease = crate::backend::secs(60);
    let mut owner = crate::backend::Owner::new(&postgres, 1);
    let rule = crate::backend::sliding(1, crate::backend::secs(10));
    let taken = smallvec::smallvec![crate::backend::term("x", &rule)];
    owner.take(taken).await.unwrap();
    let lease =
        "SELECT extract(epoch FROM lease_until - clock_timestamp())::int FROM tollgate_owners";
    // It registers beside the first requests.
    let mut seconds = postgres.sql(lease);
    while seconds.is_empty() {
        tokio::task::yield_now().await;
        seconds = postgres.sql(lease);
    }
    let seconds: i64 = seconds.parse().unwrap();
    assert!((50..=60).contains(&seconds), "{seconds} s");
}
