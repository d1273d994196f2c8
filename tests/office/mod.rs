//! Post offices of ranks in one thread, whose letters go through pipes as narrow as can be, and who get on in an order that is
//! different in every case. What a letter holds says who sent it, with which tag, and which of these it was.
#![allow(dead_code, reason = "each test has its own needs")]

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use arx::error::Rank;
use arx::kernels::Bytes;
use arx::post::{Memory, Office, Outcome, Status, Tag, Ticket};
use arx::transport::{Link, mem};
use arx::wait::Bell;

/// A sequence of numbers that look random, the same in every run.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % n
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for k in (1..items.len()).rev() {
            items.swap(k, self.below(k + 1));
        }
    }
}

/// The arrays of one rank.
#[derive(Default)]
pub struct Arrays(pub HashMap<Ticket, Vec<Cell<u8>>>);

impl Memory for Arrays {
    fn of(&self, ticket: Ticket) -> Bytes<'_> {
        &self.0[&ticket]
    }
}

pub struct Person {
    pub office: Office,
    pub arrays: Arrays,
}

impl Person {
    pub fn send(&mut self, to: Rank, tag: Tag, bytes: &[u8]) -> Ticket {
        let ticket = self.office.post_send(to, tag, bytes.len());
        self.arrays.0.insert(ticket, bytes.iter().copied().map(Cell::new).collect());
        ticket
    }

    pub fn recv(&mut self, from: Option<Rank>, tag: Option<Tag>, room: usize) -> Ticket {
        let ticket = self.office.post_recv(from, tag, room);
        self.arrays.0.insert(ticket, vec![Cell::new(0xee); room]);
        ticket
    }

    pub fn progress(&mut self) -> bool {
        self.office.progress(&self.arrays)
    }

    pub fn test(&mut self, ticket: Ticket) -> Option<Outcome> {
        self.office.test(ticket)
    }

    /// What lies in an array.
    pub fn read(&self, ticket: Ticket) -> Vec<u8> {
        self.arrays.0[&ticket].iter().map(Cell::get).collect()
    }
}

/// A world whose ranks have ways to each other that hold so many bytes.
pub fn world(size: u32, capacity: usize) -> Vec<Person> {
    let bell = Arc::new(Bell::default());
    let mut all: Vec<Person> =
        (0..size).map(|me| Person { office: Office::new(me, size), arrays: Arrays::default() }).collect();
    for a in 0..size {
        for b in a + 1..size {
            let (here, there) = mem::pair([a, b], capacity, &bell);
            connect(&mut all[a as usize], b, here);
            connect(&mut all[b as usize], a, there);
        }
    }
    all
}

pub fn connect(person: &mut Person, peer: Rank, link: Link) {
    person.office.open_to(peer, link.tx);
    person.office.open_from(peer, link.rx);
}

/// Everybody gets on, in any order, until nobody does.
pub fn settle(all: &mut [Person], dice: &mut Dice) {
    let mut idle = 0;
    while idle < 20 * all.len() {
        let who = dice.below(all.len());
        idle = if all[who].progress() { 0 } else { idle + 1 };
    }
}

/// The letter number `number` of those with `tag` from one rank to another.
pub fn letter(from: Rank, tag: Tag, number: usize, len: usize) -> Vec<u8> {
    let mark = |k: usize| (k * 7 + number * 31 + tag as usize * 13 + from as usize * 101) as u8;
    (0..len).map(mark).collect()
}

const LENGTHS: [usize; 11] = [0, 1, 8, 15, 16, 17, 63, 64, 100, 1000, 5000];
const ROOM: usize = 5000;

/// What requests of one rank say: of each letter's sender and tag, or of one of them, or nothing.
#[derive(Clone, Copy)]
pub enum Manner {
    Exact,
    AnySource,
    AnyTag,
    Any,
}

/// The ranks of a world send each other letters and ask for them in any order; all of them arrive, and in order.
pub fn everybody_writes(all: &mut [Person], manner: Manner, seed: u64) {
    let mut dice = Dice(seed);
    let size = all.len() as u32;
    let mut sent: HashMap<(Rank, Rank, Tag), Vec<Vec<u8>>> = HashMap::new();
    let mut to_send: Vec<(Rank, Rank, Tag, usize)> = (0..40 * size as usize)
        .map(|_| {
            let pair = [dice.below(size as usize) as Rank, dice.below(size as usize) as Rank];
            (pair[0], pair[1], dice.below(3) as Tag, LENGTHS[dice.below(LENGTHS.len())])
        })
        .collect();
    let mut requests: Vec<(Rank, Option<Rank>, Option<Tag>)> = to_send
        .iter()
        .map(|(from, to, tag, _)| match manner {
            Manner::Exact => (*to, Some(*from), Some(*tag)),
            Manner::AnySource => (*to, None, Some(*tag)),
            Manner::AnyTag => (*to, Some(*from), None),
            Manner::Any => (*to, None, None),
        })
        .collect();
    dice.shuffle(&mut requests);
    let (mut sends, mut asked) = (Vec::new(), Vec::new());
    while !(to_send.is_empty() && requests.is_empty()) {
        match dice.below(3) {
            0 if !to_send.is_empty() => {
                let (from, to, tag, len) = to_send.pop().expect("not empty");
                let letters = sent.entry((from, to, tag)).or_default();
                let text = letter(from, tag, letters.len(), len);
                sends.push((from, all[from as usize].send(to, tag, &text)));
                letters.push(text);
            }
            1 if !requests.is_empty() => {
                let (who, from, tag) = requests.pop().expect("not empty");
                asked.push((who, all[who as usize].recv(from, tag, ROOM)));
            }
            _ => {
                let who = dice.below(size as usize);
                all[who].progress();
            }
        }
    }
    settle(all, &mut dice);
    for (from, ticket) in sends {
        all[from as usize].test(ticket).expect("sent").expect("well");
    }
    // Requests in the order in which they were made: of one sender and tag they get the letters in the order of sending.
    let mut next: HashMap<(Rank, Rank, Tag), usize> = HashMap::new();
    for (who, ticket) in asked {
        let person = &mut all[who as usize];
        let Status { peer, tag, len } = person.test(ticket).expect("received").expect("well");
        let number = next.entry((peer, who, tag)).or_default();
        let expected = &sent[&(peer, who, tag)][*number];
        let bytes = person.read(ticket);
        assert_eq!(&bytes[..len], &expected[..], "letter {number} from {peer} to {who} with tag {tag}");
        assert!(bytes[len..].iter().all(|byte| *byte == 0xee), "nothing is written behind it");
        *number += 1;
    }
    assert!(sent.iter().all(|(way, letters)| next.get(way).is_some_and(|n| *n == letters.len())));
}
