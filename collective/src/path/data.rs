//! Data over the mesh of a group: vectors reduced, bytes broadcast. Used by both paths.

use super::ring::{self, go_round};
use super::slots::{Overflow, Wide, first, get};
use crate::mesh::{ExchangeError, Frame, Mesh, MeshError, Watch};
use crate::op::Ops;
use rankpact_shm::{Kind, Ring, monotonic_ns};
use std::ops::Range;
use std::time::Instant;

/// From so many slots on, with three ranks or more, every rank reduces a part and then all gather the parts: each value
/// crosses 2 (n-1)/n connections of a rank instead of n-1.
const BANDWIDTH_SLOTS: usize = 8192;

/// What is longer travels in blocks, each an exchange of its own: a block is checked, sent, received and folded while it is
/// in the cache, and a peer folds the first while the last is still to be sent.
const BLOCK_SLOTS: usize = 16 << 10;

// Values cross a wire as they lie in memory.
const _: () = assert!(cfg!(target_endian = "little"));

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
    /// The operations of each slot, where there is one for each.
    pub(crate) codes: Vec<u8>,
}

impl Shown {
    fn of(frame: &Frame<'_>) -> Self {
        let &Frame {
            operation,
            root,
            width,
            label,
            payload,
            ..
        } = frame;
        let codes = if operation == Kind::Each as u8 {
            usize::try_from(width).map_or(&[][..], |width| &payload[..width.min(payload.len())])
        } else {
            &[]
        };
        Self {
            operation,
            root,
            width,
            label: label.to_owned(),
            codes: codes.to_vec(),
        }
    }
}

/// The ways between the members, and what exchanges leave behind.
#[derive(Debug)]
pub(crate) struct Wire {
    ways: Ways,
    /// The rows of the last small reduction, by rank.
    rows: Vec<Vec<i64>>,
    /// What the reduction under way has found in the caller's values, from the first slot on: they get it back if the round
    /// does not complete.
    before: Vec<i64>,
    wide: Wide,
    /// The result of the last started reduction or gather.
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
    /// What every payload begins with: the operations of each slot, or nothing.
    codes: &'a [u8],
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
        let same = call(frame) == call(&self.mine) && frame.label == self.mine.label;
        let payload = frame.payload.strip_prefix(self.codes).filter(|payload| {
            same && (self.length)(peer).is_none_or(|length| payload.len() == length)
        });
        let Some(payload) = payload else {
            let mine = Frame {
                payload: self.codes,
                ..self.mine
            };
            let (mine, theirs) = (Shown::of(&mine), Shown::of(frame));
            return Err(Stop::Mismatch { peer, mine, theirs });
        };
        self.last_sent_ns = self.last_sent_ns.max(frame.sent_ns);
        (self.take)(peer, payload);
        Ok(())
    }

    fn slice(&mut self) -> Result<(), Stop<E>> {
        (self.guard)().map_err(Stop::Guard)
    }
}

/// What a member sends.
enum Sent<'a> {
    /// The same to all, through the ring if there is one.
    Same(&'a [u8]),
    /// The same to all over the mesh, on which parts went before it.
    SameByMesh(&'a [u8]),
    /// To each its part.
    Parts(&'a [&'a [u8]]),
    /// Nothing: it has posted its frame before.
    Posted,
}

/// How data gets from one member to another.
#[derive(Debug)]
struct Ways {
    mesh: Mesh,
    /// Where all members share memory.
    ring: Option<Ring>,
}

impl Ways {
    /// One exchange of `frame`; when the last of its frames was sent.
    #[expect(clippy::too_many_arguments, reason = "one exchange in all its parts")]
    fn meet<E>(
        &mut self,
        frame: Frame<'_>,
        codes: &[u8],
        sent: &Sent<'_>,
        deadline: Instant,
        guard: impl FnMut() -> Result<(), E>,
        length: impl Fn(usize) -> Option<usize>,
        take: impl FnMut(usize, &[u8]),
    ) -> Result<u64, ExchangeError<Stop<E>>> {
        let mut watch = Checked {
            mine: frame,
            codes,
            last_sent_ns: frame.sent_ns,
            guard,
            length,
            take,
        };
        match (sent, &mut self.ring) {
            (Sent::Same(payload), Some(ring)) => {
                go_round(ring, &Frame { payload, ..frame }, &mut watch, deadline)?;
            }
            (Sent::Same(payload), None) | (Sent::SameByMesh(payload), _) => {
                let frame = Frame { payload, ..frame };
                self.mesh.exchange(&frame, &mut watch, deadline)?;
            }
            (Sent::Parts(parts), _) => {
                self.mesh.scatter(&frame, parts, &mut watch, deadline)?;
            }
            (Sent::Posted, _) => self.mesh.collect(frame.round, &mut watch, deadline)?,
        }
        Ok(watch.last_sent_ns)
    }
}

/// Makes `bytes` be `values`, behind what comes first.
fn fill(bytes: &mut Vec<u8>, first: &[u8], values: &[i64]) {
    bytes.clear();
    bytes.extend_from_slice(first);
    bytes.extend_from_slice(bytemuck::cast_slice(values));
}

/// The part of a block that member `at` of `size` reduces for all.
fn part(block: &Range<usize>, at: usize, size: usize) -> Range<usize> {
    let start = |at: usize| block.start + block.len() * at / size;
    start(at)..start(at + 1)
}

/// `len` slots in blocks of at most `most`; one even of nothing.
fn blocks(len: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let count = len.div_ceil(most).max(1);
    (0..count).map(move |block| block * most..len.min((block + 1) * most))
}

/// A slot as it crosses a wire.
fn slot_or_none(slot: Overflow) -> i64 {
    slot.and_then(|slot| i64::try_from(slot).ok()).unwrap_or(-1)
}

impl Wire {
    pub(crate) fn new(mesh: Mesh) -> Self {
        Self {
            ways: Ways { mesh, ring: None },
            rows: Vec::new(),
            before: Vec::new(),
            wide: Wide::default(),
            total: Vec::new(),
            last_sent_ns: 0,
            bytes: Vec::new(),
        }
    }

    /// Lets what all members get alike go through their ring.
    pub(crate) fn with_ring(mut self, ring: Option<Ring>) -> Self {
        self.ways.ring = ring;
        self
    }

    /// This member's place in the group.
    pub(crate) fn me(&self) -> usize {
        self.ways.mesh.me()
    }

    fn size(&self) -> usize {
        self.ways.mesh.size()
    }

    /// Tells every peer that this member gives the group up from `round` on, and why.
    pub(crate) fn poison(&mut self, round: u64, why: &[u8]) {
        self.ways.mesh.poison(round, why);
    }

    /// Leaves in good order.
    pub(crate) fn close(&mut self) {
        if let Some(ring) = &mut self.ways.ring {
            ring.close();
        }
        self.ways.mesh.close();
    }

    /// Sends `values` to all members for a reduction that [`Wire::finish`] completes.
    pub(crate) fn start(
        &mut self,
        exchange: &Exchange<'_>,
        ops: Ops<'_>,
        values: &[i64],
    ) -> Result<(), MeshError> {
        fill(&mut self.bytes, &ops.codes(), values);
        let frame = exchange.frame(ops.kind(), 0, values.len());
        self.ways.mesh.post(&Frame {
            payload: &self.bytes,
            ..frame
        })
    }

    /// Completes a reduction that was started with the same arguments, into [`Wire::total`].
    pub(crate) fn finish<E>(
        &mut self,
        exchange: &Exchange<'_>,
        ops: Ops<'_>,
        values: &[i64],
        guard: impl FnMut() -> Result<(), E>,
    ) -> Result<Overflow, ExchangeError<Stop<E>>> {
        let mut total = std::mem::take(&mut self.total);
        total.clear();
        total.extend_from_slice(values);
        let outcome = self.reduce_directly(exchange, ops, &mut total, true, guard);
        self.total = total;
        self.before.clear();
        outcome
    }

    /// Reduces `values` over all members in place; [`Wire::settle`] must follow, with what the round has come to.
    pub(crate) fn all_reduce<E>(
        &mut self,
        exchange: &Exchange<'_>,
        ops: Ops<'_>,
        values: &mut [i64],
        guard: impl FnMut() -> Result<(), E>,
    ) -> Result<Overflow, ExchangeError<Stop<E>>> {
        let in_parts = values.len() >= BANDWIDTH_SLOTS && self.size() > 2;
        match ops {
            Ops::All(_) if in_parts => self.reduce_parts(exchange, ops, values, guard),
            _ => self.reduce_directly(exchange, ops, values, false, guard),
        }
    }

    /// Gives `values` back what they were before the reduction, unless its round has completed.
    pub(crate) fn settle<E>(
        &mut self,
        values: &mut [i64],
        outcome: Result<(), E>,
    ) -> Result<(), E> {
        if outcome.is_err() {
            values[..self.before.len()].copy_from_slice(&self.before);
        }
        self.before.clear();
        outcome
    }

    fn reduce_directly<E>(
        &mut self,
        exchange: &Exchange<'_>,
        ops: Ops<'_>,
        values: &mut [i64],
        posted: bool,
        mut guard: impl FnMut() -> Result<(), E>,
    ) -> Result<Overflow, ExchangeError<Stop<E>>> {
        let (me, size, len) = (self.me(), self.size(), values.len());
        let frame = exchange.frame(ops.kind(), 0, len);
        let codes = ops.codes();
        let keep = len <= KEPT_SLOTS;
        self.rows.resize_with(if keep { size } else { 0 }, Vec::new);
        if keep {
            self.rows[me].clear();
            self.rows[me].extend_from_slice(values);
        }
        self.before.clear();
        let Self {
            ways,
            rows,
            bytes,
            before,
            wide,
            ..
        } = self;
        // A list of operations goes with all of its values.
        let most = match ops {
            Ops::All(_) => BLOCK_SLOTS,
            Ops::Each(_) => len.max(1),
        };
        let mut overflow = None;
        for block in blocks(len, most) {
            let values = &mut values[block.clone()];
            before.extend_from_slice(values);
            wide.begin(ops, values);
            let sent = match ops {
                _ if posted => Sent::Posted,
                Ops::All(_) => Sent::Same(bytemuck::cast_slice(&before[block.clone()])),
                Ops::Each(_) => {
                    fill(bytes, &codes, values);
                    Sent::Same(bytes)
                }
            };
            let take = |peer: usize, payload: &[u8]| {
                wide.fold(ops, values, payload);
                if let Some(row) = rows.get_mut(peer) {
                    row.clear();
                    row.extend(get(payload));
                }
            };
            self.last_sent_ns = ways.meet(
                frame,
                &codes,
                &sent,
                exchange.deadline,
                &mut guard,
                |_| Some(8 * block.len()),
                take,
            )?;
            let own = wide.narrow(values);
            overflow = first(overflow, own.map(|place| block.start + place));
        }
        Ok(overflow)
    }

    /// Of each block: reduce-scatter, then all-gather.
    fn reduce_parts<E>(
        &mut self,
        exchange: &Exchange<'_>,
        ops: Ops<'_>,
        values: &mut [i64],
        mut guard: impl FnMut() -> Result<(), E>,
    ) -> Result<Overflow, ExchangeError<Stop<E>>> {
        let (me, size, len) = (self.me(), self.size(), values.len());
        let frame = exchange.frame(ops.kind(), 0, len);
        self.rows.clear();
        self.before.clear();
        let Self {
            ways,
            bytes,
            before,
            wide,
            ..
        } = self;
        let mut overflow = None;
        for block in blocks(len, BLOCK_SLOTS * size) {
            let part = |at: usize| part(&block, at, size);
            before.extend_from_slice(&values[block.clone()]);
            let parts: Vec<&[u8]> = (0..size)
                .map(|at| bytemuck::cast_slice(&before[part(at)]))
                .collect();
            let mine = &mut values[part(me)];
            wide.begin(ops, mine);
            ways.meet(
                frame,
                &[],
                &Sent::Parts(&parts),
                exchange.deadline,
                &mut guard,
                |_| Some(8 * part(me).len()),
                |_, payload| wide.fold(ops, mine, payload),
            )?;
            // Before the totals of a part: the first that does not fit, or no slot.
            let own = wide.narrow(mine).map(|place| part(me).start + place);
            overflow = first(overflow, own);
            fill(bytes, &slot_or_none(own).to_le_bytes(), mine);
            let take = |peer, payload: &[u8]| {
                let (slot, theirs) = payload.split_at(8);
                let slot = get(slot).next();
                overflow = first(overflow, slot.and_then(|slot| usize::try_from(slot).ok()));
                bytemuck::cast_slice_mut(&mut values[part(peer)]).copy_from_slice(theirs);
            };
            self.last_sent_ns = ways.meet(
                frame,
                &[],
                &Sent::SameByMesh(bytes),
                exchange.deadline,
                &mut guard,
                |peer| Some(8 * (1 + part(peer).len())),
                take,
            )?;
        }
        Ok(overflow)
    }

    /// Gives the values of every member to all, in the order of the members, into [`Wire::total`].
    pub(crate) fn gather<E>(
        &mut self,
        exchange: &Exchange<'_>,
        values: &[i64],
        guard: impl FnMut() -> Result<(), E>,
    ) -> Result<(), ExchangeError<Stop<E>>> {
        let (me, size, width) = (self.me(), self.size(), values.len());
        let frame = exchange.frame(Kind::Gather, 0, width);
        self.rows.clear();
        let Self { ways, total, .. } = self;
        total.clear();
        total.resize(size * width, 0);
        total[me * width..(me + 1) * width].copy_from_slice(values);
        let take = |peer: usize, payload: &[u8]| {
            let place = &mut total[peer * width..(peer + 1) * width];
            bytemuck::cast_slice_mut(place).copy_from_slice(payload);
        };
        self.last_sent_ns = ways.meet(
            frame,
            &[],
            &Sent::Same(bytemuck::cast_slice(values)),
            exchange.deadline,
            guard,
            |_| Some(8 * width),
            take,
        )?;
        Ok(())
    }

    /// Gives the bytes of every member to all, in the order of the members.
    pub(crate) fn gather_bytes<E>(
        &mut self,
        exchange: &Exchange<'_>,
        bytes: &[u8],
        guard: impl FnMut() -> Result<(), E>,
    ) -> Result<Vec<Vec<u8>>, ExchangeError<Stop<E>>> {
        let frame = exchange.frame(Kind::GatherBytes, 0, 0);
        let mut all = vec![Vec::new(); self.size()];
        all[self.me()].extend_from_slice(bytes);
        self.last_sent_ns = self.ways.meet(
            frame,
            &[],
            &Sent::Same(bytes),
            exchange.deadline,
            guard,
            |_| None,
            |peer, payload: &[u8]| all[peer].extend_from_slice(payload),
        )?;
        Ok(all)
    }

    /// Brings the bytes of every member to `root`, in the order of the members; the others get nothing.
    pub(crate) fn gather_at<E>(
        &mut self,
        exchange: &Exchange<'_>,
        root: usize,
        bytes: &[u8],
        guard: impl FnMut() -> Result<(), E>,
    ) -> Result<Vec<Vec<u8>>, ExchangeError<Stop<E>>> {
        let frame = exchange.frame(Kind::GatherBytes, root, 0);
        let (me, size) = (self.me(), self.size());
        let mut all = vec![Vec::new(); size];
        let mut parts: Vec<&[u8]> = vec![&[]; size];
        parts[root] = bytes;
        if me == root {
            all[me].extend_from_slice(bytes);
        }
        self.last_sent_ns = self.ways.meet(
            frame,
            &[],
            &Sent::Parts(&parts),
            exchange.deadline,
            guard,
            |_| if me == root { None } else { Some(0) },
            |peer, payload: &[u8]| all[peer].extend_from_slice(payload),
        )?;
        Ok(all)
    }

    /// Gives the bytes of `root` to all members. Every member hears from every other, also from those who send nothing.
    pub(crate) fn broadcast<E>(
        &mut self,
        exchange: &Exchange<'_>,
        root: usize,
        bytes: &mut Vec<u8>,
        mut guard: impl FnMut() -> Result<(), E>,
    ) -> Result<(), ExchangeError<Stop<E>>> {
        if let Some(ring) = &mut self.ways.ring {
            let guard = || guard().map_err(Stop::Guard);
            return ring::broadcast(ring, root, bytes, exchange.deadline, guard);
        }
        let own = if self.me() == root {
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
        let outcome = self
            .ways
            .meet(frame, &[], &sent, exchange.deadline, guard, |_| None, take);
        if self.me() == root {
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
        self.last_sent_ns = self.ways.meet(
            frame,
            &[],
            &nothing,
            exchange.deadline,
            guard,
            |_| Some(0),
            |_, _| (),
        )?;
        Ok(())
    }

    /// The result of the last started reduction or gather.
    pub(crate) fn total(&self) -> &[i64] {
        &self.total
    }

    /// What every rank put into `slot` of the last small reduction.
    pub(crate) fn contributions(&self, slot: usize) -> Option<Vec<i64>> {
        let found: Option<Vec<i64>> = self.rows.iter().map(|row| row.get(slot).copied()).collect();
        found.filter(|column| !column.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::watchdog::within_a_minute;
    use std::convert::Infallible;
    use std::thread;
    use std::time::Duration;

    type Outcome = Result<Overflow, ExchangeError<Stop<Infallible>>>;

    fn reduce(wire: &mut Wire, ops: Ops<'_>, values: &mut [i64], round: u64) -> Outcome {
        let exchange = Exchange {
            round,
            label: "test",
            deadline: Instant::now() + Duration::from_secs(30),
        };
        let outcome = wire.all_reduce(&exchange, ops, values, || Ok(()));
        let completed = match &outcome {
            Ok(None) => Ok(()),
            _ => Err(()),
        };
        let _ = wire.settle(values, completed);
        outcome
    }

    /// What each member of a group returns of its part in it.
    fn members<T: Send>(size: usize, part: impl Fn(Wire) -> T + Sync) -> Vec<T> {
        let part = &part;
        let meshes = Mesh::pairs(size).unwrap();
        thread::scope(|scope| {
            let members: Vec<_> = meshes
                .into_iter()
                .map(|mesh| scope.spawn(move || part(Wire::new(mesh))))
                .collect();
            members
                .into_iter()
                .map(|member| member.join().unwrap())
                .collect()
        })
    }

    /// Widths around the limits of blocks, and of those that are cut in parts.
    fn widths(size: usize) -> [usize; 7] {
        let block = BLOCK_SLOTS;
        [
            1,
            BANDWIDTH_SLOTS,
            block,
            block + 1,
            block * size,
            block * size + 1,
            3 * block * size - 1,
        ]
    }

    fn contribution(member: usize, slot: usize) -> i64 {
        i64::try_from((slot + 1) * (member + 3) % 1009).unwrap() - 500
    }

    #[test]
    fn every_slot_of_every_width_is_reduced_on_all_members() {
        within_a_minute(|| {
            for size in [2, 3, 4] {
                members(size, |mut wire| {
                    let mut round = 0;
                    for width in widths(size) {
                        for op in [Op::Min, Op::Max, Op::Sum, Op::Or, Op::And] {
                            round += 1;
                            let me = wire.me();
                            let mut values: Vec<_> =
                                (0..width).map(|slot| contribution(me, slot)).collect();
                            let outcome = reduce(&mut wire, Ops::All(op), &mut values, round);
                            assert!(matches!(outcome, Ok(None)), "{outcome:?}");
                            for (slot, value) in values.into_iter().enumerate() {
                                let of = |member| i128::from(contribution(member, slot));
                                let total = (0..size).map(of).reduce(|a, b| op.join(a, b));
                                assert_eq!(Some(i128::from(value)), total, "{op} slot {slot}");
                            }
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn the_first_slot_that_does_not_fit_is_told_to_all_and_leaves_all_values() {
        within_a_minute(|| {
            for size in [2, 3] {
                members(size, |mut wire| {
                    for (round, width) in (1..).zip(widths(size)) {
                        let mine: Vec<_> = (0..width)
                            .map(|slot| if slot >= width / 2 { i64::MAX } else { 1 })
                            .collect();
                        let mut values = mine.clone();
                        let outcome = reduce(&mut wire, Ops::All(Op::Sum), &mut values, round);
                        assert!(
                            matches!(outcome, Ok(Some(slot)) if slot == width / 2),
                            "{outcome:?}"
                        );
                        assert!(values == mine, "{width} slots");
                    }
                });
            }
        });
    }

    #[test]
    fn a_reduction_that_fails_after_its_first_exchange_leaves_all_values() {
        within_a_minute(|| {
            for size in [2, 3] {
                members(size, |mut wire| {
                    let me = wire.me();
                    let width = 3 * BLOCK_SLOTS * size;
                    let mine = vec![i64::try_from(me).unwrap(); width];
                    if me + 1 < size {
                        let mut values = mine.clone();
                        let outcome = reduce(&mut wire, Ops::All(Op::Max), &mut values, 1);
                        assert!(
                            matches!(outcome, Err(ExchangeError::Mesh(MeshError::Left { .. }))),
                            "{outcome:?}"
                        );
                        assert!(values == mine);
                        return;
                    }
                    // The last takes part in one exchange and leaves.
                    let exchange = Exchange {
                        round: 1,
                        label: "test",
                        deadline: Instant::now() + Duration::from_secs(30),
                    };
                    let block: &[u8] = bytemuck::cast_slice(&mine[..BLOCK_SLOTS]);
                    let parts = vec![block; size];
                    let sent = match size {
                        2 => Sent::Same(block),
                        _ => Sent::Parts(&parts),
                    };
                    let outcome: Result<_, ExchangeError<Stop<Infallible>>> = wire.ways.meet(
                        exchange.frame(Kind::Max, 0, width),
                        &[],
                        &sent,
                        exchange.deadline,
                        || Ok(()),
                        |_| Some(block.len()),
                        |_, _| (),
                    );
                    assert!(outcome.is_ok(), "{outcome:?}");
                });
            }
        });
    }
}
