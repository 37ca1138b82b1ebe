//! Ranks as real processes: started, watched, signalled, and looked for afterwards.

use crate::report::Report;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rankpact_collective::PathChoice;
use std::collections::BTreeMap;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// After that long a test hangs. Far beyond what any takes, on a busy machine too.
const HANGS: Duration = Duration::from_secs(60);

/// How the variables begin that launchers set, ours among them.
const OF_LAUNCHERS: [&str; 15] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_",
    "TORCHELASTIC_",
    "OMPI_COMM_WORLD_",
    "OMPI_MCA_ess_",
    "PMI_",
    "PMIX_NAMESPACE",
    "PMIX_RANK",
    "PMIX_SERVER",
    "PALS_",
    "MPI_LOCAL",
    "SLURM_",
];

/// A program that is not told who started the tests: they may run below a launcher themselves.
#[must_use]
pub fn unlaunched(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if OF_LAUNCHERS.iter().any(|start| text.starts_with(start)) {
            command.env_remove(&name);
        }
    }
    command
}

/// How a job is started.
#[derive(Debug)]
pub struct Job {
    program: String,
    size: usize,
    absent: Vec<usize>,
    vars: Vec<(Option<usize>, &'static str, Option<String>)>,
    wrapping: Vec<(Option<usize>, Vec<String>)>,
    options: Vec<String>,
    hangs: Duration,
    folder: tempfile::TempDir,
    nonce: String,
}

impl Job {
    /// A job of `size` ranks of `program`, with a deadline of 30 s.
    #[must_use]
    pub fn new(program: &'static str, size: usize) -> Self {
        let half = || getrandom::u64().expect("the kernel has random numbers");
        Self {
            program: program.to_owned(),
            size,
            absent: Vec::new(),
            vars: Vec::new(),
            wrapping: Vec::new(),
            options: Vec::new(),
            hangs: HANGS,
            folder: tempfile::tempdir().expect("there is room for a folder"),
            nonce: format!("{:016x}{:016x}", half(), half()),
        }
        .timeout(Duration::from_secs(30))
    }

    /// The path that all ranks ask for.
    #[must_use]
    pub fn path(self, path: PathChoice) -> Self {
        self.var("RANKPACT_PATH", path)
    }

    /// The deadline of all ranks.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        self.var("RANKPACT_TIMEOUT", timeout.as_secs_f64())
    }

    /// A variable of all ranks.
    #[must_use]
    pub fn var(mut self, name: &'static str, value: impl ToString) -> Self {
        self.vars.push((None, name, Some(value.to_string())));
        self
    }

    /// A variable of one rank.
    #[must_use]
    pub fn var_of(mut self, rank: usize, name: &'static str, value: impl ToString) -> Self {
        self.vars.push((Some(rank), name, Some(value.to_string())));
        self
    }

    /// A job whose ranks learn of each other as under torchrun on one host, with `port`.
    #[must_use]
    pub fn as_torchrun(mut self, port: u16) -> Self {
        for name in [
            "RANKPACT_RANK",
            "RANKPACT_WORLD_SIZE",
            "RANKPACT_RENDEZVOUS",
        ] {
            self.vars.push((None, name, None));
        }
        let size = self.size;
        (0..size)
            .fold(self, |job, rank| {
                job.var_of(rank, "RANK", rank)
                    .var_of(rank, "LOCAL_RANK", rank)
            })
            .var("WORLD_SIZE", size)
            .var("LOCAL_WORLD_SIZE", size)
            .var("MASTER_ADDR", "localhost")
            .var("MASTER_PORT", port)
    }

    /// A rank that never comes.
    #[must_use]
    pub fn without(mut self, rank: usize) -> Self {
        self.absent.push(rank);
        self
    }

    /// Starts the program by way of this process: the ranks may not see its folder.
    #[must_use]
    pub fn hidden(mut self) -> Self {
        self.program = format!("/proc/{}/root{}", std::process::id(), self.program);
        self
    }

    /// Words before the program of every rank.
    #[must_use]
    pub fn wrapped(mut self, words: &[&str]) -> Self {
        self.wrapping.push((None, owned(words)));
        self
    }

    /// Words before the program of one rank.
    #[must_use]
    pub fn wrapped_rank(mut self, rank: usize, words: &[&str]) -> Self {
        self.wrapping.push((Some(rank), owned(words)));
        self
    }

    /// After how long the job hangs, for one that takes longer than any other.
    #[must_use]
    pub fn hangs_after(mut self, time: Duration) -> Self {
        self.hangs = time;
        self
    }

    /// An option of the rank program itself.
    #[must_use]
    pub fn option(mut self, option: impl Into<String>) -> Self {
        self.options.push(option.into());
        self
    }

    /// Where the ranks meet; theirs alone.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts all ranks; `steps` are those of each.
    pub fn start<I>(self, steps: impl Fn(usize) -> I) -> Ranks
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        let processes = (0..self.size)
            .filter(|rank| !self.absent.contains(rank))
            .map(|rank| {
                let steps: Vec<_> = steps(rank).into_iter().collect();
                (rank, self.spawn(rank, &steps))
            })
            .collect();
        let (alive, watched) = mpsc::channel::<()>();
        let test = thread::current().name().unwrap_or("a test").to_owned();
        let hangs = self.hangs;
        thread::spawn(move || {
            if watched.recv_timeout(hangs) == Err(RecvTimeoutError::Timeout) {
                // The ranks die with this process: they asked the kernel for it.
                eprintln!("{test} hangs: aborting all tests");
                std::process::abort();
            }
        });
        Ranks {
            job: self,
            processes,
            _alive: alive,
        }
    }

    fn words_before(&self, rank: usize) -> impl Iterator<Item = &str> {
        let of_rank = move |whose: &Option<usize>| whose.is_none_or(|whose| whose == rank);
        self.wrapping
            .iter()
            .filter(move |(whose, _)| of_rank(whose))
            .flat_map(|(_, words)| words.iter().map(String::as_str))
    }

    fn spawn<S: AsRef<str>>(&self, rank: usize, steps: &[S]) -> Process {
        let mut words = self.words_before(rank);
        let mut command = match words.next() {
            Some(first) => {
                let mut command = unlaunched(first);
                command.args(words).arg(&self.program);
                command
            }
            None => unlaunched(&self.program),
        };
        command
            .args(&self.options)
            .args(steps.iter().map(AsRef::as_ref))
            .env("RANKPACT_RANK", rank.to_string())
            .env("RANKPACT_WORLD_SIZE", self.size.to_string())
            .env(
                "RANKPACT_RENDEZVOUS",
                format!("file://{}", self.folder.path().display()),
            )
            .env("RANKPACT_JOB", &self.nonce)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for (whose, name, value) in &self.vars {
            if whose.is_none_or(|whose| whose == rank) {
                match value {
                    Some(value) => command.env(name, value),
                    None => command.env_remove(name),
                };
            }
        }
        let mut child = command.spawn().expect("a rank can be started");
        let (say, lines) = mpsc::channel();
        let out = BufReader::new(child.stdout.take().expect("piped"));
        thread::spawn(move || {
            // A test that is over listens no more.
            let _ = out
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| say.send(line));
        });
        let mut err = child.stderr.take().expect("piped");
        let stderr = thread::spawn(move || {
            let mut text = String::new();
            let _ = err.read_to_string(&mut text);
            text
        });
        Process {
            stdin: child.stdin.take().expect("piped"),
            child,
            lines,
            stderr: Some(stderr),
            status: None,
            condemned: steps.iter().any(|step| step.as_ref() == "crash"),
        }
    }
}

#[derive(Debug)]
struct Process {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
    stderr: Option<JoinHandle<String>>,
    status: Option<ExitStatus>,
    /// The test wants it to end by a signal.
    condemned: bool,
}

/// The ranks of a started job.
#[derive(Debug)]
pub struct Ranks {
    job: Job,
    processes: BTreeMap<usize, Process>,
    _alive: Sender<()>,
}

impl Ranks {
    /// The ranks that were started.
    #[must_use]
    pub fn all(&self) -> Vec<usize> {
        self.processes.keys().copied().collect()
    }

    /// Where they meet, unless the test says otherwise.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.job.folder()
    }

    /// The random number of the job.
    #[must_use]
    pub fn nonce(&self) -> &str {
        &self.job.nonce
    }

    fn process(&mut self, rank: usize) -> &mut Process {
        self.processes.get_mut(&rank).expect("the rank was started")
    }

    /// The next report of `rank`, or `None` once it has ended.
    pub fn next(&mut self, rank: usize) -> Option<Report> {
        let line = self.process(rank).lines.recv().ok()?;
        Some(serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}")))
    }

    /// Every line that `rank`, which has ended, has not been asked for.
    pub fn said(&mut self, rank: usize) -> Vec<String> {
        self.process(rank).lines.iter().collect()
    }

    /// The report of `step`, which must be the next one of `rank` but for steps that went well.
    #[track_caller]
    pub fn report(&mut self, rank: usize, step: &str) -> Report {
        loop {
            let Some(report) = self.next(rank) else {
                let process = self.process(rank);
                let status = process.wait();
                panic!(
                    "rank {rank} ended ({status}) before `{step}`; it said: {}",
                    process.stderr()
                );
            };
            if report.step == step {
                return report;
            }
            report.well();
        }
    }

    /// Waits until every rank holds at `name`; all steps before it must have gone well.
    #[track_caller]
    pub fn all_hold(&mut self, name: &str) {
        for rank in self.all() {
            self.holds(rank, name);
        }
    }

    /// Waits until `rank` holds at `name`; all steps before it must have gone well.
    #[track_caller]
    pub fn holds(&mut self, rank: usize, name: &str) {
        self.report(rank, &format!("hold {name}")).well();
    }

    /// Waits until every rank has come to rank 0, where it may have to wait for others.
    pub fn all_met(&mut self) {
        for rank in self.all() {
            while !has_thread(self.pid(rank), "rankpact-link") {
                thread::sleep(Duration::from_millis(2));
            }
        }
    }

    /// Lets `rank` go on.
    pub fn go(&mut self, rank: usize) {
        // One that has died does not listen.
        let _ = self.process(rank).stdin.write_all(b"go\n");
    }

    /// Lets all ranks go on.
    pub fn all_go(&mut self) {
        for rank in self.all() {
            self.go(rank);
        }
    }

    /// The number of the rank's own process, also where that is a child of the words before it.
    pub fn pid(&mut self, rank: usize) -> Pid {
        let mut pid = self.process(rank).child.id();
        let wrapped = self.job.words_before(rank).next().is_some();
        while let Some(child) = wrapped.then(|| only_child(pid)).flatten() {
            pid = child;
        }
        Pid::from_raw(pid.cast_signed())
    }

    /// Sends a signal to the rank's own process.
    pub fn signal(&mut self, rank: usize, signal: Signal) {
        self.process(rank).condemned |= signal == Signal::SIGKILL;
        kill(self.pid(rank), signal).expect("the rank is there");
    }

    /// Kills a rank and waits until it is gone.
    pub fn kill(&mut self, rank: usize) {
        self.signal(rank, Signal::SIGKILL);
        self.process(rank).wait();
    }

    /// How `rank` ended; waits for it.
    pub fn ended(&mut self, rank: usize) -> ExitStatus {
        self.process(rank).wait()
    }

    /// What `rank`, which has ended, said on stderr.
    pub fn stderr(&mut self, rank: usize) -> String {
        self.process(rank).stderr().to_owned()
    }

    /// Waits for the end of all ranks: without an error, but for those that were killed, and without leaving anything.
    #[track_caller]
    pub fn end(mut self) {
        for rank in self.all() {
            let process = self.process(rank);
            let status = process.wait();
            // What wraps a killed rank says so with its exit code.
            let as_wanted = status.success() || process.condemned;
            if !as_wanted {
                panic!("rank {rank} ended with {status}: {}", process.stderr());
            }
            while let Some(report) = self.next(rank) {
                report.well();
            }
        }
        self.nothing_is_left();
    }

    /// The names of segments that the job has at present.
    #[must_use]
    pub fn names(&self) -> Vec<PathBuf> {
        names_in(Path::new("/dev/shm"), &self.job.nonce)
    }

    /// Checks that no process of the job and no name of it is left; for jobs that end by signals.
    #[track_caller]
    pub fn nothing_is_left(&self) {
        let names = self.names();
        assert!(names.is_empty(), "left behind: {names:?}");
        let processes = processes_of(&self.job.nonce);
        assert!(processes.is_empty(), "still there: {processes:?}");
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for (rank, process) in &mut self.processes {
            if process.status.is_none() {
                let _ = process.child.kill();
                let status = process.wait();
                if thread::panicking() {
                    eprintln!("rank {rank} ended with {status}: {}", process.stderr());
                }
            }
        }
        // A rank below a wrapper outlives the wrapper if that does not take it along.
        for pid in processes_of(&self.job.nonce) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

impl Process {
    fn wait(&mut self) -> ExitStatus {
        let status = self.child.wait().expect("a child can be waited for");
        self.status = Some(status);
        status
    }

    fn stderr(&mut self) -> String {
        match self.stderr.take() {
            Some(reader) => reader.join().unwrap_or_default(),
            None => String::new(),
        }
    }
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// What has a name in `folder` that contains `part`: the random number of a job, say.
#[must_use]
pub fn names_in(folder: &Path, part: &str) -> Vec<PathBuf> {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().contains(part))
        })
        .collect()
}

/// Processes with the number of the job in their environment, that is, ranks and what they started.
fn processes_of(nonce: &str) -> Vec<i32> {
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<i32>().ok();
    let of_job = |pid: &i32| {
        let vars = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        vars.windows(nonce.len())
            .any(|part| part == nonce.as_bytes())
    };
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(number)
        .filter(of_job)
        .collect()
}

fn has_thread(pid: Pid, name: &str) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let mut names = threads.filter_map(|entry| fs::read_to_string(entry.path().join("comm")).ok());
    names.any(|of_thread| of_thread.trim_end() == name)
}

fn only_child(pid: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// Whether this user may have namespaces of its own; says so if not.
#[must_use]
pub fn may_unshare() -> bool {
    let tried = Command::new("unshare")
        .args(["-m", "-p", "-f", "mount", "-t", "tmpfs", "none", "/mnt"])
        .output();
    match tried {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            eprintln!(
                "SKIPPED, unshare is not permitted: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            false
        }
        Err(error) => {
            eprintln!("SKIPPED, no unshare: {error}");
            false
        }
    }
}

/// A mount namespace with a `/dev/shm` of its own, which ranks can enter.
#[derive(Debug)]
pub struct Namespace {
    holder: Child,
    /// What ranks enter of it.
    kinds: &'static [&'static str],
}

impl Namespace {
    /// Runs `setup`, a line of shell, in a new namespace, and keeps that.
    #[must_use]
    pub fn new(setup: &str) -> Self {
        Self::of(&["-m"], setup)
    }

    /// One with a network and a host name of its own as well.
    #[must_use]
    pub fn with_network(setup: &str) -> Self {
        Self::of(&["-m", "-n", "-u"], setup)
    }

    fn of(kinds: &'static [&'static str], setup: &str) -> Self {
        let mut holder = Command::new("unshare")
            .args(kinds)
            .args(["sh", "-ec", &format!("{setup}; echo ready; read end")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare can be started");
        let mut line = String::new();
        BufReader::new(holder.stdout.take().expect("piped"))
            .read_line(&mut line)
            .expect("the holder speaks");
        assert_eq!(line, "ready\n", "`{setup}` failed");
        Self { holder, kinds }
    }

    /// The process that keeps it.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.holder.id()
    }

    /// The words that start a program in it.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        let mut words = ["nsenter", "-t", &self.pid().to_string()]
            .map(str::to_owned)
            .to_vec();
        words.extend(self.kinds.iter().map(|kind| (*kind).to_owned()));
        words.push("--".to_owned());
        words
    }

    /// What has a name in `folder`, an absolute path inside.
    #[must_use]
    pub fn names(&self, folder: &str) -> Vec<PathBuf> {
        names_in(
            &PathBuf::from(format!("/proc/{}/root{folder}", self.holder.id())),
            "rankpact",
        )
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let deadline = Instant::now() + Duration::from_secs(5);
        while matches!(self.holder.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(2));
        }
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
