//! `tollgate import envoy-ratelimit`: every construct of that service's files.

use crate::folder::{CommandOutput, Folder};

/// Nested keys, values, prefixes, exemptions, shadow, shared counts and long units.
const FILE: &str = "domain: shop
descriptors:
- key: remote_address
  rate_limit: { unit: minute, requests_per_unit: 30 }
- key: remote_address
  value: 192.0.2.5
  rate_limit: { unit: second, requests_per_unit: 0 }
- key: remote_address
  value: 192.0.2.6
- key: kind
  value: 'mail: \"bulk\"'
  descriptors:
  - key: to
    detailed_metric: true
    rate_limit: { unit: DAY, requests_per_unit: 5, name: 'mails per day' }
  - key: to
    value: ops
    rate_limit: { unlimited: true }
- key: path
  value: /api/*
  rate_limit: { unit: hour, requests_per_unit: 100 }
  shadow_mode: true
- key: path
  value: /static/*
  share_threshold: true
  rate_limit: { unit: second, requests_per_unit: 9 }
- key: tenant
  rate_limit: { unit: month, requests_per_unit: 3000 }
";

fn import(name: &str, text: &str) -> (Folder, CommandOutput) {
    let folder = Folder::new(name).file("limits.yaml", text);
    let output = folder.run(&["import", "envoy-ratelimit", "limits.yaml"]);
    (folder, output)
}

#[test]
fn every_rule_becomes_a_guard_that_check_accepts() {
    let (folder, output) = import("import", FILE);
    assert_eq!(output.code, Some(0), "{}", output.err);
    let expected = r#"# From limits.yaml, domain shop, of envoyproxy/ratelimit.
# Set `domain: guards` in Envoy's rate limit filter, and start `tollgate serve --grpc ADDR`.
guards:
  remote_address: { limit: 30, period: 1m, by: name, match: { descriptor: { "remote_address": "*" } } }
  remote_address-192_0_2_5: { limit: 1, period: 1d, by: name, match: { descriptor: { "remote_address": "192.0.2.5" } } }
  remote_address-192_0_2_6: { limit: 1000000, period: 1s, by: name, shadow: true, match: { descriptor: { "remote_address": "192.0.2.6" } } }
  mails_per_day: { limit: 5, period: 1d, by: name, match: { descriptor: { "kind": "mail: \"bulk\"", "to": "*" } } }
  kind-mail___bulk_-to-ops: { limit: 1000000, period: 1s, by: name, shadow: true, match: { descriptor: { "kind": "mail: \"bulk\"", "to": "ops" } } }
  path-_api_: { limit: 100, period: 1h, by: name, shadow: true, match: { descriptor: { "path": "/api/*" } } }
  path-_static_: { limit: 9, period: 1s, by: global, match: { descriptor: { "path": "/static/*" } } }
  tenant: { limit: 100, period: 1d, burst: 3000, by: name, match: { descriptor: { "tenant": "*" } } }
"#;
    assert_eq!(output.out, expected);
    let lines: Vec<&str> = output.err.lines().collect();
    assert_eq!(lines.len(), 1, "{}", output.err);
    assert!(
        lines[0].starts_with("limits.yaml:5:3: warning: a limit of 0"),
        "{}",
        lines[0]
    );
    let folder = folder.file("tollgate.yaml", &output.out);
    let checked = folder.run(&["check", "tollgate.yaml"]);
    assert_eq!(checked.code, Some(0), "{}", checked.err);
    assert!(!checked.err.contains("warning"), "{}", checked.err);
}

#[test]
fn what_cannot_be_represented_is_named_with_its_place() {
    let rule = |head: &str, limit: &str| {
        format!("domain: d\ndescriptors:\n- key: a\n  {head}\n  rate_limit: {{ {limit} }}\n")
    };
    let five = "unit: second, requests_per_unit: 5";
    for (text, guards, expected) in [
        (
            rule("", &format!("{five}, replaces: [{{ name: b }}]")),
            1,
            "both limits apply",
        ),
        (
            rule("quota_mode: true", five),
            1,
            "`quota_mode` is not imported",
        ),
        (
            rule("value: '${HOME}'", five),
            0,
            "left out: a key or value has `${`",
        ),
        (
            rule("", "unit: year, requests_per_unit: 100"),
            0,
            "less than one request per day",
        ),
        (
            rule("", "unit: week, requests_per_unit: 100"),
            1,
            "rounded down",
        ),
        (
            rule(
                "descriptors: [{ key: a, rate_limit: { unit: day, requests_per_unit: 1 } }]",
                five,
            ),
            1,
            "a key stands twice",
        ),
        (
            format!(
                "domain: d\ndescriptors:\n- {{ key: a, value: x, rate_limit: {{ {five} }} }}\n\
                 - {{ key: a, descriptors: [{{ key: b, rate_limit: {{ {five} }} }}] }}\n"
            ),
            2,
            "also apply to this value",
        ),
    ] {
        let (_, output) = import("import-differs", &text);
        assert_eq!(output.code, Some(0), "{text}\n{}", output.err);
        assert!(output.err.contains(expected), "{expected}\n{}", output.err);
        assert!(output.err.starts_with("limits.yaml:"), "{}", output.err);
        let written = output
            .out
            .lines()
            .filter(|line| line.contains("{ limit"))
            .count();
        assert_eq!(written, guards, "{}", output.out);
    }
}

#[test]
fn a_file_that_the_service_would_reject_is_an_error() {
    let rule =
        |limit: &str| format!("domain: d\ndescriptors: [{{ key: a, rate_limit: {limit} }}]\n");
    for (text, expected) in [
        ("descriptors: []\n".to_owned(), "`domain` is missing"),
        (
            "domain: d\ndescriptors: [{ value: x }]\n".to_owned(),
            "no `key`",
        ),
        (
            "domain: d\ndescriptors: 7\n".to_owned(),
            "`descriptors` is no list",
        ),
        ("domain: d\ndescriptors: [7]\n".to_owned(), "is no block"),
        ("domain: d\nrules: []\n".to_owned(), "the field is unknown"),
        (rule("{ unit: second, limit: 5 }"), "the field is unknown"),
        (
            rule("{ unit: fortnight, requests_per_unit: 5 }"),
            "`unit` is none of",
        ),
        (
            rule("{ unit: second, requests_per_unit: -5 }"),
            "is no number",
        ),
        ("domain: [".to_owned(), "limits.yaml"),
    ] {
        let (_, output) = import("import-wrong", &text);
        assert_eq!(output.code, Some(1), "{text}\n{}", output.out);
        assert!(output.err.contains(expected), "{expected}\n{}", output.err);
        assert!(output.out.is_empty(), "{}", output.out);
    }
}

/// Names that collide with numbered ones, that YAML reads as something else, and characters that a file cannot hold.
#[test]
fn whatever_the_names_and_values_are_check_accepts_the_guards() {
    let mut text = "domain: \"d\\u2028\\uFEFF\"\ndescriptors:\n".to_owned();
    let limit = "unit: minute, requests_per_unit: 5";
    for (number, name) in ["r", "r", "r-2", "r", "r-3"].iter().enumerate() {
        text.push_str(&format!(
            "- {{ key: k{number}, rate_limit: {{ {limit}, name: {name} }} }}\n"
        ));
    }
    let odd = [
        "null",
        "~",
        "True",
        "no",
        "N",
        "-",
        "---",
        "123",
        "1e5",
        "0x1F",
        "1_000",
        "-n",
        "?",
        "<<",
        "_",
        "task",
        "a#b",
        "\\u0085\\u2028 \\x7f",
        "\\0\\t\\uFEFF\\uFFFE",
    ];
    for key in odd {
        text.push_str(&format!(
            "- {{ key: \"{key}\", value: \"{key}\", rate_limit: {{ {limit} }} }}\n"
        ));
    }
    let (folder, output) = import("import-odd", &text);
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert_eq!(output.out.matches("{ limit").count(), 5 + odd.len());
    assert!(!output.out.contains("  task:"), "{}", output.out);
    let folder = folder.file("tollgate.yaml", &output.out);
    let checked = folder.run(&["check", "tollgate.yaml"]);
    assert_eq!(checked.code, Some(0), "{}\n{}", checked.err, output.out);
}

#[test]
fn true_and_false_are_read_as_the_service_reads_them() {
    let rule = |flags: &str| {
        let limit = "rate_limit: { unit: second, requests_per_unit: 5 }";
        format!("domain: d\ndescriptors: [{{ key: a, {flags}, {limit} }}]\n")
    };
    for word in ["true", "True", "TRUE", "yes", "on"] {
        let (_, output) = import("import-true", &rule(&format!("shadow_mode: {word}")));
        assert!(
            output.out.contains("shadow: true"),
            "{word}: {}",
            output.out
        );
        let (_, output) = import("import-true", &rule(&format!("share_threshold: {word}")));
        assert!(output.out.contains("by: global"), "{word}: {}", output.out);
    }
    let (_, output) = import(
        "import-false",
        &rule("shadow_mode: No, share_threshold: off"),
    );
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert!(!output.out.contains("shadow: true") && output.out.contains("by: name"));
    let (_, output) = import("import-neither", &rule("shadow_mode: maybe"));
    assert_eq!(output.code, Some(1), "{}", output.out);
    assert!(
        output.err.contains("neither true nor false"),
        "{}",
        output.err
    );
}

/// Several files are one domain here; an existing file is not overwritten.
#[test]
fn several_files_become_one_new_file() {
    let text = |domain: &str, key: &str| {
        format!(
            "domain: {domain}\ndescriptors: [{{ key: {key}, rate_limit: {{ unit: hour, requests_per_unit: 7 }} }}]\n"
        )
    };
    let folder = Folder::new("import-out")
        .file("a.yaml", &text("a", "user"))
        .file("b.yaml", &text("b", "user"));
    let args = [
        "import",
        "envoy-ratelimit",
        "a.yaml",
        "b.yaml",
        "--out",
        "tollgate.yaml",
    ];
    let output = folder.run(&args);
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert!(
        output.err.contains("another rule has the same descriptors"),
        "{}",
        output.err
    );
    assert!(
        output.out.starts_with("wrote tollgate.yaml"),
        "{}",
        output.out
    );
    let written = std::fs::read_to_string(folder.path().join("tollgate.yaml")).expect("a file");
    assert!(
        written.contains("  user: {") && written.contains("  user-2: {"),
        "{written}"
    );
    let checked = folder.run(&["check", "tollgate.yaml"]);
    assert_eq!(checked.code, Some(0), "{}", checked.err);
    let again = folder.run(&args);
    assert_eq!(again.code, Some(1));
    assert!(
        again.err.contains("choose a file that does not exist"),
        "{}",
        again.err
    );
}
