//! Options that every socket of ours has, whichever end opened it.

use std::io::{self, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::ip::Ip;
use nix::poll::PollTimeout;
use rankpact_shm::CloseOnFork;
use socket2::{SockRef, TcpKeepalive};

/// A connection that a forked child does not inherit: open there, it would hide the death of its rank.
pub(crate) type Stream = CloseOnFork<TcpStream>;

/// Sends small writes at once (a delayed acknowledgement costs 40 ms) and notices another host that vanished.
///
/// Within this host the kernel tells every end itself, while the probes of thousands of idle connections would all be due
/// in the same tick, more than the queue of the loopback device holds: those that it drops look like a death.
///
/// # Errors
/// The system refuses an option, or the socket is dead already.
pub(crate) fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    if let (Ok(own), Ok(peer)) = (stream.local_addr(), stream.peer_addr())
        && is_within_a_host(own.into(), peer.into())
    {
        return Ok(());
    }
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(5))
        .with_retries(3);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// Whether a connection between these does not leave its host: to an address of its own a host connects from that one.
fn is_within_a_host(own: Ip, peer: Ip) -> bool {
    peer.is_loopback() || own.bare() == peer.bare()
}

/// How long to poll so as to be awake at `until`, and never longer than `most`; rounded up, or the last millisecond
/// would be spun away.
pub(crate) fn patience(now: Instant, until: Instant, most: Duration) -> PollTimeout {
    let wait = until.saturating_duration_since(now).min(most) + Duration::from_micros(999);
    PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX)
}

/// Bytes to be sent over a non-blocking socket.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
}

impl Outbox {
    /// Adds `bytes` behind what is waiting.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.sent == self.bytes.len() {
            self.bytes.clear();
            self.sent = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Bytes that are waiting.
    pub(crate) fn waiting(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Sends what the socket takes now.
    ///
    /// # Errors
    /// The other end will not read any more.
    pub(crate) fn flush(&mut self, stream: &mut impl Write) -> io::Result<()> {
        while self.waiting() > 0 {
            match stream.write(&self.bytes[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{SocketAddr, TcpListener};

    #[test]
    fn only_a_connection_to_another_host_leaves_this_one() {
        for (own, peer, within) in [
            ("127.0.0.1:1", "127.0.0.1:2", true),
            ("127.0.0.1:1", "127.0.0.2:2", true),
            ("[::1]:1", "[::1]:2", true),
            ("[::ffff:127.0.0.1]:1", "[::ffff:127.0.0.1]:2", true),
            ("192.0.2.1:1", "192.0.2.1:2", true),
            ("192.0.2.1:1", "[::ffff:192.0.2.1]:2", true),
            ("192.0.2.1:1", "192.0.2.2:2", false),
            ("[2001:db8::1]:1", "[2001:db8::2]:2", false),
            ("[::ffff:192.0.2.1]:1", "[::ffff:192.0.2.2]:2", false),
        ] {
            let [one, other] =
                [own, peer].map(|text| Ip::from(text.parse::<SocketAddr>().unwrap()));
            assert_eq!(is_within_a_host(one, other), within, "{own} {peer}");
        }
    }

    #[test]
    fn a_connection_over_loopback_has_no_delay_and_no_keepalive() {
        for host in ["127.0.0.1", "::1"] {
            let Ok(listener) = TcpListener::bind((host, 0)) else {
                // A machine may lack one of the two families.
                continue;
            };
            let connected = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (accepted, _) = listener.accept().unwrap();
            for stream in [connected, accepted] {
                tune(&stream).unwrap();
                assert!(stream.nodelay().unwrap());
                assert!(!SockRef::from(&stream).keepalive().unwrap());
            }
        }
    }
}
