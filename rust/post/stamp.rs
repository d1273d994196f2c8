//! What every letter begins with.

/// What sender and receiver call a letter by.
pub type Tag = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub tag: Tag,
    /// Bytes of the letter.
    pub len: usize,
}

impl Stamp {
    /// A letter fills a multiple of this, so that no stamp is ever cut by the end of a ring.
    pub const SIZE: usize = 16;
    /// "arx", and the version of the format.
    const MAGIC: u32 = u32::from_le_bytes(*b"arx\x41");

    pub fn to_bytes(self) -> [u8; Stamp::SIZE] {
        let mut bytes = [0; Stamp::SIZE];
        bytes[..4].copy_from_slice(&Stamp::MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.tag.to_le_bytes());
        bytes[8..].copy_from_slice(&(self.len as u64).to_le_bytes());
        bytes
    }

    /// None if these bytes are no stamp.
    pub fn parse(bytes: [u8; Stamp::SIZE]) -> Option<Stamp> {
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let len = u64::from(word(8)) | u64::from(word(12)) << 32;
        // No array is longer than half of what can be addressed.
        let len = usize::try_from(len).ok().filter(|len| *len <= isize::MAX as usize)?;
        (word(0) == Stamp::MAGIC).then_some(Stamp { tag: word(4), len })
    }

    /// Bytes between the end of the letter and the next stamp.
    pub fn pad(self) -> usize {
        self.len.wrapping_neg() % Stamp::SIZE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_survives_the_wire_and_nothing_else_is_one() {
        for (tag, len) in [(0, 0), (7, 15), (u32::MAX, 16), (1, isize::MAX as usize)] {
            let stamp = Stamp { tag, len };
            assert_eq!(Stamp::parse(stamp.to_bytes()), Some(stamp));
            assert_eq!((len + stamp.pad()) % Stamp::SIZE, 0);
            let mut other = stamp.to_bytes();
            other[3] ^= 1;
            assert_eq!(Stamp::parse(other), None);
            other = stamp.to_bytes();
            other[15] |= 0x80;
            assert_eq!(Stamp::parse(other), None);
        }
    }
}
