//! The pairs of one rank in a group: messages to and from each other member, off the round counter.

use crate::error::{Error, ErrorKind};
use crate::job;
use crate::op::{Call, check_label};
use crate::pair::{LINGER, LONGEST, Pair, Venue, hang_up, mismatch, wait};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// All pairs of this rank in one group, each opened by its first message.
#[derive(Debug)]
pub(crate) struct Pairs {
    group: String,
    /// World ranks of the members.
    ranks: Vec<usize>,
    me: usize,
    venue: Venue,
    /// How many groups of that name and with these members this rank has made before.
    generation: u64,
    /// By place of the other in the group.
    lines: BTreeMap<usize, Line>,
    /// Why this rank has given all up, if it has.
    aborted: Option<ErrorKind>,
    /// Until when a close may wait, once it has begun.
    closing: Option<Instant>,
}

/// One pair: also before it is opened, and after it has failed.
#[derive(Debug, Default)]
struct Line {
    pair: Option<Pair>,
    failure: Option<Error>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Send,
    Recv,
}

/// One call on the pair with `peer`, a place in the group.
#[derive(Clone, Copy)]
struct Asked<'a> {
    verb: Verb,
    peer: usize,
    call: Call<'a>,
    timeout: Duration,
}

impl Pairs {
    /// The pairs of the member at place `me` of `ranks`.
    pub(crate) fn new(group: &str, ranks: &[usize], me: usize, venue: Venue) -> Self {
        let generation = match &venue {
            Venue::Job(job) => job.count(&format!("group {group}/{ranks:?}")),
            Venue::Threads(_) => 0,
        };
        Self {
            group: group.to_owned(),
            ranks: ranks.to_vec(),
            me,
            venue,
            generation,
            lines: BTreeMap::new(),
            aborted: None,
            closing: None,
        }
    }

    /// Sends `bytes` to the member at place `to`: waits until the kernel has taken them, and reads meanwhile.
    pub(crate) fn send(
        &mut self,
        to: usize,
        bytes: &[u8],
        call: Call<'_>,
        timeout: Duration,
    ) -> Result<(), Error> {
        let asked = Asked {
            verb: Verb::Send,
            peer: to,
            call,
            timeout,
        };
        if bytes.len() > LONGEST {
            let many = bytes.len();
            let what = format!("{many} bytes are too many for a message, at most {LONGEST}");
            return Err(self.error(asked, 0, ErrorKind::Usage(what)));
        }
        self.call(asked, |pair, _, deadline, check| {
            pair.pump();
            check(pair)?;
            pair.push(call.label, bytes);
            let sent = |pair: &mut Pair| {
                pair.pump();
                if pair.is_sent() {
                    return Ok(Some(()));
                }
                check(pair).map(|()| None)
            };
            wait(pair, deadline, sent, |pair| {
                pair.socket().into_iter().collect()
            })
        })
    }

    /// Receives the next message of the member at place `from` into `bytes`.
    pub(crate) fn recv(
        &mut self,
        from: usize,
        bytes: &mut Vec<u8>,
        call: Call<'_>,
        timeout: Duration,
    ) -> Result<(), Error> {
        let asked = Asked {
            verb: Verb::Recv,
            peer: from,
            call,
            timeout,
        };
        *bytes = self.call(asked, |pair, (me, peer), deadline, check| {
            let came = |pair: &mut Pair| {
                if pair.front().is_none() {
                    pair.pump();
                }
                match pair.take() {
                    None => check(pair).map(|()| None),
                    Some(message) if message.label == call.label => Ok(Some(message.bytes)),
                    Some(message) => {
                        Err(mismatch((me, "recv", call.label), peer, ("send", &message)))
                    }
                }
            };
            wait(pair, deadline, came, |pair| {
                pair.socket().into_iter().collect()
            })
        })?;
        Ok(())
    }

    /// Tells all others that this rank gives up, and why.
    pub(crate) fn abort(&mut self, kind: &ErrorKind) {
        if self.venue.is_forked() {
            return;
        }
        self.aborted = Some(kind.clone());
        self.adopt();
        for pair in self
            .lines
            .values_mut()
            .filter_map(|line| line.pair.as_mut())
        {
            pair.give_up(kind);
        }
    }

    /// Says goodbye to all others, as far as that goes at once; [`Pairs::close`] does the rest.
    pub(crate) fn leave(&mut self) {
        if self.closing.is_some() || self.venue.is_forked() {
            return;
        }
        self.closing = Some(Instant::now() + LINGER);
        self.adopt();
        for pair in self
            .lines
            .values_mut()
            .filter_map(|line| line.pair.as_mut())
        {
            pair.leave();
        }
    }

    /// Leaves in order: what was sent still arrives. Waits a while until the others have hung up too.
    pub(crate) fn close(&mut self) {
        self.leave();
        let lines = std::mem::take(&mut self.lines);
        if let Some(until) = self.closing {
            hang_up(
                lines.into_values().filter_map(|line| line.pair).collect(),
                until,
            );
        }
    }

    /// Takes over the pairs that others have opened and this rank has not.
    fn adopt(&mut self) {
        for (peer, pair) in self.venue.leave(self.me) {
            self.lines.entry(peer).or_default().pair = Some(pair);
        }
    }

    /// One call: opens the pair if need be, and keeps what ends it. `body` gets the pair, the world ranks of both, the
    /// deadline, and a check of whether anything can still come; `None` from it is a deadline that has passed.
    fn call<T>(
        &mut self,
        asked: Asked<'_>,
        body: impl FnOnce(
            &mut Pair,
            (usize, usize),
            Instant,
            &dyn Fn(&Pair) -> Result<(), ErrorKind>,
        ) -> Result<Option<T>, ErrorKind>,
    ) -> Result<T, Error> {
        let worlds = self
            .usable(asked)
            .map_err(|kind| self.error(asked, 0, kind))?;
        let mut line = self.lines.remove(&asked.peer).unwrap_or_default();
        let started = Instant::now();
        let deadline = job::deadline(started, asked.timeout);
        let (me, peer) = worlds;
        let outcome = self
            .ready(&mut line, asked, worlds, deadline)
            .and_then(|()| {
                let Some(pair) = line.pair.as_mut() else {
                    return Err(self.error(asked, 0, ErrorKind::Closed));
                };
                let number = 1 + match asked.verb {
                    Verb::Send => pair.pushed(),
                    Verb::Recv => pair.taken(),
                };
                // An abort closes connections too, and says more.
                let check = |pair: &Pair| {
                    let ended = self.venue.aborted().or_else(|| pair.ended(peer));
                    ended.map_or(Ok(()), Err)
                };
                let done = body(pair, worlds, deadline, &check);
                let done = done.and_then(|done| done.ok_or_else(|| pair.late(me, peer, started)));
                done.map_err(|kind| {
                    // Whoever ended it knows.
                    if pair.ended(peer).as_ref() != Some(&kind) {
                        pair.give_up(&kind);
                    }
                    self.error(asked, number, kind)
                })
            });
        if let (Err(error), None) = (&outcome, &line.failure) {
            line.failure = Some(error.clone());
        }
        self.lines.insert(asked.peer, line);
        outcome
    }

    /// Whether such a call can work at all; the world ranks of both if so.
    fn usable(&self, asked: Asked<'_>) -> Result<(usize, usize), ErrorKind> {
        let usage = |what| Err(ErrorKind::Usage(what));
        let Some(&peer) = self.ranks.get(asked.peer) else {
            let size = self.ranks.len();
            return usage(format!("rank {} is not among {size} ranks", asked.peer));
        };
        if asked.peer == self.me {
            return usage("a rank has no messages for itself".to_owned());
        }
        check_label(asked.call.label)?;
        if self.closing.is_some() {
            return Err(ErrorKind::Closed);
        }
        if self.venue.is_forked() {
            return Err(ErrorKind::Forked);
        }
        Ok((self.ranks[self.me], peer))
    }

    /// Sees to it that the pair can be used: opens it, or says why not.
    fn ready(
        &self,
        line: &mut Line,
        asked: Asked<'_>,
        worlds: (usize, usize),
        deadline: Instant,
    ) -> Result<(), Error> {
        if let Some(kind) = self.aborted.clone().or_else(|| self.venue.aborted()) {
            return Err(self.error(asked, 0, kind));
        }
        // What has arrived can be had, also if the other rank was found gone meanwhile.
        let arrived = line
            .pair
            .as_ref()
            .is_some_and(|pair| pair.front().is_some());
        if let Some(origin) = &line.failure
            && !(arrived && asked.verb == Verb::Recv)
        {
            let origin = origin.clone();
            return Err(self.error(asked, 0, ErrorKind::Poisoned { origin }));
        }
        if line.pair.is_none() {
            let fields = [
                ("ranks of the group".to_owned(), format!("{:?}", self.ranks)),
                (
                    "generation of the group".to_owned(),
                    self.generation.to_string(),
                ),
            ];
            let key = format!("group {}", self.group);
            let opened = self.venue.open(&key, worlds, &fields, deadline);
            line.pair = Some(opened.map_err(|kind| self.error(asked, 0, kind))?);
        }
        Ok(())
    }

    fn error(&self, asked: Asked<'_>, number: u64, kind: ErrorKind) -> Error {
        Error {
            group: self.group.clone(),
            round: number,
            operation: match asked.verb {
                Verb::Send => "send",
                Verb::Recv => "recv",
            }
            .to_owned(),
            label: asked.call.label.to_owned(),
            rank: self.ranks[self.me],
            kind: Box::new(kind),
        }
    }
}
