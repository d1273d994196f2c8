//! Notes on the wire: fixed-width little-endian words, and texts with their length. Reading never trusts a length.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::error::Rank;

/// Bytes of a text; more is cut off.
const TEXT: usize = 8 << 10;

#[derive(Debug, Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    pub fn new(tag: u8) -> Writer {
        Writer(vec![tag])
    }

    pub fn done(self) -> Vec<u8> {
        self.0
    }

    pub fn byte(mut self, byte: u8) -> Writer {
        self.0.push(byte);
        self
    }

    pub fn half(mut self, half: u16) -> Writer {
        self.0.extend_from_slice(&half.to_le_bytes());
        self
    }

    pub fn word(mut self, word: u32) -> Writer {
        self.0.extend_from_slice(&word.to_le_bytes());
        self
    }

    pub fn long(mut self, long: u64) -> Writer {
        self.0.extend_from_slice(&long.to_le_bytes());
        self
    }

    pub fn text(mut self, text: &str) -> Writer {
        let end = (0..=text.len().min(TEXT)).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        let text = &text[..end];
        self = self.half(text.len() as u16);
        self.0.extend_from_slice(text.as_bytes());
        self
    }

    pub fn ranks(self, ranks: &[Rank]) -> Writer {
        ranks.iter().fold(self.word(ranks.len() as u32), |w, rank| w.word(*rank))
    }

    pub fn address(mut self, address: SocketAddr) -> Writer {
        match address.ip() {
            IpAddr::V4(ip) => {
                self = self.byte(4);
                self.0.extend_from_slice(&ip.octets());
            }
            IpAddr::V6(ip) => {
                self = self.byte(6);
                self.0.extend_from_slice(&ip.octets());
            }
        }
        self.half(address.port())
    }
}

/// What is left of a note.
#[derive(Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    /// `None` unless the note ends here.
    pub fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }

    pub fn rest(&self) -> &'a [u8] {
        self.0
    }

    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    pub fn byte(&mut self) -> Option<u8> {
        self.bytes::<1>().map(|[byte]| byte)
    }

    pub fn half(&mut self) -> Option<u16> {
        self.bytes().map(u16::from_le_bytes)
    }

    pub fn word(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    pub fn long(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    pub fn text(&mut self) -> Option<String> {
        let length = usize::from(self.half()?);
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }

    /// A count of things that take `size` bytes at least, each: never more than are there.
    pub fn count(&mut self, size: usize) -> Option<usize> {
        let count = self.word()? as usize;
        (count.checked_mul(size)? <= self.0.len()).then_some(count)
    }

    pub fn ranks(&mut self) -> Option<Vec<Rank>> {
        (0..self.count(4)?).map(|_| self.word()).collect()
    }

    pub fn address(&mut self) -> Option<SocketAddr> {
        let ip = match self.byte()? {
            4 => IpAddr::V4(Ipv4Addr::from(self.bytes::<4>()?)),
            6 => IpAddr::V6(Ipv6Addr::from(self.bytes::<16>()?)),
            _ => return None,
        };
        Some(SocketAddr::new(ip, self.half()?))
    }
}
