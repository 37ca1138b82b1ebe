//! When a prefetch is waited for, and for how long.

use std::time::Duration;

/// What a poll does with a prefetch that has not finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Cut it at the first poll and keep the prefix that has landed on every rank.
    BestEffort,
    /// Wait until it has finished or was revoked.
    WaitComplete,
    /// Wait until it has finished or its budget is spent on some rank.
    Timeout(Budget),
}

impl Default for Policy {
    fn default() -> Self {
        Self::Timeout(Budget::default())
    }
}

/// How long a request may wait for its prefetch, from its first blocked poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Granted to every request.
    pub base: Duration,
    /// Granted on top for every 1024 tokens that storage is known to hold.
    pub per_ki_token: Duration,
    /// No request gets more than this; `None` for no limit.
    pub cap: Option<Duration>,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            base: Duration::from_secs(1),
            per_ki_token: Duration::from_millis(250),
            cap: None,
        }
    }
}

impl Budget {
    /// The budget of a request of which storage is known to hold `tokens`.
    ///
    /// It grows once the hit is known; saturates instead of overflowing.
    #[must_use]
    pub fn of(&self, tokens: usize) -> Duration {
        let extra = self.per_ki_token.as_nanos().saturating_mul(tokens as u128) / 1024;
        let extra = Duration::from_nanos(u64::try_from(extra).unwrap_or(u64::MAX));
        let total = self.base.saturating_add(extra);
        self.cap.map_or(total, |cap| total.min(cap))
    }

    /// Whether `elapsed` is more than the budget; a request that has used exactly its budget still waits.
    #[must_use]
    pub fn is_exceeded(&self, elapsed: Duration, tokens: usize) -> bool {
        elapsed > self.of(tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_budget_is_spent_only_when_exceeded() {
        let budget = Budget::default();
        assert_eq!(budget.of(0), Duration::from_secs(1));
        assert_eq!(budget.of(2048), Duration::from_millis(1500));
        assert!(!budget.is_exceeded(Duration::from_millis(1500), 2048));
        assert!(budget.is_exceeded(Duration::from_nanos(1_500_000_001), 2048));
    }

    #[test]
    fn a_cap_bounds_the_budget() {
        let budget = Budget {
            cap: Some(Duration::from_secs(30)),
            ..Budget::default()
        };
        assert_eq!(budget.of(1 << 20), Duration::from_secs(30));
    }

    proptest! {
        #[test]
        fn more_tokens_never_shorten_a_budget(a in any::<usize>(), b in any::<usize>(), per in 0u64..u64::MAX, cap in any::<Option<u64>>()) {
            let budget = Budget {
                base: Duration::from_secs(1),
                per_ki_token: Duration::from_nanos(per),
                cap: cap.map(Duration::from_nanos),
            };
            prop_assert!(budget.of(a.min(b)) <= budget.of(a.max(b)));
            prop_assert!(!budget.is_exceeded(budget.of(a), a));
        }
    }
}
