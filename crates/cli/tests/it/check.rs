//! `tollgate check`: positions, fixes, guarantees, exit codes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};

use insta::assert_snapshot;

use crate::folder::Folder;

/// H1: the pipeline document's files are valid, and `check` prints the guarantee of each limit.
#[test]
fn h1_check_accepts_the_documents_files_and_prints_each_limits_promise() {
    let folder = Folder::new("h1")
        .file("dir/fmp.yaml", "domain: financialmodelingprep.com\nlimit: 300\nperiod: 1m\napi_key: your_fmp_api_key_here\n")
        .file("dir/yahoo.yaml", "domain: finance.yahoo.com\nlimit: 2000\nperiod: 1h\nalgorithm: fixed-window\n");
    assert_snapshot!(folder.run(&["check", "dir"]).to_snapshot());
}

/// All problems at once; errors end with exit code 1.
#[test]
fn check_prints_every_problem_with_place_and_fix_and_fails_on_errors() {
    let folder = Folder::new("problems")
        .file(
            "a.yaml",
            "domain: a.example.org\nlimt: 5\nperiod: 10\nhealth: { p_throtle: 1 }\n",
        )
        .file("b.yaml", "preset: tmbd\n")
        .file("c.yaml", "limit: [5\n");
    assert_snapshot!(
        folder
            .run(&["check", "a.yaml", "b.yaml", "c.yaml", "d.yaml"])
            .to_snapshot()
    );
}

/// A tollgate.yaml is recognised by its name or its fields; its providers are checked with it.
#[test]
fn check_reads_a_whole_configuration_and_reports_clashes() {
    let folder = Folder::new("whole")
        .file(
            "etc/main.yaml",
            "store: \"memory:\"\nproviders: providers\nguards: { ip: { limit: 10, period: 1m } }\n",
        )
        .file(
            "etc/providers/a.yaml",
            "domain: a.example.org\nlimits: [{ limit: 35, period: 1s, algorithm: token-bucket }]\n",
        )
        .file(
            "etc/providers/b.yaml",
            "domain: A.example.org\nlimits: [1/1s]\n",
        );
    assert_snapshot!(folder.run(&["check", "etc/main.yaml"]).to_snapshot());
}

/// A configuration of another name with guards only was taken for a provider file: so was the file that
/// `import` had written.
#[test]
fn a_configuration_is_recognised_by_its_guards() {
    let guards = "guards: { ip: { limit: 10, period: 1m } }\n";
    let folder = Folder::new("guards-only")
        .file("g.yaml", guards)
        .file("l.yaml", "listen: 127.0.0.1:4290\n")
        .file(
            "p.yaml",
            "guards: [ip]\nlisten: 127.0.0.1:4301\nupstream: http://127.0.0.1:8000\n",
        );
    for (file, providers) in [("g.yaml", "0 providers"), ("l.yaml", "0 providers")] {
        let checked = folder.run(&["check", file]);
        assert_eq!(checked.code, Some(0), "{file}: {}", checked.err);
        assert!(checked.out.contains(providers), "{file}: {}", checked.out);
    }
    let provider = folder.run(&["check", "p.yaml"]);
    assert!(provider.err.contains("p.yaml:1:"), "{}", provider.err);
}

/// Warnings and notes do not fail; without a name it checks what `serve` would load here.
#[test]
fn check_without_a_name_checks_what_serve_would_load() {
    let folder = Folder::new("here")
        .file("tollgate.yaml", "providers: { mine: { domain: a.example.org, limits: [{ limit: 9, period: day, algorithm: calendar }], api_key: x, concurrency: 2 } }\n")
        .env("TOLLGATE_MINE_SLEPP_MAX", "5")
        .env("TOLLGATE_MINE_SLEEP_MAX", "50");
    assert_snapshot!(folder.run(&["check"]).to_snapshot());
    assert_eq!(folder.run(&["check", "--nonsense"]).code, Some(2));
}

/// Without any file it said `0 providers, 0 errors, 0 warnings`, which looks like a success.
#[test]
fn check_without_any_file_says_what_is_missing_and_how_to_get_it() {
    let nothing = Folder::new("nothing").run(&["check"]);
    let expected = "\
nothing to check: there is no ./tollgate.yaml, and no file was named; `tollgate serve` would run with the limits of the built-in presets only
  `tollgate init tmdb` writes a tollgate.yaml; `tollgate check FILE` checks any file
0 providers, 0 errors, 0 warnings
";
    assert_eq!((nothing.code, nothing.out.as_str()), (Some(0), expected));
    let empty = Folder::new("empty").file("tollgate.yaml", "presets: off\n");
    let empty = empty.run(&["check"]);
    let expected = "nothing to check: tollgate.yaml configures no provider; `tollgate serve` would run without limits\n";
    assert!(empty.out.starts_with(expected), "{}", empty.to_snapshot());
}

/// `check` said nothing about limits that are learned, so such a provider looked as if it had none.
#[test]
fn check_says_what_holds_for_learned_limits() {
    for (preset, line) in [
        (
            "openai",
            "  requests, tokens: learned from responses, per key and entity; one call at a time before the first response, then never more than responses have stated\n",
        ),
        (
            "x",
            "  no limit: calls slow down only after a 429; add `limits:` for a guarantee\n",
        ),
    ] {
        let file = format!("preset: {preset}\napi_key: key\n");
        let checked = Folder::new("learned")
            .file("mine.yaml", &file)
            .run(&["check", "mine.yaml"]);
        assert!(checked.out.contains(line), "{}", checked.to_snapshot());
    }
    let stated = Folder::new("stated").file("a.yaml", "preset: tmdb\napi_key: key\n");
    let stated = stated.run(&["check", "a.yaml"]);
    assert!(!stated.out.contains("learned"), "{}", stated.to_snapshot());
}

/// A provider that serves one connection per response.
fn provider(responses: Vec<String>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for response in responses {
            let (mut stream, _) = listener.accept().unwrap();
            let mut read = [0; 4096];
            let got = stream.read(&mut read).unwrap();
            assert!(read[..got].starts_with(b"HEAD / "), "one cheap request");
            stream.write_all(response.as_bytes()).unwrap();
        }
    });
    address
}

/// Ports, store, clock and keys are tested, each reported with a fix; no output shows the key.
#[test]
fn check_live_tries_ports_store_clock_and_keys() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let old = "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
    let close = "Content-Length: 0\r\nConnection: close\r\n";
    let rejecting = provider(vec![format!("HTTP/1.1 401 No\r\n{old}{close}\r\n")]);
    let fine = provider(vec![format!("HTTP/1.1 204 Fine\r\n{close}\r\n")]);
    let folder = Folder::new("live").file(
        "tollgate.yaml",
        &format!(
            "listen: {}\nadmin: {{listen: '127.0.0.1:0'}}\nstore: 'sqlite:state'\nproviders:\n  shut: {{upstream: 'http://{rejecting}', limits: [1/1s], api_key: CANARY, auth: {{header: X-Key}}}}\n  open: {{upstream: 'http://{fine}', limits: [1/1s]}}\n  gone: {{upstream: 'http://127.0.0.1:1', limits: [1/1s], retry: {{retries: {{high: 0, normal: 0, low: 0}}}}}}\n",
            taken.local_addr().unwrap()
        ),
    );
    let output = folder.run(&["check", "--live"]);
    assert_eq!(output.code, Some(1), "{}", output.to_snapshot());
    for line in [
        "port: the gateway's address",
        "shut: the key is rejected (401)",
        "clock: this machine is",
        "gone: no response",
    ] {
        assert!(
            output.err.contains(&format!("error: {line}")),
            "{line}: {}",
            output.to_snapshot()
        );
    }
    for line in [
        "store: can be opened",
        "open: responds (204)",
        "3 providers, 4 errors",
    ] {
        assert!(
            output.out.contains(line),
            "{line}: {}",
            output.to_snapshot()
        );
    }
    assert!(!output.to_snapshot().contains("CANARY"));
    let still = folder.run(&["check"]);
    assert_eq!(
        still.code,
        Some(0),
        "without --live nothing is tested: {}",
        still.to_snapshot()
    );
}

/// A store that cannot be opened is not reported as "can be opened and written".
#[test]
fn check_live_reports_why_a_store_cannot_be_opened() {
    let garbage = "no database, but long enough".repeat(99);
    let folder = Folder::new("live-store")
        .file("state/ledger.db", &garbage)
        .file(
            "tollgate.yaml",
            "listen: '127.0.0.1:0'\nadmin: {listen: '127.0.0.1:0'}\nstore: 'sqlite:state'\n",
        );
    let output = folder.run(&["check", "--live"]);
    assert_eq!(output.code, Some(1), "{}", output.to_snapshot());
    let line = output
        .err
        .lines()
        .find(|line| line.contains("error: store: "));
    assert!(
        line.is_some_and(|line| line.contains("damaged")),
        "{}",
        output.to_snapshot()
    );
    assert!(
        !output.to_snapshot().contains("opened and written"),
        "{}",
        output.to_snapshot()
    );
}
