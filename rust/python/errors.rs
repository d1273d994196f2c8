//! `Error` as the exceptions of `arx.errors`: the one mapping.

use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::error::Error;

impl From<Error> for PyErr {
    fn from(error: Error) -> PyErr {
        Python::attach(|py| {
            let text = error.to_string();
            match error {
                Error::Busy(_) => PyRuntimeError::new_err(text),
                Error::Invalid(_) => PyValueError::new_err(text),
                Error::Type(_) => PyTypeError::new_err(text),
                Error::NoMemory(_) => PyMemoryError::new_err(text),
                Error::Init(_) => raise(py, "InitError", text, None),
                Error::Rendezvous(_) => raise(py, "RendezvousError", text, None),
                Error::Auth(_) => raise(py, "AuthError", text, None),
                Error::PeerLost { ranks, .. } => raise(py, "PeerLostError", text, Some(("ranks", ranks))),
                Error::Timeout { missing, .. } => raise(py, "CollectiveTimeout", text, Some(("missing", missing))),
                Error::Mismatch(_) => raise(py, "MismatchError", text, None),
                // `Interrupted` is replaced by the exception of the signal handler where it is caught (`group`).
                Error::Aborted(_) | Error::Interrupted => raise(py, "AbortedError", text, None),
            }
        })
    }
}

fn raise(py: Python<'_>, class: &str, text: String, ranks: Option<(&str, Vec<u32>)>) -> PyErr {
    let made = || {
        let kwargs = PyDict::new(py);
        if let Some((key, ranks)) = ranks {
            kwargs.set_item(key, PyTuple::new(py, ranks)?)?;
        }
        py.import("arx.errors")?.getattr(class)?.call((text,), Some(&kwargs))
    };
    made().map_or_else(|e| e, PyErr::from_value)
}
