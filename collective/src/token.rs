//! The job's secret: proves that a connection belongs to the job, and never crosses the wire.

use crate::codec::Fields;
use std::fmt;
use std::io;

/// Bytes of a token, a nonce and a proof.
pub(crate) const BYTES: usize = 32;

/// A number used once: fresh for every handshake, so that an old proof is worth nothing.
pub(crate) type Nonce = [u8; BYTES];

/// Keyed hash over a challenge.
pub(crate) type Proof = [u8; BYTES];

/// Which end of a connection proves; without it a proof could be sent back to who made it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Side {
    /// The end that called connect.
    Connector,
    /// The end that called accept.
    Acceptor,
}

/// A shared secret of 32 bytes.
#[derive(Clone)]
pub(crate) struct Token([u8; BYTES]);

impl Token {
    /// A token that nobody can guess.
    ///
    /// # Errors
    /// The kernel has no random numbers to give.
    pub(crate) fn random() -> io::Result<Self> {
        nonce().map(Self)
    }

    /// The token that `text` stands for: 64 hexadecimal digits are the token itself, anything else is hashed.
    pub(crate) fn from_text(text: &str) -> Self {
        match blake3::Hash::from_hex(text) {
            Ok(hash) => Self(*hash.as_bytes()),
            Err(_) => Self(blake3::derive_key(
                "rankpact 1 token from text",
                text.as_bytes(),
            )),
        }
    }

    /// Hexadecimal digits that [`Token::from_text`] turns back into this token; for a file that only the user reads.
    pub(crate) fn to_hex(&self) -> String {
        blake3::Hash::from_bytes(self.0).to_hex().to_string()
    }

    /// A token for one purpose, which tells nothing about this one or about those for other purposes.
    pub(crate) fn derive(&self, context: &str) -> Self {
        Self(*blake3::keyed_hash(&self.0, format!("derive {context}").as_bytes()).as_bytes())
    }

    /// A number that tells this token from others, and nothing else about it.
    pub(crate) fn number(&self) -> u64 {
        Fields(&self.derive("number").0).u64().unwrap_or_default()
    }

    /// What `side` must show about the challenge `said`.
    pub(crate) fn prove(&self, side: Side, said: &[u8]) -> Proof {
        *self.hash(side, said).as_bytes()
    }

    /// Whether `proof` is what `side` must show, in a time that does not depend on where they differ.
    pub(crate) fn verify(&self, side: Side, said: &[u8], proof: Proof) -> bool {
        self.hash(side, said) == blake3::Hash::from_bytes(proof)
    }

    fn hash(&self, side: Side, said: &[u8]) -> blake3::Hash {
        let tag: &[u8] = match side {
            Side::Connector => b"prove connector ",
            Side::Acceptor => b"prove acceptor ",
        };
        blake3::Hasher::new_keyed(&self.0)
            .update(tag)
            .update(said)
            .finalize()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// A fresh nonce.
///
/// # Errors
/// The kernel has no random numbers to give.
pub(crate) fn nonce() -> io::Result<Nonce> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_its_hexadecimal_form() {
        let token = Token::random().unwrap();
        assert_eq!(Token::from_text(&token.to_hex()).0, token.0);
    }

    #[test]
    fn any_text_gives_a_token_and_other_text_another() {
        assert_eq!(Token::from_text("job 7").0, Token::from_text("job 7").0);
        assert_ne!(Token::from_text("job 7").0, Token::from_text("job 8").0);
        assert_ne!(Token::from_text("").0, [0; BYTES]);
    }

    #[test]
    fn a_derived_token_differs_from_its_parent_and_its_siblings() {
        let token = Token::from_text("x");
        assert_ne!(token.derive("a").0, token.0);
        assert_ne!(token.derive("a").0, token.derive("b").0);
    }

    #[test]
    fn a_proof_holds_only_for_its_side_its_challenge_and_its_token() {
        let token = Token::from_text("x");
        let proof = token.prove(Side::Connector, b"said");
        assert!(token.verify(Side::Connector, b"said", proof));
        assert!(!token.verify(Side::Acceptor, b"said", proof));
        assert!(!token.verify(Side::Connector, b"other", proof));
        assert!(!Token::from_text("y").verify(Side::Connector, b"said", proof));
    }

    #[test]
    fn debug_does_not_show_the_secret() {
        assert_eq!(format!("{:?}", Token::from_text("x")), "Token(..)");
    }
}
