//! Where rank 0 listens.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Instant;

use crate::admission::address::{Master, no_secret, own_addresses, resolve};
use crate::admission::{Network, socket};
use crate::error::{Error, Result};
use crate::wait::{Host, SLICE};

/// Rank 0's socket, bound before the others are told where.
#[derive(Debug)]
pub struct Listening {
    pub fd: OwnedFd,
    /// At which others reach it.
    pub address: SocketAddr,
}

impl Listening {
    /// Listens at `master`, which names this host. An empty host means: wherever others can reach it; port 0: any that is
    /// allowed. Without a `secret` nothing but a loopback address will do.
    pub fn bind(
        master: &Master,
        network: &Network,
        secret: bool,
        until: Instant,
        host: &mut dyn Host,
    ) -> Result<Listening> {
        if master.host.is_empty() {
            let routed = if secret { network.any_source().or_else(|| own_addresses().first().copied()) } else { None };
            let at = with_ports(routed.unwrap_or(Ipv4Addr::LOCALHOST.into()), master);
            return first(&at, master, network)?.ok_or_else(|| not_here(master, &at));
        }
        let mut named = loop {
            match resolve(master, until, host)? {
                Ok(named) => break named,
                // In a cluster a host's own name may become known a little after the host.
                Err(_) if Instant::now() < until => socket::rest(&mut [], 4 * SLICE, host)?,
                Err(why) => return Err(unresolved(master, &why)),
            }
        };
        if !secret {
            let all = std::mem::take(&mut named);
            named.extend(all.iter().filter(|a| a.ip().is_loopback()));
            if named.is_empty() {
                return Err(no_secret(all.first().map_or(master.to_string(), SocketAddr::to_string)));
            }
        } else if !master.is_loopback() {
            // Some systems give a host's own name a loopback address, where nobody else can come.
            let routed: Vec<SocketAddr> = named.iter().copied().filter(|a| !a.ip().is_loopback()).collect();
            return match first(&routed, master, network)? {
                Some(listening) => Ok(listening),
                None => everywhere(named[0], master, network),
            };
        }
        first(&named, master, network)?.ok_or_else(|| not_here(master, &named))
    }
}

fn with_ports(ip: IpAddr, master: &Master) -> Vec<SocketAddr> {
    master.ports.iter().map(|port| SocketAddr::new(ip, *port)).collect()
}

/// The first of these at which rank 0 can listen. `None` if none is an address of this host; if those that are have been
/// taken by others, an error.
fn first(all: &[SocketAddr], master: &Master, network: &Network) -> Result<Option<Listening>> {
    let mut taken = None;
    for at in all {
        match listen(*at, master, network) {
            Ok(Some(listening)) => return Ok(Some(listening)),
            Ok(None) => {}
            Err(error) => taken = Some(error),
        }
    }
    taken.map_or(Ok(None), Err)
}

/// None of the addresses that the name has is this host's own (it stands behind a translator), or none but a loopback one.
fn everywhere(like: SocketAddr, master: &Master, network: &Network) -> Result<Listening> {
    let any: IpAddr = if like.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let at = with_ports(any, master);
    let mut listening = first(&at, master, network)?.ok_or_else(|| not_here(master, &at))?;
    let own = network
        .source(like.is_ipv4())
        .or_else(|| own_addresses().into_iter().find(|ip| ip.is_ipv4() == like.is_ipv4()));
    listening.address.set_ip(own.unwrap_or(like.ip()));
    Ok(listening)
}

/// `None` if the address is not this host's.
fn listen(at: SocketAddr, master: &Master, network: &Network) -> Result<Option<Listening>> {
    if at.port() == 0 && network.ports.is_some() {
        let (fd, address) = network.listen(at, 0)?;
        return Ok(Some(Listening { fd, address }));
    }
    match socket::listen(at) {
        Ok((fd, address)) => Ok(Some(Listening { fd, address })),
        Err(e) if e.kind() == ErrorKind::AddrNotAvailable => Ok(None),
        Err(e) if e.kind() == ErrorKind::AddrInUse => Err(Error::Init(format!(
            "rank 0 cannot listen at {at} ({master}): another process has taken this port. Is another job running there? \
             Otherwise choose another port in ARX_MASTER or master="
        ))),
        Err(e) => Err(Error::os(&format!("rank 0 cannot listen at {at} ({master})"), e)),
    }
}

fn not_here(master: &Master, tried: &[SocketAddr]) -> Error {
    let tried: Vec<String> = tried.iter().map(|a| a.ip().to_string()).collect();
    Error::Init(format!(
        "rank 0 cannot listen at {master}: {} is no address of this host. ARX_MASTER must name the host of rank 0",
        tried.join(", ")
    ))
}

pub(super) fn unresolved(master: &Master, why: &str) -> Error {
    Error::Rendezvous(format!(
        "the name of rank 0's host does not resolve: '{}' ({why}). Is it spelt as ARX_MASTER or master= should say?",
        master.host
    ))
}
