//! What a codec needs of the message path: the owners of one part on all hosts pass payloads on.

use std::cell::Cell;
use std::ops::Range;

use crate::dtype::{DType, ReduceOp};
use crate::engine::{Arithmetic, Halt, Header};
use crate::error::Rank;
use crate::hierarchy::{arithmetic, bytes};
use crate::kernels::{Bytes, bytes_of};
use crate::messages::{Arrays, Cut, Messages, Request, Team};
use crate::plan::{Chunk, Home};
use crate::schedule::{Algorithm, Collective};
use crate::transport::Broken;
use crate::wait::Wait;

use super::FLOAT;

/// Algorithms for messages of a codec's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ways {
    pub all_gather: Algorithm,
    /// Of float32, in the order of hosts as far as that is ever so.
    pub all_reduce: Algorithm,
    pub broadcast: Algorithm,
}

/// The way between hosts, for one call.
pub(super) struct Leg<'l, 'w> {
    pub messages: &'l mut Messages,
    pub team: Team,
    pub header: Header,
    pub wait: &'l mut Wait<'w>,
    pub ways: Ways,
}

impl Leg<'_, '_> {
    pub fn hosts(&self) -> usize {
        self.team.size() as usize
    }

    /// This host's place among them.
    pub fn me(&self) -> usize {
        self.team.place() as usize
    }

    /// Block `h` of `source` goes to host `h`; of `into`, one behind the other, the blocks of all hosts for this one.
    pub fn deal(&mut self, source: &mut [u8], blocks: &[Range<usize>], into: &mut [u8]) -> Result<(), Halt> {
        let each = blocks[self.me()].len();
        let chunks: Vec<Chunk> = (blocks.iter().map(|block| chunk(Home::Source(block.start), block.len())))
            .chain((0..self.hosts()).map(|host| chunk(Home::Array(host * each), each)))
            .collect();
        let arrays = Arrays { array: cells(into), source: cells(source), cut: Cut::Chunks(&chunks) };
        self.run((Collective::AllToAll, Algorithm::Pairwise), (1, bytes().1), &arrays, true)
    }

    /// All blocks of `array` come from their hosts, where they lie in the same place. `again`: they will be as long next time.
    pub fn gather(&mut self, array: &mut [u8], blocks: &[Range<usize>], again: bool) -> Result<(), Halt> {
        let chunks: Vec<Chunk> = blocks.iter().map(|block| chunk(Home::Array(block.start), block.len())).collect();
        let arrays = Arrays { array: cells(array), source: &[], cut: Cut::Chunks(&chunks) };
        self.run((Collective::AllGather, self.ways.all_gather), (1, bytes().1), &arrays, again)
    }

    /// One number of each host.
    pub fn numbers(&mut self, mine: u64) -> Result<Vec<u64>, Halt> {
        const WORD: usize = size_of::<u64>();
        let mut array = vec![0; WORD * self.hosts()];
        let blocks: Vec<Range<usize>> = (0..self.hosts()).map(|host| WORD * host..WORD * (host + 1)).collect();
        array[blocks[self.me()].clone()].copy_from_slice(&mine.to_le_bytes());
        self.gather(&mut array, &blocks, true)?;
        Ok(array.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
    }

    /// `array` becomes what it is on `host`.
    pub fn broadcast(&mut self, host: usize, array: &mut [u8]) -> Result<(), Halt> {
        let collective = Collective::Broadcast(host as Rank);
        self.run((collective, self.ways.broadcast), (1, bytes().1), &Arrays::even(cells(array)), false)
    }

    /// The sums of all hosts' `values`.
    pub fn sum(&mut self, values: &mut [f32]) -> Result<(), Halt> {
        let code = arithmetic(DType::Float32, ReduceOp::Sum, self.hosts());
        let arrays = Arrays::even(bytes_of(values));
        self.run((Collective::AllReduce, self.ways.all_reduce), (FLOAT, code), &arrays, true)
    }

    fn run(
        &mut self,
        (collective, algorithm): (Collective, Algorithm),
        (elem, code): (usize, Arithmetic),
        arrays: &Arrays<'_>,
        again: bool,
    ) -> Result<(), Halt> {
        let request = Request { collective, algorithm, team: self.team.clone(), elem };
        let run = if again { Messages::run } else { Messages::run_once };
        run(self.messages, &request, arrays, code, self.header, self.wait)
    }

    /// What `host` sent is no payload.
    pub fn garbled(&self, host: usize, why: &str) -> Halt {
        Halt::Broken(Broken { rank: self.team.ranks()[host], why: format!("it sent what no codec writes: {why}") })
    }
}

fn chunk(home: Home, len: usize) -> Chunk {
    Chunk { home, len }
}

fn cells(bytes: &mut [u8]) -> Bytes<'_> {
    Cell::from_mut(bytes).as_slice_of_cells()
}
