//! `rankpact replay`: a request trace through N real rank processes.

pub(crate) mod rank;
mod report;
mod settings;

use crate::Failure;
use crate::team::Team;
use crate::trace::{Request, Trace};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rankpact_collective::PathChoice;
use report::{RankReport, Report};
use serde::Serialize;
use settings::{AgreementName, Injection, PolicyName, Settings};
use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Name of the hidden subcommand of a rank.
pub(crate) const RANK: &str = "replay-rank";

#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// JSON lines with `timestamp`, `input_length`, `output_length`, `hash_ids`; a small built-in trace if left out
    trace: Option<PathBuf>,
    /// Number of rank processes
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    ranks: u16,
    #[arg(long, value_enum, default_value_t = PolicyName::Timeout)]
    policy: PolicyName,
    #[arg(long, value_enum, default_value_t = AgreementName::Tick)]
    agreement: AgreementName,
    /// How rounds travel: auto, table or tcp
    #[arg(long, default_value_t = PathChoice::Auto)]
    path: PathChoice,
    /// Replay the first K requests only
    #[arg(long, value_name = "K", value_parser = positive)]
    requests: Option<usize>,
    /// Trace time runs so many times faster than the clock
    #[arg(long, value_name = "X", default_value_t = 20.0, value_parser = speed)]
    speed: f64,
    /// Folder of the page files; a temporary one if left out
    #[arg(long, value_name = "DIR")]
    storage: Option<PathBuf>,
    /// Bytes of one page, which stands for 512 tokens
    #[arg(long, value_name = "B", default_value_t = 4096, value_parser = page_bytes)]
    page_bytes: usize,
    /// A prefetch may take so many seconds ...
    #[arg(long, value_name = "S", default_value_t = 0.05, value_parser = seconds)]
    timeout_base: f64,
    /// ... and so many more for each 1024 tokens that storage holds
    #[arg(long, value_name = "S", default_value_t = 0.005, value_parser = seconds)]
    timeout_per_ki_token: f64,
    /// Storage answers each read of a batch of 8 pages so much later
    #[arg(long, value_name = "MS", default_value_t = 10)]
    storage_delay_ms: u64,
    /// Make a fault on purpose: kill, abort or uneven-poll, at the first occasion from tick TICK on; the last rank if
    /// none is named
    #[arg(long, value_name = "KIND@TICK[:RANK]")]
    inject: Option<Injection>,
    /// Write the result as JSON to a file, or to standard output with `-`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Whether to show a progress bar
    #[arg(long, value_enum, default_value_t = Progress::Auto)]
    progress: Progress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Progress {
    /// On a terminal
    Auto,
    Never,
}

fn positive(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|number| *number > 0)
        .ok_or_else(|| "a number above 0 is needed".to_owned())
}

/// A pool of pages of any size would end as a failed allocation.
fn page_bytes(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|bytes| (1..=1 << 26).contains(bytes))
        .ok_or_else(|| "a number from 1 to 67108864 is needed".to_owned())
}

fn speed(text: &str) -> Result<f64, String> {
    let fits = |speed: &f64| (0.001..=1e6).contains(speed);
    text.parse()
        .ok()
        .filter(fits)
        .ok_or_else(|| "a number from 0.001 to 1000000 is needed".to_owned())
}

fn seconds(text: &str) -> Result<f64, String> {
    let fits = |seconds: &f64| (0.0..=1e6).contains(seconds);
    text.parse()
        .ok()
        .filter(fits)
        .ok_or_else(|| "seconds from 0 to 1000000 are needed".to_owned())
}

/// Pages of the host pool and of the device: small against what the trace touches, so that prompts must come back from
/// storage, but with room for some of the longest.
fn pool_pages(requests: &[Request]) -> (usize, usize) {
    let longest = requests
        .iter()
        .map(|request| request.hash_ids.len())
        .max()
        .unwrap_or(1);
    let distinct: HashSet<u64> = requests
        .iter()
        .flat_map(|request| &request.hash_ids)
        .copied()
        .collect();
    (
        (distinct.len() / 12).max(3 * longest),
        (distinct.len() / 24).max(8 * longest),
    )
}

pub(crate) fn replay(args: ReplayArgs) -> Result<(), Failure> {
    let ranks = usize::from(args.ranks);
    if let Some(rank) = args
        .inject
        .and_then(|fault| fault.rank)
        .filter(|rank| *rank >= ranks)
    {
        return Err(Failure {
            code: 2,
            message: format!("--inject names rank {rank}, but there are {ranks} ranks"),
        });
    }
    let requests = Trace::load(args.trace.as_deref(), args.requests)?.requests;
    let (host_pages, device_pages) = pool_pages(&requests);
    let temporary;
    let storage = match &args.storage {
        Some(folder) => folder.as_path(),
        None => {
            temporary = tempfile::Builder::new()
                .prefix("rankpact-pages-")
                .tempdir()?;
            temporary.path()
        }
    };
    let settings = Settings {
        trace: args.trace.as_ref().map(std::path::absolute).transpose()?,
        requests: args.requests,
        policy: args.policy,
        agreement: args.agreement,
        path: args.path.to_string(),
        speed: args.speed,
        storage: std::path::absolute(storage)?,
        page_bytes: args.page_bytes,
        timeout_base: args.timeout_base,
        timeout_per_ki_token: args.timeout_per_ki_token,
        storage_delay_ms: args.storage_delay_ms,
        inject: args.inject,
        host_pages,
        device_pages,
    };
    let bar = progress_bar(args.progress, requests.len() as u64);
    let team = Team {
        subcommand: RANK,
        ranks,
        timeout: None,
    };
    let started = Instant::now();
    let reports = team.run::<Settings, RankReport>(&settings, |done| bar.set_position(done));
    bar.finish_and_clear();
    let report = Report::of(&settings, reports?, started.elapsed())?;
    publish(args.json.as_deref(), &report, &report.summary())
}

/// Prints `summary`, and writes `report` as JSON to a file; or prints only that, where the file is `-`.
pub(crate) fn publish(
    json: Option<&Path>,
    report: &impl Serialize,
    summary: &str,
) -> Result<(), Failure> {
    match json {
        Some(file) if file.as_os_str() == "-" => crate::print(&serde_json::to_string(report)?),
        json => {
            // Whichever of the two fails, the other is not lost.
            let printed = crate::print(summary);
            if let Some(file) = json {
                write_json(file, report)?;
            }
            printed
        }
    }
}

/// Writes one JSON object and a line feed to a file.
fn write_json(file: &Path, value: &impl Serialize) -> Result<(), Failure> {
    let write = || {
        let mut out = std::fs::File::create(file)?;
        writeln!(out, "{}", serde_json::to_string(value)?)?;
        out.sync_all()
    };
    write().map_err(|error: std::io::Error| Failure {
        code: 1,
        message: format!("{}: {error}", file.display()),
    })
}

/// A bar on standard error, visible only if that is a terminal.
fn progress_bar(progress: Progress, length: u64) -> ProgressBar {
    let target = if progress == Progress::Never {
        ProgressDrawTarget::hidden()
    } else {
        ProgressDrawTarget::stderr()
    };
    let style = ProgressStyle::with_template("{elapsed_precise} {wide_bar} {pos}/{len}");
    ProgressBar::with_draw_target(Some(length), target)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
