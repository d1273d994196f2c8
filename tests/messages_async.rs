//! Messages that do not wait, through whole `Communicator`s whose ranks are threads: in the memory that they share and over TCP.
//! What a letter holds says who sent it and which it was.

mod filter;
mod members;

use std::cell::Cell;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use arx::communicator::{Call, Communicator, Exchange, Give, Status, Tag, Take};
use arx::error::{Error, Rank, Result};
use arx::progress::{Courier, Message, Receipt, Waited};
use arx::wait::{Host, Plain};
use members::{Meet, PATIENCE};

const ROOM: usize = 100_000;

/// Which way letters go: through pipes in memory, or read where they lie if they are long, also where ranks met over the network;
/// over connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Site {
    Pipes,
    Memory,
    Met,
    Apart,
}

/// Runs `rank` in a group of `world` threads.
fn group(world: u32, site: Site, rank: impl Fn(&mut Communicator, &Courier<Note>) + Copy + Send + Sync) {
    let meet = match site {
        Site::Pipes | Site::Memory => Meet::Here,
        Site::Met | Site::Apart => Meet::Over { apart: site == Site::Apart },
    };
    let kernel = if site == Site::Pipes { "kernel=off" } else { "kernel=1000" };
    let tune = format!("{kernel},alpha_ns=30000,overhead_ns=8000,beta_fs=1000000,gamma_fs=100000");
    members::group(world, meet, &tune, |group| {
        let courier = Courier::new(Arc::clone(group.letters()));
        rank(group, &courier);
        assert_eq!(courier.flush(&mut Plain), Waited::Done);
        courier.close(false);
    });
}

/// Every size, all ways.
fn everywhere(rank: impl Fn(&mut Communicator, &Courier<Note>) + Copy + Send + Sync) {
    at([Site::Pipes, Site::Memory, Site::Met, Site::Apart], rank);
}

fn at<const N: usize>(sites: [Site; N], rank: impl Fn(&mut Communicator, &Courier<Note>) + Copy + Send + Sync) {
    for world in 2..=5 {
        for site in sites {
            group(world, site, rank);
        }
    }
}

/// Bytes to be sent to a rank, or room for those of one.
struct Note {
    to: Option<Rank>,
    from: Option<Rank>,
    tag: Tag,
    array: Vec<Cell<u8>>,
    status: Option<Status>,
}

impl Note {
    fn send(to: Rank, tag: Tag, bytes: &[u8]) -> Note {
        Note { to: Some(to), from: None, tag, array: bytes.iter().copied().map(Cell::new).collect(), status: None }
    }

    fn recv(from: Option<Rank>, tag: Tag, room: usize) -> Note {
        Note { to: None, from, tag, array: vec![Cell::new(0xee); room], status: None }
    }
}

impl Message for Note {
    fn call(&self) -> Exchange<'_> {
        let array = &self.array[..];
        let give = self.to.map(|to| Give { to, tag: self.tag, array });
        let take = self.to.is_none().then_some(Take { from: self.from, tag: Some(self.tag), array });
        Exchange { give, take, timeout: None }
    }

    fn done(&mut self, status: Option<Status>) {
        self.status = status;
    }
}

/// The letter number `number` with that tag from one rank to another.
fn letter(from: Rank, to: Rank, tag: Tag, number: usize) -> Vec<u8> {
    let len = [0, 1, 16, 1000, 70_000, ROOM][(number + tag as usize + from as usize) % 6];
    (0..len).map(|k| (k * 7 + number * 31 + tag as usize * 13 + from as usize * 101 + to as usize * 57) as u8).collect()
}

fn begin(courier: &Courier<Note>, note: Note) -> Receipt<Note> {
    courier.post(note, &mut Plain).expect("the group is open")
}

/// The note, once it is done.
fn end(courier: &Courier<Note>, receipt: &Receipt<Note>) -> Result<Note> {
    assert_eq!(courier.wait(receipt, None, &mut Plain), Waited::Done);
    receipt.ticket.outcome().expect("it is done").map(|()| receipt.ticket.take().expect("nobody has taken it"))
}

fn check(note: &Note, me: Rank, number: usize) {
    let Status { peer, tag, len } = note.status.expect("it was received");
    let expected = letter(peer, me, tag, number);
    let got: Vec<u8> = note.array.iter().map(Cell::get).collect();
    assert_eq!(&got[..len], &expected[..], "letter {number} from {peer} to {me} with tag {tag}");
    assert!(got[len..].iter().all(|byte| *byte == 0xee), "nothing is written behind it");
}

/// Each rank asks for all letters, sends all, calls a collective between the two, and waits from the last to the first.
fn everybody_writes(group: &mut Communicator, courier: &Courier<Note>, collective: bool) {
    let (me, world) = (group.rank(), group.world());
    let all = || (0..world).flat_map(|peer| (0..3).flat_map(move |tag| (0..6).map(move |number| (peer, tag, number))));
    let asked: Vec<_> =
        all().map(|(from, tag, number)| (number, begin(courier, Note::recv(Some(from), tag, ROOM)))).collect();
    if collective {
        group.barrier(&Call::barrier(None), &mut Plain).expect("nobody waits for a letter in it");
    }
    let sent: Vec<_> =
        all().map(|(to, tag, number)| begin(courier, Note::send(to, tag, &letter(me, to, tag, number)))).collect();
    for (number, receipt) in asked.iter().rev() {
        check(&end(courier, receipt).expect("well"), me, *number);
    }
    for receipt in &sent {
        end(courier, receipt).expect("well");
    }
}

#[test]
fn all_letters_arrive_in_order_beside_collectives() {
    everywhere(|group, courier| {
        everybody_writes(group, courier, true);
        everybody_writes(group, courier, false);
    });
}

#[test]
fn nobody_waits_and_the_thread_does_all_of_it() {
    everywhere(|group, courier| {
        let (me, world) = (group.rank(), group.world());
        let next = (me + 1) % world;
        let asked = begin(courier, Note::recv(None, 1, ROOM));
        let sent = begin(courier, Note::send(next, 1, &letter(me, next, 1, 4)));
        let until = Instant::now() + PATIENCE;
        while !(asked.ticket.is_done() && sent.ticket.is_done()) {
            assert!(Instant::now() < until, "the thread does not go on");
            thread::sleep(Duration::from_micros(100));
        }
        check(&end(courier, &asked).expect("well"), me, 4);
    });
}

#[test]
fn a_call_that_waits_comes_behind_what_was_asked_for_before_and_goes_on_with_it() {
    everywhere(|group, courier| {
        let (me, world) = (group.rank(), group.world());
        let (next, before) = ((me + 1) % world, (me + world - 1) % world);
        let first = begin(courier, Note::recv(Some(before), 2, ROOM));
        for number in 0..2 {
            let text = Note::send(next, 2, &letter(me, next, 2, number));
            group.exchange(&text.call(), &mut Plain).expect("sent");
        }
        let mut second = Note::recv(Some(before), 2, ROOM);
        let status = group.exchange(&second.call(), &mut Plain).expect("received");
        second.done(status);
        check(&second, me, 1);
        check(&end(courier, &first).expect("well"), me, 0);
    });
}

#[test]
fn one_that_is_too_long_and_one_that_nobody_sends_end_alone() {
    // The ranks leave one by one, while others still ask for what nobody sends.
    at([Site::Pipes, Site::Memory, Site::Apart], |group, courier| {
        let (me, world) = (group.rank(), group.world());
        let next = (me + 1) % world;
        let long = begin(courier, Note::recv(None, 3, 5));
        let own = begin(courier, Note::recv(Some(me), 4, 5));
        begin(courier, Note::send(next, 3, &[1; 6]));
        assert!(matches!(end(courier, &long), Err(Error::Mismatch(_))));
        assert!(matches!(end(courier, &own), Err(Error::Invalid(_))));
        let never = begin(courier, Note::recv(None, 5, 5));
        assert_eq!(courier.wait(&never, Some(Duration::from_millis(1)), &mut Plain), Waited::TimedOut);
        group.barrier(&Call::barrier(None), &mut Plain).expect("the group is usable");
        courier.close(false);
        // The others may have left before.
        let outcome = never.ticket.outcome();
        assert!(matches!(outcome, Some(Err(Error::Aborted(_) | Error::PeerLost { .. }))), "{outcome:?}");
        assert!(matches!(courier.post(Note::recv(None, 5, 5), &mut Plain), Err(Error::Init(_))));
    });
}

/// A program that wants its wait to end.
struct Impatient;

impl Host for Impatient {
    fn aside(&mut self, wait: &mut dyn FnMut()) {
        wait();
    }
    fn interrupted(&mut self) -> bool {
        true
    }
}

#[test]
fn who_is_interrupted_leaves_the_wait_and_not_the_message() {
    everywhere(|group, courier| {
        let (me, world) = (group.rank(), group.world());
        let next = (me + 1) % world;
        let asked = begin(courier, Note::recv(None, 6, ROOM));
        assert_eq!(courier.wait(&asked, None, &mut Impatient), Waited::Interrupted);
        group.barrier(&Call::barrier(None), &mut Plain).expect("the group is usable");
        begin(courier, Note::send(next, 6, &letter(me, next, 6, 2)));
        check(&end(courier, &asked).expect("well"), me, 2);
    });
}

#[test]
fn who_is_interrupted_does_not_read_a_long_letter_to_its_end() {
    group(2, Site::Memory, |group, courier| {
        let text = vec![7; 150 << 20];
        if group.rank() == 0 {
            let sent = begin(courier, Note::send(1, 1, &text));
            group.barrier(&Call::barrier(None), &mut Plain).expect("all are there");
            assert!(matches!(end(courier, &sent), Err(Error::PeerLost { .. })));
            return;
        }
        group.barrier(&Call::barrier(None), &mut Plain).expect("all are there");
        let out = Note::recv(Some(0), 1, text.len());
        assert!(matches!(group.exchange(&out.call(), &mut Impatient), Err(Error::Interrupted)));
        assert_eq!(out.array.last().map(Cell::get), Some(0xee));
    });
}

#[test]
fn a_rank_that_leaves_ends_what_others_ask_of_it() {
    for site in [Site::Memory, Site::Apart] {
        group(3, site, |group, courier| {
            let asked: Vec<_> = (0..3).map(|tag| begin(courier, Note::recv(Some(2), tag, ROOM))).collect();
            group.barrier(&Call::barrier(None), &mut Plain).expect("all are there");
            if group.rank() == 2 {
                return;
            }
            for receipt in &asked {
                let Err(Error::PeerLost { ranks, .. }) = end(courier, receipt) else { panic!("it ended well") };
                assert!(ranks.contains(&2) || site == Site::Apart, "{ranks:?}");
            }
        });
    }
}

#[test]
fn a_rank_that_may_not_read_any_more_gets_its_letters_by_the_pipe() {
    for site in [Site::Memory, Site::Met] {
        group(3, site, |group, courier| {
            let (me, world) = (group.rank(), group.world());
            let (next, before) = ((me + 1) % world, (me + world - 1) % world);
            for number in 0..12 {
                if number == 5 && me == 1 {
                    filter::refuse_reading();
                }
                let sent = begin(courier, Note::send(next, 7, &letter(me, next, 7, number)));
                let mut note = Note::recv(Some(before), 7, ROOM);
                let status = group.exchange(&note.call(), &mut Plain).expect("received");
                note.done(status);
                check(&note, me, number);
                end(courier, &sent).expect("well");
            }
        });
    }
}
