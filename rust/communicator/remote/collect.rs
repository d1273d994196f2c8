//! The collectives that move or combine blocks, over several hosts: which way each of them goes.
//!
//! ```text
//! hierarchical   reduce, all_gather, reduce_scatter         each byte crosses the wire once for each host
//! flat           gather, scatter, all_to_all, scan, exscan  all ranks by messages: no byte would be saved
//! ```
//! An algorithm that is asked for and does not serve the collective is a wish that cannot be granted; the best one is taken.

use crate::blocks::ASK;
use crate::direct::Verdict;
use crate::engine::Halt;
use crate::hierarchy::{Announced, Session, Way};
use crate::kernels::Bytes;
use crate::schedule;
use crate::wait::Host;

use super::super::algorithm::Algorithm;
use super::super::call::{Call, Collective, Cut};
use super::super::local::Fault;
use super::super::network;
use super::Remote;

/// What a rank gets, and what it brings.
type Pair<'a> = (Bytes<'a>, Bytes<'a>);

impl Remote {
    /// Any other collective; if blocks are not as long as was supposed, their lengths.
    pub fn collect(
        &mut self,
        sequence: u64,
        call: &Call<'_>,
        cut: &Cut<'_>,
        (dst, src): Pair<'_>,
        host: &mut dyn Host,
    ) -> Result<Option<Vec<usize>>, Fault> {
        if moves_nothing(call, cut, src.len()) {
            return self.barrier(sequence, call, host).map(|()| None);
        }
        let goal = network::goal(call.collective);
        let way = self.way(call, goal, cut.give.total().max(cut.take.total()));
        let first = guesses(call).then(|| Way::Hierarchical(self.network.announcement(&self.hosts)));
        let mut lengths = None;
        self.run(sequence, call, host, |session| match call.collective {
            Collective::Reduce { root, .. } => session.reduce(way, root, call.reduction(), dst, src),
            Collective::ReduceScatter(_) => session.reduce_scatter(way, call.reduction(), &cut.give, (dst, src)),
            _ => {
                if session.arrive()? == Verdict::Differs {
                    return Ok(Verdict::Differs);
                }
                let guess = first.map_or(Ok(Guess::Right), |first| try_guess(session, first, (dst, src), cut.ask))?;
                match guess {
                    Guess::Wrong(found) => lengths = Some(found),
                    Guess::Delivered => {}
                    Guess::Right => move_or_scan(session, way, call, cut, (dst, src))?,
                }
                Ok(Verdict::Agreed)
            }
        })?;
        Ok(lengths)
    }

    /// As was asked for, if that serves, or what is best for so many bytes.
    fn way(&mut self, call: &Call<'_>, goal: schedule::Collective, bytes: usize) -> Way {
        match call.algorithm {
            Algorithm::Flat(algorithm) if algorithm.serves(goal) => Way::Flat(algorithm),
            Algorithm::Hierarchical(Some(algorithm)) if algorithm.serves(goal) => Way::Hierarchical(algorithm),
            _ => Way::Hierarchical(self.network.algorithm(call, bytes, &self.hosts)),
        }
    }
}

/// What comes after the arrival and needs no more than that.
fn move_or_scan(
    session: &mut Session<'_, '_>,
    way: Way,
    call: &Call<'_>,
    cut: &Cut<'_>,
    arrays: Pair<'_>,
) -> Result<(), Halt> {
    let (Way::Hierarchical(algorithm) | Way::Flat(algorithm)) = way;
    match call.collective {
        Collective::AllGather { .. } => session.all_gather(way, &cut.take, arrays),
        Collective::Gather { root, .. } => session.gather(algorithm, root, &cut.take, arrays),
        Collective::Scatter { root } => session.scatter(algorithm, root, &cut.give, arrays),
        Collective::AllToAll { .. } => session.all_to_all(algorithm, (&cut.give, &cut.take), arrays),
        Collective::Scan(_) | Collective::Exscan(_) => {
            session.scan(network::goal(call.collective), algorithm, call.reduction(), arrays)
        }
        other => unreachable!("{other:?} has a way of its own"),
    }
}

/// Whether blocks may be of other lengths than this rank supposes.
fn guesses(call: &Call<'_>) -> bool {
    matches!(call.collective, Collective::AllGather { .. } | Collective::Gather { .. }) && call.counts.is_empty()
}

/// What comes of supposing that all blocks are as long as this rank's.
enum Guess {
    /// They are not, or somebody asks; their lengths.
    Wrong(Vec<usize>),
    Right,
    /// They are, and so short that they have come with their lengths.
    Delivered,
}

/// All ranks come to the same answer.
fn try_guess(session: &mut Session<'_, '_>, way: Way, (dst, src): Pair<'_>, ask: bool) -> Result<Guess, Halt> {
    let all = session.announce(way, src, ask)?;
    let lengths = all.lengths();
    if lengths.iter().any(|len| *len != src.len()) {
        return Ok(Guess::Wrong(lengths.into_iter().map(|len| len & !ASK).collect()));
    }
    if src.len() > Announced::SHORT {
        return Ok(Guess::Right);
    }
    all.deliver(src.len(), dst);
    Ok(Guess::Delivered)
}

/// Whether all ranks know that there is nothing to be moved.
fn moves_nothing(call: &Call<'_>, cut: &Cut<'_>, brings: usize) -> bool {
    match call.collective {
        Collective::AllGather { .. } | Collective::Gather { .. } => !guesses(call) && cut.take.total() == 0,
        Collective::Scatter { .. } | Collective::ReduceScatter(_) => cut.give.total() == 0,
        Collective::AllToAll { .. } => false,
        _ => brings == 0,
    }
}
