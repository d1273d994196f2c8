//! The control plane with several groups: what concerns one concerns no other, except who is lost. Ranks are threads' worth of
//! control threads, which meet over the loopback interface.

mod job;
mod watchdog;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use arx::admission::GroupId;
use arx::error::Rank;
use arx::health::{Control, Group, Kind, Report, State};
use arx::wait::Plain;

use job::{LONG, eventually, gather, planned, verdict};
use watchdog::watched;

fn controls(world: u32) -> Vec<Control> {
    let (listening, plan) = planned(world);
    let met = gather(listening, &plan, |_, _| Ok(()));
    met.into_iter().map(|m| Control::start(m.expect("all are there").contacts, |_| ()).expect("a thread")).collect()
}

fn group(number: u64, ranks: &[Rank]) -> Group {
    let list = ranks.iter().fold(7, |hash, rank| hash * 31 + u64::from(*rank));
    Group { id: GroupId { list, number }, ranks: ranks.into(), name: format!("of {ranks:?}").into() }
}

/// What the members of a group have, in its order.
fn members(all: &[Control], group: &Group) -> Vec<Control> {
    group.ranks.iter().map(|rank| all[*rank as usize].of_group(group)).collect()
}

fn timed_out(sequence: u64) -> Report {
    let waited = Duration::from_secs(3);
    Report::TimedOut { sequence, call: "barrier()".into(), waited, awaited: Vec::new() }
}

#[test]
fn what_fails_in_a_group_closes_that_one_whether_or_not_rank_0_is_in_it() {
    watched(|| {
        for ranks in [&[3, 1][..], &[0, 2], &[4, 0, 1]] {
            let all = controls(5);
            let (broken, whole) = (members(&all, &group(0, ranks)), members(&all, &group(1, ranks)));
            broken[0].begun(4);
            let found = broken[0].settle(timed_out(4), &mut Plain).expect("nobody interrupts");
            assert_eq!((found.kind, &found.ranks[..]), (Kind::TimedOut, &ranks[1..]));
            assert!(found.text.contains(&format!("in call #4 of group 'of {ranks:?}' barrier()")), "{}", found.text);
            assert!(broken.iter().all(|member| verdict(member) == found));
            assert!(whole.iter().chain(&all).all(|control| control.verdict().is_none()));
        }
    });
}

#[test]
fn who_leaves_a_group_is_missed_there_and_nowhere_else() {
    watched(|| {
        let all = controls(4);
        let (pair, trio) = (group(0, &[2, 3]), group(0, &[1, 2, 3]));
        let (mut of_pair, of_trio) = (members(&all, &pair), members(&all, &trio));
        of_pair[0].completed(5);
        drop(of_pair.remove(0));
        eventually("the news", || of_pair[0].broken(6));
        assert!(of_pair[0].has_left(2) && !of_pair[0].broken(5));
        assert!(!of_trio[2].broken(1) && !all[3].broken(1));

        // The job: every group of which it is a member.
        all[2].leave(State::Finished);
        eventually("the news", || of_trio[0].has_left(2) && of_trio[2].has_left(2));
        assert!(of_trio[0].broken(1));
        assert!(all[1].of_group(&group(9, &[2, 1])).broken(1), "made afterwards");
        assert!(!all[1].of_group(&group(0, &[3, 1])).broken(1));
    });
}

#[test]
fn who_is_lost_is_lost_to_all_its_groups_one_after_the_other() {
    watched(|| {
        let mut all: Vec<Option<Control>> = controls(5).into_iter().map(Some).collect();
        let of = |all: &[Option<Control>], group: &Group, rank: usize| all[rank].as_ref().map(|c| c.of_group(group));
        let groups = [group(0, &[1, 2]), group(0, &[1, 3]), group(0, &[1, 4])];
        let seats: Vec<Control> = groups.iter().filter_map(|group| of(&all, group, 1)).collect();
        for (k, dead) in [2, 3].into_iter().enumerate() {
            all[dead] = None;
            let lost = verdict(&seats[k]);
            assert_eq!((lost.kind, &lost.ranks[..]), (Kind::Lost, &[dead as Rank][..]));
        }
        assert!(seats[2].verdict().is_none());
        let late = of(&all, &group(1, &[1, 3]), 1).expect("rank 1 is there");
        assert_eq!(verdict(&late), verdict(&seats[1]), "made afterwards");
    });
}

/// Sends `mark` one way.
fn send(from: OwnedFd, to: OwnedFd, mark: u8) {
    let [mut from, mut to] = [from, to].map(TcpStream::from);
    from.write_all(&[mark; 9]).expect("a link");
    to.set_nonblocking(false).expect("a socket");
    let mut got = [0; 9]; // the end comes when the sender leaves its group
    to.read_exact(&mut got).expect("a link");
    assert_eq!(got, [mark; 9]);
}

#[test]
fn links_of_groups_are_never_taken_for_each_other() {
    watched(|| {
        let all = controls(3);
        // One after the other, of the same ranks; the second is called before its lower rank has made it.
        let [first, second] = [0, 1].map(|number| group(number, &[2, 1]));
        let until = || Instant::now() + LONG;
        let (high, low) = (all[2].of_group(&first), all[1].of_group(&first));
        let dialled = high.dial(1, 0, until(), &mut Plain).expect("it opens");
        let next = all[2].of_group(&second).dial(1, 0, until(), &mut Plain).expect("it opens");
        let of_all = all[2].dial(1, 0, until(), &mut Plain).expect("it opens");
        let take = |control: &Control| {
            let mut come = None;
            eventually("the link", || {
                come = come.take().or_else(|| control.take(2, 1));
                come.is_some()
            });
            come.and_then(|mut streams| streams.pop()).expect("one stream")
        };
        send(next, take(&all[1].of_group(&second)), 2);
        send(of_all, take(&all[1]), 0);
        send(dialled, take(&low), 1);
    });
}

#[test]
fn whoever_has_something_to_send_calls_and_is_turned_away_from_a_group_that_was_left() {
    watched(|| {
        let all = controls(2);
        let pair = group(0, &[0, 1]);
        let mut of_pair = members(&all, &pair);
        let until = || Instant::now() + LONG;
        for (from, to) in [(0_usize, 1_usize), (1, 0)] {
            for (k, pair) in [&all, &of_pair].into_iter().enumerate() {
                let before = pair[to].posts();
                let dialled =
                    pair[from].dial_post(to as Rank, until(), &mut Plain).expect("it opens").expect("nobody has left");
                eventually("the call", || pair[to].posts() > before);
                let mut posts = pair[to].take_posts();
                assert_eq!(posts.len(), 1, "of this group only");
                let (rank, socket) = posts.pop().expect("one");
                assert_eq!(rank as usize, from);
                send(dialled, socket, k as u8);
                assert!(pair[to].take_posts().is_empty());
            }
        }
        drop(of_pair.remove(0));
        let before = all[0].strangers();
        // None if the news that it has left was faster.
        if let Some(_late) = of_pair[0].dial_post(0, until(), &mut Plain).expect("proved") {
            eventually("it is turned away", || all[0].strangers() > before);
        }
    });
}
