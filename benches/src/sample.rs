//! What a case has cost: each rank reports, and all reports together are judged by the worst rank.

use crate::Failure;
use hdrhistogram::Histogram;
use nix::time::ClockId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What one rank says of one turn of one case, as one line of JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Name of the case.
    pub case: String,
    /// Who says it.
    pub rank: usize,
    /// The time of each round.
    pub times_ns: Vec<u32>,
    /// Of all rounds together.
    pub wall_ns: u64,
    /// CPU time of this process for all rounds together.
    pub cpu_ns: u64,
    /// Of each round, the waiting for the last rank to arrive, where that is measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skew_ns: Vec<u32>,
    /// Of each round, the time from the last arrival to the return, where that is measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transport_ns: Vec<u32>,
}

/// A time in the unit of reports; one of 4 s and more is 4 s.
#[must_use]
pub fn nanoseconds(time: Duration) -> u32 {
    u32::try_from(time.as_nanos()).unwrap_or(u32::MAX)
}

/// CPU time of this process.
fn cpu_time() -> nix::Result<Duration> {
    ClockId::CLOCK_PROCESS_CPUTIME_ID.now().map(Duration::from)
}

impl Report {
    /// Measures `rounds` calls of `once`, which returns how long its round took.
    ///
    /// # Errors
    ///
    /// Those of `once`.
    pub fn of<E: From<nix::Error>>(
        case: impl Into<String>,
        rank: usize,
        rounds: usize,
        mut once: impl FnMut() -> Result<Duration, E>,
    ) -> Result<Self, E> {
        let mut times_ns = Vec::with_capacity(rounds);
        let (wall, cpu) = (Instant::now(), cpu_time()?);
        for _ in 0..rounds {
            times_ns.push(nanoseconds(once()?));
        }
        let (wall, cpu) = (wall.elapsed(), cpu_time()?.saturating_sub(cpu));
        let whole = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Ok(Self {
            case: case.into(),
            rank,
            times_ns,
            wall_ns: whole(wall),
            cpu_ns: whole(cpu),
            ..Self::default()
        })
    }

    /// Says it on standard output.
    ///
    /// # Errors
    ///
    /// Nobody listens.
    pub fn say(&self) -> Result<(), Failure> {
        println!("{}", serde_json::to_string(self)?);
        Ok(())
    }
}

/// Quantiles of times, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Quantiles {
    /// The shortest.
    pub min: u32,
    /// The median.
    pub p50: u32,
    /// Of a hundred, one is longer.
    pub p99: u32,
    /// Of a thousand, one is longer.
    pub p999: u32,
    /// The longest.
    pub max: u32,
}

impl Quantiles {
    /// Heads of the columns that [`Quantiles::cells`] fills.
    pub const HEADS: [&str; 5] = ["min ns", "p50 ns", "p99 ns", "p99.9 ns", "max ns"];

    /// Those of `times`; zeros for none.
    #[must_use]
    pub fn of(times: impl IntoIterator<Item = u32>) -> Self {
        let mut times: Vec<u32> = times.into_iter().collect();
        times.sort_unstable();
        let at = |per_mille| {
            let last = times.len().saturating_sub(1);
            times.get(last * per_mille / 1000).copied().unwrap_or(0)
        };
        Self {
            min: at(0),
            p50: at(500),
            p99: at(990),
            p999: at(999),
            max: at(1000),
        }
    }

    /// The worse of each, and the smaller of both minima.
    #[must_use]
    pub fn worst(self, other: Self) -> Self {
        Self {
            min: self.min.min(other.min),
            p50: self.p50.max(other.p50),
            p99: self.p99.max(other.p99),
            p999: self.p999.max(other.p999),
            max: self.max.max(other.max),
        }
    }

    /// As cells of a table.
    #[must_use]
    pub fn cells(&self) -> [String; 5] {
        [self.min, self.p50, self.p99, self.p999, self.max].map(|time| time.to_string())
    }
}

/// What all ranks together say of one case.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Name of the case.
    pub case: String,
    /// Rounds of all turns.
    pub rounds: usize,
    /// Each quantile is that of the rank where it is worst.
    pub worst: Quantiles,
    /// The same of the waiting for the last arrival, where that was measured.
    pub skew: Option<Quantiles>,
    /// The same from the last arrival to the return.
    pub transport: Option<Quantiles>,
    /// Time of a round in the median turn, of the rank that took longest.
    pub wall_ns: f64,
    /// CPU time that all ranks together spend on a round.
    pub cpu_ns: f64,
    /// The times of each rank.
    times: Vec<Vec<u32>>,
}

impl Sample {
    /// Brings together what `ranks` ranks have reported: cases in the order in which rank 0 came to them, turns of the
    /// same case as one.
    ///
    /// # Errors
    ///
    /// A rank has not reported a case, or not as many rounds as the others.
    pub fn all(ranks: usize, reports: Vec<Report>) -> Result<Vec<Self>, Failure> {
        let mut names: Vec<String> = Vec::new();
        let mut cases: BTreeMap<String, BTreeMap<usize, Vec<Report>>> = BTreeMap::new();
        for report in reports {
            if !cases.contains_key(&report.case) {
                names.push(report.case.clone());
            }
            let case = cases.entry(report.case.clone()).or_default();
            case.entry(report.rank).or_default().push(report);
        }
        names
            .into_iter()
            .filter_map(|name| cases.remove_entry(&name))
            .map(|(name, by_rank)| Self::one(name, ranks, by_rank))
            .collect()
    }

    fn one(
        case: String,
        ranks: usize,
        by_rank: BTreeMap<usize, Vec<Report>>,
    ) -> Result<Self, Failure> {
        let rounds_of = |turns: &[Report]| turns.iter().map(|turn| turn.times_ns.len()).collect();
        let rounds: Vec<Vec<usize>> = by_rank.values().map(|turns| rounds_of(turns)).collect();
        if !by_rank.keys().copied().eq(0..ranks) || rounds.iter().any(|r| *r != rounds[0]) {
            let who: Vec<_> = by_rank.keys().collect();
            return Err(format!(
                "{case}: {ranks} ranks were to report, and {who:?} did, {rounds:?} rounds"
            )
            .into());
        }
        let worst_of = |list: fn(&Report) -> &[u32]| {
            by_rank
                .values()
                .map(|turns| turns.iter().flat_map(list).copied().collect::<Vec<_>>())
                .filter(|times| !times.is_empty())
                .map(Quantiles::of)
                .reduce(Quantiles::worst)
        };
        let mut walls: Vec<f64> = (0..rounds[0].len())
            .map(|turn| {
                let walls = by_rank.values().map(|turns| turns[turn].wall_ns);
                walls.max().unwrap_or(0) as f64 / rounds[0][turn].max(1) as f64
            })
            .collect();
        walls.sort_unstable_by(f64::total_cmp);
        let cpu: u64 = by_rank.values().flatten().map(|turn| turn.cpu_ns).sum();
        let rounds: usize = rounds[0].iter().sum();
        Ok(Self {
            rounds,
            worst: worst_of(|report| &report.times_ns).unwrap_or_default(),
            skew: worst_of(|report| &report.skew_ns),
            transport: worst_of(|report| &report.transport_ns),
            wall_ns: walls.get(walls.len() / 2).copied().unwrap_or(0.0),
            cpu_ns: cpu as f64 / rounds.max(1) as f64,
            times: by_rank
                .into_values()
                .map(|turns| turns.into_iter().flat_map(|turn| turn.times_ns).collect())
                .collect(),
            case,
        })
    }

    /// One without ranks: what a single measurement has found.
    #[must_use]
    pub fn single(case: impl Into<String>, times: Vec<Duration>) -> Self {
        let wall: Duration = times.iter().sum();
        let times: Vec<u32> = times.into_iter().map(nanoseconds).collect();
        Self {
            case: case.into(),
            rounds: times.len(),
            worst: Quantiles::of(times.iter().copied()),
            skew: None,
            transport: None,
            wall_ns: wall.as_nanos() as f64 / times.len().max(1) as f64,
            cpu_ns: 0.0,
            times: vec![times],
        }
    }

    /// The raw data, compactly: for each rank one line of JSON, with how often each time was seen, to one digit or 6 %.
    pub(crate) fn raw(&self) -> Result<Vec<String>, Failure> {
        let line = |(rank, times): (usize, &Vec<u32>)| {
            let mut histogram = Histogram::<u32>::new_with_bounds(1, u64::from(u32::MAX), 1)?;
            for time in times {
                histogram.saturating_record(u64::from(*time).max(1));
            }
            let seen: Vec<_> = histogram
                .iter_recorded()
                .map(|seen| (seen.value_iterated_to(), seen.count_at_value()))
                .collect();
            Ok(serde_json::to_string(&Raw {
                case: &self.case,
                rank,
                quantiles: Quantiles::of(times.iter().copied()),
                seen,
            })?)
        };
        self.times.iter().enumerate().map(line).collect()
    }
}

#[derive(Serialize)]
struct Raw<'a> {
    case: &'a str,
    rank: usize,
    #[serde(flatten)]
    quantiles: Quantiles,
    /// Upper end of a class of times, and how many are in it.
    seen: Vec<(u64, u32)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(rank: usize, times: &[u32], wall_ns: u64) -> Report {
        Report {
            case: "c".to_owned(),
            rank,
            times_ns: times.to_vec(),
            wall_ns,
            cpu_ns: 10,
            ..Report::default()
        }
    }

    #[test]
    fn a_sample_is_judged_by_the_rank_that_is_worst() -> Result<(), Failure> {
        let late = report(1, &[1, 1, 1, 90], 93);
        let waits = report(0, &[50, 60, 70, 80], 260);
        let sample = Sample::all(2, vec![waits, late])?.remove(0);
        assert_eq!((sample.worst.min, sample.worst.p50), (1, 60));
        assert_eq!((sample.worst.max, sample.rounds), (90, 4));
        assert_eq!((sample.wall_ns, sample.cpu_ns), (65.0, 5.0));
        Ok(())
    }

    #[test]
    fn turns_of_a_case_are_one_and_their_median_is_the_wall_time() -> Result<(), Failure> {
        let turns = [9, 1, 5].map(|wall| report(0, &[wall], wall.into()));
        let sample = Sample::all(1, turns.into())?.remove(0);
        assert_eq!((sample.rounds, sample.wall_ns), (3, 5.0));
        assert_eq!(sample.worst.max, 9);
        Ok(())
    }

    #[test]
    fn a_rank_that_is_missing_or_short_of_rounds_is_an_error() {
        assert!(Sample::all(2, vec![report(0, &[1], 1)]).is_err());
        let short = vec![report(0, &[1, 2], 1), report(1, &[1], 1)];
        assert!(Sample::all(2, short).is_err());
    }

    #[test]
    fn raw_data_has_every_round_of_every_rank() -> Result<(), Failure> {
        let reports = vec![report(0, &[7, 7, 1000], 1), report(1, &[3, 3, 3], 1)];
        let raw = Sample::all(2, reports)?.remove(0).raw()?;
        assert_eq!(raw.len(), 2);
        assert!(raw[0].ends_with("\"seen\":[[7,2],[1023,1]]}"), "{}", raw[0]);
        Ok(())
    }
}
