//! Reductions of whole arrays, `all_reduce` above all, which most programs call most often: checked and done without a copy of
//! what was passed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString};

use super::arguments;
use super::arrays::{Array, Packed};
use super::calls::{self, Which};
use super::coalescing;
use super::compression::{PyCodec, PyFeedback};
use super::explanation::Explanation;
use super::group::{Group, LONG, perform};
use super::options::Options;
use crate::blocks::Blocks;
use crate::codec::Feedback;
use crate::communicator::{Algorithm, Call, Collective, Communicator, Compression, Cut};
use crate::dtype::ReduceOp;
use crate::error::Result;
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
    collective: Collective,
    input: Array<'py>,
    output: Output<'py>,
    algorithm: Algorithm,
    timeout: Option<Duration>,
    name: Option<&'a str>,
}

/// Where the result goes.
enum Output<'py> {
    InPlace,
    Array(Array<'py>),
    /// This rank gets none.
    Nowhere,
}

impl<'py> Reduce<'py> {
    #[inline]
    fn check(&self, which: Which<'_, 'py>, group: &Group) -> PyResult<Reduction<'_, 'py>> {
        let Options { algo, timeout, name, .. } = &self.options;
        let collective = which.collective(group, self.op.as_ref())?;
        let timeout = arguments::timeout(timeout.as_ref())?;
        let name = arguments::text("name", name.as_ref())?;
        let algorithm = arguments::algorithm(algo.as_ref(), group.algorithm())?;
        let input = Array::of(&self.x)?;
        arguments::reducible(&input, collective.op().expect("all of these combine"))?;
        group.serves(algorithm, input.len())?;
        let output = match collective {
            Collective::Reduce { root, .. } if root != group.rank() => Output::Nowhere,
            _ => self.output(&input)?,
        };
        Ok(Reduction { collective, input, output, algorithm, timeout, name })
    }

    #[inline]
    fn output(&self, input: &Array<'py>) -> PyResult<Output<'py>> {
        let output = match &self.out {
            None => Output::InPlace,
            Some(out) => {
                let output = arguments::output(out)?;
                match arguments::same_memory(&self.x, input, out, &output)? {
                    true => Output::InPlace,
                    false => Output::Array(output),
                }
            }
        };
        match &output {
            Output::Array(output) => arguments::writeable(output, "out")?,
            _ => arguments::writeable(input, "the array")?,
        }
        Ok(output)
    }
}

impl<'py> Reduction<'_, 'py> {
    fn call(&self) -> Call<'_> {
        Call {
            collective: self.collective,
            element: self.input.kind.element(),
            shape: self.input.shape(),
            counts: &[],
            algorithm: self.algorithm,
            compression: None,
            name: self.name,
            timeout: self.timeout,
        }
    }

    /// What the result is written to, if this rank gets one.
    #[inline]
    fn written(&self) -> Option<&Array<'py>> {
        match &self.output {
            Output::InPlace => Some(&self.input),
            Output::Array(output) => Some(output),
            Output::Nowhere => None,
        }
    }
}

#[inline]
fn run(
    communicator: &mut Communicator,
    call: &Call<'_>,
    feedback: Option<&Mutex<Feedback>>,
    (dst, src): (Bytes<'_>, Bytes<'_>),
    host: &mut dyn Host,
) -> Result<()> {
    if call.compression.is_some() {
        let mut feedback = feedback.map(|feedback| feedback.lock().unwrap_or_else(PoisonError::into_inner));
        return communicator.all_reduce_compressed(call, feedback.as_deref_mut(), (dst, src), host);
    }
    if let Collective::AllReduce(_) = call.collective {
        return communicator.all_reduce(call, dst, src, host);
    }
    let whole = Blocks::Even { len: src.len(), count: 1 };
    // Ranks agree on the length of whole arrays: no others come back.
    communicator.collect(call, &Cut::new(whole, whole), (dst, src), host).map(|_| ())
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
    let (codec, feedback, source): (PyRef<'py, PyCodec>, Kept<'py>, Bound<'py, PyAny>) = prepared.extract()?;
    Ok(Prepared::Core(coding(&codec, feedback), source))
}

type Kept<'py> = Option<PyRef<'py, PyFeedback>>;

fn coding(codec: &PyCodec, feedback: Kept<'_>) -> Coding {
    (codec.0, feedback.map(|feedback| feedback.share()))
}

/// The same for a call that is prepared once and done often.
pub fn planned<'py>(
    group: &Bound<'py, Group>,
    (x, op): (&Bound<'py, PyAny>, Option<&Bound<'py, PyAny>>),
    compression: &Bound<'py, PyAny>,
    name: Option<&Bound<'py, PyAny>>,
) -> PyResult<Coding> {
    arguments::compressible(&Array::of(x)?, op.map_or(Ok(ReduceOp::Sum), arguments::operation)?)?;
    let prepared = x.py().import("arx.compression")?.call_method1("_of_plan", (group, compression, name))?;
    let (codec, feedback): (PyRef<'py, PyCodec>, Kept<'py>) = prepared.extract()?;
    Ok(coding(&codec, feedback))
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
        Group::combine_some(slf, Which::All, request)
    }

    /// The same, as it was asked for: at once and alone, or later.
    #[inline]
    pub fn combine_some<'py>(
        slf: &Bound<'py, Group>,
        which: Which<'_, 'py>,
        request: Reduce<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if request.options.later {
            let Reduce { x, op, out, options } = &request;
            let arrays = (x, op.as_ref(), out.as_ref());
            let work = Group::call(slf, true, |group| calls::combine(group, which, arrays, options))?;
            return Ok(work.into_bound(slf.py()));
        }
        slf.get().reduce_now(slf.py(), which, request, None)
    }

    #[inline]
    fn reduce_now<'py>(
        &self,
        py: Python<'py>,
        which: Which<'_, 'py>,
        request: Reduce<'py>,
        coding: Option<Coding>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut communicator = self.enter(py)?;
        let r = self.checked(py, &mut communicator, || request.check(which, self))?;
        let call = Call { compression: coding.as_ref().map(|(codec, _)| *codec), ..r.call() };
        let feedback = coding.as_ref().and_then(|(_, feedback)| feedback.as_deref());
        let written = r.written();
        let long = r.input.len() > LONG;
        if r.input.contiguous && written.is_none_or(|written| written.contiguous) {
            let arrays = (written.map_or(&[] as Bytes<'_>, Array::bytes), r.input.bytes());
            perform(py, long, |host| run(&mut communicator, &call, feedback, arrays, host))?;
        } else {
            let packed = Packed::of(&r.input);
            let both = packed.bytes();
            perform(py, long, |host| run(&mut communicator, &call, feedback, (both, both), host))?;
            if let Some(written) = written {
                packed.unpack(written.view());
            }
        }
        let answers = written.is_some();
        drop(r);
        Ok(if answers { request.out.unwrap_or(request.x) } else { py.None().into_bound(py) })
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
            return group.reduce_now(py, Which::All, Reduce { x: source, op, out, options }, Some(coding));
        }
        let work = Group::call(slf, true, |group| {
            let task = calls::combine(group, Which::All, (&source, op.as_ref(), out.as_ref()), &options)?;
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
        let r = request.check(Which::All, group)?;
        if codec.is_some() {
            arguments::compressible(&r.input, r.collective.op().expect("all of these combine"))?;
        }
        let packed = (!r.input.contiguous).then(|| Packed::of(&r.input));
        let bytes = packed.as_ref().map_or_else(|| r.input.bytes(), Packed::bytes);
        let call = Call { compression: codec, ..r.call() };
        Ok(Explanation(group.enter(py)?.explain(&call, bytes)))
    }
}
