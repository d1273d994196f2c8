//! Links over TCP: every byte in its place, whatever the sizes of calls and buffers; the ends of a connection; large arrays.

#[path = "tcp/ends.rs"]
mod ends;

use std::cell::Cell;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use arx::transport::tcp::{STRIPE, link};
use arx::transport::{Broken, Link, Rx, Tx};
use ends::{Dice, V4, V6, byte, bytes, check, connections, peek_all, read_all, watched, write_all};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionread;
use rustix::net::{SendFlags, send};

fn pair(address: SocketAddr, count: usize, buffer: Option<usize>) -> (Link, Link) {
    let (here, there) = connections(address, count, buffer);
    (link(1, here), link(0, there))
}

/// Writes `total` bytes of `stream` in pieces of random sizes below `most`, some of them with a head and a tail. How many calls took
/// a part of what they were given.
fn send_randomly(tx: &mut dyn Tx, stream: u64, total: usize, most: usize) -> usize {
    let (mut dice, mut at, mut parts) = (Dice(stream), 0, 0);
    while at < total {
        let piece = bytes(stream, at, (1 + dice.roll(most)).min(total - at));
        let (head, rest) = piece.split_at(dice.roll(3 * 32).min(32).min(piece.len()));
        let (body, tail) = rest.split_at(rest.len() - dice.roll(16).min(rest.len()));
        let plain = |part: &[Cell<u8>]| part.iter().map(Cell::get).collect::<Vec<u8>>();
        let n = tx.write(&plain(head), body, &plain(tail)).expect("written");
        parts += usize::from(n > 0 && n < piece.len());
        at += n;
        if n == 0 {
            thread::yield_now();
        }
    }
    parts
}

/// Takes `total` bytes of `stream` by `peek` or `read`, as the dice say.
fn take_randomly(rx: &mut dyn Rx, stream: u64, total: usize, most: usize) {
    let (mut dice, mut at) = (Dice(!stream), 0);
    let room = vec![Cell::new(0); most];
    while at < total {
        let want = (1 + dice.roll(most)).min(total - at);
        let n = if dice.roll(2) == 0 {
            let seen = rx.peek(want).expect("received");
            assert_eq!(seen.as_ptr().addr() % 16, at % 16, "address and position");
            check(stream, at, &seen[..seen.len().min(want)]);
            let n = dice.roll(seen.len().min(want) + 1);
            rx.consume(n);
            n
        } else {
            let n = rx.read(&room[..want]).expect("received");
            check(stream, at, &room[..n]);
            n
        };
        at += n;
        if n == 0 {
            thread::yield_now();
        }
    }
}

/// Both ends send and receive at once, each with a thread for each direction. How many writes were partial.
fn exchange(here: Link, there: Link, total: usize, most: usize) -> usize {
    let parts = AtomicUsize::new(0);
    thread::scope(|threads| {
        for (Link { mut tx, mut rx }, number) in [(here, 0), (there, 1)] {
            let parts = &parts;
            threads.spawn(move || {
                parts.fetch_add(send_randomly(&mut *tx, number, total, most), Ordering::Relaxed);
            });
            threads.spawn(move || take_randomly(&mut *rx, 1 - number, total, most));
        }
    });
    parts.into_inner()
}

#[test]
fn random_sizes_both_ways() {
    for address in [V4, V6] {
        for count in [1, 2, 4] {
            watched(|| {
                let (here, there) = pair(address, count, None);
                exchange(here, there, 24 << 20, 1 << 20);
            });
        }
    }
}

#[test]
fn tiny_buffers_take_parts() {
    for count in [1, 2, 4] {
        watched(|| {
            let (here, there) = pair(V4, count, Some(4096));
            assert!(exchange(here, there, 2 << 20, 100_000) > 0, "no write was partial");
        });
    }
}

#[test]
fn one_byte_at_a_time() {
    for count in [1, 2] {
        watched(|| {
            let (mut here, mut there) = pair(V6, count, None);
            let one = [Cell::new(0)];
            for at in 0..3000 {
                let sent = if at % 2 == 0 { (vec![byte(7, at)], vec![]) } else { (vec![], bytes(7, at, 1)) };
                assert_eq!(here.tx.write(&sent.0, &sent.1, &[]), Ok(1));
                if at % 3 == 0 {
                    check(7, at, peek_all(&mut *there.rx, 1));
                    there.rx.consume(1);
                } else {
                    read_all(&mut *there.rx, &one);
                    check(7, at, &one);
                }
            }
        });
    }
}

#[test]
fn nothing_is_written_and_nothing_has_arrived() {
    watched(|| {
        let (mut here, mut there) = pair(V4, 1, None);
        assert_eq!(here.tx.write(&[], &[], &[]), Ok(0));
        assert_eq!(there.rx.peek(64).map(<[_]>::len), Ok(0));
        assert_eq!(there.rx.read(&bytes(0, 0, 8)), Ok(0));
        assert_eq!(there.rx.read(&[]), Ok(0));
        assert_eq!(there.rx.peek(0).map(<[_]>::len), Ok(0));
    });
}

#[test]
fn a_peek_for_64_bytes_gets_them_wherever_it_stands() {
    watched(|| {
        let (mut here, mut there) = pair(V4, 2, None);
        let (mut dice, mut at) = (Dice(64), 0);
        let all = bytes(3, 0, 3 << 20);
        thread::scope(|threads| {
            threads.spawn(|| write_all(&mut *here.tx, &bytes(3, 0, 3 << 20)));
            while at + 64 <= all.len() {
                let seen = peek_all(&mut *there.rx, 64);
                check(3, at, seen);
                assert_eq!(seen.as_ptr().addr() % 16, at % 16);
                let n = dice.roll(seen.len() + 1);
                there.rx.consume(n);
                at += n;
            }
        });
    });
}

#[test]
fn a_peek_may_ask_for_more_than_ever_fits() {
    watched(|| {
        let (mut here, mut there) = pair(V4, 1, None);
        let total = 2 << 20;
        thread::scope(|threads| {
            threads.spawn(|| write_all(&mut *here.tx, &bytes(1, 0, total)));
            let mut at = 0;
            while at < total {
                let seen = there.rx.peek(usize::MAX).expect("received");
                check(1, at, seen);
                let n = seen.len() / 2 + seen.len() % 2;
                there.rx.consume(n);
                at += n;
            }
        });
    });
}

#[test]
#[should_panic(expected = "consumed more than has arrived")]
fn consuming_what_has_not_arrived_is_a_mistake() {
    let (mut here, mut there) = pair(V4, 1, None);
    assert_eq!(here.tx.write(b"four", &[], &[]), Ok(4));
    peek_all(&mut *there.rx, 4);
    there.rx.consume(5);
}

#[test]
fn stripes_go_over_the_sockets_in_turn() {
    watched(|| {
        let (here, there) = connections(V4, 3, None);
        let mut tx = link(1, here).tx;
        let waiting = |which: usize| ioctl_fionread(&there[which]).expect("a socket") as usize;
        let arrived = |counts: [usize; 3]| {
            while (0..3).any(|which| waiting(which) < counts[which]) {
                thread::yield_now();
            }
            assert_eq!([waiting(0), waiting(1), waiting(2)], counts);
        };
        assert_eq!(tx.write(&[1; 32], &bytes(0, 0, 984), &[2; 16]), Ok(1032));
        arrived([1032, 0, 0]);
        write_all(&mut *tx, &bytes(0, 0, STRIPE - 1032));
        arrived([STRIPE, 0, 0]);
        assert_eq!(tx.write(&[], &bytes(0, 0, 8), &[]), Ok(8));
        arrived([STRIPE, 8, 0]);
        write_all(&mut *tx, &bytes(0, 0, 2 * STRIPE));
        arrived([STRIPE + 8, STRIPE, STRIPE]);
    });
}

const LONG: Duration = Duration::from_secs(60);

/// Whether the descriptor becomes ready in time.
fn ready(fd: BorrowedFd<'_>, what: PollFlags, limit: Duration) -> bool {
    let limit = Timespec::try_from(limit).expect("short");
    poll(&mut [PollFd::from_borrowed_fd(fd, what)], Some(&limit)).expect("poll") == 1
}

#[test]
fn the_descriptor_says_when_to_go_on() {
    for count in [1, 4] {
        watched(|| {
            let (mut here, mut there) = pair(V4, count, Some(65536));
            assert!(!ready(there.rx.fd().expect("a socket"), PollFlags::IN, Duration::ZERO));
            let (body, mut sent) = (bytes(5, 0, 8 << 20), 0);
            // Full is what stays full: what is under way makes room a little later.
            while sent < body.len()
                && ready(here.tx.fd().expect("a socket"), PollFlags::OUT, Duration::from_millis(200))
            {
                sent += here.tx.write(&[], &body[sent..], &[]).expect("written");
            }
            assert!(sent < body.len(), "the link holds everything");
            let mut taken = 0;
            while taken < sent {
                assert!(ready(there.rx.fd().expect("a socket"), PollFlags::IN, LONG));
                let seen = there.rx.peek(100_000).expect("received");
                check(5, taken, seen);
                let n = seen.len();
                there.rx.consume(n);
                taken += n;
            }
            assert!(ready(here.tx.fd().expect("a socket"), PollFlags::OUT, LONG));
            assert!(here.tx.write(&[], &body[sent..], &[]).expect("written") > 0);
        });
    }
}

fn end_of(rx: &mut dyn Rx) -> Broken {
    loop {
        match rx.read(&[Cell::new(0)]) {
            Ok(n) => assert_eq!(n, 0, "there was more to read"),
            Err(broken) => return broken,
        }
        thread::yield_now();
    }
}

fn end_of_writing(tx: &mut dyn Tx) -> Broken {
    loop {
        if let Err(broken) = tx.write(b"anybody?", &[], &[]) {
            return broken;
        }
        thread::yield_now();
    }
}

#[test]
fn what_was_sent_before_the_end_is_read_first() {
    for count in [1, 2, 4] {
        watched(|| {
            let (mut here, mut there) = pair(V4, count, None);
            let total = 3 * STRIPE + 77;
            write_all(&mut *here.tx, &bytes(2, 0, total));
            drop(here);
            take_randomly(&mut *there.rx, 2, total, 50_000);
            let end = Broken { rank: 0, why: "the other end closed the connection".to_owned() };
            assert_eq!(end_of(&mut *there.rx), end);
            assert_eq!(there.rx.peek(1).expect_err("the end"), end);
            assert_eq!(end_of_writing(&mut *there.tx), end, "both halves say the same");
        });
    }
}

#[test]
fn a_read_for_more_than_is_left_gets_the_rest() {
    watched(|| {
        let (mut here, mut there) = pair(V4, 1, None);
        assert_eq!(here.tx.write(b"ten bytes!", &[], &[]), Ok(10));
        peek_all(&mut *there.rx, 10); // so that some of what is read has been staged
        drop(here);
        assert!(ready(there.rx.fd().expect("a socket"), PollFlags::RDHUP, LONG), "the end has arrived");
        let room = [0; 64].map(Cell::new);
        assert_eq!(there.rx.read(&room), Ok(10));
        check_text(&room[..10], b"ten bytes!");
        assert_eq!(there.rx.read(&room).expect_err("nothing more comes").rank, 0);
    });
}

fn check_text(seen: &[Cell<u8>], text: &[u8]) {
    assert_eq!(seen.iter().map(Cell::get).collect::<Vec<u8>>(), text);
}

#[test]
fn a_reset_breaks_both_halves_after_what_was_received() {
    watched(|| {
        let (here, there) = connections(V4, 1, None);
        let mut there = link(0, there);
        let sent: Vec<u8> = (0..1000).map(|at| byte(4, at)).collect();
        assert_eq!(send(&here[0], &sent, SendFlags::empty()), Ok(1000));
        peek_all(&mut *there.rx, 10);
        assert_eq!(there.tx.write(b"never read", &[], &[]), Ok(10));
        assert!(ready(here[0].as_fd(), PollFlags::IN, LONG));
        drop(here); // with bytes that nobody has read, as when a process dies: the kernel resets the connection
        take_randomly(&mut *there.rx, 4, 1000, 300);
        let end = end_of(&mut *there.rx);
        assert!(end.rank == 0 && end.why.contains("reset"), "{end:?}");
        assert_eq!(end_of_writing(&mut *there.tx), end, "both halves say the same");
    });
}

#[test]
fn one_direction_can_end_alone() {
    watched(|| {
        let (here, mut there) = pair(V4, 2, None);
        let Link { tx, mut rx } = here;
        drop(tx);
        end_of(&mut *there.rx);
        write_all(&mut *there.tx, &bytes(6, 0, 400_000));
        take_randomly(&mut *rx, 6, 400_000, 10_000);
    });
}

#[test]
fn more_than_two_gibibytes_in_one_call() {
    const TOTAL: usize = (2 << 30) + 123_457;
    watched(|| {
        let (mut here, mut there) = pair(V4, 2, None);
        thread::scope(|threads| {
            threads.spawn(|| {
                let mut zeros = vec![0; TOTAL]; // untouched pages cost nothing
                for at in [0, (1 << 31) - 1, 1 << 31, TOTAL - 1] {
                    zeros[at] = byte(8, at) | 1;
                }
                write_all(&mut *here.tx, Cell::from_mut(&mut zeros[..]).as_slice_of_cells());
            });
            let room = vec![Cell::new(0); 1 << 20];
            let (mut at, mut marks) = (0, Vec::new());
            while at < TOTAL {
                let n = there.rx.read(&room[..room.len().min(TOTAL - at)]).expect("received");
                for (i, cell) in room[..n].iter().enumerate().filter(|(_, cell)| cell.get() != 0) {
                    marks.push((at + i, cell.get()));
                }
                at += n;
            }
            let expected = [0, (1 << 31) - 1, 1 << 31, TOTAL - 1].map(|at| (at, byte(8, at) | 1));
            assert_eq!(marks, expected);
        });
    });
}
