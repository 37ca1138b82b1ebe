//! What a contest has shown: the cost of each case, and how many times as long others take.

use crate::{Case, Failure, Plot, Quantiles, Results, Sample, Table};
use std::fmt;

/// What all cases have cost a contestant.
#[derive(Clone, Debug)]
pub struct Scored {
    /// The contestant.
    pub name: String,
    /// For each case.
    pub scores: Vec<Score>,
}

/// A number that tells the cases of a contest apart: its name, and what it is in each.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    /// Name.
    pub name: &'static str,
    /// The number.
    pub of: fn(&Case) -> usize,
}

impl Scored {
    /// One of them.
    #[must_use]
    pub fn find<'a>(all: &'a [Self], name: &str) -> Option<&'a Self> {
        all.iter().find(|scored| scored.name == name)
    }

    /// Prints what all have cost, and how many times as long as the first each takes.
    ///
    /// # Errors
    ///
    /// The raw data is none.
    pub fn show(
        all: &[Self],
        title: &str,
        ranks: usize,
        axis: Axis,
        results: &mut Results,
    ) -> Result<(), Failure> {
        let heads = [
            "contestant",
            axis.name,
            "rounds",
            "p50 us",
            "p99 us",
            "p99.9 us",
            "wall us",
            "CPU us",
            "x p50",
            "x p99",
            "x wall",
        ];
        let mut table = Table::new(1, heads);
        let us = |ns: f64| format!("{:.2}", ns / 1000.0);
        let firsts = all.iter().take(1).flat_map(|first| &first.scores);
        for (number, first) in firsts.enumerate() {
            for Self { name, scores } in all {
                let score = &scores[number];
                let case = (axis.of)(&score.case).to_string();
                let mut sample = score.all.clone();
                let worst = sample.worst;
                let mut cells = vec![name.clone(), case.clone(), sample.rounds.to_string()];
                cells.extend([worst.p50, worst.p99, worst.p999].map(|ns| us(ns.into())));
                cells.extend([us(sample.wall_ns), us(sample.cpu_ns)]);
                cells.extend(first.ratios(score).map(|ratio| ratio.to_string()));
                table.row(cells);
                sample.case = format!("{name}, {ranks} ranks, {} {case}", axis.name);
                results.keep(&sample)?;
            }
        }
        results.table(&format!("{ranks} ranks: {title}"), &table);
        Ok(())
    }

    /// For each case, how many times as long as `first` this one takes.
    pub fn times(&self, first: &Self) -> impl Iterator<Item = (Case, [Ratio; 3])> {
        let scores = first.scores.iter().zip(&self.scores);
        scores.map(|(first, score)| (score.case, first.ratios(score)))
    }

    /// Plots how many times the wall time of the first others take; each contest has its number of ranks. `place` says to
    /// which line a case belongs, and where on the axis it lies.
    ///
    /// # Errors
    ///
    /// It cannot be drawn or written.
    pub fn plot(
        contests: &[(usize, Vec<Self>)],
        title: &str,
        axis: &'static str,
        place: impl Fn(usize, &str, &Case) -> Option<(String, usize)>,
        results: &mut Results,
    ) -> Result<(), Failure> {
        let mut lines: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
        for (ranks, all) in contests {
            for scored in all.iter().skip(1) {
                for (case, [.., wall]) in scored.times(&all[0]) {
                    let Some((name, x)) = place(*ranks, &scored.name, &case) else {
                        continue;
                    };
                    let point = (x as f64, wall.median);
                    match lines.iter_mut().find(|(known, _)| *known == name) {
                        Some((_, line)) => line.push(point),
                        None => lines.push((name, vec![point])),
                    }
                }
            }
        }
        // Where the others are not installed there is nothing to show.
        if lines.is_empty() {
            return Ok(());
        }
        let plot = Plot {
            title: title.to_owned(),
            axes: [axis, "wall time, times ours"],
            lines,
        };
        results.plot(&title.to_lowercase(), &plot)
    }
}

/// What a case has cost a contestant.
#[derive(Clone, Debug)]
pub struct Score {
    /// The case; of a full run, with the rounds of one turn.
    pub case: Case,
    /// All turns as one.
    pub all: Sample,
    pub(crate) turns: Vec<Sample>,
}

impl Score {
    /// How many times as long `other` takes: median and 99th percentile of the worst rank, wall time.
    pub(crate) fn ratios(&self, other: &Self) -> [Ratio; 3] {
        let worst =
            |of: fn(&Quantiles) -> u32| move |sample: &Sample| f64::from(of(&sample.worst).max(1));
        [
            self.ratio(other, worst(|quantiles| quantiles.p50)),
            self.ratio(other, worst(|quantiles| quantiles.p99)),
            self.ratio(other, |sample| sample.wall_ns),
        ]
    }

    fn ratio(&self, other: &Self, of: impl Fn(&Sample) -> f64) -> Ratio {
        let turns = self.turns.iter().zip(&other.turns);
        let mut ratios: Vec<f64> = turns.map(|(one, other)| of(other) / of(one)).collect();
        ratios.sort_unstable_by(f64::total_cmp);
        let at = |place: usize| ratios.get(place).copied().unwrap_or(f64::NAN);
        Ratio {
            median: at(ratios.len() / 2),
            least: at(0),
            most: at(ratios.len().saturating_sub(1)),
        }
    }
}

/// How many times as long as the first another takes, turn by turn: they were side by side.
#[derive(Clone, Copy, Debug)]
pub struct Ratio {
    /// The median of all turns.
    pub median: f64,
    /// The least of any turn.
    pub least: f64,
    /// The most of any turn.
    pub most: f64,
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = usize::from(self.median < 100.0) + usize::from(self.median < 10.0);
        let Self {
            median,
            least,
            most,
        } = self;
        write!(f, "{median:.digits$}")?;
        // A single turn has no spread.
        if least < most {
            write!(f, " ({least:.digits$}..{most:.digits$})")?;
        }
        Ok(())
    }
}
