//! What crosses a mesh: one fixed header and a payload in one envelope.

use crate::codec::Fields;
use crate::envelope::{HEAD, head};

/// Bytes of the longest label.
pub(crate) const LABEL: usize = rankpact_shm::LABEL_BYTES;

/// Bytes of the longest payload of a round.
pub(crate) const PAYLOAD: usize = 1 << 30;

/// Bytes of the longest payload of a poison.
pub(crate) const POISON: usize = 64 << 10;

/// Bytes of the fields before the payload: kind, operation, root, width, round, time, label with its length, and one
/// reserved byte.
const FIELDS: usize = 1 + 1 + 2 + 4 + 8 + 8 + 1 + LABEL + 1;

/// Bytes before the payload: with the two slots of a small round a frame is 96 bytes.
pub(crate) const HEADER: usize = HEAD + FIELDS;

/// Bytes of the longest body of an envelope.
pub(crate) const BODY: usize = FIELDS + PAYLOAD;

const _: () = assert!(HEADER == 80);

/// Why a frame is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A contribution to a round.
    Data = 1,
    /// The sender has given the group up.
    Poison = 2,
    /// The sender leaves in order; nothing follows.
    Bye = 3,
}

/// One member's contribution to a round, and the call it belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Frame<'a> {
    /// The round.
    pub(crate) round: u64,
    /// The operation, in the caller's numbering.
    pub(crate) operation: u8,
    /// The root, or what else the operation needs.
    pub(crate) root: u16,
    /// The width of the contribution.
    pub(crate) width: u32,
    /// When it was sent, on the sender's clock.
    pub(crate) sent_ns: u64,
    /// The label of the call, at most [`LABEL`] bytes.
    pub(crate) label: &'a str,
    /// The contribution, at most [`PAYLOAD`] bytes.
    pub(crate) payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The header to send before the payload; the caller has checked the lengths.
    pub(super) fn header(&self, kind: Kind) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        let label = &self.label.as_bytes()[..self.label.len().min(LABEL)];
        let mut at = HEAD;
        let mut put = |bytes: &[u8]| {
            header[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&[kind as u8, self.operation]);
        put(&self.root.to_le_bytes());
        put(&self.width.to_le_bytes());
        put(&self.round.to_le_bytes());
        put(&self.sent_ns.to_le_bytes());
        put(&u8::try_from(label.len()).unwrap_or(0).to_le_bytes());
        put(label);
        let envelope = head(&[&header[HEAD..], self.payload]);
        header[..HEAD].copy_from_slice(&envelope);
        header
    }

    /// The frame in the body of an envelope.
    pub(super) fn decode(body: &'a [u8]) -> Option<(Kind, Self)> {
        let mut fields = Fields(body);
        let kind = match fields.u8()? {
            1 => Kind::Data,
            2 => Kind::Poison,
            3 => Kind::Bye,
            _ => return None,
        };
        let (operation, root, width) = (fields.u8()?, fields.u16()?, fields.u32()?);
        let (round, sent_ns) = (fields.u64()?, fields.u64()?);
        let label = fields.label()?;
        fields.u8()?;
        let payload = fields.0;
        if kind == Kind::Poison && payload.len() > POISON {
            return None;
        }
        Some((
            kind,
            Self {
                round,
                operation,
                root,
                width,
                sent_ns,
                label,
                payload,
            },
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_survives_the_wire() {
        for label in ["", "counts", &"l".repeat(LABEL)] {
            let frame = Frame {
                round: u64::MAX - 1,
                operation: 3,
                root: 7,
                width: 9,
                sent_ns: 11,
                label,
                payload: b"payload",
            };
            for kind in [Kind::Data, Kind::Poison, Kind::Bye] {
                let mut body = frame.header(kind)[HEAD..].to_vec();
                body.extend_from_slice(frame.payload);
                assert_eq!(Frame::decode(&body), Some((kind, frame)));
            }
        }
    }

    #[test]
    fn a_broken_header_gives_no_frame() {
        let good = Frame {
            label: "x",
            ..Frame::default()
        }
        .header(Kind::Data)[HEAD..]
            .to_vec();
        let broken = |at: usize, byte: u8| {
            let mut body = good.clone();
            body[at] = byte;
            Frame::decode(&body).is_none()
        };
        assert!(broken(0, 9), "kind");
        assert!(broken(24, 43), "length of the label");
        assert!(broken(25, 0xff), "label is no text");
        assert!(Frame::decode(&good[..good.len() - 1]).is_none(), "short");
    }

    #[test]
    fn a_poison_may_not_be_large() {
        let mut body = Frame::default().header(Kind::Poison)[HEAD..].to_vec();
        body.resize(body.len() + POISON, 0);
        assert!(Frame::decode(&body).is_some());
        body.push(0);
        assert!(Frame::decode(&body).is_none());
    }
}
