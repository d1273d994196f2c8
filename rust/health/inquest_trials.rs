//! Trials of the inquest: who says what, whoever dies and whenever.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::inquest::{Deed, Inquest};
use super::inquest_scene::{Scene, lost, of_job, own};
use super::news::{Letter, News};
use super::roster::State;
use super::seat::Group;
use super::verdict::{Kind, Left, Verdict};
use crate::admission::GroupId;
use crate::error::Rank;

fn group(ranks: &[Rank]) -> Group {
    Group { id: GroupId { list: 7, number: 0 }, ranks: ranks.into(), name: "g".into() }
}

fn left(world: u32) -> Letter {
    of_job(world, News::Left(Left { rank: 0, state: State::Finished, completed: 5 }))
}

#[test]
fn if_only_rank_0_dies_the_heir_says_so_without_waiting() {
    for world in 2..=7_u32 {
        let mut scene = Scene::new(&[], &vec![0; world as usize - 1], &[]);
        assert_eq!(scene.play(&[1], &[]).heard(), [News::Verdict(own(1))]);
        assert_eq!(scene.waited, Duration::ZERO);
    }
}

#[test]
fn what_one_rank_has_heard_all_say_first() {
    let death = of_job(5, News::Verdict(lost(&[3])));
    for hearer in [1, 2, 4] {
        let mut heard = [0; 4];
        heard[hearer - 1] = 1;
        let mut scene = Scene::new(std::slice::from_ref(&death), &heard, &[3]);
        assert_eq!(scene.play(&[1], &[]).heard(), [death.news.clone(), News::Verdict(own(1))]);
    }
}

#[test]
fn the_dead_are_waited_for_as_long_as_deaths_may_lie_apart() {
    let mut scene = Scene::new(&[], &[0; 4], &[3]);
    assert_eq!(scene.play(&[1], &[]).heard(), [News::Verdict(own(1))]);
    assert_eq!(scene.waited, Duration::from_millis(20));
    let mut scene = Scene::new(&[], &[0; 4], &[1]);
    assert_eq!(scene.play(&[1], &[]).heard(), [News::Verdict(own(2))]);
    assert_eq!(scene.waited, Duration::ZERO, "nobody waits for an heir who does not answer");
}

#[test]
fn who_has_heard_that_rank_0_left_tells_the_others() {
    for hearer in 1..=3 {
        let mut heard = [0; 3];
        heard[hearer - 1] = 1;
        let mut scene = Scene::new(&[left(4)], &heard, &[]);
        assert_eq!(scene.play(&[1], &[]).heard(), [left(4).news]);
    }
}

/// Rank 2 of four, bereft.
fn second() -> (Inquest, Instant) {
    let (mut inquest, now) = (Inquest::new(2, Group::job(4)), Instant::now());
    inquest.bereave(own(2), &[], now);
    assert_eq!(inquest.take(), [Deed::Call(1)]);
    (inquest, now)
}

fn after(now: Instant, millis: u64) -> Instant {
    now + Duration::from_millis(millis)
}

#[test]
fn nobody_waits_for_those_who_have_left_the_job() {
    let (mut inquest, now) = (Inquest::new(2, Group::job(5)), Instant::now());
    inquest.bereave(own(2), &[1, 3, 4], now);
    assert_eq!(inquest.take(), [Deed::Over(Some(own(2)))]);
}

#[test]
fn that_is_all_is_said_to_an_heir_when_nothing_more_can_come_from_those_before() {
    let (mut inquest, now) = (Inquest::new(3, Group::job(5)), Instant::now());
    let [death, bereft] = [News::Verdict(lost(&[4])), News::Bereft].map(|news| of_job(5, news));
    inquest.bereave(own(3), &[], now);
    inquest.reached(1, now);
    assert_eq!(inquest.take(), [Deed::Call(1), Deed::Tell(1, bereft.clone())]);
    // Rank 2 has seen the end of rank 1 already; here its last words are still on their way.
    inquest.arrived(2, now);
    assert_eq!(inquest.take(), []);
    assert!(inquest.hear(1, death.clone(), now));
    assert_eq!(inquest.take(), [Deed::Tell(2, death.clone()), Deed::Know(death)]);
    inquest.ended(1, now);
    assert_eq!(inquest.take(), [Deed::Tell(2, bereft)]);
}

#[test]
fn of_two_connections_to_a_rank_both_are_read_to_the_end() {
    let (mut inquest, now) = second();
    let death = of_job(4, News::Verdict(lost(&[3])));
    inquest.arrived(1, now);
    inquest.missed(1, now);
    assert!(inquest.hear(1, death.clone(), now));
    let bereft = of_job(4, News::Bereft);
    assert_eq!(inquest.take(), [Deed::Tell(1, bereft), Deed::Know(death)]);
    inquest.ended(1, now);
    assert_eq!(inquest.take(), [Deed::Over(Some(own(2)))], "rank 3 is lost, and nobody else is there");
}

#[test]
fn an_heir_that_does_not_answer_is_passed_over_and_no_longer_listened_to() {
    let (mut inquest, now) = second();
    inquest.tick(after(now, 499));
    assert_eq!(inquest.take(), []);
    inquest.tick(after(now, 500));
    inquest.tick(after(now, 520));
    assert_eq!(inquest.take(), [Deed::Call(3)]);
    inquest.reached(1, after(now, 530));
    assert!(inquest.hear(1, of_job(4, News::Verdict(own(1))), after(now, 530)));
    inquest.tick(after(now, 1019));
    assert!(!inquest.is_quiet());
    inquest.tick(after(now, 1020));
    let verdict = of_job(4, News::Verdict(own(2)));
    let bereft = of_job(4, News::Bereft);
    assert_eq!(inquest.take(), [Deed::Tell(1, bereft), Deed::Tell(1, verdict), Deed::Over(Some(own(2)))]);
    assert!(inquest.is_quiet() && inquest.deadline().is_none());
}

#[test]
fn an_heir_that_answers_and_says_nothing_is_waited_for_two_seconds() {
    let (mut inquest, now) = second();
    inquest.reached(1, after(now, 1));
    assert_eq!(inquest.take(), [Deed::Tell(1, of_job(4, News::Bereft))]);
    inquest.tick(after(now, 1999));
    assert_eq!(inquest.take(), []);
    inquest.tick(after(now, 2000));
    assert_eq!(inquest.take().last(), Some(&Deed::Over(Some(own(2)))));
}

#[test]
fn who_still_hears_rank_0_tells_what_it_said_and_believes_nobody_else() {
    let (mut inquest, now) = (Inquest::new(1, Group::job(4)), Instant::now());
    let [first, second] = [3, 2].map(|rank| of_job(4, News::Verdict(lost(&[rank]))));
    inquest.note(&first, |_| false);
    inquest.arrived(2, now);
    inquest.note(&second, |_| false);
    assert_eq!(inquest.take(), [Deed::Tell(2, first), Deed::Tell(2, second)]);
    assert!(inquest.hear(2, of_job(4, News::Verdict(own(2))), now));
    assert!(inquest.hear(2, of_job(4, News::Bereft), now));
    assert_eq!(inquest.take(), []);
    assert!(inquest.is_quiet());
}

#[test]
fn what_concerns_a_group_that_was_left_is_forgotten() {
    let (mut inquest, now) = (Inquest::new(1, Group::job(4)), Instant::now());
    let of_group = Letter { group: group(&[1, 3]), news: News::Verdict(lost(&[3])) };
    let of_all = of_job(4, News::Verdict(lost(&[3])));
    inquest.note(&of_group, |_| false);
    inquest.note(&of_all, |known| known.id == of_group.group.id);
    inquest.arrived(2, now);
    assert_eq!(inquest.take(), [Deed::Tell(2, of_all)]);
}

#[test]
fn words_out_of_turn_are_not_taken() {
    let (mut inquest, now) = second();
    inquest.reached(1, now);
    let of_group = Letter { group: group(&[1, 2]), news: News::Bereft };
    let other = of_job(4, News::Left(Left { rank: 3, state: State::Finished, completed: 5 }));
    for letter in [of_group, other, of_job(4, News::Where { question: 1 }), of_job(4, News::Say { sequence: 1 })] {
        assert!(!inquest.hear(1, letter, now));
    }
}

/// What rank 0 says before it dies, of which each rank has heard the beginning.
fn words(world: u32, dead: &[Rank], leaves: bool) -> Vec<Letter> {
    let deaths = dead.iter().map(|rank| of_job(world, News::Verdict(lost(&[*rank]))));
    let failed = Verdict { kind: Kind::Failed, ranks: vec![1], text: "a failure".into() };
    let group = group(&(1..world).step_by(2).collect::<Vec<_>>());
    let of_group = Letter { group, news: News::Verdict(failed) };
    deaths
        .take(1)
        .chain([of_group])
        .chain(dead.iter().skip(1).map(|rank| of_job(world, News::Verdict(lost(&[*rank])))))
        .chain(leaves.then(|| left(world)))
        .collect()
}

prop_compose! {
    fn scenes()(world in 3..=7_u32)(
        world in Just(world),
        dead in proptest::sample::subsequence((1..world).collect::<Vec<_>>(), 0..world as usize - 1),
        heard in proptest::collection::vec(0..=world as usize + 1, world as usize - 1),
        leaves in any::<bool>(),
        dice in proptest::collection::vec(0..1_000_000_usize, 1..200),
        deaths in proptest::collection::vec((0..80_usize, 1..world, 0..4_usize), 0..4),
    ) -> (Vec<Letter>, Vec<usize>, Vec<Rank>, Vec<usize>, Vec<(usize, Rank, usize)>) {
        let words = words(world, &dead, leaves);
        let heard = heard.into_iter().map(|heard| heard.min(words.len())).collect();
        (words, heard, dead, dice, deaths)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn whoever_dies_when_the_others_hear_the_same((words, heard, dead, dice, deaths) in scenes()) {
        let mut scene = Scene::new(&words, &heard, &dead);
        scene.play(&dice, &deaths);
        let all = scene.heard();
        prop_assert!(matches!(all.last(), Some(News::Verdict(_) | News::Left(_))));
        let of_job: Vec<News> =
            words.iter().filter(|word| word.group.id.is_job()).map(|word| word.news.clone()).collect();
        let said = all.len() - usize::from(all.last() != of_job.last());
        prop_assert_eq!(&all[..said], &of_job[..said], "what rank 0 said, in its order");
        let group = words.iter().find(|word| !word.group.id.is_job()).expect("one").group.clone();
        let of_group = scene.heard_of(&group);
        // Who knows that rank 0 left asks nobody.
        let asked = matches!(all.last(), Some(News::Verdict(_)));
        prop_assert!(!asked || of_group.iter().all(|heard| *heard == of_group[0]), "{of_group:?}");
        prop_assert!(scene.waited < Duration::from_millis(200), "no time limit was needed");
    }
}
