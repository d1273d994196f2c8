//! Predicts how long a collective takes, from a few numbers about the machine.
//!
//! ```text
//! simulate   runs the schedules of all ranks on a clock: exact in the model, for worlds that are not too large
//! predict    a formula for each algorithm: fractions of a microsecond for any world, for choosing among algorithms
//! ```
//! **The model.** Every rank has one port out and one port in, which work at the same time. A message occupies both of its ports
//! for `overhead + beta·bytes`, and what leaves one end is `alpha` later at the other; combining it with what is there takes the
//! receiver's port another `gamma·bytes`. What a message brings is passed on segment by segment while the rest still comes in;
//! links hold whatever is sent. With `overhead` for `alpha` and `alpha = 0` these are the costs of Thakur et al. (2005); with
//! both it is the LogGP model (Alexandrov et al. 1995), where messages that do not wait for each other do not add up their
//! latencies.
//!
//! What it does not know: ranks that differ, links that share a wire, a core that both sends and receives. `rooted` makes up for
//! most of it where arrays are small.

mod predict;
mod simulate;

pub use simulate::simulate;

/// What is to be known about the machine; times in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// Latency: from the end of sending a byte to its arrival.
    pub alpha: f64,
    /// For how long a message occupies the ports, besides its bytes.
    pub overhead: f64,
    /// Per byte sent or received.
    pub beta: f64,
    /// Per byte combined.
    pub gamma: f64,
    /// Bytes that are passed on at once.
    pub segment: f64,
    /// What messages cost in an all-reduce by way of one rank, as a multiple of `alpha` and `overhead`: less where ranks share
    /// cores, or links a switch, since far fewer are under way at a time. 1 in the model proper.
    pub rooted: f64,
}

impl Model {
    /// For how long a segment occupies a port.
    fn occupied(&self, first: bool, bytes: f64) -> f64 {
        self.beta * bytes + if first { self.overhead } else { 0.0 }
    }
}
