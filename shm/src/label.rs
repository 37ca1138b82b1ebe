//! Labels of call sites, interned so that a stamp carries a number and an error the peer's text.

use crate::call::Kind;
use crate::layout::{LABEL_BYTES, LABEL_WORDS, Label};
use crate::storage::Storage;
use crate::sync::Ordering::Relaxed;
use crate::sync::weakened;

/// Why a label has no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelError {
    /// Empty, or longer than [`LABEL_BYTES`].
    Length,
    /// The group has used up its distinct labels.
    Full,
}

impl std::fmt::Display for LabelError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Length => write!(f, "a label has 1 to {LABEL_BYTES} bytes"),
            Self::Full => write!(
                f,
                "a group has at most {} distinct labels; a label names a call site, not a value",
                crate::layout::LABELS
            ),
        }
    }
}

impl std::error::Error for LabelError {}

const BYTES: usize = 7;

/// Seven bytes of text and, in the top byte, one plus how many of them count: a written word is never zero.
fn encode(label: &str) -> [u64; LABEL_WORDS] {
    let bytes = label.as_bytes();
    std::array::from_fn(|i| {
        let part = bytes.get(i * BYTES..).unwrap_or_default();
        let part = &part[..part.len().min(BYTES)];
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        word[BYTES] = u8::try_from(part.len() + 1).unwrap_or(u8::MAX);
        u64::from_le_bytes(word)
    })
}

fn decode(words: [u64; LABEL_WORDS]) -> String {
    let mut bytes = Vec::with_capacity(LABEL_BYTES);
    for word in words.map(u64::to_le_bytes) {
        let len = usize::from(word[BYTES].saturating_sub(1)).min(BYTES);
        bytes.extend_from_slice(&word[..len]);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The number of `label`: the same on every rank, whoever comes first.
///
/// Words only ever change from zero to their final value, and anybody may complete a label that another began: a
/// writer killed half-way blocks nobody. A slot refuses a label only if one of its words already differs, which is so
/// for every rank and for ever; hence all ranks end at the same slot. No ordering is needed: a rank that publishes a
/// label's number has itself seen or written every word of it, and coherence does not let a later reader see less.
fn intern(labels: &[Label], label: &str) -> Option<u16> {
    let text = encode(label);
    let takes = |slot: &Label| {
        slot.words.iter().zip(text).all(|(word, value)| {
            if weakened("O5") {
                let present = word.load(Relaxed);
                word.store(value, Relaxed);
                return present == 0 || present == value;
            }
            // RULE [O5] A word goes from zero to its final value once, whoever writes it.
            word.compare_exchange(0, value, Relaxed, Relaxed)
                .unwrap_or_else(|present| if present == value { 0 } else { present })
                == 0
        })
    };
    labels
        .iter()
        .position(takes)
        .and_then(|at| u16::try_from(at).ok())
}

impl Storage {
    /// The number of `label` in this table, for models: ranks use it through their calls.
    #[cfg(loom)]
    pub fn intern(&self, label: &str) -> Result<u16, LabelError> {
        Interned::default().id(self, label)
    }
}

/// Between a label and the operations that its call has for each slot.
const SEPARATOR: char = '\u{1f}';

/// `label` with the operations of a call that has one for each slot: they are part of what is interned, so that calls
/// with other operations have other numbers.
pub(crate) fn with_kinds(label: &str, kinds: &[Kind]) -> String {
    let code = |kind: &Kind| char::from(b'0' + *kind as u8);
    let mut text = format!("{label}{SEPARATOR}");
    text.extend(kinds.iter().map(code));
    text
}

/// The text of label number `id`, empty where nobody wrote one, and the operations interned with it.
pub(crate) fn text_and_kinds(storage: &Storage, id: u16) -> (String, Vec<Kind>) {
    let slot = storage.labels().get(usize::from(id));
    let text = slot
        .map(|slot| decode(std::array::from_fn(|i| slot.words[i].load(Relaxed))))
        .unwrap_or_default();
    match text.rsplit_once(SEPARATOR) {
        Some((label, codes)) => {
            let kind = |code: u8| Kind::from_code(code.wrapping_sub(b'0').into());
            (label.to_owned(), codes.bytes().filter_map(kind).collect())
        }
        None => (text, Vec::new()),
    }
}

/// The text of label number `id`; empty where nobody wrote one.
pub(crate) fn text(storage: &Storage, id: u16) -> String {
    text_and_kinds(storage, id).0
}

/// The labels this rank has used, with their numbers.
#[derive(Debug, Default)]
pub(crate) struct Interned {
    known: Vec<(Box<str>, u16)>,
    recent: usize,
}

impl Interned {
    /// The number of `label`, interning it on first use.
    #[inline(always)]
    pub(crate) fn id(&mut self, storage: &Storage, label: &str) -> Result<u16, LabelError> {
        match self.known.get(self.recent) {
            Some((known, id)) if **known == *label => Ok(*id),
            _ => self.find(storage, label),
        }
    }

    #[cold]
    fn find(&mut self, storage: &Storage, label: &str) -> Result<u16, LabelError> {
        if let Some(at) = self.known.iter().position(|(known, _)| **known == *label) {
            self.recent = at;
            return Ok(self.known[at].1);
        }
        if label.is_empty() || label.len() > LABEL_BYTES {
            return Err(LabelError::Length);
        }
        let id = intern(storage.labels(), label).ok_or(LabelError::Full)?;
        self.recent = self.known.len();
        self.known.push((label.into(), id));
        Ok(id)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::layout::{Geometry, LABELS};
    use proptest::prelude::*;

    fn table() -> Storage {
        Storage::heap(Geometry::new(2, 4).expect("a valid geometry"), 1)
    }

    proptest! {
        #[test]
        fn a_label_returns_its_text(label in "\\PC{1,10}") {
            let storage = table();
            let id = Interned::default().id(&storage, &label).expect("a label of legal length");
            prop_assert_eq!(text(&storage, id), label);
        }

        #[test]
        fn two_ranks_agree_on_every_number(labels in prop::collection::vec("[ab]{1,20}", 1..20)) {
            let storage = table();
            let (mut one, mut other) = (Interned::default(), Interned::default());
            let first: Vec<_> = labels.iter().map(|l| one.id(&storage, l)).collect();
            let mut second: Vec<_> = labels.iter().rev().map(|l| other.id(&storage, l)).collect();
            second.reverse();
            prop_assert_eq!(first, second);
        }
    }

    #[test]
    fn a_writer_killed_half_way_blocks_nobody() {
        let storage = table();
        storage.labels()[0].words[0].store(encode("abcdefgX")[0], Relaxed);
        let (mut one, mut other) = (Interned::default(), Interned::default());
        assert_eq!(one.id(&storage, "zzz"), Ok(1));
        assert_eq!(one.id(&storage, "abcdefgY"), Ok(0));
        assert_eq!(other.id(&storage, "abcdefgX"), Ok(2));
        assert_eq!(text(&storage, 0), "abcdefgY");
    }

    #[test]
    fn the_table_of_labels_is_bounded_and_says_so() {
        let storage = table();
        let mut interned = Interned::default();
        for i in 0..LABELS {
            assert_eq!(
                interned
                    .id(&storage, &format!("label {i}"))
                    .map(usize::from),
                Ok(i)
            );
        }
        assert_eq!(interned.id(&storage, "one more"), Err(LabelError::Full));
        assert_eq!(interned.id(&storage, ""), Err(LabelError::Length));
        assert_eq!(
            interned.id(&storage, &"x".repeat(LABEL_BYTES + 1)),
            Err(LabelError::Length)
        );
        assert_eq!(interned.id(&storage, "label 7"), Ok(7));
    }
}
