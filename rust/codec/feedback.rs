//! What a rank remembers of one array from call to call: error feedback, and momentum that is corrected for it.
//!
//! ```text
//! plain       p = g + e                  sent: C(p)    e' = p − what C(p) says          Seide et al. 2014, Karimireddy et al. 2019
//! momentum    u = m·u + g, p = u + e     the same; where an element was sent, u' = 0    Lin et al., DGC, ICLR 2018
//! ```
//! The sum over all ranks of what was sent and of what they keep is the sum of what they brought and kept before. Who combines
//! what the hosts send and encodes the sum once more keeps the error of that, too.
//!
//! A step has two phases: `begin` makes the next state beside the present one, `commit` puts it in its place. A call that fails, or
//! whose result is not finite (so that the program will skip the step), leaves everything as it was.

use std::ops::Range;

use crate::dtype::{DType, ReduceOp};
use crate::kernels::{Bytes, Reducer, bytes_of, copy};

use super::sparse::Make;

/// Between calls, `next` holds nothing of value.
#[derive(Clone, Debug, Default)]
pub struct Feedback {
    momentum: f32,
    /// What the state belongs to; another array starts from nothing.
    of: Option<Of>,
    now: State,
    next: State,
    steps: u64,
}

/// An array, and the part of it that this rank sends for its host.
#[derive(Clone, Debug, PartialEq)]
pub struct Of {
    pub shape: Vec<usize>,
    pub dtype: DType,
    pub part: Range<usize>,
}

/// In units of what is sent, before any division.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    pub residual: Vec<f32>,
    pub velocity: Vec<f32>,
    /// Of a low-rank codec, what the last step ended with.
    pub basis: Vec<f32>,
}

impl Feedback {
    /// `momentum` 0: none.
    pub fn new(momentum: f32) -> Feedback {
        Feedback { momentum, ..Feedback::default() }
    }

    pub fn has_momentum(&self) -> bool {
        self.momentum != 0.0
    }

    /// Calls that have ended well since the state was reset.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    pub fn of(&self) -> Option<&Of> {
        self.of.as_ref()
    }

    pub fn state(&self) -> &State {
        &self.now
    }

    /// Goes on from a state that was saved. Whether it fits what it belongs to; if not, nothing is changed.
    pub fn restore(&mut self, of: Of, state: State, steps: u64) -> bool {
        let fits = |values: &[f32]| values.is_empty() || values.len() == of.part.len();
        let sound = fits(&state.velocity) && state.residual.len() == of.part.len();
        if sound {
            (self.of, self.now, self.steps) = (Some(of), state, steps);
        }
        sound
    }

    /// Starts a step: the state is that of this array, or starts anew.
    pub fn begin(&mut self, of: Of) {
        if self.of.as_ref() != Some(&of) {
            let count = of.part.len();
            self.now = State { residual: vec![0.0; count], ..State::default() };
            (self.of, self.steps) = (Some(of), 0);
        }
        if self.has_momentum() {
            self.now.velocity.resize(self.now.residual.len(), 0.0);
            self.next.velocity.resize(self.now.residual.len(), 0.0);
        }
    }

    /// p, for the float32 that the caller brings, g; `keep` gives the memory back.
    pub fn bring(&mut self, brought: Bytes<'_>) -> Vec<f32> {
        let (mut values, mut sums) = self.bringing(brought);
        sums.make(0..values.len(), &mut values);
        values
    }

    /// Memory for p, and what makes it there piece by piece.
    pub fn bringing<'a>(&'a mut self, brought: Bytes<'a>) -> (Vec<f32>, Sums<'a>) {
        let Feedback { momentum, now, next, .. } = self;
        let mut values = std::mem::take(&mut next.residual);
        values.resize(now.residual.len(), 0.0);
        let sums = Sums {
            brought,
            residual: &mut now.residual,
            momentum: *momentum,
            old: &now.velocity,
            velocity: &mut next.velocity,
        };
        (values, sums)
    }

    /// What is left of p.
    pub fn keep(&mut self, rest: Vec<f32>) {
        self.next.residual = rest;
    }

    /// Elements that were sent have no momentum any more ("momentum factor masking").
    pub fn mask(&mut self, picks: &[u32]) {
        if self.has_momentum() {
            picks.iter().for_each(|pick| self.next.velocity[*pick as usize] = 0.0);
        }
    }

    pub fn basis(&self) -> &[f32] {
        &self.now.basis
    }

    pub fn set_basis(&mut self, basis: Vec<f32>) {
        self.next.basis = basis;
    }

    /// The step has ended well: what was kept in it is the state from now on.
    pub fn commit(&mut self) {
        std::mem::swap(&mut self.now, &mut self.next);
        self.steps += 1;
    }
}

/// p, from what the caller brings and what is kept.
pub struct Sums<'a> {
    brought: Bytes<'a>,
    residual: &'a mut [f32],
    momentum: f32,
    old: &'a [f32],
    velocity: &'a mut [f32],
}

impl Make for Sums<'_> {
    fn at(&self, place: usize) -> f32 {
        let brought = f32::from_ne_bytes(std::array::from_fn(|i| self.brought[FLOAT * place + i].get()));
        let velocity = if self.momentum == 0.0 { brought } else { self.momentum * self.old[place] + brought };
        velocity + self.residual[place]
    }

    fn make(&mut self, range: Range<usize>, values: &mut [f32]) {
        let brought = &self.brought[FLOAT * range.start..FLOAT * range.end];
        if self.momentum == 0.0 {
            let sum = Reducer::of(DType::Float32, ReduceOp::Sum).expect("floats have a sum");
            return sum.run(bytes_of(values), &[brought, bytes_of(&mut self.residual[range])]);
        }
        copy(bytes_of(values), brought);
        let old = self.old[range.clone()].iter().zip(&self.residual[range.clone()]);
        for ((p, u), (old, e)) in values.iter_mut().zip(&mut self.velocity[range]).zip(old) {
            *u = self.momentum * old + *p;
            *p = *u + e;
        }
    }
}

const FLOAT: usize = size_of::<f32>();

#[cfg(test)]
mod tests {
    use super::*;

    fn of(count: usize) -> Of {
        Of { shape: vec![count], dtype: DType::Float32, part: 0..count }
    }

    /// One step that sends the values at `sent` and keeps the rest.
    fn step(feedback: &mut Feedback, brought: &[f32], sent: &[u32]) -> Vec<f32> {
        feedback.begin(of(brought.len()));
        let mut values = feedback.bring(bytes_of(&mut brought.to_vec()));
        let went = sent.iter().map(|pick| std::mem::take(&mut values[*pick as usize])).collect();
        feedback.keep(values);
        feedback.mask(sent);
        went
    }

    #[test]
    fn what_was_not_sent_comes_back() {
        let mut feedback = Feedback::new(0.0);
        assert_eq!(step(&mut feedback, &[1.0, 2.0, 4.0], &[2]), [4.0]);
        feedback.commit();
        assert_eq!(step(&mut feedback, &[16.0, 32.0, 64.0], &[0, 1]), [17.0, 34.0]);
        // Not committed: the step did not happen.
        assert_eq!(step(&mut feedback, &[16.0, 32.0, 64.0], &[0, 1]), [17.0, 34.0]);
        feedback.commit();
        assert_eq!((feedback.state().residual.as_slice(), feedback.steps()), ([0.0, 0.0, 64.0].as_slice(), 2));
    }

    #[test]
    fn momentum_gathers_until_an_element_is_sent() {
        let mut feedback = Feedback::new(0.5);
        assert_eq!(step(&mut feedback, &[8.0, 16.0], &[0]), [8.0]);
        feedback.commit();
        // u = (0.5·0 + 8, 0.5·16 + 16), p = u + (0, 16)
        assert_eq!(step(&mut feedback, &[8.0, 16.0], &[0, 1]), [8.0, 40.0]);
        feedback.commit();
        assert_eq!(feedback.state().velocity, [0.0, 0.0]);
    }

    #[test]
    fn what_is_made_in_pieces_is_what_is_made_at_once() {
        for momentum in [0.0, 0.25] {
            let mut feedback = Feedback::new(momentum);
            let mut brought: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.7).sin()).collect();
            for _ in 0..3 {
                feedback.begin(of(1000));
                let whole = feedback.bring(bytes_of(&mut brought));
                let (mut values, mut sums) = feedback.bringing(bytes_of(&mut brought));
                let asked: Vec<f32> = (0..1000).map(|place| sums.at(place)).collect();
                for start in (0..1000).step_by(300) {
                    let range = start..1000.min(start + 300);
                    sums.make(range.clone(), &mut values[range]);
                }
                assert_eq!((&values, &asked), (&whole, &whole));
                feedback.keep(values.iter().map(|p| 0.3 * p).collect());
                feedback.commit();
            }
        }
    }

    #[test]
    fn another_array_starts_from_nothing() {
        let mut feedback = Feedback::new(0.0);
        step(&mut feedback, &[1.0, 2.0], &[]);
        feedback.commit();
        assert_eq!(step(&mut feedback, &[1.0, 2.0, 3.0], &[0, 1, 2]), [1.0, 2.0, 3.0]);
        feedback.commit();
        assert_eq!(step(&mut feedback, &[1.0, 2.0], &[0, 1]), [1.0, 2.0], "and so does the first when it comes again");
        let matrix = Of { shape: vec![2, 1], ..of(2) };
        for other in [matrix, Of { dtype: DType::Float64, ..of(2) }, Of { part: 1..3, ..of(2) }] {
            feedback.begin(of(2));
            feedback.keep(vec![7.0, 7.0]);
            feedback.commit();
            feedback.begin(other);
            assert_eq!(feedback.state().residual, [0.0, 0.0]);
        }
    }

    #[test]
    fn a_saved_state_is_taken_if_it_fits() {
        let state = State { residual: vec![1.0, 2.0], ..State::default() };
        let mut feedback = Feedback::new(0.0);
        assert!(!feedback.restore(of(3), state.clone(), 5));
        assert!(feedback.restore(of(2), state, 5));
        assert_eq!((step(&mut feedback, &[10.0, 10.0], &[0, 1]), feedback.steps()), (vec![11.0, 12.0], 5));
    }
}
