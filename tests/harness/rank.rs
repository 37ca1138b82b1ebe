//! A rank of a test: takes the steps that its arguments name, and reports each as one line of JSON.
//!
//! ```text
//! --timing  --storm  --salt N              before the steps; storm: a signal each millisecond, from before the join
//! hold NAME                                wait for a line on stdin
//! group G [ranks=0,2] [timeout=MS]         make a group
//! path G | ready G | close G | leave G     leave: drop without another word
//! min|max|sum|or|and G [slots=8] [full] [label=L] [within=MS] [count=1] [pause=US]
//! each G ops=min,sum [slots=8] ...         as above, with one operation for each slot, in turn
//! split G [slots=8] ...                    three minima, all started before the first is finished
//! gather G [slots=8] | gather-bytes G [bytes=64]
//! broadcast G [root=0] [bytes=64] [label=L] [within=MS] [count=1]
//! barrier G [label=L] [within=MS] [count=1]
//! send G to=N | recv G from=N [bytes=64] [timed] [first=1] [label=L] [within=MS] [count=1] [pause=US]
//! relay R [up=N] [down=N] [room=N] [timeout=MS]    a place in a pipeline
//! post R | next R [slots=8] [timed] [first=1] [label=L] [within=MS] [count=1] [pause=US]
//! settle R | finish R [within=MS] | quit R         quit: drop
//! consume R [counts=0,3] [ticks=1] [late=MS]       the first stage announces counts, all others consume as many
//! behave G BEHAVIOUR ...                   a behaviour of the harness
//! soak G count=N [seed=S]                  verified rounds of every kind, stalls among them
//! reopen NAME [count=1]                    groups opened, used and closed, one after another
//! holdings                                 open descriptors, and mappings of segments
//! scenario N                               a scenario of the cache, over the groups tick, hits, acks
//! parallel G,H STEP ...                    the step on each group, in a thread of its own
//! begin STEP ...                           the step on a group in a thread that nobody waits for
//! panic G                                  a thread that owns the group, or the relay, panics
//! cpus                                     how many CPUs this process may keep busy
//! abort REASON ... | sleep MS | freeze SECONDS | exit | crash    freeze: the whole process stops
//! ```

#[cfg(not(loom))]
fn main() {
    steps::take();
}

#[cfg(loom)]
fn main() {}

#[cfg(not(loom))]
mod steps {
    use nix::libc;
    use nix::sys::prctl::set_pdeathsig;
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
    use nix::time::ClockId;
    use nix::unistd::{getpid, gettid};
    use rankpact_cache::conformance::scenarios;
    use rankpact_collective::{Call, Error, Group, Join, Op, Ops, Relay, World};
    use rankpact_tests::{Failure, Range, Report, Series, Values, behaviour, bytes, consume, soak};
    use std::collections::BTreeMap;
    use std::fs;
    use std::io::{BufRead, Write};
    use std::process::{Command, abort, exit};
    use std::thread;
    use std::time::{Duration, Instant};

    type Outcome = Result<String, Failure>;

    struct Rank {
        world: World,
        groups: BTreeMap<String, Group>,
        relays: BTreeMap<String, Relay>,
        salt: u64,
    }

    pub(crate) fn take() {
        // A test that is gone leaves no rank behind.
        set_pdeathsig(Signal::SIGKILL).expect("Linux kills orphans on demand");
        let mut words: Vec<String> = std::env::args().skip(1).collect();
        let mut join = Join::from_env().expect("the test sets all variables");
        let mut salt = 0;
        while words.first().is_some_and(|word| word.starts_with("--")) {
            let word = words.remove(0);
            match word.split_once('=') {
                Some(("--salt", value)) => salt = value.parse().expect("a number"),
                None if word == "--storm" => storm(),
                _ => join.options.timing = true,
            }
        }
        let started = Start::now();
        let world = match World::connect(join) {
            Ok(world) => world,
            Err(error) => {
                say("join", 0, started, Err(error.into()));
                return;
            }
        };
        say("join", 0, started, Ok(String::new()));
        let mut rank = Rank {
            world,
            groups: BTreeMap::new(),
            relays: BTreeMap::new(),
            salt,
        };
        for step in &words {
            rank.step(step);
        }
    }

    fn say(step: &str, round: u64, started: Start, outcome: Outcome) {
        let report = Report {
            step: step.to_owned(),
            round,
            ms: millis(started.at.elapsed()),
            cpu_ms: millis(cpu_time().saturating_sub(started.cpu)),
            outcome,
        };
        let mut line = serde_json::to_string(&report).expect("a report is JSON");
        line.push('\n');
        let mut out = std::io::stdout().lock();
        // In one piece: other threads speak as well.
        if out
            .write_all(line.as_bytes())
            .and_then(|()| out.flush())
            .is_err()
        {
            exit(4);
        }
    }

    /// When a step began, and how much CPU time the process had used by then.
    #[derive(Clone, Copy)]
    struct Start {
        at: Instant,
        cpu: Duration,
    }

    impl Start {
        fn now() -> Self {
            Self {
                at: Instant::now(),
                cpu: cpu_time(),
            }
        }
    }

    fn cpu_time() -> Duration {
        ClockId::CLOCK_PROCESS_CPUTIME_ID
            .now()
            .expect("every process has this clock")
            .into()
    }

    fn millis(time: Duration) -> u64 {
        u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
    }

    /// Interrupts every thread of this process each millisecond, and each millisecond of CPU time whoever runs, as
    /// profilers do.
    fn storm() {
        extern "C" fn nothing(_: libc::c_int) {}
        // Without SA_RESTART: every system call that can be interrupted is.
        let action = SigAction::new(
            SigHandler::Handler(nothing),
            SaFlags::empty(),
            SigSet::empty(),
        );
        for signal in [Signal::SIGALRM, Signal::SIGPROF] {
            // SAFETY: the handler does nothing.
            unsafe { sigaction(signal, &action) }.expect("a handler");
        }
        let every = libc::timeval {
            tv_sec: 0,
            tv_usec: 1000,
        };
        let timer = libc::itimerval {
            it_interval: every,
            it_value: every,
        };
        // SAFETY: reads one valid structure, and is to write nothing.
        let set =
            unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, std::ptr::null_mut()) };
        assert_eq!(set, 0);
        thread::spawn(|| {
            let (process, me) = (getpid().as_raw(), gettid().as_raw());
            loop {
                let threads = fs::read_dir("/proc/self/task").expect("Linux lists threads");
                threads
                    .flatten()
                    .filter_map(|entry| entry.file_name().to_str()?.parse::<libc::pid_t>().ok())
                    .filter(|thread| *thread != me)
                    .for_each(|thread| {
                        // SAFETY: sends a signal that is handled; a thread that is gone by now is no harm.
                        unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGALRM) };
                    });
                thread::sleep(Duration::from_millis(1));
            }
        });
    }

    fn given<'a>(words: &[&'a str], name: &str) -> Option<&'a str> {
        words
            .iter()
            .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }

    fn number(words: &[&str], name: &str, otherwise: u64) -> u64 {
        given(words, name).map_or(otherwise, |text| text.parse().expect("a number"))
    }

    impl Rank {
        fn step(&mut self, step: &str) {
            let started = Start::now();
            let words: Vec<_> = step.split_whitespace().collect();
            let (verb, rest) = (words[0], &words[1..]);
            let outcome = match verb {
                "hold" => {
                    say(step, 0, started, Ok(String::new()));
                    if std::io::stdin()
                        .lock()
                        .read_line(&mut String::new())
                        .unwrap_or(0)
                        == 0
                    {
                        exit(5);
                    }
                    return;
                }
                "sleep" => {
                    thread::sleep(Duration::from_millis(rest[0].parse().expect("a number")));
                    Ok(String::new())
                }
                "freeze" => {
                    let line = format!("kill -STOP $PPID; sleep {}; kill -CONT $PPID", rest[0]);
                    let thawed = Command::new("sh").args(["-c", &line]).status();
                    assert!(thawed.expect("a shell").success());
                    Ok(String::new())
                }
                "cpus" => Ok(rankpact_shm::cpus::available().to_string()),
                "exit" => exit(0),
                "crash" => abort(),
                "abort" => {
                    self.world.abort(&rest.join(" "));
                    Ok(String::new())
                }
                "group" => self.group(rest),
                "reopen" => self.reopen(rest),
                "holdings" => Ok(holdings()),
                "leave" => {
                    drop(self.groups.remove(rest[0]));
                    Ok(String::new())
                }
                "panic" => {
                    let held = (self.groups.remove(rest[0]), self.relays.remove(rest[0]));
                    let panicked = thread::spawn(move || {
                        let _held = held;
                        panic!("a test wants it so");
                    })
                    .join();
                    assert!(panicked.is_err());
                    Ok(String::new())
                }
                "begin" => {
                    let mut group = self.groups.remove(rest[1]).expect("a known group");
                    let (salt, verb) = (self.salt, rest[0].to_owned());
                    let words: Vec<String> =
                        rest[2..].iter().map(|word| (*word).to_owned()).collect();
                    thread::spawn(move || {
                        let words: Vec<_> = words.iter().map(String::as_str).collect();
                        operate(&mut group, &verb, &words, salt)
                    });
                    Ok(String::new())
                }
                "relay" => self.relay(rest),
                "post" | "next" | "settle" | "finish" | "quit" | "consume" => {
                    self.hand_on(verb, rest)
                }
                "scenario" => self.scenario(rest[0].parse().expect("a number")),
                "parallel" => return self.parallel(rest),
                _ => {
                    let salt = self.salt;
                    let group = self.groups.get_mut(rest[0]).expect("a known group");
                    let outcome = operate(group, verb, &rest[1..], salt);
                    return say(step, group.round(), started, outcome);
                }
            };
            say(step, 0, started, outcome);
        }

        fn group(&mut self, words: &[&str]) -> Outcome {
            let name = words[0];
            let mut group = match given(words, "ranks") {
                None => self.world.everybody(name)?,
                Some(list) => {
                    let ranks: Vec<usize> = list
                        .split(',')
                        .map(|rank| rank.parse().expect("a rank"))
                        .collect();
                    self.world.group(name, &ranks)?
                }
            };
            if given(words, "timeout").is_some() {
                group = group.with_timeout(Duration::from_millis(number(words, "timeout", 0)));
            }
            self.groups.insert(name.to_owned(), group);
            Ok(String::new())
        }

        fn relay(&mut self, words: &[&str]) -> Outcome {
            let rank = |name| given(words, name).map(|text| text.parse().expect("a rank"));
            let mut relay = self.world.relay(words[0], rank("up"), rank("down"))?;
            if let Some(room) = given(words, "room") {
                relay = relay.with_room(room.parse().expect("a number"), usize::MAX);
            }
            if given(words, "timeout").is_some() {
                relay = relay.with_timeout(Duration::from_millis(number(words, "timeout", 0)));
            }
            self.relays.insert(words[0].to_owned(), relay);
            Ok(String::new())
        }

        fn hand_on(&mut self, verb: &str, words: &[&str]) -> Outcome {
            if verb == "quit" {
                drop(self.relays.remove(words[0]));
                return Ok(String::new());
            }
            let relay = self.relays.get_mut(words[0]).expect("a known relay");
            match verb {
                "post" => series(words, "slots", 8)
                    .post(relay)
                    .map(|()| String::new()),
                "next" => series(words, "slots", 8).next(relay),
                "settle" => {
                    let pending = relay.settle()?;
                    Ok(format!("{} {}", pending.vectors, pending.bytes))
                }
                "finish" => {
                    relay.finish(call(words))?;
                    Ok(String::new())
                }
                _ => {
                    let counts: Vec<i64> = given(words, "counts").map_or(Vec::new(), |counts| {
                        let count = |text: &str| text.parse().expect("a number");
                        counts.split(',').map(count).collect()
                    });
                    let ticks = usize::try_from(number(words, "ticks", 1)).expect("small");
                    let late = Duration::from_millis(number(words, "late", 0));
                    consume(relay, &counts, ticks, late)
                }
            }
        }

        fn reopen(&mut self, words: &[&str]) -> Outcome {
            for n in 0..number(words, "count", 1) {
                // Some names for the first time, some again.
                let mut group = self.world.everybody(&format!("{}{}", words[0], n % 40))?;
                one(&mut group, "min", &[], self.salt)?;
                one(&mut group, "max", &["slots=20"], self.salt)?;
            }
            Ok(String::new())
        }

        fn scenario(&mut self, number: usize) -> Outcome {
            let mut take = |name| self.groups.remove(name).expect("the groups of the cache");
            let (mut tick, hits, acks) = (take("tick"), take("hits"), take("acks"));
            let ended = scenarios()[number].run(&mut tick, Box::new(hits), Box::new(acks));
            // The caller must not close it before the last rank has ended.
            self.groups.insert("tick".to_owned(), tick);
            ended.map(|()| String::new()).map_err(Failure::Wrong)
        }

        fn parallel(&mut self, words: &[&str]) {
            let salt = self.salt;
            let threads: Vec<_> = words[0]
                .split(',')
                .map(|name| {
                    let mut group = self.groups.remove(name).expect("a known group");
                    let words: Vec<String> =
                        words[1..].iter().map(|word| (*word).to_owned()).collect();
                    thread::spawn(move || {
                        let started = Start::now();
                        let rest: Vec<&str> = words[1..].iter().map(String::as_str).collect();
                        let outcome = operate(&mut group, &words[0], &rest, salt);
                        let step = format!("parallel {} {}", group.name(), words.join(" "));
                        (step, started, outcome, group)
                    })
                })
                .collect();
            for thread in threads {
                let (step, started, outcome, group) = thread.join().expect("no step panics");
                say(&step, group.round(), started, outcome);
                self.groups.insert(group.name().to_owned(), group);
            }
        }
    }

    /// Open descriptors, and mappings of segments.
    fn holdings() -> String {
        let descriptors = std::fs::read_dir("/proc/self/fd").expect("Linux").count();
        let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux");
        let segments = maps.lines().filter(|line| line.contains("/dev/shm/"));
        format!("{descriptors} {}", segments.count())
    }

    fn call<'a>(words: &[&'a str]) -> Call<'a> {
        Call {
            label: given(words, "label").unwrap_or("test"),
            timeout: given(words, "within")
                .map(|_| Duration::from_millis(number(words, "within", 0))),
        }
    }

    /// A series of messages or vectors; `length` is the word for the length of each.
    fn series<'a>(words: &[&'a str], length: &str, otherwise: u64) -> Series<'a> {
        Series {
            first: number(words, "first", 1),
            count: number(words, "count", 1),
            length: usize::try_from(number(words, length, otherwise)).expect("a length"),
            timed: words.contains(&"timed"),
            pause: Duration::from_micros(number(words, "pause", 0)),
            call: call(words),
        }
    }

    fn operate(group: &mut Group, verb: &str, words: &[&str], salt: u64) -> Outcome {
        let started = group.round();
        let count = number(words, "count", 1);
        let peer = |name| usize::try_from(number(words, name, 0)).expect("a rank");
        match verb {
            "send" => {
                series(words, "bytes", 64).send(group, peer("to"))?;
                return Ok(String::new());
            }
            "recv" => return series(words, "bytes", 64).recv(group, peer("from")),
            _ => {}
        }
        if verb == "soak" {
            soak(group, count, number(words, "seed", 0))?;
            return Ok(String::new());
        }
        for _ in 0..count {
            one(group, verb, words, salt).map_err(|failure| match failure {
                // An error that comes late in a series is of interest together with the round before it.
                Failure::Wrong(what) => {
                    Failure::Wrong(format!("after {} rounds: {what}", group.round() - started))
                }
                error @ Failure::Error(_) => error,
            })?;
            let pause = number(words, "pause", 0);
            if pause > 0 {
                thread::sleep(Duration::from_micros(pause));
            }
        }
        match verb {
            "path" => {
                let (kind, reason) = group
                    .path()
                    .ok_or_else(|| "the group has no path".to_owned())?;
                Ok(format!("{kind}: {reason}"))
            }
            _ => Ok(String::new()),
        }
    }

    fn one(group: &mut Group, verb: &str, words: &[&str], salt: u64) -> Result<(), Failure> {
        let (call, round) = (call(words), group.round() + 1);
        match verb {
            "path" => {}
            "ready" => group.ready()?,
            "close" => group.close(),
            "barrier" => group.barrier(call)?,
            "each" => {
                let slots = usize::try_from(number(words, "slots", 8)).expect("a width");
                let names = given(words, "ops").expect("operations").split(',').cycle();
                let ops: Vec<Op> = names.take(slots).map(op).collect();
                reduce(group, &ops, words, salt, call)?;
            }
            "min" | "max" | "sum" | "or" | "and" => reduce(group, op(verb), words, salt, call)?,
            "split" => split(group, words, salt, call)?,
            "gather" => {
                let (values, slots) = contribution(words, salt);
                let row = values.row(group.rank(), round, slots);
                let mut got = Vec::new();
                group.all_gather(&row, &mut got, call)?;
                let of = |rank| values.row(rank, round, slots);
                if got != (0..group.size()).flat_map(of).collect::<Vec<_>>() {
                    return Err(format!("round {round}: other values than those of all").into());
                }
            }
            "gather-bytes" => {
                let len = usize::try_from(number(words, "bytes", 64)).expect("a length");
                let of = |rank| bytes(rank, round, len + rank);
                let got = group.all_gather_bytes(&of(group.rank()), call)?;
                if got != (0..group.size()).map(of).collect::<Vec<_>>() {
                    return Err(format!("round {round}: other bytes than those of all").into());
                }
            }
            "broadcast" => {
                let root = usize::try_from(number(words, "root", 0)).expect("a rank");
                let len = usize::try_from(number(words, "bytes", 64)).expect("a length");
                let wanted = bytes(root, round, len);
                let mut got = if group.rank() == root {
                    wanted.clone()
                } else {
                    Vec::new()
                };
                group.broadcast(root, &mut got, call)?;
                if got != wanted {
                    return Err(format!("round {round}: other bytes than those of the root").into());
                }
            }
            "behave" => (behaviour(&words.join(" ")).run)(group)?,
            other => panic!("no step `{other}`"),
        }
        Ok(())
    }

    fn op(name: &str) -> Op {
        [Op::Min, Op::Max, Op::Sum, Op::Or, Op::And]
            .into_iter()
            .find(|op| op.to_string() == name)
            .unwrap_or_else(|| panic!("no operation `{name}`"))
    }

    /// What a rank contributes, and how wide.
    fn contribution(words: &[&str], salt: u64) -> (Values, usize) {
        let range = if words.contains(&"full") {
            Range::Full
        } else {
            Range::Small
        };
        let slots = usize::try_from(number(words, "slots", 8)).expect("a width");
        (Values { salt, range }, slots)
    }

    fn split(group: &mut Group, words: &[&str], salt: u64, call: Call<'_>) -> Result<(), Failure> {
        let (values, slots) = contribution(words, salt);
        let mut flight = Vec::new();
        for _ in 0..3 {
            let row = values.row(group.rank(), group.round() + 1, slots);
            flight.push(group.start_all_reduce(Op::Min, &row, call)?);
        }
        for started in flight {
            let round = started.round();
            if Ok(group.finish(&started, call)?)
                != values.reduced(Op::Min, group.size(), round, slots)
            {
                return Err(format!("round {round}: a wrong min, finished later").into());
            }
        }
        Ok(())
    }

    fn reduce<'a>(
        group: &mut Group,
        ops: impl Into<Ops<'a>>,
        words: &[&str],
        salt: u64,
        call: Call<'a>,
    ) -> Result<(), Failure> {
        let ops = ops.into();
        let ((values, slots), round) = (contribution(words, salt), group.round() + 1);
        let mut row = values.row(group.rank(), round, slots);
        let before = row.clone();
        let done: Result<(), Error> = group.all_reduce(ops, &mut row, call);
        if done.is_err() && row != before {
            return Err(format!("round {round} failed, and changed the values").into());
        }
        done?;
        if values.reduced(ops, group.size(), round, slots) != Ok(row) {
            return Err(format!("round {round}: a wrong {ops:?}").into());
        }
        Ok(())
    }
}
