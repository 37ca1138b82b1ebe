//! Ranks agree on the smallest of what each has ready. Start it with the launcher:
//!
//! ```text
//! cargo build --release -p rankpact -p rankpact-collective --examples --bins
//! target/release/rankpact run -n 4 -- target/release/examples/all_reduce
//! ```

use rankpact_collective::{Error, Join, Op, World};
use std::process::ExitCode;

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
    // Where the ranks meet and which one this is: `rankpact run` has put it into the environment.
    let world = World::connect(Join::from_env()?)?;
    let mut group = world.everybody("tick")?;

    // Each rank has finished another number of writes and loads. What all have finished is the minimum.
    let rank = world.rank() as i64;
    let mut counts = [10 + rank, 20 - rank];
    group.all_reduce(Op::Min, &mut counts, "counts")?;

    // One rank decides, all others get its bytes.
    let mut plan = match group.rank() {
        0 => format!("writes {}, loads {}", counts[0], counts[1]).into_bytes(),
        _ => Vec::new(),
    };
    group.broadcast(0, &mut plan, "plan")?;
    group.barrier("end")?;

    let path = group
        .path()
        .map_or(String::new(), |(path, why)| format!("{path}, {why}"));
    Ok(format!(
        "rank {rank} of {}: {} ({path})",
        world.size(),
        String::from_utf8_lossy(&plan)
    ))
}
