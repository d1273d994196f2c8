//! Rank 0 dies in the middle of a sentence: some have heard what it said about another rank, and some never will. All survivors
//! say the same nevertheless. The tests play rank 0, and tell whom they like; the others are control threads which meet over the
//! loopback interface.

mod job;
mod watchdog;

use std::thread;
use std::time::Duration;

use arx::admission::{Framed, GroupId, Writer};
use arx::error::Rank;
use arx::health::{Contacts, Control, Group, Kind, Report, State, Verdict};
use arx::wait::Plain;

use job::{eventually, gather, planned, verdict};
use watchdog::watched;

/// A job of which the ranks of `absent` are not at work: what each of those has, and the control of every other one.
fn job(world: u32, absent: &[Rank]) -> (Vec<Contacts>, Vec<Control>) {
    let (listening, plan) = planned(world);
    let met = gather(listening, &plan, |_, _| Ok(()));
    let all: Vec<Contacts> = met.into_iter().map(|m| m.expect("all are there").contacts).collect();
    let (still, at_work): (Vec<_>, Vec<_>) = all.into_iter().partition(|contacts| absent.contains(&contacts.me));
    (still, at_work.into_iter().map(|contacts| Control::start(contacts, |_| ()).expect("a thread")).collect())
}

/// The verdict that all have, which must be one.
fn common(controls: &[Control]) -> Verdict {
    let all: Vec<Verdict> = controls.iter().map(verdict).collect();
    assert!(all.iter().all(|v| *v == all[0]), "{all:#?}");
    all[0].clone()
}

/// The line of rank 0 to another rank.
fn line(zero: &mut Contacts, rank: Rank) -> &mut Framed {
    let line = zero.lines.iter_mut().find(|(other, _)| *other == rank);
    &mut line.expect("rank 0 has one to everybody").1
}

/// What rank 0 says when ranks are lost, in the bytes in which it does.
fn obituary(lost: &[Rank]) -> Vec<u8> {
    Writer::new(25).byte(Kind::Lost as u8).ranks(lost).text(&format!("{lost:?} lost")).done()
}

/// And when it leaves after so many calls.
fn farewell(completed: u64) -> Vec<u8> {
    Writer::new(20).word(0).byte(State::Finished as u8).long(completed).done()
}

/// Every choice of some of `ranks`, or none.
fn choices(ranks: &[Rank]) -> impl Iterator<Item = Vec<Rank>> {
    (0..1 << ranks.len())
        .map(move |bits: u32| (0..).zip(ranks).filter(|(k, _)| bits >> k & 1 == 1).map(|(_, r)| *r).collect())
}

fn says(verdict: &Verdict, lost: &[Rank]) {
    assert_eq!((verdict.kind, &verdict.ranks[..]), (Kind::Lost, lost), "{}", verdict.text);
}

#[test]
fn what_rank_0_told_some_all_say() {
    watched(|| {
        // Rank 3 is gone, and in the end rank 0; the heir is rank 1, or rank 2 if that is gone, too.
        for gone in [&[0, 3][..], &[0, 1, 3]] {
            let left: Vec<Rank> = (1..6).filter(|rank| !gone.contains(rank)).collect();
            for told in choices(&left) {
                let (mut dead, all) = job(6, gone);
                dead.drain(1..);
                let mut zero = dead.remove(0);
                told.iter().for_each(|rank| line(&mut zero, *rank).send(&obituary(&[3])));
                drop(zero);
                let lost: &[Rank] = if told.is_empty() { &[0] } else { &[3] };
                says(&common(&all), lost);
            }
        }
    });
}

#[test]
fn an_heir_who_is_stopped_keeps_nobody_for_long() {
    watched(|| {
        for told in choices(&[2, 3, 4]) {
            // Rank 1 is there, but its thread does not run.
            let (mut still, all) = job(5, &[0, 1]);
            let mut zero = still.remove(0);
            told.iter().for_each(|rank| line(&mut zero, *rank).send(&obituary(&[1])));
            drop(zero);
            let lost: &[Rank] = if told.is_empty() { &[0] } else { &[1] };
            says(&common(&all), lost);
        }
    });
}

#[test]
fn calls_that_wait_for_rank_0s_verdict_wait_for_what_the_others_know() {
    watched(|| {
        let (mut still, all) = job(5, &[0, 4]);
        let (mut zero, broken) = (still.remove(0), || Report::Broken { sequence: 3, rank: 4, why: "reset".into() });
        thread::scope(|scope| {
            let settled: Vec<_> = all
                .iter()
                .map(|control| scope.spawn(move || control.settle(broken(), &mut Plain).expect("nobody interrupts")))
                .collect();
            thread::sleep(Duration::from_millis(20));
            line(&mut zero, 3).send(&obituary(&[4]));
            drop(zero);
            for verdict in settled {
                says(&verdict.join().expect("no panic"), &[4]);
            }
        });
    });
}

#[test]
fn groups_without_the_first_to_die_hear_of_rank_0() {
    watched(|| {
        let (mut still, all) = job(5, &[0, 3]);
        let mut zero = still.remove(0);
        let group = |list, ranks: &[Rank]| Group {
            id: GroupId { list, number: 0 },
            ranks: ranks.into(),
            name: format!("of {ranks:?}").into(),
        };
        // Controls by place: ranks 1, 2 and 4.
        let with_both = [0, 2].map(|k| all[k].of_group(&group(1, &[0, 1, 3, 4])));
        let with_zero = [0, 1].map(|k| all[k].of_group(&group(2, &[2, 1, 0])));
        let with_none = [1, 2].map(|k| all[k].of_group(&group(3, &[2, 4])));
        line(&mut zero, 2).send(&obituary(&[3]));
        drop(zero);
        says(&common(&all), &[3]);
        says(&common(&with_both), &[3]);
        says(&common(&with_zero), &[0]);
        assert!(with_none.iter().all(|control| control.verdict().is_none() && !control.broken(1)));
    });
}

#[test]
fn if_some_have_heard_that_rank_0_left_nobody_calls_it_lost() {
    watched(|| {
        for told in choices(&[1, 2, 3]).filter(|told| !told.is_empty()) {
            let (mut still, all) = job(4, &[0]);
            let mut zero = still.remove(0);
            told.iter().for_each(|rank| line(&mut zero, *rank).send(&farewell(7)));
            drop(zero);
            for control in &all {
                eventually("the departure", || control.has_left(0));
                assert!(control.broken(8) && !control.broken(7));
            }
            let stuck = Report::Stuck { sequence: 8, call: "barrier()".into() };
            let verdicts = all.iter().map(|c| c.settle(stuck.clone(), &mut Plain).expect("nobody interrupts"));
            assert!(verdicts.into_iter().all(|v| (v.kind, &v.ranks[..]) == (Kind::Finished, &[0][..])));
        }
    });
}

#[test]
fn who_leaves_with_a_verdict_waits_until_all_have_been_told_or_tells_them() {
    watched(|| {
        let (mut still, mut all) = job(5, &[0, 3]);
        let (mut zero, two) = (still.remove(0), all.remove(1));
        line(&mut zero, 2).send(&obituary(&[3]));
        says(&verdict(&two), &[3]);
        two.leave(State::Raised);
        thread::scope(|scope| {
            scope.spawn(move || drop(two));
            eventually("the departure", || matches!(line(&mut zero, 2).receive(), Ok(Some(_))));
            // It has not come back, so rank 2 is still there when rank 0 dies.
            drop(zero);
        });
        says(&common(&all), &[3]);
    });
}

#[test]
fn a_rank_may_leave_in_the_middle_of_it() {
    watched(|| {
        // Rank 1 does not answer, so that the others are not done at once.
        let (mut still, mut all) = job(5, &[0, 1]);
        drop(still.remove(0));
        drop(all.remove(0));
        says(&common(&all), &[0]);
    });
}
