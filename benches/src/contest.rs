//! Several contestants with the same work, in turns: so a noisy machine meets them all alike.

use crate::{Case, Failure, Report, Sample, Score, Scored, Team};
use std::fmt;
use std::time::Duration;

/// Turns of a full run, and how long each case is to take in one. Phases of a machine last longer than a turn, so it is the
/// number of turns that counts.
const TURNS: usize = 9;
const TURN: Duration = Duration::from_millis(100);

/// At most so many rounds a turn: all times are kept.
const MOST_ROUNDS: f64 = 100_000.0;

/// After that long a contestant hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// Some contestants, all with the same number of ranks and the same cases.
#[derive(Debug)]
pub struct Contest<'a> {
    ranks: usize,
    cases: Vec<Case>,
    contestants: Vec<Contestant<'a>>,
}

/// Makes a team that is to do some cases.
type Start<'a> = Box<dyn Fn(&[Case]) -> Result<Team, Failure> + 'a>;

struct Contestant<'a> {
    name: String,
    place: usize,
    must_work: bool,
    start: Start<'a>,
    cases: Vec<Case>,
    reports: Vec<Report>,
    /// Of each turn, a sample for each case.
    turns: Vec<Vec<Sample>>,
}

impl fmt::Debug for Contestant<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl<'a> Contest<'a> {
    /// One without contestants. How many rounds a case has follows from how long they take.
    #[must_use]
    pub fn new(ranks: usize, cases: Vec<Case>) -> Self {
        Self {
            ranks,
            cases,
            contestants: Vec::new(),
        }
    }

    /// A contestant of ours, and what starts its ranks.
    pub fn ours(&mut self, name: &str, start: impl Fn(&[Case]) -> Result<Team, Failure> + 'a) {
        self.enter(name, true, Box::new(start));
    }

    /// Somebody else, who is left out after a failure.
    pub fn other(&mut self, name: &str, start: impl Fn(&[Case]) -> Result<Team, Failure> + 'a) {
        self.enter(name, false, Box::new(start));
    }

    fn enter(&mut self, name: &str, must_work: bool, start: Start<'a>) {
        // Of what may take seconds, very few.
        let few = |case: &Case| Case {
            rounds: (20_000 / case.width)
                .clamp(3, 20)
                .min((200 / case.calls).max(1)),
            ..*case
        };
        self.contestants.push(Contestant {
            name: name.to_owned(),
            place: self.contestants.len(),
            must_work,
            start,
            cases: self.cases.iter().map(few).collect(),
            reports: Vec::new(),
            turns: Vec::new(),
        });
    }

    /// Holds it: one turn of a few rounds, which says how many rounds the others have where it is to be `measured`.
    ///
    /// # Errors
    ///
    /// One of ours fails. `failed` hears why another does.
    pub fn hold(
        mut self,
        measured: bool,
        mut failed: impl FnMut(&str),
    ) -> Result<Vec<Scored>, Failure> {
        for turn in 0..=if measured { TURNS } else { 0 } {
            let mut left = Vec::new();
            for mut contestant in self.contestants {
                match contestant.turn(self.ranks, turn) {
                    Ok(()) => left.push(contestant),
                    Err(error) if contestant.must_work => return Err(error),
                    Err(error) => failed(&format!("{error}: left out at {} ranks", self.ranks)),
                }
            }
            // Nobody always comes after the one who heats up the machine.
            let next = left.len().min(1);
            left.rotate_left(next);
            self.contestants = left;
        }
        self.contestants.sort_by_key(|contestant| contestant.place);
        let ranks = self.ranks;
        let contestants = self.contestants.into_iter();
        contestants
            .map(|contestant| contestant.score(ranks))
            .collect()
    }
}

impl Contestant<'_> {
    fn turn(&mut self, ranks: usize, turn: usize) -> Result<(), Failure> {
        let reports = (self.start)(&self.cases)?.run(LIMIT)?;
        let samples = Sample::all(ranks, reports.clone())?;
        if samples.len() != self.cases.len() {
            return Err(format!("{}: ended before its last case", self.name).into());
        }
        if turn == 1 {
            // The turn before was to find out how many rounds it takes.
            self.reports.clear();
            self.turns.clear();
        }
        if turn == 0 {
            for (case, sample) in self.cases.iter_mut().zip(&samples) {
                // Of so few the mean says less.
                let rounds = TURN.as_secs_f64() * 1e9 / f64::from(sample.worst.p50.max(1));
                case.rounds = case.rounds.max(rounds.min(MOST_ROUNDS) as usize);
            }
        }
        self.reports.extend(reports);
        self.turns.push(samples);
        Ok(())
    }

    fn score(self, ranks: usize) -> Result<Scored, Failure> {
        let all = Sample::all(ranks, self.reports)?;
        let mut turns = self.turns;
        let of_case = |(number, all): (usize, Sample)| Score {
            case: self.cases[number],
            all,
            turns: turns.iter_mut().map(|turn| turn[number].clone()).collect(),
        };
        Ok(Scored {
            name: self.name,
            scores: all.into_iter().enumerate().map(of_case).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// One rank whose rounds all take `ns`, or that fails.
    fn shell(name: &str, ns: u32, cases: &[Case]) -> Result<Team, Failure> {
        let script: String = cases
            .iter()
            .map(|case| {
                let (name, wall) = (case.name(), case.rounds as u32 * ns);
                let times = vec![ns.to_string(); case.rounds].join(",");
                format!(
                    r#"echo '{{"case":"{name}","rank":0,"times_ns":[{times}],"wall_ns":{wall},"cpu_ns":0}}';"#
                )
            })
            .collect();
        let end = if ns == 0 { "exit 1" } else { "exit 0" };
        Team::each(name, 1, |_| {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("{script} {end}")]);
            command
        })
    }

    fn contest(others: u32, ours: u32) -> Contest<'static> {
        let mut contest = Contest::new(1, vec![Case::of(8), Case::of(1 << 20)]);
        contest.ours("ours", move |cases| shell("ours", ours, cases));
        contest.other("fails", |cases| shell("fails", 0, cases));
        contest.other("other", move |cases| shell("other", others, cases));
        contest
    }

    #[test]
    fn who_takes_three_times_as_long_is_said_to_and_who_fails_is_left_out() {
        for (measured, turns) in [(false, 1), (true, TURNS)] {
            let mut failed = Vec::new();
            let hear = |line: &str| failed.push(line.to_owned());
            // Rounds of 10 ms: a turn has few.
            let all = contest(30_000_000, 10_000_000).hold(measured, hear);
            let all = all.expect("ours works");
            let names: Vec<_> = all.iter().map(|scored| &*scored.name).collect();
            assert_eq!(names, ["ours", "other"]);
            assert!(
                matches!(&failed[..], [one] if one.starts_with("fails: ")),
                "{failed:?}"
            );
            for score in &all[1].scores {
                assert_eq!(score.turns.len(), turns);
            }
            for (_, ratios) in all[1].times(&all[0]) {
                assert_eq!(ratios.map(|ratio| ratio.to_string()), ["3.00"; 3]);
            }
        }
    }

    #[test]
    fn no_contest_without_ours() {
        assert!(contest(1, 0).hold(false, drop_line).is_err());
    }

    fn drop_line(_: &str) {}
}
