//! `tollgate check`: the problems of the configuration, and what its limits guarantee.
//!
//! Promises: every problem at once with file, line, column and remedy, on standard error; exit code
//! 1 if there is an error, warnings do not fail. Standard output says what each limit of a valid
//! file guarantees at the provider.
//!
//! Never: opens a store or makes a call, except with `--live`.

mod live;

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use tollgate_config::config::CONFIG;
use tollgate_config::guarantee::{assumption, guarantee, learned_guarantee, store_assumption};
use tollgate_config::preset::limit_in_words;
use tollgate_config::{
    Config, Level, Loaded, PathKind, Problems, Sources, check, disk, raw, shape,
};

use crate::options::Options;
use live::Finding;

const EXAMPLES: &str = "\
Examples:
  tollgate check tmdb.yaml
  tollgate check /etc/tollgate
  tollgate check                 # what `tollgate serve` would load here
  tollgate check --live          # also ports, store, clock, and one call to each provider";

/// Check the configuration and show what each limit guarantees
///
/// Prints every problem with file, line, column and a remedy. Without FILE|DIR, checks what
/// `tollgate serve` would load with the same options. Exit code 1 if there is an error; warnings
/// and notes do not change the exit code.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = EXAMPLES)]
pub(crate) struct Check {
    /// Provider files, tollgate.yaml, or folders
    #[arg(value_name = "FILE|DIR")]
    paths: Vec<String>,

    /// Also check ports, store, clock and keys; sends one HEAD call to each provider
    #[arg(long)]
    live: bool,

    #[command(flatten)]
    options: Options,
}

impl Check {
    /// Checks the configuration and prints the report.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let mut report = CheckReport::default();
        for sources in self.sources() {
            let outcome = Config::load(&sources, &disk::environment());
            if let (true, Ok(loaded)) = (self.live, &outcome) {
                report.live_findings.extend(run_live(&loaded.config)?);
            }
            let nothing = outcome.as_ref().ok().map(nothing_configured);
            report.add(outcome);
            let is_bare = self.paths.is_empty() && report.providers == 0;
            report.guarantees.extend(nothing.filter(|_| is_bare));
        }
        report.print(&mut crate::out::out(), &mut crate::out::err())
    }

    /// Each tollgate.yaml by itself, and all provider files together, so that conflicts are found.
    fn sources(&self) -> Vec<Sources> {
        if self.paths.is_empty() {
            return vec![self.options.sources()];
        }
        let bare = |config: Option<String>| Sources {
            config,
            only_named: true,
            ..self.options.sources()
        };
        let mut loads = Vec::new();
        let mut files = bare(None);
        for path in &self.paths {
            let within = format!("{}/tollgate.yaml", path.trim_end_matches('/'));
            match (disk::environment().path_kind)(path) {
                Ok(PathKind::Folder(names)) => {
                    if names.iter().any(|name| name == "tollgate.yaml") {
                        loads.push(bare(Some(within)));
                    }
                    if names.iter().any(|name| is_provider_file(name)) || loads.is_empty() {
                        files.provider_dirs.push(path.clone());
                    }
                }
                _ if is_config(path) => loads.push(bare(Some(path.clone()))),
                _ => files.providers.push(path.clone()),
            }
        }
        if !files.providers.is_empty() || !files.provider_dirs.is_empty() {
            loads.push(files);
        }
        loads
    }
}

fn run_live(config: &Config) -> anyhow::Result<Vec<Finding>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime could not start")?;
    Ok(runtime.block_on(live::run(config)))
}

fn is_provider_file(name: &str) -> bool {
    let yaml = name.ends_with(".yaml") || name.ends_with(".yml");
    yaml && !name.starts_with('.') && name != "tollgate.yaml"
}

/// Whether a file is a tollgate.yaml: by its name, or by fields that only one of the two kinds has.
fn is_config(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    if name == "tollgate.yaml" || name == "tollgate.yml" {
        return true;
    }
    let Ok(file) = (disk::environment().read_file)(path) else {
        return false;
    };
    let Ok(tree) = raw::read(path, &file.text) else {
        return false;
    };
    let config = shape::names(CONFIG);
    let fields = tree.entries().unwrap_or_default();
    let of = |is: &dyn Fn(&str) -> bool| fields.iter().filter(|field| is(&field.name)).count();
    let (in_config, in_provider) = (
        |name: &str| config.contains(&name),
        |name: &str| check::FIELDS.contains(&name),
    );
    // Both kinds have `guards`: a configuration defines them in a block, a provider lists their names.
    let guards = fields.iter().find(|field| field.name == "guards");
    let defines_guards = guards.is_some_and(|guards| guards.node.entries().is_some());
    let names_guards = guards.is_some() && !defines_guards;
    let ours = of(&|name| in_config(name) && !in_provider(name)) + usize::from(defines_guards);
    let theirs = of(&|name| in_provider(name) && !in_config(name)) + usize::from(names_guards);
    // Without a field of its own it is no provider, which has a domain, an upstream or a preset.
    ours > theirs || (theirs == 0 && of(&in_config) > 0)
}

/// The report on all loads.
#[derive(Default)]
struct CheckReport {
    problems: Problems,
    guarantees: String,
    providers: usize,
    live_findings: Vec<Finding>,
}

impl CheckReport {
    fn add(&mut self, outcome: Result<Loaded, Problems>) {
        let loaded = match outcome {
            Ok(loaded) => loaded,
            Err(problems) => return self.problems.extend(problems),
        };
        let of_files = loaded
            .providers
            .iter()
            .filter(|one| !one.source.starts_with("preset "));
        for one in of_files {
            self.providers += 1;
            self.guarantees
                .push_str(&format!("{} ({})\n", one.provider.name, one.source));
            let rules = one.provider.limits.iter();
            let lines = rules.map(|limit| (limit_in_words(limit), guarantee(&limit.rule)));
            let at_a_time = one.provider.concurrency.iter();
            let last =
                at_a_time.map(|c| (format!("{} at a time", c.rule.limit()), guarantee(&c.rule)));
            for (limit, promise) in lines.chain(last) {
                self.guarantees.push_str(&format!("  {limit}: {promise}\n"));
            }
            let further = [
                learned_guarantee(&one.provider),
                assumption(&one.provider),
                store_assumption(&loaded.config, &one.provider),
            ];
            for line in further.into_iter().flatten() {
                self.guarantees.push_str(&format!("  {line}\n"));
            }
        }
        self.problems.extend(loaded.problems);
    }

    fn print(&self, out: &mut impl Write, err: &mut impl Write) -> anyhow::Result<ExitCode> {
        if !self.problems.is_empty() {
            writeln!(err, "{}", self.problems)?;
        }
        write!(out, "{}", self.guarantees)?;
        let count = |level| {
            self.problems
                .iter()
                .filter(|problem| problem.level == level)
                .count()
        };
        let (good, bad): (Vec<&Finding>, Vec<&Finding>) =
            self.live_findings.iter().partition(|finding| finding.is_ok);
        for finding in &bad {
            writeln!(err, "error: {}", finding.text)?;
        }
        for finding in good {
            writeln!(out, "{}", finding.text)?;
        }
        let (errors, warnings) = (count(Level::Error) + bad.len(), count(Level::Warning));
        writeln!(
            out,
            "{}, {}, {}",
            plural(self.providers, "provider"),
            plural(errors, "error"),
            plural(warnings, "warning")
        )?;
        Ok(if errors > 0 {
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        })
    }
}

/// What `serve` would do without a provider file, and how to get one.
fn nothing_configured(loaded: &Loaded) -> String {
    let place = match loaded.watched.first() {
        Some(file) => format!("{file} configures no provider"),
        None => "there is no ./tollgate.yaml, and no file was named".to_owned(),
    };
    let effect = match loaded.config.built_in.is_empty() {
        true => "without limits",
        false => "with the limits of the built-in presets only",
    };
    format!(
        "nothing to check: {place}; `tollgate serve` would run {effect}\n  `tollgate init tmdb` writes a tollgate.yaml; `tollgate check FILE` checks any file\n"
    )
}

/// `1 call`, `2 calls`.
pub(crate) fn plural(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    }
}
