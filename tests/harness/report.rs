//! What a rank says about one of its steps.

use rankpact_collective::{Error, ErrorKind};
use serde::{Deserialize, Serialize};

/// One line that a rank prints.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The step, as the test wrote it.
    pub step: String,
    /// The round of the group afterwards; 0 without a group.
    pub round: u64,
    /// How long the step took, in milliseconds.
    pub ms: u64,
    /// CPU time of the process meanwhile, in milliseconds.
    pub cpu_ms: u64,
    /// What came of it.
    pub outcome: Result<String, Failure>,
}

/// Why a step failed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Failure {
    /// The product said so.
    Error(Error),
    /// The product did something else than it should.
    Wrong(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl From<String> for Failure {
    fn from(what: String) -> Self {
        Self::Wrong(what)
    }
}

impl Report {
    /// What the step delivered; it must have gone well.
    #[track_caller]
    pub fn well(&self) -> &str {
        match &self.outcome {
            Ok(said) => said,
            Err(Failure::Error(error)) => panic!("`{}`: {error}", self.step),
            Err(Failure::Wrong(what)) => panic!("`{}`: {what}", self.step),
        }
    }

    /// The error that the product returned; it must have returned one.
    #[track_caller]
    pub fn error(&self) -> &Error {
        match &self.outcome {
            Err(Failure::Error(error)) => error,
            other => panic!("`{}` should have failed: {other:?}", self.step),
        }
    }

    /// The kind of that error.
    #[track_caller]
    pub fn kind(&self) -> &ErrorKind {
        &self.error().kind
    }
}
