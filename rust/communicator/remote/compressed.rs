//! All-reduce with a codec between hosts: which one, and in which ways its messages go.

use crate::codec::{Codec, Feedback};
use crate::hierarchy::Squeeze;
use crate::kernels::Bytes;
use crate::wait::Host;

use super::super::call::{Call, Compression};
use super::super::local::Outcome;
use super::Remote;

impl Remote {
    pub fn compressed(
        &mut self,
        sequence: u64,
        call: &Call<'_>,
        feedback: Option<&mut Feedback>,
        (dst, src): (Bytes<'_>, Bytes<'_>),
        host: &mut dyn Host,
    ) -> Outcome {
        let (dtype, op) = call.reduction();
        let count = src.len() / dtype.size();
        let codec = match call.compression {
            Some(Compression::With(codec)) => Some(codec),
            _ => self.network.codec(&self.hosts, count).map(Codec::Dense),
        };
        let Some(codec) = codec.filter(|_| count > 0) else {
            return self.all_reduce(sequence, call, (dst, src), host);
        };
        let ways = self.network.ways(codec, &self.hosts, count);
        let squeeze = Squeeze { codec, shape: call.shape, dtype, op, ways };
        let mut work = std::mem::take(&mut self.work);
        let outcome =
            self.run(sequence, call, host, |session| session.compressed(&squeeze, &mut work, feedback, (dst, src)));
        self.work = work;
        outcome
    }
}
