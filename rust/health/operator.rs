//! The control thread: sits at the switchboard between this rank's calls, its control connections, and the porch.
//!
//! ```text
//! repeat: sleep on: desk, connections, porch, the court's deadline
//!         desk        → what calls report goes to rank 0; on rank 0 to the court
//!         connections → on rank 0 to the court, elsewhere to the desk; an end is a death unless the rank had left
//!         porch       → data connections to the desk; whoever else comes is sent away
//! ```
//! It never touches Python and runs nothing that waits.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::admission::{Arrival, Channel, End, Framed};
use crate::error::{Rank, ranks, seconds};
use crate::sync::Ordering;
use crate::transport::tcp;

use super::contacts::Contacts;
use super::court::Court;
use super::desk::{Desk, POST, calm};
use super::news::{Letter, News};
use super::seat::Group;
use super::verdict::{Kind, Verdict};

/// Streams that two ranks may have between them.
const STREAMS: u16 = 64;
/// For what is still to be said when the group is left.
const FAREWELL: Duration = Duration::from_millis(200);

pub(super) struct Operator {
    contacts: Contacts,
    desk: Arc<Desk>,
    job: Group,
    /// Rank 0 has one.
    court: Option<Court>,
}

impl Operator {
    pub fn new(contacts: Contacts, desk: Arc<Desk>) -> Operator {
        let court = (contacts.me == 0).then(|| Court::new(contacts.members.clone(), contacts.silence));
        let job = Group::job(contacts.members.len() as u32);
        Operator { contacts, desk, job, court }
    }

    pub fn run(mut self) {
        loop {
            let spoke = self.sleep();
            calm(&self.desk.wake);
            let (outgoing, closing) = self.desk.outgoing();
            outgoing.into_iter().for_each(|letter| self.post(letter));
            self.hear(spoke);
            for arrival in self.contacts.porch.advance(Instant::now()) {
                self.admit(arrival);
            }
            // Relaxed: a number for people.
            self.desk.strangers.store(self.contacts.porch.turned_away(), Ordering::Relaxed);
            if let Some(court) = &mut self.court {
                court.tick(Instant::now());
            }
            self.spread();
            // Rank 0 does not leave in the middle of an inquiry: the others count on the verdict.
            if closing && self.court.as_ref().and_then(Court::deadline).is_none() {
                self.part();
                return;
            }
        }
    }

    /// Sleeps until something happens. The ranks whose connections want attention.
    fn sleep(&self) -> Vec<Rank> {
        let Contacts { lines, porch, .. } = &self.contacts;
        let mut list = vec![PollFd::from_borrowed_fd(self.desk.wake.as_fd(), PollFlags::IN)];
        list.extend(lines.iter().map(|(_, line)| line.interest()));
        porch.watch(&mut list);
        let deadline = porch.deadline().into_iter().chain(self.court.as_ref().and_then(Court::deadline)).min();
        let time = deadline.map(|deadline| {
            // A little late rather than a little early, which would be once more round.
            let left = deadline.saturating_duration_since(Instant::now()) + Duration::from_micros(100);
            Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ }
        });
        if poll(&mut list, time.as_ref()).is_err() {
            // A signal, or out of kernel memory: whatever it is, not a reason to spin.
            std::thread::sleep(Duration::from_millis(1));
        }
        let lines = lines.iter().zip(&list[1..]);
        lines.filter(|(_, fd)| !fd.revents().is_empty()).map(|((rank, _), _)| *rank).collect()
    }

    /// Sends what a call of this rank has to say.
    fn post(&mut self, letter: Letter) {
        match &mut self.court {
            Some(court) => court.hear(0, letter, Instant::now()),
            // If rank 0 is gone, the desk knows by now.
            None => self.contacts.lines.iter_mut().for_each(|(_, line)| line.send(&letter.encode())),
        }
    }

    fn hear(&mut self, spoke: Vec<Rank>) {
        for rank in spoke {
            let Some(at) = self.contacts.lines.iter().position(|(r, _)| *r == rank) else { continue };
            self.contacts.lines[at].1.flush();
            loop {
                match self.contacts.lines[at].1.receive() {
                    Ok(None) => break,
                    Ok(Some(bytes)) => match Letter::decode(&bytes, &self.job) {
                        Some(letter) => self.heard(rank, letter),
                        None => {
                            self.ended(at, End::Garbled);
                            break;
                        }
                    },
                    Err(end) => {
                        self.ended(at, end);
                        break;
                    }
                }
            }
        }
    }

    fn heard(&mut self, rank: Rank, letter: Letter) {
        match &mut self.court {
            Some(court) => court.hear(rank, letter, Instant::now()),
            None => {
                if let Some(answer) = self.deliver(letter) {
                    self.post(answer);
                }
            }
        }
    }

    fn ended(&mut self, at: usize, end: End) {
        let (rank, _) = self.contacts.lines.remove(at);
        match &mut self.court {
            Some(court) => court.ended(rank, end, Instant::now()),
            None => self.abandoned(end),
        }
    }

    /// Rank 0 is gone. Nobody is left to judge, but everybody sees the same.
    fn abandoned(&mut self, end: End) {
        let members = &self.contacts.members;
        if self.desk.has_left(0) {
            return self.desk.orphan(&self.job, None);
        }
        let host = &members[0].host;
        let (lost, why): (Vec<Rank>, String) = match end {
            End::Silent => {
                let with_it = (0..).zip(members).filter(|(_, m)| m.node == members[0].node).map(|(rank, _)| rank);
                (with_it.collect(), format!("{host} has not answered for {}", seconds(self.contacts.silence)))
            }
            End::Garbled => (vec![0], format!("{} said something that cannot be", members[0])),
            End::Closed => (vec![0], format!("{} is gone (killed, crashed, out of memory?)", members[0])),
        };
        let text = format!("{} lost: {why}. The group is closed", ranks(&lost));
        self.desk.orphan(&self.job, Some(Verdict { kind: Kind::Lost, ranks: lost, text }));
    }

    /// News from rank 0, for this rank. What it answers at once.
    fn deliver(&self, Letter { group, news }: Letter) -> Option<Letter> {
        match news {
            News::Where { question } => {
                let news = self.desk.seat(&group)?.where_am_i(question);
                return Some(Letter { group, news });
            }
            News::Say { sequence } => self.desk.ask(&group, sequence),
            News::Left(left) if left.rank != self.contacts.me => self.desk.note_left(&group, left),
            News::Verdict(verdict) => self.desk.pronounce(&group, verdict),
            // Its own departure, and what only other ranks say.
            News::Left(_) | News::Report(_) | News::Here { .. } | News::Says { .. } | News::Lingers { .. } => {}
        }
        None
    }

    /// Sends what the court has decided to those whom it concerns.
    fn spread(&mut self) {
        while let Some(out) = self.court.as_mut().map(Court::take).filter(|out| !out.is_empty()) {
            for letter in out {
                let (bytes, ranks) = (letter.encode(), Arc::clone(&letter.group.ranks));
                let lines = self.contacts.lines.iter_mut().filter(|(rank, _)| ranks.contains(rank));
                lines.for_each(|(_, line)| line.send(&bytes));
                let answer = ranks.contains(&0).then(|| self.deliver(letter)).flatten();
                if let (Some(answer), Some(court)) = (answer, &mut self.court) {
                    court.hear(0, answer, Instant::now());
                }
            }
        }
    }

    /// Somebody who has proved to be a rank of this job.
    fn admit(&mut self, arrival: Arrival) {
        let Contacts { me, members, porch, silence, refuse, job, .. } = &mut self.contacts;
        let Arrival { claim, socket, from } = arrival;
        let known = members.get(claim.from as usize);
        let stream = match claim.channel {
            // Of two ranks the higher one calls,
            Channel::Data(stream) | Channel::Group(_, stream) => {
                (stream < STREAMS && claim.from > *me).then_some(stream)
            }
            // but whoever has something to send calls by itself.
            Channel::Post(_) => Some(POST),
            Channel::Control => None,
        };
        match (claim.channel, stream, known) {
            (channel, Some(stream), Some(_)) => {
                if tcp::prepare(&socket, *silence).is_err() {
                    porch.turn_away(from, "it left at once");
                } else if self.desk.put(channel.group(), claim.from, stream, socket).is_err() {
                    porch.turn_away(from, "there is such a connection already, or this rank has left the group");
                }
            }
            (Channel::Control, _, Some(member)) if *me == 0 => {
                let why = format!(
                    "rank {} of job '{job}' is already taken by {member}. Did a child process inherit the environment of a rank, or \
                     was the script started twice with one ARX_JOB_ID?",
                    claim.from
                );
                Framed::new(socket, 0).send(&refuse(why));
                porch.turn_away(from, "its rank was taken already");
            }
            _ => porch.turn_away(from, "there is no place for it"),
        }
    }

    /// Sees that what was said last is on its way before the connections close.
    fn part(&mut self) {
        let until = Instant::now() + FAREWELL;
        let lines = &mut self.contacts.lines;
        while !lines.iter_mut().fold(true, |all, (_, line)| line.flush() && all) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        for (_, line) in lines {
            // What is unread when a connection closes makes the kernel cut it off instead.
            while let Ok(Some(_)) = line.receive() {}
        }
    }
}
