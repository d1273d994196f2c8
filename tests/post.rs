//! The post office, whose letters go through pipes.

mod office;

use std::sync::Arc;

use arx::error::Rank;
use arx::post::{Failure, Office, Status};
use arx::transport::mem;
use arx::wait::Bell;
use office::{Arrays, Dice, Manner, Person, connect, everybody_writes, letter, settle, world};

#[test]
fn letters_arrive_in_order_however_they_are_asked_for() {
    for size in 1..=9 {
        for (k, manner) in [Manner::Exact, Manner::AnySource, Manner::AnyTag, Manner::Any].into_iter().enumerate() {
            for (seed, capacity) in [64, 80, 1000, 1 << 20].into_iter().enumerate() {
                let seed = (seed * 4 + k) as u64 * 97 + u64::from(size);
                everybody_writes(&mut world(size, capacity), manner, seed);
            }
        }
    }
}

#[test]
fn what_is_done_is_asked_for_by_many_or_by_one_and_what_is_unmet_may_be_taken_back() {
    let mut all = world(2, 64);
    let asked = [0, 1, 2].map(|tag| all[1].recv(Some(0), Some(tag), 10));
    assert!(asked.iter().all(|ticket| all[1].office.is_unmet(*ticket)));
    let sent = [0, 1].map(|tag| all[0].send(1, tag, &letter(0, tag, 0, 10)));
    settle(&mut all, &mut Dice(5));
    assert_eq!(asked.map(|ticket| all[1].office.is_unmet(ticket)), [false, false, true]);
    let status = |peer, tag| Ok(Status { peer, tag, len: 10 });
    assert_eq!(all[1].office.take_done(|ticket| ticket == asked[1]), [(asked[1], status(0, 1))]);
    assert_eq!(all[1].office.take_done(|ticket| ticket == asked[1]), []);
    assert_eq!(all[1].test(asked[0]), Some(status(0, 0)), "the others stay");
    assert_eq!(all[0].office.take_done(|_| true).len(), sent.len());
    all[1].office.cancel(asked[2]);
    all[0].send(1, 2, &letter(0, 2, 0, 10));
    settle(&mut all, &mut Dice(6));
    assert_eq!(all[1].test(asked[2]), None);
    let again = all[1].recv(None, None, 10);
    all[1].progress();
    assert_eq!(all[1].test(again), Some(status(0, 2)), "it was kept for who asks next");
}

#[test]
fn two_who_send_much_before_they_ask_both_get_on() {
    let mut all = world(2, 64);
    let texts = [0, 1].map(|from| letter(from, 3, 0, 100_000));
    let sends = [0, 1].map(|me: usize| all[me].send(1 - me as Rank, 3, &texts[me]));
    settle(&mut all, &mut Dice(1));
    for me in [0, 1] {
        let sent = Status { peer: 1 - me as Rank, tag: 3, len: 100_000 };
        assert_eq!(all[me].test(sends[me]), Some(Ok(sent)), "though nobody has asked");
        let ticket = all[me].recv(None, None, 100_000);
        all[me].progress();
        assert_eq!(all[me].test(ticket), Some(Ok(sent)));
        assert_eq!(all[me].read(ticket), texts[1 - me]);
    }
}

#[test]
fn a_letter_that_is_asked_for_while_it_comes_in_goes_on_where_it_belongs() {
    for before in 1..40 {
        let mut all = world(2, 64);
        let text = letter(0, 1, 0, 1000);
        all[0].send(1, 1, &text);
        for _ in 0..before {
            all[0].progress();
            all[1].progress();
        }
        let ticket = all[1].recv(Some(0), Some(1), 1000);
        settle(&mut all, &mut Dice(before));
        assert_eq!(all[1].test(ticket), Some(Ok(Status { peer: 0, tag: 1, len: 1000 })));
        assert_eq!(all[1].read(ticket), text);
    }
}

#[test]
fn a_letter_that_is_too_long_is_dropped_and_the_next_one_is_not() {
    for (early, len) in [false, true].into_iter().flat_map(|early| [11, 16, 100, 3000].map(|len| (early, len))) {
        let mut all = world(3, 64);
        let texts = [letter(2, 5, 0, len), letter(2, 5, 1, 10)];
        let mut dice = Dice(len as u64);
        let ask = |all: &mut Vec<Person>| [0, 1].map(|_| all[0].recv(Some(2), Some(5), 10));
        let asked = if early { None } else { Some(ask(&mut all)) };
        for text in &texts {
            all[2].send(0, 5, text);
        }
        settle(&mut all, &mut dice);
        let [first, second] = asked.unwrap_or_else(|| ask(&mut all));
        settle(&mut all, &mut dice);
        assert_eq!(all[0].test(first), Some(Err(Failure::TooLong(Status { peer: 2, tag: 5, len }))));
        assert_eq!(all[0].test(second), Some(Ok(Status { peer: 2, tag: 5, len: 10 })));
        assert_eq!(all[0].read(second), texts[1]);
    }
}

#[test]
fn nobody_is_kept_waiting_by_a_talkative_neighbour() {
    let mut all = world(4, 64);
    for number in 0..100 {
        for from in 1..4 {
            let text = letter(from, 0, number, 40);
            all[from as usize].send(0, 0, &text);
        }
    }
    let mut seen = [0; 4];
    for _ in 0..90 {
        let ticket = all[0].recv(None, None, 40);
        let status = loop {
            for person in &mut all {
                person.progress();
            }
            if let Some(outcome) = all[0].test(ticket) {
                break outcome.expect("well");
            }
        };
        seen[status.peer as usize] += 1;
    }
    assert!(seen[1..].iter().all(|n| (25..=35).contains(n)), "{seen:?}");
}

#[test]
fn what_was_sent_before_the_way_was_closed_arrives_and_then_nobody_waits() {
    let mut all = world(3, 1 << 10);
    all[1].send(0, 1, b"the last words");
    all[1].progress();
    let (anybody, of_1) = (all[0].recv(None, Some(9), 20), all[0].recv(Some(1), Some(9), 20));
    all[0].progress();
    drop(std::mem::replace(&mut all[1], Person { office: Office::new(1, 3), arrays: Arrays::default() }));
    all[0].progress();
    assert!(matches!(all[0].test(of_1), Some(Err(Failure::Broken(broken))) if broken.rank == 1));
    assert_eq!(all[0].test(anybody), None, "rank 2 may yet send it");
    let kept = all[0].recv(None, None, 20);
    all[0].progress();
    assert_eq!(all[0].test(kept), Some(Ok(Status { peer: 1, tag: 1, len: 14 })));
    drop(all.pop());
    all[0].progress();
    assert!(matches!(all[0].test(anybody), Some(Err(Failure::Broken(_)))));
    let late = all[0].recv(Some(2), None, 20);
    let sent = all[0].send(1, 0, b"to nobody");
    all[0].progress();
    assert!(matches!(all[0].test(late), Some(Err(Failure::Broken(broken))) if broken.rank == 2));
    assert!(matches!(all[0].test(sent), Some(Err(Failure::Broken(broken))) if broken.rank == 1));
}

#[test]
fn a_way_that_breaks_in_the_middle_of_a_letter_fails_that_letter() {
    for early in [false, true] {
        let mut all = world(2, 64);
        all[1].send(0, 1, &[7; 500]);
        let asked = (!early).then(|| all[0].recv(Some(1), None, 500));
        for _ in 0..3 {
            all[1].progress();
            all[0].progress();
        }
        drop(all.pop());
        while all[0].progress() {}
        let asked = asked.unwrap_or_else(|| all[0].recv(Some(1), None, 500));
        all[0].progress();
        assert!(matches!(all[0].test(asked), Some(Err(Failure::Broken(_)))), "{early}");
    }
}

#[test]
fn what_is_no_letter_closes_the_way() {
    let bell = Arc::new(Bell::default());
    let (here, there) = mem::pair([0, 1], 1 << 10, &bell);
    let mut person = Person { office: Office::new(0, 2), arrays: Arrays::default() };
    connect(&mut person, 1, here);
    let mut tx = there.tx;
    tx.write(b"GET / HTTP/1.1\r\n", &[], &[]).expect("room");
    let asked = person.recv(Some(1), None, 100);
    person.progress();
    assert!(matches!(person.test(asked), Some(Err(Failure::Broken(broken))) if broken.why.contains("stamp")));
}

#[test]
fn letters_to_oneself_need_no_way() {
    let mut all = world(1, 64);
    let me = &mut all[0];
    let early = me.recv(Some(0), Some(2), 10);
    me.progress();
    let [first, second] = [(2, b"two"), (1, b"one")].map(|(tag, text)| me.send(0, tag, text));
    let late = me.recv(None, None, 10);
    me.progress();
    for ticket in [first, second] {
        assert!(matches!(me.test(ticket), Some(Ok(Status { peer: 0, len: 3, .. }))));
    }
    assert_eq!(me.test(early), Some(Ok(Status { peer: 0, tag: 2, len: 3 })));
    assert_eq!(me.test(late), Some(Ok(Status { peer: 0, tag: 1, len: 3 })));
    assert_eq!((&me.read(early)[..3], &me.read(late)[..3]), (&b"two"[..], &b"one"[..]));
}

#[test]
fn a_request_that_is_taken_back_gets_nothing() {
    let mut all = world(2, 64);
    let [first, second] = [0, 1].map(|_| all[1].recv(Some(0), None, 10));
    all[1].progress();
    all[1].office.cancel(first);
    all[0].send(1, 0, b"a letter");
    settle(&mut all, &mut Dice(3));
    assert_eq!(all[1].test(first), None);
    assert!(matches!(all[1].test(second), Some(Ok(Status { len: 8, .. }))));
}
