//! The built-in trace: made by a small generator of our own, the same on every machine.
//!
//! People talk about documents. A conversation begins with the system prompt, which all share, and a
//! document, which the conversations about it share; every turn repeats all that was said before.
//! Popular documents stay in a cache of any size; the many others come back after so long that a
//! small one has lost them.

use crate::trace::{BLOCK_TOKENS, Request};

const REQUESTS: usize = 400;
const SEED: u64 = 0x7261_6e6b_7061_6374;

const DOCUMENTS: u64 = 16;
/// Conversations about one document at a time.
const SEATS: u64 = 4;
const SYSTEM_BLOCKS: u64 = 1;
const MAX_DOCUMENT_BLOCKS: u64 = 12;
const MAX_BLOCKS: u64 = 40;

/// Both ends belong to the range.
type Range = (u64, u64);

const PAUSE_MS: Range = (0, 300);
const QUESTION_TOKENS: Range = (40, 1500);
const ANSWER_TOKENS: Range = (16, 96);

struct Generator {
    random: SplitMix64,
    next_id: u64,
}

/// What was said so far.
#[derive(Clone)]
struct Conversation {
    tokens: u64,
    /// Of the full blocks: the one that is still growing gets another identity with every turn.
    blocks: Vec<u64>,
}

pub(crate) fn requests() -> Vec<Request> {
    let mut generator = Generator {
        random: SplitMix64(SEED),
        next_id: 0,
    };
    let system = generator.fresh(SYSTEM_BLOCKS);
    let documents: Vec<Conversation> = (0..DOCUMENTS)
        .map(|_| {
            let length = generator.random.within((0, MAX_DOCUMENT_BLOCKS));
            let blocks = [system.clone(), generator.fresh(length)].concat();
            Conversation {
                tokens: blocks.len() as u64 * BLOCK_TOKENS,
                blocks,
            }
        })
        .collect();
    let mut seats: Vec<Vec<Conversation>> = documents
        .iter()
        .map(|document| vec![document.clone(); SEATS as usize])
        .collect();

    let mut timestamp = 0;
    (0..REQUESTS)
        .map(|_| {
            let document = generator.random.zipf(DOCUMENTS) as usize;
            let seat = generator.random.within((0, SEATS - 1)) as usize;
            let conversation = &mut seats[document][seat];
            let question = generator.random.within(QUESTION_TOKENS);
            if conversation.tokens + question > MAX_BLOCKS * BLOCK_TOKENS {
                conversation.clone_from(&documents[document]);
            }
            let request = generator.turn(conversation, question, timestamp);
            timestamp += generator.random.within(PAUSE_MS);
            request
        })
        .collect()
}

impl Generator {
    fn fresh(&mut self, count: u64) -> Vec<u64> {
        let first = self.next_id;
        self.next_id += count;
        (first..self.next_id).collect()
    }

    fn turn(&mut self, conversation: &mut Conversation, question: u64, timestamp: u64) -> Request {
        conversation.tokens += question;
        let input_length = conversation.tokens;
        let full = input_length / BLOCK_TOKENS;
        let new = self.fresh(full - conversation.blocks.len() as u64);
        conversation.blocks.extend(new);
        let growing = self.fresh(input_length.div_ceil(BLOCK_TOKENS) - full);

        let output_length = self.random.within(ANSWER_TOKENS);
        conversation.tokens += output_length;
        Request {
            timestamp,
            input_length,
            output_length,
            hash_ids: [conversation.blocks.as_slice(), &growing].concat(),
        }
    }
}

/// The generator of Steele, Lea and Flood, "Fast splittable pseudorandom number generators".
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The slight bias towards small numbers does not matter here.
    fn within(&mut self, (first, last): Range) -> u64 {
        first + self.next() % (last - first + 1)
    }

    /// Below `n`; k is as likely as 1 / (k + 1). In integers, for floats may differ by machine.
    fn zipf(&mut self, n: u64) -> u64 {
        let weight = |k| 1_000_000 / (k + 1);
        let mut left = self.within((0, (0..n).map(weight).sum::<u64>() - 1));
        for k in 0..n {
            if left < weight(k) {
                return k;
            }
            left -= weight(k);
        }
        unreachable!("the weights sum up to more than was left")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};
    use std::fs;

    use super::*;
    use crate::trace::Trace;

    fn as_lines(requests: &[Request]) -> String {
        requests
            .iter()
            .map(|request| serde_json::to_string(request).unwrap() + "\n")
            .collect()
    }

    /// Blocks that least-recently-used eviction had thrown out of a pool when they came back.
    fn lost_and_wanted_again(requests: &[Request], pool: usize) -> usize {
        let mut last_use: HashMap<u64, usize> = HashMap::new();
        let mut seen = HashSet::new();
        let mut clock = 0;
        let mut lost = 0;
        for request in requests {
            for &id in &request.hash_ids {
                clock += 1;
                lost += usize::from(!last_use.contains_key(&id) && seen.contains(&id));
                seen.insert(id);
                last_use.insert(id, clock);
            }
            while last_use.len() > pool {
                let oldest = *last_use.iter().min_by_key(|(_, at)| **at).unwrap().0;
                last_use.remove(&oldest);
            }
        }
        lost
    }

    #[test]
    fn it_is_the_same_for_ever() {
        assert_eq!(
            crc32fast::hash(as_lines(&requests()).as_bytes()),
            3_607_388_989
        );
    }

    #[test]
    fn it_passes_its_own_reader() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("builtin.jsonl");
        fs::write(&file, as_lines(&requests())).unwrap();
        assert_eq!(Trace::open(&file, None).unwrap(), Trace::builtin());
    }

    #[test]
    fn it_has_the_promised_shape() {
        let requests = requests();
        assert_eq!(requests.len(), REQUESTS);
        assert_eq!(requests[0].timestamp, 0);
        assert!((50_000..70_000).contains(&requests[REQUESTS - 1].timestamp));
        let lengths = || requests.iter().map(|request| request.hash_ids.len());
        assert!(lengths().min().unwrap() >= 2);
        assert!((35..=40).contains(&lengths().max().unwrap()));
    }

    #[test]
    fn a_block_always_follows_the_same_blocks() {
        let mut before: HashMap<u64, Option<u64>> = HashMap::new();
        for request in requests() {
            let mut previous = None;
            for id in request.hash_ids {
                assert_eq!(*before.entry(id).or_insert(previous), previous);
                previous = Some(id);
            }
        }
    }

    #[test]
    fn most_blocks_are_reused_and_a_small_pool_loses_many_of_them() {
        let requests = requests();
        let uses: usize = requests.iter().map(|request| request.hash_ids.len()).sum();
        let distinct: HashSet<u64> = requests.iter().flat_map(|r| r.hash_ids.clone()).collect();
        let lost = [128, 256, 100_000].map(|pool| lost_and_wanted_again(&requests, pool));
        assert!(uses > 4 * distinct.len());
        assert!(
            lost[0] > uses / 5 && lost[1] > uses / 20,
            "{lost:?} of {uses}"
        );
        assert_eq!(lost[2], 0);
    }
}
