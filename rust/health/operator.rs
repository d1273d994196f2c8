//! The control thread: sits at the switchboard between this rank's calls, its control connections, and the porch.
//!
//! ```text
//! repeat: sleep on: desk, connections, porch, circle, the deadlines of court and inquest
//!         desk        → what calls report goes to rank 0; on rank 0 to the court
//!         connections → on rank 0 to the court, elsewhere to the desk; an end is a death unless the rank had left
//!         porch       → data connections to the desk; whoever else comes is sent away
//!         circle      → connections among the others, when rank 0 is gone
//! ```
//! It never touches Python and runs nothing that waits.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::admission::{Arrival, Channel, End, Framed};
use crate::error::Rank;
use crate::sync::Ordering;
use crate::transport::tcp;

use super::circle::Circle;
use super::contacts::Contacts;
use super::court::Court;
use super::desk::{Desk, POST, calm};
use super::news::{Letter, News};
use super::seat::Group;

/// Streams that two ranks may have between them.
const STREAMS: u16 = 64;
/// For what is still to be said when the group is left.
const FAREWELL: Duration = Duration::from_millis(200);

pub(super) struct Operator {
    contacts: Contacts,
    desk: Arc<Desk>,
    job: Group,
    role: Role,
}

enum Role {
    /// Rank 0 judges,
    Judge(Court),
    /// the others hear what it says, and find out among themselves what that was when it is gone.
    Witness(Circle),
}

impl Role {
    /// When it wants to look again although nothing has happened.
    fn deadline(&self) -> Option<Instant> {
        match self {
            Role::Judge(court) => court.deadline(),
            Role::Witness(circle) => circle.deadline(),
        }
    }

    /// Whether this rank may leave now: the others count on what comes of an inquiry.
    fn is_quiet(&self) -> bool {
        match self {
            Role::Judge(court) => court.deadline().is_none(),
            Role::Witness(circle) => circle.is_quiet(),
        }
    }
}

impl Operator {
    pub fn new(contacts: Contacts, desk: Arc<Desk>) -> Operator {
        let job = Group::job(contacts.members.len() as u32);
        let role = match contacts.me {
            0 => Role::Judge(Court::new(contacts.members.clone(), contacts.silence)),
            me => Role::Witness(Circle::new(me, job.clone())),
        };
        Operator { contacts, desk, job, role }
    }

    pub fn run(mut self) {
        loop {
            let (spoke, stirred) = self.sleep();
            calm(&self.desk.wake);
            let (outgoing, closing) = self.desk.outgoing();
            outgoing.into_iter().for_each(|letter| self.post(letter));
            self.hear(spoke);
            for arrival in self.contacts.porch.advance(Instant::now()) {
                self.admit(arrival);
            }
            // Relaxed: a number for people.
            self.desk.strangers.store(self.contacts.porch.turned_away(), Ordering::Relaxed);
            match &mut self.role {
                Role::Judge(court) => court.tick(Instant::now()),
                Role::Witness(circle) => circle.advance(&stirred, &self.contacts, &self.desk),
            }
            self.spread();
            if closing && self.role.is_quiet() {
                self.part();
                return;
            }
        }
    }

    /// Sleeps until something happens. The ranks whose connections want attention, and what the circle is to look at.
    fn sleep(&self) -> (Vec<Rank>, Vec<bool>) {
        let Contacts { lines, porch, .. } = &self.contacts;
        let mut list = vec![PollFd::from_borrowed_fd(self.desk.wake.as_fd(), PollFlags::IN)];
        list.extend(lines.iter().map(|(_, line)| line.interest()));
        if let Role::Witness(circle) = &self.role {
            circle.watch(&mut list);
        }
        let seen = list.len();
        porch.watch(&mut list);
        let deadline = porch.deadline().into_iter().chain(self.role.deadline()).min();
        let time = deadline.map(|deadline| {
            // A little late rather than a little early, which would be once more round.
            let left = deadline.saturating_duration_since(Instant::now()) + Duration::from_micros(100);
            Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ }
        });
        if poll(&mut list, time.as_ref()).is_err() {
            // A signal, or out of kernel memory: whatever it is, not a reason to spin.
            std::thread::sleep(Duration::from_millis(1));
        }
        let stirred: Vec<bool> = list[1..seen].iter().map(|fd| !fd.revents().is_empty()).collect();
        let (of_lines, of_circle) = stirred.split_at(lines.len());
        let spoke = lines.iter().zip(of_lines).filter(|(_, stirred)| **stirred).map(|((rank, _), _)| *rank);
        (spoke.collect(), of_circle.to_vec())
    }

    /// Sends what a call of this rank has to say.
    fn post(&mut self, letter: Letter) {
        match &mut self.role {
            Role::Judge(court) => court.hear(0, letter, Instant::now()),
            // If rank 0 is gone, nobody judges what this rank reports.
            Role::Witness(circle) => {
                circle.posted(&letter);
                self.contacts.lines.iter_mut().for_each(|(_, line)| line.send(&letter.encode()));
            }
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
        match &mut self.role {
            Role::Judge(court) => court.hear(rank, letter, Instant::now()),
            Role::Witness(circle) => {
                circle.note(&letter, &self.contacts, &self.desk);
                if let Some(answer) = self.deliver(letter) {
                    self.post(answer);
                }
            }
        }
    }

    fn ended(&mut self, at: usize, end: End) {
        let (rank, _) = self.contacts.lines.remove(at);
        match &mut self.role {
            Role::Judge(court) => court.ended(rank, end, Instant::now()),
            Role::Witness(circle) => circle.bereave(end, &self.contacts, &self.desk),
        }
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
            News::Left(_)
            | News::Report(_)
            | News::Here { .. }
            | News::Says { .. }
            | News::Lingers { .. }
            | News::Bereft => {}
        }
        None
    }

    /// Sends what the court has decided to those whom it concerns.
    fn spread(&mut self) {
        while let Role::Judge(court) = &mut self.role {
            let out = court.take();
            if out.is_empty() {
                return;
            }
            for letter in out {
                let (bytes, ranks) = (letter.encode(), Arc::clone(&letter.group.ranks));
                let lines = self.contacts.lines.iter_mut().filter(|(rank, _)| ranks.contains(rank));
                lines.for_each(|(_, line)| line.send(&bytes));
                if let Some(answer) = ranks.contains(&0).then(|| self.deliver(letter)).flatten() {
                    self.post(answer);
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
        match (claim.channel, stream, known, &mut self.role) {
            (channel, Some(stream), Some(_), _) => {
                if tcp::prepare(&socket, *silence).is_err() {
                    porch.turn_away(from, "it left at once");
                } else if self.desk.put(channel.group(), claim.from, stream, socket).is_err() {
                    porch.turn_away(from, "there is such a connection already, or this rank has left the group");
                }
            }
            // Who has lost rank 0 asks the others what they have heard.
            (Channel::Control, _, Some(_), Role::Witness(circle)) if ![0, *me].contains(&claim.from) => {
                if tcp::heartbeat(&socket, *silence).is_err() {
                    porch.turn_away(from, "it left at once");
                } else if !circle.arrive(claim.from, socket) {
                    porch.turn_away(from, "there are such connections already");
                }
            }
            (Channel::Control, _, Some(member), Role::Judge(_)) => {
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
        let of_circle = match &mut self.role {
            Role::Judge(_) => &mut [],
            Role::Witness(circle) => circle.lines(),
        };
        let mut lines: Vec<&mut Framed> =
            self.contacts.lines.iter_mut().chain(of_circle).map(|(_, line)| line).collect();
        while !lines.iter_mut().fold(true, |all, line| line.flush() & all) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        for line in lines {
            // What is unread when a connection closes makes the kernel cut it off instead.
            while let Ok(Some(_)) = line.receive() {}
        }
    }
}
