//! `all_reduce`, which most programs call most often: checked and done without a copy of what was passed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString};

use super::arguments;
use super::arrays::{Array, Packed};
use super::calls;
use super::coalescing;
use super::compression::{PyCodec, PyFeedback};
use super::explanation::Explanation;
use super::group::{Group, LONG, perform};
use super::options::Options;
use crate::codec::Feedback;
use crate::communicator::{Algorithm, Call, Collective, Communicator, Compression};
use crate::dtype::ReduceOp;
use crate::kernels::Bytes;
use crate::wait::Host;

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
            compression: None,
            name: self.name,
            timeout: self.timeout,
        }
    }
}

/// A codec of the core, and what it has left out of earlier calls.
pub type Coding = (Compression, Option<Arc<Mutex<Feedback>>>);

/// A compressed call, as `arx.compression` understands it.
enum Prepared<'py> {
    /// With the array that is sent.
    Core(Coding, Bound<'py, PyAny>),
    Python(Bound<'py, PyAny>),
}

/// The codec that a short form stands for, if it keeps nothing and has been used before.
fn plain(compression: &Bound<'_, PyAny>) -> PyResult<Option<Compression>> {
    static PLAIN: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    if !compression.is_exact_instance_of::<PyString>() {
        return Ok(None);
    }
    let py = compression.py();
    let found = || Ok::<_, PyErr>(py.import("arx.compression")?.getattr("_PLAIN")?.cast_into::<PyDict>()?.unbind());
    let known = PLAIN.get_or_try_init(py, found)?.bind(py).get_item(compression)?;
    Ok(known.map(|codec| codec.cast_into::<PyCodec>()).transpose()?.map(|codec| codec.get().0))
}

fn prepare<'py>(
    group: &Bound<'py, Group>,
    (x, op): (&Bound<'py, PyAny>, Option<&Bound<'py, PyAny>>),
    options: &Options<'py>,
) -> PyResult<Prepared<'py>> {
    let py = x.py();
    let Options { compression, timeout, name, later, .. } = options;
    let op = op.map_or(Ok(ReduceOp::Sum), arguments::operation)?;
    let array = Array::of(x)?;
    arguments::compressible(&array, op)?;
    if let Some(codec) = compression.as_ref().map_or(Ok(None), plain)? {
        return Ok(Prepared::Core((codec, None), x.clone()));
    }
    let arguments = (group, x, op.name(), compression, name, timeout, *later);
    let prepared = py.import("arx.compression")?.call_method1("_prepare", arguments)?;
    if prepared.is_callable() {
        return Ok(Prepared::Python(prepared));
    }
    let (codec, feedback, source): (Found<'py>, Kept<'py>, Bound<'py, PyAny>) = prepared.extract()?;
    Ok(Prepared::Core((codec.0, feedback.map(|feedback| feedback.share())), source))
}

type Found<'py> = PyRef<'py, PyCodec>;
type Kept<'py> = Option<PyRef<'py, PyFeedback>>;

/// The same for a call that is prepared once and done often.
pub fn planned<'py>(
    group: &Bound<'py, Group>,
    (x, op): (&Bound<'py, PyAny>, Option<&Bound<'py, PyAny>>),
    compression: &Bound<'py, PyAny>,
    name: Option<&Bound<'py, PyAny>>,
) -> PyResult<Coding> {
    arguments::compressible(&Array::of(x)?, op.map_or(Ok(ReduceOp::Sum), arguments::operation)?)?;
    let prepared = x.py().import("arx.compression")?.call_method1("_of_plan", (group, compression, name))?;
    let (codec, feedback): (Found<'py>, Kept<'py>) = prepared.extract()?;
    Ok((codec.0, feedback.map(|feedback| feedback.share())))
}

impl Group {
    pub fn combine<'py>(slf: &Bound<'py, Group>, request: Reduce<'py>) -> PyResult<Bound<'py, PyAny>> {
        if coalescing::is_active()
            && let Some(deferred) = coalescing::defer(slf, &request)?
        {
            return Ok(deferred);
        }
        if request.options.compression.is_some() {
            return Group::combine_compressed(slf, request);
        }
        if request.options.later {
            let Reduce { x, op, out, options } = &request;
            let arrays = (x, op.as_ref(), out.as_ref());
            let work = Group::call(slf, true, |group| calls::combine(group, Collective::AllReduce, arrays, options))?;
            return Ok(work.into_bound(slf.py()));
        }
        slf.get().reduce_now(slf.py(), request, None)
    }

    #[inline]
    fn reduce_now<'py>(
        &self,
        py: Python<'py>,
        request: Reduce<'py>,
        coding: Option<Coding>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut communicator = self.enter(py)?;
        let r = self.checked(py, &mut communicator, || request.check(self))?;
        let call = Call { compression: coding.as_ref().map(|(codec, _)| *codec), ..r.call() };
        let run = |communicator: &mut Communicator, dst: Bytes<'_>, src: Bytes<'_>, host: &mut dyn Host| match &coding {
            None => communicator.all_reduce(&call, dst, src, host),
            Some((_, feedback)) => {
                let mut feedback = feedback.as_ref().map(|f| f.lock().unwrap_or_else(PoisonError::into_inner));
                communicator.all_reduce_compressed(&call, feedback.as_deref_mut(), (dst, src), host)
            }
        };
        let written = r.output.as_ref().unwrap_or(&r.input);
        let long = r.input.len() > LONG;
        if r.input.contiguous && written.contiguous {
            let (dst, src) = (written.bytes(), r.input.bytes());
            perform(py, long, |host| run(&mut communicator, dst, src, host))?;
        } else {
            let packed = Packed::of(&r.input);
            let both = packed.bytes();
            perform(py, long, |host| run(&mut communicator, both, both, host))?;
            packed.unpack(written.view());
        }
        drop(r);
        Ok(request.out.unwrap_or(request.x))
    }

    /// What `arx.compression` makes of the arguments: a codec of the core, what is left of earlier calls, and the array to be sent;
    /// or, for a codec in Python, what does the call.
    fn combine_compressed<'py>(slf: &Bound<'py, Group>, request: Reduce<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (py, group) = (slf.py(), slf.get());
        let Reduce { x, op, out, options } = request;
        let prepared = prepare(slf, (&x, op.as_ref()), &options).map_err(|refusal| group.refuse(py, refusal))?;
        let (coding, source) = match prepared {
            Prepared::Core(coding, source) => (coding, source),
            Prepared::Python(run) => return run.call1((x, out)),
        };
        // What was clipped is another array: the result goes where it would have gone.
        let out = if source.is(&x) { out } else { Some(out.unwrap_or(x)) };
        if !options.later {
            return group.reduce_now(py, Reduce { x: source, op, out, options }, Some(coding));
        }
        let work = Group::call(slf, true, |group| {
            let task = calls::combine(group, Collective::AllReduce, (&source, op.as_ref(), out.as_ref()), &options)?;
            Ok(task.with(coding))
        })?;
        Ok(work.into_bound(py))
    }

    pub fn explanation<'py>(
        slf: &Bound<'py, Group>,
        (x, op): (Bound<'py, PyAny>, Option<Bound<'py, PyAny>>),
        compression: Option<Bound<'py, PyAny>>,
        algo: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Explanation> {
        let (py, group) = (slf.py(), slf.get());
        let options = Options { algo, compression, ..Options::default() };
        let codec: Option<PyRef<'py, PyCodec>> = match &options.compression {
            Some(compression) => py.import("arx.compression")?.call_method1("_codec", (compression,))?.extract()?,
            None => None,
        };
        let codec = codec.map(|codec| codec.0);
        let request = Reduce { x, op, out: None, options };
        let r = request.check(group)?;
        if codec.is_some() {
            arguments::compressible(&r.input, r.op)?;
        }
        let packed = (!r.input.contiguous).then(|| Packed::of(&r.input));
        let bytes = packed.as_ref().map_or_else(|| r.input.bytes(), Packed::bytes);
        let call = Call { compression: codec, ..r.call() };
        Ok(Explanation(group.enter(py)?.explain(&call, bytes)))
    }
}
