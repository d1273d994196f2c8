//! The checks of each collective: what was passed becomes a `Task`, or an error before any data moves.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use super::arguments::{self, apart, counts, output, reducible, within, writeable};
use super::arrays::{Array, Kind};
use super::fresh::{Fresh, moved, tall};
use super::group::Group;
use super::options::Options;
use super::reduce::Coding;
use super::task::{Answer, Cutting, Rows, Target, Task, What};
use crate::communicator::{Algorithm, Collective, tuple};
use crate::dtype::ReduceOp;

type Any<'py> = Bound<'py, PyAny>;

impl Task {
    /// Of a call that reads `src`, in the form of one that has no result here.
    #[inline]
    fn reading(what: What, src: Option<Array<'_>>) -> Task {
        let len = src.as_ref().map_or(0, Array::len);
        Task {
            what,
            feedback: None,
            item: src.as_ref().map_or(1, |array| array.item),
            give: Cutting::whole(len),
            take: Cutting::whole(len),
            src: src.map(Array::hold),
            dst: Target::Nowhere,
            answer: Answer::Nothing,
            rows: None,
            fresh: None,
            made: None,
        }
    }

    /// An all-reduce, with a codec.
    pub fn with(mut self, (codec, feedback): Coding) -> Task {
        self.what.compression = Some(codec);
        self.feedback = feedback;
        self
    }

    /// Where the result goes, and what the caller gets.
    #[inline]
    fn into(mut self, dst: Target, object: &Any<'_>) -> Task {
        self.dst = dst;
        self.answer = Answer::Object(object.clone().unbind());
        self
    }
}

fn op_of(op: Option<&Any<'_>>) -> PyResult<ReduceOp> {
    op.map_or(Ok(ReduceOp::Sum), arguments::operation)
}

fn root_of(root: Option<&Any<'_>>, group: &Group) -> PyResult<u32> {
    root.map_or(Ok(0), |root| arguments::root(root, group.size()))
}

/// An array of the shape and dtype of `x` as the place of its result: None if it is `x` itself.
fn same_shape<'py>(x: &Any<'py>, input: &Array<'py>, out: Option<&Any<'py>>) -> PyResult<Option<Array<'py>>> {
    let Some(out) = out else {
        writeable(input, "the array")?;
        return Ok(None);
    };
    let found = output(out)?;
    let same = arguments::same_memory(x, input, out, &found)?;
    writeable(&found, "out")?;
    Ok((!same).then_some(found))
}

/// Whose arrays are combined, and who gets an array as long as its own.
#[derive(Clone, Copy)]
pub enum Which<'a, 'py> {
    All,
    /// The root alone, a rank of the group.
    Root(Option<&'a Any<'py>>),
    UpToMine,
    BeforeMine,
}

impl Which<'_, '_> {
    #[inline]
    pub fn collective(self, group: &Group, op: Option<&Any<'_>>) -> PyResult<Collective> {
        let root = if let Which::Root(root) = self { root_of(root, group)? } else { 0 };
        let op = op_of(op)?;
        if op == ReduceOp::Avg && matches!(self, Which::UpToMine | Which::BeforeMine) {
            return Err(PyValueError::new_err("op 'avg' of some of the ranks is not defined: use 'sum' and divide"));
        }
        Ok(match self {
            Which::All => Collective::AllReduce(op),
            Which::Root(_) => Collective::Reduce { op, root },
            Which::UpToMine => Collective::Scan(op),
            Which::BeforeMine => Collective::Exscan(op),
        })
    }
}

/// A reduction of which every rank (or the root) gets an array as long as its own.
pub fn combine<'py>(
    group: &Group,
    which: Which<'_, 'py>,
    (x, op, out): (&Any<'py>, Option<&Any<'py>>, Option<&Any<'py>>),
    options: &Options<'py>,
) -> PyResult<Task> {
    let collective = which.collective(group, op)?;
    let checked = options.check(group.algorithm())?;
    let input = Array::of(x)?;
    reducible(&input, collective.op().expect("all of these combine"))?;
    group.serves(checked.algorithm(), input.len())?;
    let what = checked.what(collective, input.kind.clone(), input.shape());
    if let Collective::Reduce { root, .. } = collective
        && root != group.rank()
    {
        return Ok(Task::reading(what, Some(input)));
    }
    let found = same_shape(x, &input, out)?;
    let object = out.unwrap_or(x);
    let dst = found.map_or(Target::InPlace, |found| Target::Array(found.hold()));
    Ok(Task::reading(what, Some(input)).into(dst, object))
}

#[inline]
pub fn broadcast<'py>(
    group: &Group,
    (x, root): (&Any<'py>, Option<&Any<'py>>),
    options: &Options<'py>,
) -> PyResult<Task> {
    let root = root_of(root, group)?;
    let checked = options.check(Algorithm::Auto)?;
    let array = Array::of(x)?;
    if root != group.rank() {
        writeable(&array, "the array")?;
    }
    let what = checked.what(Collective::Broadcast { root }, array.kind.clone(), array.shape());
    let dst = if root == group.rank() { Target::Nowhere } else { Target::InPlace };
    Ok(Task::reading(what, Some(array)).into(dst, x))
}

pub fn barrier(options: &Options<'_>) -> PyResult<Task> {
    let checked = options.check(Algorithm::Auto)?;
    Ok(Task::reading(checked.what(Collective::Barrier, Kind::Opaque(String::new()), &[]), None))
}

/// Lengths along the axes that are not cut; a 0-d array is a block of one row.
fn rest(shape: &[usize]) -> &[usize] {
    shape.get(1..).unwrap_or(&[])
}

fn rows(shape: &[usize]) -> usize {
    shape.first().copied().unwrap_or(1)
}

/// Whether `out` may receive rows of `x`.
fn check_rows(out: &Array<'_>, like: &Array<'_>) -> PyResult<()> {
    if out.kind != like.kind || out.shape().is_empty() || rest(out.shape()) != rest(like.shape()) {
        return Err(PyValueError::new_err(format!(
            "out has dtype {} and shape {}; it must have dtype {}, and the shape of x but for the first length: {}",
            out.kind.name(),
            tuple(out.shape()),
            like.kind.name(),
            tuple(like.shape()),
        )));
    }
    writeable(out, "out")
}

fn wrong_rows(out: &Array<'_>, expected: usize, like: &[usize]) -> PyErr {
    PyValueError::new_err(format!(
        "out has shape {}, the result has shape {}",
        tuple(out.shape()),
        tuple(&tall(expected, like))
    ))
}

/// `all_gather`, or `gather` to `root`.
#[inline]
pub fn gather<'py>(
    group: &Group,
    root: Option<u32>,
    (x, out, axis): (&Any<'py>, Option<&Any<'py>>, usize),
    options: &Options<'py>,
) -> PyResult<Task> {
    let checked = options.check(Algorithm::Auto)?;
    let input = Array::of(x)?;
    let collective = match root {
        None => Collective::AllGather { axis },
        Some(root) => Collective::Gather { root, axis },
    };
    let what = checked.what(collective, input.kind.clone(), input.shape());
    let (len, world) = (input.len(), group.size() as usize);
    let take = Cutting::Even { len, count: world };
    if root.is_some_and(|root| root != group.rank()) {
        return Ok(Task { take, ..Task::reading(what, Some(input)) });
    }
    let total = world * rows(input.shape());
    let mut fresh = None;
    let (dst, object) = match out {
        None => {
            let like = fresh.insert(Box::new(Fresh::like(x, &input).along(axis)));
            let made = like.empty(x.py(), &tall(total, input.shape()))?;
            (Target::Supposed(Array::of(&made)?.hold()), made)
        }
        Some(out) => {
            let found = output(out)?;
            check_rows(&found, &input)?;
            let own = within((x, &input), (out, &found))?;
            let fits = rows(found.shape()) == total && own.is_none_or(|own| own == group.rank() as usize * len);
            (if fits { Target::Array(found.hold()) } else { Target::Unsure(found.hold()) }, out.clone())
        }
    };
    let object = if axis == 0 || out.is_some() { object } else { moved(&object, 0, axis)? };
    Ok(Task { take, fresh, ..Task::reading(what, Some(input)).into(dst, &object) })
}

/// On the root `x` holds all blocks; elsewhere only the dtype and shape of `out` count.
#[inline]
pub fn scatter<'py>(
    group: &Group,
    (x, root, out): (&Any<'py>, u32, Option<&Any<'py>>),
    options: &Options<'py>,
) -> PyResult<Task> {
    let checked = options.check(Algorithm::Auto)?;
    let collective = Collective::Scatter { root };
    let world = group.size() as usize;
    if root != group.rank() {
        let out = out.ok_or_else(|| PyValueError::new_err("out is needed where the call does not wait"))?;
        let found = output(out)?;
        writeable(&found, "out")?;
        let what = checked.what(collective, found.kind.clone(), found.shape());
        let give = Cutting::Even { len: found.len(), count: world };
        return Ok(Task { give, ..Task::reading(what, None).into(Target::Array(found.hold()), out) });
    }
    let input = Array::of(x)?;
    let block = even_rows(&input, world, "scatter blocks of different lengths by all_to_all(send_counts=)")?;
    let shape = tall(block, input.shape());
    let len = input.len() / world;
    let what = checked.what(collective, input.kind.clone(), &shape);
    let object = match out {
        Some(out) => out.clone(),
        None => Fresh::like(x, &input).empty(x.py(), &shape)?,
    };
    let found = output(&object)?;
    check_rows(&found, &input)?;
    if rows(found.shape()) != block {
        return Err(wrong_rows(&found, block, input.shape()));
    }
    apart((&object, &found), (x, &input), root as usize * len)?;
    let give = Cutting::Even { len, count: world };
    Ok(Task { give, ..Task::reading(what, Some(input)).into(Target::Array(found.hold()), &object) })
}

/// Rows of a block if `array` is cut into equal ones.
fn even_rows(array: &Array<'_>, world: usize, instead: &str) -> PyResult<usize> {
    if array.shape().is_empty() {
        return Err(PyValueError::new_err("x is 0-d: there is no axis to cut it along"));
    }
    let rows = rows(array.shape());
    if !rows.is_multiple_of(world) {
        return Err(PyValueError::new_err(format!(
            "x has {rows} rows (shape {}), which cannot be cut into {world} equal blocks: pad it, or {instead}",
            tuple(array.shape())
        )));
    }
    Ok(rows / world)
}

#[inline]
pub fn reduce_scatter<'py>(
    group: &Group,
    (x, op, out, given): (&Any<'py>, Option<&Any<'py>>, Option<&Any<'py>>, Option<&Any<'py>>),
    options: &Options<'py>,
) -> PyResult<Task> {
    let op = op_of(op)?;
    let checked = options.check(Algorithm::Auto)?;
    let input = Array::of(x)?;
    reducible(&input, op)?;
    let (world, me) = (group.size() as usize, group.rank() as usize);
    let mut what = checked.what(Collective::ReduceScatter(op), input.kind.clone(), input.shape());
    let row = input.item * rest(input.shape()).iter().product::<usize>();
    let (give, block) = match given {
        None => {
            let block = even_rows(&input, world, "pass counts")?;
            (Cutting::Even { len: block * row, count: world }, block)
        }
        Some(given) => {
            let counts = counts("counts", given, world, &input)?;
            what.counts.clone_from(&counts);
            (Cutting::of(counts.iter().map(|rows| rows * row)), counts[me])
        }
    };
    let object = match out {
        Some(out) => out.clone(),
        None => Fresh::like(x, &input).empty(x.py(), &tall(block, input.shape()))?,
    };
    let found = output(&object)?;
    check_rows(&found, &input)?;
    if rows(found.shape()) != block {
        return Err(wrong_rows(&found, block, input.shape()));
    }
    apart((&object, &found), (x, &input), give.get().of(me).start)?;
    Ok(Task { give, ..Task::reading(what, Some(input)).into(Target::Array(found.hold()), &object) })
}

#[inline]
pub fn all_to_all<'py>(
    group: &Group,
    (x, out): (&Any<'py>, Option<&Any<'py>>),
    (sent, expected): (Option<&Any<'py>>, Option<&Any<'py>>),
    options: &Options<'py>,
) -> PyResult<Task> {
    let checked = options.check(Algorithm::Auto)?;
    let input = Array::of(x)?;
    let world = group.size() as usize;
    let Some(sent) = sent else {
        if expected.is_some() {
            return Err(PyTypeError::new_err("recv_counts needs send_counts"));
        }
        return all_to_all_even(world, (x, input, out), checked);
    };
    let sent = counts("send_counts", sent, world, &input)?;
    let expected = expected.map(|given| arguments::numbers("recv_counts", given, world)).transpose()?;
    let what = checked.what(Collective::AllToAll { counts: true }, input.kind.clone(), input.shape());
    let row = input.item * rest(input.shape()).iter().product::<usize>();
    let give = Cutting::of(sent.iter().map(|rows| rows * row));
    let (dst, answer) = match out {
        None => (Target::Made, Answer::Made),
        Some(out) => {
            let found = output(out)?;
            check_rows(&found, &input)?;
            apart((x, &input), (out, &found), usize::MAX)?;
            (Target::Array(found.hold()), Answer::Object(out.clone().unbind()))
        }
    };
    let rows = Some(Box::new(Rows { sent, expected }));
    let fresh = out.is_none().then(|| Box::new(Fresh::like(x, &input)));
    Ok(Task { give, dst, answer, rows, fresh, ..Task::reading(what, Some(input)) })
}

#[inline]
fn all_to_all_even<'py>(
    world: usize,
    (x, input, out): (&Any<'py>, Array<'py>, Option<&Any<'py>>),
    checked: super::options::Checked,
) -> PyResult<Task> {
    even_rows(&input, world, "pass send_counts")?;
    let what = checked.what(Collective::AllToAll { counts: false }, input.kind.clone(), input.shape());
    let object = match out {
        Some(out) => out.clone(),
        None => Fresh::like(x, &input).empty(x.py(), input.shape())?,
    };
    let found = output(&object)?;
    check_rows(&found, &input)?;
    if rows(found.shape()) != rows(input.shape()) {
        return Err(wrong_rows(&found, rows(input.shape()), input.shape()));
    }
    apart((x, &input), (&object, &found), usize::MAX)?;
    let each = || Cutting::Even { len: found.len() / world, count: world };
    let (give, take) = (each(), each());
    Ok(Task { give, take, ..Task::reading(what, Some(input)).into(Target::Array(found.hold()), &object) })
}
