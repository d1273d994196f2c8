//! What ranks of several hosts learn of each other once a job has formed: threads as ranks, over the loopback interface.

mod job;
mod watchdog;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use arx::admission::{Channel, Claim, Dial, Key, Missed, Network, dial};
use arx::error::{Error, Rank};
use arx::health::{Control, Kind, Report, State, Verdict};
use arx::wait::{Host, Plain};

use job::{LONG, Plan, eventually, gather, link, planned, run, strangers, verdict};
use watchdog::watched;

/// Forms a job of `world` ranks and starts their control threads.
fn controls(world: u32) -> (Vec<Control>, Plan) {
    let (listening, plan) = planned(world);
    let met = gather(listening, &plan, |_, _| Ok(()));
    let start = |m: arx::error::Result<arx::rendezvous::Met>| {
        Control::start(m.expect("all are there").contacts, |_| ()).expect("a thread")
    };
    (met.into_iter().map(start).collect(), plan)
}

/// The verdict that all have, which must be one.
fn common<'a>(controls: impl IntoIterator<Item = &'a Control>) -> Verdict {
    let all: Vec<Verdict> = controls.into_iter().map(verdict).collect();
    assert!(all.iter().all(|v| *v == all[0]), "{all:#?}");
    all[0].clone()
}

fn settle(control: &Control, report: Report) -> Verdict {
    control.settle(report, &mut Plain).expect("nobody interrupts")
}

fn stuck(sequence: u64) -> Report {
    Report::Stuck { sequence, call: "barrier()".into() }
}

/// As a process that is killed: without a word.
fn kill(controls: &mut Vec<Control>, rank: usize) {
    drop(controls.remove(rank));
}

#[test]
fn a_rank_that_dies_is_named_by_all() {
    watched(|| {
        for world in 2..=6 {
            for dead in 1..world {
                let (mut all, _) = controls(world);
                let named = all[0].members()[dead as usize].to_string();
                kill(&mut all, dead as usize);
                let verdict = common(&all);
                assert_eq!((verdict.kind, &verdict.ranks[..]), (Kind::Lost, &[dead][..]));
                assert!(
                    verdict.text.contains(&format!("rank {dead} lost")) && verdict.text.contains(&named),
                    "{}",
                    verdict.text
                );
                assert!(all.iter().all(|control| control.broken(1)));
                assert!(matches!(verdict.error(), Error::PeerLost { ranks, .. } if ranks == [dead]));
            }
        }
    });
}

#[test]
fn ranks_that_die_together_are_named_together() {
    watched(|| {
        let (mut all, _) = controls(5);
        let [two, four] = [all.remove(2), all.remove(3)];
        thread::scope(|scope| {
            scope.spawn(move || drop(two));
            scope.spawn(move || drop(four));
        });
        let verdict = common(&all);
        assert_eq!((verdict.kind, &verdict.ranks[..]), (Kind::Lost, &[2, 4][..]));
    });
}

#[test]
fn if_rank_0_dies_everybody_names_it() {
    watched(|| {
        let (mut all, _) = controls(4);
        kill(&mut all, 0);
        let verdict = common(&all);
        assert_eq!((verdict.kind, &verdict.ranks[..]), (Kind::Lost, &[0][..]));
        assert!(verdict.text.contains("rank 0 lost"), "{}", verdict.text);
    });
}

#[test]
fn who_leaves_breaks_only_calls_that_it_has_not_completed() {
    watched(|| {
        for leaver in 0..3_usize {
            let (all, _) = controls(3);
            for control in &all {
                control.begun(7);
                control.completed(7);
            }
            all[leaver].leave(State::Finished);
            let others: Vec<&Control> = (0..3).filter(|r| *r != leaver).map(|r| &all[r]).collect();
            for control in &others {
                eventually("the departure", || control.broken(8));
                assert!(!control.broken(7) && control.verdict().is_none());
            }
            let verdict = settle(others[1], stuck(8));
            assert_eq!(common(others), verdict);
            assert_eq!((verdict.kind, &verdict.ranks[..]), (Kind::Finished, &[leaver as Rank][..]));
            let text = format!("rank {leaver} finished after call #7 and will not take part in call #8 barrier()");
            assert!(verdict.text.contains(&text), "{}", verdict.text);
        }
    });
}

#[test]
fn all_may_finish_in_any_order_and_nobody_complains() {
    watched(|| {
        for first in 0..4 {
            let (all, _) = controls(4);
            all.iter().for_each(|control| control.completed(3));
            let mut left = Vec::new();
            for k in 0..4 {
                let control = &all[(first + k) % 4];
                control.leave(State::Finished);
                left.push(control);
            }
            for control in all.iter() {
                eventually("the departures", || control.broken(4));
                assert_eq!(control.verdict(), None);
                assert!(!control.broken(3));
            }
            let mut all = all;
            while !all.is_empty() {
                drop(all.remove(first % all.len()));
                assert!(all.iter().all(|control| control.verdict().is_none()));
            }
        }
    });
}

#[test]
fn an_exception_or_an_interrupt_is_told_as_such() {
    watched(|| {
        for (state, kind, says) in [
            (State::Raised, Kind::Raised, "left the group with an exception"),
            (State::Interrupted, Kind::Interrupted, "was interrupted"),
        ] {
            let (all, _) = controls(3);
            all[1].completed(4);
            all[1].leave(state);
            let verdict = settle(&all[2], stuck(5));
            assert_eq!(common([&all[0], &all[2]]), verdict);
            assert_eq!((verdict.kind, &verdict.ranks[..]), (kind, &[1][..]));
            assert!(verdict.text.contains(says), "{}", verdict.text);
        }
    });
}

fn timed_out(sequence: u64, awaited: &[Rank]) -> Report {
    let (call, waited) = ("all_reduce(op=sum)".into(), Duration::from_secs(5));
    Report::TimedOut { sequence, call, waited, awaited: awaited.to_vec() }
}

#[test]
fn a_time_out_names_those_who_have_not_come() {
    watched(|| {
        for reporter in [0, 1, 4] {
            let (all, _) = controls(5);
            for (rank, control) in all.iter().enumerate() {
                control.begun(6);
                control.completed(6);
                if ![2, 3].contains(&rank) {
                    control.begun(7);
                }
            }
            let verdict = settle(&all[reporter], timed_out(7, &[]));
            assert_eq!(common(&all), verdict);
            assert_eq!((verdict.kind, &verdict.ranks[..]), (Kind::TimedOut, &[2, 3][..]));
            let says = [
                format!("rank {reporter} waited 5.00 s in call #7 all_reduce(op=sum) for ranks 2 and 3"),
                "has not called it; the last call it completed is #6".into(),
            ];
            assert!(says.iter().all(|s| verdict.text.contains(s)), "{}", verdict.text);
        }
    });
}

#[test]
fn a_rank_that_waits_in_an_earlier_call_is_not_the_one() {
    watched(|| {
        let (all, _) = controls(4);
        for (rank, begun, completed) in [(0, 7, 6), (1, 6, 5), (2, 5, 5), (3, 7, 6)] {
            all[rank].begun(begun);
            all[rank].completed(completed);
        }
        let verdict = settle(&all[3], timed_out(7, &[1]));
        assert_eq!(common(&all), verdict);
        assert_eq!(verdict.ranks, [2]);
    });
}

#[test]
fn if_all_have_come_those_who_owe_data_are_named() {
    watched(|| {
        let (all, _) = controls(3);
        all.iter().for_each(|control| control.begun(1));
        let verdict = settle(&all[2], timed_out(1, &[1]));
        assert_eq!(common(&all), verdict);
        assert_eq!((verdict.kind, &verdict.ranks[..]), (Kind::TimedOut, &[1][..]));
        assert!(verdict.text.contains("arrived but stopped half-way"), "{}", verdict.text);
    });
}

#[test]
fn ranks_that_differ_all_read_what_each_called() {
    watched(|| {
        for reporter in 0..4 {
            let (all, _) = controls(4);
            let calls = ["barrier()", "broadcast(root=1)", "barrier()"];
            // Ranks 0 to 2 are in the call; rank 3 is not there yet.
            all[..3].iter().for_each(|control| control.begun(2));
            all[3].begun(1);
            let reporter: usize = reporter % 3;
            all[reporter].report(Report::Differs { sequence: 2, call: calls[reporter].into() });
            thread::scope(|scope| {
                for (control, call) in all[..3].iter().zip(calls) {
                    scope.spawn(move || {
                        eventually("a question or a verdict", || control.asked(2) || control.verdict().is_some());
                        assert!(!control.asked(2), "asked twice");
                        control.say(2, call);
                    });
                }
            });
            let verdict = common(&all);
            assert_eq!((verdict.kind, &verdict.ranks[..]), (Kind::Mismatch, &[1][..]));
            assert_eq!(
                verdict.text,
                "call #2 differs between ranks: ranks 0 and 2 called barrier(); rank 1 called broadcast(root=1); rank 3 did not \
                 call it yet. The group is closed"
            );
        }
    });
}

#[test]
fn a_refusal_is_everybodys_error_at_once() {
    watched(|| {
        for refuser in 0..3 {
            let (all, _) = controls(3);
            let reason = "x is read-only".to_owned();
            all[refuser].report(Report::Refused { sequence: 9, reason });
            let verdict = common(&all);
            assert_eq!((verdict.kind, &verdict.ranks[..]), (Kind::Mismatch, &[refuser as Rank][..]));
            assert!(
                verdict.text.contains(&format!("rank {refuser} could not take part (x is read-only)")),
                "{}",
                verdict.text
            );
        }
    });
}

#[test]
fn a_broken_link_is_explained_by_the_death_behind_it() {
    watched(|| {
        let (mut all, _) = controls(3);
        let two = all.remove(2);
        let broken = || Report::Broken { sequence: 3, rank: 2, why: "reset by peer".into() };
        thread::scope(|scope| {
            let settled = all.iter().map(|c| scope.spawn(move || settle(c, broken()))).collect::<Vec<_>>();
            thread::sleep(Duration::from_millis(50));
            drop(two);
            for verdict in settled {
                let verdict = verdict.join().expect("no panic");
                assert_eq!((verdict.kind, &verdict.ranks[..]), (Kind::Lost, &[2][..]));
            }
        });
    });
}

#[test]
fn a_broken_link_between_ranks_that_live_names_both() {
    watched(|| {
        let (all, _) = controls(4);
        let verdict = settle(&all[1], Report::Broken { sequence: 3, rank: 3, why: "reset by peer".into() });
        assert_eq!(common(&all), verdict);
        assert_eq!((verdict.kind, &verdict.ranks[..]), (Kind::Failed, &[1, 3][..]));
        assert!(verdict.text.contains("reset by peer"), "{}", verdict.text);
    });
}

#[test]
fn without_rank_0_each_says_what_it_knows() {
    watched(|| {
        let (mut all, _) = controls(3);
        all[0].completed(5);
        all[0].leave(State::Finished);
        kill(&mut all, 0);
        for control in &all {
            eventually("the departure", || control.broken(6));
            assert!(!control.broken(5));
        }
        let verdict = settle(&all[0], Report::Broken { sequence: 5, rank: 2, why: "reset by peer".into() });
        assert_eq!((verdict.kind, &verdict.ranks[..]), (Kind::Lost, &[2][..]));
        assert!(verdict.text.contains("rank 0") && verdict.text.contains("has left"), "{}", verdict.text);
        let verdict = settle(&all[1], stuck(6));
        assert_eq!((verdict.kind, &verdict.ranks[..]), (Kind::Finished, &[0][..]));
    });
}

#[test]
fn a_rank_0_that_does_not_answer_is_named() {
    watched(|| {
        let (listening, plan) = planned(3);
        let met = gather(listening, &plan, |_, _| Ok(()));
        let mut contacts: Vec<_> = met.into_iter().map(|m| m.expect("all are there").contacts).collect();
        // Rank 0 is there but stopped: its thread never runs.
        let _zero = contacts.remove(0);
        let all: Vec<Control> = contacts.into_iter().map(|c| Control::start(c, |_| ()).expect("a thread")).collect();
        let verdicts = run(0..2, |k| settle(&all[k as usize], timed_out(1, &[])));
        for verdict in verdicts {
            assert_eq!((verdict.kind, &verdict.ranks[..]), (Kind::TimedOut, &[0][..]));
            assert!(verdict.text.contains("does not answer"), "{}", verdict.text);
        }
    });
}

#[test]
fn the_first_verdict_stays() {
    watched(|| {
        let (mut all, _) = controls(4);
        let first = settle(&all[1], Report::Failed { text: "no more".into() });
        assert_eq!((first.kind, &first.ranks[..]), (Kind::Failed, &[1][..]));
        assert_eq!(common(&all), first);
        kill(&mut all, 3);
        assert_eq!(settle(&all[2], stuck(1)), first);
        assert_eq!(common(&all), first);
    });
}

struct Interrupted;

impl Host for Interrupted {
    fn aside(&mut self, wait: &mut dyn FnMut()) {
        wait();
    }
    fn interrupted(&mut self) -> bool {
        true
    }
}

#[test]
fn waiting_for_a_verdict_can_be_interrupted() {
    watched(|| {
        let (all, _) = controls(2);
        let outcome = all[1].settle(stuck(1), &mut Interrupted);
        assert!(matches!(outcome, Err(Error::Interrupted)), "{outcome:?}");
        let outcome = all[1].dial(0, 0, Instant::now() + LONG, &mut Interrupted);
        assert!(matches!(outcome, Err(Error::Interrupted)), "{outcome:?}");
    });
}

#[test]
fn whoever_sleeps_elsewhere_is_woken() {
    watched(|| {
        let (listening, plan) = planned(2);
        let raised = Arc::new(AtomicU64::new(0));
        let met = gather(listening, &plan, |_, _| Ok(()));
        let all: Vec<Control> = met
            .into_iter()
            .map(|m| {
                let raised = Arc::clone(&raised);
                let raise = move |_: &[(Rank, State)]| {
                    raised.fetch_add(1, Ordering::Relaxed);
                };
                Control::start(m.expect("all are there").contacts, raise).expect("a thread")
            })
            .collect();
        let readable = |control: &Control| {
            let mut fds = [rustix::event::PollFd::from_borrowed_fd(control.alert_fd(), rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 }))
                .expect("a descriptor")
                == 1
        };
        assert!(!all.iter().any(readable));
        all[1].leave(State::Finished);
        eventually("the alert", || readable(&all[0]));
        eventually("the alarm", || raised.load(Ordering::Relaxed) == 1);
        all[0].calm();
        assert!(!readable(&all[0]) && !readable(&all[1]));
    });
}

/// Sends both ways over a link whose ends are `low` and `high`.
fn exchange(low: OwnedFd, high: OwnedFd, mark: u8) {
    let mut ends = [low, high].map(|end| {
        let stream = TcpStream::from(end);
        assert!(stream.nodelay().expect("a socket"));
        stream.set_nonblocking(false).expect("a socket");
        stream
    });
    for (k, byte) in [mark, mark ^ 0xff].into_iter().enumerate() {
        ends[k].write_all(&[byte; 100]).expect("room");
        let mut got = [0; 100];
        ends[1 - k].read_exact(&mut got).expect("it comes");
        assert_eq!(got, [byte; 100]);
    }
}

#[test]
fn every_pair_gets_its_links() {
    watched(|| {
        const COUNT: u16 = 3;
        for world in 2..=5 {
            let (all, _) = controls(world);
            let links = run(0..world, |me| {
                let control = &all[me as usize];
                let others = (0..world).filter(|r| *r != me);
                others.map(|r| (r, link(control, me, r, COUNT))).collect::<Vec<_>>()
            });
            let mut ends: Vec<(Rank, Rank, Vec<OwnedFd>)> = Vec::new();
            for (me, links) in (0..).zip(links) {
                ends.extend(links.into_iter().map(|(peer, streams)| (me, peer, streams)));
            }
            while let Some((me, peer, streams)) = ends.pop() {
                let other = ends.iter().position(|(a, b, _)| (*a, *b) == (peer, me)).expect("both ends");
                let (_, _, others) = ends.remove(other);
                assert_eq!((streams.len(), others.len()), (COUNT.into(), COUNT.into()));
                for (k, (high, low)) in (0..).zip(streams.into_iter().zip(others)) {
                    exchange(low, high, (me * 16 + peer * 4 + k) as u8);
                }
            }
            assert!(all.iter().all(|control| control.strangers() == 0 && control.verdict().is_none()));
        }
    });
}

/// Knows the secret, and calls where it should not.
fn intrude(plan: &Plan, all: &[Control], claim: Claim) -> Result<OwnedFd, Missed> {
    let key = Key::new(plan.secret.as_deref(), &plan.id, 0);
    let network = Network::default();
    let call = Dial { key: &key, claim, network: &network, until: Instant::now() + LONG, stop: &|| false };
    dial(&call, all[claim.to as usize].members()[claim.to as usize].address, &mut Plain).expect("no fault of this side")
}

#[test]
fn nobody_gets_a_link_that_is_not_its_own() {
    watched(|| {
        let (all, plan) = controls(3);
        let open = |from, to, stream| intrude(&plan, &all, Claim { from, to, channel: Channel::Data(stream) });
        let mut kept = Vec::new();
        // Of a lower rank, of one that does not exist, of too high a number, and for control as rank 0 itself.
        for (from, to, stream) in [(0, 1, 0), (3, 1, 0), (2, 1, 64)] {
            kept.push(open(from, to, stream).expect("proved"));
        }
        kept.push(intrude(&plan, &all, Claim { from: 0, to: 1, channel: Channel::Control }).expect("proved"));
        eventually("all are turned away", || all[1].strangers() == 4);
        assert_eq!(all[1].take(2, 1).map(|streams| streams.len()), None);

        // The second to bring the same one.
        kept.push(open(2, 1, 0).expect("proved"));
        eventually("the first is taken in", || all[1].take(2, 1).is_some());
        kept.push(open(2, 1, 0).expect("proved"));
        eventually("the second is turned away", || all[1].strangers() == 5);
        assert!(all[1].take(2, 1).is_none());
        assert!(all.iter().all(|control| control.verdict().is_none()));
    });
}

#[test]
fn a_latecomer_is_told_that_its_rank_is_taken() {
    watched(|| {
        let (all, plan) = controls(2);
        let error = plan.guest(1).expect_err("taken");
        assert!(matches!(error, Error::Init(_)), "{error:?}");
        let says = [format!("rank 1 of job '{}' is already taken by process {}", plan.id, std::process::id())];
        assert!(says.iter().all(|s| error.to_string().contains(s)), "{error}");
        assert_eq!(all[0].strangers(), 1);
        assert!(all.iter().all(|control| control.verdict().is_none()));
    });
}

#[test]
fn strangers_are_turned_away_from_a_job_at_work() {
    watched(|| {
        let (all, _) = controls(3);
        let doors: Vec<_> = all[0].members().iter().map(|m| m.address).collect();
        let mut guests: Vec<TcpStream> = doors.iter().flat_map(|at| strangers(*at)).collect();
        let ends = run(0..3, |me| {
            let control = &all[me as usize];
            (0..3).filter(|r| *r != me).map(|r| link(control, me, r, 1)).collect::<Vec<_>>()
        });
        let [zero, one, two] = <[Vec<Vec<OwnedFd>>; 3]>::try_from(ends).expect("three").map(|mut links| {
            let mut next = || links.remove(0).remove(0);
            [next(), next()]
        });
        let ([zero_one, zero_two], [one_zero, one_two], [two_zero, two_one]) = (zero, one, two);
        exchange(zero_one, one_zero, 1);
        exchange(zero_two, two_zero, 2);
        exchange(one_two, two_one, 3);
        assert!(all.iter().all(|control| control.verdict().is_none()));
        // The silent ones are turned away when their time is over, or when they leave.
        for control in &all {
            eventually("those who spoke wrongly are gone", || control.strangers() >= 3);
        }
        guests.clear();
        for control in &all {
            eventually("all of them are gone", || control.strangers() == 24);
        }
        all.iter().for_each(|control| control.begun(1));
        let verdict = settle(&all[1], timed_out(1, &[2]));
        assert_eq!(common(&all), verdict);
    });
}

#[test]
fn a_silent_crowd_keeps_nobody_out() {
    watched(|| {
        let (all, plan) = controls(2);
        let at = plan.at;
        let crowd: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(at).expect("rank 0 listens")).collect();
        let streams = run(0..2, |me| link(&all[me as usize], me, 1 - me, 1));
        let [low, high] = <[Vec<OwnedFd>; 2]>::try_from(streams).expect("two").map(|mut s| s.remove(0));
        exchange(low, high, 9);
        drop(crowd);
        eventually("all of them are gone", || all[0].strangers() == 300);
    });
}

#[test]
fn the_thread_ends_with_its_owner() {
    watched(|| {
        let (listening, plan) = planned(3);
        let threads = Arc::new(());
        let met = gather(listening, &plan, |_, _| Ok(()));
        let all: Vec<Control> = met
            .into_iter()
            .map(|m| {
                let held = Arc::clone(&threads);
                Control::start(m.expect("all are there").contacts, move |_| drop(Arc::clone(&held))).expect("a thread")
            })
            .collect();
        assert_eq!(Arc::strong_count(&threads), 4);
        all[1].leave(State::Finished);
        drop(all);
        assert_eq!(Arc::strong_count(&threads), 1);
    });
}
