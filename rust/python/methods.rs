//! The collectives and messages as methods of a group: what the functions of the module do, without looking for the group.

use pyo3::prelude::*;

use super::axes;
use super::calls::{self, Which};
use super::explanation::Explanation;
use super::group::Group;
use super::options::Options;
use super::post::{self, Incoming, Outgoing};
use super::reduce::Reduce;

type Any<'py> = Bound<'py, PyAny>;

#[pymethods]
impl Group {
    /// As the function `arx.all_reduce`, in this group.
    #[pyo3(signature = (x, op = None, *, out = None, compression = None, algo = None, timeout = None, name = None, async_op = false))]
    #[expect(clippy::too_many_arguments, reason = "what users may pass")]
    fn all_reduce<'py>(
        slf: &Bound<'py, Self>,
        x: Any<'py>,
        op: Option<Any<'py>>,
        out: Option<Any<'py>>,
        compression: Option<Any<'py>>,
        algo: Option<Any<'py>>,
        timeout: Option<Any<'py>>,
        name: Option<Any<'py>>,
        async_op: bool,
    ) -> PyResult<Any<'py>> {
        let options = Options { algo, compression, timeout, name, later: async_op };
        Group::combine(slf, Reduce { x, op, out, options })
    }

    /// As the function `arx.broadcast`, in this group.
    #[pyo3(signature = (x, root = None, *, timeout = None, name = None, async_op = false))]
    fn broadcast<'py>(
        slf: &Bound<'py, Self>,
        x: Any<'py>,
        root: Option<Any<'py>>,
        timeout: Option<Any<'py>>,
        name: Option<Any<'py>>,
        async_op: bool,
    ) -> PyResult<Py<PyAny>> {
        let options = Options::new(timeout, name, async_op);
        Group::call(slf, async_op, |group| calls::broadcast(group, (&x, root.as_ref()), &options))
    }

    /// As the function `arx.barrier`, in this group.
    #[pyo3(signature = (*, timeout = None, async_op = false))]
    fn barrier(slf: &Bound<'_, Self>, timeout: Option<Any<'_>>, async_op: bool) -> PyResult<Py<PyAny>> {
        let options = Options::new(timeout, None, async_op);
        Group::call(slf, async_op, |_| calls::barrier(&options))
    }

    /// As the function `arx.explain`, in this group.
    #[pyo3(signature = (x, op = None, *, compression = None, algo = None))]
    fn explain<'py>(
        slf: &Bound<'py, Self>,
        x: Any<'py>,
        op: Option<Any<'py>>,
        compression: Option<Any<'py>>,
        algo: Option<Any<'py>>,
    ) -> PyResult<Explanation> {
        Group::explanation(slf, (x, op), compression, algo)
    }

    /// As the function `arx.reduce`, in this group.
    #[pyo3(signature = (x, root = None, op = None, *, out = None, algo = None, timeout = None, name = None, async_op = false))]
    #[expect(clippy::too_many_arguments, reason = "what users may pass")]
    fn reduce<'py>(
        slf: &Bound<'py, Self>,
        x: Any<'py>,
        root: Option<Any<'py>>,
        op: Option<Any<'py>>,
        out: Option<Any<'py>>,
        algo: Option<Any<'py>>,
        timeout: Option<Any<'py>>,
        name: Option<Any<'py>>,
        async_op: bool,
    ) -> PyResult<Py<PyAny>> {
        let options = Options { algo, timeout, name, later: async_op, ..Options::default() };
        Group::combine_some(slf, Which::Root(root.as_ref()), Reduce { x, op, out, options }).map(Bound::unbind)
    }

    /// As the function `arx.all_gather`, in this group.
    #[pyo3(signature = (x, *, out = None, axis = None, timeout = None, name = None, async_op = false))]
    fn all_gather<'py>(
        slf: &Bound<'py, Self>,
        x: Any<'py>,
        out: Option<Any<'py>>,
        axis: Option<Any<'py>>,
        timeout: Option<Any<'py>>,
        name: Option<Any<'py>>,
        async_op: bool,
    ) -> PyResult<Py<PyAny>> {
        let options = Options::new(timeout, name, async_op);
        axes::all_gather(slf, (x, out, axis), &options)
    }

    /// As the function `arx.gather`, in this group.
    #[pyo3(signature = (x, root = None, *, out = None, axis = None, timeout = None, name = None, async_op = false))]
    #[expect(clippy::too_many_arguments, reason = "what users may pass")]
    fn gather<'py>(
        slf: &Bound<'py, Self>,
        x: Any<'py>,
        root: Option<Any<'py>>,
        out: Option<Any<'py>>,
        axis: Option<Any<'py>>,
        timeout: Option<Any<'py>>,
        name: Option<Any<'py>>,
        async_op: bool,
    ) -> PyResult<Py<PyAny>> {
        let options = Options::new(timeout, name, async_op);
        axes::gather(slf, root, (x, out, axis), &options)
    }

    /// As the function `arx.scatter`, in this group.
    #[pyo3(signature = (x = None, root = None, *, out = None, timeout = None, name = None, async_op = false))]
    fn scatter<'py>(
        slf: &Bound<'py, Self>,
        x: Option<Any<'py>>,
        root: Option<Any<'py>>,
        out: Option<Any<'py>>,
        timeout: Option<Any<'py>>,
        name: Option<Any<'py>>,
        async_op: bool,
    ) -> PyResult<Py<PyAny>> {
        let options = Options::new(timeout, name, async_op);
        axes::scatter(slf, (x, root, out), &options)
    }

    /// As the function `arx.reduce_scatter`, in this group.
    #[pyo3(signature = (x, op = None, *, out = None, counts = None, timeout = None, name = None, async_op = false))]
    #[expect(clippy::too_many_arguments, reason = "what users may pass")]
    fn reduce_scatter<'py>(
        slf: &Bound<'py, Self>,
        x: Any<'py>,
        op: Option<Any<'py>>,
        out: Option<Any<'py>>,
        counts: Option<Any<'py>>,
        timeout: Option<Any<'py>>,
        name: Option<Any<'py>>,
        async_op: bool,
    ) -> PyResult<Py<PyAny>> {
        let options = Options::new(timeout, name, async_op);
        Group::call(slf, async_op, |group| {
            calls::reduce_scatter(group, (&x, op.as_ref(), out.as_ref(), counts.as_ref()), &options)
        })
    }

    /// As the function `arx.all_to_all`, in this group.
    #[pyo3(signature = (x, *, out = None, send_counts = None, recv_counts = None, timeout = None, name = None, async_op = false))]
    #[expect(clippy::too_many_arguments, reason = "what users may pass")]
    fn all_to_all<'py>(
        slf: &Bound<'py, Self>,
        x: Any<'py>,
        out: Option<Any<'py>>,
        send_counts: Option<Any<'py>>,
        recv_counts: Option<Any<'py>>,
        timeout: Option<Any<'py>>,
        name: Option<Any<'py>>,
        async_op: bool,
    ) -> PyResult<Py<PyAny>> {
        let options = Options::new(timeout, name, async_op);
        Group::call(slf, async_op, |group| {
            calls::all_to_all(group, (&x, out.as_ref()), (send_counts.as_ref(), recv_counts.as_ref()), &options)
        })
    }

    /// As the function `arx.scan`, in this group.
    #[pyo3(signature = (x, op = None, *, out = None, timeout = None, name = None, async_op = false))]
    fn scan<'py>(
        slf: &Bound<'py, Self>,
        x: Any<'py>,
        op: Option<Any<'py>>,
        out: Option<Any<'py>>,
        timeout: Option<Any<'py>>,
        name: Option<Any<'py>>,
        async_op: bool,
    ) -> PyResult<Py<PyAny>> {
        let options = Options::new(timeout, name, async_op);
        Group::combine_some(slf, Which::UpToMine, Reduce { x, op, out, options }).map(Bound::unbind)
    }

    /// As the function `arx.exscan`, in this group.
    #[pyo3(signature = (x, op = None, *, out = None, timeout = None, name = None, async_op = false))]
    fn exscan<'py>(
        slf: &Bound<'py, Self>,
        x: Any<'py>,
        op: Option<Any<'py>>,
        out: Option<Any<'py>>,
        timeout: Option<Any<'py>>,
        name: Option<Any<'py>>,
        async_op: bool,
    ) -> PyResult<Py<PyAny>> {
        let options = Options::new(timeout, name, async_op);
        Group::combine_some(slf, Which::BeforeMine, Reduce { x, op, out, options }).map(Bound::unbind)
    }

    /// As the function `arx.send`, in this group.
    #[pyo3(signature = (x, dst, *, tag = None, timeout = None, async_op = false))]
    fn send<'py>(
        slf: &Bound<'py, Self>,
        x: Any<'py>,
        dst: Any<'py>,
        tag: Option<Any<'py>>,
        timeout: Option<Any<'py>>,
        async_op: bool,
    ) -> PyResult<Py<PyAny>> {
        post::send_in(slf, Outgoing { x, dst, tag }, timeout, async_op)
    }

    /// As the function `arx.recv`, in this group.
    #[pyo3(signature = (out, src = None, *, tag = None, timeout = None, async_op = false))]
    fn recv<'py>(
        slf: &Bound<'py, Self>,
        out: Any<'py>,
        src: Option<Any<'py>>,
        tag: Option<Any<'py>>,
        timeout: Option<Any<'py>>,
        async_op: bool,
    ) -> PyResult<Py<PyAny>> {
        post::recv_in(slf, Incoming { out, src, tag }, timeout, async_op)
    }

    /// As the function `arx.sendrecv`, in this group.
    #[pyo3(signature = (x, dst, out, src = None, *, tag = None, recv_tag = None, timeout = None, async_op = false))]
    #[expect(clippy::too_many_arguments, reason = "as Python has them")]
    fn sendrecv<'py>(
        slf: &Bound<'py, Self>,
        x: Any<'py>,
        dst: Any<'py>,
        out: Any<'py>,
        src: Option<Any<'py>>,
        tag: Option<Any<'py>>,
        recv_tag: Option<Any<'py>>,
        timeout: Option<Any<'py>>,
        async_op: bool,
    ) -> PyResult<Py<PyAny>> {
        let recv_tag = recv_tag.or_else(|| tag.clone());
        post::sendrecv_in(slf, (Outgoing { x, dst, tag }, Incoming { out, src, tag: recv_tag }), timeout, async_op)
    }
}
