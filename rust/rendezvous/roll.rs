//! What rank 0 and the others say to each other while a job forms over several hosts. Both ends have proved themselves
//! before the first note; still each is checked as if they had not.

use std::net::SocketAddr;

use crate::admission::{Reader, Writer};
use crate::error::{Error, Rank};
use crate::health::Member;

use super::identity::Identity;

/// Words that rank 0 decides for all, without meaning here; at most this many.
pub const SETTINGS: usize = 64;

/// What a rank says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub world: u32,
    pub identity: Identity,
    /// It will share no memory, even with ranks that could.
    pub apart: bool,
    /// Where it listens; without an address of its own (`0.0.0.0`) if the way to rank 0 did not leave the host.
    pub address: SocketAddr,
    pub pid: u32,
    pub host: String,
}

/// Why a job does not form, for everybody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    Missing(String),
    Aborted(String),
    Lost(Vec<Rank>, String),
}

impl Failure {
    /// As those hear it who were waiting for rank 0.
    pub fn of(error: &Error) -> Failure {
        match error {
            Error::PeerLost { ranks, text } => Failure::Lost(ranks.clone(), text.clone()),
            Error::Interrupted => Failure::Aborted("rank 0 was interrupted while the group was forming".into()),
            Error::Rendezvous(text) => Failure::Missing(text.clone()),
            Error::Aborted(text) => Failure::Aborted(text.clone()),
            other => Failure::Missing(format!("rank 0 could not form the group: {other}")),
        }
    }

    pub fn error(self) -> Error {
        match self {
            Failure::Missing(text) => Error::Rendezvous(text),
            Failure::Aborted(text) => Error::Aborted(text),
            Failure::Lost(ranks, text) => Error::PeerLost { ranks, text },
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A rank wants in.
    Hello(Hello),
    /// Everybody is there. Ranks of one node may try to share memory.
    Table(Vec<Member>),
    /// The rank has tried; what went wrong, if anything did.
    Formed(Option<String>),
    /// The job has formed: everybody's node, and rank 0's settings.
    Go { nodes: Vec<u32>, settings: Vec<u64> },
    /// The newcomer may not join; the job goes on without it.
    Refused(String),
    /// The job will not form.
    Failed(Failure),
}

impl Note {
    /// Bytes of the longest note of a job of so many ranks.
    pub fn limit(world: u32) -> usize {
        (16 << 10) + 512 * world as usize
    }

    pub fn encode(&self) -> Vec<u8> {
        match self {
            Note::Hello(hello) => {
                let h = Writer::new(1).word(hello.world).byte(hello.apart.into()).word(hello.pid).text(&hello.host);
                hello.identity.words().iter().fold(h, |h, word| h.long(*word)).address(hello.address)
            }
            Note::Table(members) => members.iter().fold(Writer::new(2).word(members.len() as u32), |w, m| {
                w.word(m.node).word(m.pid).address(m.address).text(&m.host)
            }),
            Note::Formed(None) => Writer::new(3),
            Note::Formed(Some(why)) => Writer::new(4).text(why),
            Note::Go { nodes, settings } => {
                settings.iter().fold(Writer::new(5).ranks(nodes).word(settings.len() as u32), |w, word| w.long(*word))
            }
            Note::Refused(why) => Writer::new(6).text(why),
            Note::Failed(Failure::Missing(text)) => Writer::new(7).text(text),
            Note::Failed(Failure::Aborted(text)) => Writer::new(8).text(text),
            Note::Failed(Failure::Lost(ranks, text)) => Writer::new(9).ranks(ranks).text(text),
        }
        .done()
    }

    pub fn decode(bytes: &[u8]) -> Option<Note> {
        let mut r = Reader::new(bytes);
        let note = match r.byte()? {
            1 => Note::Hello(hello(&mut r)?),
            2 => {
                let count = r.count(17)?;
                Note::Table((0..count).map(|_| member(&mut r)).collect::<Option<_>>()?)
            }
            3 => Note::Formed(None),
            4 => Note::Formed(Some(r.text()?)),
            5 => {
                let nodes = r.ranks()?;
                let count = r.count(8).filter(|count| *count <= SETTINGS)?;
                Note::Go { nodes, settings: (0..count).map(|_| r.long()).collect::<Option<_>>()? }
            }
            6 => Note::Refused(r.text()?),
            7 => Note::Failed(Failure::Missing(r.text()?)),
            8 => Note::Failed(Failure::Aborted(r.text()?)),
            9 => Note::Failed(Failure::Lost(r.ranks()?, r.text()?)),
            _ => return None,
        };
        r.end()?;
        Some(note)
    }
}

fn hello(r: &mut Reader<'_>) -> Option<Hello> {
    let (world, apart, pid, host) = (r.word()?, r.byte()? != 0, r.word()?, r.text()?);
    let identity = Identity::of([r.long()?, r.long()?, r.long()?, r.long()?, r.long()?]);
    Some(Hello { world, identity, apart, address: r.address()?, pid, host })
}

fn member(r: &mut Reader<'_>) -> Option<Member> {
    let (node, pid, address) = (r.word()?, r.word()?, r.address()?);
    Some(Member { address, node, pid, host: r.text()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address() -> impl Strategy<Value = SocketAddr> {
        (any::<std::net::IpAddr>(), any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip, port))
    }

    fn a_hello() -> impl Strategy<Value = Hello> {
        (any::<(u32, [u64; 5], bool, u32)>(), address(), "\\PC{0,40}").prop_map(
            |((world, id, apart, pid), address, host)| Hello {
                world,
                identity: Identity::of(id),
                apart,
                address,
                pid,
                host,
            },
        )
    }

    fn a_member() -> impl Strategy<Value = Member> {
        (any::<(u32, u32)>(), address(), "\\PC{0,40}").prop_map(|((node, pid), address, host)| Member {
            address,
            node,
            pid,
            host,
        })
    }

    fn a_note() -> impl Strategy<Value = Note> {
        let text = "\\PC{0,60}";
        prop_oneof![
            a_hello().prop_map(Note::Hello),
            prop::collection::vec(a_member(), 0..9).prop_map(Note::Table),
            prop::option::of(text).prop_map(Note::Formed),
            (any::<Vec<u32>>(), prop::collection::vec(any::<u64>(), 0..SETTINGS))
                .prop_map(|(nodes, settings)| Note::Go { nodes, settings }),
            text.prop_map(Note::Refused),
            text.prop_map(|t| Note::Failed(Failure::Missing(t))),
            text.prop_map(|t| Note::Failed(Failure::Aborted(t))),
            (any::<Vec<u32>>(), text).prop_map(|(ranks, t)| Note::Failed(Failure::Lost(ranks, t))),
        ]
    }

    proptest! {
        #[test]
        fn notes_survive_the_wire_and_nothing_shorter_or_longer_passes(note in a_note()) {
            let bytes = note.encode();
            prop_assert_eq!(Note::decode(&bytes), Some(note));
            for end in 0..bytes.len() {
                prop_assert_eq!(Note::decode(&bytes[..end]), None);
            }
            prop_assert_eq!(Note::decode(&[&bytes[..], &[0]].concat()), None);
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(tag in 0..12u8, bytes in any::<Vec<u8>>()) {
            if let Some(note) = Note::decode(&[&[tag], &bytes[..]].concat()) {
                prop_assert_eq!(Note::decode(&note.encode()), Some(note));
            }
        }
    }

    #[test]
    fn a_long_text_is_cut_where_a_letter_ends() {
        let Some(Note::Refused(text)) = Note::decode(&Note::Refused("é".repeat(9000)).encode()) else {
            panic!("a refusal stays one");
        };
        assert_eq!(text, "é".repeat(4096));
    }
}
