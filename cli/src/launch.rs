//! Starts the ranks of a job on this machine and ends them together.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{self, Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};
use std::{env, fmt, io, thread};

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::{self, Signal};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{Pid, Uid, getpgrp, getppid, tcgetpgrp};
use tempfile::TempDir;

use crate::outcome::{End, Outcome, Verdict};
use crate::signals;

/// Where POSIX shared memory has its names on Linux.
const SHM_FOLDER: &str = "/dev/shm";
const SHM_FOLDER_VARIABLE: &str = "RANKPACT_SHM_DIR";
const LAUNCHER_VARIABLE: &str = "RANKPACT_LAUNCHER_PID";

/// From SIGTERM to SIGKILL.
const TERMINATION: Duration = Duration::from_secs(1);

/// What to start, `ranks` times.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) ranks: usize,
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
    /// Added to the inherited environment; the variables of the job (`RANKPACT_...`) win.
    pub(crate) env: Vec<(OsString, OsString)>,
    /// Of every rank; what they print as errors goes where ours goes.
    pub(crate) stdout: Output,
    /// How long the job may take, from its start.
    pub(crate) timeout: Option<Duration>,
    /// How long ranks may take to end by themselves once one has failed: time to report it.
    pub(crate) grace: Duration,
}

/// Where an output stream of a rank goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Output {
    /// Where ours goes.
    Inherit,
    /// Into a pipe, see [`Job::take_stdout`].
    Pipe,
}

/// The ranks of a running job. Dropping it kills them.
#[derive(Debug)]
pub(crate) struct Job {
    ranks: Vec<Rank>,
    events: Receiver<Event>,
    timeout: Option<(Instant, Duration)>,
    grace: Duration,
    leftovers: Leftovers,
    /// Removed with the job.
    rendezvous: TempDir,
}

#[derive(Debug)]
struct Rank {
    child: Child,
    /// Whether a signal went from here to it.
    signalled: bool,
    end: Option<End>,
}

#[derive(Debug)]
enum Event {
    Ended(usize),
    Signal(i32),
}

/// What happens to the ranks still running when the time is up.
#[derive(Clone, Copy, Debug)]
enum Step {
    TimeOut(Duration),
    Terminate,
    Kill,
}

/// Why a job could not be started.
#[derive(Debug)]
pub(crate) struct LaunchError {
    what: String,
    source: io::Error,
}

impl Launch {
    /// `ranks` times `program`, everything else as plain as can be.
    pub(crate) fn new(ranks: usize, program: impl Into<OsString>) -> Self {
        Self {
            ranks,
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            stdout: Output::Inherit,
            timeout: None,
            grace: Duration::from_secs(1),
        }
    }

    /// Starts all ranks, or none.
    ///
    /// Call it from the main thread: ranks that called [`die_with_parent`] die when the *thread*
    /// that started them ends.
    pub(crate) fn start(&self) -> Result<Job, LaunchError> {
        let uid = Uid::current();
        let nonce = nonce()?;
        let (sender, events) = mpsc::channel();
        // Before anything is there to be left behind by a signal.
        subscribe(sender.clone())?;
        let rendezvous = rendezvous_folder(uid)?;

        let mut job = Job {
            ranks: Vec::with_capacity(self.ranks),
            events,
            // A limit beyond the end of the clock is none.
            timeout: self
                .timeout
                .and_then(|limit| Some((Instant::now().checked_add(limit)?, limit))),
            grace: self.grace,
            leftovers: Leftovers {
                folder: self.shm_folder(),
                prefix: format!("rankpact-{uid}-{nonce}-"),
                uid,
            },
            rendezvous,
        };
        for rank in 0..self.ranks {
            let child = self
                .command(rank, &nonce, job.rendezvous.path())
                .spawn()
                .map_err(|source| {
                    LaunchError::new(format!("cannot start {}", self.program.display()), source)
                })?;
            let pid = pid_of(&child);
            job.ranks.push(Rank {
                child,
                signalled: false,
                end: None,
            });
            watch(rank, pid, sender.clone())?;
        }
        Ok(job)
    }

    fn command(&self, rank: usize, nonce: &str, rendezvous: &Path) -> Command {
        let mut address = OsString::from("file://");
        address.push(rendezvous);
        let stdout = match self.stdout {
            Output::Pipe => Stdio::piped(),
            Output::Inherit => Stdio::inherit(),
        };
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .env("RANKPACT_RANK", rank.to_string())
            .env("RANKPACT_LOCAL_RANK", rank.to_string())
            .env("RANKPACT_WORLD_SIZE", self.ranks.to_string())
            .env("RANKPACT_RENDEZVOUS", address)
            .env("RANKPACT_JOB", nonce)
            .env(LAUNCHER_VARIABLE, std::process::id().to_string())
            // Two readers of one terminal would share its lines by chance.
            .stdin(if rank == 0 {
                Stdio::inherit()
            } else {
                Stdio::null()
            })
            .stdout(stdout);
        command
    }

    /// As the ranks see it.
    fn shm_folder(&self) -> PathBuf {
        self.env
            .iter()
            .rev()
            .find(|(name, _)| name == SHM_FOLDER_VARIABLE)
            .map(|(_, value)| value.clone())
            .or_else(|| env::var_os(SHM_FOLDER_VARIABLE))
            .unwrap_or_else(|| SHM_FOLDER.into())
            .into()
    }
}

fn nonce() -> Result<String, LaunchError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| LaunchError::new("cannot get random bytes", error.into()))?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

fn rendezvous_folder(uid: Uid) -> Result<TempDir, LaunchError> {
    let parent = env::temp_dir();
    path::absolute(&parent)
        .and_then(|parent| {
            tempfile::Builder::new()
                .prefix(&format!("rankpact-{uid}-"))
                .permissions(Permissions::from_mode(0o700))
                .tempdir_in(parent)
        })
        .map_err(|source| {
            LaunchError::new(
                format!("cannot make a folder in {}", parent.display()),
                source,
            )
        })
}

fn subscribe(sender: Sender<Event>) -> Result<(), LaunchError> {
    signals::subscribe(move |signal| sender.send(Event::Signal(signal)).is_ok())
        .map_err(|source| LaunchError::new("cannot watch for signals", source))
}

/// Tells `sender` when the process ends, and leaves it unreaped: until the job itself reaps it, its
/// number cannot go to another process, so that no signal of ours can hit a stranger.
fn watch(rank: usize, pid: Pid, sender: Sender<Event>) -> Result<(), LaunchError> {
    let wait = move || {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        while waitid(Id::Pid(pid), flags) == Err(Errno::EINTR) {}
        // Nobody listens once the job is dropped.
        let _ = sender.send(Event::Ended(rank));
    };
    thread::Builder::new()
        .name(format!("wait-{rank}"))
        .spawn(wait)
        .map(drop)
        .map_err(|source| LaunchError::new("cannot start a thread", source))
}

/// Ctrl-C goes to all processes in the foreground, ranks included. A second one from us would hit
/// them in the middle of their orderly end.
fn terminal_sends_to_ranks(signal: i32) -> bool {
    signal == Signal::SIGINT as i32
        && File::open("/dev/tty").is_ok_and(|terminal| tcgetpgrp(terminal) == Ok(getpgrp()))
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed())
}

impl Job {
    /// The output of `rank`, once, if it was to go into a pipe.
    pub(crate) fn take_stdout(&mut self, rank: usize) -> Option<ChildStdout> {
        self.ranks.get_mut(rank)?.child.stdout.take()
    }

    /// Waits for all ranks. The first failure, a signal to this program or the timeout ends them.
    pub(crate) fn wait(mut self) -> Outcome {
        let mut verdict = Verdict::Success;
        let mut next = self
            .timeout
            .map(|(deadline, limit)| (deadline, Step::TimeOut(limit)));
        while self.ranks.iter().any(|rank| rank.end.is_none()) {
            match self.event_before(next.map(|(at, _)| at)) {
                Some(Event::Ended(rank)) => {
                    let end = self.ranks[rank].reap();
                    if end != End::Exited(0) && verdict == Verdict::Success {
                        verdict = Verdict::Failed { rank, end };
                        next = Some((Instant::now() + self.grace, Step::Terminate));
                    }
                }
                Some(Event::Signal(signal)) => {
                    // Also the second one: whoever sends it may mean it for the ranks.
                    if !terminal_sends_to_ranks(signal) {
                        self.send(signal);
                    }
                    if verdict == Verdict::Success {
                        verdict = Verdict::Interrupted { signal };
                        next = Some(if signal == Signal::SIGTERM as i32 {
                            (Instant::now() + TERMINATION, Step::Kill)
                        } else {
                            (Instant::now() + self.grace, Step::Terminate)
                        });
                    }
                }
                None => next = self.take(next.map(|(_, step)| step), &mut verdict),
            }
        }
        Outcome {
            ends: self.ranks.iter().filter_map(|rank| rank.end).collect(),
            verdict,
        }
    }

    /// `None` once `deadline` has passed.
    fn event_before(&self, deadline: Option<Instant>) -> Option<Event> {
        // The subscription to signals keeps the channel open: an error is the deadline.
        match deadline {
            Some(at) => self
                .events
                .recv_timeout(at.saturating_duration_since(Instant::now()))
                .ok(),
            None => self.events.recv().ok(),
        }
    }

    /// Takes a step against the ranks still running; returns the one to take if that is not enough.
    fn take(&mut self, step: Option<Step>, verdict: &mut Verdict) -> Option<(Instant, Step)> {
        match step? {
            Step::TimeOut(limit) => {
                let running = (0..self.ranks.len()).filter(|&rank| self.ranks[rank].end.is_none());
                *verdict = Verdict::TimedOut {
                    limit,
                    running: running.collect(),
                };
                self.take(Some(Step::Terminate), verdict)
            }
            Step::Terminate => {
                self.send(Signal::SIGTERM as i32);
                Some((Instant::now() + TERMINATION, Step::Kill))
            }
            Step::Kill => {
                self.send(Signal::SIGKILL as i32);
                None
            }
        }
    }

    fn send(&mut self, number: i32) {
        let signal = Signal::try_from(number).ok();
        for rank in self.ranks.iter_mut().filter(|rank| rank.end.is_none()) {
            rank.signalled = true;
            // A rank that ended a moment ago takes it as a zombie. One that has changed its user
            // (a setuid program) may refuse; its end is then waited for.
            let _ = signal::kill(pid_of(&rank.child), signal);
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.send(Signal::SIGKILL as i32);
        for rank in self.ranks.iter_mut().filter(|rank| rank.end.is_none()) {
            rank.reap();
        }
        self.leftovers.remove();
    }
}

impl Rank {
    fn reap(&mut self) -> End {
        // Waiting for a child of our own fails for none of the reasons in the manual; if a library
        // has reaped it behind our back, how it ended is lost.
        let end = match self.child.wait().map_or(End::Exited(1), End::from) {
            End::Killed(signal) if self.signalled => End::Stopped(signal),
            end => end,
        };
        self.end = Some(end);
        end
    }
}

/// Names in shared memory that a job killed half-way through its start leaves behind.
#[derive(Debug)]
struct Leftovers {
    folder: PathBuf,
    /// Carries the nonce of the job, so nobody else's names begin with it.
    prefix: String,
    uid: Uid,
}

impl Leftovers {
    fn remove(&self) {
        let Ok(entries) = fs::read_dir(&self.folder) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            if name.as_encoded_bytes().starts_with(self.prefix.as_bytes()) && self.is_ours(&entry) {
                let path = entry.path();
                if let Err(error) = fs::remove_file(&path) {
                    tracing::warn!("cannot remove {}: {error}", path.display());
                }
            }
        }
    }

    fn is_ours(&self, entry: &fs::DirEntry) -> bool {
        // Of the name itself: a link is never followed.
        entry
            .metadata()
            .is_ok_and(|meta| meta.is_file() && meta.uid() == self.uid.as_raw())
    }
}

impl LaunchError {
    fn new(what: impl Into<String>, source: io::Error) -> Self {
        Self {
            what: what.into(),
            source,
        }
    }
}

impl fmt::Display for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.source)
    }
}

impl std::error::Error for LaunchError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// Has the kernel kill this process, a rank, when its launcher ends, however that ends. It outlasts
/// `exec`, but not `fork`.
pub(crate) fn die_with_parent() -> Result<(), LaunchError> {
    let failed = |source| LaunchError::new("cannot follow the launcher", source);
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(|errno| failed(errno.into()))?;
    // The launcher may have ended before the call; we would then wait for the end of a stranger.
    let launcher = env::var_os(LAUNCHER_VARIABLE);
    if launcher.as_deref() == Some(OsStr::new(&getppid().to_string())) {
        Ok(())
    } else {
        Err(failed(io::Error::other("it has ended, or was none")))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Read;

    use super::*;
    use crate::watchdog::Watchdog;

    fn shell(ranks: usize, script: &str) -> Launch {
        let mut launch = Launch::new(ranks, "sh");
        launch.args = vec!["-c".into(), script.into()];
        launch
    }

    fn read_all(mut stream: impl Read) -> String {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    fn pids(job: &Job) -> Vec<Pid> {
        job.ranks.iter().map(|rank| pid_of(&rank.child)).collect()
    }

    fn assert_reaped(pids: &[Pid]) {
        for &pid in pids {
            // A zombie would still take a signal.
            assert_eq!(signal::kill(pid, None), Err(Errno::ESRCH), "{pid}");
        }
    }

    #[test]
    fn piped_streams_are_the_callers_and_outcomes_are_by_rank() {
        let _watchdog = Watchdog::default();
        let mut launch = shell(3, "echo out $RANKPACT_RANK $EXTRA; exit 0");
        launch.env = vec![
            ("EXTRA".into(), "more".into()),
            ("RANKPACT_RANK".into(), "9".into()),
        ];
        launch.stdout = Output::Pipe;
        let mut job = launch.start().unwrap();
        let pids = pids(&job);

        assert_eq!(read_all(job.take_stdout(2).unwrap()), "out 2 more\n");
        assert_eq!(read_all(job.take_stdout(1).unwrap()), "out 1 more\n");
        assert!(job.take_stdout(1).is_none());
        assert!(job.take_stdout(3).is_none());

        let outcome = job.wait();
        assert_eq!(outcome.verdict, Verdict::Success);
        assert_eq!(outcome.ends, [End::Exited(0); 3]);
        assert_eq!(outcome.exit_code(), 0);
        assert_reaped(&pids);
    }

    #[test]
    fn ranks_that_end_in_the_grace_period_keep_their_own_end() {
        let _watchdog = Watchdog::default();
        let mut launch = shell(
            3,
            "[ $RANKPACT_RANK = 1 ] && kill -KILL $$; sleep 3; exit 7",
        );
        launch.grace = Duration::from_secs(60);
        let outcome = launch.start().unwrap().wait();
        let end = End::Killed(9);
        assert_eq!(outcome.verdict, Verdict::Failed { rank: 1, end });
        assert_eq!(outcome.ends, [End::Exited(7), end, End::Exited(7)]);
        assert_eq!(outcome.exit_code(), 137);
        assert_eq!(outcome.verdict.to_string(), "rank 1 was killed by SIGKILL");
    }

    #[test]
    fn ranks_that_had_to_be_killed_did_not_begin_it() {
        let _watchdog = Watchdog::default();
        let mut launch = shell(
            2,
            "[ $RANKPACT_RANK = 1 ] && exit 7; trap '' TERM; exec sleep 600",
        );
        launch.grace = Duration::ZERO;
        let outcome = launch.start().unwrap().wait();
        assert!(
            matches!(outcome.ends[..], [End::Stopped(_), End::Exited(7)]),
            "{outcome:?}"
        );
        let end = End::Exited(7);
        assert_eq!(outcome.cause(), Verdict::Failed { rank: 1, end });
    }

    #[test]
    fn a_dropped_job_leaves_nothing() {
        let _watchdog = Watchdog::default();
        let shm = tempfile::tempdir().unwrap();
        let mut launch = shell(2, "trap '' TERM; exec sleep 600");
        launch.env = vec![(SHM_FOLDER_VARIABLE.into(), shm.path().into())];
        let job = launch.start().unwrap();
        let (pids, folder) = (pids(&job), job.rendezvous.path().to_owned());
        let leftover = shm.path().join(format!("{}group", job.leftovers.prefix));
        fs::write(&leftover, "").unwrap();
        drop(job);
        assert_reaped(&pids);
        assert!(!folder.exists() && !leftover.exists());
    }

    #[test]
    fn only_own_regular_files_of_the_job_are_leftovers() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in [
            "rankpact-7-aa-g",
            "rankpact-7-aa-",
            "rankpact-7-ab-g",
            "xrankpact-7-aa-g",
        ] {
            fs::write(at(name), "").unwrap();
        }
        fs::create_dir(at("rankpact-7-aa-folder")).unwrap();
        std::os::unix::fs::symlink(at("rankpact-7-ab-g"), at("rankpact-7-aa-link")).unwrap();
        let left = || -> BTreeSet<String> {
            fs::read_dir(folder.path())
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect()
        };
        let mut leftovers = Leftovers {
            folder: folder.path().into(),
            prefix: "rankpact-7-aa-".into(),
            uid: Uid::from_raw(Uid::current().as_raw() + 1),
        };
        leftovers.remove();
        assert_eq!(left().len(), 6, "files of another user stay");

        leftovers.uid = Uid::current();
        leftovers.remove();
        let expected = [
            "rankpact-7-aa-folder",
            "rankpact-7-aa-link",
            "rankpact-7-ab-g",
            "xrankpact-7-aa-g",
        ];
        assert_eq!(left(), expected.map(String::from).into());
    }

    #[test]
    fn a_program_that_cannot_start_leaves_nothing_running() {
        let _watchdog = Watchdog::default();
        let error = Launch::new(2, "/no/such/program").start().unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot start /no/such/program: No such file or directory (os error 2)"
        );
    }
}
