//! The transfer thread: reads pages from storage into host buffers, batch by batch.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam::channel::{Receiver, Sender};

use crate::pool::{Buffers, Slot};
use crate::prefetch::Operation;
use crate::storage::Storage;
use crate::trouble::Trouble;

/// Pages to read: the first of the operation's, one for each slot.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) operation: Arc<Operation>,
    pub(crate) slots: Vec<Slot>,
}

/// How far a transfer has got.
#[derive(Debug)]
pub(crate) struct Ack {
    pub(crate) operation: Arc<Operation>,
    /// Leading pages that have landed.
    pub(crate) landed: usize,
    /// No buffer of the operation is written after this one.
    pub(crate) last: bool,
}

pub(crate) struct Reader {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) buffers: Arc<Buffers>,
    pub(crate) transfers: Receiver<Transfer>,
    pub(crate) acks: Sender<Ack>,
    pub(crate) batch_pages: usize,
    pub(crate) read_delay: Duration,
    pub(crate) trouble: Trouble,
}

impl Reader {
    pub(crate) fn run(self) {
        for Transfer { operation, slots } in &self.transfers {
            let mut landed = 0;
            let mut reading = true;
            for batch in slots.chunks(self.batch_pages) {
                if reading && !operation.is_terminated() {
                    let read = self.read(&operation.pages[landed..], batch);
                    landed += read;
                    reading = read == batch.len();
                }
                // Exactly one for each batch, read or not: the number of agreements must follow from the agreed
                // length alone.
                let _ = self.acks.send(Ack {
                    operation: operation.clone(),
                    landed,
                    last: false,
                });
            }
            if self
                .acks
                .send(Ack {
                    operation,
                    landed,
                    last: true,
                })
                .is_err()
            {
                break;
            }
        }
    }

    /// Reads pages until one fails; gives how many were read.
    fn read(&self, pages: &[u64], slots: &[Slot]) -> usize {
        thread::sleep(self.read_delay);
        let read = |(&key, &slot): (&u64, &Slot)| {
            let outcome = self.buffers.with(slot, |page| self.storage.read(key, page));
            if let Some(Err(error)) = &outcome {
                self.trouble.tell(key, error, "read");
            }
            matches!(outcome, Some(Ok(())))
        };
        pages
            .iter()
            .zip(slots)
            .take_while(|&page| read(page))
            .count()
    }
}
