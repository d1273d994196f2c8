//! Rank 0's judges: one for the group of all, and one for each other group of which anything has been heard.
//!
//! What a group's members say goes to that group's judge, and what this decides to its members. Deaths are the business of the
//! judge of all: its verdict reaches everybody, and each rank applies it to all groups of which the lost were members.
//!
//! Pure, as the judges are.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::admission::{End, GroupId};
use crate::error::Rank;

use super::contacts::Member;
use super::judge::Judge;
use super::news::{Letter, News};
use super::roster::State;
use super::seat::Group;
use super::verdict::{Kind, Left, Verdict};

#[derive(Debug)]
pub(super) struct Court {
    members: Vec<Member>,
    job: Group,
    of_all: Judge,
    /// Others, until the last member has left.
    groups: BTreeMap<GroupId, (Group, Judge)>,
    /// Who has left the job or is lost.
    parted: Vec<(Rank, State)>,
}

impl Court {
    pub fn new(members: Vec<Member>, silence: Duration) -> Court {
        let job = Group::job(members.len() as u32);
        let of_all = Judge::new(members.clone(), silence);
        Court { members, job, of_all, groups: BTreeMap::new(), parted: Vec::new() }
    }

    /// The connection to a rank has ended.
    pub fn ended(&mut self, rank: Rank, end: End, now: Instant) {
        self.of_all.ended(rank, end, now);
    }

    /// A rank says something.
    pub fn hear(&mut self, from: Rank, letter: Letter, now: Instant) {
        let Letter { group, news } = letter;
        if group.id.is_job() {
            if let News::Left(Left { state: state @ (State::Finished | State::Raised), .. }) = news {
                self.part(from, state);
            }
            self.of_all.hear(from, news, now);
        } else if group.ranks.contains(&from) && !news.is_from_rank_0() {
            let Court { groups, members, parted, .. } = self;
            let (_, judge) = groups.entry(group.id).or_insert_with(|| {
                let mut judge = Judge::of_group(members.clone(), &group);
                parted.iter().for_each(|(rank, state)| judge.part(*rank, *state));
                (group, judge)
            });
            judge.hear(from, news, now);
        } else {
            self.of_all.ended(from, End::Garbled, now);
        }
    }

    fn part(&mut self, rank: Rank, state: State) {
        self.parted.push((rank, state));
        self.groups.values_mut().for_each(|(_, judge)| judge.part(rank, state));
    }

    /// When to call `tick`.
    pub fn deadline(&self) -> Option<Instant> {
        self.judges().filter_map(Judge::deadline).min()
    }

    fn judges(&self) -> impl Iterator<Item = &Judge> {
        std::iter::once(&self.of_all).chain(self.groups.values().map(|(_, judge)| judge))
    }

    pub fn tick(&mut self, now: Instant) {
        self.of_all.tick(now);
        self.groups.values_mut().for_each(|(_, judge)| judge.tick(now));
    }

    /// What the members of groups are to be told.
    pub fn take(&mut self) -> Vec<Letter> {
        let of_all = self.of_all.take();
        for news in &of_all {
            if let News::Verdict(Verdict { kind: Kind::Lost, ranks, .. }) = news {
                ranks.iter().for_each(|rank| self.part(*rank, State::Dead));
            }
        }
        let of_job = |news| Letter { group: self.job.clone(), news };
        let (left, others): (Vec<News>, Vec<News>) = of_all.into_iter().partition(|news| matches!(news, News::Left(_)));
        let mut out: Vec<Letter> = others.into_iter().map(of_job).collect();
        for (group, judge) in self.groups.values_mut() {
            out.extend(judge.take().into_iter().map(|news| Letter { group: group.clone(), news }));
        }
        // Who leaves the job has said before how far it came in each group. Without that it would be missed in all their calls.
        out.extend(left.into_iter().map(of_job));
        // Nobody will say anything of them any more.
        self.groups.retain(|_, (_, judge)| !judge.is_deserted());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::super::verdict::Report;
    use super::*;

    fn court(world: u32) -> Court {
        let member = |rank: u32| Member {
            address: ([127, 0, 0, 1], 1).into(),
            node: rank,
            pid: 100 + rank,
            host: format!("h{rank}"),
        };
        Court::new((0..world).map(member).collect(), Duration::from_secs(5))
    }

    fn group(ranks: &[Rank]) -> Group {
        Group { id: GroupId { list: 7, number: 0 }, ranks: ranks.into(), name: "rows[1]".into() }
    }

    fn left(rank: Rank, state: State) -> News {
        News::Left(Left { rank, state, completed: 3 })
    }

    fn verdicts(out: &[Letter]) -> Vec<(GroupId, &Verdict)> {
        out.iter()
            .filter_map(|letter| match &letter.news {
                News::Verdict(verdict) => Some((letter.group.id, verdict)),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn what_goes_wrong_in_a_group_is_judged_among_its_members() {
        let (mut court, group, now) = (court(5), group(&[3, 1]), Instant::now());
        let refused = Report::Refused { sequence: 4, reason: "no".into() };
        court.hear(3, Letter { group: group.clone(), news: News::Report(refused) }, now);
        court.tick(now + Duration::from_secs(1));
        let out = court.take();
        let found = verdicts(&out);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].0, found[0].1.kind), (group.id, Kind::Mismatch));
        assert!(found[0].1.text.contains("call #4 of group 'rows[1]' differs"), "{}", found[0].1.text);
    }

    #[test]
    fn how_far_a_rank_came_in_a_group_is_told_before_it_has_left_the_job() {
        let (mut court, group, now) = (court(5), group(&[3, 1]), Instant::now());
        let left = |completed| News::Left(Left { rank: 3, state: State::Finished, completed });
        let job = court.job.clone();
        court.hear(3, Letter { group: group.clone(), news: left(4) }, now);
        court.hear(3, Letter { group: job.clone(), news: left(9) }, now);
        assert_eq!(court.take(), [Letter { group, news: left(4) }, Letter { group: job, news: left(9) }]);
    }

    #[test]
    fn a_time_out_asks_and_blames_members_only() {
        let (mut court, group, now) = (court(5), group(&[3, 1, 4]), Instant::now());
        let say = |news| Letter { group: group.clone(), news };
        let waited = Duration::from_secs(1);
        let tired = Report::TimedOut { sequence: 2, call: "barrier()".into(), waited, awaited: Vec::new() };
        court.hear(3, say(News::Report(tired)), now);
        let out = court.take();
        let [Letter { group: asked, news: News::Where { question } }] = &out[..] else { panic!("{out:?}") };
        assert_eq!(asked, &group);
        for (rank, begun) in [(3, 2), (1, 2), (4, 1)] {
            court.hear(rank, say(News::Here { question: *question, begun, completed: 1 }), now);
        }
        let out = court.take();
        let found = verdicts(&out);
        assert_eq!((found.len(), found[0].0, &found[0].1.ranks[..]), (1, group.id, &[4][..]));
    }

    #[test]
    fn all_deaths_are_told_one_after_the_other_whatever_has_been_judged_before() {
        let (mut court, now) = (court(5), Instant::now());
        for (k, dead) in [2, 4].into_iter().enumerate() {
            let now = now + Duration::from_secs(k as u64);
            court.ended(dead, End::Closed, now);
            court.tick(now + Duration::from_millis(100));
            let out = court.take();
            let found = verdicts(&out);
            assert_eq!((found.len(), found[0].1.kind, &found[0].1.ranks[..]), (1, Kind::Lost, &[dead][..]));
        }
    }

    #[test]
    fn a_group_is_forgotten_when_its_last_member_has_left_it_or_the_job_or_is_lost() {
        let (mut court, group, now) = (court(5), group(&[1, 2, 3]), Instant::now());
        court.hear(1, Letter { group: group.clone(), news: left(1, State::Finished) }, now);
        assert_eq!(court.take().len(), 1, "the others are told");
        court.hear(2, Letter { group: Group::job(5), news: left(2, State::Raised) }, now);
        court.take();
        assert_eq!(court.groups.len(), 1);
        court.ended(3, End::Closed, now);
        court.tick(now + Duration::from_millis(100));
        court.take();
        assert!(court.groups.is_empty());
    }

    #[test]
    fn who_speaks_for_a_group_of_which_it_is_no_member_is_not_believed() {
        let (mut court, group, now) = (court(5), group(&[1, 2]), Instant::now());
        court.hear(3, Letter { group, news: left(3, State::Finished) }, now);
        court.tick(now + Duration::from_millis(100));
        let out = court.take();
        assert_eq!(verdicts(&out)[0].1.ranks, [3]);
    }
}
