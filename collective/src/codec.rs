//! Fields of a body: little-endian numbers, and bytes and texts behind their length.

use rankpact_shm::LABEL_BYTES;

/// Reads fields off the front of a body; `None` once it is too short or a text is no text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    /// The next `count` bytes.
    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(front)
    }

    /// The next `N` bytes.
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    /// The next byte.
    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    /// The next two bytes.
    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// The next four bytes.
    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// The next eight bytes.
    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A rank or another small count.
    pub(crate) fn count(&mut self) -> Option<usize> {
        usize::try_from(self.u32()?).ok()
    }

    /// Bytes behind their length.
    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let count = self.count()?;
        self.take(count)
    }

    /// A text behind its length.
    pub(crate) fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }

    /// A label in the place of the longest, behind its length.
    pub(crate) fn label(&mut self) -> Option<&'a str> {
        let length = usize::from(self.u8()?);
        std::str::from_utf8(self.take(LABEL_BYTES)?.get(..length)?).ok()
    }

    /// Ranks behind their number.
    pub(crate) fn ranks(&mut self) -> Option<Vec<usize>> {
        // Not reserved: the number is what a peer claims.
        (0..self.count()?).map(|_| self.count()).collect()
    }

    /// `value` if nothing is left over.
    pub(crate) fn end<T>(self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}

/// Appends fields to a body.
pub(crate) trait Put {
    /// A rank or another small count; one that does not fit is refused by every reader.
    fn put_count(&mut self, count: usize);
    /// Bytes behind their length.
    fn put_bytes(&mut self, bytes: &[u8]);
    /// Ranks behind their number.
    fn put_ranks(&mut self, ranks: &[usize]);
}

impl Put for Vec<u8> {
    fn put_count(&mut self, count: usize) {
        self.extend_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
    }

    fn put_bytes(&mut self, bytes: &[u8]) {
        self.put_count(bytes.len());
        self.extend_from_slice(bytes);
    }

    fn put_ranks(&mut self, ranks: &[usize]) {
        self.put_count(ranks.len());
        for &rank in ranks {
            self.put_count(rank);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_back_in_order_and_a_short_body_gives_none() {
        let mut body = vec![7];
        body.put_bytes(b"key");
        body.put_ranks(&[3, 1]);
        let mut fields = Fields(&body);
        assert_eq!(fields.u8(), Some(7));
        assert_eq!(fields.text().as_deref(), Some("key"));
        assert_eq!(fields.ranks(), Some(vec![3, 1]));
        assert_eq!(fields.end(()), Some(()));
        assert_eq!(fields.u8(), None);
        assert_eq!(Fields(&[255, 255, 255, 255]).ranks(), None);
        assert_eq!(Fields(&[2, 0, 0, 0, 1]).bytes(), None);
    }
}
