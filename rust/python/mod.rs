//! The Python module `arx._arx`: the only room that names pyo3. Arguments are checked and turned into memory, calls are
//! handed to the communicator, errors become exceptions. Nothing here knows an algorithm.

mod arguments;
mod arrays;
mod axes;
mod buckets;
mod calls;
mod coalescing;
mod collectives;
mod compression;
mod dlpack;
mod errand;
mod errors;
mod explanation;
mod exporters;
mod family;
mod fresh;
mod group;
mod held;
mod host;
mod interface;
mod listening;
mod memory;
mod message;
mod methods;
mod options;
mod plan;
mod post;
mod reduce;
mod strided;
mod subgroups;
mod task;
mod work;
mod world;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::kernels::{Isa, chosen};

/// Facts about this build and this machine: `version`, `debug`, `simd` (the instruction set in use) and `simd_available`.
#[pyfunction]
fn build_info(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let info = PyDict::new(py);
    info.set_item("version", env!("CARGO_PKG_VERSION"))?;
    info.set_item("debug", cfg!(debug_assertions))?;
    info.set_item("simd", chosen().map_or_else(|why| why, |isa| isa.name().to_owned()))?;
    info.set_item("simd_available", Isa::available().iter().map(|isa| isa.name()).collect::<Vec<_>>())?;
    Ok(info)
}

#[pymodule]
fn _arx(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(build_info, m)?)?;
    m.add_function(wrap_pyfunction!(world::connect, m)?)?;
    m.add_function(wrap_pyfunction!(world::world, m)?)?;
    m.add_function(wrap_pyfunction!(world::is_initialized, m)?)?;
    m.add_function(wrap_pyfunction!(world::shutdown, m)?)?;
    m.add_function(wrap_pyfunction!(world::after_fork_in_child, m)?)?;
    m.add_function(wrap_pyfunction!(collectives::all_reduce, m)?)?;
    m.add_function(wrap_pyfunction!(collectives::broadcast, m)?)?;
    m.add_function(wrap_pyfunction!(collectives::barrier, m)?)?;
    m.add_function(wrap_pyfunction!(collectives::explain, m)?)?;
    m.add_function(wrap_pyfunction!(family::reduce, m)?)?;
    m.add_function(wrap_pyfunction!(family::all_gather, m)?)?;
    m.add_function(wrap_pyfunction!(family::gather, m)?)?;
    m.add_function(wrap_pyfunction!(family::scatter, m)?)?;
    m.add_function(wrap_pyfunction!(family::reduce_scatter, m)?)?;
    m.add_function(wrap_pyfunction!(family::all_to_all, m)?)?;
    m.add_function(wrap_pyfunction!(family::scan, m)?)?;
    m.add_function(wrap_pyfunction!(family::exscan, m)?)?;
    m.add_function(wrap_pyfunction!(plan::plan_all_reduce, m)?)?;
    m.add_function(wrap_pyfunction!(coalescing::coalescing, m)?)?;
    m.add_function(wrap_pyfunction!(work::finished, m)?)?;
    m.add_function(wrap_pyfunction!(work::finish, m)?)?;
    m.add_function(wrap_pyfunction!(listening::listen, m)?)?;
    m.add_function(wrap_pyfunction!(subgroups::new_group_of_world, m)?)?;
    m.add_function(wrap_pyfunction!(post::send, m)?)?;
    m.add_function(wrap_pyfunction!(post::recv, m)?)?;
    m.add_function(wrap_pyfunction!(post::sendrecv, m)?)?;
    m.add("ANY", post::Any)?;
    m.add_class::<post::Status>()?;
    m.add_class::<explanation::Explanation>()?;
    m.add_class::<group::Group>()?;
    m.add_class::<listening::Listening>()?;
    m.add_class::<buckets::Buckets>()?;
    m.add_class::<compression::PyCodec>()?;
    m.add_class::<compression::PyFeedback>()?;
    m.add_class::<plan::Plan>()?;
    m.add_class::<work::Work>()?;
    Ok(())
}
