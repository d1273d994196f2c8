//! What is known of the network, and what follows from it: which algorithm for which call.

use std::sync::{Mutex, PoisonError};

use crate::codec::{Codec, Dense};
use crate::hierarchy::{Announced, Hosts, Ways, has_order, is_rounded};
use crate::schedule::cost::Model;
use crate::schedule::{self, Algorithm};
use crate::select::{self, Choice, Order};

use super::call::{Call, Collective, Element};
use super::compression::{self, Rates, Weighed};
use super::tried::{ROW, Tried};

/// Choices that are remembered; a training loop has one for each shape of its arrays.
const REMEMBERED: usize = 64;

/// A token bucket lets so many bytes, or some, pass at once. Who sends more of them only seems to be as fast as who sends less
/// unless a row of calls empties the bucket. But a row has so many calls at most.
const BURST: usize = 256 << 10;
const LONG_ROW: usize = 64;

/// Without codecs, of shorter arrays no row empties a bucket.
const TINY: usize = 2 << 10;

/// Calls in a row for arrays of so many bytes.
fn row(bytes: usize) -> usize {
    (BURST / bytes.next_power_of_two()).clamp(ROW, LONG_ROW)
}

/// What a choice depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Question {
    goal: schedule::Collective,
    /// How many take part: hosts, or ranks where all of them do by messages.
    world: u32,
    /// That travel, of the whole array.
    bytes: usize,
    order: Order,
}

impl Question {
    fn of(call: &Call<'_>, bytes: usize, hosts: &Hosts) -> Question {
        let (matters, rounded) = match (call.collective.op(), call.element) {
            (Some(op), Element::Number(dtype)) => (has_order(dtype, op), is_rounded(dtype, op)),
            _ => (false, false),
        };
        let goal = goal(call.collective);
        // Partial results of halves travel as float32.
        let wide = rounded && !hosts.is_flat();
        let order = match (matters, rounded && !wide) {
            (_, true) => Order::Together,
            (true, false) => Order::Fixed,
            (false, false) => Order::Free,
        };
        Question {
            goal,
            world: if is_flat(goal) { hosts.ranks() } else { hosts.count() as u32 },
            bytes: if wide { 2 * bytes } else { bytes },
            order,
        }
    }
}

impl Question {
    /// The same of all sizes of an octave.
    fn about(self) -> Question {
        Question { bytes: 1 << self.bytes.max(1).ilog2(), ..self }
    }
}

/// How an all-reduce goes between hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Route {
    Plain(Algorithm),
    Coded(Codec),
}

impl Route {
    pub fn codec(self) -> Option<Codec> {
        match self {
            Route::Plain(_) => None,
            Route::Coded(codec) => Some(codec),
        }
    }
}

/// What ways are tried for, and whether those with codecs come into question.
type Topic = (Question, bool);

/// The model and the choices made by it.
#[derive(Debug)]
pub(super) struct Network {
    model: Model,
    rates: Rates,
    hosts: u32,
    made: Vec<(Question, Algorithm)>,
    /// None where the model was told: then nothing is found out.
    tried: Option<Tried<Topic, Route>>,
    /// What "auto" compresses arrays of so many elements with.
    codecs: Vec<(usize, Option<Dense>)>,
}

impl Network {
    pub fn new(model: Model, rates: Rates, hosts: &Hosts, told: bool) -> Network {
        let tried = (!told).then(Tried::new);
        Network { model, rates, hosts: hosts.count() as u32, made: Vec::new(), tried, codecs: Vec::new() }
    }

    /// Whether the model was told, not measured.
    pub fn is_told(&self) -> bool {
        self.tried.is_none()
    }

    pub fn rates(&self) -> Rates {
        self.rates
    }

    pub fn model(&self) -> &Model {
        &self.model
    }

    /// What an all-reduce of `bytes` bytes takes between hosts, and whether its time is to be noted.
    pub fn all_reduce(&mut self, call: &Call<'_>, bytes: usize, hosts: &Hosts) -> (Algorithm, bool) {
        let question = Question::of(call, bytes, hosts);
        let choices = |network: &Network| {
            let choices = network.ranked(&question).into_iter();
            choices.map(|choice| (Route::Plain(choice.algorithm), choice.seconds)).collect()
        };
        let row = if bytes < TINY { ROW } else { row(bytes) };
        match self.next((question.about(), false), row, choices) {
            Some((Route::Plain(algorithm), timed)) => (algorithm, timed),
            _ => (self.predicted(question), false),
        }
    }

    /// The same of an array of `count` elements, where codecs come into question: first the best way without them is found, then
    /// that and they are tried.
    pub fn compressed(&mut self, call: &Call<'_>, (count, bytes): (usize, usize), hosts: &Hosts) -> (Route, bool) {
        let (plain, timed) = match self.found(call, bytes, hosts, false) {
            Some((found, _)) => (found, false),
            None => self.uncompressed(call, bytes, hosts),
        };
        if timed {
            return (plain, true);
        }
        let route = move |codec: Option<Dense>| codec.map_or(plain, |codec| Route::Coded(codec.into()));
        let choices = |network: &Network| {
            let ways = network.weigh(hosts, count).into_iter();
            ways.map(|way| (route(way.codec), way.seconds)).collect()
        };
        match self.next((Question::of(call, bytes, hosts).about(), true), row(bytes), choices) {
            Some((Route::Plain(_), false)) => self.uncompressed(call, bytes, hosts),
            // Another one may have been found since the codecs were tried first.
            Some((Route::Plain(_), true)) => (plain, true),
            Some(next) => next,
            None => (route(self.codec(hosts, count)), false),
        }
    }

    /// The same by the model alone.
    pub fn predicted_route(&mut self, call: &Call<'_>, (count, bytes): (usize, usize), hosts: &Hosts) -> Route {
        match self.codec(hosts, count) {
            Some(codec) => Route::Coded(codec.into()),
            None => Route::Plain(self.algorithm(call, bytes, hosts)),
        }
    }

    fn uncompressed(&mut self, call: &Call<'_>, bytes: usize, hosts: &Hosts) -> (Route, bool) {
        let (algorithm, timed) = self.all_reduce(call, bytes, hosts);
        (Route::Plain(algorithm), timed)
    }

    /// What is tried next, if the model does not decide.
    fn next(
        &mut self,
        topic: Topic,
        row: usize,
        choices: impl FnOnce(&Network) -> Vec<(Route, f64)>,
    ) -> Option<(Route, bool)> {
        let mut tried = self.tried.take();
        let next = tried.as_mut().and_then(|tried| tried.next(topic, row, || choices(self)));
        self.tried = tried;
        next
    }

    /// What was found to be the fastest of so many, with or without `codecs`.
    pub fn found(&self, call: &Call<'_>, bytes: usize, hosts: &Hosts, codecs: bool) -> Option<(Route, usize)> {
        self.tried.as_ref()?.found(&(Question::of(call, bytes, hosts).about(), codecs))
    }

    /// Times of all-reduces, where they are to be noted.
    pub fn tried(&mut self) -> Option<&mut Tried<Topic, Route>> {
        self.tried.as_mut()
    }

    /// What is best between hosts for a call on `bytes` bytes, by the model.
    pub fn algorithm(&mut self, call: &Call<'_>, bytes: usize, hosts: &Hosts) -> Algorithm {
        self.predicted(Question::of(call, bytes, hosts))
    }

    fn predicted(&mut self, question: Question) -> Algorithm {
        if let Some((_, algorithm)) = self.made.iter().rev().find(|(known, _)| *known == question) {
            return *algorithm;
        }
        let algorithm = self.ranked(&question)[0].algorithm;
        if self.made.len() == REMEMBERED {
            self.made.remove(0);
        }
        self.made.push((question, algorithm));
        algorithm
    }

    /// For the messages of a codec on `count` elements.
    pub fn ways(&self, codec: Codec, hosts: &Hosts, count: usize) -> Ways {
        compression::ways(&self.model, codec, hosts, count)
    }

    /// All-reduces of `count` elements of float32 with and without codecs, the fastest first.
    pub fn weigh(&self, hosts: &Hosts, count: usize) -> Vec<Weighed> {
        compression::weigh(&self.model, self.rates, hosts, count)
    }

    /// The codec that pays for `count` elements, if any does.
    pub fn codec(&mut self, hosts: &Hosts, count: usize) -> Option<Dense> {
        if let Some((_, codec)) = self.codecs.iter().rev().find(|(known, _)| *known == count) {
            return *codec;
        }
        let codec = self.weigh(hosts, count)[0].codec;
        if self.codecs.len() == REMEMBERED {
            self.codecs.remove(0);
        }
        self.codecs.push((count, codec));
        codec
    }

    /// What is best for a barrier: whatever sends the whole of a single byte.
    pub fn barrier(&self) -> Algorithm {
        let whole =
            |choice: &Choice| matches!(choice.algorithm, Algorithm::Exchange | Algorithm::Doubling | Algorithm::Tree);
        let choices = select::choices(&self.model, schedule::Collective::AllReduce, self.hosts, 1, Order::Free);
        choices.into_iter().find(whole).map_or(Algorithm::Exchange, |choice| choice.algorithm)
    }

    /// What is best for what all ranks announce.
    pub fn announcement(&self, hosts: &Hosts) -> Algorithm {
        let bytes = Announced::BYTES * hosts.ranks() as usize;
        select::choices(&self.model, schedule::Collective::AllGather, self.hosts, bytes, Order::Free)[0].algorithm
    }

    /// All that come into question, the fastest first.
    pub fn choices(&self, call: &Call<'_>, bytes: usize, hosts: &Hosts) -> Vec<Choice> {
        self.ranked(&Question::of(call, bytes, hosts))
    }

    fn ranked(&self, question: &Question) -> Vec<Choice> {
        let Question { goal, world, bytes, order } = *question;
        select::choices(&self.model, goal, world, bytes, order)
    }
}

/// The collective as schedules know it. Any root is as good as another; a barrier is an all-reduce.
pub(super) fn goal(collective: Collective) -> schedule::Collective {
    match collective {
        Collective::AllReduce(_) | Collective::Barrier => schedule::Collective::AllReduce,
        Collective::Broadcast { .. } => schedule::Collective::Broadcast(0),
        Collective::Reduce { .. } => schedule::Collective::Reduce(0),
        Collective::AllGather { .. } => schedule::Collective::AllGather,
        Collective::Gather { .. } => schedule::Collective::Gather(0),
        Collective::Scatter { .. } => schedule::Collective::Scatter(0),
        Collective::ReduceScatter(_) => schedule::Collective::ReduceScatter,
        Collective::AllToAll { .. } => schedule::Collective::AllToAll,
        Collective::Scan(_) => schedule::Collective::Scan,
        Collective::Exscan(_) => schedule::Collective::Exscan,
    }
}

/// Whether all ranks take part by messages, wherever they are.
pub(super) fn is_flat(goal: schedule::Collective) -> bool {
    use schedule::Collective::{AllToAll, Exscan, Gather, Scan, Scatter};
    matches!(goal, Gather(_) | Scatter(_) | AllToAll | Scan | Exscan)
}

/// A model as numbers that can be sent, and back.
pub(super) fn words(model: &Model) -> [f64; 5] {
    [model.alpha, model.overhead, model.beta, model.gamma, model.rooted]
}

pub(super) fn of_words([alpha, overhead, beta, gamma, rooted]: [f64; 5]) -> Model {
    Model { alpha, overhead, beta, gamma, segment: super::probe::SEGMENT, rooted }
}

/// Networks that this process has seen as rank 0, by where the job met: a group that forms again does not measure again.
static SEEN: Mutex<Vec<(String, Model)>> = Mutex::new(Vec::new());

pub(super) fn seen(place: &str) -> Option<Model> {
    let seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    seen.iter().find(|(known, _)| known == place).map(|(_, model)| *model)
}

pub(super) fn remember(place: String, model: Model) {
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    seen.retain(|(known, _)| *known != place);
    seen.push((place, model));
}

#[cfg(test)]
mod tests {
    use super::super::compression::SAFE;
    use super::*;
    use crate::dtype::{DType, ReduceOp};

    fn call(op: ReduceOp, dtype: DType) -> Call<'static> {
        Call { collective: Collective::AllReduce(op), element: Element::Number(dtype), ..Call::barrier(None) }
    }

    #[test]
    fn halves_travel_wide_or_come_together() {
        let flat = Hosts::new(vec![vec![0], vec![1], vec![2]], 0);
        let deep = Hosts::new(vec![vec![0, 1], vec![2]], 0);
        let question = |op, dtype, hosts| Question::of(&call(op, dtype), 1000, hosts);
        assert_eq!(question(ReduceOp::Sum, DType::Float16, &flat).order, Order::Together);
        assert_eq!(question(ReduceOp::Sum, DType::Float16, &deep).bytes, 2000);
        assert_eq!(question(ReduceOp::Max, DType::Float16, &flat).order, Order::Free);
        assert_eq!(question(ReduceOp::Sum, DType::Float32, &flat).order, Order::Fixed);
        assert_eq!(question(ReduceOp::Sum, DType::Int32, &deep).order, Order::Free);
        assert_eq!(question(ReduceOp::Avg, DType::Float32, &deep).bytes, 1000);
    }

    /// 200 us without a codec, 100 with one.
    #[test]
    fn first_the_best_way_without_codecs_is_found_and_then_they_are_tried() {
        let hosts = Hosts::new((0..4).map(|rank| vec![rank]).collect(), 0);
        let model = Model { alpha: 2e-5, overhead: 5e-6, beta: 8e-9, gamma: 1e-10, segment: 32768.0, rooted: 1.0 };
        let sum = call(ReduceOp::Sum, DType::Float32);
        let taken = |told, count| {
            let mut network = Network::new(model, Rates([1e-10; 2]), &hosts, told);
            let mut taken = Vec::new();
            while let (route, true) = network.compressed(&sum, (count, 4 * count), &hosts) {
                taken.extend((taken.last() != Some(&route)).then_some(route));
                let tried = network.tried().expect("not told");
                if tried.note(if route.codec().is_some() { 1e-4 } else { 2e-4 }) {
                    let usual = tried.usual();
                    tried.agree(usual);
                }
            }
            (taken, network.found(&sum, 4 * count, &hosts, true))
        };
        let (short, found) = taken(false, 1024);
        let first = short.iter().position(|route| route.codec().is_some()).expect("codecs are tried");
        assert!(short[..first].iter().any(|route| *route != short[0]), "{:?}", &short[..first]);
        let [half, int8] = SAFE.map(|dense| Route::Coded(dense.into()));
        let plain = short[first..].iter().find(|route| route.codec().is_none()).expect("it is tried beside them");
        assert!(short[first..].iter().all(|route| [*plain, half, int8].contains(route)));
        assert!(matches!(found, Some((Route::Coded(_), 3))), "{found:?}");
        assert_eq!((taken(false, 1 << 20), taken(true, 1024)), ((vec![], None), (vec![], None)), "the model decides");
    }

    #[test]
    fn choices_are_made_once_and_stay() {
        let hosts = Hosts::new((0..8).map(|rank| vec![rank]).collect(), 0);
        let model = Model { alpha: 2e-5, overhead: 5e-6, beta: 8e-9, gamma: 1e-10, segment: 32768.0, rooted: 1.0 };
        let mut network = Network::new(model, Rates::default(), &hosts, true);
        let sum = call(ReduceOp::Sum, DType::Float32);
        for bytes in (0..200).map(|k| 8 << (k % 26)) {
            assert_eq!(network.algorithm(&sum, bytes, &hosts), network.choices(&sum, bytes, &hosts)[0].algorithm);
        }
        assert!(network.made.len() <= REMEMBERED);
        assert_eq!(of_words(words(&model)), Model { segment: super::super::probe::SEGMENT, ..model });
    }
}
