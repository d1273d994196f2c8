//! The post office, whose letters stay where they are until they have been read there: by a sight that the test gives, which keeps
//! what was offered, and may stop to see.

mod office;

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use arx::error::Rank;
use arx::kernels::{Bytes, copy};
use arx::post::{Failure, Office, Sight, Status};
use office::{Arrays, Dice, Manner, Person, everybody_writes, letter, settle, world};

/// What has been offered, by place, and how many more readings succeed.
#[derive(Default)]
struct Lens {
    offered: Mutex<HashMap<u64, Vec<u8>>>,
    readings: AtomicUsize,
}

struct Eye {
    lens: Arc<Lens>,
    least: usize,
}

impl Sight for Eye {
    fn place(&self, array: Bytes<'_>) -> Option<u64> {
        let mut offered = self.lens.offered.lock().expect("nobody panics with it");
        let place = 1000 * (1 + offered.len() as u64);
        (array.len() >= self.least).then(|| {
            offered.insert(place, array.iter().map(Cell::get).collect());
            place
        })
    }

    fn read(&mut self, place: u64, at: usize, dst: Bytes<'_>) -> bool {
        let offered = self.lens.offered.lock().expect("nobody panics with it");
        let left = self.lens.readings.load(Ordering::Relaxed);
        self.lens.readings.store(left.saturating_sub(1), Ordering::Relaxed);
        let from: Vec<Cell<u8>> = offered[&place][at..][..dst.len()].iter().copied().map(Cell::new).collect();
        // Who is refused in the middle has read something, which must not stay.
        copy(dst, &from);
        if left == 0 {
            dst.iter().for_each(|byte| byte.set(0x5a));
        }
        left > 0
    }
}

/// All see each other; letters from `least` bytes on stay where they are, as long as there are `readings` left.
fn seeing(size: u32, capacity: usize, least: usize, readings: usize) -> (Vec<Person>, Arc<Lens>) {
    let lens = Arc::new(Lens { readings: AtomicUsize::new(readings), ..Lens::default() });
    let mut all = world(size, capacity);
    for me in 0..size {
        for peer in (0..size).filter(|peer| *peer != me) {
            all[me as usize].office.see(peer, Some(Box::new(Eye { lens: Arc::clone(&lens), least })));
        }
    }
    (all, lens)
}

const EVER: usize = usize::MAX;

/// Longer than three pieces, and than the sign that a reader gives.
const LONG: usize = (17 << 20) + 5;

fn sent(peer: Rank, tag: u32, len: usize) -> Option<Result<Status, Failure>> {
    Some(Ok(Status { peer, tag, len }))
}

#[test]
fn letters_arrive_in_order_wherever_they_are_read() {
    for size in 1..=9 {
        for (k, manner) in [Manner::Exact, Manner::AnySource, Manner::AnyTag, Manner::Any].into_iter().enumerate() {
            for (j, (least, readings)) in
                [(1, EVER), (64, EVER), (1000, EVER), (16, 0), (16, 9)].into_iter().enumerate()
            {
                for capacity in [64, 80, 1000] {
                    let (mut all, _) = seeing(size, capacity, least, readings);
                    everybody_writes(&mut all, manner, (j * 4 + k) as u64 * 89 + u64::from(size) + capacity as u64);
                }
            }
        }
    }
}

#[test]
fn two_who_offer_each_other_much_before_they_ask_both_get_on() {
    for readings in [EVER, 3, 0] {
        let (mut all, _) = seeing(2, 64, 100, readings);
        let texts = [0, 1].map(|from| letter(from, 3, 0, LONG));
        let sends = [0, 1].map(|me: usize| all[me].send(1 - me as Rank, 3, &texts[me]));
        settle(&mut all, &mut Dice(1));
        for me in [0, 1] {
            assert_eq!(all[me].test(sends[me]), sent(1 - me as Rank, 3, LONG), "though nobody has asked");
            let ticket = all[me].recv(None, None, LONG);
            all[me].progress();
            assert_eq!(all[me].test(ticket), sent(1 - me as Rank, 3, LONG));
            assert!(all[me].read(ticket) == texts[1 - me]);
        }
    }
}

#[test]
fn a_letter_that_is_asked_for_while_it_is_read_goes_on_where_it_belongs() {
    for (before, readings) in (0..30).flat_map(|before| [EVER, 2, 0].map(|readings| (before, readings))) {
        let (mut all, _) = seeing(2, 64, 100, readings);
        let text = letter(0, 1, 0, 3 << 20);
        let give = all[0].send(1, 1, &text);
        let mut dice = Dice(before);
        for _ in 0..before {
            all[dice.below(2)].progress();
        }
        let ticket = all[1].recv(Some(0), Some(1), 3 << 20);
        settle(&mut all, &mut dice);
        assert_eq!(all[0].test(give), sent(1, 1, 3 << 20));
        assert_eq!(all[1].test(ticket), sent(0, 1, 3 << 20));
        assert!(all[1].read(ticket) == text, "{before} {readings}");
    }
}

#[test]
fn who_has_its_letter_has_said_so() {
    // Its own letter is in the middle of a pipe that is full: the answer has to wait, and so has who asked.
    let (mut all, _) = seeing(2, 64, 3000, EVER);
    let texts = [letter(0, 1, 0, 5000), letter(1, 1, 0, 1000)];
    all[1].send(0, 1, &texts[1]);
    all[1].progress();
    let give = all[0].send(1, 1, &texts[0]);
    let asked = all[1].recv(Some(0), Some(1), 5000);
    all[0].progress();
    for _ in 0..10 {
        all[1].progress();
    }
    assert_eq!(all[1].test(asked), None, "nobody goes away as long as somebody waits for a word");
    let ticket = all[0].recv(Some(1), Some(1), 1000);
    settle(&mut all, &mut Dice(7));
    assert_eq!(all[0].test(give), sent(1, 1, 5000));
    assert_eq!(all[1].test(asked), sent(0, 1, 5000));
    assert_eq!(all[1].read(asked), texts[0]);
    assert_eq!(all[0].read(ticket), texts[1]);
}

#[test]
fn a_letter_that_is_too_long_is_dropped_and_the_next_one_is_not() {
    for (early, room) in [false, true].into_iter().flat_map(|early| [0, 10, (1 << 20) + 1].map(|room| (early, room))) {
        let (mut all, _) = seeing(3, 64, 100, EVER);
        let texts = [letter(2, 5, 0, 3 << 20), letter(2, 5, 1, 200)];
        let mut dice = Dice(room as u64);
        let ask = |all: &mut Vec<Person>| [room, 200].map(|room| all[0].recv(Some(2), Some(5), room));
        let asked = if early { None } else { Some(ask(&mut all)) };
        let gives = [0, 1].map(|k: usize| all[2].send(0, 5, &texts[k]));
        settle(&mut all, &mut dice);
        let [first, second] = asked.unwrap_or_else(|| ask(&mut all));
        settle(&mut all, &mut dice);
        assert_eq!(all[0].test(first), Some(Err(Failure::TooLong(Status { peer: 2, tag: 5, len: 3 << 20 }))));
        assert_eq!(all[0].test(second), sent(2, 5, 200));
        assert_eq!(all[0].read(second), texts[1]);
        assert_eq!(
            gives.map(|give| all[2].test(give)),
            [sent(0, 5, 3 << 20), sent(0, 5, 200)],
            "its sender hears nothing of it"
        );
    }
}

#[test]
fn after_one_refusal_nothing_is_offered_to_that_rank_any_more() {
    let (mut all, lens) = seeing(3, 256, 100, 0);
    for number in 0..3 {
        for to in [1, 2] {
            let text = letter(0, to, number, 500);
            let give = all[0].send(to, to, &text);
            let asked = all[to as usize].recv(Some(0), None, 500);
            settle(&mut all, &mut Dice(number as u64));
            assert_eq!(all[0].test(give), sent(to, to, 500));
            assert_eq!(all[to as usize].test(asked), sent(0, to, 500));
            assert_eq!(all[to as usize].read(asked), text);
        }
        lens.readings.store(EVER, Ordering::Relaxed);
    }
    assert_eq!(lens.offered.lock().expect("nobody panics with it").len(), 2, "one to each");
}

#[test]
fn what_is_withdrawn_while_it_is_read_is_not_delivered() {
    for (steps, early) in (0..8).flat_map(|steps| [false, true].map(|early| (steps, early))) {
        let (mut all, lens) = seeing(2, 64, 100, EVER);
        let text = letter(0, 1, 0, 4 << 20);
        let give = all[0].send(1, 1, &text);
        let asked = (!early).then(|| all[1].recv(Some(0), None, 4 << 20));
        all[0].progress();
        for _ in 0..steps {
            all[1].progress();
        }
        let taken = steps > 0 && {
            all[0].progress();
            all[0].office.is_done(give)
        };
        all[0].office.withdraw();
        // Its owner uses the array for something else.
        lens.offered.lock().expect("nobody panics with it").values_mut().for_each(|bytes| bytes.fill(0xbb));
        while all[1].progress() {}
        let asked = asked.unwrap_or_else(|| all[1].recv(Some(0), None, 4 << 20));
        all[1].progress();
        match all[1].test(asked) {
            Some(Ok(_)) => assert!(taken && all[1].read(asked) == text, "{steps} {early}"),
            Some(Err(Failure::Broken(broken))) => assert!(!taken && broken.rank == 0, "{steps} {early}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_offer_to_who_leaves_fails_and_so_does_one_of_who_has_left() {
    let (mut all, _) = seeing(2, 64, 100, EVER);
    let give = all[0].send(1, 1, &letter(0, 1, 0, 500));
    all[0].progress();
    drop(std::mem::replace(&mut all[1], Person { office: Office::new(1, 2), arrays: Arrays::default() }));
    all[0].progress();
    assert!(matches!(all[0].test(give), Some(Err(Failure::Broken(broken))) if broken.rank == 1));

    let (mut all, _) = seeing(2, 64, 100, EVER);
    all[1].send(0, 1, &letter(1, 1, 0, 500));
    all[1].progress();
    let asked = all[0].recv(Some(1), None, 500);
    drop(std::mem::replace(&mut all[1], Person { office: Office::new(1, 2), arrays: Arrays::default() }));
    all[0].progress();
    assert!(matches!(all[0].test(asked), Some(Err(Failure::Broken(broken))) if broken.rank == 1));
}
