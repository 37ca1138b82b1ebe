//! The exchange of many ranks in two hops: first within groups of neighbours, then between groups.
//!
//! It only ever saves time. Every rank has published its whole row before; whoever meets anything but the good case
//! within a short spin - a slow partner, another call, a full row - leaves it at that and reads all rows.

use super::{Posted, Table, bits, copied, mask};
use crate::call::{Form, Stamp};
use crate::park::{Climb, Step};
use std::ops::Range;
use std::time::Duration;

/// How long the good case may take. In a model, so many polls.
const HOPE: Duration = if cfg!(loom) {
    Duration::from_nanos(3)
} else {
    Duration::from_micros(20)
};

impl Table {
    /// Folds the contributions of all other ranks into `totals`, which hold this rank's; whether it came to that. If
    /// not, they are unchanged.
    #[cold]
    pub(super) fn two_hops(&self, posted: Posted, totals: &mut [i64], timeout: Duration) -> bool {
        let mut hopped = copied(totals);
        let hopped = &mut hopped[..totals.len()];
        let done = self.hop_twice(posted, hopped, timeout);
        if done {
            totals.copy_from_slice(hopped);
        }
        done
    }

    fn hop_twice(&self, posted: Posted, totals: &mut [i64], timeout: Duration) -> bool {
        let storage = &self.seat.storage;
        let rows = storage.rows(posted.round);
        let mine = &rows[self.seat.me];
        let hope = HOPE.min(self.waits.spin()).min(timeout);
        // A row of two lines has no room for a partial result, nor has one that says when it arrived; and what is not
        // folded row by row has none.
        let possible = posted.stamp.form() == Form::Short
            && posted.kind.folds_row_by_row()
            && self.timing.is_none()
            && !hope.is_zero();
        let mut climb = Climb::new(&self.waits, posted.round, hope);
        let within = possible
            && self.hop(
                self.neighbours().filter(|rank| *rank != self.seat.me),
                &mut climb,
                |peer| {
                    take(rows[peer].stamp(), posted, || {
                        rows[peer].fold_into(posted.kind, Form::Short, totals);
                    })
                },
            );
        // In every round, even if in vain: a partial result that stays would look new when the stamps come round.
        mine.publish_partial(posted.stamp, within.then_some(&*totals));
        within
            && self.hop(self.partners(), &mut climb, |peer| {
                take(rows[peer].partial(), posted, || {
                    rows[peer].fold_partial_into(posted.kind, totals);
                })
            })
    }

    /// Polls `peers` until `look` has had all of them; gives up when hope is lost.
    fn hop(
        &self,
        peers: impl Iterator<Item = usize>,
        climb: &mut Climb<'_>,
        mut look: impl FnMut(usize) -> Look,
    ) -> bool {
        let mut pending = mask(peers);
        loop {
            for peer in bits(pending) {
                match look(peer) {
                    Look::Taken => pending &= !(1 << peer),
                    Look::Absent => {}
                    Look::Useless => return false,
                }
            }
            if pending == 0 {
                return true;
            }
            if climb.polls() {
                continue;
            }
            let mut tired = false;
            let step = climb.step(u64::MAX, |_| u64::MAX, |_| tired = true);
            if tired || step != Step::Again {
                return false;
            }
        }
    }

    /// The group of this rank.
    fn neighbours(&self) -> Range<usize> {
        group_of(self.seat.me, self.radix, self.ranks())
    }

    /// One rank of every other group.
    fn partners(&self) -> impl Iterator<Item = usize> + use<> {
        let (me, radix, ranks) = (self.seat.me, self.radix, self.ranks());
        (0..ranks)
            .step_by(radix)
            .filter(move |first| *first != me - me % radix)
            .map(move |first| first + (me % radix) % group_of(first, radix, ranks).len())
    }
}

enum Look {
    Taken,
    Absent,
    Useless,
}

fn group_of(rank: usize, radix: usize, ranks: usize) -> Range<usize> {
    let first = rank - rank % radix;
    first..ranks.min(first + radix)
}

/// Takes what `stamp` publishes, if it is of this round and of the same call, and on one line.
fn take(stamp: Stamp, posted: Posted, fold: impl FnOnce()) -> Look {
    if stamp.same_call(posted.stamp) && stamp.form() == Form::Short {
        fold();
        Look::Taken
    } else if stamp.is_round(posted.round) {
        Look::Useless
    } else {
        Look::Absent
    }
}
