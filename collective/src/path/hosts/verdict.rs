//! What came of a round between hosts, as it returns through the table of each.

use crate::codec::Fields;
use crate::error::ErrorKind;
use crate::job;

/// What the leader tells its host.
#[derive(Debug)]
pub(super) enum Verdict {
    Value(Vec<u8>),
    Overflow { slot: usize },
    Failed(ErrorKind),
}

impl Verdict {
    pub(super) fn encode(self) -> Vec<u8> {
        let (mut bytes, last) = match self {
            Self::Value(bytes) => (bytes, 0),
            Self::Overflow { slot } => ((slot as u64).to_le_bytes().to_vec(), 1),
            Self::Failed(kind) => (job::encode(&kind), 2),
        };
        bytes.push(last);
        bytes
    }

    pub(super) fn decode(mut bytes: Vec<u8>) -> Option<Self> {
        match bytes.pop()? {
            0 => Some(Self::Value(bytes)),
            1 => {
                let slot = usize::try_from(Fields(&bytes).u64()?).ok()?;
                Some(Self::Overflow { slot })
            }
            2 => serde_json::from_slice(&bytes).ok().map(Self::Failed),
            _ => None,
        }
    }
}
