//! The slots of a vector: as bytes, folded, and whether their totals fit.

use crate::op::{Op, Ops};
use pulp::Arch;

/// `values` as they cross a wire.
pub(crate) fn bytes_of(values: &[i64]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

pub(crate) fn get(bytes: &[u8]) -> impl Iterator<Item = i64> {
    bytes
        .chunks_exact(8)
        .map(|eight| i64::from_le_bytes(eight.try_into().unwrap_or_default()))
}

/// The first slot whose total does not fit, if any: the same on every rank, for every rank has the same totals.
pub(crate) type Overflow = Option<usize>;

/// The lower of two.
pub(crate) fn first(one: Overflow, other: Overflow) -> Overflow {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// Totals that may not fit 64 bits, of a block or part: those of a sum, and of operations that may be one.
#[derive(Debug, Default)]
pub(crate) struct Wide(Vec<i128>);

impl Wide {
    /// Begins with this member's own contribution.
    pub(super) fn begin(&mut self, ops: Ops<'_>, values: &[i64]) {
        self.0.clear();
        if ops.may_overflow() {
            self.0.extend(values.iter().map(|value| i128::from(*value)));
        }
    }

    /// Folds the contribution of a peer into `values`, or here if the totals may not fit there.
    pub(super) fn fold(&mut self, ops: Ops<'_>, values: &mut [i64], bytes: &[u8]) {
        let wide = self.0.iter_mut().zip(get(bytes));
        match ops {
            Ops::All(Op::Min) => fold(values, bytes, i64::min),
            Ops::All(Op::Max) => fold(values, bytes, i64::max),
            Ops::All(Op::Or) => fold(values, bytes, |one, other| one | other),
            Ops::All(Op::And) => fold(values, bytes, |one, other| one & other),
            Ops::All(Op::Sum) => wide.for_each(|(total, theirs)| *total += i128::from(theirs)),
            Ops::Each(ops) => {
                for ((total, theirs), op) in wide.zip(ops) {
                    *total = op.fold(*total, theirs);
                }
            }
        }
    }

    /// Brings the totals down to the 64 bits of `values`; the place of the first that does not fit.
    pub(super) fn narrow(&self, values: &mut [i64]) -> Overflow {
        let mut overflow = None;
        for (place, (value, wide)) in values.iter_mut().zip(&self.0).enumerate() {
            match i64::try_from(*wide) {
                Ok(total) => *value = total,
                Err(_) => overflow = overflow.or(Some(place)),
            }
        }
        overflow
    }
}

/// Folds `bytes` into `values` with the instructions that the CPU at hand has: the baseline of x86-64 cannot even compare two
/// slots at once, and would be a tenth of a round of 1024.
fn fold(values: &mut [i64], bytes: &[u8], op: impl Fn(i64, i64) -> i64) {
    Arch::new().dispatch(|| {
        for (total, theirs) in values.iter_mut().zip(get(bytes)) {
            *total = op(*total, theirs);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_folds_as_slot_by_slot() {
        let value =
            |seed: i64, at: i64| (seed + at).wrapping_mul(0x9E37_79B9_7F4A_7C15_u64.cast_signed());
        for len in (0..70).chain([255, 256, 1000]) {
            let [mine, theirs] =
                [1, 1 << 40].map(|seed| (0..len).map(|at| value(seed, at)).collect());
            let (mine, theirs): (Vec<i64>, Vec<i64>) = (mine, theirs);
            for op in [Op::Min, Op::Max, Op::Or, Op::And, Op::Sum] {
                let (mut wide, mut totals) = (Wide::default(), mine.clone());
                wide.begin(Ops::All(op), &totals);
                wide.fold(Ops::All(op), &mut totals, &bytes_of(&theirs));
                let overflow = wide.narrow(&mut totals);
                let right = mine
                    .iter()
                    .zip(&theirs)
                    .map(|(one, other)| op.fold((*one).into(), *other));
                let right: Vec<i128> = right.collect();
                let fits = |total: &i128| i64::try_from(*total).is_ok();
                assert_eq!(
                    overflow,
                    right.iter().position(|total| !fits(total)),
                    "{op:?}, {len} slots"
                );
                for (total, right) in totals.iter().zip(&right).filter(|(_, right)| fits(right)) {
                    assert_eq!(i128::from(*total), *right, "{op:?}, {len} slots");
                }
            }
        }
    }
}
