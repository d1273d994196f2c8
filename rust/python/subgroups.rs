//! Groups of some of a group's members, as Python asks for them.

use std::cell::Cell;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use super::arguments;
use super::group::{Group, perform};
use super::host::Attached;
use super::world;
use crate::communicator::{Algorithm, Call, Collective, Element};
use crate::dtype::{DType, ReduceOp};
use crate::error::Error;
use crate::kernels::Bytes;

/// Groups that every group has, made when they are first asked for.
pub struct Kin {
    local: PyOnceLock<Py<Group>>,
    cross: PyOnceLock<Py<Group>>,
}

impl Default for Kin {
    fn default() -> Kin {
        Kin { local: PyOnceLock::new(), cross: PyOnceLock::new() }
    }
}

/// Make a group of some ranks, to communicate among themselves.
///
/// Only its members need to call it, and nobody else notices; each of them passes the same ranks in the same order.
/// Groups are independent of each other: each has its own sequence of calls and may be used in a thread of its own.
///
/// Parameters
/// ----------
/// ranks : sequence of int
///     World ranks (for the method `Group.new_group`: ranks of that group). The order is kept: with `[3, 1]`, rank 3 of
///     the world is rank 0 of the group.
/// name : str, optional
///     What errors call the group.
///
/// Returns
/// -------
/// Group or None
///     None on a rank that is not among them.
///
/// Raises
/// ------
/// InitError
///     Before `arx.init`.
/// ValueError
///     No ranks, a rank that does not exist, or one that is named twice.
/// PeerLostError, CollectiveTimeout
///     The first member on this host is gone, or does not make the group.
///
/// Notes
/// -----
/// A group shares everything with the world but some memory: it needs no descriptor and no thread, and is cheap to make.
/// It ends with `shutdown`, with a `with` block or with its last reference; members that still wait in it then get
/// `PeerLostError`. `arx.shutdown` ends all groups. On one host and over several, what goes wrong in a group closes that
/// group alone; a process that dies is lost to all groups of which it is a member.
///
/// MPI: MPI_Comm_create_group (MPI 4.1, section 7.4.2).
///
/// Examples
/// --------
/// >>> odd = arx.new_group(range(1, arx.size(), 2))           # doctest: +SKIP
/// >>> if odd: odd.all_reduce(x)                              # doctest: +SKIP
#[pyfunction]
#[pyo3(name = "new_group", signature = (ranks, *, name = None))]
pub fn new_group_of_world<'py>(
    ranks: Bound<'py, PyAny>,
    name: Option<Bound<'py, PyAny>>,
) -> PyResult<Option<Bound<'py, Group>>> {
    new_group(world::world(ranks.py())?.get(), ranks, name)
}

/// Out of members of `parent`.
pub fn new_group<'py>(
    parent: &Group,
    ranks: Bound<'py, PyAny>,
    name: Option<Bound<'py, PyAny>>,
) -> PyResult<Option<Bound<'py, Group>>> {
    let name = arguments::text("name", name.as_ref())?;
    let members = ranks.try_iter()?.map(|rank| member(parent, &rank?)).collect::<PyResult<Vec<u32>>>()?;
    found(parent, ranks.py(), &members, name)
}

fn member(parent: &Group, rank: &Bound<'_, PyAny>) -> PyResult<u32> {
    let number = index("a rank", rank)?;
    u32::try_from(number).ok().filter(|rank| *rank < parent.size).ok_or_else(|| {
        let last = parent.size - 1;
        PyValueError::new_err(format!("rank {number} is not in this group, whose ranks go from 0 to {last}"))
    })
}

pub(super) fn index(what: &str, value: &Bound<'_, PyAny>) -> PyResult<i64> {
    // Without a detour by names, which takes as long as all else that a short message needs.
    if let Ok(number) = value.extract() {
        return Ok(number);
    }
    let number = value.call_method0("__index__").map_err(|_| {
        let got = value.get_type().name().map_or_else(|_| "another type".into(), |n| n.to_string());
        PyTypeError::new_err(format!("{what} must be an integer, not {got}"))
    })?;
    number.extract().map_err(|_| PyValueError::new_err(format!("{what} {number} does not fit into 64 bits")))
}

fn found<'py>(
    parent: &Group,
    py: Python<'py>,
    members: &[u32],
    name: Option<&str>,
) -> PyResult<Option<Bound<'py, Group>>> {
    parent.refuse_heir()?;
    let mut host = Attached { py, raised: None };
    match parent.founder.found(members, name, &mut host) {
        Ok(made) => made.map(|group| Bound::new(py, Group::new(group, parent.algorithm))).transpose(),
        Err(Error::Interrupted) => Err(host.raised.take().unwrap_or_else(|| Error::Interrupted.into())),
        Err(error) => Err(error.into()),
    }
}

pub fn local<'py>(group: &Group, py: Python<'py>) -> PyResult<Bound<'py, Group>> {
    let members = group.hosts().mine().1;
    one_of(&group.kin.local, group, py, members, "local")
}

pub fn cross<'py>(group: &Group, py: Python<'py>) -> PyResult<Bound<'py, Group>> {
    let place = group.hosts().place();
    let members: Vec<u32> = group.hosts().all().iter().filter_map(|host| host.get(place).copied()).collect();
    one_of(&group.kin.cross, group, py, &members, &format!("cross[{place}]"))
}

fn one_of<'py>(
    kept: &PyOnceLock<Py<Group>>,
    group: &Group,
    py: Python<'py>,
    members: &[u32],
    name: &str,
) -> PyResult<Bound<'py, Group>> {
    let make = || Ok::<_, PyErr>(found(group, py, members, Some(name))?.expect("this rank is one of them").unbind());
    Ok(kept.get_or_try_init(py, make)?.bind(py).clone())
}

/// What a member brings to `split`: whether it is in a group, which, and where. Others than its own are 0 before all are summed.
const COLUMNS: usize = 3;
const WORD: usize = size_of::<i64>();

fn write_row(row: Bytes<'_>, words: [i64; COLUMNS]) {
    row.iter().zip(words.map(i64::to_ne_bytes).as_flattened()).for_each(|(cell, byte)| cell.set(*byte));
}

fn read_row(row: Bytes<'_>) -> [i64; COLUMNS] {
    std::array::from_fn(|k| i64::from_ne_bytes(std::array::from_fn(|i| row[k * WORD + i].get())))
}

pub fn split<'py>(
    group: &Group,
    py: Python<'py>,
    color: Option<Bound<'py, PyAny>>,
    key: Option<Bound<'py, PyAny>>,
) -> PyResult<Option<Bound<'py, Group>>> {
    let memory = vec![Cell::new(0_u8); (COLUMNS * group.size as usize + 1) * WORD];
    // Kernels want numbers where numbers may be.
    let table = &memory[memory.as_ptr().align_offset(WORD)..][..COLUMNS * group.size as usize * WORD];
    let mut communicator = group.enter(py)?;
    let checks = || {
        let color = color.as_ref().map(|color| index("color", color)).transpose()?;
        Ok((color, key.as_ref().map_or(Ok(0), |key| index("key", key))?))
    };
    let (color, key) = group.checked(py, &mut communicator, checks)?;
    if let Some(color) = color {
        write_row(&table[COLUMNS * WORD * group.rank as usize..], [1, color, key]);
    }
    let call = Call {
        collective: Collective::AllReduce(ReduceOp::Sum),
        element: Element::Number(DType::Int64),
        shape: &[group.size as usize, COLUMNS],
        counts: &[],
        algorithm: Algorithm::Auto,
        compression: None,
        name: Some("split"),
        timeout: None,
    };
    perform(py, false, |host| communicator.all_reduce(&call, table, table, host))?;
    drop(communicator);
    let Some(color) = color else { return Ok(None) };
    let rows = (0..).zip(table.chunks_exact(COLUMNS * WORD).map(read_row));
    let mut members: Vec<(i64, u32)> =
        rows.filter(|(_, row)| row[..2] == [1, color]).map(|(rank, [.., key])| (key, rank)).collect();
    members.sort_unstable();
    let members: Vec<u32> = members.into_iter().map(|(_, rank)| rank).collect();
    found(group, py, &members, Some(&format!("split[{color}]")))
}
