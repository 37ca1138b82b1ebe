//! Addresses of hosts, without a port, and which of them are this host's.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

/// An address with the number of the interface that one on a link needs. That number means nothing on another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ip {
    address: IpAddr,
    scope: u32,
}

impl Ip {
    pub(crate) const LOOPBACK: Self = Self {
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        scope: 0,
    };

    /// Without its interface.
    pub(crate) fn bare(self) -> IpAddr {
        self.address
    }

    pub(crate) fn is_loopback(self) -> bool {
        self.address.is_loopback()
    }

    fn is_on_a_link(self) -> bool {
        matches!(self.address, IpAddr::V6(address) if address.is_unicast_link_local())
    }

    pub(crate) fn at(self, port: u16) -> SocketAddr {
        match self.address {
            IpAddr::V4(address) => (address, port).into(),
            IpAddr::V6(address) => SocketAddrV6::new(address, port, 0, self.scope).into(),
        }
    }

    /// Where this host, whose sockets have this address, finds what another host has told as `theirs`.
    pub(crate) fn reaches(self, theirs: SocketAddr) -> SocketAddr {
        let mut there = Self::from(theirs);
        if there.is_on_a_link() {
            there.scope = self.scope;
        }
        there.at(theirs.port())
    }
}

impl From<SocketAddr> for Ip {
    fn from(socket: SocketAddr) -> Self {
        Self {
            // A socket for both families tells old addresses in the new form.
            address: socket.ip().to_canonical(),
            scope: match socket {
                SocketAddr::V4(_) => 0,
                SocketAddr::V6(socket) => socket.scope_id(),
            },
        }
    }
}

impl fmt::Display for Ip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)?;
        if self.scope > 0 {
            write!(f, "%{}", self.scope)?;
        }
        Ok(())
    }
}

/// The addresses of this host's interfaces that are up.
#[derive(Clone, Debug)]
pub(crate) struct Interfaces(Vec<(String, Ip)>);

impl Interfaces {
    /// # Errors
    /// The system does not list them.
    pub(crate) fn here() -> io::Result<Self> {
        let up = getifaddrs()?.filter(|found| found.flags.contains(InterfaceFlags::IFF_UP));
        let with_address = up.filter_map(|found| {
            let storage = found.address?;
            let old = storage
                .as_sockaddr_in()
                .map(|old| SocketAddr::new(old.ip().into(), 0));
            let new = storage
                .as_sockaddr_in6()
                .map(|new| SocketAddrV6::new(new.ip(), 0, 0, new.scope_id()).into());
            Some((found.interface_name, Ip::from(old.or(new)?)))
        });
        Ok(Self(with_address.collect()))
    }

    /// The one with that address, with its interface.
    pub(crate) fn with(&self, address: IpAddr) -> Option<Ip> {
        let all = || self.0.iter().map(|(_, ip)| *ip);
        all().find(|ip| ip.address == address)
    }

    /// The address that `text`, the name of an interface or an address, stands for. Of an interface with several, one like
    /// `other`, and rather one that does not need its interface.
    pub(crate) fn chosen(&self, text: &str, other: IpAddr) -> Option<Ip> {
        let asked = |name: &String, ip: &Ip| name == text || text.parse() == Ok(ip.address);
        let candidates = self.0.iter().filter(|(name, ip)| asked(name, ip));
        candidates.map(|(_, ip)| *ip).min_by_key(|ip| {
            (
                ip.address.is_ipv4() != other.is_ipv4(),
                ip.is_on_a_link() && Self::needs_no_link(other),
            )
        })
    }

    fn needs_no_link(other: IpAddr) -> bool {
        !Ip::from(SocketAddr::new(other, 0)).is_on_a_link()
    }
}

impl fmt::Display for Interfaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, ip)) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{name} {}", ip.address)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> Ip {
        Ip::from(text.parse::<SocketAddr>().unwrap())
    }

    fn interfaces() -> Interfaces {
        let all = [
            ("lo", "127.0.0.1:0"),
            ("eth0", "[fe80::1%2]:0"),
            ("eth0", "10.0.0.5:0"),
            ("eth0", "[fd00::5]:0"),
            ("ib0", "[fe80::1%3]:0"),
        ];
        Interfaces(all.map(|(name, text)| (name.to_owned(), ip(text))).to_vec())
    }

    #[test]
    fn an_address_keeps_its_interface_through_a_socket_and_back() {
        let link = ip("[fe80::7%3]:9");
        assert_eq!(Ip::from(link.at(80)), link);
        assert_eq!(link.to_string(), "fe80::7%3");
        assert_eq!(ip("[::ffff:10.0.0.5]:1"), ip("10.0.0.5:2"));
    }

    #[test]
    fn an_address_on_a_link_is_sought_through_the_own_interface() {
        let link = ip("[fe80::7%3]:0");
        let told = "[fe80::8%12]:80".parse().unwrap();
        assert_eq!(link.reaches(told), "[fe80::8%3]:80".parse().unwrap());
        let elsewhere = "[fd00::8]:80".parse().unwrap();
        assert_eq!(link.reaches(elsewhere), elsewhere);
    }

    #[test]
    fn an_interface_stands_for_its_address_of_the_same_kind() {
        let here = interfaces();
        let chosen = |text, other: &str| here.chosen(text, other.parse().unwrap());
        assert_eq!(chosen("eth0", "10.9.9.9"), Some(ip("10.0.0.5:0")));
        assert_eq!(chosen("eth0", "fd00::9"), Some(ip("[fd00::5]:0")));
        assert_eq!(chosen("eth0", "fe80::9"), Some(ip("[fe80::1%2]:0")));
        assert_eq!(chosen("10.0.0.5", "fd00::9"), Some(ip("10.0.0.5:0")));
        for wrong in ["^lo,docker", "eth", "eth0,ib0", "10.0.0.6", ""] {
            assert_eq!(chosen(wrong, "10.9.9.9"), None, "{wrong}");
        }
    }

    #[test]
    fn every_host_has_loopback() {
        let here = Interfaces::here().unwrap();
        assert_eq!(here.with(Ip::LOOPBACK.bare()), Some(Ip::LOOPBACK), "{here}");
    }
}
