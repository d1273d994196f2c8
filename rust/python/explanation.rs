//! What `arx.explain` returns.

use std::fmt::Write as _;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::communicator::{self, span};

/// Which way a call would take, and why. `print` it, or read its fields.
#[pyclass(frozen, module = "arx")]
pub struct Explanation(pub communicator::Explanation);

#[pymethods]
impl Explanation {
    /// The way, as `algo=` names it.
    #[getter]
    fn algorithm(&self) -> &str {
        &self.0.algorithm
    }

    /// The reason, in words.
    #[getter]
    fn why(&self) -> &str {
        &self.0.why
    }

    /// The predicted time in seconds; None inside a host, where nothing is predicted.
    #[getter]
    fn seconds(&self) -> Option<f64> {
        self.0.seconds
    }

    /// What came into question, by name, with the predicted times in seconds; the fastest first.
    #[getter]
    fn candidates<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        self.0.others.iter().try_for_each(|(name, seconds)| dict.set_item(name, seconds))?;
        Ok(dict)
    }

    fn __str__(&self) -> String {
        let mut text = self.0.algorithm.clone();
        // Writing to a String cannot fail.
        if let Some(seconds) = self.0.seconds {
            let _ = write!(text, ", predicted {}", span(seconds));
        }
        let _ = write!(text, ": {}", self.0.why);
        for (name, seconds) in &self.0.others {
            let _ = write!(text, "\n    {:>10}  {name}", span(*seconds));
        }
        text
    }

    fn __repr__(&self) -> String {
        format!("<arx.Explanation '{}'>", self.0.algorithm)
    }
}
