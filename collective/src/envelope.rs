//! The envelope of everything that crosses a socket: magic, length, checksum, body.
//!
//! Layout, little endian: magic and version (u32), length of the body (u32), crc32 over length and body (u32), body.

use std::io::{self, ErrorKind, Read};

use crc32fast::Hasher;

/// Bytes before the body.
pub(crate) const HEAD: usize = 12;

/// "RPN" and the version of the wire format.
const MAGIC: u32 = 0x5250_4E01;

/// Bytes asked for in one read: few calls for large bodies, and still in cache when they are hashed.
const CHUNK: usize = 256 << 10;

/// The least a buffer grows by; small frames never make it grow again.
const GROWTH: usize = 4 << 10;

/// What arrived is not an envelope; nothing after it can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Garbage(pub(crate) &'static str);

/// The head for a body that is sent in `parts`; the caller bounds their length.
pub(crate) fn head(parts: &[&[u8]]) -> [u8; HEAD] {
    let length = parts.iter().fold(0u32, |sum, part| {
        sum.saturating_add(u32::try_from(part.len()).unwrap_or(u32::MAX))
    });
    let mut hasher = Hasher::new();
    hasher.update(&length.to_le_bytes());
    for part in parts {
        hasher.update(part);
    }
    let mut head = [0; HEAD];
    head[0..4].copy_from_slice(&MAGIC.to_le_bytes());
    head[4..8].copy_from_slice(&length.to_le_bytes());
    head[8..12].copy_from_slice(&hasher.finalize().to_le_bytes());
    head
}

/// `body` in its envelope.
pub(crate) fn seal(body: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::with_capacity(HEAD + body.len());
    sealed.extend_from_slice(&head(&[body]));
    sealed.extend_from_slice(body);
    sealed
}

/// What one attempt to read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    /// Bytes.
    Some,
    /// Nothing for now.
    Nothing,
    /// The end of the stream; nothing will follow.
    End,
}

/// Bytes received and not yet consumed, cut into bodies.
///
/// The buffer is kept, and as large as the largest body so far: a steady exchange allocates nothing. It grows with
/// what has arrived, not with what a head promises.
#[derive(Debug)]
pub(crate) struct Inbox {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes of the body at `start` that are in `hasher`: a body is hashed as it arrives.
    hashed: usize,
    hasher: Hasher,
    limit: usize,
    /// The last read took all it had room for.
    brimming: bool,
}

impl Inbox {
    /// An empty inbox that takes bodies of up to `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            buffer: Vec::new(),
            start: 0,
            end: 0,
            hashed: 0,
            hasher: Hasher::new(),
            limit,
            brimming: false,
        }
    }

    /// Raises the limit, once the other end has proved who it is.
    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Reads once.
    ///
    /// # Errors
    /// The stream is broken; what arrived before stays readable.
    pub(crate) fn fill(&mut self, stream: &mut impl Read) -> io::Result<Filled> {
        self.make_room();
        let room = self.buffer.len().min(self.end + CHUNK);
        match stream.read(&mut self.buffer[self.end..room]) {
            Ok(0) => Ok(Filled::End),
            Ok(count) => {
                self.end += count;
                self.brimming = self.end == room;
                Ok(Filled::Some)
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                Ok(Filled::Nothing)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the last read took all it had room for, so that more may be waiting.
    pub(crate) fn is_brimming(&self) -> bool {
        self.brimming
    }

    /// The first complete body, which stays first until [`Inbox::pop`].
    ///
    /// # Errors
    /// The bytes are no envelope, or one that was changed on its way.
    pub(crate) fn peek(&mut self) -> Result<Option<&[u8]>, Garbage> {
        let Some((length, crc)) = self.parse()? else {
            return Ok(None);
        };
        let body = self.start + HEAD;
        let arrived = length.min(self.end - body);
        if self.hashed == 0 {
            self.hasher.reset();
            self.hasher
                .update(&self.buffer[self.start + 4..self.start + 8]);
        }
        self.hasher
            .update(&self.buffer[body + self.hashed..body + arrived]);
        self.hashed = arrived;
        if arrived < length {
            return Ok(None);
        }
        if self.hasher.clone().finalize() != crc {
            return Err(Garbage("checksum is wrong"));
        }
        Ok(Some(&self.buffer[body..body + length]))
    }

    /// The first complete body that `wanted` picks by a look at it; what is no envelope ends the search.
    pub(crate) fn find(&self, wanted: impl Fn(&[u8]) -> bool) -> Option<&[u8]> {
        let mut start = self.start;
        loop {
            let (length, crc) = self.parse_at(start).ok().flatten()?;
            let body = start + HEAD;
            let bytes = self.buffer[..self.end].get(body..body + length)?;
            if wanted(bytes) {
                let mut hasher = Hasher::new();
                hasher.update(&self.buffer[start + 4..start + 8]);
                hasher.update(bytes);
                return (hasher.finalize() == crc).then_some(bytes);
            }
            start = body + length;
        }
    }

    /// Consumes the body that [`Inbox::peek`] showed.
    pub(crate) fn pop(&mut self) {
        if let Ok(Some((length, _))) = self.parse() {
            self.start = (self.start + HEAD + length).min(self.end);
            self.hashed = 0;
        }
    }

    /// Gives the buffer back if it is large and nothing is in it.
    pub(crate) fn release(&mut self) {
        if self.start == self.end && self.buffer.len() > 4 * CHUNK {
            (self.start, self.end) = (0, 0);
            self.buffer = Vec::new();
        }
    }

    fn parse(&self) -> Result<Option<(usize, u32)>, Garbage> {
        self.parse_at(self.start)
    }

    /// Length and checksum of the body whose envelope starts there, if its head has arrived.
    fn parse_at(&self, start: usize) -> Result<Option<(usize, u32)>, Garbage> {
        let Some(head) = self.buffer[start..self.end].first_chunk::<HEAD>() else {
            return Ok(None);
        };
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        if word(0) != MAGIC {
            return Err(Garbage("not our protocol, or another version of it"));
        }
        match usize::try_from(word(4)) {
            Ok(length) if length <= self.limit => Ok(Some((length, word(8)))),
            _ => Err(Garbage("longer than allowed")),
        }
    }

    fn make_room(&mut self) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        let wanted = HEAD + self.parse().ok().flatten().map_or(0, |(length, _)| length);
        if self.start > 0
            && (self.start + wanted > self.buffer.len() || self.end == self.buffer.len())
        {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.buffer.len() {
            let size = wanted
                .min(2 * self.buffer.len())
                .max(self.buffer.len() + GROWTH);
            self.buffer.resize(size, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hands out its bytes in pieces of one size, then would block.
    struct Pieces<'a>(&'a [u8], usize);

    impl Read for Pieces<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() {
                return Err(ErrorKind::WouldBlock.into());
            }
            let count = self.1.min(into.len()).min(self.0.len());
            into[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    #[test]
    fn bodies_come_out_whole_however_their_bytes_arrive() {
        let bodies: Vec<Vec<u8>> = [0usize, 1, 4096, 3, 300_000, 0, 70_000, 5]
            .iter()
            .map(|&size| (0..size).map(|i| u8::try_from(i % 251).unwrap()).collect())
            .collect();
        let stream: Vec<u8> = bodies.iter().flat_map(|body| seal(body)).collect();
        for piece in [1, 7, 4096, 100_000, usize::MAX] {
            let mut inbox = Inbox::new(1 << 20);
            let mut source = Pieces(&stream, piece);
            let mut seen = Vec::new();
            loop {
                while let Some(body) = inbox.peek().unwrap() {
                    seen.push(body.to_vec());
                    inbox.pop();
                }
                if inbox.fill(&mut source).unwrap() == Filled::Nothing {
                    break;
                }
            }
            assert!(seen == bodies, "pieces of {piece} bytes");
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let sealed = seal(b"some body");
        for bit in 0..sealed.len() * 8 {
            let mut broken = sealed.clone();
            broken[bit / 8] ^= 1 << (bit % 8);
            let mut inbox = Inbox::new(64);
            while inbox.fill(&mut Pieces(&broken, usize::MAX)).unwrap() == Filled::Some
                && inbox.end < broken.len()
            {}
            // A length that grew waits for bytes that never come; a deadline ends that.
            assert!(!matches!(inbox.peek(), Ok(Some(_))), "bit {bit}");
        }
    }

    #[test]
    fn a_promised_length_reserves_nothing() {
        let mut inbox = Inbox::new(1 << 30);
        let mut promise = head(&[b""]);
        promise[4..8].copy_from_slice(&(1u32 << 30).to_le_bytes());
        inbox.fill(&mut &promise[..]).unwrap();
        assert_eq!(inbox.peek(), Ok(None));
        inbox.fill(&mut &[0u8; 100][..]).unwrap();
        assert!(inbox.buffer.len() <= 2 * GROWTH);
        assert_eq!(Inbox::new(10).parse(), Ok(None));
    }

    #[test]
    fn a_body_over_the_limit_is_refused_by_its_head() {
        let mut inbox = Inbox::new(10);
        inbox.fill(&mut &seal(&[0; 11])[..HEAD]).unwrap();
        assert_eq!(inbox.peek(), Err(Garbage("longer than allowed")));
    }
}
