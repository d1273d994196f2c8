//! Rank 0's socket, for launchers that carry its address to the other ranks.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use super::host::Attached;
use crate::communicator::{self, Master, Network};
use crate::error::Error;

/// How long the name of this host may take to resolve.
const PATIENCE: Duration = Duration::from_secs(30);

/// A socket of rank 0 that listens already; taken by `connect`.
#[pyclass(frozen, module = "arx._arx")]
pub struct Listening {
    socket: Mutex<Option<communicator::Listening>>,
    /// HOST:PORT at which others reach it.
    #[pyo3(get)]
    address: String,
}

impl Listening {
    /// The socket, the first time.
    pub fn take(&self) -> Option<communicator::Listening> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Listens where other hosts can reach this one, or at `address` (HOST:PORT; port 0: any that is allowed).
#[pyfunction]
#[pyo3(signature = (address, iface, port_range))]
pub fn listen(
    py: Python<'_>,
    address: Option<&str>,
    iface: Option<&str>,
    port_range: Option<&str>,
) -> PyResult<Listening> {
    let network = Network::parse(iface, port_range)?;
    let master = address.map_or(Ok(Master { host: String::new(), ports: vec![0] }), Master::parse)?;
    let mut host = Attached { py, raised: None };
    let until = Instant::now() + PATIENCE;
    match communicator::Listening::bind(&master, &network, true, until, &mut host) {
        Ok(socket) => {
            let address = socket.address.to_string();
            Ok(Listening { socket: Mutex::new(Some(socket)), address })
        }
        Err(Error::Interrupted) => Err(host.raised.take().unwrap_or_else(|| Error::Interrupted.into())),
        Err(error) => Err(error.into()),
    }
}
