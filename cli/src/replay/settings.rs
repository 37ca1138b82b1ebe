//! What `replay` tells its rank processes: the same to each.

use rankpact_cache::{Agreement, Budget, Policy};
use rankpact_collective::PathChoice;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// The trace; the built-in one for none.
    pub(crate) trace: Option<PathBuf>,
    pub(crate) requests: Option<usize>,
    pub(crate) policy: PolicyName,
    pub(crate) agreement: AgreementName,
    pub(crate) path: String,
    pub(crate) speed: f64,
    pub(crate) storage: PathBuf,
    pub(crate) page_bytes: usize,
    pub(crate) timeout_base: f64,
    pub(crate) timeout_per_ki_token: f64,
    pub(crate) storage_delay_ms: u64,
    pub(crate) inject: Option<Injection>,
    pub(crate) host_pages: usize,
    pub(crate) device_pages: usize,
}

impl Settings {
    pub(crate) fn policy(&self) -> Policy {
        match self.policy {
            PolicyName::BestEffort => Policy::BestEffort,
            PolicyName::WaitComplete => Policy::WaitComplete,
            PolicyName::Timeout => Policy::Timeout(Budget {
                base: Duration::from_secs_f64(self.timeout_base),
                per_ki_token: Duration::from_secs_f64(self.timeout_per_ki_token),
                ..Budget::default()
            }),
        }
    }

    pub(crate) fn agreement(&self) -> Agreement {
        match self.agreement {
            AgreementName::Tick => Agreement::Tick,
            AgreementName::Poll => Agreement::Poll,
        }
    }

    pub(crate) fn path(&self) -> PathChoice {
        self.path.parse().unwrap_or_default()
    }
}

/// How long a request waits for its prefetch
#[derive(Clone, Copy, Debug, Serialize, Deserialize, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
#[serde(rename_all = "snake_case")]
pub(crate) enum PolicyName {
    /// Cut it at the first poll
    BestEffort,
    /// Wait until it has finished
    WaitComplete,
    /// Wait until the agreed deadline
    Timeout,
}

/// Where the deadline of a prefetch is agreed
#[derive(Clone, Copy, Debug, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AgreementName {
    /// Once a tick for all
    Tick,
    /// In each poll, as it used to be
    Poll,
}

/// A fault to be made on purpose: `KIND@TICK[:RANK]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Injection {
    pub(crate) fault: Fault,
    /// From this tick on, at the first occasion.
    pub(crate) tick: u64,
    /// Which rank; the last one for none.
    pub(crate) rank: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Fault {
    /// The rank kills itself.
    Kill,
    /// The rank aborts the job.
    Abort,
    /// The rank polls one request fewer after a verdict.
    UnevenPoll,
}

impl FromStr for Injection {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is no fault: kill, abort or uneven-poll, then @TICK and, if not the last, :RANK"
            )
        };
        let (kind, place) = text.split_once('@').ok_or_else(wrong)?;
        let (tick, rank) = place
            .split_once(':')
            .map_or((place, None), |(tick, rank)| (tick, Some(rank)));
        let fault = match kind {
            "kill" => Fault::Kill,
            "abort" => Fault::Abort,
            "uneven-poll" => Fault::UnevenPoll,
            _ => return Err(wrong()),
        };
        let tick = tick.parse().map_err(|_| wrong())?;
        let rank = rank.map(str::parse).transpose().map_err(|_| wrong())?;
        Ok(Self { fault, tick, rank })
    }
}
