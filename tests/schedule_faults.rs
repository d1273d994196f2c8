//! Schedules that are wrong in one way each, and the fault that `verify` finds. A prover that accepts everything proves nothing.
#![cfg(not(loom))]

use Collective::*;
use arx::schedule::verify::{Fault, verify};
use arx::schedule::{Algorithm, Apply, Collective, Rank, Schedule, Span, Step, ring};

const ARRAY: Span = Span { buf: arx::schedule::Buf::Data, lo: 0, hi: 1 };

/// The fault of two ranks, each with an array of one chunk, that do these steps.
fn fault_of_two(goal: Collective, first: Vec<Step>, second: Vec<Step>) -> Fault {
    let steps = [first, second];
    verify(goal, 2, |rank| Schedule { chunks: 1, scratch: 1, steps: steps[rank as usize].clone() }).expect_err("wrong")
}

/// Both do the same, each with the other.
fn fault_of_both(goal: Collective, steps: impl Fn(Rank) -> Vec<Step>) -> Fault {
    fault_of_two(goal, steps(1), steps(0))
}

fn swap(peer: Rank, apply: Apply) -> Step {
    Step::exchange((peer, ARRAY), (peer, ARRAY, apply))
}

fn local(dst: Span, srcs: &[Span], finish: bool) -> Step {
    Step::Local { dst, srcs: srcs.to_vec(), finish }
}

#[test]
fn ranks_that_each_begin_with_their_own_value_end_with_different_bits() {
    let flat = |rank: Rank| {
        let others: Vec<Rank> = (0..3).filter(|&other| other != rank).collect();
        let mut steps: Vec<Step> = (1..3)
            .map(|k| {
                let (to, from) = ((rank + k) % 3, (rank + 3 - k) % 3);
                let place = others.iter().position(|&other| other == from).expect("not this rank") as u32;
                Step::exchange((to, ARRAY), (from, Span::scratch(place), Apply::Store))
            })
            .collect();
        steps.push(local(ARRAY, &[ARRAY, Span::scratch(0), Span::scratch(1)], true));
        Schedule { chunks: 1, scratch: 2, steps }
    };
    // (0+1)+2 on rank 0, (1+0)+2 on rank 1, which is the same, and (2+0)+1 on rank 2, which is not.
    assert_eq!(verify(AllReduce, 3, flat), Err(Fault::NotIdentical { rank: 2, chunk: 0, other: 0 }));
}

/// One round more than needed, as XGBoost's all-gather had: it brings what is there.
#[test]
fn a_wasted_round_is_found() {
    let rounds = |rank: Rank| {
        let mut schedule = ring::all_gather(rank, 4);
        let next = Step::exchange(
            ((rank + 1) % 4, Span::data((rank + 1) % 4)),
            ((rank + 3) % 4, Span::data(rank), Apply::Store),
        );
        schedule.steps.push(next);
        schedule
    };
    assert_eq!(verify(AllGather, 4, rounds), Err(Fault::Redundant { rank: 0, step: 3, chunk: 0 }));
}

#[test]
fn a_missing_round_is_found() {
    let rounds = |rank: Rank| {
        let mut schedule = ring::all_gather(rank, 4);
        schedule.steps.pop();
        schedule
    };
    assert_eq!(verify(AllGather, 4, rounds), Err(Fault::Missing { rank: 3, chunk: 0, whose: 0 }));
}

/// Everything is there, but `0+(1+2)` is not `(0+1)+2`.
#[test]
fn a_prefix_in_another_order_is_found() {
    let scan = |rank: Rank| match rank {
        0 => Schedule::new(1, [Step::send(1, ARRAY), Step::send(2, ARRAY)]),
        1 => Schedule::new(1, [Step::send(2, ARRAY), Step::recv(0, ARRAY, Apply::Reduce)]),
        _ => Schedule::new(1, [Step::recv(1, ARRAY, Apply::Reduce), Step::recv(0, ARRAY, Apply::Reduce)]),
    };
    assert_eq!(verify(Scan, 3, scan), Err(Fault::NotInOrder { rank: 2, chunk: 0 }));
}

#[test]
fn a_prefix_with_too_much_or_too_little_is_found() {
    let inclusive = |rank| Algorithm::CHAIN.schedule(Scan, rank, 3).expect("served");
    assert_eq!(verify(Exscan, 3, inclusive), Err(Fault::NotInOrder { rank: 1, chunk: 0 }));
    let exclusive = |rank| Algorithm::CHAIN.schedule(Exscan, rank, 3).expect("served");
    assert_eq!(verify(Scan, 3, exclusive), Err(Fault::NotInOrder { rank: 1, chunk: 0 }));
}

/// Two ranks that exchange what they would keep.
#[test]
fn a_block_for_somebody_else_is_found() {
    let wrong = |rank: Rank| {
        let own = local(Span::data(2 + rank), &[Span::data(rank)], false);
        let swap = Step::exchange((1 - rank, Span::data(rank)), (1 - rank, Span::data(3 - rank), Apply::Store));
        Schedule::new(4, [own, swap])
    };
    // Of four chunks, first those of rank 0: what rank 1 has for itself comes where what it has for rank 0 belongs.
    assert_eq!(verify(AllToAll, 2, wrong), Err(Fault::Misplaced { rank: 0, step: 1, chunk: 3, place: 2 }));
    let nothing = |_| Schedule::new(4, []);
    assert_eq!(verify(AllToAll, 2, nothing), Err(Fault::Missing { rank: 0, chunk: 2, whose: 0 }));
}

#[test]
fn what_nobody_needs_is_found() {
    let goal = Reduce(0);
    let send_back = |rank: Rank| match rank {
        0 => vec![Step::recv(1, ARRAY, Apply::Finish), Step::send(1, ARRAY)],
        _ => vec![Step::send(0, ARRAY), Step::recv(0, ARRAY, Apply::Store)],
    };
    assert_eq!(fault_of_two(goal, send_back(0), send_back(1)), Fault::Redundant { rank: 1, step: 1, chunk: 0 });
}

#[test]
fn what_is_overwritten_unread_is_found() {
    let first = vec![Step::send(1, ARRAY), Step::recv(1, ARRAY, Apply::Finish)];
    let second = vec![
        Step::recv(0, Span::scratch(0), Apply::Store),
        local(Span::scratch(0), &[ARRAY], false),
        Step::send(0, ARRAY),
        local(ARRAY, &[Span::scratch(0)], false),
    ];
    assert_eq!(fault_of_two(Reduce(0), first, second), Fault::Redundant { rank: 1, step: 0, chunk: 0 });
}

#[test]
fn a_swapped_peer_is_found() {
    let wrong = |rank: Rank| {
        let mut schedule = ring::all_reduce(rank, 4);
        if let (1, Step::Exchange { recv: Some((from, ..)), .. }) = (rank, &mut schedule.steps[2]) {
            *from = 2;
        }
        schedule
    };
    assert_eq!(verify(AllReduce, 4, wrong), Err(Fault::NeverSent { rank: 1, step: 2, peer: 2 }));
}

#[test]
fn a_send_without_a_receive_is_found() {
    let fault = fault_of_two(Broadcast(0), vec![Step::send(1, ARRAY)], vec![]);
    assert_eq!(fault, Fault::NeverReceived { rank: 0, step: 0, peer: 1 });
}

#[test]
fn spans_of_different_lengths_are_found() {
    let broadcast = |rank| match rank {
        0 => Schedule::new(2, [Step::send(1, Span::run(0, 2))]),
        _ => Schedule::new(2, [Step::recv(0, Span::data(0), Apply::Store)]),
    };
    let fault = Fault::Lengths { rank: 1, step: 0, peer: 0, awaited: 1, sent: 2 };
    assert_eq!(verify(Broadcast(0), 2, broadcast), Err(fault));
}

#[test]
fn a_contribution_that_comes_twice_is_found() {
    let twice = |peer| vec![swap(peer, Apply::Reduce), swap(peer, Apply::Finish)];
    assert_eq!(fault_of_both(AllReduce, twice), Fault::Twice { rank: 1, step: 1, chunk: 0, whose: 0 });
    let itself = |peer| {
        vec![
            Step::send(peer, ARRAY),
            Step::recv(peer, Span::scratch(0), Apply::Store),
            local(ARRAY, &[Span::scratch(0), ARRAY, ARRAY], true),
        ]
    };
    assert_eq!(fault_of_both(AllReduce, itself), Fault::Twice { rank: 1, step: 2, chunk: 0, whose: 1 });
}

#[test]
fn a_finish_that_is_missing_or_early_or_late_is_found() {
    assert_eq!(
        fault_of_both(AllReduce, |peer| vec![swap(peer, Apply::Reduce)]),
        Fault::Unfinished { rank: 0, chunk: 0 }
    );
    let early = |peer| vec![local(ARRAY, &[ARRAY], true), swap(peer, Apply::Reduce)];
    assert_eq!(fault_of_both(AllReduce, early), Fault::FinishedEarly { rank: 0, step: 0, chunk: 0, whose: 1 });
    let again = |peer| vec![swap(peer, Apply::Finish), local(ARRAY, &[ARRAY], true)];
    assert_eq!(fault_of_both(AllReduce, again), Fault::FinishedBefore { rank: 0, step: 1, chunk: 0 });
    let after = |peer| vec![swap(peer, Apply::Finish), swap(peer, Apply::Reduce)];
    assert_eq!(fault_of_both(AllReduce, after), Fault::FinishedBefore { rank: 1, step: 1, chunk: 0 });
}

/// Each waits for what the other will only send after it has received.
#[test]
fn a_deadlock_is_found() {
    let wait = |peer| vec![Step::recv(peer, ARRAY, Apply::Reduce), Step::send(peer, ARRAY)];
    assert_eq!(fault_of_both(AllReduce, wait), Fault::Deadlock { rank: 0, step: 1, peer: 1, chunk: 0 });
}

/// Rank 1 first takes chunk 1 from rank 2, who gets it from rank 0, who first sends chunk 0 to rank 1: that would have to stay
/// in the link meanwhile.
#[test]
fn a_schedule_that_needs_room_in_the_links_is_a_deadlock() {
    let [zero, one] = [Span::data(0), Span::data(1)];
    let steps = [
        vec![Step::send(1, zero), Step::send(2, one)],
        vec![Step::recv(2, one, Apply::Store), Step::recv(0, zero, Apply::Store), Step::send(2, zero)],
        vec![Step::recv(0, one, Apply::Store), Step::send(1, one), Step::recv(1, zero, Apply::Store)],
    ];
    let fault = verify(Broadcast(0), 3, |rank| Schedule::new(2, steps[rank as usize].clone()));
    assert_eq!(fault, Err(Fault::Deadlock { rank: 0, step: 0, peer: 1, chunk: 0 }));
}

#[test]
fn what_was_never_written_cannot_be_read() {
    let scratch = |_| vec![local(ARRAY, &[ARRAY, Span::scratch(0)], true)];
    let fault = fault_of_both(AllReduce, scratch);
    assert_eq!(fault, Fault::Unwritten { rank: 0, step: 0, chunk: 0, buffer: "scratch" });
    let fault = fault_of_two(Broadcast(1), vec![Step::send(1, ARRAY)], vec![Step::recv(0, ARRAY, Apply::Store)]);
    assert_eq!(fault, Fault::Unwritten { rank: 0, step: 0, chunk: 0, buffer: "array" });
}

#[test]
fn a_chunk_in_the_place_of_another_is_found() {
    let crossed = |rank| match rank {
        0 => Schedule::new(2, [Step::send(1, Span::data(0)), Step::send(1, Span::data(1))]),
        _ => Schedule::new(2, [1, 0].map(|chunk| Step::recv(0, Span::data(chunk), Apply::Store))),
    };
    assert_eq!(verify(Broadcast(0), 2, crossed), Err(Fault::Misplaced { rank: 1, step: 0, chunk: 0, place: 1 }));
    let combined = |rank| match rank {
        0 => Schedule::new(2, [Step::send(1, Span::data(0))]),
        _ => Schedule::new(2, [Step::recv(0, Span::data(1), Apply::Reduce)]),
    };
    assert_eq!(verify(Reduce(1), 2, combined), Err(Fault::Misplaced { rank: 1, step: 0, chunk: 0, place: 1 }));
}

#[test]
fn scratch_that_has_no_length_is_found() {
    let first = vec![Step::send(1, ARRAY)];
    let second = vec![Step::recv(0, Span::scratch(0), Apply::Store)];
    assert_eq!(fault_of_two(Broadcast(0), first, second), Fault::NoLength { rank: 1, step: 0, chunk: 0 });
}

#[test]
fn what_does_not_exist_is_found() {
    let steps = |step: Step| fault_of_two(Broadcast(0), vec![step], vec![]);
    assert_eq!(steps(Step::send(0, ARRAY)), Fault::NoSuchPeer { rank: 0, step: 0, peer: 0 });
    assert_eq!(steps(Step::recv(2, ARRAY, Apply::Store)), Fault::NoSuchPeer { rank: 0, step: 0, peer: 2 });
    for span in [Span::data(1), Span::run(0, 2), Span::run(0, 0), Span::scratch(1)] {
        assert_eq!(steps(Step::send(1, span)), Fault::OutOfRange { rank: 0, step: 0, span });
    }
    assert_eq!(steps(local(ARRAY, &[], false)), Fault::Operands { rank: 0, step: 0 });
}

#[test]
fn operands_that_overlap_in_part_are_found() {
    let partly = |_| Schedule::new(3, [local(Span::run(0, 2), &[Span::run(1, 3)], false)]);
    assert_eq!(verify(AllReduce, 2, partly), Err(Fault::Operands { rank: 0, step: 0 }));
    let longer = |_| Schedule::new(3, [local(Span::data(0), &[Span::run(1, 3)], false)]);
    assert_eq!(verify(AllReduce, 2, longer), Err(Fault::Operands { rank: 0, step: 0 }));
}

#[test]
fn ranks_that_cut_the_array_differently_are_found() {
    let fault = Fault::Chunks { rank: 1, chunks: 2, expected: 1 };
    assert_eq!(verify(AllReduce, 2, |rank| Schedule::new(rank + 1, [])), Err(fault));
    let fault = Fault::Chunks { rank: 0, chunks: 2, expected: 3 };
    assert_eq!(verify(ReduceScatter, 3, |_| Schedule::new(2, [])), Err(fault));
}

#[test]
fn a_fault_says_where_it_is() {
    let fault = Fault::Deadlock { rank: 3, step: 5, peer: 2, chunk: 7 };
    assert_eq!(fault.to_string(), "deadlock: rank 3 stands in step 5, before chunk 7, in which it deals with rank 2");
    let fault = Fault::Twice { rank: 1, step: 2, chunk: 3, whose: 0 };
    assert_eq!(fault.to_string(), "rank 1, step 2: what rank 0 contributed to chunk 3 is combined a second time");
}

/// Nothing in a schedule is idle: without any one of its steps, or with another meaning of what is received, it is wrong.
#[test]
fn every_step_of_every_schedule_matters() {
    let names = "ring recursive doubling tree chain k_ary:2:2 double_tree:2 pairwise exchange";
    for algorithm in names.split(' ').map(|name| name.parse::<Algorithm>().expect("a known algorithm")) {
        for (world, goal) in (2..=7).flat_map(|world| goals(world).map(|goal| (world, goal))) {
            let Some(right) = (0..world).map(|rank| algorithm.schedule(goal, rank, world)).collect::<Option<Vec<_>>>()
            else {
                continue;
            };
            for (rank, step) in
                (0..world as usize).flat_map(|rank| (0..right[rank].steps.len()).map(move |i| (rank, i)))
            {
                for wrong in mutants(&right[rank], step) {
                    let build = |r: Rank| if r as usize == rank { wrong.clone() } else { right[r as usize].clone() };
                    let proved = verify(goal, world, build).is_ok();
                    assert!(!proved, "{algorithm}, {goal:?}, {world} ranks: rank {rank}, step {step}: {wrong:?}");
                }
            }
        }
    }
}

fn goals(world: u32) -> [Collective; 10] {
    let rooted = [Broadcast(world / 2), Reduce(world - 1), Gather(world / 2), Scatter(world - 1)];
    let [broadcast, reduce, gather, scatter] = rooted;
    [AllReduce, ReduceScatter, AllGather, AllToAll, Scan, Exscan, broadcast, reduce, gather, scatter]
}

/// The schedule without a step, and with another chunk, another use, or another peer in it.
fn mutants(right: &Schedule, step: usize) -> Vec<Schedule> {
    let with = |change: &dyn Fn(&mut Step)| {
        let mut wrong = right.clone();
        change(&mut wrong.steps[step]);
        wrong
    };
    let mut without = right.clone();
    without.steps.remove(step);
    let mut mutants = vec![without];
    match right.steps[step].clone() {
        Step::Exchange { send, recv } => {
            if let Some((to, span)) = send {
                let next =
                    Span { lo: (span.lo + 1) % right.chunks, hi: (span.lo + 1) % right.chunks + span.len(), ..span };
                if next != span {
                    mutants.push(with(&|step| *step = Step::Exchange { send: Some((to, next)), recv }));
                }
                mutants.push(with(&|step| *step = Step::Exchange { send: Some((to + 1, span)), recv }));
            }
            if let Some((from, span, apply)) = recv {
                let others = [Apply::Store, Apply::Reduce, Apply::Finish].into_iter().filter(|&other| other != apply);
                for other in others {
                    mutants.push(with(&|step| *step = Step::Exchange { send, recv: Some((from, span, other)) }));
                }
            }
        }
        Step::Local { dst, srcs, finish } => {
            mutants.push(with(&|step| *step = Step::Local { dst, srcs: srcs.clone(), finish: !finish }));
            mutants.push(with(&|step| *step = Step::Local { dst, srcs: srcs[1..].to_vec(), finish }));
            let doubled = [&srcs[..], &srcs[..1]].concat();
            mutants.push(with(&|step| *step = Step::Local { dst, srcs: doubled.clone(), finish }));
        }
    }
    mutants
}
