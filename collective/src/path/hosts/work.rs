//! What a call does with the contributions of ranks, within a host and between hosts.

use super::members::Hosts;
use super::verdict::Verdict;
use crate::codec::{Fields, Put};
use crate::op::Ops;
use crate::path::data::Shown;
use crate::path::slots::{bytes_of, get};
use crate::path::table::description;
use rankpact_shm::Kind;

/// What a call does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work<'a> {
    Barrier,
    Reduce { ops: Ops<'a>, slots: usize },
    Gather { slots: usize },
    GatherBytes,
    Broadcast { root: usize },
}

impl Work<'_> {
    pub(super) fn kind(self) -> Kind {
        match self {
            Self::Barrier => Kind::Barrier,
            Self::Reduce { ops, .. } => ops.kind(),
            Self::Gather { .. } => Kind::Gather,
            Self::GatherBytes => Kind::GatherBytes,
            Self::Broadcast { .. } => Kind::Broadcast,
        }
    }

    /// What the ranks of a host compare besides kind and label.
    pub(super) fn description(self) -> i64 {
        let word = |number| i64::try_from(number).unwrap_or(i64::MAX);
        match self {
            Self::Barrier | Self::GatherBytes => 0,
            Self::Reduce { ops, slots } => description(ops, slots),
            Self::Gather { slots } => word(slots),
            Self::Broadcast { root } => word(root),
        }
    }

    /// What hosts compare.
    pub(super) fn shown(self, label: &str) -> Shown {
        let (root, slots, codes) = match self {
            Self::Barrier | Self::GatherBytes => (0, 0, Vec::new()),
            Self::Reduce { ops, slots } => (0, slots, ops.codes()),
            Self::Gather { slots } => (0, slots, Vec::new()),
            Self::Broadcast { root } => (root, 0, Vec::new()),
        };
        Shown {
            operation: self.kind() as u8,
            root: u16::try_from(root).unwrap_or(u16::MAX),
            width: u32::try_from(slots).unwrap_or(u32::MAX),
            label: label.to_owned(),
            codes,
        }
    }

    /// What a host comes to, given what each of its ranks contributes.
    pub(super) fn contribute(self, hosts: &Hosts, contributions: &[Vec<u8>]) -> Option<Vec<u8>> {
        match self {
            Self::Barrier => Some(Vec::new()),
            Self::Reduce { ops, slots } => {
                Some(put_totals(ops, &total(ops, slots, contributions)?))
            }
            Self::Gather { .. } | Self::GatherBytes => {
                Some(pack(contributions.iter().map(Vec::as_slice)))
            }
            Self::Broadcast { root } => {
                let at = hosts.places().iter().position(|place| *place == root);
                Some(at.map_or_else(Vec::new, |at| contributions[at].clone()))
            }
        }
    }

    /// What all hosts come to, given what each has sent.
    pub(super) fn conclude(self, hosts: &Hosts, brought: &mut [Vec<u8>]) -> Option<Verdict> {
        let places = hosts.all();
        match self {
            Self::Barrier => Some(Verdict::Value(Vec::new())),
            Self::Reduce { ops, slots } => {
                let mut hosts = brought.iter().map(|bytes| get_totals(ops, bytes));
                let mut totals = hosts.next()?;
                for theirs in hosts {
                    if theirs.len() != slots {
                        return None;
                    }
                    let each = totals.iter_mut().zip(theirs).enumerate();
                    each.for_each(|(slot, (total, theirs))| {
                        *total = ops.of(slot).join(*total, theirs);
                    });
                }
                (totals.len() == slots).then(|| narrow(&totals))
            }
            Self::Gather { .. } | Self::GatherBytes => {
                let size = places.iter().map(Vec::len).sum();
                let mut all: Vec<&[u8]> = vec![&[]; size];
                for (places, bytes) in places.iter().zip(brought) {
                    for (place, item) in places.iter().zip(unpack(bytes, places.len())?) {
                        all[*place] = item;
                    }
                }
                Some(Verdict::Value(pack(all)))
            }
            Self::Broadcast { root } => {
                let host = places.iter().position(|places| places.contains(&root))?;
                Some(Verdict::Value(std::mem::take(&mut brought[host])))
            }
        }
    }
}

/// The call in front of what a host sends.
pub(super) fn header(shown: &Shown) -> Vec<u8> {
    let mut bytes = vec![shown.operation];
    bytes.extend(shown.root.to_le_bytes());
    bytes.extend(shown.width.to_le_bytes());
    bytes.put_bytes(shown.label.as_bytes());
    bytes.put_bytes(&shown.codes);
    bytes
}

pub(super) fn shown(bytes: &[u8]) -> Option<Shown> {
    let mut fields = Fields(bytes);
    Some(Shown {
        operation: fields.u8()?,
        root: fields.u16()?,
        width: fields.u32()?,
        label: fields.text()?,
        codes: fields.bytes()?.to_vec(),
    })
}

/// The totals of some ranks, which may not fit 64 bits.
fn total(ops: Ops<'_>, slots: usize, contributions: &[Vec<u8>]) -> Option<Vec<i128>> {
    let mut rows = contributions.iter();
    let mut totals: Vec<i128> = get(rows.next()?).map(i128::from).collect();
    for row in rows {
        if row.len() != 8 * slots {
            return None;
        }
        let each = totals.iter_mut().zip(get(row)).enumerate();
        each.for_each(|(slot, (total, value))| *total = ops.of(slot).fold(*total, value));
    }
    (totals.len() == slots).then_some(totals)
}

fn put_totals(ops: Ops<'_>, totals: &[i128]) -> Vec<u8> {
    let width = if ops.may_overflow() { 16 } else { 8 };
    let mut bytes = Vec::with_capacity(width * totals.len());
    for total in totals {
        bytes.extend_from_slice(&total.to_le_bytes()[..width]);
    }
    bytes
}

fn get_totals(ops: Ops<'_>, bytes: &[u8]) -> Vec<i128> {
    if ops.may_overflow() {
        let total = |bytes: &[u8]| i128::from_le_bytes(bytes.try_into().unwrap_or_default());
        bytes.chunks_exact(16).map(total).collect()
    } else {
        get(bytes).map(i128::from).collect()
    }
}

/// `totals` as 64-bit slots, or the first that does not fit.
fn narrow(totals: &[i128]) -> Verdict {
    let mut values = Vec::with_capacity(totals.len());
    for (slot, total) in totals.iter().enumerate() {
        match i64::try_from(*total) {
            Ok(value) => values.push(value),
            Err(_) => return Verdict::Overflow { slot },
        }
    }
    Verdict::Value(bytes_of(&values))
}

fn pack<'a>(list: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    list.into_iter().for_each(|item| bytes.put_bytes(item));
    bytes
}

pub(super) fn unpack(bytes: &[u8], count: usize) -> Option<Vec<&[u8]>> {
    let mut fields = Fields(bytes);
    let list = (0..count)
        .map(|_| fields.bytes())
        .collect::<Option<Vec<_>>>()?;
    fields.end(list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;

    /// What two hosts come to, of two ranks and of one.
    fn reduced(ops: Ops<'_>, rows: [&[i64]; 3]) -> Verdict {
        let places = vec![vec![0, 2], vec![1]];
        let work = Work::Reduce {
            ops,
            slots: rows[0].len(),
        };
        let one = Hosts::new(places.clone(), 0);
        let other = Hosts::new(places, 1);
        let [a, b, c] = rows.map(bytes_of);
        let mut brought = [
            work.contribute(&one, &[a, c]).expect("rows of one width"),
            work.contribute(&other, &[b]).expect("a row"),
        ];
        work.conclude(&one, &mut brought).expect("totals")
    }

    #[test]
    fn a_sum_is_judged_when_all_hosts_are_in_it() {
        // What the first host comes to does not fit 64 bits in slots 0 and 1.
        let rows: [&[i64]; 3] = [
            &[i64::MAX, i64::MIN, i64::MAX],
            &[i64::MIN, i64::MAX, 1],
            &[i64::MAX, -1, 0],
        ];
        let fits = |slots: usize| reduced(Ops::All(Op::Sum), rows.map(|row| &row[..slots]));
        let Verdict::Value(bytes) = fits(2) else {
            panic!("both totals fit");
        };
        assert_eq!(get(&bytes).collect::<Vec<_>>(), [i64::MAX - 1, -2]);
        assert!(matches!(fits(3), Verdict::Overflow { slot: 2 }));
    }

    #[test]
    fn what_does_not_fit_its_call_is_no_contribution() {
        let hosts = Hosts::new(vec![vec![0, 1], vec![2]], 0);
        let work = Work::Reduce {
            ops: Ops::All(Op::Min),
            slots: 2,
        };
        assert!(
            work.contribute(&hosts, &[bytes_of(&[1, 2]), bytes_of(&[1])])
                .is_none()
        );
        assert!(
            work.conclude(&hosts, &mut [bytes_of(&[1, 2]), bytes_of(&[1])])
                .is_none()
        );
        let mut brought = [pack([&b"a"[..]]), pack([&b"c"[..]])];
        assert!(Work::GatherBytes.conclude(&hosts, &mut brought).is_none());
    }
}
