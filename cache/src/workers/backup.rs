//! The backup thread: writes host pages through to storage.

use std::sync::Arc;

use crossbeam::channel::{Receiver, Sender};

use crate::device::PageCopy;
use crate::pool::Buffers;
use crate::storage::Storage;
use crate::tree::NodeId;
use crate::trouble::Trouble;

/// Pages to write; their nodes stay locked until the acknowledgement is drained.
#[derive(Debug)]
pub(crate) struct Backup {
    pub(crate) nodes: Vec<NodeId>,
    pub(crate) pages: Vec<PageCopy>,
}

/// The acknowledgement of a backup, one each, also of a failed one.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) nodes: Vec<NodeId>,
    pub(crate) written: usize,
    pub(crate) failed: usize,
}

pub(crate) struct Writer {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) buffers: Arc<Buffers>,
    pub(crate) backups: Receiver<Backup>,
    pub(crate) written: Sender<Written>,
    pub(crate) trouble: Trouble,
}

impl Writer {
    pub(crate) fn run(self) {
        for Backup { nodes, pages } in &self.backups {
            let (mut written, mut failed) = (0, 0);
            for PageCopy { key, slot } in pages {
                if self.storage.exists(key) {
                    continue;
                }
                match self
                    .buffers
                    .with(slot, |page| self.storage.write(key, page))
                {
                    Some(Ok(())) => written += 1,
                    // A cache that cannot grow is still a cache; the pages are computed again one day.
                    Some(Err(error)) => {
                        self.trouble.tell(key, &error, "written");
                        failed += 1;
                    }
                    None => failed += 1,
                }
            }
            if self
                .written
                .send(Written {
                    nodes,
                    written,
                    failed,
                })
                .is_err()
            {
                break;
            }
        }
    }
}
