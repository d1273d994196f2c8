//! Codecs and feedback as Python holds them. What is asked for, and with which state, `arx.compression` decides.

use std::cell::Cell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::arrays::{Array, Kind, Packed};
use super::memory::Found;
use crate::codec::sparse::{self, Values};
use crate::codec::{Codec, Dense, Dice, Feedback, Malformed, Of, Pick, Selection, Share, State};
use crate::communicator::Compression;
use crate::dtype::DType;
use crate::kernels::{Bytes, bytes_of, copy, float32_of};

/// A codec, with its parameters checked by Python.
#[pyclass(frozen, module = "arx._arx", name = "_Codec")]
pub struct PyCodec(pub Compression);

#[pymethods]
impl PyCodec {
    /// Whatever is predicted to be fastest.
    #[staticmethod]
    fn auto() -> PyCodec {
        PyCodec(Compression::Auto)
    }

    /// "fp16", "bf16", "int8" or "int4".
    #[staticmethod]
    fn dense(name: &str, block: u32, stochastic: bool) -> PyResult<PyCodec> {
        Ok(PyCodec(Compression::With(Codec::Dense(match name {
            "fp16" => Dense::Float16,
            "bf16" => Dense::BFloat16,
            "int8" => Dense::Int8 { block, stochastic },
            "int4" => Dense::Int4 { block, stochastic },
            other => return Err(PyValueError::new_err(format!("no codec is called '{other}'"))),
        }))))
    }

    /// "topk" or "randomk" with a count (int) or a ratio (float), "threshold" with one; values as "fp32", "fp16" or "int8".
    #[staticmethod]
    fn sparse(pick: &str, amount: &Bound<'_, PyAny>, values: &str, shared: bool) -> PyResult<PyCodec> {
        let share = || -> PyResult<Share> {
            match amount.extract::<usize>() {
                Ok(count) => Ok(Share::Count(count)),
                Err(_) => Ok(Share::Ratio(amount.extract()?)),
            }
        };
        let pick = match pick {
            "topk" => Pick::Top(share()?),
            "randomk" => Pick::Random(share()?),
            "threshold" => Pick::AtLeast(amount.extract()?),
            other => return Err(PyValueError::new_err(format!("no codec is called '{other}'"))),
        };
        let values = match values {
            "fp32" => Values::Float32,
            "fp16" => Values::Float16,
            "int8" => Values::Int8,
            other => return Err(PyValueError::new_err(format!("picked values cannot travel as '{other}'"))),
        };
        let shared = shared || matches!(pick, Pick::Random(_));
        Ok(PyCodec(Compression::With(Codec::Sparse(Selection { pick, values, shared }))))
    }

    #[staticmethod]
    fn low_rank(rank: u32) -> PyCodec {
        PyCodec(Compression::With(Codec::LowRank(rank)))
    }

    /// The payload of an array of float32; `seed` for what is random.
    fn encode(&self, py: Python<'_>, x: &Bound<'_, PyAny>, seed: u64) -> PyResult<Found> {
        let values = floats(x)?;
        let dice = Dice::new(&[seed]);
        let mut payload = py.detach(|| encode(self.0, &values, dice)).ok_or_else(no_payload)?;
        Ok(found(Cell::from_mut(payload.as_mut_slice()).as_slice_of_cells()))
    }

    /// What a payload says of `count` elements: float32.
    fn decode(&self, py: Python<'_>, payload: &[u8], count: usize) -> PyResult<Found> {
        let decoded = py.detach(|| decode(self.0, payload, count)).ok_or_else(no_payload)?;
        let mut values =
            decoded.map_err(|Malformed(why)| PyValueError::new_err(format!("malformed payload: {why}")))?;
        Ok(found(bytes_of(&mut values)))
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("<arx codec '{}'>", self.0)
    }
}

/// A copy that Python reads where it lies.
fn found(bytes: Bytes<'_>) -> Found {
    let memory = Packed::new(bytes.len());
    copy(memory.bytes(), bytes);
    Found::new(memory)
}

fn no_payload() -> PyErr {
    PyTypeError::new_err("this codec has no payload of its own")
}

fn encode(codec: Compression, values: &[f32], dice: Dice) -> Option<Vec<u8>> {
    match codec {
        Compression::With(Codec::Dense(dense)) => {
            let mut payload = vec![0; dense.payload_len(values.len())];
            dense.encode(values, dice, 0, &mut payload);
            Some(payload)
        }
        Compression::With(Codec::Sparse(selection)) => {
            let (mut picks, mut payload) = (Vec::new(), Vec::new());
            let k = selection.picks(values.len()).unwrap_or(0);
            match selection.pick {
                Pick::Top(_) => sparse::top_k(values, k, &mut picks),
                Pick::Random(_) => sparse::random_k(values.len(), k, dice, &mut picks),
                Pick::AtLeast(threshold) => sparse::at_least(values, threshold, &mut picks),
            }
            let mut picked = Vec::new();
            sparse::gather(&picks, values, &mut picked);
            sparse::encode(&picks, &picked, values.len(), selection.values, &mut payload);
            Some(payload)
        }
        Compression::With(Codec::LowRank(_)) | Compression::Auto => None,
    }
}

fn decode(codec: Compression, payload: &[u8], count: usize) -> Option<Result<Vec<f32>, Malformed>> {
    let mut values = vec![0.0; count];
    match codec {
        Compression::With(Codec::Dense(dense)) => Some(dense.decode(payload, &mut values).map(|()| values)),
        Compression::With(Codec::Sparse(selection)) => {
            let (mut picks, mut picked) = (Vec::new(), Vec::new());
            let decoded = sparse::decode(payload, count, selection.values, &mut picks, &mut picked);
            Some(decoded.map(|()| {
                sparse::add(&picks, &picked, &mut values);
                values
            }))
        }
        Compression::With(Codec::LowRank(_)) | Compression::Auto => None,
    }
}

/// A contiguous array of float32, copied.
fn floats(x: &Bound<'_, PyAny>) -> PyResult<Vec<f32>> {
    let array = Array::of(x)?;
    if array.kind != Kind::Number(DType::Float32) || !array.contiguous {
        return Err(PyTypeError::new_err("a contiguous array of float32 is needed"));
    }
    let mut values = vec![0.0; array.len() / size_of::<f32>()];
    float32_of(DType::Float32, bytes_of(&mut values), array.bytes());
    Ok(values)
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

/// What one array's calls leave behind for the next ones.
#[pyclass(frozen, module = "arx._arx", name = "_Feedback")]
pub struct PyFeedback(Arc<Mutex<Feedback>>);

impl PyFeedback {
    pub fn share(&self) -> Arc<Mutex<Feedback>> {
        Arc::clone(&self.0)
    }

    fn lock(&self) -> MutexGuard<'_, Feedback> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl PyFeedback {
    #[new]
    fn new(momentum: f32) -> PyFeedback {
        PyFeedback(Arc::new(Mutex::new(Feedback::new(momentum))))
    }

    /// Calls that have ended well since it was reset.
    #[getter]
    fn steps(&self) -> u64 {
        self.lock().steps()
    }

    /// All of it, or None if there has been no call: float32 arrays as bytes.
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let feedback = self.lock();
        let Some(Of { shape, dtype, part }) = feedback.of() else { return Ok(None) };
        let State { residual, velocity, basis } = feedback.state();
        let dict = PyDict::new(py);
        dict.set_item("shape", shape)?;
        dict.set_item("dtype", dtype.name())?;
        dict.set_item("start", part.start)?;
        dict.set_item("steps", feedback.steps())?;
        for (name, values) in [("residual", residual), ("velocity", velocity), ("basis", basis)] {
            dict.set_item(name, PyBytes::new(py, &bytes(values)))?;
        }
        Ok(Some(dict))
    }

    /// Goes on from what `state` gave, with arrays of float32 instead of bytes.
    fn restore(&self, state: &Bound<'_, PyDict>) -> PyResult<()> {
        let item = |name: &str| {
            state.get_item(name)?.ok_or_else(|| PyValueError::new_err(format!("the state has no '{name}'")))
        };
        let [residual, velocity, basis] = ["residual", "velocity", "basis"].map(|name| floats(&item(name)?));
        let state = State { residual: residual?, velocity: velocity?, basis: basis? };
        let dtype: String = item("dtype")?.extract()?;
        let dtype =
            DType::parse(&dtype).ok_or_else(|| PyValueError::new_err(format!("no dtype is called '{dtype}'")))?;
        let start: usize = item("start")?.extract()?;
        let part = start..start + state.residual.len();
        let of = Of { shape: item("shape")?.extract()?, dtype, part };
        match self.lock().restore(of, state, item("steps")?.extract()?) {
            true => Ok(()),
            false => Err(PyValueError::new_err("the arrays of the state have different lengths")),
        }
    }
}
