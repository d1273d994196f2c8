"""Compression between hosts: all-reduce in fewer bytes.

    arx.all_reduce(gradient, "avg", compression="int8")
    arx.all_reduce(gradient, "avg", compression="topk:0.01", name="layer 1")

```
codec        short form        bytes of a float32     for
Fp16, Bf16   "fp16" "bf16"     2                      anything: two roundings
Int8         "int8"            1.02                   gradients
Int4         "int4"            0.53                   gradients, with feedback
TopK         "topk:0.01"       0.05 a host            gradients, with feedback; slow links
RandomK      "randomk:0.01"    0.04                   the same, less exact
Threshold    "threshold:0.1"   as it comes            where magnitudes are known
PowerSGD     "powersgd:2"      2 (p+q) / pq * 4       matrices
Auto         "auto"            4, 2 or 1.02           whichever of none, fp16 and int8 is fastest
```
Values travel compressed only between hosts; inside a host memory is faster than any codec. So on one host the result is
exact. All ranks end with the same bits. Sums are made in float32 whatever travels: float16 and bfloat16 arrays are
widened, float64 is narrowed. `sum` and `avg` of real floats only.

What a codec leaves out of an array is kept by the rank that left it out, under the call's `name`, and comes with the
next call: without that, small gradients would never arrive. Strings share one `Pipeline` (`parse` returns it); make one
of your own for momentum, warm-up, clipping, or to save what it keeps (`state_dict`).

When it pays: where a byte on the wire costs more than coding it, so on links up to some Gb/s, for arrays of more than
some 10 KiB. `arx.explain(x, compression="auto")` shows the sum.
"""

from arx.compression._codecs import Auto, Bf16, Codec, Fp16, Int4, Int8, PowerSGD, RandomK, Threshold, TopK
from arx.compression._pipeline import PLAIN as _PLAIN
from arx.compression._pipeline import ErrorFeedback, Pipeline, parse
from arx.compression._pipeline import codec as _codec
from arx.compression._pipeline import of_plan as _of_plan
from arx.compression._pipeline import prepare as _prepare

__all__ = [
    "Auto",
    "Bf16",
    "Codec",
    "ErrorFeedback",
    "Fp16",
    "Int4",
    "Int8",
    "Pipeline",
    "PowerSGD",
    "RandomK",
    "Threshold",
    "TopK",
    "parse",
]

_ = _PLAIN, _codec, _of_plan, _prepare  # used by the core
