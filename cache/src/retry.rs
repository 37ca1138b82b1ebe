//! Second tries, due after a number of scheduling passes: passes are the same on every rank, seconds are not.

use indexmap::IndexMap;

use crate::prefetch::Handle;

/// When a prefetch that came to nothing is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pacing {
    /// Passes between a miss and the next try; 0 for no such tries.
    pub interval: u64,
    /// Tries of one request before it is given up.
    pub max: u32,
}

impl Default for Pacing {
    fn default() -> Self {
        Self {
            interval: 8,
            max: 8,
        }
    }
}

/// What a try waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pending {
    /// The next pass.
    Immediate,
    /// The interval; due once a pass has seen it.
    Paced { due: Option<u64> },
}

#[derive(Clone, Copy, Debug, Default)]
struct Retry {
    fired: u32,
    pending: Option<Pending>,
}

/// The tries by request, whichever attempt of it.
#[derive(Debug)]
pub(crate) struct Retries {
    pacing: Pacing,
    pass: u64,
    by_rid: IndexMap<String, Retry>,
}

impl Retries {
    pub(crate) fn new(pacing: Pacing) -> Self {
        Self {
            pacing,
            pass: 0,
            by_rid: IndexMap::new(),
        }
    }

    /// Tries again some passes from now: storage may have it then.
    pub(crate) fn arm_paced(&mut self, rid: &str) {
        self.arm(rid, Pending::Paced { due: None });
    }

    /// Tries again at the next pass: storage is known to have it.
    pub(crate) fn arm_immediate(&mut self, rid: &str) {
        self.arm(rid, Pending::Immediate);
    }

    fn arm(&mut self, rid: &str, pending: Pending) {
        self.by_rid.entry(rid.to_owned()).or_default().pending = Some(pending);
    }

    /// Withdraws the pending try; the count of tries stays.
    pub(crate) fn cancel(&mut self, rid: &str) {
        if let Some(retry) = self.by_rid.get_mut(rid) {
            retry.pending = None;
        }
    }

    /// Forgets the request.
    pub(crate) fn forget(&mut self, rid: &str) {
        self.by_rid.shift_remove(rid);
    }

    /// Counts one pass and gives the requests to try again now, in the order of the waiting queue.
    pub(crate) fn due<'a>(&mut self, waiting: impl IntoIterator<Item = &'a Handle>) -> Vec<Handle> {
        self.pass += 1;
        let mut due = Vec::new();
        for (place, handle) in waiting.into_iter().enumerate() {
            let Some(retry) = self.by_rid.get_mut(&handle.rid) else {
                continue;
            };
            let Some(pending) = retry.pending else {
                continue;
            };
            let fires = match pending {
                _ if retry.fired >= self.pacing.max => None,
                Pending::Immediate => Some(true),
                // The head is next to be admitted; a speculative try would only hold it up.
                Pending::Paced { .. } if place == 0 || self.pacing.interval == 0 => None,
                Pending::Paced { due } => {
                    let due = due.unwrap_or_else(|| self.pass.saturating_add(self.pacing.interval));
                    retry.pending = Some(Pending::Paced { due: Some(due) });
                    Some(due <= self.pass)
                }
            };
            match fires {
                Some(false) => {}
                Some(true) => {
                    retry.pending = None;
                    retry.fired += 1;
                    due.push(handle.clone());
                }
                None => retry.pending = None,
            }
        }
        due
    }

    #[cfg(test)]
    pub(crate) fn is_armed(&self, rid: &str) -> bool {
        self.by_rid
            .get(rid)
            .is_some_and(|retry| retry.pending.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn queue(rids: &[&str]) -> Vec<Handle> {
        rids.iter().map(|rid| Handle::new(*rid, 0)).collect()
    }

    #[test]
    fn a_paced_try_fires_an_interval_after_a_pass_saw_it() {
        let mut retries = Retries::new(Pacing {
            interval: 2,
            max: 8,
        });
        let waiting = queue(&["head", "b"]);
        assert!(retries.due(&waiting).is_empty());
        retries.arm_paced("b");
        let fired: Vec<_> = (0..4).map(|_| retries.due(&waiting).len()).collect();
        assert_eq!(fired, [0, 0, 1, 0]);
    }

    #[test]
    fn the_head_of_the_queue_loses_its_paced_try_but_not_an_immediate_one() {
        let mut retries = Retries::new(Pacing {
            interval: 1,
            max: 8,
        });
        retries.arm_paced("a");
        assert!(retries.due(&queue(&["a"])).is_empty());
        assert!(!retries.is_armed("a"));
        retries.arm_immediate("a");
        assert_eq!(retries.due(&queue(&["a"])), queue(&["a"]));
    }

    #[test]
    fn interval_zero_ends_paced_tries_only() {
        let mut retries = Retries::new(Pacing {
            interval: 0,
            max: 8,
        });
        retries.arm_paced("a");
        retries.arm_immediate("b");
        assert_eq!(retries.due(&queue(&["x", "a", "b"])), queue(&["b"]));
        assert!(!retries.is_armed("a"));
    }

    #[test]
    fn tries_end_at_the_maximum_and_start_anew_after_admission() {
        let mut retries = Retries::new(Pacing {
            interval: 8,
            max: 2,
        });
        let waiting = queue(&["x", "a"]);
        let fire = |retries: &mut Retries| {
            retries.arm_immediate("a");
            retries.due(&waiting).len()
        };
        assert_eq!(
            [fire(&mut retries), fire(&mut retries), fire(&mut retries)],
            [1, 1, 0]
        );
        retries.forget("a");
        assert_eq!(fire(&mut retries), 1);
    }

    proptest! {
        #[test]
        fn two_ranks_fire_in_the_same_passes(steps in prop::collection::vec((0usize..4, 0u8..4), 0..100), interval in 0u64..4) {
            let waiting = queue(&["a", "b", "c", "d"]);
            let mut ranks = [(); 2].map(|()| (Retries::new(Pacing { interval, max: 3 }), Vec::new()));
            for (retries, fired) in &mut ranks {
                for &(who, what) in &steps {
                    let rid = &waiting[who].rid;
                    match what {
                        0 => retries.arm_paced(rid),
                        1 => retries.arm_immediate(rid),
                        2 => retries.cancel(rid),
                        _ => fired.push(retries.due(&waiting)),
                    }
                }
            }
            prop_assert_eq!(&ranks[0].1, &ranks[1].1);
            for rid in &waiting {
                prop_assert!(ranks[0].1.iter().flatten().filter(|fired| *fired == rid).count() <= 3);
            }
        }
    }
}
