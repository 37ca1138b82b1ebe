//! Two hosts, as far as addresses go: network namespaces with a cable between them; and ports of this one.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output};

/// Two namespaces, `a` and `b`, joined by their interfaces `eth0`. Both have an interface `docker0` that leads nowhere.
#[derive(Debug)]
pub struct Network {
    name: String,
    hosts: tempfile::TempDir,
}

impl Network {
    /// The cable; the hosts have no addresses yet but that of `docker0`.
    #[must_use]
    pub fn of_two_hosts() -> Self {
        let random = getrandom::u32().expect("the kernel has random numbers");
        let network = Self {
            name: format!("rankpact-{random:08x}"),
            hosts: tempfile::tempdir().expect("there is room for a folder"),
        };
        let [a, b] = ["a", "b"].map(|host| network.namespace(host));
        ip(&format!("netns add {a}"));
        ip(&format!("netns add {b}"));
        // The numbers of the interfaces differ between the hosts.
        ip(&format!("-n {a} link add spare type bridge"));
        for host in [&a, &b] {
            ip(&format!("-n {host} link set lo up"));
            ip(&format!("-n {host} link add docker0 type bridge"));
            ip(&format!("-n {host} addr add 172.17.0.1/16 dev docker0"));
            ip(&format!("-n {host} link set docker0 up"));
        }
        ip(&format!(
            "link add eth0 netns {a} type veth peer name eth0 netns {b}"
        ));
        for host in [&a, &b] {
            // A kernel without IPv6 does not know this, nor makes it an address by itself.
            let _ = try_ip(&format!("-n {host} link set eth0 addrgenmode none"));
            ip(&format!("-n {host} link set eth0 up"));
        }
        network
    }

    /// Gives a host another address.
    #[must_use]
    pub fn address(self, host: &str, address: &str) -> Self {
        let namespace = self.namespace(host);
        let duplicates = if address.contains(':') { "nodad" } else { "" };
        ip(&format!(
            "-n {namespace} addr add {address} dev eth0 {duplicates}"
        ));
        self
    }

    /// What a host knows of names.
    #[must_use]
    pub fn names(self, host: &str, lines: &[&str]) -> Self {
        let text = format!("127.0.0.1 localhost\n{}\n", lines.join("\n"));
        fs::write(self.hosts_file(host), text).expect("there is room for a file");
        self
    }

    /// The words that start a program on a host.
    #[must_use]
    pub fn words(&self, host: &str) -> Vec<String> {
        let file = self.hosts_file(host);
        let script = format!(
            "[ ! -e {0} ] || mount --bind {0} /etc/hosts; exec \"$0\" \"$@\"",
            file.display()
        );
        [
            "ip",
            "netns",
            "exec",
            &self.namespace(host),
            "sh",
            "-ec",
            &script,
        ]
        .map(str::to_owned)
        .to_vec()
    }

    fn namespace(&self, host: &str) -> String {
        format!("{}-{host}", self.name)
    }

    fn hosts_file(&self, host: &str) -> PathBuf {
        self.hosts.path().join(host)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for host in ["a", "b"] {
            // One that could not be made is not there.
            let _ = Command::new("ip")
                .args(["netns", "del", &self.namespace(host)])
                .output();
        }
    }
}

fn try_ip(words: &str) -> Output {
    Command::new("ip")
        .args(words.split_whitespace())
        .output()
        .expect("ip can be started")
}

fn ip(words: &str) {
    let output = try_ip(words);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {words}: {said}");
}

/// Whether this user may have network namespaces of its own; says so if not.
#[must_use]
pub fn may_network() -> bool {
    // Also where names can be made but not mounted.
    works("ip netns exec $0 ip link add docker0 type bridge")
}

/// Whether these may have new addresses (IPv6) as well; says so if not.
#[must_use]
pub fn may_network_anew() -> bool {
    may_network()
        && works("ip -n $0 link set lo up && ip -n $0 addr add fd00:99::1/64 dev lo nodad")
}

/// Whether `script` does in a network namespace with the name `$0`.
fn works(script: &str) -> bool {
    let script = format!("ip netns add $0 && {script}; end=$?; ip netns del $0; exit $end");
    let random = getrandom::u32().expect("the kernel has random numbers");
    let tried = Command::new("sh")
        .args(["-c", &script, &format!("rankpact-{random:08x}-try")])
        .output();
    match tried {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            eprintln!(
                "SKIPPED, `{script}` failed: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            false
        }
        Err(error) => {
            eprintln!("SKIPPED, no sh: {error}");
            false
        }
    }
}

/// A port of this host that nobody else is given, and on which ranks can listen; also a number that no other test takes.
#[derive(Debug)]
pub struct Port {
    number: u16,
    /// A connection of the port: as long as it lasts, the kernel gives the port to nobody who does not ask for it.
    _held: [TcpStream; 2],
}

impl Port {
    /// One that was free.
    #[must_use]
    pub fn free() -> Self {
        let held = || -> io::Result<Self> {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            let address = listener.local_addr()?;
            let connected = TcpStream::connect(address)?;
            let (accepted, _) = listener.accept()?;
            Ok(Self {
                number: address.port(),
                _held: [accepted, connected],
            })
        };
        held().expect("a free port")
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }
}
