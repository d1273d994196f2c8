//! Minimum and maximum, on integers only: every element becomes a key whose order is that of the numbers.
//!
//! The comparison of floats has two holes: -0 equals +0, and NaN compares with nothing, so that an instruction like `minps` gives
//! an answer that depends on the order of its operands. As keys there are no holes.

use std::marker::PhantomData;

use super::cast::Plain;
use super::generic::Elementwise;

/// Elements as integers of the same width whose order is that of the numbers, so that -0 < +0 comes by itself and NaN is an
/// ordinary end of the scale: the lowest key for `Min`, the highest for `Max`.
pub(super) trait Ordered {
    type Elem: Plain;
    type Key: Copy + Default + Ord;
    /// Key of `x`, with `nan` for any NaN.
    fn key(x: Self::Elem, nan: Self::Key) -> Self::Key;
    /// The element of a key; the canonical NaN for `nan`.
    fn element(key: Self::Key, nan: Self::Key) -> Self::Elem;
    const LOWEST: Self::Key;
    const HIGHEST: Self::Key;
}

macro_rules! ordered_integers {
    ($($type:ty),*) => {$(impl Ordered for $type {
        type Elem = $type;
        type Key = $type;
        const LOWEST: $type = <$type>::MIN;
        const HIGHEST: $type = <$type>::MAX;
        #[inline(always)]
        fn key(x: $type, _nan: $type) -> $type {
            x
        }
        #[inline(always)]
        fn element(key: $type, _nan: $type) -> $type {
            key
        }
    })*};
}
ordered_integers!(u8, u16, u32, u64, i8, i16, i32, i64);

/// Sign-and-magnitude to two's complement order, and back: the magnitude bits of negative numbers are inverted.
macro_rules! flip_magnitude {
    ($x:expr, $bits:ty, $key:ty) => {
        $x ^ ((($x >> (<$bits>::BITS - 1)) as $bits) >> 1) as $key
    };
}
/// The bits of a float: how wide, where infinity is.
macro_rules! ordered_floats {
    ($($name:ident: $bits:ty, $key:ty, infinity $infinity:literal, nan $nan:literal;)*) => {$(
        pub(super) struct $name;

        impl Ordered for $name {
            type Elem = $bits;
            type Key = $key;
            const LOWEST: $key = <$key>::MIN;
            const HIGHEST: $key = <$key>::MAX;
            #[inline(always)]
            fn key(x: $bits, nan: $key) -> $key {
                if x & (<$bits>::MAX >> 1) > $infinity { nan } else { flip_magnitude!(x as $key, $bits, $key) }
            }
            #[inline(always)]
            fn element(key: $key, nan: $key) -> $bits {
                if key == nan { $nan } else { flip_magnitude!(key, $bits, $key) as $bits }
            }
        }
    )*};
}

ordered_floats! {
    Float16: u16, i16, infinity 0x7c00, nan 0x7e00;
    BFloat16: u16, i16, infinity 0x7f80, nan 0x7fc0;
    Float32: u32, i32, infinity 0x7f80_0000, nan 0x7fc0_0000;
    Float64: u64, i64, infinity 0x7ff0_0000_0000_0000, nan 0x7ff8_0000_0000_0000;
}

/// Minimum; NaN if there is one.
pub(super) struct Min<T>(PhantomData<T>);

impl<T: Ordered> Elementwise for Min<T> {
    type Elem = T::Elem;
    type Acc = T::Key;
    #[inline(always)]
    fn load(x: T::Elem) -> T::Key {
        T::key(x, T::LOWEST)
    }
    #[inline(always)]
    fn join(acc: T::Key, next: T::Key) -> T::Key {
        acc.min(next)
    }
    #[inline(always)]
    fn finish(acc: T::Key, _count: usize) -> T::Elem {
        T::element(acc, T::LOWEST)
    }
}

/// Maximum; NaN if there is one.
pub(super) struct Max<T>(PhantomData<T>);

impl<T: Ordered> Elementwise for Max<T> {
    type Elem = T::Elem;
    type Acc = T::Key;
    #[inline(always)]
    fn load(x: T::Elem) -> T::Key {
        T::key(x, T::HIGHEST)
    }
    #[inline(always)]
    fn join(acc: T::Key, next: T::Key) -> T::Key {
        acc.max(next)
    }
    #[inline(always)]
    fn finish(acc: T::Key, _count: usize) -> T::Elem {
        T::element(acc, T::HIGHEST)
    }
}
