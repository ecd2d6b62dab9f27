//! Every block on our pages is run by a test, or stands in a short list with the reason why not; every
//! `cargo test` command selects a test.
//!
//! Promises: a new block fails this rule until a test that runs it is named here, whatever its language: code that is
//! called `text` is code. A named test exists and reads the page.
//!
//! Never: runs a block. The named tests do.

use crate::tokens::{functions, parse};
use crate::tree::{Source, Violation, assert_clean, tree};

/// Blocks of a page in one language, and the test that runs all of them.
struct RunBlocks {
    page: &'static str,
    language: &'static str,
    blocks: usize,
    /// `path/to/file.rs::test`; `path/to/file.rs` for documentation tests.
    test: &'static str,
}

/// A block that no test runs: its page, its first line, and the reason.
struct NotRun(&'static str, &'static str, &'static str);

const fn run(
    page: &'static str,
    language: &'static str,
    blocks: usize,
    test: &'static str,
) -> RunBlocks {
    RunBlocks {
        page,
        language,
        blocks,
        test,
    }
}

const LOADED: &str = "crates/config/tests/it/docs.rs::the_examples_of_the_recipes_load";

macro_rules! commands {
    ($test:literal) => {
        concat!("crates/cli/tests/it/documented_commands.rs::", $test)
    };
}

macro_rules! clients {
    ($test:literal) => {
        concat!("crates/cli/tests/it/documented_clients.rs::", $test)
    };
}

macro_rules! integrations {
    ($test:literal) => {
        concat!("crates/cli/tests/it/integrations.rs::", $test)
    };
}

/// Lines of these blocks that are not run are in `NOT_RUN_HERE` of `documented_commands.rs`.
#[rustfmt::skip]
const RUN: &[RunBlocks] = &[
    run("README.md", "sh", 4, commands!("every_command_of_the_readme_works")),
    run("README.md", "yaml", 1, LOADED),
    run("clients/python/README.md", "python", 1, "clients/python/tests/test_first_minutes.py::test_the_quickstart_of_the_readme_runs_in_a_fresh_environment"),
    run("docs/admin.md", "json", 1, "crates/server/tests/it/alerts.rs::s10_an_alert_is_sent_once_when_it_begins_and_once_when_it_ends"),
    run("docs/admin.md", "sh", 1, commands!("every_command_of_the_admin_page_works")),
    run("docs/configuration.md", "sh", 1, commands!("every_command_of_the_configuration_page_works")),
    run("docs/configuration.md", "yaml", 3, "crates/config/tests/it/docs.rs::the_examples_of_the_configuration_page_load_and_name_every_field"),
    run("docs/configuration.md", "yaml", 2, commands!("every_source_file_of_the_configuration_page_is_accepted")),
    run("docs/dialects.md", "console", 1, clients!("the_commands_of_the_page_about_dialects_work")),
    run("docs/guide.md", "sh", 13, "crates/cli/tests/it/guide.rs::every_command_of_the_guide_works"),
    run("docs/http.md", "json", 1, clients!("the_examples_of_output_have_the_fields_of_real_output")),
    run("docs/integrations.md", "caddy", 1, "crates/cli/tests/it/callers.rs::caddy_asks_before_it_forwards"),
    run("docs/integrations.md", "js", 1, integrations!("the_javascript_snippet_does_what_the_page_says")),
    run("docs/integrations.md", "json", 1, clients!("the_examples_of_output_have_the_fields_of_real_output")),
    run("docs/integrations.md", "nginx", 1, integrations!("nginx_asks_before_it_forwards")),
    run("docs/integrations.md", "provider", 1, integrations!("every_shell_snippet_does_what_the_page_says")),
    run("docs/integrations.md", "python", 1, integrations!("the_python_snippet_does_what_the_page_says")),
    run("docs/integrations.md", "python", 1, "crates/cli/tests/it/callers.rs::the_python_snippet_makes_a_call_under_a_permit"),
    run("docs/integrations.md", "sh", 9, integrations!("every_shell_snippet_does_what_the_page_says")),
    run("docs/integrations.md", "yaml", 1, "crates/cli/tests/it/traefik.rs::traefik_asks_before_it_forwards"),
    run("docs/integrations.md", "yaml", 3, "crates/cli/tests/it/envoy.rs::envoy_asks_guards_before_it_forwards"),
    run("docs/libraries.md", "python", 7, "clients/python/tests/test_first_minutes.py::test_every_snippet_of_the_page_runs"),
    run("docs/libraries.md", "rust", 5, "crates/tollgate/src/lib.rs"),
    run("docs/llm.md", "python", 3, "crates/cli/tests/it/llm_guide.rs::every_program_of_the_page_runs"),
    run("docs/llm.md", "sh", 2, clients!("the_commands_of_the_page_about_language_models_work")),
    run("docs/llm.md", "yaml", 2, "crates/cli/tests/it/llm_guide.rs::every_file_of_the_page_is_valid"),
    run("docs/many-hosts.md", "sh", 1, commands!("every_command_of_the_page_about_many_hosts_works")),
    run("docs/many-hosts.md", "yaml", 2, LOADED),
    run("docs/migration.md", "python", 2, commands!("the_python_blocks_of_the_migration_page_run")),
    run("docs/migration.md", "python", 1, commands!("the_counterpart_of_pythons_limiters_on_the_migration_page_runs")),
    run("docs/migration.md", "yaml", 5, LOADED),
    run("docs/migration.md", "nginx", 1, commands!("nginx_accepts_its_block_of_the_migration_page")),
    run("docs/operating.md", "sh", 8, "crates/cli/tests/it/operating_page.rs::s15_every_command_of_the_operating_page_works"),
    run("docs/presets.md", "sh", 11, commands!("every_recipe_of_a_preset_works")),
    run("docs/presets.md", "yaml", 11, LOADED),
    run("docs/providers.md", "yaml", 5, "crates/config/tests/it/docs.rs::the_examples_of_the_documentation_load"),
    run("docs/recipes.md", "sh", 5, commands!("every_command_of_the_recipes_works")),
    run("docs/recipes.md", "yaml", 2, LOADED),
    run("examples/inbound/README.md", "sh", 1, "crates/cli/tests/it/profiles.rs::every_line_of_the_inbound_document_holds"),
    run("examples/inbound/README.md", "sh", 1, clients!("the_commands_of_the_inbound_profile_start_its_service_and_its_worker")),
    run("examples/media/README.md", "sh", 1, "crates/cli/tests/it/profiles.rs::every_line_of_the_media_document_holds"),
    run("examples/pipeline/README.md", "sh", 1, "crates/cli/tests/it/profiles.rs::every_line_of_the_pipeline_document_holds"),
    run("examples/resilient-cli/README.md", "sh", 1, "crates/cli/tests/it/profiles.rs::every_line_of_the_resilient_cli_document_holds"),
    run("examples/resilient-cli/README.md", "sh", 1, clients!("the_commands_of_the_resilient_cli_profile_work")),
    run("examples/sports/README.md", "sh", 1, "crates/cli/tests/it/profiles.rs::every_line_of_the_sports_document_holds"),
];

#[rustfmt::skip]
const NOT_RUN: &[NotRun] = &[
    NotRun("ARCHITECTURE.md", "core ← ledger ←", "a picture: which crate may use which; crates/tidy checks it"),
    NotRun("ARCHITECTURE.md", "fn turn(cells", "a signature to read; the function itself is compiled"),
    NotRun("ARCHITECTURE.md", "caller ─► route ─► cache", "a picture: the path of a call"),
    NotRun("CONTRIBUTING.md", "make test", "this test is a part of it"),
    NotRun("docs/benchmarks.md", "cargo build --release --locked -p tollgate-cli", "minutes of release build and measurement: `make bench`"),
    NotRun("docs/benchmarks.md", "cargo build --profile symbols --locked -p tollgate-cli", "the same"),
    NotRun("docs/benchmarks.md", "cargo run --release --manifest-path benches/decision", "the same"),
    NotRun("docs/benchmarks.md", "cargo run --release --locked -p tollgate-ledger", "the same"),
    NotRun("docs/benchmarks.md", "node benches/cache-tests/run.mjs", "the same"),
    NotRun("docs/configuration.md", "ts lvl comp state event", "the keys of a log line; `a16_a_line_of_the_rate_limiter_has_every_key_in_order` has them too"),
    NotRun("docs/guide.md", "your program ─► Tollgate", "a picture: what happens to a call"),
    NotRun("docs/guide.md", "cargo build --release -p tollgate-cli", "a release build; the test of the guide uses the programs under test"),
    NotRun("docs/migration.md", "let limiter = RateLimiter", "another tool's code, to recognize one's own; the file below it is loaded"),
    NotRun("docs/migration.md", "const limiter = new Bottleneck", "the same"),
];

/// A block of code.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    line: usize,
    language: String,
    first: String,
}

fn is_page(source: &Source) -> bool {
    let path = source.path.as_str();
    let is_doc = path.starts_with("docs/") && path.matches('/').count() == 1;
    let is_top = ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"].contains(&path);
    let is_readme = path.starts_with("examples/") || path.starts_with("clients/");
    path.ends_with(".md") && (is_top || is_doc || (is_readme && path.ends_with("/README.md")))
}

/// The blocks of a page, pictures and lists among them.
fn blocks(page: &Source) -> Vec<Block> {
    let (mut found, mut open) = (Vec::new(), None);
    let mut lines = page.text.lines().enumerate().peekable();
    while let Some((index, line)) = lines.next() {
        let Some(fence) = line.trim_start().strip_prefix("```") else {
            continue;
        };
        if open.take().is_some() {
            continue;
        }
        open = Some(());
        let language = fence.split(',').next().unwrap_or_default().to_owned();
        let first = lines.peek().map(|(_, first)| first.trim().to_owned());
        found.push(Block {
            line: index + 1,
            language,
            first: first.unwrap_or_default(),
        });
    }
    found
}

fn violations(sources: &[Source], run: &[RunBlocks], not_run: &[NotRun]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for page in sources.iter().filter(|source| is_page(source)) {
        let of_page = |one: &&NotRun| one.0 == page.path;
        let excepted: Vec<&NotRun> = not_run.iter().filter(of_page).collect();
        let (left_out, mut code): (Vec<Block>, Vec<Block>) = blocks(page)
            .into_iter()
            .partition(|block| excepted.iter().any(|one| block.first.starts_with(one.1)));
        if left_out.len() != excepted.len() {
            let what = format!(
                "{} blocks are excepted, {} found",
                excepted.len(),
                left_out.len()
            );
            violations.push(page.violation(1, what, "correct NOT_RUN in crates/tidy"));
        }
        for one in run.iter().filter(|one| one.page == page.path) {
            let of_language = |block: &Block| block.language == one.language;
            for _ in 0..one.blocks {
                match code.iter().position(of_language) {
                    Some(at) => drop(code.remove(at)),
                    None => violations.push(missing_block(page, one)),
                }
            }
            if let Err(why) = runs_the_page(one, sources) {
                let what = format!("`{}` {why}", one.test);
                violations.push(page.violation(1, what, "name the test that runs the blocks"));
            }
        }
        for block in code {
            let what = format!("`{}` block that no test runs", block.language);
            let remedy = "run it in a test and name the test in crates/tidy/tests/it/snippets.rs";
            violations.push(page.violation(block.line, what, remedy));
        }
    }
    for one in not_run.iter().filter(|one| one.2.is_empty()) {
        let page = Source::fixture(one.0, "");
        violations.push(page.violation(1, format!("`{}` has no reason", one.1), "say why"));
    }
    let pages: Vec<&str> = sources.iter().map(|source| source.path.as_str()).collect();
    let named = run
        .iter()
        .map(|one| one.page)
        .chain(not_run.iter().map(|one| one.0));
    for page in named.filter(|page| !pages.contains(page)) {
        let missing = Source::fixture(page, "");
        violations.push(missing.violation(1, "has no such page".to_owned(), "correct the list"));
    }
    violations
}

fn missing_block(page: &Source, one: &RunBlocks) -> Violation {
    let what = format!("fewer `{}` blocks than {} runs", one.language, one.test);
    page.violation(
        1,
        what,
        "correct the number in crates/tidy/tests/it/snippets.rs",
    )
}

/// The named test exists, and its file reads the page.
fn runs_the_page(one: &RunBlocks, sources: &[Source]) -> Result<(), &'static str> {
    let (path, test) = one.test.split_once("::").unwrap_or((one.test, ""));
    let file = sources.iter().find(|source| source.path == path);
    let file = file.ok_or("is in no file")?;
    let is_test = match file.is_rust() {
        true => has_test(file, test)?,
        false => file.text.contains(&format!("def {test}(")),
    };
    if !test.is_empty() && !is_test {
        return Err("does not exist");
    }
    // A profile's `run` is its page's block; its test names the folder.
    let name = match one.page.strip_suffix("/README.md") {
        Some(folder) => folder.rsplit('/').next().unwrap_or(folder),
        None => one.page.rsplit('/').next().unwrap_or(one.page),
    };
    match file.text.contains(name) {
        true => Ok(()),
        false => Err("does not read this page"),
    }
}

fn has_test(file: &Source, test: &str) -> Result<bool, &'static str> {
    let stream = parse(file).map_err(|_| "is in a file that is not Rust")?;
    let mut all = functions(stream).into_iter();
    Ok(all.any(|function| function.is_test && function.name == test))
}

/// `cargo test -p PACKAGE [--test it | --lib] FILTER` in a line of a page, without the options.
fn test_commands(line: &str) -> Vec<(&str, &str)> {
    let commands = line.split("cargo test -p ").skip(1);
    let read = commands.filter_map(|rest| {
        let command = rest.split('`').next()?;
        let mut words = command.split(" -- ").next()?.split_whitespace();
        let package = words.next()?;
        let mut filter =
            words.filter(|word| !word.starts_with('-') && *word != "it" && *word != "failpoints");
        Some((package, filter.next_back().unwrap_or_default()))
    });
    read.collect()
}

/// The folder of a package in this workspace.
fn folder_of(package: &str) -> String {
    let name = package.strip_prefix("tollgate-").unwrap_or(package);
    format!("crates/{name}/")
}

/// cargo succeeds if a filter selects nothing, so a command with a wrong name looks as if it had passed.
fn selects_a_test(package: &str, filter: &str, sources: &[Source]) -> bool {
    let folder = folder_of(package);
    let files = sources
        .iter()
        .filter(|source| source.is_rust() && source.path.starts_with(&folder));
    let mut paths = files.filter_map(|file| {
        let module = file.path.strip_prefix(&folder)?.strip_suffix(".rs")?;
        let module = module.replace('/', "::");
        let tests = functions(parse(file).ok()?)
            .into_iter()
            .filter(|function| function.is_test);
        let names = tests.map(|test| format!("{module}::{}", test.name));
        // A macro that defines the tests of a suite.
        let suite = file
            .text
            .contains("conformance!(each ")
            .then_some(module.clone());
        names
            .chain(suite)
            .any(|name| name.contains(filter))
            .then_some(())
    });
    paths.next().is_some()
}

fn command_violations(sources: &[Source]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for page in sources.iter().filter(|source| is_page(source)) {
        for (index, line) in page.text.lines().enumerate() {
            for (package, filter) in test_commands(line) {
                if !selects_a_test(package, filter, sources) {
                    let what = format!("`cargo test -p {package}` with `{filter}` selects no test");
                    violations.push(page.violation(index + 1, what, "correct the command"));
                }
            }
        }
    }
    violations
}

#[test]
fn every_block_of_code_on_a_page_is_run_by_a_test() {
    assert_clean(&violations(tree(), RUN, NOT_RUN));
}

#[test]
fn every_documented_test_command_selects_a_test() {
    assert_clean(&command_violations(tree()));
}

#[test]
fn a_new_block_a_missing_block_and_a_wrong_test_are_found() {
    let page = "a\n```sh\nls\n```\n```text\n─► cache\n```\n```sh\nnew\n```\n```js\nold()\n```\n";
    let test = "// docs/a.md\n#[test]\nfn runs_it() {}\nfn helper() {}\n";
    let sources = [
        Source::fixture("docs/a.md", page),
        Source::fixture("t.rs", test),
    ];
    let except = [
        NotRun("docs/a.md", "old()", "another tool's code"),
        NotRun("docs/a.md", "─►", "a picture"),
    ];
    let of = |run: &[RunBlocks]| {
        let found = violations(&sources, run, &except);
        found.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(
        of(&[run("docs/a.md", "sh", 2, "t.rs::runs_it")]),
        Vec::<String>::new()
    );
    let found = of(&[run("docs/a.md", "sh", 1, "t.rs::helper")]);
    assert!(
        found[0].contains("`t.rs::helper` does not exist"),
        "{found:?}"
    );
    assert!(
        found[1].starts_with("docs/a.md:8: `sh` block that no test runs"),
        "{found:?}"
    );
    let found = of(&[
        run("docs/a.md", "sh", 3, "t.rs::runs_it"),
        run("docs/b.md", "sh", 1, "t.rs::runs_it"),
    ]);
    assert!(found[0].contains("fewer `sh` blocks"), "{found:?}");
    assert!(
        found[1].contains("docs/b.md:1: has no such page"),
        "{found:?}"
    );
    let found = violations(&sources, &[], &[NotRun("docs/a.md", "gone", "")]);
    assert!(
        found[0].what.contains("1 blocks are excepted, 0 found"),
        "{found:?}"
    );
}

/// A source file was `text` once, so nothing loaded it, and nobody who pasted it could.
#[test]
fn code_that_is_called_text_is_found() {
    let page = "```text\nname: news\nevery: 5m\n```\n";
    let sources = [Source::fixture("docs/a.md", page)];
    let found = violations(&sources, &[], &[]);
    assert_eq!(found.len(), 1, "{found:?}");
    let what = found[0].to_string();
    assert!(
        what.starts_with("docs/a.md:1: `text` block that no test runs"),
        "{what}"
    );
}

#[test]
fn a_command_that_selects_no_test_is_found() {
    let page = "`cargo test -p tollgate-x --test it kills` and `KILLS=2 cargo test -p tollgate-x --test it nothing -- --nocapture`\n";
    let test = "#[test]\nfn it_kills() {}\n";
    let sources = [
        Source::fixture("docs/a.md", page),
        Source::fixture("crates/x/tests/it/a.rs", test),
    ];
    let found = command_violations(&sources);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].what.contains("`nothing`"), "{found:?}");
}
