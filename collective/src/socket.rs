//! Options that every socket of ours has, whichever end opened it.

use std::io::{self, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use nix::poll::PollTimeout;
use rankpact_shm::CloseOnFork;
use socket2::{SockRef, TcpKeepalive};

/// A connection that a forked child does not inherit: open there, it would hide the death of its rank.
pub(crate) type Stream = CloseOnFork<TcpStream>;

/// Sends small writes at once (a delayed acknowledgement costs 40 ms) and notices a host that vanished.
///
/// # Errors
/// The system refuses an option, or the socket is dead already.
pub(crate) fn tune(stream: &TcpStream) -> io::Result<()> {
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(5))
        .with_retries(3);
    stream.set_nodelay(true)?;
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
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
