//! Ranks on several hosts, one of which vanishes: no packet comes from it any more, and nobody is told. The hosts are network
//! namespaces on one bridge; where they cannot be made the tests say so and are skipped.

mod job;
mod watchdog;

use std::fs::File;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use arx::admission::{Network, Writer};
use arx::error::Rank;
use arx::health::{Contacts, Control, Kind, Report, Verdict};
use arx::rendezvous::{Meeting, meet};
use arx::wait::Plain;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use job::{LONG, Plan, link, run};
use watchdog::watched;

/// Host k is 10.98.0.(k+1) and fd98::(k+1), and has a second interface that leads nowhere.
struct Hosts {
    prefix: String,
    count: usize,
}

impl Hosts {
    fn new(count: usize) -> Result<Hosts, String> {
        static LABS: AtomicU32 = AtomicU32::new(0);
        let prefix = format!("arxv{}x{}", std::process::id(), LABS.fetch_add(1, Ordering::Relaxed));
        let hosts = Hosts { prefix, count };
        let switch = hosts.switch();
        ip(&["netns", "add", &switch])?;
        ip(&["-n", &switch, "link", "add", "br0", "type", "bridge"])?;
        ip(&["-n", &switch, "link", "set", "br0", "up"])?;
        for k in 0..count {
            let (host, port) = (hosts.name(k), format!("p{k}"));
            ip(&["netns", "add", &host])?;
            ip(&["link", "add", "cable", "netns", &host, "type", "veth", "peer", "name", &port, "netns", &switch])?;
            ip(&["-n", &switch, "link", "set", &port, "master", "br0", "up"])?;
            for address in [format!("10.98.0.{}/24", k + 1), format!("fd98::{}/64", k + 1)] {
                let flags: &[&str] = if address.contains(':') { &["nodad"] } else { &[] };
                ip(&[&["-n", &host, "address", "add", &address, "dev", "cable"], flags].concat())?;
            }
            ip(&["-n", &host, "link", "set", "cable", "up"])?;
            ip(&["-n", &host, "link", "set", "lo", "up"])?;
        }
        Ok(hosts)
    }

    fn switch(&self) -> String {
        format!("{}sw", self.prefix)
    }

    fn name(&self, host: usize) -> String {
        format!("{}h{host}", self.prefix)
    }

    /// Moves the calling thread to a host; threads that it starts live there too.
    fn enter(&self, host: usize) {
        let name = File::open(format!("/run/netns/{}", self.name(host))).expect("the namespace");
        move_into_link_name_space(name.as_fd(), Some(LinkNameSpaceType::Network)).expect("a way in");
    }

    /// Takes a host off the switch: at both ends of every cable all looks as before.
    fn unplug(&self, host: usize) {
        ip(&["-n", &self.switch(), "link", "set", &format!("p{host}"), "nomaster"]).expect("unplugged");
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in (0..self.count).map(|k| self.name(k)).chain([self.switch()]) {
            // Not all are there if making them failed.
            let _ = ip(&["netns", "delete", &name]);
        }
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).output().map_err(|error| format!("ip: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// Rank r lives on host `places[r]`.
fn contacts(hosts: &Hosts, plan: &Plan, places: &[usize], network: &(impl Fn() -> Network + Sync)) -> Vec<Contacts> {
    run(0..plan.world, |rank| {
        hosts.enter(places[rank as usize]);
        let meeting = Meeting { network: network(), ..plan.meeting(rank, None) };
        meet(meeting, &mut |_, _| Ok(()), &mut Plain).expect("all are there").contacts
    })
}

fn verdict(control: &Control) -> Verdict {
    let until = Instant::now() + LONG;
    while control.verdict().is_none() {
        assert!(Instant::now() < until, "waited in vain for a verdict");
        thread::sleep(Duration::from_millis(5));
    }
    control.verdict().expect("there is one").clone()
}

const PLACES: [usize; 6] = [0, 0, 1, 2, 1, 2];

/// The plan of six ranks on three hosts.
fn plan(host: &str) -> Plan {
    Plan::new(6, SocketAddr::new(host.parse().expect("an address"), 29_500))
}

/// Hosts for `test`, unless they cannot be made.
fn on_hosts(name: &str, test: impl FnOnce(&Hosts)) {
    match Hosts::new(3) {
        Ok(hosts) => watched(|| test(&hosts)),
        Err(why) => eprintln!("SKIPPED {name}: {why}"),
    }
}

#[test]
fn ranks_are_reached_where_rank_0_is_reached_from() {
    on_hosts("ranks_are_reached_where_rank_0_is_reached_from", |hosts| {
        for (base, network) in [("10.98.0.", None), ("fd98::", None), ("10.98.0.", Some("cable"))] {
            let plan = plan(&format!("{base}1"));
            let all = contacts(hosts, &plan, &PLACES, &|| Network::parse(network, None).expect("an interface"));
            for c in &all {
                let addresses: Vec<IpAddr> = c.members.iter().map(|m| m.address.ip()).collect();
                let expected = PLACES.map(|host| format!("{base}{}", host + 1).parse::<IpAddr>().expect("an address"));
                assert_eq!(addresses, expected);
                assert_eq!(c.members.iter().map(|m| m.node).collect::<Vec<_>>(), [0, 0, 1, 2, 1, 2]);
            }
        }
    });
}

/// Starts all control threads, each on its rank's host.
fn started(hosts: &Hosts, contacts: Vec<Contacts>) -> Vec<Control> {
    contacts
        .into_iter()
        .map(|contacts| {
            thread::scope(|scope| {
                let start = || {
                    hosts.enter(PLACES[contacts.me as usize]);
                    Control::start(contacts, |_| ()).expect("a thread")
                };
                scope.spawn(start).join().expect("no panic")
            })
        })
        .collect()
}

/// Takes `host` off the net; what the ranks of the others, and its own, agree on.
fn unplugged(hosts: &Hosts, host: usize, busy: bool) -> [Verdict; 2] {
    let plan = plan("10.98.0.1");
    let all = started(hosts, contacts(hosts, &plan, &PLACES, &Network::default));
    hosts.unplug(host);
    let from = Instant::now();
    if busy {
        // Something is on its way to the host when it vanishes, and from it.
        for rank in [0, 2, 3] {
            all[rank].report(Report::Stuck { sequence: 1, call: "barrier()".into() });
        }
    }
    let of = |there: bool| {
        let ranks = (0..6).filter(|r| (PLACES[*r] == host) == there);
        let all: Vec<Verdict> = ranks.map(|r| verdict(&all[r])).collect();
        assert!(all.iter().all(|v| *v == all[0]), "{all:#?}");
        all[0].clone()
    };
    let others = of(false);
    eprintln!("unplugged host {host} (busy: {busy}): {} after {:.2?}", others.text, from.elapsed());
    [others, of(true)]
}

fn lost(verdict: &Verdict) -> &[Rank] {
    assert_eq!(verdict.kind, Kind::Lost);
    assert!(verdict.text.contains("has not answered for"), "{}", verdict.text);
    &verdict.ranks
}

#[test]
fn all_ranks_of_a_host_that_vanishes_are_named_by_all_others() {
    on_hosts("all_ranks_of_a_host_that_vanishes_are_named_by_all_others", |hosts| {
        let [others, own] = unplugged(hosts, 1, false);
        assert_eq!(lost(&others), [2, 4]);
        // For those who are cut off, it is rank 0 and its host that have vanished.
        assert_eq!(lost(&own), [0, 1]);
    });
}

#[test]
fn the_same_with_something_on_its_way() {
    on_hosts("the_same_with_something_on_its_way", |hosts| {
        let [others, own] = unplugged(hosts, 2, true);
        assert_eq!(lost(&others), [3, 5]);
        assert_eq!(lost(&own), [0, 1]);
    });
}

#[test]
fn if_rank_0s_host_vanishes_everybody_names_its_ranks() {
    on_hosts("if_rank_0s_host_vanishes_everybody_names_its_ranks", |hosts| {
        let [others, own] = unplugged(hosts, 0, false);
        assert_eq!(lost(&others), [0, 1]);
        // Rank 0 sees all others vanish.
        assert_eq!(lost(&own), [2, 3, 4, 5]);
    });
}

#[test]
fn what_rank_0_told_some_before_its_host_vanished_all_others_say() {
    on_hosts("what_rank_0_told_some_before_its_host_vanished_all_others_say", |hosts| {
        let mut all = contacts(hosts, &plan("10.98.0.1"), &PLACES, &Network::default);
        // The test plays rank 0; rank 4 is gone.
        drop(all.remove(4));
        let mut zero = all.remove(0);
        let controls = started(hosts, all);
        let others = &controls[1..]; // ranks 2, 3 and 5; rank 1 vanishes with rank 0
        let (_, line) = zero.lines.iter_mut().find(|(rank, _)| *rank == 3).expect("rank 0 has one to everybody");
        line.send(&Writer::new(25).byte(Kind::Lost as u8).ranks(&[4]).text("rank 4 lost").done());
        let told = verdict(&others[1]);
        hosts.unplug(0);
        assert_eq!((told.kind, &told.ranks[..]), (Kind::Lost, &[4][..]));
        assert!(others.iter().all(|control| verdict(control) == told));
    });
}

#[test]
fn a_name_that_means_loopback_here_is_no_address_for_others() {
    // As where a system gives its own name the address 127.0.1.1; some know other names of this kind for ::1.
    let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let names = [own, "ip6-localhost".into(), "ip6-loopback".into()];
    let loopback = |name: &String| {
        let mut all = (&name[..], 1).to_socket_addrs().ok()?;
        let first = all.next()?;
        (first.ip().is_loopback() && all.all(|at| at.ip().is_loopback())).then(|| (name.clone(), first.is_ipv4()))
    };
    let Some((name, v4)) = names.iter().find_map(loopback) else {
        return eprintln!(
            "SKIPPED a_name_that_means_loopback_here_is_no_address_for_others: none of {names:?} means that"
        );
    };
    on_hosts("a_name_that_means_loopback_here_is_no_address_for_others", |hosts| {
        let base = if v4 { "10.98.0." } else { "fd98::" };
        let plan = plan(&format!("{base}1"));
        let all = run(0..6, |rank| {
            hosts.enter(PLACES[rank as usize]);
            let mut meeting = plan.meeting(rank, None);
            if PLACES[rank as usize] == 0 {
                meeting.master.host = name.clone();
            }
            meet(meeting, &mut |_, _| Ok(()), &mut Plain).expect("all are there").contacts
        });
        let all = started(hosts, all);
        for control in &all {
            // Rank 0 is wherever the others have found it, rank 1 where rank 0 is reached from outside.
            let addresses = control.members().iter().skip(1).map(|m| m.address.ip().to_string());
            let expected = PLACES.map(|host| format!("{base}{}", host + 1));
            assert_eq!(addresses.collect::<Vec<_>>(), expected[1..]);
        }
        let links = run([1, 5], |rank| {
            hosts.enter(PLACES[rank as usize]);
            link(&all[rank as usize], rank, 6 - rank, 1).len()
        });
        assert_eq!(links, [1, 1]);
    });
}
