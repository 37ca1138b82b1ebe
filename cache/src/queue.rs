//! The scheduler's end of a queue that a worker fills.

use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, RecvTimeoutError};

use crate::error::Error;
use crate::workers::Failure;

/// Items in the order in which a worker finished them.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    pub(crate) name: &'static str,
    pub(crate) rank: usize,
    pub(crate) items: Receiver<T>,
    pub(crate) failure: Failure,
}

impl<T> Queue<T> {
    /// How many items could be taken now; more may come at any time.
    pub(crate) fn ready(&self) -> usize {
        self.items.len()
    }

    /// Takes exactly `count` items: the number was agreed, also where this rank is behind.
    ///
    /// Blocks for missing ones until `timeout`, or until the worker that owes them has ended.
    pub(crate) fn take(&self, count: usize, timeout: Duration) -> Result<Vec<T>, Error> {
        let start = Instant::now();
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count {
            match self
                .items
                .recv_timeout(timeout.saturating_sub(start.elapsed()))
            {
                Ok(item) => taken.push(item),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(self.failure.error(self.rank, self.name));
                }
                Err(RecvTimeoutError::Timeout) => {
                    let (queue, rank, arrived) = (self.name, self.rank, taken.len());
                    return Err(Error::DrainTimeout {
                        rank,
                        queue,
                        wanted: count,
                        arrived,
                        after: timeout,
                    });
                }
            }
        }
        Ok(taken)
    }

    /// Takes what is there.
    pub(crate) fn take_ready(&self) -> Vec<T> {
        self.items.try_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam::channel::unbounded;

    fn queue(items: Receiver<u8>) -> (Queue<u8>, Failure) {
        let failure = Failure::default();
        (
            Queue {
                name: "ack",
                rank: 1,
                items,
                failure: failure.clone(),
            },
            failure,
        )
    }

    #[test]
    fn taking_waits_for_late_items() {
        let (sender, items) = unbounded();
        let (queue, _) = queue(items);
        let late = std::thread::spawn(move || (0..3).try_for_each(|n| sender.send(n)));
        assert_eq!(queue.take(3, Duration::from_secs(30)).unwrap(), [0, 1, 2]);
        late.join().unwrap().unwrap();
    }

    #[test]
    fn taking_ends_at_its_deadline() {
        let (sender, items) = unbounded();
        sender.send(7).unwrap();
        let error = queue(items)
            .0
            .take(2, Duration::from_millis(5))
            .unwrap_err();
        assert!(
            matches!(
                error,
                Error::DrainTimeout {
                    queue: "ack",
                    wanted: 2,
                    arrived: 1,
                    ..
                }
            ),
            "{error}"
        );
        drop(sender);
    }

    #[test]
    fn taking_ends_when_the_worker_has_failed() {
        let (sender, items) = unbounded::<u8>();
        let (queue, failure) = queue(items);
        failure.record("acks", "no peer");
        drop(sender);
        let error = queue.take(1, Duration::from_secs(30)).unwrap_err();
        let reason = "no peer".to_owned();
        assert_eq!(
            error,
            Error::WorkerFailed {
                rank: 1,
                worker: "acks".into(),
                reason
            }
        );
    }
}
