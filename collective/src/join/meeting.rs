//! How a rank comes to the rendezvous, and where its peers will reach it.

use crate::error::ErrorKind;
use crate::gate::WRONG_TOKEN;
use crate::ip::{Interfaces, Ip};
use crate::job::link_error;
use crate::join::note::{Note, Place};
use crate::join::{Join, Rendezvous};
use crate::options::Interrupt;
use crate::rendezvous::{Link, LinkError, Server};
use crate::token::Token;
use serde::{Deserialize, Serialize};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Between two looks for what is not there yet.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// How long one attempt to reach an address may take before it is looked up again, and the next one tried.
const ATTEMPT: Duration = Duration::from_millis(500);
/// How often the program is asked meanwhile whether to go on.
const SLICE: Duration = Duration::from_millis(50);
/// How long an earlier job may hold the place of this one.
const INSIST: Duration = Duration::from_secs(2);

/// A rank at the rendezvous.
#[derive(Debug)]
pub(crate) struct Meeting {
    pub(crate) link: Link,
    /// Of rank 0.
    pub(crate) server: Option<Server>,
    pub(crate) token: Token,
    /// Of rank 0, where the ranks meet in a folder; of use until all have joined.
    pub(crate) note: Option<Note>,
    chosen: Option<Ip>,
}

/// How a rank has come to the rendezvous, as all are told when they join.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Reach {
    /// Where it has found rank 0.
    rendezvous: IpAddr,
    /// Whether that is its own host.
    local: bool,
}

/// What a rank needs to come there.
struct Guest {
    rank: usize,
    size: usize,
    started: Instant,
    deadline: Instant,
    interrupt: Option<Interrupt>,
}

impl Meeting {
    /// Takes a rank to the rendezvous; rank 0 opens it.
    ///
    /// # Errors
    /// Says why not, at `deadline` at the latest.
    pub(crate) fn find(join: &Join, deadline: Instant) -> Result<Self, ErrorKind> {
        let guest = Guest {
            rank: join.rank,
            size: join.size,
            started: Instant::now(),
            deadline,
            interrupt: join.options.interrupt,
        };
        let chosen = |other| {
            let choose = |text: &String| choose(text, other);
            join.interface.as_ref().map(choose).transpose()
        };
        match &join.rendezvous {
            Rendezvous::Folder(folder) => {
                chosen(Ip::LOOPBACK.bare())?;
                guest.meet_in(Place::in_folder(folder))
            }
            Rendezvous::Key(key) => {
                chosen(Ip::LOOPBACK.bare())?;
                guest.meet_in(Place::of_key(key))
            }
            Rendezvous::Address { address, token } => guest.meet_at(address, token, &chosen),
        }
    }

    /// What the others are to know.
    pub(crate) fn reach(&self) -> Reach {
        let (here, there) = (self.link.here(), self.link.there());
        Reach {
            rendezvous: there.bare(),
            local: here.is_loopback() || here.bare() == there.bare(),
        }
    }

    /// Where this rank listens for its peers, from what all of them have told.
    ///
    /// # Errors
    /// The others have found this host where it does not know itself.
    pub(crate) fn ip(&self, all: &[Reach]) -> Result<Ip, ErrorKind> {
        let here = self.link.here();
        let afar = all.iter().find(|reach| !reach.local);
        match (self.chosen, afar) {
            (Some(chosen), _) => Ok(chosen),
            (None, None) if here.is_loopback() => Ok(here),
            (None, None) => Ok(Ip::LOOPBACK),
            (None, Some(_)) if !self.reach().local => Ok(here),
            // This rank is where rank 0 is, and may have found it by a name that leads others elsewhere.
            (None, Some(afar)) => {
                let interfaces = interfaces()?;
                interfaces.with(afar.rendezvous).ok_or_else(|| {
                    ErrorKind::Usage(format!(
                        "other ranks reach this host at {}, which is none of its addresses ({interfaces}): set \
                         RANKPACT_INTERFACE to the interface that leads to them",
                        afar.rendezvous
                    ))
                })
            }
        }
    }
}

impl Guest {
    fn meet_in(&self, place: Place) -> Result<Meeting, ErrorKind> {
        if self.rank == 0 {
            let token = Token::random().map_err(|error| ErrorKind::io("random numbers", error))?;
            let (server, address) = self.serve(&[Ip::LOOPBACK.at(0)], &token)?;
            // The first seat is taken before anybody can find the way there.
            let link = self
                .connect(address, &token, self.deadline)
                .map_err(|error| self.unreached(error))?;
            self.wait_for_former_job(&place)?;
            return Ok(Meeting {
                link,
                server: Some(server),
                note: Some(place.leave(address, &token)?),
                token,
                chosen: None,
            });
        }
        let mut refusal = None;
        loop {
            if let Some((address, token)) = place.read()? {
                match self.connect(address, &token, self.attempt()) {
                    Ok(link) => {
                        return Ok(Meeting {
                            link,
                            server: None,
                            token,
                            note: None,
                            chosen: None,
                        });
                    }
                    // The note of an earlier job in this place, perhaps, whose port is closed or somebody else's now.
                    Err(LinkError::Unreachable { .. }) => {}
                    Err(error @ LinkError::Refused { .. }) => {
                        let (first, _) = refusal.get_or_insert((Instant::now(), error));
                        if first.elapsed() >= INSIST {
                            break;
                        }
                    }
                    Err(error) => return Err(self.unreached(error)),
                }
            }
            if Instant::now() >= self.deadline {
                break;
            }
            self.pause(LOOK_AGAIN)?;
        }
        let missing = LinkError::Missing { ranks: vec![0] };
        Err(self.unreached(refusal.map_or(missing, |(_, refusal)| refusal)))
    }

    /// Two jobs that are alive must not mix. One that is about to end may still be there.
    fn wait_for_former_job(&self, place: &Place) -> Result<(), ErrorKind> {
        // Whatever else lies there is replaced.
        while let Ok(Some((address, token))) = place.read() {
            match self.connect(address, &token, self.attempt()) {
                Err(LinkError::Refused { reason }) if reason != WRONG_TOKEN => {}
                _ => break,
            }
            if self.started.elapsed() >= INSIST || Instant::now() >= self.deadline {
                return Err(ErrorKind::Usage(format!(
                    "another job waits for its ranks at {}: end it, or give this one another MASTER_PORT or \
                     RANKPACT_RENDEZVOUS",
                    place.file().display()
                )));
            }
            self.pause(LOOK_AGAIN)?;
        }
        Ok(())
    }

    /// Before another look.
    fn pause(&self, pause: Duration) -> Result<(), ErrorKind> {
        self.go_on()?;
        thread::sleep(pause);
        Ok(())
    }

    /// Whether the program wants this rank to go on.
    fn go_on(&self) -> Result<(), ErrorKind> {
        let rank = self.rank;
        Interrupt::reason(self.interrupt)
            .map_or(Ok(()), |reason| Err(ErrorKind::Aborted { rank, reason }))
    }

    fn meet_at(
        &self,
        address: &str,
        token: &str,
        chosen: &dyn Fn(IpAddr) -> Result<Option<Ip>, ErrorKind>,
    ) -> Result<Meeting, ErrorKind> {
        let token = Token::from_text(token);
        let name = Name::parse(address)?;
        chosen(Ip::LOOPBACK.bare())?;
        if self.rank == 0 {
            let resolved = self.resolve(&name)?;
            let own = chosen(resolved[0].ip())?;
            let (server, bound) = self.serve(&name.doors(&resolved, own.is_some()), &token)?;
            let way = if bound.ip().is_unspecified() {
                Ip::LOOPBACK.at(bound.port())
            } else {
                bound
            };
            let link = self
                .connect(way, &token, self.deadline)
                .map_err(|error| self.unreached(error))?;
            return Ok(Meeting {
                link,
                server: Some(server),
                token,
                note: None,
                chosen: own,
            });
        }
        loop {
            let mut trouble = None;
            // Looked up anew each time: what a name stands for may become known, or change, while a job starts.
            for address in self.resolve(&name)? {
                match self.connect(address, &token, self.attempt()) {
                    Ok(link) => {
                        return Ok(Meeting {
                            link,
                            server: None,
                            token,
                            note: None,
                            chosen: chosen(address.ip())?,
                        });
                    }
                    Err(error @ LinkError::Unreachable { .. }) => trouble = Some(error),
                    Err(error) => return Err(self.unreached(error)),
                }
            }
            if let (Some(error), true) = (trouble, Instant::now() >= self.deadline) {
                return Err(self.unreached(error));
            }
            self.pause(LOOK_AGAIN)?;
        }
    }

    /// All addresses of `name`, at least one.
    fn resolve(&self, name: &Name) -> Result<Vec<SocketAddr>, ErrorKind> {
        loop {
            let trouble = match name.resolve(self.deadline, self.interrupt) {
                Ok(found) if !found.is_empty() => return Ok(found),
                Ok(_) => "no such host".to_owned(),
                Err(error) => error.to_string(),
            };
            if Instant::now() >= self.deadline {
                return Err(ErrorKind::Io(format!(
                    "cannot find the address of rank 0's host `{}`: {trouble}; set MASTER_ADDR or RANKPACT_RENDEZVOUS to \
                     a name or an address that all ranks know",
                    name.host
                )));
            }
            self.pause(20 * LOOK_AGAIN)?;
        }
    }

    /// Opens the rendezvous behind the first of `doors` that this host has.
    fn serve(
        &self,
        doors: &[SocketAddr],
        token: &Token,
    ) -> Result<(Server, SocketAddr), ErrorKind> {
        let mut refused = None;
        for door in doors {
            let listen = || -> io::Result<_> {
                let listener = TcpListener::bind(door)?;
                let bound = listener.local_addr()?;
                Ok((Server::start(listener, token.clone(), self.size)?, bound))
            };
            let error = match listen() {
                Ok(opened) => return Ok(opened),
                Err(error) => error,
            };
            let taken = error.kind() == io::ErrorKind::AddrInUse;
            let what = format!(
                "rank 0 cannot serve the rendezvous on {door} (this host has {})",
                interfaces()?
            );
            refused = Some(ErrorKind::io(&what, error));
            if taken {
                break;
            }
        }
        Err(refused.unwrap_or(ErrorKind::Closed))
    }

    fn connect(
        &self,
        address: SocketAddr,
        token: &Token,
        until: Instant,
    ) -> Result<Link, LinkError> {
        let Self { rank, size, .. } = *self;
        Link::connect(address, token, rank, size, until, self.interrupt)
    }

    fn attempt(&self) -> Instant {
        self.deadline.min(Instant::now() + ATTEMPT)
    }

    fn unreached(&self, error: LinkError) -> ErrorKind {
        let after = self.started.elapsed();
        match error {
            LinkError::Unreachable {
                address,
                from,
                trouble,
            } => ErrorKind::Unreached {
                rank: 0,
                after,
                from,
                to: address.to_string(),
                trouble,
            },
            other => link_error(other, self.rank, after),
        }
    }
}

/// `host:port`, as it was given.
struct Name {
    host: String,
    port: u16,
}

impl Name {
    fn parse(text: &str) -> Result<Self, ErrorKind> {
        let parsed = text.rsplit_once(':').and_then(|(host, port)| {
            let bare = host
                .strip_prefix('[')
                .and_then(|host| host.strip_suffix(']'));
            let host = bare.unwrap_or(host);
            // Without brackets the last part of an address could pass for a port.
            let whole = !host.is_empty() && bare.is_some() == host.contains(':');
            whole.then_some((host, port.parse().ok()?))
        });
        let (host, port) = parsed.ok_or_else(|| {
            ErrorKind::Usage(format!(
                "the rendezvous `{text}` is not host:port, such as node1:29400, 10.0.0.1:29400 or [fd00::1]:29400"
            ))
        })?;
        Ok(Self {
            host: host.to_owned(),
            port,
        })
    }

    /// Whether it is one address, not a name that may stand for several, or for others on other hosts.
    fn is_literal(&self) -> bool {
        let address = self.host.split('%').next().unwrap_or_default();
        address.parse::<IpAddr>().is_ok()
    }

    fn resolve(
        &self,
        deadline: Instant,
        interrupt: Option<Interrupt>,
    ) -> io::Result<Vec<SocketAddr>> {
        let asked = (self.host.clone(), self.port);
        let look = move || {
            let (host, port) = asked;
            (host.as_str(), port).to_socket_addrs().map(Vec::from_iter)
        };
        if self.is_literal() {
            return look();
        }
        // The system may ask servers that do not answer, for longer than anybody here wants to wait.
        let (tell, told) = mpsc::channel();
        thread::Builder::new()
            .name("rankpact-name".to_owned())
            .spawn(move || tell.send(look()))?;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match told.recv_timeout(left.min(SLICE)) {
                Ok(found) => return found,
                Err(mpsc::RecvTimeoutError::Timeout)
                    if left > SLICE && Interrupt::reason(interrupt).is_none() => {}
                Err(_) => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
    }

    /// Where rank 0 is to listen, in the order in which to try. A name of this host that stands for loopback, or for none of
    /// its addresses, says nothing of the interface at which others will arrive; one that is `doubted` neither.
    fn doors(&self, resolved: &[SocketAddr], doubted: bool) -> Vec<SocketAddr> {
        if self.is_literal() || self.host == "localhost" {
            return resolved.to_vec();
        }
        let outside = resolved
            .iter()
            .filter(|address| !doubted && !address.ip().is_loopback());
        let everywhere: [IpAddr; 2] = [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
        let everywhere = everywhere.map(|any| SocketAddr::new(any, self.port));
        outside.copied().chain(everywhere).collect()
    }
}

fn interfaces() -> Result<Interfaces, ErrorKind> {
    Interfaces::here().map_err(|error| ErrorKind::io("cannot list the interfaces", error))
}

/// The address of this host that a user has chosen, for sockets that are to reach `other`.
fn choose(text: &str, other: IpAddr) -> Result<Ip, ErrorKind> {
    let here = interfaces()?;
    here.chosen(text, other).ok_or_else(|| {
        ErrorKind::Usage(format!(
            "RANKPACT_INTERFACE is `{text}`: one interface or one address of this host is needed, such as \
             RANKPACT_INTERFACE=eth0; patterns and lists are not; this host has {here}"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doors(name: &str, resolved: &[&str], doubted: bool) -> Vec<String> {
        let resolved: Vec<SocketAddr> = resolved.iter().map(|text| text.parse().unwrap()).collect();
        let doors = Name::parse(name).unwrap().doors(&resolved, doubted);
        doors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn rank_0_listens_where_its_name_leads_others_and_everywhere_if_it_leads_to_itself_only() {
        let outside = ["127.0.1.1:7", "10.0.0.1:7"];
        for doubted in [false, true] {
            assert_eq!(
                doors("127.0.0.1:7", &["127.0.0.1:7"], doubted),
                ["127.0.0.1:7"]
            );
            assert_eq!(
                doors("localhost:7", &["127.0.0.1:7"], doubted),
                ["127.0.0.1:7"]
            );
            let everywhere = ["[::]:7", "0.0.0.0:7"];
            assert_eq!(doors("node:7", &outside[..1], doubted), everywhere);
        }
        assert_eq!(
            doors("node:7", &outside, false),
            ["10.0.0.1:7", "[::]:7", "0.0.0.0:7"]
        );
        assert_eq!(doors("node:7", &outside, true), ["[::]:7", "0.0.0.0:7"]);
    }

    #[test]
    fn an_address_is_a_host_and_a_port() {
        for (text, host) in [
            ("node:80", "node"),
            ("10.0.0.1:80", "10.0.0.1"),
            ("[fd00::1]:80", "fd00::1"),
            ("[fe80::1%eth0]:80", "fe80::1%eth0"),
        ] {
            assert_eq!(Name::parse(text).unwrap().host, host);
        }
        for text in [
            "node",
            "node:",
            ":80",
            "fd00::1:80",
            "[node]:80",
            "node:80000",
        ] {
            assert!(Name::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_interface_that_is_a_pattern_or_unknown_is_refused_with_an_example() {
        for text in ["^lo,docker", "eth77", "=eth0", "192.0.2.77"] {
            let error = choose(text, Ip::LOOPBACK.bare()).unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")), "{error}");
            assert!(error.contains("RANKPACT_INTERFACE=eth0"), "{error}");
            assert!(error.contains("lo 127.0.0.1"), "{error}");
        }
        assert_eq!(choose("lo", Ip::LOOPBACK.bare()), Ok(Ip::LOOPBACK));
        assert_eq!(choose("127.0.0.1", Ip::LOOPBACK.bare()), Ok(Ip::LOOPBACK));
    }
}
