//! How a job and its ranks ended.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use nix::sys::signal::Signal;

/// How one rank ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It exited with this code.
    Exited(i32),
    /// This signal killed it.
    Killed(i32),
    /// This signal killed it, and the launcher had sent it one.
    Stopped(i32),
}

/// How a job ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// By rank.
    pub(crate) ends: Vec<End>,
    pub(crate) verdict: Verdict,
}

/// What the job as a whole came to: the first thing that went wrong, if any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Success,
    Failed {
        rank: usize,
        end: End,
    },
    TimedOut {
        limit: Duration,
        running: Vec<usize>,
    },
    Interrupted {
        signal: i32,
    },
}

impl Outcome {
    /// What began it, where the ranks are known to exit because another has died: the rank that was killed, though its
    /// peers may have been seen to exit before.
    pub(crate) fn cause(&self) -> Verdict {
        let killed = |end: &End| matches!(end, End::Killed(_));
        match (&self.verdict, self.ends.iter().position(killed)) {
            (
                Verdict::Failed {
                    end: End::Exited(_),
                    ..
                },
                Some(rank),
            ) => Verdict::Failed {
                rank,
                end: self.ends[rank],
            },
            (verdict, _) => verdict.clone(),
        }
    }

    /// As a shell would say it: the code of the first rank to fail, 128 + the signal that killed it.
    pub(crate) fn exit_code(&self) -> u8 {
        let code = match self.verdict {
            Verdict::Success => 0,
            Verdict::Failed {
                end: End::Exited(code),
                ..
            } => code,
            Verdict::Failed {
                end: End::Killed(signal) | End::Stopped(signal),
                ..
            }
            | Verdict::Interrupted { signal } => 128 + signal,
            Verdict::TimedOut { .. } => 1,
        };
        u8::try_from(code).unwrap_or(1)
    }
}

/// These ranks, in a sentence.
pub(crate) fn in_words(ranks: &[usize]) -> String {
    let plural = if ranks.len() == 1 { "rank" } else { "ranks" };
    let numbers: Vec<String> = ranks.iter().map(usize::to_string).collect();
    format!("{plural} {}", numbers.join(", "))
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Success => write!(f, "all ranks succeeded"),
            Self::Failed { rank, end } => write!(f, "rank {rank} {end}"),
            Self::TimedOut { limit, running } => {
                let (limit, running) = (limit.as_secs_f64(), in_words(running));
                write!(
                    f,
                    "the job did not end within {limit} s; still running: {running}"
                )
            }
            Self::Interrupted { signal } => write!(f, "interrupted by {}", SignalName(*signal)),
        }
    }
}

impl From<ExitStatus> for End {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exited(code),
            (None, Some(signal)) => Self::Killed(signal),
            (None, None) => Self::Exited(1),
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Exited(code) => write!(f, "exited with code {code}"),
            Self::Killed(signal) => write!(f, "was killed by {}", SignalName(signal)),
            Self::Stopped(signal) => write!(f, "was stopped with {}", SignalName(signal)),
        }
    }
}

struct SignalName(i32);

impl fmt::Display for SignalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Signal::try_from(self.0) {
            Ok(signal) => f.write_str(signal.as_str()),
            // Real-time signals have no names.
            Err(_) => write!(f, "signal {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_rank_is_the_cause_of_those_that_exit_and_one_that_was_told_to_end_is_not() {
        let exited = Verdict::Failed {
            rank: 0,
            end: End::Exited(1),
        };
        let outcome = |end| Outcome {
            ends: vec![End::Exited(1), end],
            verdict: exited.clone(),
        };
        let killed = End::Killed(Signal::SIGKILL as i32);
        assert_eq!(
            outcome(killed).cause(),
            Verdict::Failed {
                rank: 1,
                end: killed
            }
        );
        assert_eq!(
            outcome(End::Stopped(Signal::SIGKILL as i32)).cause(),
            exited
        );
        assert_eq!(outcome(End::Exited(1)).cause(), exited);
    }

    #[test]
    fn verdicts_print_as_one_line_and_map_to_exit_codes() {
        let say = |verdict: Verdict| {
            let outcome = Outcome {
                ends: Vec::new(),
                verdict,
            };
            (outcome.verdict.to_string(), outcome.exit_code())
        };
        let timed_out = |running: &[usize]| {
            say(Verdict::TimedOut {
                limit: Duration::from_millis(1500),
                running: running.into(),
            })
        };
        let text = "the job did not end within 1.5 s; still running: ";
        assert_eq!(timed_out(&[2]), (format!("{text}rank 2"), 1));
        assert_eq!(timed_out(&[0, 3]), (format!("{text}ranks 0, 3"), 1));
        let failed = |end| say(Verdict::Failed { rank: 4, end });
        assert_eq!(
            failed(End::Exited(3)),
            ("rank 4 exited with code 3".into(), 3)
        );
        assert_eq!(
            failed(End::Killed(34)),
            ("rank 4 was killed by signal 34".into(), 162)
        );
        assert_eq!(
            say(Verdict::Interrupted { signal: 15 }),
            ("interrupted by SIGTERM".into(), 143)
        );
    }
}
