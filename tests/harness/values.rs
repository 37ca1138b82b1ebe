//! Contributions that are functions of rank, round and slot, so that every result can be checked by every rank.

use rankpact_collective::{Op, Ops};

/// The smallest and largest values that eight slots of one cache line can hold.
const SMALL: [i64; 2] = [-(1 << 55), (1 << 55) - 1];

/// Which values are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// At most 56 signed bits, both ends included.
    Small,
    /// Any, with the smallest and the largest one often.
    Full,
    /// Small on even ranks, any on odd ones: the form of a row is each rank's own affair.
    Mixed,
}

/// What each rank contributes to each round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Values {
    /// Sets the values of one job apart from those of another.
    pub salt: u64,
    /// Which values are drawn.
    pub range: Range,
}

impl Values {
    /// What `rank` contributes to `slot` of `round`.
    #[must_use]
    pub fn of(&self, rank: usize, round: u64, slot: usize) -> i64 {
        let drawn = mix(mix(mix(self.salt) ^ rank as u64) ^ round << 24 ^ slot as u64);
        let full = match self.range {
            Range::Small => false,
            Range::Full => true,
            Range::Mixed => rank % 2 == 1,
        };
        match (drawn % 8, full) {
            (0, true) => i64::MIN,
            (1, true) => i64::MAX,
            (0, false) => SMALL[0],
            (1, false) => SMALL[1],
            (_, true) => mix(drawn).cast_signed(),
            (_, false) => mix(drawn).cast_signed() >> 8,
        }
    }

    /// The row that `rank` contributes to `round`.
    #[must_use]
    pub fn row(&self, rank: usize, round: u64, slots: usize) -> Vec<i64> {
        (0..slots).map(|slot| self.of(rank, round, slot)).collect()
    }

    /// What all of `ranks` ranks get from `round`, or the first slot whose total does not fit.
    ///
    /// # Errors
    ///
    /// That slot.
    pub fn reduced<'a>(
        &self,
        ops: impl Into<Ops<'a>>,
        ranks: usize,
        round: u64,
        slots: usize,
    ) -> Result<Vec<i64>, usize> {
        let ops = ops.into();
        let one = |slot: usize| {
            let op = match ops {
                Ops::All(op) => op,
                Ops::Each(ops) => ops[slot],
            };
            let all = (0..ranks).map(|rank| self.of(rank, round, slot));
            match op {
                Op::Min => all.min(),
                Op::Max => all.max(),
                Op::Or => all.reduce(|one, other| one | other),
                Op::And => all.reduce(|one, other| one & other),
                Op::Sum => i64::try_from(all.map(i128::from).sum::<i128>()).ok(),
                other => panic!("{other} is new here"),
            }
            .ok_or(slot)
        };
        (0..slots).map(one).collect()
    }
}

/// What `root` broadcasts in `round`.
#[must_use]
pub fn bytes(root: usize, round: u64, len: usize) -> Vec<u8> {
    // Long ones repeat a block: a test is to wait for the product, not for this. Its length is no power of two, so that
    // a piece in the wrong place shows.
    const BLOCK: usize = 511;
    let seed = mix(round << 8 | root as u64);
    let words = len.div_ceil(8).min(BLOCK) as u64;
    let block: Vec<u8> = (0..words)
        .flat_map(|word| mix(seed ^ word).to_le_bytes())
        .collect();
    let mut bytes = block.repeat(len.div_ceil(8 * BLOCK));
    bytes.truncate(len);
    bytes
}

/// Spreads a number over all 64 bits.
#[must_use]
pub fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}
