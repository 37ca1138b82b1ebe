//! The engine of one group: frames between the leaders of its hosts.

use super::thread::FRAME;
use super::{Address, Port};
use crate::codec::Fields;
use crate::job::Job;
use crate::path::engine::{Engine, Severed, Witness};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

/// How often an engine looks around while it waits.
const SLICE: Duration = Duration::from_millis(20);

/// How much longer than its deadline a leader that misses several waits for one that knows better who is late; and for
/// what a leader that died may still have sent.
const HEARSAY: Duration = Duration::from_millis(100);

/// How long a close waits until all is on its way.
const LINGER: Duration = Duration::from_secs(2);

/// The most that is told of why a group is given up.
const REASON: usize = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Data,
    Poison,
    Bye,
}

#[derive(Debug)]
struct Frame {
    host: usize,
    kind: Kind,
    round: u64,
    payload: Vec<u8>,
}

/// The leaders of a group, as one of them reaches the others through MPI.
#[derive(Debug)]
pub(crate) struct Leaders {
    port: Port,
    /// By host.
    addresses: Vec<Address>,
    ranks: Vec<usize>,
    here: usize,
    /// Knows who has died: MPI does not tell.
    job: Arc<Job>,
    /// What has arrived and belongs to no exchange yet.
    waiting: Vec<Frame>,
    open: bool,
}

impl Leaders {
    /// `addresses` and world ranks of the leaders, by host; this one is `here`.
    pub(crate) fn new(
        port: Port,
        addresses: Vec<Address>,
        ranks: Vec<usize>,
        here: usize,
        job: Arc<Job>,
    ) -> Self {
        Self {
            port,
            addresses,
            ranks,
            here,
            job,
            waiting: Vec::new(),
            open: true,
        }
    }

    fn send(&self, kind: Kind, round: u64, payload: &[u8], instead: bool) {
        let mut frame = Vec::with_capacity(9 + payload.len());
        frame.push(kind as u8);
        frame.extend_from_slice(&round.to_le_bytes());
        frame.extend_from_slice(payload);
        let mut others = self.addresses.clone();
        others.remove(self.here);
        self.port.send(others, frame.into(), instead);
    }

    /// Waits for one frame, and keeps it; whether one came.
    fn take(&mut self, patience: Duration) -> Result<bool, Severed> {
        let (from, bytes) = match self.port.next(patience) {
            Ok(arrived) => arrived,
            Err(RecvTimeoutError::Timeout) => return Ok(false),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Severed::Other("the thread of MPI has ended".to_owned()));
            }
        };
        let host = self.addresses.iter().position(|address| *address == from);
        // Others than the leaders have no business here.
        if let Some(frame) = host.and_then(|host| decode(host, &bytes)) {
            self.waiting.push(frame);
        }
        Ok(true)
    }

    /// Whether a leader gave up by `round`; that goes before everything else.
    fn listen(&mut self, round: u64) -> Result<(), Severed> {
        while self.take(Duration::ZERO)? {}
        let gave_up = |frame: &Frame| frame.kind == Kind::Poison && frame.round <= round;
        match self.waiting.iter().position(gave_up) {
            Some(at) => {
                let Frame { host, payload, .. } = self.waiting.swap_remove(at);
                Err(Severed::GaveUp(host, payload))
            }
            None => Ok(()),
        }
    }

    fn collect(
        &mut self,
        round: u64,
        witness: &mut dyn Witness,
        deadline: Instant,
    ) -> Result<(), Severed> {
        let mut due: BTreeSet<usize> = (0..self.addresses.len()).collect();
        due.remove(&self.here);
        let mut dead: Option<(usize, Instant)> = None;
        let mut over = false;
        loop {
            let now = Instant::now();
            self.listen(round)?;
            while let Some(at) = self.waiting.iter().position(|frame| {
                frame.kind == Kind::Data && frame.round == round && due.contains(&frame.host)
            }) {
                let frame = self.waiting.remove(at);
                due.remove(&frame.host);
                if let Err(kind) = witness.arrived(frame.host, &frame.payload) {
                    self.listen(round)?;
                    return Err(Severed::Witness(kind));
                }
            }
            if due.is_empty() {
                return self.listen(round);
            }
            let left = |frame: &&Frame| frame.kind == Kind::Bye && due.contains(&frame.host);
            if let Some(frame) = self.waiting.iter().find(left) {
                return Err(Severed::Left(frame.host));
            }
            let hearsay = if due.len() > 1 {
                HEARSAY
            } else {
                Duration::ZERO
            };
            let until = deadline + hearsay;
            if now >= until {
                if over {
                    return Err(Severed::Missing(due.into_iter().collect()));
                }
                // This process may have been stopped; the frames may be here in a moment.
                over = true;
            }
            witness.idle().map_err(Severed::Witness)?;
            let gone = self.job.place.link.dead();
            let died = due.iter().find(|host| gone.contains(&self.ranks[**host]));
            if let Some(host) = died {
                let (host, since) = *dead.get_or_insert((*host, now));
                if now >= since + HEARSAY && due.contains(&host) {
                    return Err(Severed::Died(host));
                }
            }
            let left = until.saturating_duration_since(now).min(SLICE);
            self.take(if over { SLICE } else { left })?;
        }
    }
}

fn decode(host: usize, bytes: &[u8]) -> Option<Frame> {
    let mut fields = Fields(bytes);
    let kind = fields.u8()?;
    let kinds = [Kind::Data, Kind::Poison, Kind::Bye];
    let kind = kinds.into_iter().find(|one| *one as u8 == kind)?;
    Some(Frame {
        host,
        kind,
        round: fields.u64()?,
        payload: fields.0.to_vec(),
    })
}

impl Engine for Leaders {
    fn exchange(
        &mut self,
        round: u64,
        bytes: &[u8],
        witness: &mut dyn Witness,
        deadline: Instant,
    ) -> Result<(), Severed> {
        let refused = |what: &str| Err(Severed::Other(what.to_owned()));
        if self.job.is_forked() {
            return refused("MPI belongs to the parent of this process");
        }
        if !self.open {
            return refused("the exchange of the group failed earlier or is closed");
        }
        if bytes.len() + 9 > FRAME {
            return refused("more bytes than fit one exchange between hosts");
        }
        self.send(Kind::Data, round, bytes, false);
        let outcome = self.collect(round, witness, deadline);
        self.open = outcome.is_ok();
        outcome
    }

    fn give_up(&mut self, round: u64, why: &[u8]) {
        self.open = false;
        self.send(Kind::Poison, round, &why[..why.len().min(REASON)], true);
    }

    fn close(&mut self) {
        if self.job.is_forked() {
            return;
        }
        self.open = false;
        self.send(Kind::Bye, 0, &[], false);
        self.port.close(LINGER);
    }
}
