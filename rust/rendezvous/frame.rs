//! What rank 0 and another rank say to each other while a job forms. Fixed-width little-endian words; anything else is
//! refused. Both ends are of the same version, or they part.

use crate::arena::Layout;
use crate::error::{Rank, list};

const MAGIC: u64 = u64::from_le_bytes(*b"arx\0\0\0\x03\0");

/// Words that rank 0 decides for all, without meaning here.
pub type Settings = [u64; 5];

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// First word of a rank that wants in.
    Hello { rank: Rank, world: u32 },
    /// Rank 0's answer; the shared memory comes with it.
    Welcome { layout: Layout, settings: Settings },
    /// The rank has mapped the memory and entered the roster.
    Ready,
    /// Everybody is ready.
    Go,
    /// The newcomer may not join; the job goes on without it.
    Refused(String),
    /// The job cannot form: these ranks died.
    Lost(Vec<Rank>),
    /// The job cannot form.
    Failed(String),
}

impl Frame {
    pub fn encode(&self) -> Vec<u8> {
        let words = |tag: u64, words: &[u64]| -> Vec<u8> {
            [MAGIC, tag].iter().chain(words).flat_map(|w| w.to_le_bytes()).collect()
        };
        let text = |tag, text: &str| {
            let mut end = text.len().min(1500);
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            let mut frame = words(tag, &[]);
            frame.extend_from_slice(&text.as_bytes()[..end]);
            frame
        };
        match self {
            Frame::Hello { rank, world } => words(1, &[u64::from(*rank), u64::from(*world)]),
            Frame::Welcome { layout: l, settings } => {
                let sizes = [l.world, l.control, l.board, l.ring, l.pipe, l.heap].map(|w| w as u64);
                words(2, &[&sizes[..], settings].concat())
            }
            Frame::Ready => words(3, &[]),
            Frame::Go => words(4, &[]),
            Frame::Refused(why) => text(5, why),
            Frame::Lost(ranks) => words(6, &ranks.iter().take(100).map(|r| u64::from(*r)).collect::<Vec<_>>()),
            Frame::Failed(why) => text(7, why),
        }
    }

    pub fn decode(bytes: &[u8]) -> Option<Frame> {
        let word = |k: usize| Some(u64::from_le_bytes(bytes.get(8 * k..8 * k + 8)?.try_into().ok()?));
        let size = |k: usize| usize::try_from(word(k)?).ok();
        let text = || String::from_utf8(bytes[16..].to_vec()).ok();
        if word(0)? != MAGIC {
            return None;
        }
        Some(match word(1)? {
            1 => Frame::Hello { rank: word(2)?.try_into().ok()?, world: word(3)?.try_into().ok()? },
            2 => {
                let [world, control, board] = [size(2)?, size(3)?, size(4)?];
                let [ring, pipe, heap] = [size(5)?, size(6)?, size(7)?];
                let layout = Layout { base: 0, world, control, board, ring, pipe, heap };
                Frame::Welcome { layout, settings: [word(8)?, word(9)?, word(10)?, word(11)?, word(12)?] }
            }
            3 => Frame::Ready,
            4 => Frame::Go,
            5 => Frame::Refused(text()?),
            6 => {
                let ranks = bytes[16..].chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().expect("eight bytes")));
                Frame::Lost(ranks.map(|r| r as Rank).collect())
            }
            7 => Frame::Failed(text()?),
            _ => return None,
        })
    }
}

/// What to say of ranks that died before the job had formed.
pub fn lost(ranks: &[Rank], world: u32) -> String {
    let (noun, what) = if ranks.len() == 1 { ("rank", "the process is") } else { ("ranks", "their processes are") };
    format!("{noun} {} of {world} lost while the group was forming: {what} gone", list(ranks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_the_wire_and_garbage_does_not_pass() {
        let layout = Layout { base: 0, world: 5, control: 1, board: 2, ring: 3, pipe: 4, heap: 6 };
        let frames = [
            Frame::Hello { rank: 3, world: 5 },
            Frame::Welcome { layout, settings: [1, 2, 3, 4, 5] },
            Frame::Ready,
            Frame::Go,
            Frame::Refused("rank 3 is taken — by another".into()),
            Frame::Lost(vec![2, 4]),
            Frame::Failed(String::new()),
        ];
        for frame in frames {
            let bytes = frame.encode();
            assert_eq!(Frame::decode(&bytes), Some(frame.clone()));
            if !matches!(frame, Frame::Refused(_) | Frame::Lost(_) | Frame::Failed(_)) {
                assert_eq!(Frame::decode(&bytes[..bytes.len() - 1]), None);
            }
        }
        for len in 0..16 {
            assert_eq!(Frame::decode(&vec![0x5a; len]), None);
        }
        assert_eq!(Frame::decode(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"), None);
    }
}
