//! What sum, prod, min, ... are for each kind of element. Nothing here knows of vectors, memory or ranks.
//!
//! **NaN.** Which of two NaNs an addition returns is up to the compiler, which may swap its operands, differently in every copy of
//! a loop. Every result that is NaN therefore leaves as one canonical quiet NaN (`settle`): two instructions per vector
//! buy equal bits on every rank, for every instruction set and every way to cut an array into calls.

use std::marker::PhantomData;

use super::cast::Plain;
use super::generic::Elementwise;

/// Numbers that add and multiply.
pub(super) trait Number: Plain {
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// The canonical NaN for any NaN; everything else unchanged.
    fn settle(self) -> Self;
}

/// Numbers that can be divided by a count.
pub(super) trait Real: Number {
    fn sub(self, other: Self) -> Self;
    fn over(self, count: usize) -> Self;
}

macro_rules! integers {
    ($($type:ty),*) => {$(impl Number for $type {
        #[inline(always)]
        fn add(self, other: Self) -> Self {
            self.wrapping_add(other)
        }
        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            self.wrapping_mul(other)
        }
        #[inline(always)]
        fn settle(self) -> Self {
            self
        }
    })*};
}
integers!(u8, u16, u32, u64);

macro_rules! reals {
    ($($type:ty),*) => {$(
        impl Number for $type {
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn settle(self) -> Self {
                if self.is_nan() { <$type>::NAN } else { self }
            }
        }
        impl Real for $type {
            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                self - other
            }
            #[inline(always)]
            fn over(self, count: usize) -> Self {
                self / count as $type
            }
        }
    )*};
}
reals!(f32, f64);

/// Sum. Complex numbers are summed as twice as many real ones.
pub(super) struct Sum<T>(PhantomData<T>);

impl<T: Number> Elementwise for Sum<T> {
    type Elem = T;
    type Acc = T;
    #[inline(always)]
    fn load(x: T) -> T {
        x
    }
    #[inline(always)]
    fn join(acc: T, next: T) -> T {
        acc.add(next)
    }
    #[inline(always)]
    fn finish(acc: T, _count: usize) -> T {
        acc.settle()
    }
}

/// Product.
pub(super) struct Prod<T>(PhantomData<T>);

impl<T: Number> Elementwise for Prod<T> {
    type Elem = T;
    type Acc = T;
    #[inline(always)]
    fn load(x: T) -> T {
        x
    }
    #[inline(always)]
    fn join(acc: T, next: T) -> T {
        acc.mul(next)
    }
    #[inline(always)]
    fn finish(acc: T, _count: usize) -> T {
        acc.settle()
    }
}

/// Sum over the number of contributions, divided once.
pub(super) struct Avg<T>(PhantomData<T>);

impl<T: Real> Elementwise for Avg<T> {
    type Elem = T;
    type Acc = T;
    const COUNTS: bool = true;
    #[inline(always)]
    fn load(x: T) -> T {
        x
    }
    #[inline(always)]
    fn join(acc: T, next: T) -> T {
        acc.add(next)
    }
    #[inline(always)]
    fn finish(acc: T, count: usize) -> T {
        acc.over(count).settle()
    }
}

/// Product of complex numbers `[re, im]`, by the school formula that numpy uses.
pub(super) struct ComplexProd<T>(PhantomData<T>);

impl<T: Real> Elementwise for ComplexProd<T>
where
    [T; 2]: Plain,
{
    type Elem = [T; 2];
    type Acc = [T; 2];
    #[inline(always)]
    fn load(x: [T; 2]) -> [T; 2] {
        x
    }
    #[inline(always)]
    fn join([a, b]: [T; 2], [c, d]: [T; 2]) -> [T; 2] {
        [a.mul(c).sub(b.mul(d)), a.mul(d).add(b.mul(c))]
    }
    #[inline(always)]
    fn finish([re, im]: [T; 2], _count: usize) -> [T; 2] {
        [re.settle(), im.settle()]
    }
}
