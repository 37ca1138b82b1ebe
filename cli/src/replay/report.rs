//! What a replay found out: of each rank, and put together.

use crate::Failure;
use comfy_table::{Table, presets};
use hdrhistogram::Histogram;
use rankpact_cache::Reason;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Durations of one kind on one rank.
#[derive(Debug)]
pub(crate) struct Durations(Histogram<u64>);

impl Durations {
    pub(crate) fn new() -> Result<Self, Failure> {
        Histogram::new_with_bounds(1, 600_000_000_000, 3)
            .map(Self)
            .map_err(|error| Failure {
                code: 1,
                message: format!("histogram: {error}"),
            })
    }

    pub(crate) fn record(&mut self, duration: Duration) {
        self.0.saturating_record(
            u64::try_from(duration.as_nanos())
                .unwrap_or(u64::MAX)
                .max(1),
        );
    }

    pub(crate) fn quantiles(&self) -> Quantiles {
        #[expect(clippy::cast_precision_loss, reason = "microseconds for people")]
        let us = |ns: u64| ns as f64 / 1000.0;
        Quantiles {
            p50: us(self.0.value_at_quantile(0.5)),
            p99: us(self.0.value_at_quantile(0.99)),
            max: us(self.0.max()),
        }
    }
}

/// Microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Quantiles {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

impl Quantiles {
    /// The worse of each.
    fn worst(self, other: Self) -> Self {
        Self {
            p50: self.p50.max(other.p50),
            p99: self.p99.max(other.p99),
            max: self.max.max(other.max),
        }
    }
}

/// What one rank reports.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RankReport {
    pub(crate) path: String,
    pub(crate) requests: u64,
    pub(crate) passes: u64,
    pub(crate) collectives: Collectives,
    pub(crate) prefetch: Prefetch,
    pub(crate) storage: Storage,
    pub(crate) tokens: Tokens,
    /// Whether hit = fulfilled + unfulfilled.
    pub(crate) closed: bool,
    pub(crate) round: Quantiles,
    pub(crate) skew: Quantiles,
    pub(crate) transport: Quantiles,
    /// Hash over every agreed decision in order.
    pub(crate) decisions: String,
    /// Pages that came back from the host or storage with other bytes than went there.
    pub(crate) damaged_pages: u64,
}

/// Reductions that the scheduler thread made in ticks and polls.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Collectives {
    pub(crate) min: u64,
    pub(crate) max: u64,
    pub(crate) per_pass_max: u64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Prefetch {
    pub(crate) attempts: u64,
    pub(crate) issued: u64,
    pub(crate) completed: u64,
    pub(crate) revoked: u64,
    pub(crate) cut: u64,
}

/// Pages written through to storage.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Storage {
    pub(crate) written: u64,
    pub(crate) failed: u64,
    /// Prefetches not issued because too much was being fetched.
    pub(crate) rate_limited: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Tokens {
    pub(crate) hit: u64,
    pub(crate) fulfilled: u64,
    pub(crate) unfulfilled: BTreeMap<String, u64>,
}

impl Tokens {
    pub(crate) fn of(ledger: &rankpact_cache::Ledger) -> Self {
        let named = |(reason, tokens): (&Reason, &u64)| (reason.to_string(), *tokens);
        Self {
            hit: ledger.hit(),
            fulfilled: ledger.fulfilled(),
            unfulfilled: ledger.unfulfilled().iter().map(named).collect(),
        }
    }
}

/// The JSON of `replay`. Counts are those of rank 0; times are those of the worst rank.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    ranks: usize,
    stages: usize,
    policy: super::settings::PolicyName,
    agreement: super::settings::AgreementName,
    path: String,
    requests: u64,
    passes: u64,
    ticks: u64,
    collectives: Collectives,
    prefetch: Prefetch,
    storage: Storage,
    tokens: Tokens,
    /// A whole reduction of a tick, as its caller sees it.
    round_us: Quantiles,
    /// The part of it spent waiting for the last arrival.
    skew_us: Quantiles,
    /// The rest: from the last arrival to the return.
    transport_us: Quantiles,
    decisions: Vec<String>,
    wall_s: f64,
}

impl Report {
    /// Puts the ranks together.
    ///
    /// # Errors
    ///
    /// Ranks that decided differently, a ledger that does not close, a page that came back damaged.
    pub(crate) fn of(
        settings: &super::settings::Settings,
        ranks: Vec<RankReport>,
        wall: Duration,
    ) -> Result<Self, Failure> {
        let fail = |message: String| Err(Failure { code: 1, message });
        let decisions: Vec<String> = ranks.iter().map(|rank| rank.decisions.clone()).collect();
        if let Some(rank) = decisions.iter().position(|hash| *hash != decisions[0]) {
            return fail(format!(
                "rank {rank} decided otherwise than rank 0: {} and {}",
                decisions[rank], decisions[0]
            ));
        }
        if let Some(rank) = ranks.iter().position(|rank| !rank.closed) {
            let tokens = &ranks[rank].tokens;
            return fail(format!(
                "the token ledger of rank {rank} does not close: {tokens:?}"
            ));
        }
        if let Some(rank) = ranks.iter().position(|rank| rank.damaged_pages > 0) {
            return fail(format!(
                "rank {rank} read {} damaged pages",
                ranks[rank].damaged_pages
            ));
        }
        let worst = |of: fn(&RankReport) -> Quantiles| {
            ranks
                .iter()
                .map(of)
                .fold(Quantiles::default(), Quantiles::worst)
        };
        let (round_us, skew_us) = (worst(|rank| rank.round), worst(|rank| rank.skew));
        let transport_us = worst(|rank| rank.transport);
        let count = ranks.len();
        let Some(first) = ranks.into_iter().next() else {
            return fail("no ranks".to_owned());
        };
        Ok(Self {
            ranks: count,
            stages: 1,
            policy: settings.policy,
            agreement: settings.agreement,
            path: first.path,
            requests: first.requests,
            passes: first.passes,
            ticks: first.passes,
            collectives: first.collectives,
            prefetch: first.prefetch,
            storage: first.storage,
            tokens: first.tokens,
            round_us,
            skew_us,
            transport_us,
            decisions,
            wall_s: wall.as_secs_f64(),
        })
    }

    /// For people.
    pub(crate) fn summary(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        let mut line = |name: &str, value: String| {
            table.add_row([name.to_owned(), value]);
        };
        let times = |q: &Quantiles| {
            format!(
                "p50 {:.1} us, p99 {:.1} us, max {:.1} us",
                q.p50, q.p99, q.max
            )
        };
        line("ranks", format!("{} over path {}", self.ranks, self.path));
        line(
            "requests",
            format!(
                "{} in {} passes, {:.1} s",
                self.requests, self.passes, self.wall_s
            ),
        );
        let Collectives {
            min,
            max,
            per_pass_max,
        } = self.collectives;
        line(
            "collectives",
            format!("{min} MIN, {max} MAX; at most {per_pass_max} in a pass"),
        );
        let Prefetch {
            attempts,
            issued,
            completed,
            revoked,
            cut,
        } = self.prefetch;
        line(
            "prefetches",
            format!(
                "{attempts} attempted, {issued} issued: {completed} completed, {revoked} revoked, {cut} cut"
            ),
        );
        let Storage {
            written,
            failed,
            rate_limited,
        } = self.storage;
        line(
            "storage",
            format!(
                "{written} pages written, {failed} failed; {rate_limited} prefetches held back"
            ),
        );
        let unfulfilled: Vec<_> = self
            .tokens
            .unfulfilled
            .iter()
            .map(|(reason, tokens)| format!("{tokens} {reason}"))
            .collect();
        let unfulfilled = if unfulfilled.is_empty() {
            "none".to_owned()
        } else {
            unfulfilled.join(", ")
        };
        line(
            "tokens hit",
            format!(
                "{}: {} fulfilled, unfulfilled: {unfulfilled}",
                self.tokens.hit, self.tokens.fulfilled
            ),
        );
        line("round", times(&self.round_us));
        line(
            "  skew",
            format!("{}  (waiting for the last arrival)", times(&self.skew_us)),
        );
        line(
            "  transport",
            format!("{}  (last arrival to return)", times(&self.transport_us)),
        );
        line(
            "decisions",
            format!("{} on all {} ranks", self.decisions[0], self.ranks),
        );
        table
            .lines()
            .map(|line| line.trim_end().to_owned())
            .collect::<Vec<_>>()
            .join("\n")
    }
}
