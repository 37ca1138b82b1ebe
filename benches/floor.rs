//! The floor: what this machine does at best. Lines of cache between two CPUs, switches, wakes, and loopback TCP.
//!
//! `cargo bench -p rankpact-benches --bench floor -- [full]`

use clap::Parser;
use rankpact_benches::{Depth, Failure, Quantiles, Results, Sample, Table, settings, switch};
use rankpact_shm::{cpus, floor};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// Nothing here takes that long: a thread that got no CPU ends the program.
const LIMIT: Duration = Duration::from_secs(300);

#[derive(Debug, Parser)]
struct Arguments {
    #[command(flatten)]
    depth: Depth,
}

/// Unpinned is still a measurement, only a worse one.
fn pin(side: usize) {
    if let Err(error) = cpus::pin(side) {
        eprintln!("floor: side {side} is not pinned: {error}");
    }
}

/// How a side waits for the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Polls {
    Always,
    Never,
}

/// Repeats an operation on a socket that would block.
fn insist(mut once: impl FnMut() -> std::io::Result<usize>) -> std::io::Result<usize> {
    loop {
        match once() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            done => return done,
        }
    }
}

fn send(stream: &mut TcpStream, mut bytes: &[u8]) -> Result<(), Failure> {
    while !bytes.is_empty() {
        bytes = &bytes[insist(|| stream.write(bytes))?..];
    }
    Ok(())
}

fn receive(stream: &mut TcpStream, bytes: &mut [u8]) -> Result<(), Failure> {
    let mut done = 0;
    while done < bytes.len() {
        match insist(|| stream.read(&mut bytes[done..]))? {
            0 => return Err("the other side has closed".into()),
            more => done += more,
        }
    }
    Ok(())
}

/// One side of a ping-pong of `rounds` messages of `size` bytes; times are one way, that is half of there and back.
fn side(
    mut stream: TcpStream,
    first: bool,
    rounds: usize,
    size: usize,
    polls: Polls,
) -> Result<Vec<Duration>, Failure> {
    pin(usize::from(first));
    stream.set_nodelay(true)?;
    stream.set_nonblocking(polls == Polls::Always)?;
    let mut bytes = vec![0; size];
    let mut times = Vec::with_capacity(rounds);
    for round in 0..rounds {
        let sign = (round % 251) as u8;
        let before = Instant::now();
        if first {
            bytes.fill(sign);
            send(&mut stream, &bytes)?;
        }
        receive(&mut stream, &mut bytes)?;
        if !first {
            send(&mut stream, &bytes)?;
        }
        times.push(before.elapsed() / 2);
        if bytes[0] != sign || bytes[size - 1] != sign {
            return Err(format!("message {round} is another one").into());
        }
    }
    Ok(times)
}

fn ping_pong(rounds: usize, size: usize, polls: Polls) -> Result<Vec<Duration>, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let one = TcpStream::connect(listener.local_addr()?)?;
    let (other, _) = listener.accept()?;
    // Both on threads of their own, which are pinned.
    thread::scope(|scope| {
        let echo = scope.spawn(move || side(other, false, rounds, size, polls));
        let times = scope.spawn(move || side(one, true, rounds, size, polls));
        let join = |side: thread::ScopedJoinHandle<'_, _>| {
            side.join().map_err(|_| "a side has panicked")?
        };
        join(echo)?;
        join(times)
    })
}

fn yields(rounds: usize) -> Vec<Duration> {
    let once = |_| {
        let before = Instant::now();
        thread::yield_now();
        before.elapsed()
    };
    (0..rounds).map(once).collect()
}

fn main() -> Result<(), Failure> {
    if let Some(rounds) = settings()? {
        return switch::rank(rounds);
    }
    let Arguments { depth } = Arguments::parse();
    thread::spawn(|| {
        thread::sleep(LIMIT);
        eprintln!("floor: takes longer than {} s", LIMIT.as_secs());
        std::process::exit(1);
    });
    let mut results = Results::new("floor", &depth);
    let mut table = Table::new(1, ["what", "rounds"].into_iter().chain(Quantiles::HEADS));
    let mut row = |results: &mut Results, sample: &Sample| {
        let cells = [sample.case.clone(), sample.rounds.to_string()];
        table.row(cells.into_iter().chain(sample.worst.cells()));
        results.keep(sample)
    };
    let rounds = depth.choose(2000, 500_000);
    row(
        &mut results,
        &Sample::single("yield, nobody waits", yields(rounds)),
    )?;
    let mut switching = switch::measure(&(rounds / 10))?;
    switching.case = "yield to another process".to_owned();
    row(&mut results, &switching)?;
    if cpus::available() < 2 {
        results.say("The others need two CPUs.");
    } else {
        for lines in [1, 2] {
            let times = floor::exchange(rounds, lines, pin);
            row(
                &mut results,
                &Sample::single(format!("exchange of {lines} lines"), times),
            )?;
        }
        // The last rank to arrive reads the rows of all others.
        for lines in [1, 3, 7, 15, 31, 63] {
            let times = floor::scan(rounds, lines, pin);
            row(
                &mut results,
                &Sample::single(format!("scan of {lines} lines"), times),
            )?;
        }
        let times = floor::wake(rounds / 10, pin);
        row(
            &mut results,
            &Sample::single("wake by futex, one way", times),
        )?;
        for size in [96, 8 << 10, 512 << 10] {
            for polls in [Polls::Always, Polls::Never] {
                let how = if polls == Polls::Always {
                    "polling"
                } else {
                    "blocking"
                };
                let rounds = rounds / depth.choose(20, 10) / (size >> 13).clamp(1, 20);
                let times = ping_pong(rounds, size, polls)?;
                let what = format!("TCP, {size} bytes, {how}, one way");
                row(&mut results, &Sample::single(what, times))?;
            }
        }
    }
    results.table(
        "A raw exchange, wake or message between two threads, each with a CPU of its own.",
        &table,
    );
    results.finish()
}
