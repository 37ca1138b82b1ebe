//! The sync thread: how much of each batch has landed on every rank.

use crossbeam::channel::{Receiver, Sender};
use rankpact_collective::Op;

use super::Ack;
use crate::agreement::Ranks;
use crate::error::Error;

pub(crate) struct Sync {
    pub(crate) ranks: Box<dyn Ranks>,
    pub(crate) local: Receiver<Ack>,
    pub(crate) agreed: Sender<Ack>,
}

impl Sync {
    pub(crate) fn run(mut self) -> Result<(), Error> {
        for mut ack in &self.local {
            let mut row = [i64::try_from(ack.landed).unwrap_or(i64::MAX)];
            self.ranks.reduce(Op::Min, &mut row, "ack")?;
            ack.landed = usize::try_from(row[0]).unwrap_or(0).min(ack.landed);
            if self.agreed.send(ack).is_err() {
                break;
            }
        }
        Ok(())
    }
}
