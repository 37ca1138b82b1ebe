//! Ranks start to agree on the next step while they still work on this one. Start it with the launcher:
//!
//! ```text
//! cargo build --release -p rankpact -p rankpact-collective --examples --bins
//! target/release/rankpact run -n 4 -- target/release/examples/split_phase
//! ```

use rankpact_collective::{Error, Join, Op, World};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

fn main() -> ExitCode {
    match agree() {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn agree() -> Result<String, Error> {
    let world = World::connect(Join::from_env()?)?;
    let mut group = world.everybody("tick")?;
    let rank = world.rank() as i64;

    let mut agreed = Vec::new();
    let mut next = group.start_all_reduce(Op::Min, &[100 + rank], "ready")?;
    for step in 1..=5 {
        // The forward pass. Meanwhile the row of the next step lies in the table, for all to read.
        thread::sleep(Duration::from_millis(2));

        let following = group.start_all_reduce(Op::Min, &[100 + 10 * step + rank], "ready")?;
        let ready = group.finish(&next, "ready")?;
        agreed.push(ready[0]);
        next = following;
    }
    agreed.push(group.finish(&next, "ready")?[0]);
    Ok(format!("rank {rank} of {}: {agreed:?}", world.size()))
}
