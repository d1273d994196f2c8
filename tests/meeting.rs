//! Ranks of several hosts meet: threads as ranks, over the loopback interface.

mod job;
mod watchdog;

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use arx::admission::address::Master;
use arx::admission::{Network, socket};
use arx::error::{Error, Rank, Result};
use arx::rendezvous::{Listening, Meeting, Met, meet};
use arx::wait::{Host, Plain};

use job::{LONG, Plan, SHORT, gather, listening, planned, run, strangers};
use watchdog::watched;

fn text<T: std::fmt::Debug>(result: Result<T>) -> String {
    result.expect_err("it cannot form").to_string()
}

#[test]
fn every_world_meets_and_all_know_the_same() {
    watched(|| {
        for world in 1..=9 {
            for apart in [false, true] {
                let (listening, mut plan) = planned(world);
                let port = plan.at;
                plan.apart = apart;
                let asked = Mutex::new(Vec::new());
                let met = gather(listening, &plan, |rank, node| {
                    asked.lock().expect("not poisoned").push((rank, node.to_vec()));
                    Ok(())
                });
                let met: Vec<Met> = met.into_iter().map(|m| m.expect("all are there")).collect();
                let nodes: Vec<Vec<Rank>> =
                    if apart { (0..world).map(|r| vec![r]).collect() } else { vec![(0..world).collect()] };
                let mut asked = asked.into_inner().expect("not poisoned");
                asked.sort();
                let node = |rank: Rank| if apart { vec![rank] } else { (0..world).collect() };
                assert_eq!(asked, (0..world).map(|r| (r, node(r))).collect::<Vec<_>>());
                for (rank, m) in (0..).zip(&met) {
                    assert_eq!(m.nodes, nodes);
                    assert_eq!(m.settings, [u64::MAX, 7, u64::from(world)]);
                    assert_eq!(m.contacts.me, rank);
                    assert_eq!(m.contacts.members, met[0].contacts.members);
                    let lines: Vec<Rank> = m.contacts.lines.iter().map(|(peer, _)| *peer).collect();
                    assert_eq!(lines, if rank == 0 { (1..world).collect() } else { vec![0] });
                    assert_eq!(m.contacts.members[rank as usize].address, m.contacts.porch.address().expect("bound"));
                    assert_eq!(m.contacts.members[rank as usize].pid, std::process::id());
                }
                assert_eq!(met[0].contacts.members[0].address, port);
                assert!(met[0].contacts.members.iter().all(|m| m.address.ip() == port.ip()));
            }
        }
    });
}

#[test]
fn ipv6_works_the_same() {
    watched(|| {
        let listening = listening("[::1]");
        let plan = Plan::new(3, listening.address);
        assert!(plan.at.is_ipv6());
        for met in gather(listening, &plan, |_, _| Ok(())) {
            let met = met.expect("all are there");
            assert!(met.contacts.members.iter().all(|m| m.address.ip() == plan.at.ip()));
        }
    });
}

#[test]
fn a_name_may_have_several_addresses() {
    watched(|| {
        // `localhost` usually has two, and rank 0 listens at one of them.
        for ip in ["127.0.0.1", "[::1]"] {
            let listening = listening(ip);
            let mut plan = Plan::new(2, listening.address);
            let port = plan.at.port();
            plan.timeout = Duration::from_secs(10);
            let named = |rank, listening| {
                let master = Master { host: "localhost".into(), ports: vec![port] };
                let meeting = Meeting { master, ..plan.meeting(rank, listening) };
                meet(meeting, &mut |_, _| Ok(()), &mut Plain)
            };
            thread::scope(|scope| {
                let guest = scope.spawn(|| named(1, None));
                let hub = named(0, Some(listening));
                let guest = guest.join().expect("no panic");
                if ip == "[::1]" && guest.is_err() {
                    eprintln!("SKIPPED half of a_name_may_have_several_addresses: localhost has no IPv6 address here");
                    return;
                }
                assert_eq!(guest.expect("formed").contacts.members[0].address, plan.at);
                assert_eq!(hub.expect("formed").nodes, [[0, 1]]);
            });
        }
    });
}

#[test]
fn rank_0_may_come_last() {
    watched(|| {
        let (listening, mut plan) = planned(3);
        // The port is free again, and for a while nobody is there.
        drop(listening);
        plan.timeout = LONG;
        let met = run(0..3, |rank| {
            if rank == 0 {
                thread::sleep(Duration::from_millis(300));
            }
            plan.guest(rank)
        });
        assert!(met.into_iter().all(|m| m.expect("all are there").nodes == [[0, 1, 2]]));
    });
}

#[test]
fn a_node_that_does_not_work_is_taken_apart() {
    watched(|| {
        for bad in 0..3 {
            let (listening, plan) = planned(3);
            let asked = Mutex::new(Vec::new());
            let met = gather(listening, &plan, |rank, node| {
                asked.lock().expect("not poisoned").push((rank, node.to_vec()));
                if rank == bad && node.len() > 1 { Err(Error::Init("no memory in common".into())) } else { Ok(()) }
            });
            for m in met {
                assert_eq!(m.expect("as single ranks").nodes, [[0], [1], [2]]);
            }
            let mut asked = asked.into_inner().expect("not poisoned");
            // Each rank's own order of being asked is kept.
            asked.sort_by_key(|(rank, _)| *rank);
            let twice = |r: Rank| [(r, vec![0, 1, 2]), (r, vec![r])];
            assert_eq!(asked, (0..3).flat_map(twice).collect::<Vec<_>>());
        }
    });
}

#[test]
fn a_rank_that_cannot_be_a_node_of_its_own_ends_it_for_all() {
    watched(|| {
        for bad in 0..3 {
            let (listening, mut plan) = planned(3);
            plan.apart = true;
            let met = gather(listening, &plan, |rank, _| {
                if rank == bad { Err(Error::Init("no memory at all".into())) } else { Ok(()) }
            });
            for m in met {
                assert!(text(m).contains("no memory at all"));
            }
        }
    });
}

#[test]
fn the_missing_rank_is_named_on_all() {
    watched(|| {
        let (listening, mut plan) = planned(5);
        plan.timeout = SHORT;
        let listening = Mutex::new(Some(listening));
        let met = run([0, 1, 3], |rank| {
            let socket = if rank == 0 { listening.lock().expect("not poisoned").take() } else { None };
            meet(plan.meeting(rank, socket), &mut |_, _| Ok(()), &mut Plain)
        });
        for m in met {
            let error = m.expect_err("two are missing");
            assert!(matches!(error, Error::Rendezvous(_)), "{error:?}");
            assert!(error.to_string().contains("ranks 2 and 4 of 5"), "{error}");
        }
    });
}

#[test]
fn nobody_at_the_masters_address() {
    watched(|| {
        let (listening, mut plan) = planned(2);
        drop(listening);
        plan.timeout = SHORT;
        let error = plan.guest(1).expect_err("nobody is there");
        assert!(matches!(error, Error::Rendezvous(_)), "{error:?}");
        let error = error.to_string();
        assert!(error.contains(&plan.at.to_string()) && error.contains("refused"), "{error}");
    });
}

#[test]
fn a_name_that_does_not_resolve() {
    watched(|| {
        let (_, mut plan) = planned(2);
        plan.timeout = SHORT;
        for rank in [0, 1] {
            let master = Master { host: "no-such-host.invalid".into(), ports: vec![29500] };
            let meeting = Meeting { master, ..plan.meeting(rank, None) };
            let error = text(meet(meeting, &mut |_, _| Ok(()), &mut Plain));
            assert!(error.contains("'no-such-host.invalid'") && error.contains("not resolve"), "{error}");
        }
    });
}

#[test]
fn a_port_that_is_taken() {
    watched(|| {
        let other = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let plan = Plan::new(2, other.local_addr().expect("bound"));
        let error = text(plan.guest(0));
        assert!(error.contains(&plan.at.to_string()) && error.contains("taken this port"), "{error}");
    });
}

#[test]
fn something_else_at_the_masters_address() {
    watched(|| {
        let other = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let mut plan = Plan::new(2, other.local_addr().expect("bound"));
        plan.timeout = SHORT;
        thread::scope(|scope| {
            let guest = scope.spawn(|| plan.guest(1));
            other.set_nonblocking(true).expect("a socket");
            while !guest.is_finished() {
                if let Ok((mut visitor, _)) = other.accept() {
                    // It may have hung up already.
                    let _ = visitor.write_all(b"SSH-2.0-OpenSSH_9.6\r\n");
                }
                thread::sleep(Duration::from_millis(5));
            }
            let error = text(guest.join().expect("no panic"));
            assert!(error.contains("something else than arx"), "{error}");
        });
    });
}

#[test]
fn another_idea_of_the_world_is_everybodys_error() {
    watched(|| {
        let (listening, plan) = planned(3);
        let listening = Mutex::new(Some(listening));
        let met = run(0..3, |rank| {
            let socket = if rank == 0 { listening.lock().expect("not poisoned").take() } else { None };
            let plan = Plan { world: if rank == 2 { 4 } else { 3 }, ..plan.clone() };
            meet(plan.meeting(rank, socket), &mut |_, _| Ok(()), &mut Plain)
        });
        for m in met {
            let error = m.expect_err("they disagree");
            assert!(matches!(error, Error::Rendezvous(_)), "{error:?}");
            assert!(error.to_string().contains("rank 0 was told 3, rank 2 was told 4"), "{error}");
        }
    });
}

#[test]
fn a_second_rank_of_a_number_is_sent_away_and_the_job_forms() {
    watched(|| {
        let (listening, plan) = planned(3);
        thread::scope(|scope| {
            let hub = scope.spawn(|| meet(plan.meeting(0, Some(listening)), &mut |_, _| Ok(()), &mut Plain));
            let twins = [1, 1].map(|r| {
                scope.spawn({
                    let plan = &plan;
                    move || plan.guest(r)
                })
            });
            // Both are there before the job is complete: one of them has been sent away by then.
            while !twins.iter().any(|t| t.is_finished()) {
                thread::sleep(Duration::from_millis(5));
            }
            let last = plan.guest(2).expect("formed");
            assert_eq!(last.nodes, [[0, 1, 2]]);
            let hub = hub.join().expect("no panic").expect("formed");
            assert_eq!(hub.contacts.porch.turned_away(), 1);
            let twins = twins.map(|t| t.join().expect("no panic"));
            assert_eq!(twins.iter().filter(|t| t.is_ok()).count(), 1);
            let error = twins.into_iter().find_map(Result::err).expect("one");
            assert!(matches!(error, Error::Init(_)), "{error:?}");
            assert!(
                error.to_string().contains("rank 1 of job") && error.to_string().contains("already taken"),
                "{error}"
            );
        });
    });
}

#[test]
fn a_rank_outside_the_world_is_sent_away() {
    watched(|| {
        let (listening, plan) = planned(2);
        thread::scope(|scope| {
            let hub = scope.spawn(|| meet(plan.meeting(0, Some(listening)), &mut |_, _| Ok(()), &mut Plain));
            let error = text(plan.guest(2));
            assert!(error.contains("ranks go from 0"), "{error}");
            plan.guest(1).expect("formed");
            hub.join().expect("no panic").expect("formed");
        });
    });
}

#[test]
fn a_wrong_secret_is_an_error_at_once_there_and_at_the_end_here() {
    watched(|| {
        let (listening, mut plan) = planned(2);
        plan.timeout = SHORT;
        thread::scope(|scope| {
            let hub = scope.spawn(|| meet(plan.meeting(0, Some(listening)), &mut |_, _| Ok(()), &mut Plain));
            for secret in [Some("another secret".to_owned()), None] {
                let error = Plan { secret, ..plan.clone() }.guest(1).expect_err("a wrong secret");
                assert!(matches!(error, Error::Auth(_)), "{error:?}");
                assert!(error.to_string().contains("ARX_SECRET"), "{error}");
            }
            let error = text(hub.join().expect("no panic"));
            assert!(error.contains("rank 1 of 2") && error.contains("2 connections were turned away"), "{error}");
            assert!(error.contains("the secrets differ"), "{error}");
        });
    });
}

#[test]
fn another_job_at_the_same_address_is_not_joined() {
    watched(|| {
        let (listening, plan) = planned(2);
        thread::scope(|scope| {
            let hub = scope.spawn(|| meet(plan.meeting(0, Some(listening)), &mut |_, _| Ok(()), &mut Plain));
            let error = text(Plan { id: "another".into(), timeout: SHORT, ..plan.clone() }.guest(1));
            assert!(error.contains("belongs to another job"), "{error}");
            plan.guest(1).expect("formed");
            hub.join().expect("no panic").expect("formed");
        });
    });
}

#[test]
fn nothing_leaves_the_host_without_a_secret() {
    watched(|| {
        let (_, mut plan) = planned(2);
        plan.secret = None;
        // Addresses for documentation: nobody has them.
        for host in ["192.0.2.1", "2001:db8::1"] {
            for rank in [0, 1] {
                let master = Master { host: host.into(), ports: vec![29500] };
                let meeting = Meeting { master, ..plan.meeting(rank, None) };
                let error = meet(meeting, &mut |_, _| Ok(()), &mut Plain).expect_err("no secret");
                assert!(matches!(error, Error::Auth(_)), "{error:?}");
                assert!(error.to_string().contains(host) && error.to_string().contains("ARX_SECRET"), "{error}");
            }
        }
        // On this host it is no hindrance.
        let (listening, mut plan) = planned(2);
        plan.secret = None;
        assert!(gather(listening, &plan, |_, _| Ok(())).into_iter().all(|m| m.is_ok()));
    });
}

/// A host on which the rank dies at some time: everything that it holds is gone, and nobody is told.
struct Deadly(Instant);

impl Host for Deadly {
    fn aside(&mut self, wait: &mut dyn FnMut()) {
        assert!(Instant::now() < self.0, "this is the death that the test wants");
        wait();
    }
    fn interrupted(&mut self) -> bool {
        false
    }
}

#[test]
fn a_rank_that_dies_meanwhile_is_named_on_all() {
    watched(|| {
        for dead in [0, 2] {
            let (listening, plan) = planned(4);
            let listening = Mutex::new(Some(listening));
            let met = run(0..3, |rank| {
                let socket = if rank == 0 { listening.lock().expect("not poisoned").take() } else { None };
                let mut host = Deadly(Instant::now() + if rank == dead { Duration::from_millis(300) } else { LONG });
                let meeting = plan.meeting(rank, socket);
                catch_unwind(AssertUnwindSafe(|| meet(meeting, &mut |_, _| Ok(()), &mut host)))
            });
            for (rank, m) in (0..).zip(met) {
                match m {
                    Err(_) => assert_eq!(rank, dead),
                    Ok(m) => {
                        let error = m.expect_err("a rank is dead");
                        assert!(matches!(&error, Error::PeerLost { ranks, .. } if *ranks == [dead]), "{error:?}");
                    }
                }
            }
        }
    });
}

#[test]
fn an_interrupted_rank_is_named_on_all() {
    watched(|| {
        let (listening, plan) = planned(4);
        let listening = Mutex::new(Some(listening));
        let met = run(0..3, |rank| {
            let socket = if rank == 0 { listening.lock().expect("not poisoned").take() } else { None };
            let mut host = Mortal(Instant::now() + if rank == 2 { Duration::from_millis(300) } else { LONG });
            meet(plan.meeting(rank, socket), &mut |_, _| Ok(()), &mut host)
        });
        let [zero, one, two] = met.try_into().expect("three");
        assert!(matches!(two, Err(Error::Interrupted)), "{two:?}");
        for m in [zero, one] {
            assert!(text(m).contains("rank 2 was interrupted"));
        }
    });
}

/// A host that is interrupted at some time.
struct Mortal(Instant);

impl Host for Mortal {
    fn aside(&mut self, wait: &mut dyn FnMut()) {
        wait();
    }
    fn interrupted(&mut self) -> bool {
        Instant::now() >= self.0
    }
}

#[test]
fn an_interrupted_rank_0_tells_everybody() {
    watched(|| {
        let (listening, plan) = planned(3);
        thread::scope(|scope| {
            let guest = scope.spawn(|| plan.guest(1));
            let mut host = Mortal(Instant::now() + Duration::from_millis(300));
            let hub = meet(plan.meeting(0, Some(listening)), &mut |_, _| Ok(()), &mut host);
            assert!(matches!(hub, Err(Error::Interrupted)), "{hub:?}");
            assert!(text(guest.join().expect("no panic")).contains("rank 0 was interrupted"));
        });
    });
}

#[test]
fn listeners_and_callers_keep_to_the_ports_allowed() {
    watched(|| {
        // A range of its own for each process that runs this test.
        let low = 20_000 + (std::process::id() % 400) as u16 * 20;
        let range = format!("{low}-{}", low + 19);
        let network = Network::parse(None, Some(&range)).expect("a range");
        let master = Master::parse("127.0.0.1:0").expect("an address");
        let listening =
            Listening::bind(&master, &network, true, Instant::now() + LONG, &mut Plain).expect("a free port");
        let plan = Plan::new(4, listening.address);
        let listening = Mutex::new(Some(listening));
        let met = run(0..4, |rank| {
            let socket = if rank == 0 { listening.lock().expect("not poisoned").take() } else { None };
            let meeting = Meeting { network: network.clone(), ..plan.meeting(rank, socket) };
            meet(meeting, &mut |_, _| Ok(()), &mut Plain).expect("formed")
        });
        let inside = |address: SocketAddr| (low..low + 20).contains(&address.port());
        for m in &met {
            assert!(m.contacts.members.iter().all(|member| inside(member.address)), "{:?}", m.contacts.members);
            for (_, line) in &m.contacts.lines {
                assert!(
                    inside(socket::local(line).expect("connected")) && inside(socket::remote(line).expect("connected"))
                );
            }
        }
        // One port is not enough for two listeners.
        let port = low + 19;
        let network = Network::parse(None, Some(&format!("{port}-{port}"))).expect("a range");
        let (listening, mut plan) = planned(2);
        let _taken = TcpListener::bind(("127.0.0.1", port)).expect("free");
        plan.timeout = SHORT;
        let meeting = Meeting { network, ..plan.meeting(1, None) };
        let error = text(meet(meeting, &mut |_, _| Ok(()), &mut Plain));
        assert!(error.contains(&format!("{port}-{port}")), "{error}");
        drop(listening);
    });
}

#[test]
fn strangers_do_not_disturb_a_job_that_forms() {
    watched(|| {
        let (listening, plan) = planned(3);
        thread::scope(|scope| {
            let hub = scope.spawn(|| meet(plan.meeting(0, Some(listening)), &mut |_, _| Ok(()), &mut Plain));
            let early = strangers(plan.at);
            let guests = [1, 2].map(|r| {
                scope.spawn({
                    let plan = &plan;
                    move || plan.guest(r)
                })
            });
            let late = strangers(plan.at);
            for guest in guests {
                assert_eq!(guest.join().expect("no panic").expect("formed").nodes, [[0, 1, 2]]);
            }
            let hub = hub.join().expect("no panic").expect("formed");
            // Those that spoke wrongly before the job had formed; the silent ones are still given time.
            let away = hub.contacts.porch.turned_away();
            assert!((3..=6).contains(&away), "{away}: {:?}", hub.contacts.porch.last());
            drop((early, late));
        });
    });
}
