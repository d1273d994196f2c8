//! What a stream starts with: which call its bytes belong to.

/// All ranks of a call have the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub kind: u32,
    pub sequence: u64,
    /// Of the arguments on which ranks must agree.
    pub fingerprint: u64,
    /// Length of the array.
    pub bytes: u64,
}

impl Header {
    /// A cache line, so that what follows starts at one; the second half is empty.
    pub const SIZE: usize = 64;
    /// "arx", and the version of the stream format.
    const MAGIC: u32 = u32::from_le_bytes(*b"arx\x02");

    pub fn to_bytes(&self) -> [u8; Header::SIZE] {
        let mut bytes = [0; Header::SIZE];
        bytes[..4].copy_from_slice(&Header::MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.kind.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.fingerprint.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.bytes.to_le_bytes());
        bytes
    }

    /// None if this is no header.
    pub fn parse(bytes: &[u8; Header::SIZE]) -> Option<Header> {
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        (word(0) == Header::MAGIC).then(|| Header {
            kind: word(4),
            sequence: long(8),
            fingerprint: long(16),
            bytes: long(24),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_the_wire() {
        let header = Header { kind: 3, sequence: u64::MAX - 1, fingerprint: 0x0123_4567_89ab_cdef, bytes: 5 << 32 };
        let bytes = header.to_bytes();
        assert_eq!(Header::parse(&bytes), Some(header));
        assert_eq!(bytes[..5], [b'a', b'r', b'x', 2, 3]);
        for i in 0..4 {
            let mut other = bytes;
            other[i] ^= 1;
            assert_eq!(Header::parse(&other), None);
        }
    }
}
