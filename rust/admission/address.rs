//! Which address is meant, and from which of this host's own it is reached: names, interfaces, port ranges.

use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{TryRecvError, channel};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::wait::{Host, SLICE};

use super::interfaces::{Interface, interfaces};
use super::socket;

/// Ports that a firewall leaves open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    pub low: u16,
    pub high: u16,
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.low, self.high)
    }
}

impl Ports {
    /// All of them, each rank from another one on, so that ranks of a host seldom try the same.
    pub fn from(self, rank: u32) -> impl Iterator<Item = u16> {
        let count = u32::from(self.high - self.low) + 1;
        (0..count).map(move |k| self.low + ((k + rank % count) % count) as u16)
    }
}

/// What of the network this process may use.
#[derive(Clone, Debug, Default)]
pub struct Network {
    /// Addresses of the interface that was chosen; empty if none was.
    own: Vec<IpAddr>,
    pub ports: Option<Ports>,
}

impl Network {
    /// From `ARX_IFACE`, an interface's name or one of its addresses, and `ARX_PORT_RANGE`, `lo-hi`.
    pub fn parse(iface: Option<&str>, ports: Option<&str>) -> Result<Network> {
        let own = match iface.map(str::trim).filter(|iface| !iface.is_empty()) {
            None => Vec::new(),
            Some(iface) => {
                let all = interfaces().map_err(|e| Error::os("cannot list this host's network interfaces", e))?;
                chosen(iface, &all)?
            }
        };
        let ports = match ports.map(str::trim).filter(|ports| !ports.is_empty()) {
            None => None,
            Some(text) => Some(parse_ports(text)?),
        };
        Ok(Network { own, ports })
    }

    /// The address to call and to listen from, if an interface was chosen.
    pub fn source(&self, v4: bool) -> Option<IpAddr> {
        self.own.iter().copied().find(|ip| ip.is_ipv4() == v4)
    }

    /// Any address of the interface that was chosen.
    pub fn any_source(&self) -> Option<IpAddr> {
        self.source(true).or_else(|| self.own.first().copied())
    }

    /// Listens at `at`, whatever its port, on one that is allowed.
    pub fn listen(&self, mut at: SocketAddr, rank: u32) -> Result<(OwnedFd, SocketAddr)> {
        let wrong = |e, at| Error::os(&format!("rank {rank} cannot listen at {at}"), e);
        let ip = at.ip();
        at.set_port(0);
        let Some(ports) = self.ports else { return socket::listen(at).map_err(|e| wrong(e, at)) };
        for port in ports.from(rank) {
            at.set_port(port);
            match socket::listen(at) {
                Ok(listener) => return Ok(listener),
                Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => {}
                Err(e) => return Err(wrong(e, at)),
            }
        }
        Err(Error::Init(format!(
            "rank {rank} found no free port in {ports} (ARX_PORT_RANGE) to listen at {ip}: each rank of a host needs one \
             for itself"
        )))
    }
}

fn chosen(iface: &str, all: &[Interface]) -> Result<Vec<IpAddr>> {
    let ip = iface.parse::<IpAddr>().ok();
    let mut own: Vec<IpAddr> = all.iter().filter(|i| i.name == iface || Some(i.ip) == ip).map(|i| i.ip).collect();
    // An address that is good on its own link only, and there only with the link's name, comes last.
    own.sort_by_key(|ip| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local()));
    if own.is_empty() {
        let known: Vec<String> = all.iter().map(|i| format!("{} ({})", i.name, i.ip)).collect();
        return Err(Error::Init(format!(
            "ARX_IFACE: '{iface}' is neither a network interface of this host nor an address of one. There are {}",
            known.join(", ")
        )));
    }
    Ok(own)
}

fn parse_ports(text: &str) -> Result<Ports> {
    let ends = text.split_once('-').map(|(low, high)| (low.trim().parse(), high.trim().parse()));
    match ends {
        Some((Ok(low), Ok(high))) if 0 < low && low <= high => Ok(Ports { low, high }),
        _ => Err(Error::Init(format!("ARX_PORT_RANGE: '{text}' is not a range of ports such as 40000-40050"))),
    }
}

/// Name and port of rank 0; ports that are tried in turn, if there are several: a port that a launcher computed may be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Master {
    pub host: String,
    pub ports: Vec<u16>,
}

impl fmt::Display for Master {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let all: Vec<String> = self.ports.iter().map(|port| format!("{host}:{port}")).collect();
        f.write_str(&all.join(","))
    }
}

impl Master {
    /// `host:port`, `10.0.0.1:port` or `[fd00::1]:port`; several of one host, with commas.
    pub fn parse(text: &str) -> Result<Master> {
        let mut all = text.split(',').map(one_of);
        let (host, port) = all.next().expect("split gives one at least")?;
        let mut master = Master { host, ports: vec![port] };
        for next in all {
            let (host, port) = next?;
            if host != master.host {
                return Err(Error::Init(format!("the master '{text}' names several hosts: rank 0 is on one")));
            }
            master.ports.push(port);
        }
        Ok(master)
    }

    /// Whether it is written so that it can only mean the host it is read on.
    pub fn is_loopback(&self) -> bool {
        let ip = self.host.parse::<IpAddr>();
        self.host.eq_ignore_ascii_case("localhost") || ip.is_ok_and(|ip| ip.to_canonical().is_loopback())
    }
}

fn one_of(text: &str) -> Result<(String, u16)> {
    let wrong =
        || Error::Init(format!("the master '{text}' is not of the form host:port, 10.0.0.1:port or [fd00::1]:port"));
    let (host, port) = text.trim().rsplit_once(':').ok_or_else(wrong)?;
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    if bare.is_none() && host.contains(':') {
        return Err(wrong());
    }
    Ok((bare.unwrap_or(host).to_owned(), port.parse().map_err(|_| wrong())?))
}

/// The addresses of `master`, in the system's order of preference, with each of its ports. A lookup takes as long as the
/// system's resolver likes, so a thread asks and this one goes on looking at the clock and at its host.
pub fn resolve(
    master: &Master,
    until: Instant,
    host: &mut dyn Host,
) -> Result<std::result::Result<Vec<SocketAddr>, String>> {
    if let Ok(ip) = master.host.parse::<IpAddr>() {
        return Ok(Ok(master.ports.iter().map(|port| SocketAddr::new(ip, *port)).collect()));
    }
    let (tell, answer) = channel();
    let name = (master.host.clone(), 0);
    // Nobody joins it: it ends when the resolver does, and tells nobody if this side has given up.
    std::thread::Builder::new()
        .name("arx-resolve".into())
        .spawn(move || {
            let found = name.to_socket_addrs().map(|found| found.collect::<Vec<_>>());
            let _ = tell.send(found);
        })
        .map_err(|e| Error::os("cannot start a thread to look a name up", e))?;
    let mut pause = Duration::from_millis(1);
    loop {
        match answer.try_recv() {
            Ok(Ok(found)) if found.is_empty() => return Ok(Err("the name has no address".into())),
            Ok(Ok(found)) => {
                let with_ports = |at: SocketAddr| master.ports.iter().map(move |port| SocketAddr::new(at.ip(), *port));
                return Ok(Ok(found.into_iter().map(socket::canonical).flat_map(with_ports).collect()));
            }
            Ok(Err(e)) => return Ok(Err(e.to_string())),
            Err(TryRecvError::Disconnected) => return Ok(Err("the lookup failed".into())),
            Err(TryRecvError::Empty) if Instant::now() >= until => {
                return Ok(Err("the lookup has not ended".into()));
            }
            Err(TryRecvError::Empty) => socket::rest(&mut [], pause, host)?,
        }
        pause = (pause * 2).min(SLICE);
    }
}

/// The one answer to a connection that would leave the host unprotected.
pub fn no_secret(to: impl fmt::Display) -> Error {
    Error::Auth(format!(
        "{to} is not an address of this host alone, and the job has no secret by which ranks could know each other. Set \
         ARX_SECRET to the same random text on all hosts (`arx run` does so by itself)"
    ))
}

/// Addresses of this host at which others may reach it, best first.
pub fn own_addresses() -> Vec<IpAddr> {
    let all = interfaces().unwrap_or_default();
    let mut own: Vec<IpAddr> = all.into_iter().map(|i| i.ip).filter(|ip| !ip.is_loopback()).collect();
    own.sort_by_key(|ip| match ip {
        IpAddr::V4(ip) if ip.is_link_local() => 2,
        IpAddr::V4(_) => 0,
        IpAddr::V6(ip) if ip.is_unicast_link_local() => 3,
        IpAddr::V6(_) => 1,
    });
    own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masters_are_read_as_they_are_written() {
        for (text, host, port) in [
            ("h0:29500", "h0", 29500),
            ("10.1.2.3:1", "10.1.2.3", 1),
            ("[fd00::7]:80", "fd00::7", 80),
            (" localhost:0\n", "localhost", 0),
        ] {
            let master = Master::parse(text).expect(text);
            assert_eq!(master, Master { host: host.into(), ports: vec![port] });
            assert_eq!(master.to_string(), text.trim());
        }
        for text in ["h0", "h0:", "h0:x", "h0:65536", "fd00::7:80", ""] {
            let error = Master::parse(text).expect_err(text);
            assert!(error.to_string().contains(&format!("'{text}'")), "{error}");
        }
    }

    #[test]
    fn only_what_cannot_mean_another_host_is_loopback() {
        let is = |host: &str| Master { host: host.into(), ports: vec![1] }.is_loopback();
        assert!(is("localhost") && is("LocalHost") && is("127.0.0.1") && is("127.0.1.1") && is("::1"));
        assert!(!is("h0") && !is("10.0.0.1") && !is("fd00::1") && !is("localhost.example"));
    }

    #[test]
    fn port_ranges_are_walked_round() {
        let ports = parse_ports("40000-40003").expect("a range");
        assert_eq!(ports.from(0).collect::<Vec<_>>(), [40000, 40001, 40002, 40003]);
        assert_eq!(ports.from(6).collect::<Vec<_>>(), [40002, 40003, 40000, 40001]);
        assert_eq!(parse_ports("7-7").expect("one port").from(3).collect::<Vec<_>>(), [7]);
        assert_eq!(parse_ports("1-65535").expect("all of them").from(9).count(), 65535);
        for text in ["40000", "2-1", "0-5", "a-b", "-", "1-65536"] {
            assert!(parse_ports(text).expect_err(text).to_string().contains(text));
        }
    }

    #[test]
    fn an_interface_is_found_by_name_or_address_and_otherwise_listed() {
        let all = [("lo", "127.0.0.1"), ("eth0", "fe80::1"), ("eth0", "10.0.0.2"), ("eth1", "10.0.1.2")]
            .map(|(name, ip)| Interface { name: name.into(), ip: ip.parse().expect("an address") });
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        assert_eq!(chosen("eth0", &all).expect("is there"), [ip("10.0.0.2"), ip("fe80::1")]);
        assert_eq!(chosen("10.0.1.2", &all).expect("is there"), [ip("10.0.1.2")]);
        let error = chosen("ib0", &all).expect_err("is not there").to_string();
        assert!(error.contains("'ib0'") && error.contains("eth1 (10.0.1.2)"), "{error}");
    }
}
