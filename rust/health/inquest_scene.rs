//! What the trials of the inquest happen in: ranks, their connections and their deaths, in any order, on no clock.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::inquest::{Deed, Inquest};
use super::news::{Letter, News};
use super::seat::Group;
use super::verdict::{Kind, Verdict};
use crate::error::Rank;

pub(super) fn lost(ranks: &[Rank]) -> Verdict {
    Verdict { kind: Kind::Lost, ranks: ranks.to_vec(), text: format!("{ranks:?} lost") }
}

/// What `rank` would say by itself; the texts differ, so that it shows whose has come through.
pub(super) fn own(rank: Rank) -> Verdict {
    Verdict { text: format!("rank 0 lost, says rank {rank}"), ..lost(&[0]) }
}

pub(super) fn of_job(world: u32, news: News) -> Letter {
    Letter { group: Group::job(world), news }
}

enum Note {
    /// To the caller: the other end has answered.
    Proof,
    Says(Letter),
    End,
}

/// One end of a connection: what is on its way to it.
#[derive(Default)]
struct Pipe {
    notes: VecDeque<Note>,
    /// Whether this end knows of the connection.
    open: bool,
}

/// Two ranks, the caller first.
struct Line {
    ends: [Rank; 2],
    pipes: [Pipe; 2],
    accepted: bool,
}

struct Survivor {
    inquest: Inquest,
    /// What rank 0 has said to it and it has not read.
    unread: VecDeque<Letter>,
    bereft: bool,
    alive: bool,
    /// All that it has heard, in order.
    heard: Vec<Letter>,
    over: usize,
}

/// Ranks 1 and up.
pub(super) struct Scene {
    world: u32,
    now: Instant,
    pub waited: Duration,
    ranks: Vec<Survivor>,
    lines: Vec<Line>,
}

/// What can happen next.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A rank reads the next word of rank 0, or the end.
    Read(Rank),
    /// A call is answered, if anybody is there.
    Answer(usize),
    /// The next note of a connection arrives at one of its ends.
    Arrive(usize, usize),
}

impl Scene {
    /// Of what rank 0 has said, rank r has been sent the first `heard[r - 1]` words; the connections of the dead are closed.
    pub fn new(words: &[Letter], heard: &[usize], dead: &[Rank]) -> Scene {
        let world = heard.len() as u32 + 1;
        let survivor = |(rank, heard): (Rank, &usize)| Survivor {
            inquest: Inquest::new(rank, Group::job(world)),
            unread: words[..*heard].iter().filter(|word| word.group.ranks.contains(&rank)).cloned().collect(),
            bereft: false,
            alive: !dead.contains(&rank),
            heard: Vec::new(),
            over: 0,
        };
        let ranks = (1..).zip(heard).map(survivor).collect();
        Scene { world, now: Instant::now(), waited: Duration::ZERO, ranks, lines: Vec::new() }
    }

    fn rank(&mut self, rank: Rank) -> &mut Survivor {
        &mut self.ranks[rank as usize - 1]
    }

    fn alive(&self) -> impl Iterator<Item = (Rank, &Survivor)> {
        (1..).zip(&self.ranks).filter(|(_, rank)| rank.alive)
    }

    fn events(&self) -> Vec<Event> {
        let is_alive = |rank: Rank| self.ranks[rank as usize - 1].alive;
        let reads = self.alive().filter(|(_, rank)| !rank.bereft).map(|(rank, _)| Event::Read(rank));
        let lines = self.lines.iter().enumerate().flat_map(|(at, line)| {
            let answer = (!line.accepted).then_some(Event::Answer(at));
            let arrivals = (0..2).filter(move |end| !line.pipes[*end].notes.is_empty() && is_alive(line.ends[*end]));
            answer.into_iter().chain(arrivals.map(move |end| Event::Arrive(at, end)))
        });
        reads.chain(lines).collect()
    }

    fn happen(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Read(me) => self.read(me),
            Event::Answer(at) => self.answer(at),
            Event::Arrive(at, end) => {
                let (me, other) = (self.lines[at].ends[end], self.lines[at].ends[1 - end]);
                let pipe = &mut self.lines[at].pipes[end];
                let (note, open) = (pipe.notes.pop_front().expect("something is there"), pipe.open);
                pipe.open |= matches!(note, Note::Proof);
                let inquest = &mut self.rank(me).inquest;
                match note {
                    Note::Proof => inquest.reached(other, now),
                    Note::Says(letter) => assert!(inquest.hear(other, letter, now)),
                    Note::End if open => inquest.ended(other, now),
                    Note::End => inquest.missed(other, now),
                }
                self.act(me);
            }
        }
    }

    fn read(&mut self, me: Rank) {
        let (now, rank) = (self.now, self.rank(me));
        match rank.unread.pop_front() {
            Some(letter) => {
                rank.inquest.note(&letter, |_| false);
                rank.heard.push(letter);
            }
            None => {
                rank.bereft = true;
                rank.inquest.bereave(own(me), &[], now);
            }
        }
        self.act(me);
    }

    fn answer(&mut self, at: usize) {
        let (now, [caller, called]) = (self.now, self.lines[at].ends);
        self.lines[at].accepted = true;
        if !self.rank(called).alive {
            return self.lines[at].pipes[0].notes.push_back(Note::End);
        }
        self.lines[at].pipes[0].notes.push_back(Note::Proof);
        self.lines[at].pipes[1].open = true;
        self.rank(called).inquest.arrived(caller, now);
        self.act(called);
        if !self.rank(caller).alive {
            self.lines[at].pipes[1].notes.push_back(Note::End);
        }
    }

    fn act(&mut self, me: Rank) {
        for deed in self.rank(me).inquest.take() {
            match deed {
                Deed::Call(rank) => {
                    let (ends, pipes) = ([me, rank], [Pipe::default(), Pipe::default()]);
                    self.lines.push(Line { ends, pipes, accepted: false });
                }
                Deed::Tell(rank, letter) => {
                    for line in &mut self.lines {
                        let Some(mine) = (0..2).find(|end| line.ends[*end] == me && line.ends[1 - end] == rank) else {
                            continue;
                        };
                        if line.pipes[mine].open {
                            line.pipes[1 - mine].notes.push_back(Note::Says(letter.clone()));
                        }
                    }
                }
                Deed::Know(letter) => self.rank(me).heard.push(letter),
                Deed::Over(verdict) => {
                    let letter = verdict.map(|verdict| of_job(self.world, News::Verdict(verdict)));
                    self.rank(me).heard.extend(letter);
                    self.rank(me).over += 1;
                }
            }
        }
    }

    /// A rank dies; of what it has sent some may be lost, the latest first.
    fn kill(&mut self, rank: Rank, keep: usize) {
        self.rank(rank).alive = false;
        for line in &mut self.lines {
            let Some(its) = (0..2).find(|end| line.ends[*end] == rank) else { continue };
            if line.accepted {
                line.pipes[1 - its].notes.truncate(keep);
                line.pipes[1 - its].notes.push_back(Note::End);
            }
        }
    }

    /// Lets time pass until somebody wants to look again; false if nobody does.
    fn wait(&mut self) -> bool {
        let Some(deadline) = self.deadline() else { return false };
        self.waited += deadline - self.now;
        self.now = deadline;
        let alive: Vec<Rank> = self.alive().map(|(rank, _)| rank).collect();
        for rank in alive {
            self.rank(rank).inquest.tick(deadline);
            self.act(rank);
        }
        true
    }

    fn deadline(&self) -> Option<Instant> {
        self.alive().filter_map(|(_, rank)| rank.inquest.deadline()).min()
    }

    /// Lets everything happen, in the order that the dice say, until nothing does any more. In between a rank dies here and there,
    /// as long as another is left: at which step, and how many of its words are not lost.
    pub fn play(&mut self, dice: &[usize], deaths: &[(usize, Rank, usize)]) -> &mut Scene {
        for step in 0.. {
            assert!(step < 100_000, "it never ends");
            for (_, rank, keep) in deaths.iter().filter(|(at, ..)| *at == step) {
                if self.alive().any(|(other, _)| other != *rank) && self.rank(*rank).alive {
                    self.kill(*rank, *keep);
                }
            }
            let (events, die) = (self.events(), dice[step % dice.len()]);
            // The heir may grow impatient before what is on its way has come.
            let soon = self.deadline().is_some_and(|deadline| deadline - self.now <= Duration::from_millis(20));
            if events.is_empty() || (soon && die % 8 == 0) {
                if !self.wait() {
                    break;
                }
            } else {
                self.happen(events[die / 8 % events.len()]);
            }
        }
        self
    }

    /// What all survivors have heard, which must be the same.
    pub fn heard(&self) -> Vec<News> {
        let of_job = |rank: &Survivor| -> Vec<News> {
            rank.heard.iter().filter(|letter| letter.group.id.is_job()).map(|letter| letter.news.clone()).collect()
        };
        let all: Vec<Vec<News>> = self.alive().map(|(_, rank)| of_job(rank)).collect();
        assert!(self.alive().all(|(_, rank)| rank.over == 1), "it is over, once");
        assert!(all.iter().all(|heard| *heard == all[0]), "{all:#?}");
        all[0].clone()
    }

    /// What those of a group have heard of it.
    pub fn heard_of(&self, group: &Group) -> Vec<Vec<News>> {
        let members = self.alive().filter(|(rank, _)| group.ranks.contains(rank));
        let of_group = |rank: &Survivor| {
            rank.heard.iter().filter(|letter| letter.group == *group).map(|letter| letter.news.clone()).collect()
        };
        members.map(|(_, rank)| of_group(rank)).collect()
    }
}
