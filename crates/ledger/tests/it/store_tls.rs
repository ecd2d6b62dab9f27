//! TLS to real servers: a certificate that the host trusts is accepted, and no other one. A child process
//! trusts what its environment names.

use std::path::Path;
use std::process::Command;

use tollgate_sim::test_servers::{Certificate, PostgresServer, RedisServer};

use crate::child::Worker;

/// What a process gets that trusts this certificate: a permit, or why not.
fn outcome_of(url: &str, trusted: &Certificate) -> String {
    let mut environment = Command::new("env");
    environment.arg(format!("SSL_CERT_FILE={}", trusted.path().display()));
    let mut child = Worker::start_under(environment, "connect", Path::new(url), "");
    child.next().unwrap().0
}

/// By the address that clients use, by another name, and one of somebody else.
struct Certificates {
    own: Certificate,
    of_other_host: Certificate,
    of_somebody_else: Certificate,
}

impl Certificates {
    fn new() -> Certificates {
        Certificates {
            own: Certificate::for_host("127.0.0.1"),
            of_other_host: Certificate::for_host("other.example"),
            of_somebody_else: Certificate::for_host("127.0.0.1"),
        }
    }
}

fn assert_rejected(why: &str) {
    assert!(why.contains("certificate"), "{why}");
}

#[test]
fn a_redis_is_used_over_tls_and_only_with_its_certificate() {
    let certificates = Certificates::new();
    let redis = RedisServer::start_with_tls(&certificates.own);
    let url = redis.tls_url();
    assert_eq!(outcome_of(&url, &certificates.own), "granted");
    assert_rejected(&outcome_of(&url, &certificates.of_somebody_else));
    let other = RedisServer::start_with_tls(&certificates.of_other_host);
    assert_rejected(&outcome_of(&other.tls_url(), &certificates.of_other_host));
}

#[test]
fn a_postgres_is_used_over_tls_and_only_with_its_certificate() {
    let certificates = Certificates::new();
    let server = PostgresServer::start_with_tls(&certificates.own);
    // Whoever comes without TLS is sent away: the address asks for it, so nothing goes in the clear.
    let url = server.tls_url("postgres");
    server.require_tls();
    assert_eq!(outcome_of(&url, &certificates.own), "granted");
    let in_the_clear = outcome_of(&server.url("postgres"), &certificates.own);
    assert!(in_the_clear.contains("no encryption"), "{in_the_clear}");
    assert_rejected(&outcome_of(&url, &certificates.of_somebody_else));
    let other = PostgresServer::start_with_tls(&certificates.of_other_host);
    assert_rejected(&outcome_of(
        &other.tls_url("postgres"),
        &certificates.of_other_host,
    ));
}

/// A server without TLS is not used in the clear by an address that asks for TLS.
#[test]
fn a_server_without_tls_is_not_used_by_an_address_that_asks_for_it() {
    let certificate = Certificate::for_host("127.0.0.1");
    let redis = RedisServer::start(&[]);
    let url = format!("rediss://{}", redis.address());
    assert_ne!(outcome_of(&url, &certificate), "granted");
    let postgres = PostgresServer::start(&[]);
    assert_ne!(
        outcome_of(&postgres.tls_url("postgres"), &certificate),
        "granted"
    );
}
