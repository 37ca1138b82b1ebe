//! The first stage of a pipeline decides how many finished transfers each tick consumes, every later stage consumes
//! exactly as many; the last one then reports to the first. Start it with the launcher:
//!
//! ```text
//! cargo build --release -p rankpact -p rankpact-collective --examples --bins
//! target/release/rankpact run -n 3 -- target/release/examples/relay
//! ```

use rankpact_collective::{Error, Join, World};
use std::process::ExitCode;

/// What the first stage decides, tick by tick.
const FINISHED: [i64; 6] = [0, 3, 0, 1, 2, 0];

fn main() -> ExitCode {
    match pipeline() {
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

fn pipeline() -> Result<String, Error> {
    let world = World::connect(Join::from_env()?)?;
    let (rank, last) = (world.rank(), world.size() - 1);

    // Every rank is a stage, and knows its neighbours only.
    let upstream = rank.checked_sub(1);
    let downstream = (rank < last).then_some(rank + 1);
    let mut relay = world.relay("counts", upstream, downstream)?;
    relay.ready()?;

    let mut consumed = 0;
    for finished in FINISHED {
        // What the next stage has not taken since the last ticks: a lag shows here, and is bounded.
        relay.settle()?;
        let mut counts = vec![finished];
        match upstream {
            None => relay.post(&counts, "counts")?,
            Some(_) => relay.next(&mut counts, "counts")?,
        }
        consumed += counts[0];
    }
    relay.finish("end")?;

    // One message, between two ranks only.
    let mut group = world.everybody("report")?;
    let mut report = format!("stage {rank}: consumed {consumed}");
    if last > 0 && rank == last {
        group.send(0, report.as_bytes(), "report")?;
    } else if last > 0 && rank == 0 {
        let mut bytes = Vec::new();
        group.recv(last, &mut bytes, "report")?;
        report += &format!(" (and {})", String::from_utf8_lossy(&bytes));
    }
    Ok(report)
}
