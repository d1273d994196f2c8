//! Collectives that combine and end with something else on every rank.
//!
//! ```text
//! reduce_scatter    ranks of a host combine what the host has, each for the rows of its team
//!                   teams combine that; each host keeps its own blocks                 each block once out of every host
//!                   if the host has more ranks than there are teams, they share what came
//! scan, exscan      in the order of ranks, whatever hosts they are on
//! ```

use super::moving::{chunks, put};
use super::rows::Rows;
use super::{Session, Way, arithmetic, brings_together, is_rounded};
use crate::blocks::Blocks;
use crate::direct::Verdict;
use crate::dtype::{DType, ReduceOp};
use crate::engine::{Arithmetic, Halt};
use crate::kernels::{Bytes, copy, fill_identity, narrow, widen};
use crate::messages::{Arrays, Cut, aligned};
use crate::plan::Home;
use crate::schedule::{Algorithm, Collective};

impl Session<'_, '_> {
    /// `dst` = this rank's block of the combination of everybody's `src`, of which it may be the same block.
    pub fn reduce_scatter(
        &mut self,
        way: Way,
        (dtype, op): (DType, ReduceOp),
        blocks: &Blocks<'_>,
        (dst, src): (Bytes<'_>, Bytes<'_>),
    ) -> Result<Verdict, Halt> {
        let count = self.hosts.everybody().size() as usize;
        let in_place = matches!(way, Way::Hierarchical(Algorithm::Pairwise) if self.hosts.is_flat())
            || way == Way::Flat(Algorithm::Pairwise);
        if in_place {
            return self.combine_at_owners((dtype.size(), arithmetic(dtype, op, count)), blocks, (dst, src));
        }
        let mut memory = std::mem::take(self.wide);
        let wide = self.travels_wide(way, (dtype, op));
        let rows = Rows::new(self.hosts, blocks, if wide { 2 } else { 1 });
        let own = rows.block(self.hosts.rank());
        let verdict = if wide {
            let array = aligned(&mut memory, 2 * src.len());
            widen(dtype, array, src);
            let code = (DType::Float32.size(), arithmetic(DType::Float32, op, count));
            let verdict = self.combine_rows(way, code, &rows, (array, array));
            if verdict == Ok(Verdict::Agreed) {
                narrow(dtype, dst, &array[own]);
            }
            verdict
        } else {
            let array = aligned(&mut memory, src.len());
            let code = (dtype.size(), arithmetic(dtype, op, count));
            let verdict = self.combine_rows(way, code, &rows, (array, src));
            if verdict == Ok(Verdict::Agreed) {
                copy(dst, &array[own]);
            }
            verdict
        };
        *self.wide = memory;
        verdict
    }

    /// Every rank sends each block straight to its owner, out of the array that it brings.
    fn combine_at_owners(
        &mut self,
        code: (usize, Arithmetic),
        blocks: &Blocks<'_>,
        (dst, src): (Bytes<'_>, Bytes<'_>),
    ) -> Result<Verdict, Halt> {
        if self.arrive()? == Verdict::Differs {
            return Ok(Verdict::Differs);
        }
        let me = self.hosts.rank();
        put(dst, &src[blocks.of(me as usize)]);
        let chunks = chunks(blocks, |rank, at| if rank == me { Home::Array(0) } else { Home::Source(at) });
        let arrays = Arrays { array: dst, source: src, cut: Cut::Chunks(&chunks) };
        self.among_all(Collective::ReduceScatter, Algorithm::Pairwise, code, &arrays)?;
        Ok(Verdict::Agreed)
    }

    /// This rank's block of `array` = combination of everybody's; the rest of it is whatever it is.
    fn combine_rows(
        &mut self,
        way: Way,
        code: (usize, Arithmetic),
        rows: &Rows<'_>,
        (array, src): (Bytes<'_>, Bytes<'_>),
    ) -> Result<Verdict, Halt> {
        let hosts = self.hosts;
        let algorithm = match way {
            Way::Hierarchical(algorithm) => algorithm,
            Way::Flat(algorithm) => {
                if self.arrive()? == Verdict::Differs {
                    return Ok(Verdict::Differs);
                }
                put(array, src);
                let chunks = rows.all();
                let arrays = Arrays { array, source: &[], cut: Cut::Chunks(&chunks) };
                self.among_all(Collective::ReduceScatter, algorithm, code, &arrays)?;
                return Ok(Verdict::Agreed);
            }
        };
        if self.combine_here(&code.1, array, src, &rows.carried(|_| true))? == Verdict::Differs {
            return Ok(Verdict::Differs);
        }
        if let Some(team) = hosts.team(hosts.place()) {
            let chunks = rows.chunks(hosts.place());
            let arrays = Arrays { array, source: &[], cut: Cut::Chunks(&chunks) };
            self.by_messages((Collective::ReduceScatter, algorithm, team.clone()), code, &arrays)?;
        }
        if rows.some_are_carried() {
            let here = hosts.mine().0;
            self.share(array, &rows.carried(|host| host == here))?;
        }
        Ok(Verdict::Agreed)
    }

    /// `dst` = combination, in their order, of what the ranks up to this one bring (`Scan`), or those before it (`Exscan`);
    /// on rank 0 of the latter, what changes nothing. After the ranks of this host have arrived.
    pub fn scan(
        &mut self,
        collective: Collective,
        algorithm: Algorithm,
        (dtype, op): (DType, ReduceOp),
        (dst, src): (Bytes<'_>, Bytes<'_>),
    ) -> Result<(), Halt> {
        let everybody = self.hosts.everybody().size();
        let code = |dtype: DType| (dtype.size(), arithmetic(dtype, op, everybody as usize));
        if is_rounded(dtype, op) && !brings_together(algorithm, everybody) {
            let mut memory = std::mem::take(self.wide);
            let wide = aligned(&mut memory, 2 * src.len());
            widen(dtype, wide, src);
            let result = self.among_all(collective, algorithm, code(DType::Float32), &Arrays::even(wide));
            narrow(dtype, dst, wide);
            *self.wide = memory;
            result?;
        } else {
            put(dst, src);
            self.among_all(collective, algorithm, code(dtype), &Arrays::even(dst))?;
        }
        if collective == Collective::Exscan && self.hosts.rank() == 0 {
            fill_identity(dtype, op, dst);
        }
        Ok(())
    }
}
