//! Rounds without end: every kind of call in a drawn order, every result verified, every rank late now and then.

use crate::behaviour::{Checked, broadcast_at, reduce_at, said};
use crate::values::{Range, Values, mix};
use rankpact_collective::{Group, Op};
use std::thread;
use std::time::Duration;

const LABELS: [&str; 5] = [
    "admit",
    "evict",
    "prefetch",
    "drain",
    "a label of 42 bytes, the longest there is.",
];

/// `rounds` rounds. What is called is drawn from `seed` alike on all ranks; how late a rank is, from its number as well.
///
/// # Errors
///
/// What was not as it should be.
pub fn soak(group: &mut Group, rounds: u64, seed: u64) -> Checked {
    for _ in 0..rounds {
        let drawn = mix(seed ^ group.round());
        let late = mix(drawn ^ group.rank() as u64);
        // Of a thousand rounds in one, up to 5 ms: past the moment at which the others go to sleep, or just before it.
        if late.is_multiple_of(1000) {
            thread::sleep(Duration::from_micros((late >> 32) % 5000));
        }
        let label = LABELS[(drawn >> 8) as usize % LABELS.len()];
        let op = [Op::Min, Op::Max][(drawn >> 16) as usize % 2];
        let range = [Range::Small, Range::Full, Range::Mixed][(drawn >> 24) as usize % 3];
        let values = Values { salt: seed, range };
        match drawn % 256 {
            0 => reduce_at(group, label, op, 9 + (drawn >> 32) as usize % 120, values)?,
            1 => broadcast_at(
                group,
                label,
                (drawn >> 32) as usize % group.size(),
                (drawn >> 40) as usize % 100,
            )?,
            2 => said(group.barrier(label))?,
            _ => reduce_at(group, label, op, (drawn >> 32) as usize % 9, values)?,
        }
    }
    Ok(())
}
