//! What crosses the connection of a pair: one fixed header and a payload in one envelope.

use crate::codec::Fields;
use crate::envelope::{HEAD, head};
use rankpact_shm::LABEL_BYTES;

/// Bytes of the longest message.
pub(crate) const LONGEST: usize = 64 << 20;

/// Bytes of the longest payload of a poison.
const POISON: usize = 64 << 10;

/// Bytes of the fields before the payload: kind, length of the label, label, number.
const FIELDS: usize = 1 + 1 + LABEL_BYTES + 8;

/// Bytes before the payload.
pub(super) const HEADER: usize = HEAD + FIELDS;

/// Bytes of the longest body of an envelope.
pub(super) const BODY: usize = FIELDS + LONGEST;

const _: () = assert!(HEADER == 64);

/// Why a frame is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A message; its number is one more than that of the message before it.
    Message = 1,
    /// The sender has given the pair up; the payload says why.
    Poison = 2,
    /// The sender leaves in order; nothing follows.
    Bye = 3,
    /// The sender has taken all messages up to this number.
    Taken = 4,
}

/// One frame of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    pub(super) kind: Kind,
    pub(super) number: u64,
    /// At most [`LABEL_BYTES`] bytes.
    pub(super) label: &'a str,
    /// At most [`LONGEST`] bytes.
    pub(super) payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// A frame without label and payload.
    pub(super) fn bare(kind: Kind, number: u64) -> Self {
        Self {
            kind,
            number,
            label: "",
            payload: &[],
        }
    }

    /// The frame of a poison; as much of `why` as fits.
    pub(super) fn poison(why: &'a [u8]) -> Self {
        Self {
            payload: &why[..why.len().min(POISON)],
            ..Self::bare(Kind::Poison, 0)
        }
    }

    /// What to send; the caller has checked the lengths.
    pub(super) fn seal(&self) -> Vec<u8> {
        let label = &self.label.as_bytes()[..self.label.len().min(LABEL_BYTES)];
        let mut fields = [0; FIELDS];
        fields[0] = self.kind as u8;
        fields[1] = u8::try_from(label.len()).unwrap_or(0);
        fields[2..2 + label.len()].copy_from_slice(label);
        fields[2 + LABEL_BYTES..].copy_from_slice(&self.number.to_le_bytes());
        let head = head(&[&fields, self.payload]);
        [&head[..], &fields, self.payload].concat()
    }

    /// The frame in the body of an envelope.
    pub(super) fn decode(body: &'a [u8]) -> Option<Self> {
        let mut fields = Fields(body);
        let kind = match fields.u8()? {
            1 => Kind::Message,
            2 => Kind::Poison,
            3 => Kind::Bye,
            4 => Kind::Taken,
            _ => return None,
        };
        let label = fields.label()?;
        let number = fields.u64()?;
        let payload = fields.0;
        let most = match kind {
            Kind::Message => LONGEST,
            Kind::Poison => POISON,
            Kind::Bye | Kind::Taken => 0,
        };
        (payload.len() <= most).then_some(Self {
            kind,
            number,
            label,
            payload,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_survives_the_wire() {
        for label in ["", "counts", &"l".repeat(LABEL_BYTES)] {
            for kind in [Kind::Message, Kind::Poison] {
                let frame = Frame {
                    kind,
                    number: u64::MAX - 1,
                    label,
                    payload: b"payload",
                };
                assert_eq!(Frame::decode(&frame.seal()[HEAD..]), Some(frame));
            }
        }
        for kind in [Kind::Bye, Kind::Taken] {
            let frame = Frame::bare(kind, 7);
            assert_eq!(Frame::decode(&frame.seal()[HEAD..]), Some(frame));
        }
    }

    #[test]
    fn a_broken_frame_is_none() {
        let good = Frame {
            label: "x",
            ..Frame::bare(Kind::Message, 1)
        }
        .seal()[HEAD..]
            .to_vec();
        let broken = |at: usize, byte: u8| {
            let mut body = good.clone();
            body[at] = byte;
            Frame::decode(&body).is_none()
        };
        assert!(broken(0, 9), "kind");
        assert!(broken(1, 43), "length of the label");
        assert!(broken(2, 0xff), "label is no text");
        assert!(Frame::decode(&good[..good.len() - 1]).is_none(), "short");
        let mut bye = Frame::bare(Kind::Bye, 0).seal()[HEAD..].to_vec();
        bye.push(0);
        assert!(Frame::decode(&bye).is_none(), "a goodbye says no more");
        assert_eq!(Frame::poison(&vec![b' '; 2 * POISON]).payload.len(), POISON);
    }
}
