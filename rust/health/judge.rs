//! Rank 0 finds out what went wrong, for everybody: gathers what happens together, asks where that is not enough, and
//! pronounces one verdict.
//!
//! ```text
//! calm ──a connection ends, a report comes──► inquiry: 20 ms to 1 s, in which more may come in and answers return
//!                                                │  a weightier matter takes its place
//!                                                ▼
//!                                             verdict, once and for all
//! ```
//! | matter | how long | whose fault |
//! |---|---|---|
//! | connections ended | 20 ms: an out-of-memory killer or an operator ends several processes at once | theirs |
//! | a host fell silent | 300 ms: everybody is asked | of that node, all that are silent too |
//! | ranks called different things | 1 s at most: everybody is asked what it called | |
//! | a rank refused its arguments | 1 s at most, as long as others are inside an earlier call, which may end well | |
//! | somebody has left who is needed | 20 ms | of those who left before that call |
//! | a link broke | 1 s: the death that broke it comes to light by itself | |
//! | a time-out | 300 ms: everybody is asked how far it is | not yet in that call, or without an answer |
//!
//! Pure: events and the time come in, news go out. No sockets, no clock.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::admission::End;
use crate::error::{Rank, ranks, seconds};

use super::contacts::Member;
use super::matter::{ANSWER, DESCRIBE, Matter, REASON, Standing, TOGETHER, epitaphs};
use super::news::News;
use super::roster::State;
use super::seat::Group;
use super::verdict::{Kind, Left, Report, Verdict, departed};

#[derive(Debug)]
pub(super) struct Judge {
    /// All ranks of the job.
    members: Vec<Member>,
    /// Whose calls it judges (`Group::suffix`).
    of: String,
    silence: Duration,
    standing: Vec<Standing>,
    inquiry: Option<(Matter, Instant)>,
    /// The first time-out that was reported.
    tired: Option<Matter>,
    question: u32,
    over: bool,
    out: Vec<News>,
}

impl Judge {
    pub fn new(members: Vec<Member>, silence: Duration) -> Judge {
        let standing = vec![Standing::default(); members.len()];
        let (of, out) = (String::new(), Vec::new());
        Judge { members, of, silence, standing, inquiry: None, tired: None, question: 0, over: false, out }
    }

    /// Of another group than that of all.
    pub fn of_group(members: Vec<Member>, group: &Group) -> Judge {
        let mut judge = Judge::new(members, Duration::ZERO);
        judge.of = group.suffix();
        for (rank, standing) in (0..).zip(&mut judge.standing) {
            standing.foreign = !group.ranks.contains(&rank);
        }
        judge
    }

    /// Whether no member is there any more.
    pub fn is_deserted(&self) -> bool {
        self.alive().next().is_none()
    }

    /// A rank has left the job, or is lost, which all ranks hear anyway: nothing is to be expected of it.
    pub fn part(&mut self, rank: Rank, state: State) {
        let standing = &mut self.standing[rank as usize];
        if state == State::Dead {
            standing.gone.get_or_insert(End::Closed);
            // All members have been told, or will be: that is what keeps them from going on.
            self.over |= !standing.foreign;
        } else {
            standing.left.get_or_insert(Left { rank, state, completed: 0 });
        }
    }

    /// News for everybody.
    pub fn take(&mut self) -> Vec<News> {
        std::mem::take(&mut self.out)
    }

    /// When to call `tick`.
    pub fn deadline(&self) -> Option<Instant> {
        self.inquiry.as_ref().map(|(_, until)| *until)
    }

    pub fn tick(&mut self, now: Instant) {
        if let Some((matter, _)) = self.inquiry.take_if(|(_, until)| *until <= now) {
            self.decide(matter);
        }
    }

    /// The connection to a rank has ended.
    pub fn ended(&mut self, rank: Rank, end: End, now: Instant) {
        // Those who die with their host are not gone within 20 ms of each other.
        let first_silent = end == End::Silent && self.standing.iter().all(|s| s.gone != Some(End::Silent));
        let standing = &mut self.standing[rank as usize];
        if standing.departed {
            return;
        }
        standing.gone = Some(end);
        if first_silent {
            self.inquiry = None;
            self.ask_where();
            self.open(Matter::Deaths, now + ANSWER);
        } else {
            self.open(Matter::Deaths, now + TOGETHER);
        }
    }

    /// A rank says something.
    pub fn hear(&mut self, from: Rank, news: News, now: Instant) {
        match news {
            News::Report(report) => self.report(from, report, now),
            News::Left(left) => {
                let left = Left { rank: from, ..left };
                let standing = &mut self.standing[from as usize];
                standing.left.get_or_insert(left);
                standing.departed |= matches!(left.state, State::Finished | State::Raised);
                self.out.push(News::Left(left));
            }
            News::Here { question, begun, completed } => {
                self.standing[from as usize].here = Some((question, begun, completed));
            }
            News::Says { sequence, call } => self.standing[from as usize].says = Some((sequence, call)),
            News::Lingers { sequence, fingerprint } => {
                self.standing[from as usize].lingers = Some((sequence, fingerprint));
                let mut others = self.standing.iter().filter_map(|s| s.lingers);
                if others.any(|(s, other)| s == sequence && other != fingerprint) {
                    self.differs(sequence, now);
                }
            }
            // What only rank 0 may say, or only who has lost it.
            News::Where { .. } | News::Say { .. } | News::Verdict(_) | News::Bereft => {
                self.ended(from, End::Garbled, now);
            }
        }
        self.conclude();
    }

    fn report(&mut self, from: Rank, report: Report, now: Instant) {
        if let Some((sequence, call)) = report.call() {
            // Whoever waits for a verdict does not answer questions any more.
            self.standing[from as usize].says = Some((sequence, call.into()));
        }
        match report {
            Report::TimedOut { sequence, call, waited, awaited } => {
                let matter = Matter::TimedOut { by: from, sequence, call, waited, awaited };
                self.standing[from as usize].tired = true;
                self.tired.get_or_insert_with(|| matter.clone());
                if self.open(matter, now + ANSWER) {
                    self.ask_where();
                }
            }
            Report::Differs { sequence, .. } => self.differs(sequence, now),
            Report::Refused { sequence, reason } => {
                self.inquire(sequence, Matter::Refused { by: from, sequence, reason }, now);
            }
            Report::Stuck { sequence, call } => drop(self.open(Matter::Stuck { sequence, call }, now + TOGETHER)),
            Report::Broken { sequence, rank, why } => {
                self.open(Matter::Broken { by: from, sequence, rank, why }, now + REASON);
            }
            Report::Failed { text } => self.pronounce(Kind::Failed, vec![from], text),
        }
    }

    /// Ranks called different things in call `sequence`.
    fn differs(&mut self, sequence: u64, now: Instant) {
        self.inquire(sequence, Matter::Differs { sequence }, now);
    }

    /// Asks everybody about call `sequence`. Who is already in a later call noticed only what follows from that.
    fn inquire(&mut self, sequence: u64, matter: Matter, now: Instant) {
        self.inquiry.take_if(|(current, _)| current.difference().is_some_and(|later| later > sequence));
        if self.open(matter, now + DESCRIBE) {
            self.ask_where();
            self.out.push(News::Say { sequence });
        }
    }

    /// Begins an inquiry, unless one is going on about something as weighty. Whether it did.
    fn open(&mut self, matter: Matter, until: Instant) -> bool {
        let free = self.inquiry.as_ref().is_none_or(|(current, _)| current.weight() < matter.weight());
        // Deaths matter to other groups too.
        let begin = free && (!self.over || matches!(matter, Matter::Deaths));
        if begin {
            self.inquiry = Some((matter, until));
        }
        begin
    }

    fn ask_where(&mut self) {
        self.question += 1;
        self.out.push(News::Where { question: self.question });
    }

    /// Ends an inquiry early, when all that were asked have answered.
    fn conclude(&mut self) {
        let complete = match &self.inquiry {
            Some((Matter::Differs { sequence }, _)) => self.alive().all(|rank| self.has_described(rank, *sequence)),
            Some((Matter::Refused { sequence, .. }, _)) => self.alive().all(|rank| self.has_caught_up(rank, *sequence)),
            Some((Matter::TimedOut { .. }, _)) => self.alive().all(|rank| self.answer(rank).is_some()),
            _ => false,
        };
        if complete && let Some((matter, _)) = self.inquiry.take() {
            self.decide(matter);
        }
    }

    fn alive(&self) -> impl Iterator<Item = Rank> + use<'_> {
        (0..).zip(&self.standing).filter(|(_, s)| s.is_there()).map(|(rank, _)| rank)
    }

    /// Calls begun and completed, if the rank has answered the question that is open.
    fn answer(&self, rank: Rank) -> Option<(u64, u64)> {
        let (question, begun, completed) = self.standing[rank as usize].here?;
        (question == self.question).then_some((begun, completed))
    }

    /// Whether no more can be learnt of what the rank called in call `sequence`.
    fn has_described(&self, rank: Rank, sequence: u64) -> bool {
        let said = self.standing[rank as usize].says.as_ref().is_some_and(|(s, _)| *s == sequence);
        // Who is in an earlier call may yet find that one different.
        let idle = |begun, completed| begun < sequence && begun == completed;
        said || self.answer(rank).is_some_and(|(begun, completed)| idle(begun, completed) || completed >= sequence)
    }

    /// Whether the rank is not inside a call before call `sequence`.
    fn has_caught_up(&self, rank: Rank, sequence: u64) -> bool {
        let said = self.standing[rank as usize].says.as_ref().is_some_and(|(s, _)| *s == sequence);
        said || self.answer(rank).is_some_and(|(begun, completed)| begun >= sequence || begun == completed)
    }

    fn decide(&mut self, matter: Matter) {
        match matter {
            Matter::Deaths => self.decide_deaths(),
            Matter::Differs { sequence } => self.decide_difference(sequence),
            Matter::Refused { by, sequence, reason } => {
                let text = format!(
                    "call #{sequence}{} differs between ranks: rank {by} could not take part ({reason}). The group is closed",
                    self.of
                );
                self.pronounce(Kind::Mismatch, vec![by], text);
            }
            Matter::Stuck { sequence, call } => drop(self.decide_weariness(sequence, &call)),
            Matter::Broken { by, sequence, rank, why } => {
                if !self.decide_weariness(sequence, "") {
                    let text = format!(
                        "the link between rank {by} ({}) and rank {rank} ({}) broke although both are there: {why}. The group \
                         is closed",
                        self.named(by),
                        self.named(rank)
                    );
                    self.pronounce(Kind::Failed, vec![by, rank], text);
                }
            }
            Matter::TimedOut { by, sequence, call, waited, awaited } => {
                if !self.decide_departure(sequence, &call) {
                    let missing = self.missing(by, sequence, awaited);
                    let details: Vec<String> = missing.iter().map(|rank| self.progress(*rank, sequence)).collect();
                    let text = format!(
                        "rank {by} waited {} in call #{sequence}{} {call} for {}: {}. The group is closed. Is it stuck, or busy \
                         for longer than timeout= allows?",
                        seconds(waited),
                        self.of,
                        ranks(&missing),
                        details.join("; ")
                    );
                    self.pronounce(Kind::TimedOut, missing, text);
                }
            }
        }
    }

    fn decide_deaths(&mut self) {
        let silent: Vec<u32> =
            (0..).zip(&self.standing).filter(|(_, s)| s.gone == Some(End::Silent)).map(|(r, _)| self.node(r)).collect();
        // On a host that is gone nobody answers.
        let with_it: Vec<Rank> =
            self.alive().filter(|rank| silent.contains(&self.node(*rank)) && self.answer(*rank).is_none()).collect();
        with_it.iter().for_each(|rank| self.standing[*rank as usize].gone = Some(End::Silent));
        let news = |s: &Standing| s.gone.is_some() && !s.mourned;
        let lost: Vec<Rank> = (0..).zip(&self.standing).filter(|(_, s)| news(s)).map(|(r, _)| r).collect();
        lost.iter().for_each(|rank| self.standing[*rank as usize].mourned = true);
        let text = format!(
            "{} lost: {}. The group is closed",
            ranks(&lost),
            epitaphs(&lost, &self.members, &self.standing, self.silence).join("; ")
        );
        self.pronounce(Kind::Lost, lost, text);
    }

    fn decide_departure(&mut self, sequence: u64, call: &str) -> bool {
        // Who gave up waiting and left, while rank 0 did not answer, is not the one to blame.
        let left = self.standing.iter().filter(|s| !s.tired).filter_map(|s| s.left);
        match departed(left, sequence, &self.of, call) {
            Some(Verdict { kind, ranks, text }) => {
                self.pronounce(kind, ranks, text);
                true
            }
            None => false,
        }
    }

    /// Somebody has left, or has given up waiting and then left.
    fn decide_weariness(&mut self, sequence: u64, call: &str) -> bool {
        if !self.decide_departure(sequence, call)
            && let Some(matter) = self.tired.take()
        {
            self.decide(matter);
        }
        self.over
    }

    fn decide_difference(&mut self, sequence: u64) {
        let mut said: BTreeMap<&str, Vec<Rank>> = BTreeMap::new();
        let (mut absent, mut beyond, mut mute) = (Vec::new(), Vec::new(), Vec::new());
        for rank in self.alive() {
            match (&self.standing[rank as usize].says, self.answer(rank)) {
                (Some((s, call)), _) if *s == sequence => said.entry(call).or_default().push(rank),
                (_, Some((begun, _))) if begun < sequence => absent.push(rank),
                (_, Some((_, completed))) if completed >= sequence => beyond.push(rank),
                _ => mute.push(rank),
            }
        }
        let mut calls: Vec<(&str, Vec<Rank>)> = said.into_iter().collect();
        calls.sort_by_key(|(_, who)| who[0]);
        let odd = calls.iter().min_by_key(|(_, who)| who.len()).map_or(Vec::new(), |(_, who)| who.clone());
        let mut parts: Vec<String> = calls.iter().map(|(call, who)| format!("{} called {call}", ranks(who))).collect();
        let others =
            [(beyond, "completed it"), (absent, "did not call it yet"), (mute, "did not say what they called")];
        parts.extend(
            others.iter().filter(|(who, _)| !who.is_empty()).map(|(who, what)| format!("{} {what}", ranks(who))),
        );
        let of = &self.of;
        let text = match parts.len() {
            // Who only sends does not hear what the others make of it, and goes on.
            1 => format!(
                "a call before #{sequence}{of} differed between ranks, which shows only in this one, where {}. Did all name the \
                 same root before, and pass what the others expected? The group is closed",
                parts[0]
            ),
            _ => format!("call #{sequence}{of} differs between ranks: {}. The group is closed", parts.join("; ")),
        };
        self.pronounce(Kind::Mismatch, odd, text);
    }

    /// Those on whom the others wait in call `sequence`. A rank that is inside an earlier call is itself waiting, and so
    /// only to blame if nobody else is.
    fn missing(&self, by: Rank, sequence: u64, awaited: Vec<Rank>) -> Vec<Rank> {
        let others = || self.alive().filter(|rank| *rank != by);
        let idle = |rank: &Rank| self.answer(*rank).is_none_or(|(begun, done)| begun < sequence && begun == done);
        let late = |rank: &Rank| self.answer(*rank).is_none_or(|(begun, _)| begun < sequence);
        let inside = |rank: &Rank| self.answer(*rank).is_none_or(|(_, done)| done < sequence);
        let least = others().filter(late).map(|rank| self.answer(rank)).min();
        let furthest = |rank: &Rank| late(rank) && least == Some(self.answer(*rank));
        let some = |ranks: Vec<Rank>| (!ranks.is_empty()).then_some(ranks);
        some(others().filter(idle).collect())
            .or_else(|| some(others().filter(furthest).collect()))
            .or_else(|| some(others().filter(|rank| awaited.contains(rank)).collect()))
            .or_else(|| some(others().filter(inside).collect()))
            .unwrap_or_else(|| others().collect())
    }

    fn progress(&self, rank: Rank, sequence: u64) -> String {
        let named = format!("rank {rank} ({})", self.named(rank));
        match self.answer(rank) {
            None => format!("{named} does not answer (stopped, or its host is gone)"),
            Some((begun, _)) if begun >= sequence => format!("{named} arrived but stopped half-way"),
            Some((begun, completed)) if begun > completed => format!("{named} is still in call #{begun}"),
            Some((_, 0)) => format!("{named} has not called anything yet"),
            Some((_, last)) => format!("{named} has not called it; the last call it completed is #{last}"),
        }
    }

    fn node(&self, rank: Rank) -> u32 {
        self.members[rank as usize].node
    }

    fn named(&self, rank: Rank) -> String {
        self.members.get(rank as usize).map_or_else(|| "unknown".into(), Member::to_string)
    }

    fn pronounce(&mut self, kind: Kind, ranks: Vec<Rank>, text: String) {
        if !self.over || kind == Kind::Lost {
            self.over = true;
            self.inquiry = None;
            self.out.push(News::Verdict(Verdict { kind, ranks, text }));
        }
    }
}
