//! Messages and vectors that both ends can compute, sent and checked, and how long they took.

use crate::report::Failure;
use crate::values::{Range, Values, bytes};
use rankpact_collective::{Call, Group, Relay};
use rankpact_shm::monotonic_ns;
use std::fmt::Write;
use std::ops::Range as Numbers;
use std::thread;
use std::time::Duration;

/// A series of messages, as both of its ends know it.
#[derive(Clone, Copy, Debug)]
pub struct Series<'a> {
    /// Number of the first one.
    pub first: u64,
    /// How many there are.
    pub count: u64,
    /// Bytes or slots of each.
    pub length: usize,
    /// Whether each carries the time at which it was sent.
    pub timed: bool,
    /// Time between two of them.
    pub pause: Duration,
    /// The call of each.
    pub call: Call<'a>,
}

impl Series<'_> {
    fn numbers(&self) -> Numbers<u64> {
        self.first..self.first + self.count
    }

    fn vector(&self, number: u64) -> Vec<i64> {
        let values = Values {
            salt: 0,
            range: Range::Full,
        };
        values.row(0, number, self.length)
    }

    fn rest(&self) {
        if !self.pause.is_zero() {
            thread::sleep(self.pause);
        }
    }

    /// Sends it to `to`.
    ///
    /// # Errors
    /// The first one that a call returns.
    pub fn send(&self, group: &mut Group, to: usize) -> Result<(), Failure> {
        let me = group.rank();
        for number in self.numbers() {
            let mut message = bytes(me, number, self.length);
            if self.timed {
                message[..8].copy_from_slice(&monotonic_ns().to_le_bytes());
            }
            group.send(to, &message, self.call)?;
            self.rest();
        }
        Ok(())
    }

    /// Receives it from `from`; returns percentiles of the time that each took, if they are timed.
    ///
    /// # Errors
    /// The first one that a call returns, or a message that is another one.
    pub fn recv(&self, group: &mut Group, from: usize) -> Result<String, Failure> {
        let (mut message, mut took) = (Vec::new(), Vec::new());
        for number in self.numbers() {
            let mut wanted = bytes(from, number, self.length);
            group.recv(from, &mut message, self.call)?;
            if self.timed {
                took.push(since(
                    message[..8].try_into().expect("timed ones are longer"),
                ));
                message.drain(..8);
                wanted.drain(..8);
            }
            if message != wanted {
                return Err(format!("message {number} is another one").into());
            }
            self.rest();
        }
        Ok(percentiles(took))
    }

    /// Posts it.
    ///
    /// # Errors
    /// The first one that a call returns.
    pub fn post(&self, relay: &mut Relay) -> Result<(), Failure> {
        for number in self.numbers() {
            relay.settle()?;
            let mut vector = self.vector(number);
            if self.timed {
                vector[0] = i64::from_le_bytes(monotonic_ns().to_le_bytes());
            }
            relay.post(&vector, self.call)?;
            self.rest();
        }
        Ok(())
    }

    /// Gets it as a later stage; returns percentiles of the time that each took, if they are timed.
    ///
    /// # Errors
    /// The first one that a call returns, or a vector that is another one.
    pub fn next(&self, relay: &mut Relay) -> Result<String, Failure> {
        let (mut vector, mut took) = (Vec::new(), Vec::new());
        for number in self.numbers() {
            let mut wanted = self.vector(number);
            relay.next(&mut vector, self.call)?;
            if self.timed {
                took.push(since(vector[0].to_le_bytes()));
                (vector[0], wanted[0]) = (0, 0);
            }
            if vector != wanted {
                return Err(format!("vector {number} is another one").into());
            }
            self.rest();
        }
        Ok(percentiles(took))
    }
}

/// Consumes finished events as a stage of a pipeline: the first stage announces `counts`, again and again, every later
/// one consumes exactly as many, and each of its events is `late`. Returns what had been consumed after each tick.
///
/// # Errors
/// The first one that a call returns.
pub fn consume(
    relay: &mut Relay,
    counts: &[i64],
    ticks: usize,
    late: Duration,
) -> Result<String, Failure> {
    let mut consumed = 0;
    let mut after = String::new();
    for tick in 0..ticks {
        relay.settle()?;
        let mut announced = vec![0];
        if counts.is_empty() {
            relay.next(&mut announced, "counts")?;
        } else {
            announced[0] = counts[tick % counts.len()];
            relay.post(&announced, "counts")?;
        }
        for _ in 0..announced[0] {
            thread::sleep(late);
            consumed += 1;
        }
        let _ = write!(after, "{consumed} ");
    }
    relay.finish("end")?;
    Ok(after)
}

fn since(sent: [u8; 8]) -> u64 {
    monotonic_ns().saturating_sub(u64::from_le_bytes(sent)) / 1000
}

/// Microseconds: median, 90, 99 of a hundred, the longest.
fn percentiles(mut took: Vec<u64>) -> String {
    took.sort_unstable();
    let Some(last) = took.len().checked_sub(1) else {
        return String::new();
    };
    let at = |part: usize| took[last * part / 100];
    format!("{} {} {} {}", at(50), at(90), at(99), at(100))
}
