//! Two ranks prove to each other that they belong to one job, before either believes a word of the other.
//!
//! ```text
//! who dials                                               who accepts
//! greeting: magic, version, channel,
//!           from, to, job, nonce_d, group   88 bytes ->
//!                                            <- 48 bytes  answer: magic, version, refusal, nonce_a
//! proof:    HMAC(K, "dial" | all so far)    32 bytes ->
//!                                            <- 40 bytes  seal:   refusal, HMAC(K, "accept" | all so far)
//! ```
//! K is derived from the job's secret, its id and its generation. Both nonces are fresh, so a recorded conversation proves
//! nothing later; each side has a label of its own, so nobody can be shown its own proof; ranks and channel are part of
//! what is proved, so a proof for one connection opens no other. Who dials proves itself first: a scanner learns nothing
//! that depends on the secret. Proofs are compared in constant time.
//!
//! Every part has a fixed length, so nothing that comes over the wire decides how much is read or allocated, and not a byte
//! beyond the handshake is taken off the connection. A refusal is a courtesy that anybody on the path could forge: it ends
//! an attempt, as a cut connection would, and is used for nothing else.
//!
//! Pure: bytes in, bytes out. No sockets, no clock, and nonces come from the caller.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::error::Rank;

/// Neither is how another protocol begins; they differ, so that nobody takes its own words for an answer.
const GREETS: [u8; 8] = *b"\x00arx\xffhi\n";
const ANSWERS: [u8; 8] = *b"\x00arx\xffyo\n";
/// Of everything that ranks say to each other over TCP.
pub const VERSION: u32 = 5;

const GREETING: usize = 88;
const ANSWER: usize = 48;
const PROOF: usize = 32;
const SEAL: usize = 40;

pub type Nonce = [u8; 32];

/// What all ranks of a job know and nobody else does.
#[derive(Clone)]
pub struct Key {
    mac: Hmac<Sha256>,
    /// Says which job is meant, to those who come with another.
    job: [u8; 16],
    secret: bool,
}

impl Key {
    /// Without a secret the key is no better than the job's id, and connections must not leave the host.
    pub fn new(secret: Option<&str>, job: &str, generation: u32) -> Key {
        let secret = secret.filter(|s| !s.is_empty());
        let words: [&[u8]; 3] = [b"arx job", &generation.to_le_bytes(), job.as_bytes()];
        let derived = sign(&keyed(secret.unwrap_or_default().as_bytes()), &words);
        let digest = words.iter().fold(Sha256::new(), |hash, word| hash.chain_update(word)).finalize();
        let mut job = [0; 16];
        job.copy_from_slice(&digest[..16]);
        Key { mac: keyed(&derived), job, secret: secret.is_some() }
    }

    /// Whether there is a secret at all.
    pub fn is_secret(&self) -> bool {
        self.secret
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Key").field("secret", &self.secret).finish_non_exhaustive()
    }
}

fn keyed(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("HMAC takes keys of any length")
}

fn sign(key: &Hmac<Sha256>, words: &[&[u8]]) -> [u8; PROOF] {
    words.iter().fold(key.clone(), |mac, word| mac.chain_update(word)).finalize().into_bytes().into()
}

/// Which group: a hash of its parent and its ranks in order, and how many times these have been made a group before. All
/// members know it without a word. Zeros: the group of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId {
    pub list: u64,
    pub number: u64,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Channel {
    /// Between a rank and rank 0, for the life of the job; between two others when rank 0 is gone.
    Control,
    /// One of the streams that carry arrays between two ranks, in the group of all.
    Data(u16),
    /// The same in another group.
    Group(GroupId, u16),
    /// Carries what the rank that calls sends the other outside collectives.
    Post(GroupId),
}

impl Channel {
    fn word(self) -> u32 {
        match self {
            Channel::Control => 0,
            Channel::Data(stream) => 1 << 16 | u32::from(stream),
            Channel::Group(_, stream) => 2 << 16 | u32::from(stream),
            Channel::Post(_) => 3 << 16,
        }
    }

    /// The group of all, unless it says another.
    pub fn group(self) -> GroupId {
        match self {
            Channel::Group(group, _) | Channel::Post(group) => group,
            Channel::Control | Channel::Data(_) => GroupId::default(),
        }
    }

    fn of(word: u32, group: GroupId) -> Option<Channel> {
        let of_all = group == GroupId::default();
        match (word >> 16, word as u16) {
            (0, 0) if of_all => Some(Channel::Control),
            (1, stream) if of_all => Some(Channel::Data(stream)),
            (2, stream) if !of_all => Some(Channel::Group(group, stream)),
            (3, 0) => Some(Channel::Post(group)),
            _ => None,
        }
    }
}

/// Who calls whom, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub from: Rank,
    pub to: Rank,
    pub channel: Channel,
}

/// Why a connection came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Refusal {
    /// Whatever is there, it does not speak this protocol.
    NotArx = 1,
    OtherVersion = 2,
    /// Another job, or the same one formed another time.
    OtherJob = 3,
    /// A rank was expected that is not at this address.
    OtherRank = 4,
    /// The secrets differ.
    WrongProof = 5,
}

impl Refusal {
    fn of(word: u32) -> Refusal {
        use Refusal::*;
        [OtherVersion, OtherJob, OtherRank, WrongProof].into_iter().find(|r| *r as u32 == word).unwrap_or(NotArx)
    }

    pub fn why(self) -> &'static str {
        match self {
            Refusal::NotArx => "something else than arx is at the other end",
            Refusal::OtherVersion => "another version of arx is at the other end",
            Refusal::OtherJob => "the other end belongs to another job",
            Refusal::OtherRank => "the other end is not the rank that it should be",
            Refusal::WrongProof => "the secrets differ",
        }
    }
}

#[derive(Debug)]
enum Turn {
    Greeting,
    Answer,
    Proof,
    Seal,
    Over(Result<Claim, Refusal>),
}

/// One side of one conversation.
#[derive(Debug)]
pub struct Handshake {
    key: Key,
    claim: Claim,
    nonce: Nonce,
    turn: Turn,
    /// All that has been said, by both.
    said: Vec<u8>,
    /// How many bytes of `said` belong to the part that is now being received.
    part: usize,
    outbox: Vec<u8>,
}

impl Handshake {
    /// The side that calls.
    pub fn dial(key: &Key, claim: Claim, nonce: Nonce) -> Handshake {
        let mut greeting = Vec::with_capacity(GREETING);
        greeting.extend_from_slice(&GREETS);
        for word in [VERSION, claim.channel.word(), claim.from, claim.to] {
            greeting.extend_from_slice(&word.to_le_bytes());
        }
        greeting.extend_from_slice(&key.job);
        greeting.extend_from_slice(&nonce);
        let GroupId { list, number } = claim.channel.group();
        greeting.extend_from_slice([list.to_le_bytes(), number.to_le_bytes()].as_flattened());
        let mut dial = Handshake::new(key, claim, nonce, Turn::Answer);
        dial.say(&greeting);
        dial
    }

    /// The side that is called. `me` is its rank.
    pub fn accept(key: &Key, me: Rank, nonce: Nonce) -> Handshake {
        // Overwritten by what the greeting claims.
        let nobody = Claim { from: me, to: me, channel: Channel::Control };
        Handshake::new(key, nobody, nonce, Turn::Greeting)
    }

    fn new(key: &Key, claim: Claim, nonce: Nonce, turn: Turn) -> Handshake {
        let said = Vec::with_capacity(GREETING + ANSWER + PROOF + SEAL);
        Handshake { key: key.clone(), claim, nonce, turn, said, part: 0, outbox: Vec::new() }
    }

    /// How many bytes may be received now: never more than are missing of the current part.
    pub fn wanted(&self) -> usize {
        self.length() - self.part
    }

    fn length(&self) -> usize {
        match self.turn {
            Turn::Greeting => GREETING,
            Turn::Answer => ANSWER,
            Turn::Proof => PROOF,
            Turn::Seal => SEAL,
            Turn::Over(_) => 0,
        }
    }

    /// Bytes to be sent, before anything else is received.
    pub fn outbox(&self) -> &[u8] {
        &self.outbox
    }

    pub fn sent(&mut self, count: usize) {
        self.outbox.drain(..count);
    }

    /// The end of it: the claim that both sides have proved, or why not. What is left in the outbox is still to be sent.
    pub fn outcome(&self) -> Option<Result<Claim, Refusal>> {
        match self.turn {
            Turn::Over(outcome) => Some(outcome),
            _ => None,
        }
    }

    /// Whether the other side has said anything yet.
    pub fn is_silent(&self) -> bool {
        matches!(self.turn, Turn::Greeting) && self.part == 0
    }

    /// Takes bytes that were received, at most as many as `wanted`.
    pub fn take(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.wanted(), "the caller receives no more than is wanted");
        self.said.extend_from_slice(bytes);
        self.part += bytes.len();
        if self.is_foreign() {
            (self.turn, self.part) = (Turn::Over(Err(Refusal::NotArx)), 0);
            return;
        }
        if self.wanted() == 0 {
            let start = self.said.len() - self.part;
            self.part = 0;
            match self.turn {
                Turn::Greeting => self.greeted(),
                Turn::Answer => self.answered(start),
                Turn::Proof => self.proved(start),
                Turn::Seal => self.sealed(start),
                Turn::Over(_) => {}
            }
        }
    }

    /// Who does not speak arx is known by its first bytes, need not fill a whole greeting, and is told nothing.
    fn is_foreign(&self) -> bool {
        let magic = match self.turn {
            Turn::Greeting => GREETS,
            Turn::Answer => ANSWERS,
            _ => return false,
        };
        let part = &self.said[self.said.len() - self.part..];
        part.iter().zip(magic).any(|(byte, magic)| *byte != magic)
    }

    fn say(&mut self, bytes: &[u8]) {
        self.said.extend_from_slice(bytes);
        self.outbox.extend_from_slice(bytes);
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.said[at..at + 4].try_into().expect("four bytes"))
    }

    fn long(&self, at: usize) -> u64 {
        u64::from(self.word(at)) | u64::from(self.word(at + 4)) << 32
    }

    fn greeted(&mut self) {
        let group = GroupId { list: self.long(72), number: self.long(80) };
        let channel = Channel::of(self.word(12), group);
        let claim = Claim { from: self.word(16), to: self.word(20), channel: channel.unwrap_or(Channel::Control) };
        let me = std::mem::replace(&mut self.claim, claim).to;
        let refusal = if self.word(8) != VERSION {
            Some(Refusal::OtherVersion)
        } else if self.said[24..40] != self.key.job {
            Some(Refusal::OtherJob)
        } else if claim.to != me || claim.from == me || channel.is_none() {
            Some(Refusal::OtherRank)
        } else {
            None
        };
        let mut answer = Vec::with_capacity(ANSWER);
        answer.extend_from_slice(&ANSWERS);
        answer.extend_from_slice(&VERSION.to_le_bytes());
        answer.extend_from_slice(&refusal.map_or(0, |r| r as u32).to_le_bytes());
        answer.extend_from_slice(&self.nonce);
        self.say(&answer);
        self.turn = refusal.map_or(Turn::Proof, |r| Turn::Over(Err(r)));
    }

    fn answered(&mut self, start: usize) {
        let (version, refusal) = (self.word(start + 8), self.word(start + 12));
        if refusal != 0 || version != VERSION {
            let refusal = if version == VERSION { Refusal::of(refusal) } else { Refusal::OtherVersion };
            self.turn = Turn::Over(Err(refusal));
            return;
        }
        let proof = sign(&self.key.mac, &[b"dial", &self.said]);
        self.say(&proof);
        self.turn = Turn::Seal;
    }

    fn proved(&mut self, start: usize) {
        let fits = self.verify(b"dial", start, start);
        let mut seal = [0; SEAL];
        if fits {
            seal[8..].copy_from_slice(&sign(&self.key.mac, &[b"accept", &self.said]));
        } else {
            seal[..4].copy_from_slice(&(Refusal::WrongProof as u32).to_le_bytes());
        }
        self.say(&seal);
        self.turn = Turn::Over(if fits { Ok(self.claim) } else { Err(Refusal::WrongProof) });
    }

    fn sealed(&mut self, start: usize) {
        let refusal = self.word(start);
        self.turn = Turn::Over(match refusal {
            0 if self.verify(b"accept", start, start + 8) => Ok(self.claim),
            0 => Err(Refusal::WrongProof),
            code => Err(Refusal::of(code)),
        });
    }

    /// Whether what was said from `proof` on proves, under `label`, all that was said before `start`.
    fn verify(&self, label: &[u8], start: usize, proof: usize) -> bool {
        let mac = self.key.mac.clone().chain_update(label).chain_update(&self.said[..start]);
        mac.verify_slice(&self.said[proof..]).is_ok()
    }
}
