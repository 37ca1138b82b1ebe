//! Neighbours agree in pairs, and then all ranks on what the pairs came to. Start it with the launcher:
//!
//! ```text
//! cargo build --release -p rankpact -p rankpact-collective --examples --bins
//! target/release/rankpact run -n 4 -- target/release/examples/subgroup
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
    let world = World::connect(Join::from_env()?)?;
    let (rank, size) = (world.rank(), world.size());

    // Ranks 0 and 1, 2 and 3, ...: every rank makes the group that it belongs to. A last one may be alone.
    let first = rank - rank % 2;
    let members: Vec<usize> = (first..size.min(first + 2)).collect();
    let mut pair = world.group(&format!("pair{}", first / 2), &members)?;
    let mut all = world.everybody("all")?;

    // Of three slots the smallest count, the sum, and whether any rank has a flag up, in one round.
    let mine = rank as i64;
    let mut row = [10 + mine, mine, i64::from(rank == 3)];
    let ops = [Op::Min, Op::Sum, Op::Or];
    pair.all_reduce(&ops, &mut row, "pair")?;
    let of_pair = row;
    all.all_reduce(&ops, &mut row, "all")?;

    // Who is where: the members of its pair, from every rank.
    let places = all.all_gather_bytes(format!("{members:?}").as_bytes(), "places")?;
    let places: Vec<_> = places
        .iter()
        .map(|bytes| String::from_utf8_lossy(bytes))
        .collect();
    Ok(format!(
        "rank {rank} of {size}: pair {of_pair:?}, all {row:?}, places {}",
        places.join(" ")
    ))
}
