//! All-reduce with a codec between hosts: which one, and in which ways its messages go.

use crate::codec::{Codec, Feedback};
use crate::hierarchy::{Squeeze, Way};
use crate::kernels::Bytes;
use crate::wait::Host;

use super::super::call::{Call, Compression};
use super::super::local::Outcome;
use super::super::network::Route;
use super::{Remote, asked_for};

impl Remote {
    pub fn compressed(
        &mut self,
        sequence: u64,
        call: &Call<'_>,
        feedback: Option<&mut Feedback>,
        (dst, src): (Bytes<'_>, Bytes<'_>),
        host: &mut dyn Host,
    ) -> Outcome {
        let (dtype, _) = call.reduction();
        let count = src.len() / dtype.size();
        if count == 0 {
            return self.all_reduce(sequence, call, (dst, src), host);
        }
        let (route, timed) = match call.compression {
            Some(Compression::With(codec)) => (Route::Coded(codec), false),
            // What is tried are other algorithms than this one.
            _ if asked_for(call).is_some() => {
                (self.network.predicted_route(call, (count, src.len()), &self.hosts), false)
            }
            _ => self.network.compressed(call, (count, src.len()), &self.hosts),
        };
        self.timed(timed, |remote| match route {
            Route::Coded(codec) => remote.coded(sequence, call, (codec, feedback), (dst, src), host),
            Route::Plain(algorithm) => {
                let way = asked_for(call).unwrap_or(Way::Hierarchical(algorithm));
                remote.run(sequence, call, host, |session| session.all_reduce(way, call.reduction(), dst, src))
            }
        })
    }

    fn coded(
        &mut self,
        sequence: u64,
        call: &Call<'_>,
        (codec, feedback): (Codec, Option<&mut Feedback>),
        (dst, src): (Bytes<'_>, Bytes<'_>),
        host: &mut dyn Host,
    ) -> Outcome {
        let (dtype, op) = call.reduction();
        let ways = self.network.ways(codec, &self.hosts, src.len() / dtype.size());
        let squeeze = Squeeze { codec, shape: call.shape, dtype, op, ways };
        let mut work = std::mem::take(&mut self.work);
        let outcome =
            self.run(sequence, call, host, |session| session.compressed(&squeeze, &mut work, feedback, (dst, src)));
        self.work = work;
        outcome
    }
}
