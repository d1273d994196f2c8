//! `all_reduce`, which most programs call most often: checked and done without a copy of what was passed.

use std::time::Duration;

use pyo3::prelude::*;

use super::arguments;
use super::arrays::{Array, Packed};
use super::calls;
use super::coalescing;
use super::explanation::Explanation;
use super::group::{Group, LONG, perform};
use super::options::Options;
use crate::communicator::{Algorithm, Call, Collective};
use crate::dtype::ReduceOp;

/// Arguments as they were passed.
pub struct Reduce<'py> {
    pub x: Bound<'py, PyAny>,
    pub op: Option<Bound<'py, PyAny>>,
    pub out: Option<Bound<'py, PyAny>>,
    pub options: Options<'py>,
}

/// The same, checked.
struct Reduction<'a, 'py> {
    op: ReduceOp,
    input: Array<'py>,
    /// None: in place.
    output: Option<Array<'py>>,
    algorithm: Algorithm,
    timeout: Option<Duration>,
    name: Option<&'a str>,
}

impl<'py> Reduce<'py> {
    #[inline]
    fn check(&self, group: &Group) -> PyResult<Reduction<'_, 'py>> {
        let Options { algo, timeout, name, .. } = &self.options;
        let op = self.op.as_ref().map_or(Ok(ReduceOp::Sum), arguments::operation)?;
        let timeout = arguments::timeout(timeout.as_ref())?;
        let name = arguments::text("name", name.as_ref())?;
        let algorithm = arguments::algorithm(algo.as_ref(), group.algorithm())?;
        let input = Array::of(&self.x)?;
        arguments::reducible(&input, op)?;
        group.serves(algorithm, input.len())?;
        let output = match &self.out {
            None => None,
            Some(out) => {
                let output = arguments::output(out)?;
                (!arguments::same_memory(&self.x, &input, out, &output)?).then_some(output)
            }
        };
        let (written, what) = output.as_ref().map_or((&input, "the array"), |output| (output, "out"));
        arguments::writeable(written, what)?;
        Ok(Reduction { op, input, output, algorithm, timeout, name })
    }
}

impl Reduction<'_, '_> {
    fn call(&self) -> Call<'_> {
        Call {
            collective: Collective::AllReduce(self.op),
            element: self.input.kind.element(),
            shape: self.input.shape(),
            counts: &[],
            algorithm: self.algorithm,
            name: self.name,
            timeout: self.timeout,
        }
    }
}

impl Group {
    pub fn combine<'py>(slf: &Bound<'py, Group>, request: Reduce<'py>) -> PyResult<Bound<'py, PyAny>> {
        if coalescing::is_active()
            && let Some(deferred) = coalescing::defer(slf, &request)?
        {
            return Ok(deferred);
        }
        if request.options.later {
            let Reduce { x, op, out, options } = &request;
            let arrays = (x, op.as_ref(), out.as_ref());
            let work = Group::call(slf, true, |group| calls::combine(group, Collective::AllReduce, arrays, options))?;
            return Ok(work.into_bound(slf.py()));
        }
        slf.get().reduce_now(slf.py(), request)
    }

    #[inline]
    fn reduce_now<'py>(&self, py: Python<'py>, request: Reduce<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mut communicator = self.enter(py)?;
        let r = self.checked(py, &mut communicator, || request.check(self))?;
        let call = r.call();
        let written = r.output.as_ref().unwrap_or(&r.input);
        let long = r.input.len() > LONG;
        if r.input.contiguous && written.contiguous {
            let (dst, src) = (written.bytes(), r.input.bytes());
            perform(py, long, |host| communicator.all_reduce(&call, dst, src, host))?;
        } else {
            let packed = Packed::of(&r.input);
            let both = packed.bytes();
            perform(py, long, |host| communicator.all_reduce(&call, both, both, host))?;
            packed.unpack(written.view());
        }
        drop(r);
        Ok(request.out.unwrap_or(request.x))
    }

    pub fn explanation<'py>(
        &self,
        x: Bound<'py, PyAny>,
        op: Option<Bound<'py, PyAny>>,
        algo: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Explanation> {
        let py = x.py();
        let options = Options { algo, ..Options::default() };
        let request = Reduce { x, op, out: None, options };
        let r = request.check(self)?;
        let packed = (!r.input.contiguous).then(|| Packed::of(&r.input));
        let bytes = packed.as_ref().map_or_else(|| r.input.bytes(), Packed::bytes);
        Ok(Explanation(self.enter(py)?.explain(&r.call(), bytes)))
    }
}
