//! What every segment begins with: what it is, and the proof that its ranks share it.

use crate::layout::{Geometry, Header, LAYOUT_VERSION, MAGIC, Member, SHAPE_WORDS};
use crate::sync::{AtomicU64, Ordering, order};

/// The geometry of what a segment holds, in the words of its header.
pub trait Shape: Copy {
    /// Tells a table from a ring.
    const KIND: u64;

    /// The numbers that the geometry is made of, each with what it counts.
    fn words(self) -> [(&'static str, u64); SHAPE_WORDS];
}

impl Shape for Geometry {
    const KIND: u64 = u64::from_le_bytes(*b"table\0\0\0");

    fn words(self) -> [(&'static str, u64); SHAPE_WORDS] {
        [
            ("number of ranks", self.ranks() as u64),
            ("rounds in flight", self.depth() as u64),
            ("unused word", 0),
        ]
    }
}

/// What a segment must be for this job: compared with what its header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity<G = Geometry> {
    /// Ranks and rounds in flight of a table; seats and slots of a ring.
    pub geometry: G,
    /// How often the group has been made anew under its name.
    pub generation: u64,
    /// The random number of the job.
    pub nonce: [u64; 2],
}

/// What every segment begins with, whatever it holds.
#[derive(Clone, Copy, Debug)]
pub struct Preamble<'a> {
    pub(crate) header: &'a Header,
    pub(crate) members: &'a [Member],
}

impl Preamble<'_> {
    /// Every word of the header that tells one segment from another, and what it must be.
    fn expected<G: Shape>(
        &self,
        identity: &Identity<G>,
    ) -> impl Iterator<Item = (&'static str, &AtomicU64, u64)> {
        let header = self.header;
        let fixed = [
            ("magic", &header.magic, MAGIC),
            ("layout version", &header.version, LAYOUT_VERSION),
            ("kind", &header.kind, G::KIND),
            ("generation", &header.generation, identity.generation),
            ("job", &header.nonce[0], identity.nonce[0]),
            ("job", &header.nonce[1], identity.nonce[1]),
        ];
        let shape = header.shape.iter().zip(identity.geometry.words());
        fixed
            .into_iter()
            .chain(shape.map(|(word, (field, value))| (field, word, value)))
    }

    /// Says what the segment is; the ready word comes last.
    pub fn announce<G: Shape>(&self, identity: &Identity<G>) {
        for (_, word, value) in self.expected(identity) {
            word.store(value, Ordering::Relaxed);
        }
        // ORDERING [H1] Release: pairs with the load in check(); publishes the header and all that lies behind it.
        self.header.ready.store(1, order("H1", Ordering::Release));
    }

    /// Whether this is the segment it should be.
    ///
    /// # Errors
    ///
    /// `None` while it is not ready, else what differs.
    pub fn check<G: Shape>(&self, identity: &Identity<G>) -> Result<(), Option<String>> {
        // ORDERING [H2] Acquire: pairs with the store in announce().
        if self.header.ready.load(order("H2", Ordering::Acquire)) == 0 {
            return Err(None);
        }
        for (field, word, wanted) in self.expected(identity) {
            let found = word.load(Ordering::Relaxed);
            if found != wanted {
                return Err(Some(format!("{field} is {found:#x}, not {wanted:#x}")));
            }
        }
        Ok(())
    }

    /// Writes the proof that `rank` sees this memory.
    pub fn prove(&self, rank: usize, token: u64) {
        self.members[rank].token.store(token, Ordering::Relaxed);
    }

    /// The proof that `rank` has written. A message received from it orders the write before this read.
    #[must_use]
    pub fn proof(&self, rank: usize) -> u64 {
        self.members[rank].token.load(Ordering::Relaxed)
    }
}
