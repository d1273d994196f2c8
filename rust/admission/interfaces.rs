//! The addresses of this host's network interfaces, asked from the kernel over netlink (rtnetlink(7), `RTM_GETADDR`).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netdevice, recv, sendto, socket_with};

const NEW_ADDRESS: u16 = 20;
const GET_ADDRESS: u16 = 22;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// Please; and all of them.
const REQUEST_DUMP: u16 = 0x1 | 0x300;

/// Bytes before the attributes of one address: the header of the message, and of the address.
const HEADER: usize = 16;
const FIXED: usize = 8;

const ADDRESS: u16 = 1;
/// Differs from `ADDRESS` on a point-to-point link, where that is the other end's.
const LOCAL: u16 = 2;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    pub ip: IpAddr,
}

/// Every address of every interface, in the kernel's order.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    // Without a protocol, netlink means the one of routes and addresses.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    let mut request = Vec::new();
    request.extend_from_slice(&((HEADER + FIXED) as u32).to_ne_bytes());
    request.extend_from_slice(&GET_ADDRESS.to_ne_bytes());
    request.extend_from_slice(&REQUEST_DUMP.to_ne_bytes());
    // Sequence number, sender, and an address of any family: all zero.
    request.resize(HEADER + FIXED, 0);
    sendto(&socket, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut found = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let (length, _) = match recv(&socket, &mut buffer[..], RecvFlags::empty()) {
            Err(Errno::INTR) => continue,
            received => received?,
        };
        let done = read(&buffer[..length], &mut found).ok_or(Errno::PROTO)?;
        if done {
            break;
        }
    }
    let named = found.into_iter().filter_map(|(index, ip)| {
        // An interface that has gone in the meantime has no name.
        Some(Interface { name: netdevice::index_to_name(&socket, index).ok()?, ip })
    });
    Ok(named.collect())
}

/// Takes the addresses out of one datagram. Whether it was the last; `None` if it makes no sense.
fn read(mut datagram: &[u8], found: &mut Vec<(u32, IpAddr)>) -> Option<bool> {
    while !datagram.is_empty() {
        let length = u32::from_ne_bytes(*datagram.first_chunk()?) as usize;
        let kind = u16::from_ne_bytes(*datagram.get(4..)?.first_chunk()?);
        let body = datagram.get(HEADER..length)?;
        match kind {
            DONE => return Some(true),
            ERROR => return None,
            NEW_ADDRESS => found.extend(address(body)),
            _ => {}
        }
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(false)
}

/// Index of the interface and its address.
fn address(body: &[u8]) -> Option<(u32, IpAddr)> {
    let index = u32::from_ne_bytes(*body.get(4..)?.first_chunk()?);
    let mut attributes = body.get(FIXED..)?;
    let (mut ip, mut local) = (None, None);
    while let Some((length, kind)) = attributes
        .first_chunk::<4>()
        .map(|[a, b, c, d]| (usize::from(u16::from_ne_bytes([*a, *b])), u16::from_ne_bytes([*c, *d])))
    {
        let value = attributes.get(4..length)?;
        match kind {
            ADDRESS => ip = parse(value),
            LOCAL => local = parse(value),
            _ => {}
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some((index, local.or(ip)?))
}

fn parse(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into()),
        16 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_a_loopback_interface() {
        let all = interfaces().expect("netlink is always there");
        assert!(all.contains(&Interface { name: "lo".into(), ip: Ipv4Addr::LOCALHOST.into() }), "{all:?}");
    }

    #[test]
    fn datagrams_that_make_no_sense_are_refused_without_a_panic() {
        for length in [0_u32, 3, 15, 16, 17, 4000, u32::MAX] {
            for kind in [NEW_ADDRESS, DONE, ERROR, 77] {
                for size in [1, 4, 8, 16, 20, 24, 40] {
                    let mut datagram = length.to_ne_bytes().to_vec();
                    datagram.extend_from_slice(&kind.to_ne_bytes());
                    datagram.resize(size, 0);
                    let mut found = Vec::new();
                    read(&datagram, &mut found);
                    assert_eq!(found, []);
                }
            }
        }
    }
}
