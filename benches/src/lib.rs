//! What every bench needs: ranks that measure, what they say of it, and where the result goes.
//!
//! A bench starts the ranks of one contestant as a [`Team`]. Each rank says what a case has cost as one line of JSON, a
//! [`Report`]; the reports of all ranks on one case are a [`Sample`]. In a [`Contest`] ours and those of others, [`Peer`]s, take
//! turns. [`Results`] prints, and writes a folder where everything is measured.

#![forbid(unsafe_code)]

mod case;
mod contest;
mod depth;
mod machine;
mod peer;
mod plot;
mod results;
mod sample;
mod score;
pub mod switch;
mod table;
mod team;

pub use case::Case;
pub use contest::Contest;
pub use depth::Depth;
pub use machine::Machine;
pub use peer::Peer;
pub use plot::Plot;
pub use results::Results;
pub use sample::{Quantiles, Report, Sample, nanoseconds};
pub use score::{Axis, Ratio, Score, Scored};
pub use table::Table;
pub use team::{Team, settings};

/// What goes wrong in a bench is told in one line, and ends it.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
