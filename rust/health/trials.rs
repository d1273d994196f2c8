//! Trials of the judge: events at times of our choosing, on no clock.

use std::time::{Duration, Instant};

use super::contacts::Member;
use super::judge::Judge;
use super::news::News;
use super::roster::State;
use super::verdict::{Kind, Left, Report, Verdict};
use crate::admission::End;
use crate::error::Rank;

const SILENCE: Duration = Duration::from_secs(5);

/// A judge, and what every rank would answer.
struct Trial {
    judge: Judge,
    start: Instant,
    now: Instant,
    /// Calls begun and completed; `None`: the rank does not answer.
    progress: Vec<Option<(u64, u64)>>,
    calls: Vec<Option<&'static str>>,
    told: Vec<News>,
}

impl Trial {
    /// Ranks by the node that each is in.
    fn new(nodes: &[u32]) -> Trial {
        let member = |(pid, node): (u32, &u32)| Member {
            address: ([10, 0, 0, 1], 1).into(),
            node: *node,
            pid,
            host: format!("h{node}"),
        };
        let start = Instant::now();
        let progress = vec![Some((7, 6)); nodes.len()];
        let calls = vec![None; nodes.len()];
        let judge = Judge::new((100..).zip(nodes).map(member).collect(), SILENCE);
        Trial { judge, start, now: start, progress, calls, told: Vec::new() }
    }

    /// Carries what the judge says to everybody, and what they answer back.
    fn spread(&mut self) {
        loop {
            let news = self.judge.take();
            if news.is_empty() {
                return;
            }
            for news in &news {
                for rank in 0..self.progress.len() {
                    let answer = match (news, self.progress[rank], self.calls[rank]) {
                        (News::Where { question }, Some((begun, completed)), _) => {
                            News::Here { question: *question, begun, completed }
                        }
                        (News::Say { sequence }, _, Some(call)) => {
                            News::Says { sequence: *sequence, call: call.into() }
                        }
                        _ => continue,
                    };
                    self.judge.hear(rank as Rank, answer, self.now);
                }
            }
            self.told.extend(news);
        }
    }

    fn at(&mut self, millis: u64) -> &mut Trial {
        self.now = self.start + Duration::from_millis(millis);
        self.judge.tick(self.now);
        self.spread();
        self
    }

    fn ends(&mut self, rank: Rank, end: End) -> &mut Trial {
        self.progress[rank as usize] = None;
        self.judge.ended(rank, end, self.now);
        self.spread();
        self
    }

    fn says(&mut self, rank: Rank, news: News) -> &mut Trial {
        self.judge.hear(rank, news, self.now);
        self.spread();
        self
    }

    fn reports(&mut self, rank: Rank, report: Report) -> &mut Trial {
        self.says(rank, News::Report(report))
    }

    fn verdicts(&self) -> Vec<&Verdict> {
        let verdicts = self.told.iter().filter_map(|news| match news {
            News::Verdict(verdict) => Some(verdict),
            _ => None,
        });
        verdicts.collect()
    }

    fn is_open(&self) -> bool {
        self.verdicts().is_empty()
    }

    /// The one verdict that there must be.
    fn verdict(&self) -> (Kind, Vec<Rank>) {
        let all = self.verdicts();
        assert_eq!(all.len(), 1, "{:?}", self.told);
        (all[0].kind, all[0].ranks.clone())
    }
}

fn timed_out(sequence: u64) -> Report {
    Report::TimedOut { sequence, call: "barrier()".into(), waited: SILENCE, awaited: Vec::new() }
}

fn broken(rank: Rank) -> Report {
    Report::Broken { sequence: 7, rank, why: "reset".into() }
}

fn left(state: State, completed: u64) -> News {
    // Whose it is comes from the connection, not from what it says.
    News::Left(Left { rank: 99, state, completed })
}

#[test]
fn deaths_within_20_ms_are_one() {
    let mut trial = Trial::new(&[0, 0, 1, 1]);
    trial.ends(3, End::Closed).at(19).ends(1, End::Closed);
    assert!(trial.is_open());
    trial.at(20);
    assert_eq!(trial.verdict(), (Kind::Lost, vec![1, 3]));
    // Groups of which only rank 2 was a member hear of it.
    trial.at(30).ends(2, End::Closed).at(5000);
    let lost: Vec<_> = trial.verdicts().iter().map(|verdict| verdict.ranks.clone()).collect();
    assert_eq!(lost, [vec![1, 3], vec![2]]);
}

#[test]
fn with_a_silent_host_go_its_silent_ranks_only() {
    // Rank 2 is found out first; rank 3 is silent too; rank 4, of the same node by mistake, answers; rank 5, of another
    // node, is stopped.
    let mut trial = Trial::new(&[0, 0, 1, 1, 1, 2]);
    trial.progress[3] = None;
    trial.progress[5] = None;
    trial.ends(2, End::Silent).at(299);
    assert!(trial.is_open());
    trial.at(300);
    assert_eq!(trial.verdict(), (Kind::Lost, vec![2, 3]));
    let text = &trial.verdicts()[0].text;
    assert!(text.contains("h1 (processes 102 and 103) has not answered for 5.00 s"), "{text}");
}

#[test]
fn silence_is_looked_into_once() {
    let mut trial = Trial::new(&[0, 1, 1, 1]);
    trial.ends(1, End::Silent).at(200).ends(2, End::Silent).at(290).ends(3, End::Silent).at(300);
    assert_eq!(trial.verdict(), (Kind::Lost, vec![1, 2, 3]));
    // A death that comes first does not cut it short.
    let mut trial = Trial::new(&[0, 1, 2]);
    trial.ends(1, End::Closed).at(10).ends(2, End::Silent).at(309);
    assert!(trial.is_open());
    trial.at(310);
    assert_eq!(trial.verdict(), (Kind::Lost, vec![1, 2]));
}

#[test]
fn a_death_explains_a_time_out_a_broken_link_and_a_difference() {
    let differs = Report::Differs { sequence: 7, call: "barrier()".into() };
    for report in [timed_out(7), broken(2), differs] {
        let mut trial = Trial::new(&[0, 1, 2]);
        trial.progress[2] = None;
        trial.reports(1, report).at(100).ends(2, End::Closed).at(120);
        assert_eq!(trial.verdict(), (Kind::Lost, vec![2]));
    }
}

#[test]
fn a_departure_explains_a_broken_link_and_a_time_out() {
    for report in [timed_out(7), broken(2)] {
        let mut trial = Trial::new(&[0, 1, 2]);
        trial.progress[2] = None;
        trial.reports(1, report).at(100).says(2, left(State::Raised, 6)).at(2000);
        assert_eq!(trial.verdict(), (Kind::Raised, vec![2]));
    }
    // Not one after the call, though.
    let mut trial = Trial::new(&[0, 1, 2]);
    trial.reports(1, broken(2)).says(2, left(State::Finished, 7)).at(999);
    assert!(trial.is_open());
    trial.at(1000);
    assert_eq!(trial.verdict(), (Kind::Failed, vec![1, 2]));
}

#[test]
fn departures_within_20_ms_are_one() {
    let stuck = Report::Stuck { sequence: 7, call: "barrier()".into() };
    let mut trial = Trial::new(&[0, 1, 2, 3]);
    trial.says(3, left(State::Finished, 6)).reports(1, stuck).at(19).says(2, left(State::Finished, 5)).at(20);
    assert_eq!(trial.verdict(), (Kind::Finished, vec![2, 3]));
    assert!(trial.told.contains(&News::Left(Left { rank: 3, state: State::Finished, completed: 6 })));
}

#[test]
fn who_has_left_may_hang_up() {
    let mut trial = Trial::new(&[0, 1, 2]);
    trial.says(2, left(State::Finished, 7)).ends(2, End::Closed).at(5000);
    assert!(trial.is_open());
}

#[test]
fn a_time_out_is_decided_as_soon_as_all_have_answered() {
    let mut trial = Trial::new(&[0, 1, 2]);
    trial.progress[2] = Some((6, 6));
    trial.reports(0, timed_out(7));
    assert_eq!(trial.verdict(), (Kind::TimedOut, vec![2]));
}

#[test]
fn who_does_not_answer_within_300_ms_is_missing() {
    let mut trial = Trial::new(&[0, 1, 2]);
    trial.progress[1] = None;
    trial.reports(0, timed_out(7)).at(299);
    assert!(trial.is_open());
    trial.at(300);
    assert_eq!(trial.verdict(), (Kind::TimedOut, vec![1]));
    assert!(trial.verdicts()[0].text.contains("does not answer"));
}

#[test]
fn in_a_chain_of_waiting_ranks_the_one_at_its_end_is_missing() {
    // Nobody is outside a call; rank 3 is furthest behind.
    let mut trial = Trial::new(&[0, 1, 2, 3]);
    trial.progress = vec![Some((7, 6)), Some((7, 6)), Some((6, 5)), Some((5, 4))];
    trial.reports(0, timed_out(7));
    assert_eq!(trial.verdict(), (Kind::TimedOut, vec![3]));
}

#[test]
fn a_difference_waits_a_second_for_who_is_in_the_call() {
    let differs = || Report::Differs { sequence: 7, call: "barrier()".into() };
    let mut trial = Trial::new(&[0, 1, 2]);
    trial.calls = vec![Some("barrier()"), None, None];
    trial.reports(1, differs()).at(999);
    assert!(trial.is_open());
    trial.at(1000);
    assert_eq!(trial.verdict().0, Kind::Mismatch);
    let text = &trial.verdicts()[0].text;
    assert!(text.contains("ranks 0 and 1 called barrier(); rank 2 did not say"), "{text}");

    // Nobody waits for who has completed it, or is not there yet.
    let mut trial = Trial::new(&[0, 1, 2, 3]);
    trial.calls[2] = Some("broadcast(root=2)");
    trial.progress = vec![Some((8, 7)), Some((7, 6)), Some((7, 6)), Some((6, 6))];
    trial.reports(1, differs());
    let text = &trial.verdicts()[0].text;
    let parts =
        "rank 1 called barrier(); rank 2 called broadcast(root=2); rank 0 completed it; rank 3 did not call it yet";
    assert!(text.contains(parts), "{text}");
}

#[test]
fn a_refusal_lets_others_end_the_call_before() {
    let refused = || Report::Refused { sequence: 8, reason: "x is read-only".into() };
    let verdict = (Kind::Mismatch, vec![0]);
    // Rank 1 is inside call 7, which needs nothing of rank 0 any more, and will come to call 8.
    let mut trial = Trial::new(&[0, 1, 2]);
    trial.progress = vec![Some((7, 7)), Some((7, 6)), Some((8, 7))];
    trial.reports(0, refused()).at(500);
    assert!(trial.is_open());
    trial.says(1, News::Says { sequence: 8, call: "barrier()".into() });
    assert_eq!(trial.verdict(), verdict);
    // One that stays there is not waited for longer than a second.
    let mut trial = Trial::new(&[0, 1, 2]);
    trial.progress = vec![Some((7, 7)), Some((7, 6)), Some((8, 7))];
    trial.reports(0, refused()).at(999);
    assert!(trial.is_open());
    trial.at(1000);
    assert_eq!(trial.verdict(), verdict);
    // Nobody waits for who is in no call, nor for who has left.
    let mut trial = Trial::new(&[0, 1, 2]);
    trial.progress = vec![Some((7, 7)), Some((5, 5)), None];
    trial.says(2, left(State::Finished, 7)).reports(0, refused());
    assert_eq!(trial.verdict(), verdict);
}

#[test]
fn of_a_refusal_and_a_difference_the_earlier_one_is_the_cause() {
    let refused = |sequence| Report::Refused { sequence, reason: "x is read-only".into() };
    let differs = |sequence| Report::Differs { sequence, call: "barrier()".into() };
    for (first, second, blamed) in [(differs(8), refused(7), 0), (refused(8), differs(7), 1)] {
        let mut trial = Trial::new(&[0, 1]);
        trial.progress = vec![Some((7, 6)), None];
        trial.reports(1, first).reports(0, second).at(1000);
        assert_eq!(trial.verdict().0, Kind::Mismatch);
        let text = &trial.verdicts()[0].text;
        assert!(text.starts_with("call #7 differs"), "{text}");
        assert_eq!(text.contains("rank 0 could not take part"), blamed == 0, "{text}");
    }
}

#[test]
fn who_waits_for_the_verdict_has_described_its_call() {
    let mut trial = Trial::new(&[0, 1]);
    trial.progress[1] = None;
    trial.reports(1, Report::Stuck { sequence: 7, call: "barrier()".into() });
    trial.reports(0, Report::Differs { sequence: 7, call: "broadcast(root=0)".into() });
    let text = &trial.verdicts()[0].text;
    assert!(text.contains("rank 0 called broadcast(root=0); rank 1 called barrier()"), "{text}");
}

#[test]
fn of_two_differences_the_earlier_one_is_the_cause() {
    // Rank 0 has sent its broadcast and gone on; the others are in the call before.
    let mut trial = Trial::new(&[0, 1, 2]);
    trial.progress = vec![Some((8, 7)), Some((7, 6)), Some((7, 6))];
    trial.reports(0, Report::Differs { sequence: 8, call: "all_reduce(op=sum)".into() }).at(100);
    assert!(trial.is_open());
    trial.calls = vec![None, Some("barrier()"), Some("barrier()")];
    trial.reports(1, Report::Differs { sequence: 7, call: "barrier()".into() });
    assert_eq!(trial.verdict().0, Kind::Mismatch);
    let text = &trial.verdicts()[0].text;
    assert!(
        text.contains("call #7 differs between ranks: ranks 1 and 2 called barrier(); rank 0 completed it"),
        "{text}"
    );
}

#[test]
fn where_all_call_the_same_an_earlier_call_was_not() {
    // Both have sent their broadcast, each as its root, and gone on.
    let mut trial = Trial::new(&[0, 1]);
    trial.calls = vec![Some("barrier()"), Some("barrier()")];
    trial.reports(0, Report::Differs { sequence: 7, call: "barrier()".into() }).at(1000);
    let text = &trial.verdicts()[0].text;
    assert!(text.starts_with("a call before #7 differed between ranks"), "{text}");
    assert!(text.contains("where ranks 0 and 1 called barrier(). Did all name the same root"), "{text}");
}

#[test]
fn ranks_that_linger_in_different_calls_differ_though_none_of_them_has_noticed() {
    let mut trial = Trial::new(&[0, 1, 2]);
    trial.calls = vec![Some("barrier()"), Some("barrier()"), Some("broadcast(root=2)")];
    let lingers = |sequence, fingerprint| News::Lingers { sequence, fingerprint };
    trial.says(0, lingers(7, 1)).says(1, lingers(7, 1)).says(2, lingers(6, 2)).at(5000);
    assert!(trial.is_open(), "one call cannot differ from another");
    trial.says(2, lingers(7, 2));
    assert_eq!(trial.verdict(), (Kind::Mismatch, vec![2]));
}

#[test]
fn who_gave_up_waiting_for_rank_0_is_not_to_blame_for_leaving() {
    // Rank 0 was stopped, and wakes to find that the others have waited and left.
    let mut trial = Trial::new(&[0, 1, 2]);
    trial.progress[0] = Some((6, 6));
    trial.reports(1, timed_out(7)).reports(2, timed_out(7));
    assert_eq!(trial.verdict(), (Kind::TimedOut, vec![0]));
    for first in [Report::Stuck { sequence: 7, call: "barrier()".into() }, broken(1)] {
        let mut trial = Trial::new(&[0, 1]);
        trial.progress = vec![Some((7, 6)), None];
        trial.reports(1, timed_out(7)).says(1, left(State::Finished, 6)).reports(0, first).at(1000);
        assert_eq!(trial.verdict(), (Kind::TimedOut, vec![0]));
    }
}

#[test]
fn ranks_that_are_none_and_words_out_of_turn_do_no_harm() {
    let mut trial = Trial::new(&[0, 1]);
    trial.reports(1, broken(77)).at(1000);
    assert_eq!(trial.verdict(), (Kind::Failed, vec![1, 77]));
    for news in [News::Where { question: 1 }, News::Say { sequence: 1 }, News::Bereft] {
        let mut trial = Trial::new(&[0, 1]);
        trial.says(1, news).at(20);
        assert_eq!(trial.verdict(), (Kind::Lost, vec![1]));
    }
}
