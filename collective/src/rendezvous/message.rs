//! What links and server say to each other.

use super::{LinkError, REASON};
use crate::codec::{Fields, Put};
use crate::envelope::seal;

/// From a link to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// A contribution to a gather.
    Gather {
        /// The link's own number for it, returned in every reply.
        id: u64,
        /// Milliseconds left; clocks of hosts differ, durations do not.
        millis: u64,
        key: String,
        members: Vec<usize>,
        payload: Vec<u8>,
    },
    Abort {
        reason: String,
    },
    Goodbye,
}

impl Request {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        match self {
            Self::Gather {
                id,
                millis,
                key,
                members,
                payload,
            } => {
                body.push(1);
                body.extend_from_slice(&id.to_le_bytes());
                body.extend_from_slice(&millis.to_le_bytes());
                body.put_bytes(key.as_bytes());
                body.put_ranks(members);
                body.put_bytes(payload);
            }
            Self::Abort { reason } => {
                body.push(2);
                body.put_bytes(cut(reason).as_bytes());
            }
            Self::Goodbye => body.push(3),
        }
        seal(&body)
    }

    pub(super) fn decode(body: &[u8]) -> Option<Self> {
        let mut fields = Fields(body);
        let request = match fields.u8()? {
            1 => Self::Gather {
                id: fields.u64()?,
                millis: fields.u64()?,
                key: fields.text()?,
                members: fields.ranks()?,
                payload: fields.bytes()?.to_vec(),
            },
            2 => Self::Abort {
                reason: fields.text()?,
            },
            3 => Self::Goodbye,
            _ => return None,
        };
        fields.end(request)
    }
}

/// From the server to a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// The next member's contribution, in the order of the members.
    Part {
        id: u64,
        bytes: Vec<u8>,
    },
    Failed {
        id: u64,
        error: LinkError,
    },
    Aborted {
        rank: usize,
        reason: String,
    },
    Died {
        rank: usize,
    },
    Closed,
}

impl Reply {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        match self {
            Self::Part { id, bytes } => {
                body.push(1);
                body.extend_from_slice(&id.to_le_bytes());
                body.put_bytes(bytes);
            }
            Self::Failed { id, error } => {
                body.push(2);
                body.extend_from_slice(&id.to_le_bytes());
                put_error(&mut body, error);
            }
            Self::Aborted { rank, reason } => {
                body.push(3);
                body.put_count(*rank);
                body.put_bytes(cut(reason).as_bytes());
            }
            Self::Closed => body.push(4),
            Self::Died { rank } => {
                body.push(5);
                body.put_count(*rank);
            }
        }
        seal(&body)
    }

    pub(super) fn decode(body: &[u8]) -> Option<Self> {
        let mut fields = Fields(body);
        let reply = match fields.u8()? {
            1 => Self::Part {
                id: fields.u64()?,
                bytes: fields.bytes()?.to_vec(),
            },
            2 => Self::Failed {
                id: fields.u64()?,
                error: take_error(&mut fields)?,
            },
            3 => Self::Aborted {
                rank: fields.count()?,
                reason: fields.text()?,
            },
            4 => Self::Closed,
            5 => Self::Died {
                rank: fields.count()?,
            },
            _ => return None,
        };
        fields.end(reply)
    }
}

/// As much of `text` as a reason may be long, without cutting a character in two.
pub(super) fn cut(text: &str) -> &str {
    let mut end = text.len().min(REASON);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn put_error(body: &mut Vec<u8>, error: &LinkError) {
    match error {
        LinkError::Missing { ranks } => {
            body.push(1);
            body.put_ranks(ranks);
        }
        LinkError::Died { rank } => {
            body.push(2);
            body.put_count(*rank);
        }
        LinkError::Left { rank } => {
            body.push(3);
            body.put_count(*rank);
        }
        LinkError::Members { one, other } => {
            body.push(4);
            for (rank, list) in [one, other] {
                body.put_count(*rank);
                body.put_ranks(list);
            }
        }
        LinkError::Aborted { rank, reason } => {
            body.push(5);
            body.put_count(*rank);
            body.put_bytes(cut(reason).as_bytes());
        }
        other => {
            body.push(6);
            body.put_bytes(cut(&other.to_string()).as_bytes());
        }
    }
}

fn take_error(fields: &mut Fields<'_>) -> Option<LinkError> {
    Some(match fields.u8()? {
        1 => LinkError::Missing {
            ranks: fields.ranks()?,
        },
        2 => LinkError::Died {
            rank: fields.count()?,
        },
        3 => LinkError::Left {
            rank: fields.count()?,
        },
        4 => LinkError::Members {
            one: (fields.count()?, fields.ranks()?),
            other: (fields.count()?, fields.ranks()?),
        },
        5 => LinkError::Aborted {
            rank: fields.count()?,
            reason: fields.text()?,
        },
        6 => LinkError::Usage(fields.text()?),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envelope::HEAD;

    #[test]
    fn every_message_survives_the_wire_and_no_shortened_one_does() {
        let requests = [
            Request::Gather {
                id: 7,
                millis: 9,
                key: "k".into(),
                members: vec![0, 2],
                payload: vec![1, 2, 3],
            },
            Request::Abort {
                reason: "why".into(),
            },
            Request::Goodbye,
        ];
        for request in requests {
            let sealed = request.encode();
            assert_eq!(Request::decode(&sealed[HEAD..]), Some(request));
            assert_eq!(Request::decode(&sealed[HEAD..sealed.len() - 1]), None);
        }
        let errors = [
            LinkError::Missing { ranks: vec![1, 3] },
            LinkError::Died { rank: 4 },
            LinkError::Left { rank: 5 },
            LinkError::Members {
                one: (0, vec![0, 1]),
                other: (1, vec![1]),
            },
            LinkError::Aborted {
                rank: 6,
                reason: "why".into(),
            },
            LinkError::Usage("what".into()),
        ];
        let replies = errors
            .map(|error| Reply::Failed { id: 1, error })
            .into_iter()
            .chain([
                Reply::Part {
                    id: 2,
                    bytes: vec![0; 100],
                },
                Reply::Aborted {
                    rank: 1,
                    reason: String::new(),
                },
                Reply::Closed,
            ]);
        for reply in replies {
            let sealed = reply.encode();
            assert_eq!(Reply::decode(&sealed[HEAD..]), Some(reply));
            assert_eq!(Reply::decode(&sealed[HEAD..sealed.len() - 1]), None);
        }
    }

    #[test]
    fn a_reason_is_cut_between_characters() {
        let long = "\u{20ac}".repeat(REASON);
        assert!(cut(&long).len() <= REASON && cut(&long).ends_with('\u{20ac}'));
        assert_eq!(cut("short"), "short");
    }
}
