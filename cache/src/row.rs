//! The row of ready counts that opens a tick.

use crate::digest::Digest;

/// How many finished items of each kind there are, in the order of the row's slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Leading run of finished device-to-host copies.
    pub write: usize,
    /// Leading run of finished host-to-device copies.
    pub load: usize,
    /// What storage works have finished; `None` with storage off.
    pub storage: Option<StorageCounts>,
}

/// The part of the counts that exists only with storage on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StorageCounts {
    /// Hit lengths that wait to be used.
    pub hit: usize,
    /// Acknowledgements of transfers from storage.
    pub ack: usize,
    /// Acknowledgements of write-through to storage.
    pub backup: usize,
    /// Host pages that wait to be freed.
    pub release: usize,
    /// The same for each extra pool, in the order of the configuration.
    pub extra: Vec<usize>,
}

/// What a reduced row says about the digests: the smallest and the largest of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) lowest: i64,
    pub(crate) highest: i64,
}

impl Span {
    /// Compares with the rank's own value: only that also finds a rank whose digest never entered the reduction.
    pub(crate) fn is_only(self, own: i64) -> bool {
        self.lowest == own && self.highest == own
    }
}

impl Counts {
    /// The row `[write, load, hit, ack, backup, release, extra.., d, -d]`; without storage `[write, load, d, -d]`.
    #[must_use]
    pub fn row(&self, digest: Digest) -> Vec<i64> {
        let mut counts = vec![self.write, self.load];
        if let Some(storage) = &self.storage {
            counts.extend([storage.hit, storage.ack, storage.backup, storage.release]);
            counts.extend(&storage.extra);
        }
        let d = digest.value();
        counts
            .into_iter()
            .map(|n| i64::try_from(n).unwrap_or(i64::MAX))
            .chain([d, -d])
            .collect()
    }

    /// Reads a reduced row of the same shape as `self`; `None` when it has another shape.
    pub(crate) fn agreed(&self, row: &[i64]) -> Option<(Self, Span)> {
        let [counts @ .., lowest, negated] = row else {
            return None;
        };
        let mut counts = counts.iter().map(|&n| usize::try_from(n).unwrap_or(0));
        let (write, load) = (counts.next()?, counts.next()?);
        let storage = match &self.storage {
            None => None,
            Some(own) => Some(StorageCounts {
                hit: counts.next()?,
                ack: counts.next()?,
                backup: counts.next()?,
                release: counts.next()?,
                extra: counts.by_ref().take(own.extra.len()).collect(),
            }),
        };
        let agreed = Self {
            write,
            load,
            storage,
        };
        let same_shape = agreed.extra().len() == self.extra().len() && counts.next().is_none();
        same_shape.then_some((
            agreed,
            Span {
                lowest: *lowest,
                highest: negated.saturating_neg(),
            },
        ))
    }

    fn extra(&self) -> &[usize] {
        self.storage.as_ref().map_or(&[], |storage| &storage.extra)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counts(extra: usize) -> Counts {
        let storage = StorageCounts {
            hit: 3,
            ack: 4,
            backup: 5,
            release: 6,
            extra: vec![7; extra],
        };
        Counts {
            write: 1,
            load: 0,
            storage: Some(storage),
        }
    }

    #[test]
    fn the_row_has_4_8_9_or_10_values() {
        let off = Counts {
            write: 1,
            load: 2,
            storage: None,
        };
        assert_eq!(off.row(Digest::default()), [1, 2, 0, 0]);
        let d = Digest::default().reclaimed(4, 0, 1);
        assert_eq!(counts(0).row(d), [1, 0, 3, 4, 5, 6, 5, -5]);
        assert_eq!(counts(1).row(d), [1, 0, 3, 4, 5, 6, 7, 5, -5]);
        assert_eq!(counts(2).row(d).len(), 10);
    }

    proptest! {
        #[test]
        fn a_row_reads_back_as_it_was_built(extra in 0usize..4, node in 0u64..1 << 40, storage in any::<bool>()) {
            let mut own = counts(extra);
            if !storage {
                own.storage = None;
            }
            let d = Digest::default().reclaimed(node, 0, 1);
            let (agreed, span) = own.agreed(&own.row(d)).unwrap();
            prop_assert_eq!(&agreed, &own);
            prop_assert!(span.is_only(d.value()));
            prop_assert!(!span.is_only(d.value() + 1));
            prop_assert!(own.agreed(&own.row(d)[1..]).is_none());
        }
    }
}
