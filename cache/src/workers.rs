//! The threads that work for the scheduler: they agree on lengths, in groups of their own, and move pages.

mod backup;
mod query;
mod sync;
mod transfer;

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, unbounded};

pub(crate) use self::backup::{Backup, Written};
pub(crate) use self::query::Hit;
pub(crate) use self::transfer::{Ack, Transfer};

use crate::agreement::Ranks;
use crate::error::Error;
use crate::guard::lock;
use crate::pool::Buffers;
use crate::prefetch::Operation;
use crate::queue::Queue;
use crate::storage::Storage;
use crate::trouble::Trouble;

/// What the workers need: the storage, and a group for each of the two threads that agree.
pub struct Backend {
    /// Where the pages are.
    pub storage: Arc<dyn Storage>,
    /// The group in which hit lengths are agreed.
    pub hits: Box<dyn Ranks>,
    /// The group in which landed lengths are agreed: another one, for two threads in one group would pair their
    /// calls at random.
    pub acks: Box<dyn Ranks>,
    /// Pages read between two acknowledgements; the same on every rank.
    pub batch_pages: usize,
    /// Waited before every batch: makes storage slow, for replays and tests.
    pub read_delay: Duration,
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            batch_pages,
            read_delay,
            ..
        } = self;
        f.debug_struct("Backend")
            .field("batch_pages", batch_pages)
            .field("read_delay", read_delay)
            .finish_non_exhaustive()
    }
}

/// Why the first worker of this rank failed, if one has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failure(Arc<Mutex<Option<(String, String)>>>);

impl Failure {
    /// Keeps the first failure only: later ones follow from it.
    pub(crate) fn record(&self, worker: &str, reason: &str) {
        lock(&self.0).get_or_insert_with(|| (worker.to_owned(), reason.to_owned()));
    }

    pub(crate) fn error(&self, rank: usize, worker: &str) -> Error {
        let (worker, reason) = lock(&self.0)
            .clone()
            .unwrap_or_else(|| (worker.to_owned(), "it left no reason".to_owned()));
        Error::WorkerFailed {
            rank,
            worker,
            reason,
        }
    }
}

/// The running workers of one rank and the queues to and from them.
#[derive(Debug)]
pub(crate) struct Workers {
    rank: usize,
    failure: Failure,
    threads: Vec<(&'static str, JoinHandle<()>)>,
    /// Disconnects once every thread has ended; nothing is ever sent.
    ended: Receiver<()>,
    work: Option<Work>,
    pub(crate) hits: Queue<Hit>,
    pub(crate) acks: Queue<Ack>,
    pub(crate) written: Queue<Written>,
}

/// The ends of the queues by which the workers live: each one ends when its queue is dropped and empty.
#[derive(Debug)]
struct Work {
    queries: Sender<Arc<Operation>>,
    transfers: Sender<Transfer>,
    backups: Sender<Backup>,
}

impl Workers {
    /// Starts the four threads.
    pub(crate) fn start(backend: Backend, buffers: &Arc<Buffers>) -> io::Result<Self> {
        let Backend {
            storage,
            hits,
            acks,
            batch_pages,
            read_delay,
        } = backend;
        let rank = hits.rank();
        let failure = Failure::default();
        let (queries, queried) = unbounded();
        let (transfers, transferred) = unbounded();
        let (backups, backed_up) = unbounded();
        let (local_acks, local_acked) = unbounded();
        let (to_hits, from_hits) = unbounded();
        let (to_acks, from_acks) = unbounded();
        let (to_written, from_written) = unbounded();
        let (alive, ended) = unbounded();

        let query = query::Query {
            ranks: hits,
            storage: storage.clone(),
            queries: queried,
            hits: to_hits,
        };
        let transfer = transfer::Reader {
            storage: storage.clone(),
            buffers: buffers.clone(),
            transfers: transferred,
            acks: local_acks,
            batch_pages,
            read_delay,
            trouble: Trouble::new(),
        };
        let sync = sync::Sync {
            ranks: acks,
            local: local_acked,
            agreed: to_acks,
        };
        let backup = backup::Writer {
            storage,
            buffers: buffers.clone(),
            backups: backed_up,
            written: to_written,
            trouble: Trouble::new(),
        };

        let spawn = Spawn {
            alive,
            failure: failure.clone(),
        };
        let threads = vec![
            spawn.worker("query", move || query.run())?,
            spawn.worker("transfer", move || {
                transfer.run();
                Ok(())
            })?,
            spawn.worker("sync", move || sync.run())?,
            spawn.worker("backup", move || {
                backup.run();
                Ok(())
            })?,
        ];
        Ok(Self {
            rank,
            threads,
            ended,
            work: Some(Work {
                queries,
                transfers,
                backups,
            }),
            hits: Queue {
                name: "hit",
                rank,
                items: from_hits,
                failure: failure.clone(),
            },
            acks: Queue {
                name: "ack",
                rank,
                items: from_acks,
                failure: failure.clone(),
            },
            written: Queue {
                name: "backup",
                rank,
                items: from_written,
                failure: failure.clone(),
            },
            failure,
        })
    }

    // A send fails only when the worker has ended, and `check` tells that at the next tick.

    pub(crate) fn query(&self, operation: Arc<Operation>) {
        self.work.as_ref().map(|work| work.queries.send(operation));
    }

    pub(crate) fn transfer(&self, transfer: Transfer) {
        self.work.as_ref().map(|work| work.transfers.send(transfer));
    }

    pub(crate) fn back_up(&self, backup: Backup) {
        self.work.as_ref().map(|work| work.backups.send(backup));
    }

    /// An error if a worker has ended, also one that panicked.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.threads.iter().find(|(_, thread)| thread.is_finished()) {
            Some((worker, _)) => Err(self.failure.error(self.rank, worker)),
            None => Ok(()),
        }
    }

    /// Lets the workers finish what they have and end; an error if they do not within `timeout`.
    ///
    /// They do finish it: peers in the same calls would wait for them otherwise.
    pub(crate) fn stop(&mut self, timeout: Duration) -> Result<(), Error> {
        self.work = None;
        match self.ended.recv_timeout(timeout) {
            Err(RecvTimeoutError::Disconnected) => {
                for (_, thread) in self.threads.drain(..) {
                    // Reported by `check` while it mattered; the thread has ended, so this does not block.
                    let _ = thread.join();
                }
                Ok(())
            }
            Ok(()) | Err(RecvTimeoutError::Timeout) => {
                let busy = self
                    .threads
                    .iter()
                    .find(|(_, thread)| !thread.is_finished());
                let worker = busy.map_or("?", |(worker, _)| worker);
                let reason = format!(
                    "still busy {:.1} s after it was told to stop",
                    timeout.as_secs_f64()
                );
                Err(Error::WorkerFailed {
                    rank: self.rank,
                    worker: worker.to_owned(),
                    reason,
                })
            }
        }
    }
}

struct Spawn {
    alive: Sender<()>,
    failure: Failure,
}

impl Spawn {
    fn worker(
        &self,
        name: &'static str,
        run: impl FnOnce() -> Result<(), Error> + Send + 'static,
    ) -> io::Result<(&'static str, JoinHandle<()>)> {
        let (alive, failure) = (self.alive.clone(), self.failure.clone());
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let _alive = alive;
                if let Err(error) = run() {
                    failure.record(name, &error.to_string());
                }
            })?;
        Ok((name, thread))
    }
}
