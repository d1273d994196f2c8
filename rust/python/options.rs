//! What every collective takes beside its arrays.

use std::time::Duration;

use pyo3::prelude::*;

use super::arguments;
use super::arrays::Kind;
use super::held::Shape;
use super::task::What;
use crate::communicator::{Algorithm, Collective};

/// As it was passed.
#[derive(Default)]
pub struct Options<'py> {
    pub algo: Option<Bound<'py, PyAny>>,
    /// Of an all-reduce.
    pub compression: Option<Bound<'py, PyAny>>,
    pub timeout: Option<Bound<'py, PyAny>>,
    pub name: Option<Bound<'py, PyAny>>,
    /// The call returns at once, with a `Work`.
    pub later: bool,
}

/// The same, checked.
pub struct Checked {
    algorithm: Algorithm,
    timeout: Option<Duration>,
    name: Option<String>,
}

impl<'py> Options<'py> {
    pub fn new(timeout: Option<Bound<'py, PyAny>>, name: Option<Bound<'py, PyAny>>, later: bool) -> Options<'py> {
        Options { timeout, name, later, ..Options::default() }
    }

    #[inline]
    pub fn check(&self, default: Algorithm) -> PyResult<Checked> {
        Ok(Checked {
            algorithm: arguments::algorithm(self.algo.as_ref(), default)?,
            timeout: arguments::timeout(self.timeout.as_ref())?,
            name: arguments::text("name", self.name.as_ref())?.map(str::to_owned),
        })
    }
}

impl Checked {
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    #[inline]
    pub fn what(self, collective: Collective, kind: Kind, shape: &[usize]) -> What {
        let Checked { algorithm, timeout, name } = self;
        let (shape, counts) = (Shape::from_slice(shape), Vec::new());
        What { collective, kind, shape, counts, algorithm, compression: None, name, timeout }
    }
}
