//! What every letter begins with, and what is said of letters that stay where they are.

/// What sender and receiver call a letter by.
pub type Tag = u32;

/// What is said of the letter whose stamp it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// By its sender: here it comes.
    Letter,
    /// By its sender: it can be read where it lies (`Stamp::offer`), and stays there until it has been answered.
    Offer,
    /// Answers: it is being read, it has been, it cannot be.
    Reading,
    Taken,
    Refused,
}

impl Word {
    const ALL: [Word; 5] = [Word::Letter, Word::Offer, Word::Reading, Word::Taken, Word::Refused];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub tag: Tag,
    /// Bytes of the letter.
    pub len: usize,
}

impl Stamp {
    /// A letter fills a multiple of this, so that no stamp is ever cut by the end of a ring.
    pub const SIZE: usize = 16;
    /// Bytes of an offer.
    pub const OFFER: usize = 2 * Stamp::SIZE;
    /// "arx", and the version of the format; counted on from there, the word.
    const MAGIC: u32 = u32::from_le_bytes(*b"arx\x41");
    const WORD: u32 = 24;

    pub fn to_bytes(self, word: Word) -> [u8; Stamp::SIZE] {
        let mut bytes = [0; Stamp::SIZE];
        let magic = Stamp::MAGIC + ((word as u32) << Stamp::WORD);
        bytes[..4].copy_from_slice(&magic.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.tag.to_le_bytes());
        bytes[8..].copy_from_slice(&(self.len as u64).to_le_bytes());
        bytes
    }

    /// None if these bytes are no stamp.
    pub fn parse(bytes: [u8; Stamp::SIZE]) -> Option<(Word, Stamp)> {
        let number = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let len = u64::from(number(8)) | u64::from(number(12)) << 32;
        // No array is longer than half of what can be addressed.
        let len = usize::try_from(len).ok().filter(|len| *len <= isize::MAX as usize)?;
        let word = number(0).wrapping_sub(Stamp::MAGIC);
        let word = *Word::ALL.get((word >> Stamp::WORD) as usize).filter(|_| word << (32 - Stamp::WORD) == 0)?;
        Some((word, Stamp { tag: number(4), len }))
    }

    /// The letter lies at `place`.
    pub fn offer(self, place: u64) -> [u8; Stamp::OFFER] {
        let mut bytes = [0; Stamp::OFFER];
        bytes[..Stamp::SIZE].copy_from_slice(&self.to_bytes(Word::Offer));
        bytes[Stamp::SIZE..][..size_of::<u64>()].copy_from_slice(&place.to_le_bytes());
        bytes
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
        for word in Word::ALL {
            for (tag, len) in [(0, 0), (7, 15), (u32::MAX, 16), (1, isize::MAX as usize)] {
                let stamp = Stamp { tag, len };
                assert_eq!(Stamp::parse(stamp.to_bytes(word)), Some((word, stamp)));
                assert_eq!((len + stamp.pad()) % Stamp::SIZE, 0);
                for (at, bit) in [(0, 1), (3, 0x10), (15, 0x80)] {
                    let mut other = stamp.to_bytes(word);
                    other[at] ^= bit;
                    assert_eq!(Stamp::parse(other), None);
                }
            }
        }
    }

    #[test]
    fn an_offer_is_a_stamp_and_a_place() {
        let stamp = Stamp { tag: 3, len: 1 << 40 };
        let bytes = stamp.offer(0x0123_4567_89ab_cdef);
        assert_eq!(bytes[..Stamp::SIZE], stamp.to_bytes(Word::Offer));
        assert_eq!(bytes[Stamp::SIZE..], [0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
