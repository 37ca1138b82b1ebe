//! Data over the mesh of a group: vectors reduced, bytes broadcast. Used by both paths.

use crate::mesh::{ExchangeError, Frame, Mesh, Watch};
use crate::op::Op;
use rankpact_shm::{Kind, monotonic_ns};
use std::ops::Range;
use std::time::Instant;

/// From so many slots on, with three ranks or more, every rank reduces a part and then all gather the parts: each value
/// crosses 2 (n-1)/n connections of a rank instead of n-1.
const BANDWIDTH_SLOTS: usize = 8192;

/// Rows up to this width are kept, so that an error can say who contributed what.
const KEPT_SLOTS: usize = 64;

/// Why an exchange was stopped by this rank.
#[derive(Debug)]
pub(crate) enum Stop<E> {
    /// A peer's frame belongs to another call.
    Mismatch {
        peer: usize,
        mine: Shown,
        theirs: Shown,
    },
    /// The guard said so.
    Guard(E),
}

/// What a frame says of its call.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) operation: u8,
    pub(crate) root: u16,
    pub(crate) width: u32,
    pub(crate) label: String,
}

impl Shown {
    fn of(frame: &Frame<'_>) -> Self {
        let &Frame {
            operation,
            root,
            width,
            label,
            ..
        } = frame;
        Self {
            operation,
            root,
            width,
            label: label.to_owned(),
        }
    }
}

/// A mesh, and what its exchanges leave behind.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) mesh: Mesh,
    /// The rows of the last small reduction, by rank.
    rows: Vec<Vec<i64>>,
    /// The result of the last reduction: the caller's values stay as they are until its round has completed.
    total: Vec<i64>,
    /// When the last frame of the last round was sent, on the clock of this machine.
    pub(crate) last_sent_ns: u64,
    bytes: Vec<u8>,
}

/// One call over the wire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exchange<'a> {
    pub(crate) round: u64,
    pub(crate) label: &'a str,
    pub(crate) deadline: Instant,
}

impl Exchange<'_> {
    fn frame(&self, kind: Kind, root: usize, width: usize) -> Frame<'_> {
        Frame {
            round: self.round,
            operation: kind as u8,
            root: u16::try_from(root).unwrap_or(u16::MAX),
            width: u32::try_from(width).unwrap_or(u32::MAX),
            sent_ns: monotonic_ns(),
            label: self.label,
            payload: &[],
        }
    }
}

/// Checks that a peer's frame belongs to the same call, and has as many bytes as it must, before `take` sees it.
struct Checked<'a, G, L, T> {
    mine: Frame<'a>,
    last_sent_ns: u64,
    guard: G,
    length: L,
    take: T,
}

impl<E, G, L, T> Watch for Checked<'_, G, L, T>
where
    G: FnMut() -> Result<(), E>,
    L: Fn(usize) -> Option<usize>,
    T: FnMut(usize, &[u8]),
{
    type Stop = Stop<E>;

    fn frame(&mut self, peer: usize, frame: &Frame<'_>) -> Result<(), Stop<E>> {
        let call = |frame: &Frame<'_>| (frame.operation, frame.root, frame.width);
        let fits = (self.length)(peer).is_none_or(|length| frame.payload.len() == length);
        if call(frame) != call(&self.mine) || frame.label != self.mine.label || !fits {
            let (mine, theirs) = (Shown::of(&self.mine), Shown::of(frame));
            return Err(Stop::Mismatch { peer, mine, theirs });
        }
        self.last_sent_ns = self.last_sent_ns.max(frame.sent_ns);
        (self.take)(peer, frame.payload);
        Ok(())
    }

    fn slice(&mut self) -> Result<(), Stop<E>> {
        (self.guard)().map_err(Stop::Guard)
    }
}

/// What a member sends: the same to all, or to each its part.
enum Sent<'a> {
    Same(&'a [u8]),
    Parts(&'a [&'a [u8]]),
}

/// One exchange of `frame`; when the last of its frames was sent.
fn meet<E>(
    mesh: &mut Mesh,
    frame: Frame<'_>,
    sent: &Sent<'_>,
    deadline: Instant,
    guard: impl FnMut() -> Result<(), E>,
    length: impl Fn(usize) -> Option<usize>,
    take: impl FnMut(usize, &[u8]),
) -> Result<u64, ExchangeError<Stop<E>>> {
    let mut watch = Checked {
        mine: frame,
        last_sent_ns: frame.sent_ns,
        guard,
        length,
        take,
    };
    match sent {
        Sent::Same(payload) => mesh.exchange(&Frame { payload, ..frame }, &mut watch, deadline)?,
        Sent::Parts(parts) => mesh.scatter(&frame, parts, &mut watch, deadline)?,
    }
    Ok(watch.last_sent_ns)
}

fn put(values: &[i64], bytes: &mut Vec<u8>) {
    bytes.clear();
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
}

fn get(bytes: &[u8]) -> impl Iterator<Item = i64> {
    bytes
        .chunks_exact(8)
        .map(|eight| i64::from_le_bytes(eight.try_into().unwrap_or_default()))
}

fn fold(op: Op, values: &mut [i64], bytes: &[u8]) {
    for (value, theirs) in values.iter_mut().zip(get(bytes)) {
        *value = op.fold(*value, theirs);
    }
}

/// The part of `len` slots that member `at` of `size` reduces for all.
fn part(len: usize, at: usize, size: usize) -> Range<usize> {
    len * at / size..len * (at + 1) / size
}

impl Wire {
    pub(crate) fn new(mesh: Mesh) -> Self {
        Self {
            mesh,
            rows: Vec::new(),
            total: Vec::new(),
            last_sent_ns: 0,
            bytes: Vec::new(),
        }
    }

    /// Reduces `values` over all members into [`Wire::total`].
    pub(crate) fn all_reduce<E>(
        &mut self,
        exchange: &Exchange<'_>,
        op: Op,
        values: &[i64],
        guard: impl FnMut() -> Result<(), E>,
    ) -> Result<(), ExchangeError<Stop<E>>> {
        let (me, size) = (self.mesh.me(), self.mesh.size());
        let frame = exchange.frame(op.kind(), 0, values.len());
        put(values, &mut self.bytes);
        self.total.clear();
        self.total.extend_from_slice(values);
        if values.len() >= BANDWIDTH_SLOTS && size > 2 {
            return self.reduce_parts(exchange, frame, op, guard);
        }
        let keep = values.len() <= KEPT_SLOTS;
        self.rows.resize_with(if keep { size } else { 0 }, Vec::new);
        if keep {
            self.rows[me].clear();
            self.rows[me].extend_from_slice(values);
        }
        let Self {
            mesh,
            rows,
            bytes,
            total,
            ..
        } = self;
        let length = bytes.len();
        let take = |peer: usize, payload: &[u8]| {
            fold(op, total, payload);
            if let Some(row) = rows.get_mut(peer) {
                row.clear();
                row.extend(get(payload));
            }
        };
        self.last_sent_ns = meet(
            mesh,
            frame,
            &Sent::Same(bytes),
            exchange.deadline,
            guard,
            |_| Some(length),
            take,
        )?;
        Ok(())
    }

    /// Reduce-scatter, then all-gather.
    fn reduce_parts<E>(
        &mut self,
        exchange: &Exchange<'_>,
        frame: Frame<'_>,
        op: Op,
        mut guard: impl FnMut() -> Result<(), E>,
    ) -> Result<(), ExchangeError<Stop<E>>> {
        let (me, size, len) = (self.mesh.me(), self.mesh.size(), self.total.len());
        let part = |at: usize| part(len, at, size);
        let Self {
            mesh,
            bytes,
            rows,
            total,
            ..
        } = self;
        rows.clear();
        let parts: Vec<&[u8]> = (0..size)
            .map(|at| &bytes[8 * part(at).start..8 * part(at).end])
            .collect();
        let mine = &mut total[part(me)];
        let length = 8 * mine.len();
        let take = |_, payload: &[u8]| fold(op, mine, payload);
        meet(
            mesh,
            frame,
            &Sent::Parts(&parts),
            exchange.deadline,
            &mut guard,
            |_| Some(length),
            take,
        )?;
        put(&total[part(me)], bytes);
        let length = |peer| Some(8 * part(peer).len());
        let take = |peer, payload: &[u8]| {
            for (value, theirs) in total[part(peer)].iter_mut().zip(get(payload)) {
                *value = theirs;
            }
        };
        self.last_sent_ns = meet(
            mesh,
            frame,
            &Sent::Same(bytes),
            exchange.deadline,
            guard,
            length,
            take,
        )?;
        Ok(())
    }

    /// Gives the bytes of `root` to all members. Every member hears from every other, also from those who send nothing.
    pub(crate) fn broadcast<E>(
        &mut self,
        exchange: &Exchange<'_>,
        root: usize,
        bytes: &mut Vec<u8>,
        guard: impl FnMut() -> Result<(), E>,
    ) -> Result<(), ExchangeError<Stop<E>>> {
        let own = if self.mesh.me() == root {
            std::mem::take(bytes)
        } else {
            Vec::new()
        };
        let frame = exchange.frame(Kind::Broadcast, root, 0);
        let take = |peer, payload: &[u8]| {
            if peer == root {
                bytes.clear();
                bytes.extend_from_slice(payload);
            }
        };
        let sent = Sent::Same(&own);
        let outcome = meet(
            &mut self.mesh,
            frame,
            &sent,
            exchange.deadline,
            guard,
            |_| None,
            take,
        );
        if self.mesh.me() == root {
            *bytes = own;
        }
        self.last_sent_ns = outcome?;
        Ok(())
    }

    /// Waits for all members.
    pub(crate) fn barrier<E>(
        &mut self,
        exchange: &Exchange<'_>,
        guard: impl FnMut() -> Result<(), E>,
    ) -> Result<(), ExchangeError<Stop<E>>> {
        let frame = exchange.frame(Kind::Barrier, 0, 0);
        let nothing = Sent::Same(&[]);
        self.last_sent_ns = meet(
            &mut self.mesh,
            frame,
            &nothing,
            exchange.deadline,
            guard,
            |_| Some(0),
            |_, _| (),
        )?;
        Ok(())
    }

    /// The result of the last reduction.
    pub(crate) fn total(&self) -> &[i64] {
        &self.total
    }

    /// What every rank put into `slot` of the last small reduction.
    pub(crate) fn contributions(&self, slot: usize) -> Option<Vec<i64>> {
        let found: Option<Vec<i64>> = self.rows.iter().map(|row| row.get(slot).copied()).collect();
        found.filter(|column| !column.is_empty())
    }
}
